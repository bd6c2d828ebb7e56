"""Backfill: schedules written out by hand, a grid of seconds as a second opinion, its promises."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import build
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_traces import make_trace, outcome_of, traces

from slurm_dl.engine.intent import intend
from slurm_dl.model.jobs import JobRow, JobState, Origin
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.trace import Trace
from slurm_dl.policies.arithmetic.availability import held, waiting
from slurm_dl.policies.backfill import Conservative, Easy, reservations
from slurm_dl.policies.base import Order, Policy
from slurm_dl.policies.fifo import Fifo

BOTH = pytest.mark.parametrize("policy", [Easy(), Conservative()], ids=lambda p: p.name)

Grid = npt.NDArray[np.float64]

NEVER = 200
"""The last moment of a grid; more than all the jobs of a test can take one after another."""


def starts_of(jobs: Sequence[tuple[float, float, float]], gpus: int, policy: Policy) -> list[float]:
    """When each job starts; *jobs* are (submission, length, GPUs)."""
    submit_s, length_s, wide = zip(*jobs, strict=True)
    records = outcome_of(make_trace(submit_s, length_s, wide), f"1x{gpus}", policy).records
    return [float(s) for s in records.start_s.tolist()]


def test_easy_equals_a_schedule_written_out_by_hand() -> None:
    """Four GPUs; who passes ends when the first in the queue begins, at 10.

    ======  =======  ======  ====  =======  ====================================================
    job     submit   length  GPUs  start    why
    ======  =======  ======  ====  =======  ====================================================
    0       0        10      2     0        there is room
    1       0        6       1     0        there is room
    2       1        5       4     10       first in the queue: all GPUs are free when 0 ends
    3       2        8       1     2        ends at 10
    4       3        3       1     6        the GPU of 1; ends at 9
    5       4        5       1     15       at 9 it would end at 14, and 2 leaves nothing over
    6       4        1       1     9        passes 5: ends at 10
    ======  =======  ======  ====  =======  ====================================================
    """
    jobs = [(0, 10, 2), (0, 6, 1), (1, 5, 4), (2, 8, 1), (3, 3, 1), (4, 5, 1), (4, 1, 1)]

    assert starts_of(jobs, 4, Easy()) == [0, 0, 10, 2, 6, 15, 9]


@BOTH
def test_a_long_job_may_take_what_is_left_over_until_nothing_is(policy: Policy) -> None:
    """Six GPUs. Job 1 wants five from 10 on, so one is over: for 2, and then not for 3.

    They come at one instant. At 4 job 4 still fits: it takes two until 10.
    """
    jobs = [(0, 10, 3), (1, 5, 5), (2, 100, 1), (2, 100, 1), (4, 6, 2)]

    assert starts_of(jobs, 6, policy) == [0, 10, 2, 15, 4]


def test_easy_may_delay_the_second_in_the_queue_and_conservative_does_not() -> None:
    """Four GPUs. Job 3 keeps one until 20; job 1 does not want it, job 2 does from 15 on."""
    jobs = [(0, 10, 3), (1, 5, 2), (2, 5, 4), (3, 17, 1)]

    assert starts_of(jobs, 4, Easy()) == [0, 10, 20, 3]
    assert starts_of(jobs, 4, Conservative()) == [0, 10, 15, 20]


def on_types(
    gpus: Sequence[float],
    runs: Sequence[tuple[float, float, int]],
    waits: Sequence[tuple[float, float, int]],
) -> Snapshot:
    """A node of so many *gpus* for each type; jobs are (GPUs, seconds left, type or -1)."""
    rows: list[JobRow] = []
    where: dict[int, dict[int, float]] = {}
    for job, (wide, _, kind) in enumerate(runs, start=1):
        rows.append(build.running(job, wide))
        where[job] = {kind: wide}
    for job, (wide, _, kind) in enumerate(waits, start=len(runs) + 1):
        rows.append(build.pending(job, wide, gpu_type=kind))
    seen = build.observed(rows, nodes=gpus, held=where)
    kinds = np.arange(len(gpus), dtype=np.int16)
    seen = dataclasses.replace(
        seen,
        nodes=dataclasses.replace(seen.nodes, gpu_type=kinds),
        gpu_types=tuple(f"type{k}" for k in kinds.tolist()),
    )
    left_s = np.array([j[1] for j in (*runs, *waits)], dtype=np.float64)
    return dataclasses.replace(build.snapshot(seen), left_s=left_s)


def started(snap: Snapshot, policy: Policy) -> dict[int, int]:
    """Type by place in the queue of the jobs that start; -1 where there is one type.

    Of those that do not only the first may start as soon as it fits.
    """
    intent = intend(snap, policy)
    order, target = intent.order, set(intent.target.tolist())
    assert order.barred is not None
    waits = (snap.jobs.state == JobState.PENDING).nonzero()[0]
    first = int(waits[0]) if len(waits) else 0
    kind = np.full(len(snap.jobs), -1) if order.gpu_type is None else order.gpu_type
    starts = {int(row) - first: int(kind[row]) for row in waits.tolist() if row in target}
    free = [row for row in waits.tolist() if row not in target and not order.barred[row]]
    could = (snap.jobs.gpus <= snap.seen.nodes.gpus[snap.seen.nodes.up].sum()) & (
        snap.jobs.state == JobState.PENDING
    )
    late = [row for row in could.nonzero()[0].tolist() if row not in target]
    assert free == [] or free[0] in late
    assert len(free) <= 1
    return starts


class ByHand:
    """Free GPUs of each type at each whole second from now on; the last one is the end of time."""

    def __init__(self, gpus: Sequence[float], runs: Sequence[tuple[float, float, int]]) -> None:
        self.free = [np.full(NEVER + 1, float(g)) for g in gpus]
        for wide, left_s, kind in runs:
            self.take(kind, 0, left_s, wide)

    def take(self, kind: int, begin: int, length: float, wide: float) -> None:
        """Hold so many from *begin* on."""
        end = NEVER + 1 if length == math.inf or begin == NEVER else begin + int(length)
        self.free[kind][begin:end] -= wide

    def earliest(self, kind: int, length: float, wide: float) -> int:
        """The first second from which so many are free for so long; NEVER if there is none."""
        for begin in range(NEVER - 12):
            end = NEVER + 1 if length == math.inf else begin + int(length)
            if (self.free[kind][begin:end] >= wide).all():
                return begin
        return NEVER

    def types(self, wide: float, kind: int, gpus: Sequence[float]) -> list[int]:
        """Types that a job may run on."""
        return [k for k in range(len(gpus)) if kind in (-1, k) and wide <= gpus[k]]


def easy_by_hand(
    gpus: Sequence[float],
    runs: Sequence[tuple[float, float, int]],
    waits: Sequence[tuple[float, float, int]],
) -> dict[int, int]:
    """Who starts on which type: by trying whether the first in the queue would notice."""
    grid = ByHand(gpus, runs)
    found: dict[int, int] = {}
    reserved, wanted, known_s = -1, 0.0, 0
    for job, (wide, left_s, kind) in enumerate(waits):
        types = grid.types(wide, kind, gpus)
        for k in types:
            if grid.free[k][0] < wide:
                continue
            before = grid.free[k].copy()
            grid.take(k, 0, left_s, wide)
            late = k == reserved and grid.earliest(k, 1, wanted) > known_s
            for_ever = k == reserved and known_s == NEVER and left_s == math.inf
            if late or for_ever:
                grid.free[k] = before
                continue
            found[job] = k
            break
        else:
            if reserved < 0 and types:
                when = {k: grid.earliest(k, 1, wide) for k in types}
                reserved = min(types, key=lambda k: (when[k], -grid.free[k][NEVER], k))
                wanted, known_s = wide, when[reserved]
    return found


def conservative_by_hand(
    gpus: Sequence[float],
    runs: Sequence[tuple[float, float, int]],
    waits: Sequence[tuple[float, float, int]],
) -> dict[int, int]:
    """Who starts on which type: every job in turn takes the first gap on the grid."""
    grid = ByHand(gpus, runs)
    found: dict[int, int] = {}
    for job, (wide, left_s, kind) in enumerate(waits):
        types = grid.types(wide, kind, gpus)
        if not types:
            continue
        when = {k: grid.earliest(k, left_s, wide) for k in types}
        best = min(types, key=lambda k: (when[k], -grid.free[k][NEVER] * (when[k] == NEVER), k))
        grid.take(best, when[best], left_s, wide)
        if when[best] == 0:
            found[job] = best
    return found


@pytest.mark.parametrize(
    ("policy", "by_hand"),
    [(Easy(), easy_by_hand), (Conservative(), conservative_by_hand)],
    ids=["easy", "conservative"],
)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_who_starts_is_who_starts_on_a_grid_of_seconds(
    policy: Policy, by_hand: Callable[..., dict[int, int]], data: st.DataObject
) -> None:
    """One type or two, jobs that ask for one, want more than there is, or never end."""
    gpus = data.draw(st.lists(st.sampled_from([2, 4, 6]), min_size=1, max_size=2))
    left_s = st.sampled_from([1, 2, 3, 5, 8, 12, 12, math.inf])
    kinds = st.sampled_from(range(len(gpus)))
    runs = data.draw(st.lists(st.tuples(st.sampled_from([1, 2]), left_s, kinds), max_size=5))
    room = list(gpus)
    fit = []
    for wide, left, kind in runs:
        if wide <= room[kind]:
            room[kind] -= wide
            fit.append((wide, left, kind))
    wants = st.sampled_from(range(-1, len(gpus)))
    waits = data.draw(
        st.lists(st.tuples(st.sampled_from([1, 1, 2, 3, 4, 7]), left_s, wants), max_size=8)
    )
    snap = on_types(gpus, fit, waits)

    expected = by_hand(gpus, fit, waits)
    found = started(snap, policy)
    assert found.keys() == expected.keys()
    if len(gpus) > 1:
        assert found == expected
    # And the engine starts those, all of them.
    target = {int(row) - len(fit) for row in intend(snap, policy).target.tolist()}
    assert {job for job in target if job >= 0} == expected.keys()


class Watched:
    """A policy that tells of every snapshot it is asked about."""

    def __init__(self, policy: Policy, watch: Callable[[Snapshot], None]) -> None:
        self._policy, self._watch = policy, watch

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the policy has
        return getattr(self._policy, name)

    def order(self, snap: Snapshot, /) -> Order:
        """The policy's."""
        self._watch(snap)
        return self._policy.order(snap)


def starts_under(policy: Policy, trace: Trace, watch: Callable[[Snapshot], None]) -> list[float]:
    """When each job starts on eight GPUs, seconds since the first submission."""
    outcome = outcome_of(trace, "1x8", Watched(policy, watch))  # type: ignore[arg-type]
    return [float(s) - float(trace.submit_s[0]) for s in outcome.records.start_s.tolist()]


@settings(max_examples=25, deadline=None)
@given(trace=traces(gpus=(1, 2, 3, 5, 8)))
def test_with_exact_estimates_easy_never_delays_the_first_in_the_queue(trace: Trace) -> None:
    """Once it is first its time is the earliest at which enough of those that run have ended."""
    promised: list[tuple[int, float]] = []

    def watch(snap: Snapshot) -> None:
        jobs = snap.jobs
        waits = (jobs.state == JobState.PENDING).nonzero()[0]
        runs = (jobs.state == JobState.RUNNING).nonzero()[0]
        free = 8.0 - float(jobs.gpus[runs].sum())
        ends = [(float(snap.left_s[r]), float(jobs.gpus[r])) for r in runs.tolist()]
        for row in waits.tolist():  # In the order of submission.
            if jobs.gpus[row] <= free:
                free -= float(jobs.gpus[row])
                ends.append((float(snap.left_s[row]), float(jobs.gpus[row])))
                continue
            for left_s, gpus in sorted(ends):
                free += gpus
                if free >= jobs.gpus[row]:
                    promised.append((int(jobs.job_id[row]), snap.now_s + left_s))
                    break
            break

    if len(trace):
        start_s = starts_under(Easy(), trace, watch)
        assert all(start_s[job] <= when_s + 1e-6 for job, when_s in promised)


@settings(max_examples=25, deadline=None)
@given(trace=traces(gpus=(1, 2, 3, 5, 8)), window=st.sampled_from([1, 2, 3, 100]))
def test_with_exact_estimates_conservative_keeps_its_first_promise(
    trace: Trace, window: int
) -> None:
    """No job starts later than it was first told to, whoever comes; nor earlier."""
    promised: dict[int, float] = {}

    def watch(snap: Snapshot) -> None:
        queue = waiting(snap)
        start_s, kind = reservations(queue, held(snap), window)
        for row, when_s, on in zip(queue.rows.tolist(), start_s.tolist(), kind, strict=True):
            if on >= 0:
                promised.setdefault(int(snap.jobs.job_id[row]), snap.now_s + when_s)

    if len(trace):
        start_s = starts_under(Conservative(window=window), trace, watch)
        assert len(promised) == len(trace)
        assert start_s == pytest.approx([promised[job] for job in range(len(trace))], abs=1e-6)


@BOTH
def test_without_time_limits_both_are_fifo(policy: Policy) -> None:
    """Nobody knows when a job ends, so nobody passes a job that waits for GPUs."""
    for free, wide in itertools.product([0, 1, 2, 3], [(1, 1, 3, 1), (4, 1, 1, 1), (2, 1, 1, 1)]):
        snap = on_types([6.0], [(6.0 - free, math.inf, 0)], [(w, math.inf, -1) for w in wide])

        first_s = snap.memory.first_submit_s
        fifo = intend(snap, Fifo()).target
        assert intend(snap, policy).target.tolist() == fifo.tolist()
        assert policy.order(snap).key.tolist() == first_s.tolist()


@BOTH
def test_an_unlimited_job_runs_where_the_first_in_the_queue_does_not_wait(policy: Policy) -> None:
    """The first wants type 0, which is held for ever: who wants type 1 is not in its way."""
    waits = [(2, 10, 0), (1, math.inf, 0), (1, math.inf, 1)]
    snap = on_types([4.0, 4.0], [(3.0, math.inf, 0)], waits)

    assert started(snap, policy) == {2: 1}


@BOTH
def test_who_cannot_be_told_a_time_waits_for_the_type_with_most_gpus(policy: Policy) -> None:
    """Both types are partly held for ever; an unlimited job may only take the other one."""
    waits = [(4, 10, -1), (1, math.inf, 0), (1, math.inf, 1)]
    snap = on_types([4.0, 4.0], [(3.0, math.inf, 0), (1.0, math.inf, 1)], waits)

    assert started(snap, policy) == {1: 0}


@BOTH
def test_a_job_that_has_outrun_its_estimate_still_has_its_gpus(policy: Policy) -> None:
    """It ends in a moment: nobody starts on its GPUs, and nobody passes who runs longer."""
    snap = on_types([4.0], [(3.0, 0.0, 0)], [(4, 10, -1), (1, 2, -1), (1, 0.5, -1)])

    assert list(started(snap, policy)) == [2]


@BOTH
def test_gpus_of_jobs_that_are_not_ours_come_free_too(policy: Policy) -> None:
    """A running job of another partition ends at 10; then the first in the queue has its GPUs."""
    rows = [build.running(1, 3, partition=1), build.pending(2, 4), *map(build.pending, (3, 4))]
    snap = build.snapshot(
        dataclasses.replace(build.observed(rows, nodes=(4,), held={1: {0: 3}}), gpu_types=("a100",))
    )
    snap = dataclasses.replace(snap, left_s=np.array([10.0, 5.0, 11.0, 10.0]))

    order = policy.order(snap)
    assert order.barred is not None
    assert order.barred.tolist() == [False, False, True, False]


@BOTH
def test_gpus_of_nodes_that_are_down_do_not_come_free(policy: Policy) -> None:
    """Job 1 ends on a drained node: the first in the queue has to wait for job 2."""
    rows = [build.running(1, 4), build.running(2, 3), build.pending(3, 4), build.pending(4)]
    seen = build.observed(rows, nodes=(4, 4), held={1: {0: 4}, 2: {1: 3}})
    nodes = dataclasses.replace(seen.nodes, up=np.array([False, True]))
    snap = build.snapshot(dataclasses.replace(seen, nodes=nodes, gpu_types=("a100",)))
    for last_s in (50.0, 51.0):
        order = policy.order(dataclasses.replace(snap, left_s=np.array([10.0, 50.0, 5.0, last_s])))
        assert order.barred is not None
        assert order.barred.tolist() == [False, False, False, last_s > 50]


@BOTH
@pytest.mark.parametrize(
    ("origin", "starts"), [(Origin.HISTORY, {1: 1}), (Origin.DECLARED, {}), (None, {})]
)
def test_run_times_shrink_on_faster_gpus_and_time_limits_do_not(
    policy: Policy, origin: Origin | None, starts: dict[int, int]
) -> None:
    """On type 1, four times as fast, 40 s of work are done when job 1 ends, at 10."""
    snap = on_types([1.0, 4.0], [(3.0, 40.0, 1)], [(4, 40, 1), (1, 40, 1)])
    rates = np.tile([1.0, 4.0], (3, 1))
    known = None if origin is None else np.full(3, origin, dtype=np.int8)
    left_s = np.array([10.0, 40.0, 40.0])
    if origin == Origin.HISTORY:
        left_s[0] = 40.0
    snap = dataclasses.replace(snap, rates=rates, left_from=known, left_s=left_s)

    assert started(snap, policy) == starts


@BOTH
def test_jobs_without_a_type_start_on_the_fastest_that_has_room(policy: Policy) -> None:
    """Type 1 is faster; the third job finds it full and runs on type 0, the last cannot."""
    snap = on_types([4.0, 4.0], [], [(2, 40, -1), (2, 40, -1), (2, 40, -1), (2, 40, -1)])
    rates = np.tile([1.0, 2.0], (4, 1))
    rates[3, 0] = 0.0
    snap = dataclasses.replace(snap, rates=rates)

    assert started(snap, policy) == {0: 1, 1: 1, 2: 0}


def test_jobs_behind_the_window_wait() -> None:
    """Only so many have reservations; a job too large to have one does not count."""
    waits = [(9, 1, -1), (4, 10, -1), (1, 1, -1), (1, 1, -1)]
    snap = on_types([4.0], [(2.0, 10.0, 0)], waits)

    assert list(started(snap, Conservative(window=2))) == [2]
    assert list(started(snap, Conservative(window=3))) == [2, 3]


def test_an_estimate_that_is_no_number_is_none() -> None:
    """It counts as a job of which nobody knows when it ends."""
    snap = on_types([4.0], [(3.0, math.nan, 0)], [(2, 5, -1), (1, math.nan, -1), (1, 5, -1)])

    for policy in (Easy(), Conservative()):
        assert list(started(snap, policy)) == [2]
