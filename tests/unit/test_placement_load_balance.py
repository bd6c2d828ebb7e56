"""Load balance: the least loaded nodes, over GPUs, CPUs and memory."""

from __future__ import annotations

from collections.abc import Sequence

import place_cases as pc
from hypothesis import given, settings

from slurm_dl.placement.load_balance import LoadBalance


def _score(case: pc.Case, ledger: pc.Ledger, node: int, share: Sequence[float]) -> float:
    """The score of one node by the formula alone."""
    del share
    return sum(
        ledger.free[node][r] / whole
        for r, whole in enumerate(
            (case.nodes[node].gpus, case.nodes[node].cpus, case.nodes[node].mem_mb)
        )
    )


@given(case=pc.cases())
@settings(max_examples=60)
def test_the_nodes_taken_have_the_best_scores_of_all(case: pc.Case) -> None:
    """Brute force over the nodes in plain Python; the nodes may differ where scores are equal."""
    pc.check_best_scores(LoadBalance(), case, _score)


def test_cpus_and_memory_count_as_load() -> None:
    """Of two nodes with as many free GPUs the one with more free CPUs is taken."""
    nodes = (pc.Node(), pc.Node())
    runs = (pc.Run((0,), gpus=2, cpus=40), pc.Run((1,), gpus=2, cpus=4))
    case = pc.Case(nodes, runs, (pc.Waiting(),))

    assert pc.place(pc.snapshot(case), LoadBalance()).spots[100].nodes == (1,)  # type: ignore[index]
