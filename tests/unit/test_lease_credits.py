"""Leases end together, shares become turns, and what was received follows what was deserved."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from build import NOW_S, node_of_each_type, observed, pending, running, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.engine.leases import lease_of, next_end_s, under_lease
from slurm_dl.engine.target import TypedResources
from slurm_dl.ledger.lease_credits import Owed, accrue, needs
from slurm_dl.model.jobs import F64, JobState
from slurm_dl.policies.arithmetic.supply_and_demand import type_held
from slurm_dl.policies.fifo import Fifo

GAVEL = np.array([[0.455, 0.0], [0.455, 0.091], [0.091, 0.909]])
"""What max-min fairness gives three jobs on one GPU of each of two types (Gavel, OSDI 2020)."""


def received(share: F64, gpus: list[int], leases: int) -> tuple[F64, int]:
    """``(n, t)`` leases that each job ran on each type, and how many changed hands."""
    n, t = share.shape
    base = snapshot(observed([pending(i + 1) for i in range(n)], **node_of_each_type(gpus)))
    credit, got = np.zeros((n, t)), np.zeros((n, t))
    restarts, last = 0, np.full(n, -1)
    for _ in range(leases):
        snap = dataclasses.replace(base, credit_s=credit)
        room = TypedResources(snap, np.zeros(0, dtype=np.int64))
        room.by_need(np.arange(n), needs(snap, share, 1.0))
        ran = np.zeros((n, t))
        rows = (room.kind >= 0).nonzero()[0]
        ran[rows, room.kind[rows]] = 1.0
        restarts += int(((room.kind != last) & (room.kind >= 0)).sum())
        last = room.kind.copy()
        credit = accrue(credit, share, ran, 1.0, 1.0)
        got += ran
    return got, restarts


@pytest.mark.parametrize("leases", [10, 100, 1000])
def test_after_k_leases_the_time_received_is_within_one_of_k_of_the_share(leases: int) -> None:
    """Three one-GPU jobs on two GPUs of two types, with the shares of Gavel's example."""
    got, _ = received(GAVEL, [1, 1], leases)

    assert (got.sum(axis=1) <= leases).all()
    assert ((GAVEL - got / leases) <= 1 / leases + 1e-9).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 8), st.integers(1, 3))
def test_no_one_gpu_job_is_ever_owed_more_than_a_lease_and_a_half(
    seed: int, n: int, t: int
) -> None:
    """Whatever shares there are, if they can be had at all."""
    random = np.random.default_rng(seed)
    gpus = random.integers(1, 4, t)
    share = random.random((n, t))
    for _ in range(300):  # into the jobs' own time and the types' GPUs
        share /= np.maximum(1, share.sum(axis=1, keepdims=True))
        share *= np.minimum(1, gpus / np.maximum(share.sum(axis=0), 1e-9))

    got, _ = received(share, gpus.tolist(), 40)

    assert ((share * 40 - got) <= 1.5).all()


def test_credits_grow_by_shares_and_fall_by_running() -> None:
    """A job with half the time that ran all of it owes half."""
    after = accrue(np.zeros((2, 1)), np.full((2, 1), 0.5), np.array([[10.0], [0.0]]), 10.0, 100.0)

    assert after.tolist() == [[-5.0], [5.0]]


def test_credits_are_bounded() -> None:
    """Who had GPUs that nobody wanted need not pay for ever; who was stuck does not rule."""
    idle, stuck = np.array([[1e6]]), np.zeros((1, 1))

    assert accrue(np.zeros((1, 1)), stuck, idle, 1e6, 100.0).tolist() == [[-200.0]]
    assert accrue(np.zeros((1, 1)), np.ones((1, 1)), stuck, 1e6, 100.0).tolist() == [[2000.0]]


def test_who_has_no_share_has_no_need() -> None:
    """Whatever it is owed from earlier."""
    snap = snapshot(observed([pending(1), pending(2)]), credit_s=np.array([[50.0, 0], [0, 0]]))

    need = needs(snap, np.array([[0.0, 0.5], [0.25, 0.0]]), 100.0)

    assert need.tolist() == [[-np.inf, 50.0], [25.0, -np.inf]]


def test_nobody_is_restarted_for_less_than_a_restart_costs() -> None:
    """A running job counts as owed the seconds that its stop would cost it."""
    seen = observed([running(1), pending(2)], nodes=[1], held={1: {0: 1}})

    def first(owed_s: float) -> int:
        snap = snapshot(seen, credit_s=np.array([[0.0, 0.0], [owed_s, 0.0]]))
        share = np.array([[0.5, 0.0], [0.5, 0.0]])
        need = needs(snap, share, 1000.0, restart_s=60.0)
        room = TypedResources(snap, np.zeros(0, dtype=np.int64))
        return int(room.by_need(np.array([1, 0]), need)[0])

    assert [first(s) for s in (0.0, 60.0, 61.0)] == [0, 0, 1]


def test_between_two_looks_credits_are_booked_by_what_ran() -> None:
    """Run through, begun in between, requeued in between, gone, new."""
    before = observed(
        [running(1), pending(2), running(3), running(4)],
        held={1: {0: 1}, 3: {1: 1}, 4: {2: 1}},
        now_s=NOW_S,
    )
    owed = Owed.after(snapshot(before), np.full((4, 2), 0.25), lease_s=1000.0)
    later = observed(
        [
            running(1),
            running(2, start_s=NOW_S + 60),
            pending(3, submit_s=NOW_S + 40),
            pending(5),
        ],
        held={1: {0: 1}, 2: {3: 1}},
        now_s=NOW_S + 100,
    )

    credit = owed.at(later)

    assert credit[:, 0].tolist() == [-75.0, -15.0, -15.0, 0.0]
    assert credit[:, 1].tolist() == [25.0, 25.0, 25.0, 0.0]


def test_tasks_that_leave_an_arrays_record_are_charged_to_it() -> None:
    """They run under ids of their own; the record must not lead for ever."""
    share = np.array([[0.5, 0.0]])
    before = observed([pending(1, tasks=5)])
    owed = Owed.after(snapshot(before), share, lease_s=100.0)
    later = observed([pending(1, tasks=3)], now_s=NOW_S + 100)

    assert owed.at(later).tolist() == [[50.0 - 200.0, 0.0]]


def test_a_job_that_is_being_requeued_keeps_its_debt() -> None:
    """Between running and waiting Slurm shows it completing for a while."""
    share = np.array([[0.25, 0.0]])
    runs = observed([running(1)], held={1: {0: 1}})
    owed = Owed.after(snapshot(runs), share, lease_s=1000.0)
    ending = observed([running(1)], now_s=NOW_S + 100)
    state = np.array([JobState.COMPLETING], dtype=np.int8)
    ending = dataclasses.replace(ending, jobs=dataclasses.replace(ending.jobs, state=state))

    credit = owed.at(ending)
    again = Owed.after(snapshot(ending, credit_s=credit), share, lease_s=1000.0)
    waits = observed([pending(1, submit_s=NOW_S + 120)], now_s=NOW_S + 200)

    assert credit.tolist() == [[-75.0, 0.0]]
    assert again.at(waits).tolist() == [[-50.0, 0.0]]


def test_jobs_may_be_listed_in_any_order() -> None:
    """What each is owed is found by its id."""
    share, credit = np.array([[0.5, 0.0], [0.25, 0.0]]), np.array([[7.0, 0.0], [3.0, 0.0]])
    snap = snapshot(observed([pending(2), pending(1)]), credit_s=credit)
    owed = Owed.after(snap, share, lease_s=1000.0)

    later = owed.at(observed([pending(1), pending(2)], now_s=NOW_S + 100))

    assert later[:, 0].tolist() == [3.0 + 25.0, 7.0 + 50.0]


def test_a_clock_that_goes_back_books_nothing() -> None:
    """Nobody is owed for time that has not passed."""
    owed = Owed.after(snapshot(observed([pending(1)])), np.full((1, 2), 0.5), lease_s=100.0)

    assert owed.at(observed([pending(1)], now_s=NOW_S - 50)).tolist() == [[0.0, 0.0]]


def test_when_types_change_nobody_is_owed_anything() -> None:
    """Columns would mean other types."""
    owed = Owed.after(snapshot(observed([pending(1)])), np.full((1, 2), 0.5), lease_s=100.0)
    seen = dataclasses.replace(observed([pending(1)], now_s=NOW_S + 50), gpu_types=("h100", "v100"))

    assert not owed.at(seen).any()
    assert owed.at(observed([pending(1)], now_s=NOW_S + 50)).tolist() == [[25.0, 25.0]]


def test_the_type_a_job_holds_is_that_of_its_nodes() -> None:
    """Waiting jobs hold none."""
    rows, held = [running(1), pending(2), running(3)], {1: {1: 1}, 3: {0: 1}}
    seen = observed(rows, held=held, **node_of_each_type([4, 4]))

    assert type_held(seen).tolist() == [1, -1, 0]


LEASE_S = 100.0
AT_END_S = NOW_S - NOW_S % LEASE_S


def kept(now_s: float, *, ran_s: float = 1000.0, window_s: float = 0.0) -> bool:
    """Whether a job that has run for *ran_s* keeps its GPUs at *now_s*."""
    row = running(1, start_s=now_s - ran_s, ran_s=ran_s)
    snap = snapshot(observed([row, pending(2)], now_s=now_s))
    mask = under_lease(snap, LEASE_S, window_s)
    assert not mask[1]
    return bool(mask[0])


def test_a_lease_ends_at_whole_multiples_of_its_length() -> None:
    """Only there may the job be displaced."""
    assert not kept(AT_END_S)
    assert kept(AT_END_S + 1)
    assert kept(AT_END_S + 99)
    assert not kept(AT_END_S + 100)


def test_a_daemon_has_a_window_after_the_end() -> None:
    """It looks now and then; the window is for all its steps."""
    assert not kept(AT_END_S + 24, window_s=25)
    assert not kept(AT_END_S + 25, window_s=25)
    assert kept(AT_END_S + 26, window_s=25)


@pytest.mark.parametrize("ran_s", [1, 50, 99, 100, 101])
def test_a_run_that_began_in_the_course_of_a_lease_is_open_at_its_end(ran_s: float) -> None:
    """Else jobs shorter than a lease that come and go would keep a gang waiting for ever."""
    assert not kept(AT_END_S, ran_s=ran_s)


def test_a_run_that_began_since_the_end_has_the_next_lease() -> None:
    """In the window nobody is displaced twice."""
    assert kept(AT_END_S, ran_s=0)
    assert kept(AT_END_S + 20, ran_s=20, window_s=25)
    assert kept(AT_END_S + 20, ran_s=5, window_s=25)
    assert not kept(AT_END_S + 20, ran_s=21, window_s=25)


def test_without_leases_nobody_is_kept() -> None:
    """And none ends."""
    snap = snapshot(observed([running(1)]))

    assert lease_of(Fifo()) == 0
    assert not under_lease(snap, 0.0).any()
    assert next_end_s(NOW_S, 0.0) == math.inf


@given(now_s=st.floats(min_value=0, max_value=2e9), lease_s=st.floats(min_value=1, max_value=1e6))
def test_the_next_end_is_ahead_and_no_more_than_a_lease(now_s: float, lease_s: float) -> None:
    """However the sums are rounded: a simulation that is asked to wake now would not get on."""
    end_s = next_end_s(now_s, lease_s)

    assert now_s < end_s <= now_s + lease_s + 1e-3
