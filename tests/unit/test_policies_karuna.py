"""Karuna: latest starts, tiers, and the others' completion times against deadlines first."""

from __future__ import annotations

import dataclasses
import math

import build
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_runs import Work, run

from slurm_dl.model.jobs import JobRow, Origin
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.promise_needs import latest_start
from slurm_dl.policies.karuna import Karuna

NOW_S = build.NOW_S
LAST = 5
"""Tier of deadlines that do not press yet, with three thresholds."""


def snapshot(
    rows: list[JobRow], left_s: list[float], due_s: list[float], origin: Origin = Origin.KNOWN
) -> Snapshot:
    """16 GPUs; what is left and due, in seconds from now, in the order of *rows*."""
    base = build.snapshot(build.observed(rows), due_s=NOW_S + np.array(due_s))
    left_from = np.full(len(rows), origin, dtype=np.int8)
    return dataclasses.replace(base, left_s=np.array(left_s), left_from=left_from)


def test_a_deadline_presses_from_its_latest_start_on() -> None:
    """Left 100 s, margin 50 s: due in 151 s it can wait, in 150 s not; in 99 s it is too late."""
    rows = [build.pending(i) for i in (1, 2, 3, 4)]
    snap = snapshot(rows, [100.0] * 4, [151, 150, 99, math.inf])
    policy = Karuna(margin_s=50.0)
    order = policy.order(snap)

    assert order.tier.tolist() == [LAST, 0, 1, 1]
    assert policy.next_change_s(snap, order, np.zeros(4, np.bool_)) == NOW_S + 1


def test_an_upper_bound_does_not_prove_a_deadline_lost() -> None:
    """Where only the time limit is known the job goes on first until it is due."""
    snap = snapshot([build.pending(1), build.pending(2)], [100, 100], [99, 0], Origin.DECLARED)
    assert Karuna().order(snap).tier.tolist() == [0, 1]
    unknown = dataclasses.replace(snap, left_from=None)
    assert Karuna().order(unknown).tier.tolist() == [0, 1]


def test_a_deadline_without_an_estimate_is_none() -> None:
    """Nobody knows when it must start."""
    assert Karuna().order(snapshot([build.pending(1)], [math.inf], [10])).tier.tolist() == [1]


def test_deadlines_that_need_all_gpus_together_press_earlier() -> None:
    """Three gangs of 16 for 100 s each, due in 300 s, must begin now, and in order of due time."""
    rows = [build.pending(i, 16) for i in (1, 2, 3)]
    policy = Karuna(margin_s=0.0)
    tight = policy.order(snapshot(rows, [100] * 3, [302, 301, 300]))
    assert tight.tier.tolist() == [LAST] * 3
    pressing = policy.order(snapshot(rows, [100] * 3, [300, 299, 298]))
    assert pressing.tier.tolist() == [0, 0, 0]
    assert np.argsort(pressing.key).tolist() == [2, 1, 0]


def test_a_qos_can_carry_a_due_time_and_the_jobs_own_goes_before() -> None:
    """Counted from the first submission, here 1000 s ago; a QOS without one gives none."""
    rows = [build.pending(i) for i in (1, 2, 3)]
    texts = build.texts(qos={1: "a", 2: "b", 3: "a"})
    memory = {"first_submit_s": dict.fromkeys((1, 2, 3), NOW_S - 1000)}
    snap = build.snapshot(build.observed(rows, texts=texts), memory=memory)
    snap = dataclasses.replace(snap, due_s=np.array([math.inf, math.inf, NOW_S + 7]))

    found = Karuna(due_after_s=(("a", 1500.0),)).due_s(snap)
    assert found.tolist() == [NOW_S + 500, math.inf, NOW_S + 7]


def test_the_others_age_through_the_queues() -> None:
    """By GPU-seconds, first submission first; the next demotion is told to the second."""
    rows = [build.running(i, 2) for i in (1, 2, 3)]
    memory = {"attained_gpu_s": {1: 3249.0, 2: 3250.0, 3: 18000.0}}
    snap = build.snapshot(build.observed(rows), memory=memory)
    policy = Karuna()
    order = policy.order(snap)

    assert order.tier.tolist() == [1, 2, 4]
    assert order.key.tolist() == snap.memory.first_submit_s.tolist()
    assert policy.next_change_s(snap, order, np.ones(3, np.bool_)) == NOW_S + 0.5


def test_known_sizes_go_by_what_is_left() -> None:
    """In GPU-seconds; of unknown size by service, behind the known ones of their queue."""
    rows = [build.pending(1, 1), build.pending(2, 4), build.pending(3), build.pending(4)]
    snap = snapshot(rows, [3000.0, 1000.0, math.inf, 2000.0], [math.inf] * 4)
    order = Karuna(knows_left=True).order(snap)

    assert order.tier.tolist() == [1, 2, 1, 1]
    assert order.key.tolist() == [3000.0, 4000.0, math.inf, 2000.0]


def test_the_next_change_is_when_a_waiting_deadline_is_lost() -> None:
    """It presses, and waits: 40 s later nothing can save it."""
    snap = snapshot([build.pending(1)], [100], [140])
    policy = Karuna()
    order = policy.order(snap)
    change_s = policy.next_change_s(snap, order, np.zeros(1, np.bool_))

    assert order.tier.tolist() == [0]
    assert change_s == pytest.approx(NOW_S + 40, abs=1e-3)
    later = dataclasses.replace(snap, seen=dataclasses.replace(snap.seen, now_s=change_s))
    assert policy.order(later).tier.tolist() == [1]


# ---- latest starts ----------------------------------------------------------------------------


@settings(max_examples=100)
@given(jobs=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 10)), min_size=1, max_size=6))
def test_on_one_gpu_the_latest_start_is_that_of_the_latest_schedule(
    jobs: list[tuple[int, int]],
) -> None:
    """Second by second backwards from the last due time, by the latest due time first.

    Before the least latest start that schedule is idle; from it on it could not begin later.
    """
    jobs.sort()
    due = np.array([float(d) for d, _ in jobs])
    needs = np.array([float(p) for _, p in jobs])
    ones = np.ones(len(jobs))
    found = latest_start(due, needs, ones, room=1.0, now_s=-1e9)

    left = [p for _, p in jobs]
    second = int(due.max())
    first = second
    while any(left):
        second -= 1
        # Backwards in time a job is there from its due time on; the latest start does not matter.
        there = [i for i, (d, _) in enumerate(jobs) if d > second and left[i]]
        if there:
            left[max(there)] -= 1
            first = second
    assert found.min() == first


def test_while_jobs_run_the_latest_start_comes_later_and_is_then_exact() -> None:
    """Two jobs, one runs on one of two GPUs; at the instant told the demand bound is tight."""
    due, needs, gpus = np.array([100.0, 100.0]), np.array([50.0, 60.0]), np.array([1.0, 2.0])
    found = latest_start(due, needs, gpus, room=2.0, now_s=0.0, running=np.array([True, False]))
    at_s = float(found[1])
    assert at_s == pytest.approx(30.0)
    again = latest_start(due, needs - [at_s, 0], gpus, room=2.0, now_s=at_s)
    assert again[1] == pytest.approx(at_s)


# ---- whole runs -------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    size_s=st.integers(10, 500),
    slack_s=st.integers(0, 500),
    others=st.lists(st.tuples(st.integers(0, 900), st.integers(10, 400)), max_size=6),
)
def test_one_deadline_is_met_whenever_it_can_be(
    size_s: int, slack_s: int, others: list[tuple[int, int]]
) -> None:
    """Whatever other jobs come; and it ends not much earlier than it must while they want GPUs."""
    due = Work(job_id=1, submit_s=1.0, size_s=size_s, gpus=2, due_s=1.0 + size_s + slack_s)
    rest = [
        Work(job_id=i, submit_s=1.0 + at_s, size_s=long_s, gpus=2)
        for i, (at_s, long_s) in enumerate(others, start=2)
    ]
    run(Karuna(margin_s=0.0), [due, *rest], 2.0)

    assert due.end_s <= due.due_s + 1e-4
    blocks = sum(w.size_s for w in rest if w.submit_s <= 1.0)
    assert due.end_s >= 1.0 + size_s + min(slack_s, blocks) - 1e-4
