"""Sets of moves against brute force: every set of jobs, every choice of nodes, every seating."""

from __future__ import annotations

import dataclasses
import itertools

import build
import numpy as np
import pytest
from hypothesis import given, settings
from used_clusters import used_clusters

from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.preemption.defragmentation import JobMoves, MoveLimits, cheapest_moves
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import ResourceRequest, ResourceRequests

GPUS = 4
SAVE_AND_RESTORE_S = 60.0


FRAGMENTED = used_clusters(gpus=GPUS, least_nodes=2, most_jobs=5, most_share=GPUS - 1, most_nodes=2)
"""Partly used: jobs of one or two nodes, none of which fills a node."""


def found(snap: Snapshot, row: int, *, jobs: int = 8, gpus: float = 1e9) -> JobMoves | str:
    everywhere = np.ones(len(snap.seen.nodes), dtype=np.bool_)
    return cheapest_moves(
        snap,
        FreeResources.free_in(snap),
        ResourceRequests(snap).of(row),
        movable=np.arange(row, dtype=np.int64),
        cost_gpu_s=snap.jobs.gpus * SAVE_AND_RESTORE_S,
        within=everywhere,
        bounds=MoveLimits(onto=everywhere, jobs=jobs, gpus=gpus),
    )


def seatings(room: FreeResources, need: ResourceRequest) -> list[tuple[int, ...]]:
    """Every way to put *need* into *room*."""
    fits = np.flatnonzero(room.fits_on(need)).tolist()
    return list(itertools.combinations(fits, need.n_nodes))


def all_fit(room: FreeResources, needs: list[ResourceRequest]) -> bool:
    """Whether all of *needs* fit together, by trying everything."""
    if not needs:
        return True
    for nodes in seatings(room, needs[0]):
        left = room.copy()
        left.take(needs[0], np.array(nodes, dtype=np.int64))
        if all_fit(left, needs[1:]):
            return True
    return False


def works(snap: Snapshot, row: int, moved: tuple[int, ...], *, apart: bool = False) -> bool:
    """Whether the pending job and all of *moved* fit once they have left.

    *apart*: None of them goes where another of them was.
    """
    room, needs = FreeResources.free_in(snap), ResourceRequests(snap)
    stays = np.ones(len(snap.seen.nodes), dtype=np.bool_)
    for job in moved:
        room.release(snap, job)
        stays[snap.seen.held.nodes_of(job)] = not apart
    seats = [needs.of(job) for job in moved]
    seats = [dataclasses.replace(need, allowed=need.allowed & stays) for need in seats]
    return all_fit(room, [needs.of(row), *seats])


def cheapest_by_hand(snap: Snapshot, row: int, *, apart: bool = False) -> float | None:
    """GPU-seconds of the best of all sets; None if no set will do."""
    subsets = (s for k in range(row + 1) for s in itertools.combinations(range(row), k))
    costs = [
        sum(float(snap.jobs.gpus[j]) for j in s) * SAVE_AND_RESTORE_S
        for s in subsets
        if works(snap, row, s, apart=apart)
    ]
    return min(costs, default=None)


@settings(max_examples=300, deadline=None)
@given(case=FRAGMENTED)
def test_the_cheapest_moves_are_those_of_brute_force(case: tuple[Snapshot, int]) -> None:
    snap, row = case
    best = cheapest_by_hand(snap, row)
    # Jobs that would only change places are not found.
    plain = cheapest_by_hand(snap, row, apart=True)
    moves = found(snap, row)
    if isinstance(moves, str):
        # A job of several nodes is seated in one way only, so a set may be missed with one.
        spans = np.bincount(snap.seen.held.job, minlength=row) > 1
        assert plain is None or spans.any()
        return
    assert best is not None
    assert works(snap, row, moves.rows)
    assert moves.cost_gpu_s >= best
    spans = np.bincount(snap.seen.held.job, minlength=row) > 1
    if not spans.any() and best == plain:
        assert moves.cost_gpu_s == best


def test_a_gang_gets_the_smallest_set_of_moves() -> None:
    """Three nodes with one, two and three GPUs taken; two whole ones are wanted."""
    held = {1: {0: 1.0}, 2: {1: 2.0}, 3: {2: 3.0}, 4: {3: 1.0}}
    rows = [build.running(j, g) for j, g in ((1, 1), (2, 2), (3, 3), (4, 1))]
    rows.append(build.pending(9, 8, n_nodes=2))
    snap = build.snapshot(build.observed(rows, nodes=[4] * 4, held=held, opted_in=[1, 2, 3, 4]))
    moves = found(snap, 4)
    assert isinstance(moves, JobMoves)
    assert moves.rows == (0, 3)
    assert moves.freed == (0, 3)
    assert set(moves.seats) <= {1, 2}
    assert moves.cost_gpu_s == 2 * SAVE_AND_RESTORE_S


def test_who_fits_nowhere_else_is_not_moved() -> None:
    held = {1: {0: 2.0}, 2: {1: 3.0}}
    rows = [build.running(1, 2), build.running(2, 3), build.pending(9, 4)]
    snap = build.snapshot(build.observed(rows, nodes=[4, 4], held=held, opted_in=[1, 2]))
    assert isinstance(found(snap, 2), str)


@pytest.mark.parametrize(("limits", "possible"), [({"jobs": 1}, False), ({"gpus": 1.0}, False)])
def test_limits_are_kept(limits: dict[str, float], possible: bool) -> None:  # noqa: FBT001
    held = {1: {0: 1.0}, 2: {1: 1.0}, 3: {2: 1.0}}
    rows = [build.running(j, 1) for j in (1, 2, 3)] + [build.pending(9, 8, n_nodes=2)]
    snap = build.snapshot(build.observed(rows, nodes=[4] * 3, held=held, opted_in=[1, 2, 3]))
    assert isinstance(found(snap, 3), JobMoves)
    assert isinstance(found(snap, 3, **limits), JobMoves) == possible  # type: ignore[arg-type]


@pytest.mark.long
def test_a_large_cluster_does_not_take_for_ever() -> None:
    """Five hundred nodes, each with two jobs that fit nowhere else: the search gives up."""
    m = 500
    held = {1 + 2 * n + k: {n: 2.0 - k} for n in range(m) for k in range(2)}
    rows = [build.running(j, next(iter(on.values()))) for j, on in held.items()]
    rows.append(build.pending(9999, 4 * 300, n_nodes=300))
    snap = build.snapshot(build.observed(rows, nodes=[4] * m, held=held, opted_in=list(held)))
    assert isinstance(found(snap, len(rows) - 1, jobs=600), str)
