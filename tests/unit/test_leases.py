"""Leases end together; in between nobody is stopped."""

from __future__ import annotations

import math

import pytest
from build import NOW_S, observed, pending, running, snapshot
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.engine.leases import lease_of, next_end_s, under_lease
from slurm_dl.policies.fifo import Fifo

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
