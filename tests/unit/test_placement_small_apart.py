"""Small jobs among themselves, larger ones on nodes without them, as long as both fit."""

from __future__ import annotations

import place_cases as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.placement.best_fit import BestFit
from slurm_dl.placement.load_balance import LoadBalance
from slurm_dl.placement.small_apart import SmallApart

SMALL, LARGE, NONE = pc.Run((0,), gpus=1), pc.Run((1,), gpus=4), pc.Run((2,), gpus=0)
NODES = (pc.Node(), pc.Node(), pc.Node())


def _node(case: pc.Case, scheme: pc.Scheme, rule: SmallApart | None = None) -> int:
    spot = pc.place(pc.snapshot(case), scheme, rule or SmallApart()).spots[100]  # type: ignore[index]
    return spot.nodes[0]


@pytest.mark.parametrize("scheme", [BestFit(), LoadBalance()], ids=lambda scheme: scheme.name)
def test_a_small_job_joins_small_ones_then_opens_a_node_then_joins_larger_ones(
    scheme: pc.Scheme,
) -> None:
    """Whatever the scheme itself would choose."""
    small, full = (pc.Waiting(),), pc.Run((0,), gpus=1, cpus=64)

    assert _node(pc.Case(NODES, (SMALL, LARGE), small), scheme) == 0
    assert _node(pc.Case(NODES, (full, LARGE), small), scheme) == 2
    assert _node(pc.Case(NODES[:2], (full, LARGE), small), scheme) == 1


@pytest.mark.parametrize("scheme", [BestFit(), LoadBalance()], ids=lambda scheme: scheme.name)
def test_a_larger_job_avoids_small_ones_unless_nothing_else_fits(scheme: pc.Scheme) -> None:
    """It goes beside a larger one or to an empty node; where it must, beside a small one."""
    job = (pc.Waiting(gpus=4),)

    assert _node(pc.Case(NODES[:2], (SMALL, LARGE), job), scheme) == 1
    assert _node(pc.Case(NODES[:1], (SMALL,), job), scheme) == 0


def test_what_is_small_is_for_the_site_to_say() -> None:
    """And a job without GPUs is neither."""
    two = (pc.Waiting(gpus=2),)
    case = pc.Case(NODES, (SMALL, LARGE), two)

    assert _node(case, BestFit(), SmallApart(small_gpus=2)) == 0
    assert _node(case, BestFit(), SmallApart(small_gpus=1)) == 1
    assert _node(pc.Case(NODES[2:], (pc.Run((0,), gpus=0),), two), BestFit()) == 0


@given(case=pc.cases(), small_gpus=st.sampled_from((1, 2)))
@settings(max_examples=60)
def test_small_and_larger_jobs_share_a_node_only_where_they_must(
    case: pc.Case, small_gpus: int
) -> None:
    """Plain counting of the nodes that are preferred at the time: if these do, they are taken."""
    snap = pc.snapshot(case)
    placed = pc.place(snap, BestFit(), SmallApart(small_gpus=small_gpus))
    ledger = pc.Ledger(case)
    sizes: list[list[float]] = [[] for _ in case.nodes]
    for run in case.runs:
        for node in run.nodes:
            sizes[node].append(run.gpus * len(run.nodes))
    for want in pc.wants(snap):
        spot = placed.spots.get(want.job_id)
        if spot is None:
            continue
        n, share = len(spot.nodes), pc.shares(want)[len(spot.nodes)]
        small = want.gpus <= small_gpus

        def liked(node: int, *, small: bool = small) -> int:
            on = [size for size in sizes[node] if size > 0]
            if not small:
                return all(size > small_gpus for size in on)
            return 0 if any(size > small_gpus for size in on) else 2 if on else 1

        fitting = [
            node
            for node in range(len(case.nodes))
            if want.need.allowed[node] and ledger.fits(node, share, exclusive=want.need.exclusive)
        ]
        for level in (2, 1):
            if sum(liked(node) >= level for node in fitting) >= n:
                assert all(liked(node) >= level for node in spot.nodes)
                break
        for node in spot.nodes:
            ledger.give(node, share)
            sizes[node].append(want.gpus)
