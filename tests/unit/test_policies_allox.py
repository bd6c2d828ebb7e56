"""AlloX: the matching against all schedules, and the policy on small clusters."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import build
import numpy as np
import numpy.typing as npt
import policy_runs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from policy_runs import Work

from slurm_dl.engine.intent import intend
from slurm_dl.model.jobs import JobState
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.allox import Allox
from slurm_dl.policies.arithmetic.matching import coarse, match

F64 = npt.NDArray[np.float64]
EVERYBODY = Allox(alpha=1.0)


def least_total(run_s: F64, kind: Sequence[int], avail_s: Sequence[float]) -> float:
    """Least sum of completion times over every assignment and every order on each machine."""

    def on_one(machine: int, jobs: Sequence[int]) -> float:
        lasts = [float(run_s[j, kind[machine]]) for j in jobs]
        return min(
            sum(avail_s[machine] + s for s in itertools.accumulate(order))
            for order in itertools.permutations(lasts)
        )

    return min(
        sum(on_one(i, [j for j, at in enumerate(where) if at == i]) for i in range(len(kind)))
        for where in itertools.product(range(len(kind)), repeat=len(run_s))
    )


def test_the_published_vector() -> None:
    """Machine x job [[10, 2], [4, 3]]: each job goes where it is short, 6 seconds in all."""
    run_s = np.array([[10.0, 2.0], [4.0, 3.0]]).T

    found = match(run_s, np.array([0, 1]), np.zeros(2))

    assert found.total_s == 6
    assert found.machine.tolist() == [1, 0]
    assert found.place.tolist() == [1, 1]


RUN_S = st.sampled_from([1.0, 2.0, 3.0, 5.0, 8.0, 13.0])


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_matching_equals_the_best_of_all_schedules(data: st.DataObject) -> None:
    """Machines of equal or different types, free or busy; up to 5 jobs on up to 3 machines."""
    n, m = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    kind = data.draw(st.lists(st.integers(0, 2), min_size=m, max_size=m))
    avail_s = data.draw(st.lists(st.sampled_from([0.0, 0.0, 1.0, 4.0]), min_size=m, max_size=m))
    run_s = np.array(data.draw(st.lists(st.tuples(RUN_S, RUN_S, RUN_S), min_size=n, max_size=n)))

    found = match(run_s, np.array(kind), np.array(avail_s))

    assert found.total_s == pytest.approx(least_total(run_s, kind, avail_s))
    ends = found.start_s + run_s[np.arange(n), np.array(kind)[found.machine]]
    assert float(ends.sum()) == pytest.approx(found.total_s)
    for i in range(m):
        mine = sorted(found.place[found.machine == i].tolist())
        assert mine == list(range(1, len(mine) + 1))


def test_the_largest_k_of_a_free_machine_starts() -> None:
    """Shortest first on one machine; on a busy one nobody starts."""
    run_s = np.array([[3.0], [1.0], [2.0]])
    found = match(run_s, np.array([0]), np.zeros(1))

    assert found.place.tolist() == [1, 3, 2]
    assert found.start_s.tolist() == [3, 0, 1]
    assert found.firsts(np.array([True])).tolist() == [False, True, False]
    assert not found.firsts(np.array([False])).any()


def test_a_job_that_can_run_nowhere_is_left_out_and_harms_nobody() -> None:
    """The others are matched as if it were not there."""
    run_s = np.array([[np.inf, np.inf], [3.0, np.inf], [1.0, np.inf]])
    found = match(run_s, np.array([0, 1]), np.zeros(2))

    assert found.machine.tolist() == [-1, 0, 0]
    assert found.start_s.tolist() == [math.inf, 1, 0]
    assert found.total_s == 5


def test_times_are_only_made_coarse_where_there_are_many() -> None:
    """A few are left as they are; of many none moves by more than half a step."""
    few, many = np.array([0.0, 1.0, 7.5]), np.linspace(0.0, 70.0, 50)

    assert coarse(few) is few
    assert len(np.unique(coarse(many))) == 8
    assert np.abs(coarse(many) - many).max() <= 5


@dataclass(kw_only=True)
class Job:
    """A job of a cluster with types, and what has become of it."""

    job_id: int
    run_s: tuple[float, ...]
    gpus: float = 1.0
    account: str = "a"
    on: int = -1
    start_s: float = 0.0
    end_s: float = math.inf


def scene(jobs: Sequence[Job], of_type: Sequence[float], now_s: float = build.NOW_S) -> Snapshot:
    """A node for each type with so many GPUs; jobs are as long as they say."""
    live = [j for j in jobs if j.end_s > now_s]
    rows = [
        build.running(j.job_id, j.gpus, start_s=j.start_s)
        if j.on >= 0
        else build.pending(j.job_id, j.gpus)
        for j in live
    ]
    held = {j.job_id: {j.on: j.gpus} for j in live if j.on >= 0}
    texts = build.texts(account={j.job_id: j.account for j in live})
    types = build.node_of_each_type(of_type)
    snap = build.snapshot(build.observed(rows, held=held, now_s=now_s, texts=texts, **types))
    # Work is counted in thousandths of a run on any type.
    left_s = [1000.0 * (1.0 if j.on < 0 else (j.end_s - now_s) / j.run_s[j.on]) for j in live]
    rates = 1000.0 / np.array([j.run_s for j in live]).reshape(len(live), len(of_type))
    return dataclasses.replace(snap, left_s=np.array(left_s), rates=rates)


def run_all(jobs: Sequence[Job], of_type: Sequence[float], policy: Allox) -> float:
    """Run the jobs to the end; the sum of their completion times."""
    now_s = build.NOW_S
    while any(j.on < 0 for j in jobs):
        snap = scene(jobs, of_type, now_s)
        intent = intend(snap, policy, (snap.jobs.start_s > 0).nonzero()[0])
        assert intent.kind is not None
        by_id = {j.job_id: j for j in jobs}
        for row in intent.target.tolist():
            job = by_id[int(snap.jobs.job_id[row])]
            if job.on < 0:
                job.on, job.start_s = int(intent.kind[row]), now_s
                job.end_s = now_s + job.run_s[job.on]
        now_s = min((j.end_s for j in jobs if j.on >= 0 and j.end_s > now_s), default=math.inf)
        assert now_s < math.inf
    return sum(j.end_s - build.NOW_S for j in jobs)


LONG_S = st.sampled_from([1000.0, 2000.0, 3000.0, 5000.0, 8000.0, 13000.0])


@settings(max_examples=25, deadline=None)
@given(
    run_s=st.lists(st.tuples(LONG_S, LONG_S, LONG_S), min_size=1, max_size=5),
    of_type=st.sampled_from([(1.0, 1.0, 0.0), (1.0, 0.0, 2.0), (1.0, 1.0, 1.0), (2.0, 0.0, 0.0)]),
)
def test_jobs_of_one_gpu_end_as_early_as_in_the_best_schedule(
    run_s: list[tuple[float, float, float]], of_type: tuple[float, ...]
) -> None:
    """All there at once: the sum of completion times is the least of all schedules."""
    kind = [t for t, count in enumerate(of_type) for _ in range(int(count))]
    best_s = least_total(np.array(run_s), kind, [0.0] * len(kind))

    jobs = [Job(job_id=i + 1, run_s=r) for i, r in enumerate(run_s)]
    assert run_all(jobs, of_type, EVERYBODY) == pytest.approx(best_s)


def test_a_job_waits_for_a_fast_gpu_where_it_ends_sooner_so() -> None:
    """Slow GPUs are free, the fast one soon: waiting is better for job 2, not for job 3."""
    runs = Job(job_id=1, run_s=(9000.0, 1000.0), on=1, end_s=build.NOW_S + 500)
    runs.start_s = build.NOW_S - 500
    waits = [Job(job_id=2, run_s=(9000.0, 100.0)), Job(job_id=3, run_s=(1000.0, 900.0))]
    snap = scene([runs, *waits], (1.0, 1.0))
    order = EVERYBODY.order(snap)

    assert order.barred.tolist() == [False, True, False]
    assert order.gpu_type.tolist() == [-1, 1, 0]


def targets(snap: Snapshot, policy: Allox) -> list[int]:
    """Who holds GPUs."""
    pinned = (snap.jobs.state == JobState.RUNNING).nonzero()[0]
    return sorted(snap.jobs.job_id[intend(snap, policy, pinned).target].tolist())


def test_only_the_least_served_users_enter_and_more_while_gpus_are_idle() -> None:
    """Who holds GPUs comes behind; what the one let in leaves idle goes to the others."""
    held = Job(job_id=1, run_s=(9000.0,), account="b", on=0, end_s=build.NOW_S + 9000)
    held.start_s = build.NOW_S - 1000
    short = Job(job_id=2, run_s=(100.0,), account="b")
    long = Job(job_id=3, run_s=(9000.0,), account="c")
    jobs = [held, short, long]

    assert targets(scene(jobs, (2.0,)), Allox(alpha=0.5)) == [1, 3]
    assert targets(scene(jobs, (2.0,)), EVERYBODY) == [1, 2]
    assert targets(scene(jobs, (3.0,)), Allox(alpha=0.5)) == [1, 2, 3]


@settings(max_examples=12, deadline=None)
@given(
    short_s=st.lists(st.sampled_from([100.0, 300.0, 900.0]), min_size=5, max_size=12),
    long_s=st.sampled_from([2000.0, 5000.0]),
    came_s=st.integers(1, 1500),
    gpus=st.integers(1, 2),
)
@example(short_s=[100.0] * 8, long_s=2000.0, came_s=1, gpus=2)
def test_a_user_waits_for_the_next_end_at_most(
    short_s: list[float], long_s: float, came_s: int, gpus: int
) -> None:
    """One user's short jobs never run out; another's long one starts when a GPU is free."""
    works = [
        Work(job_id=i + 1, submit_s=build.NOW_S, size_s=s, account="many")
        for i, s in enumerate(short_s)
    ]
    late = Work(job_id=99, submit_s=build.NOW_S + came_s, size_s=long_s, account="one")

    policy_runs.run(Allox(alpha=0.5), [*works, late], gpus)

    ends = [w.end_s for w in works if w.end_s >= late.submit_s]
    assert late.first_run_s <= min(ends, default=late.submit_s)


def test_with_all_users_in_a_long_job_does_wait_for_the_short_ones() -> None:
    """The bound above is alpha's doing."""
    works = [
        Work(job_id=i + 1, submit_s=build.NOW_S, size_s=300.0, account="many") for i in range(8)
    ]
    late = Work(job_id=99, submit_s=build.NOW_S + 10, size_s=2000.0, account="one")

    policy_runs.run(EVERYBODY, [*works, late], 1)

    assert late.first_run_s == pytest.approx(build.NOW_S + 8 * 300.0)


@pytest.mark.parametrize("policy", [EVERYBODY, Allox(alpha=0.5)], ids=["both in", "one in"])
def test_a_gang_whose_turn_it_is_gets_the_gpus_that_come_free(policy: Allox) -> None:
    """It was there first and does not fit yet: small jobs do not take its GPUs, in or not."""
    runs = Job(job_id=1, run_s=(9000.0,), gpus=2.0, on=0, end_s=build.NOW_S + 500, account="b")
    runs.start_s = build.NOW_S - 500
    gang = Job(job_id=2, run_s=(9000.0,), gpus=4.0)
    small = Job(job_id=3, run_s=(60.0,), gpus=1.0, account="b")
    order = policy.order(scene([runs, gang, small], (4.0,)))

    assert order.barred.tolist() == [False, True, True]


def test_sizes_share_a_type_and_leave_no_gpu_idle() -> None:
    """Eight GPUs, much work of size 4 and little of size 1: all that fits runs."""
    jobs = [Job(job_id=i, run_s=(9000.0,), gpus=4.0) for i in (1, 2, 3)]
    jobs += [Job(job_id=i, run_s=(100.0,)) for i in range(4, 9)]
    snap = scene(jobs, (8.0,))
    found = targets(snap, EVERYBODY)

    assert float(snap.jobs.gpus[np.isin(snap.jobs.job_id, found)].sum()) == 8


def test_beyond_the_window_nobody_is_matched() -> None:
    """The longest job is left out, and comes last."""
    jobs = [Job(job_id=i, run_s=(100.0 * (4 - i),)) for i in (1, 2, 3)]
    order = Allox(alpha=1.0, window=2).order(scene(jobs, (1.0,)))

    assert order.key.tolist() == [math.inf, 1, 0]


@pytest.mark.parametrize("case", ["none", "no gpus", "down", "large", "unknown", "odd"])
def test_odd_clusters_are_taken_as_they_are(case: str) -> None:
    """No jobs, no GPUs, nodes down, jobs too large, times unknown, jobs held or not ours."""
    rows = [build.pending(1), build.running(2), build.pending(3, 2)]
    snap = policy_runs.odd_cluster(case, rows)
    if case == "unknown":
        left_s = np.array([math.nan, math.inf, 0.0])
        rates = np.array([[0.0, 0.0], [math.nan, 1.0], [math.inf, 0.5]])
        snap = dataclasses.replace(snap, left_s=left_s, rates=rates)
    order = Allox().order(snap)

    assert len(order.key) == len(snap.jobs)
    runs = {"none": [], "large": [1, 2, 3], "odd": [1, 2, 3]}
    if case != "unknown":
        assert targets(snap, Allox()) == runs.get(case, [2])
