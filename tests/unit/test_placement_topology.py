"""Topology: the fewest leaf switches, and of those that do the one that is filled best."""

from __future__ import annotations

import itertools

import numpy as np
import place_cases as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.leaf_switches import fewest_leaves
from slurm_dl.placement.scheme import Spot, Wait
from slurm_dl.placement.topology import Topology


@given(
    nodes=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    n_nodes=st.integers(1, 20),
)
def test_the_leaves_are_as_few_as_any_choice_of_leaves_could_be(
    nodes: list[int], n_nodes: int
) -> None:
    """Brute force over all sets of leaves; and the last leaf is the smallest that will do."""
    chosen = fewest_leaves(np.array(nodes, dtype=np.int64), n_nodes)
    before = list(nodes)

    sets = itertools.chain.from_iterable(
        itertools.combinations(range(len(nodes)), k) for k in range(1, len(nodes) + 1)
    )
    enough = [leaves for leaves in sets if sum(nodes[leaf] for leaf in leaves) >= n_nodes]
    assert nodes == before
    if not enough:
        assert chosen == []
        return
    assert len(chosen) == min(map(len, enough))
    assert sum(n for _, n in chosen) == n_nodes
    assert len({leaf for leaf, _ in chosen}) == len(chosen)
    assert all(0 < n <= nodes[leaf] for leaf, n in chosen)
    if len(chosen) == 1:
        assert nodes[chosen[0][0]] == min(n for n in nodes if n >= n_nodes)


@given(case=pc.cases())
@settings(max_examples=60)
def test_a_job_lies_on_the_fewest_leaves(case: pc.Case) -> None:
    """Brute force over the leaves on random clusters, job after job."""
    stock, placer, wants = pc.begin(Topology(), case)
    ledger = pc.Ledger(case)
    for want in wants:
        answer = placer.place(want, CandidateNodes(stock, want, ()))
        for n, share in pc.shares(want).items():
            room = [0, 0, 0]
            for node in range(len(case.nodes)):
                if want.need.allowed[node] and ledger.fits(
                    node, share, exclusive=want.need.exclusive
                ):
                    room[case.nodes[node].leaf] += 1
            if sum(room) >= n:
                break
        else:
            assert answer is None
            continue
        fewest = min(
            k
            for k in (1, 2, 3)
            for leaves in itertools.combinations(range(3), k)
            if sum(room[leaf] for leaf in leaves) >= n
        )
        on = {case.nodes[node].leaf for node in answer.nodes}
        assert len(answer.nodes) == n
        assert len(on) == fewest
        if fewest == 1:
            assert room[on.pop()] == min(r for r in room if r >= n)
        for node in answer.nodes:
            ledger.give(node, share)
        stock.take(want, answer.nodes)


LEAVES = (*(pc.Node(leaf=0),) * 2, *(pc.Node(leaf=1),) * 2)


def test_a_job_waits_for_one_leaf_as_long_as_it_is_told_to() -> None:
    """It is kept to the leaf that will have room first; when the wait is over it takes two."""
    runs = (pc.Run((0,), gpus=8, left_s=900.0), pc.Run((2,), gpus=8, left_s=100.0))
    scheme = Topology(locality_wait_s=60.0)

    def asked(waited_s: float) -> Wait | Spot | None:
        job = pc.Waiting(gpus=16, n_nodes=2, waited_s=waited_s)
        placed = pc.place(pc.snapshot(pc.Case(LEAVES, runs, (job,))), scheme)
        return placed.spots.get(100) or placed.waits.get(100)  # type: ignore[call-overload, no-any-return]

    early, late = asked(40.0), asked(60.0)
    assert early.within.tolist() == [False, False, True, True]
    assert early.for_s == 20.0
    assert late.nodes == (1, 3)


def test_nobody_waits_for_a_leaf_that_could_never_hold_it() -> None:
    case = pc.Case(LEAVES, (), (pc.Waiting(gpus=24, n_nodes=3),))
    placed = pc.place(pc.snapshot(case), Topology(locality_wait_s=60.0))

    assert len(placed.spots[100].nodes) == 3  # type: ignore[index]
