"""Best fit: the fullest nodes, and an empty one only if no other will do."""

from __future__ import annotations

import place_cases as pc
from hypothesis import given, settings

from slurm_dl.placement.best_fit import BestFit
from slurm_dl.placement.candidate_nodes import CandidateNodes


def test_the_fullest_node_that_fits_is_taken() -> None:
    case = pc.Case(
        (pc.Node(), pc.Node(), pc.Node()),
        (pc.Run((0,), gpus=2), pc.Run((1,), gpus=5), pc.Run((2,), gpus=7)),
        (pc.Waiting(gpus=2),),
    )

    assert pc.place(pc.snapshot(case), BestFit()).spots[100].nodes == (1,)  # type: ignore[index]


def test_fewer_nodes_come_before_fuller_ones() -> None:
    """A job that may lie on two nodes leaves the fragments alone while one node holds it."""
    runs = (pc.Run((0,), gpus=4), pc.Run((1,), gpus=4))
    nodes = (pc.Node(), pc.Node(), pc.Node())
    job = pc.Waiting(gpus=8, most_nodes=2)
    spread = pc.Case(nodes[:2], runs, (job,))

    whole = pc.place(pc.snapshot(pc.Case(nodes, runs, (job,))), BestFit())
    assert whole.spots[100].nodes == (2,)  # type: ignore[index]
    assert pc.place(pc.snapshot(spread), BestFit()).spots[100].nodes == (0, 1)  # type: ignore[index]


@given(case=pc.cases())
@settings(max_examples=60)
def test_no_empty_node_is_opened_while_used_ones_fit_and_fuller_ones_come_first(
    case: pc.Case,
) -> None:
    """Against plain counting: empty nodes only where used ones run out, then by free GPUs."""
    stock, placer, wants = pc.begin(BestFit(), case)
    ledger = pc.Ledger(case)
    for want in wants:
        answer = placer.place(want, CandidateNodes(stock, want, ()))
        fitting = {
            n: [
                node
                for node in range(len(case.nodes))
                if want.need.allowed[node]
                and ledger.fits(node, share, exclusive=want.need.exclusive)
            ]
            for n, share in pc.shares(want).items()
        }
        ways = [n for n, nodes in fitting.items() if len(nodes) >= n]
        if not ways:
            assert answer is None
            continue
        nodes = answer.nodes  # type: ignore[union-attr]
        assert len(nodes) == min(ways)

        def fullness(node: int) -> tuple[bool, int]:
            return ledger.jobs[node] == 0, ledger.free[node][0]

        best = sorted(map(fullness, fitting[len(nodes)]))[: len(nodes)]
        assert sorted(map(fullness, nodes)) == best
        for node in nodes:
            ledger.give(node, pc.shares(want)[len(nodes)])
        stock.take(want, nodes)
