"""Tetris: the nodes whose free resources are most like what is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import place_cases as pc
from hypothesis import given, settings

from slurm_dl.placement.tetris import Tetris


def _score(case: pc.Case, ledger: pc.Ledger, node: int, share: Sequence[float]) -> float:
    """The score of one node by the formula alone."""
    return sum(
        share[r] / whole * ledger.free[node][r] / whole
        for r, whole in enumerate(
            (case.nodes[node].gpus, case.nodes[node].cpus, case.nodes[node].mem_mb)
        )
    )


@given(case=pc.cases())
@settings(max_examples=60)
def test_the_nodes_taken_have_the_best_scores_of_all(case: pc.Case) -> None:
    """Brute force over the nodes in plain Python; the nodes may differ where scores are equal."""
    pc.check_best_scores(Tetris(), case, _score)


def test_what_a_job_asks_for_decides_what_free_resource_counts() -> None:
    """A job of many CPUs goes where CPUs are free, one of many GPUs where GPUs are."""
    nodes = (pc.Node(), pc.Node())
    runs = (pc.Run((0,), gpus=4, cpus=1), pc.Run((1,), gpus=1, cpus=32))
    hungry = pc.Case(nodes, runs, (pc.Waiting(gpus=1, cpus=32),))
    gpus = pc.Case(nodes, runs, (pc.Waiting(gpus=4, cpus=1),))

    assert pc.place(pc.snapshot(hungry), Tetris()).spots[100].nodes == (0,)  # type: ignore[index]
    assert pc.place(pc.snapshot(gpus), Tetris()).spots[100].nodes == (1,)  # type: ignore[index]
