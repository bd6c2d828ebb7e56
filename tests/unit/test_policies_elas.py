"""E-LAS: what jobs still need by their own progress, and discrete_las where they tell none."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Literal

import build
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.elas import Elas

NOBODY_TELLS = [None, math.nan, 0.0, 1e-300]


def with_progress(snap: Snapshot, told: list[float] | None) -> Snapshot:
    """*snap*, and the share of each job's work that is done."""
    return dataclasses.replace(snap, progress=None if told is None else np.array(told))


def running_jobs(attained: list[float], told: list[float], gpus: float = 1) -> Snapshot:
    """Jobs that run, with so much service and progress."""
    rows = [build.running(i, gpus) for i in range(1, len(attained) + 1)]
    column = dict(enumerate(attained, start=1))
    ran_s = {i: s / gpus for i, s in column.items()}
    memory = {"attained_gpu_s": column, "ran_s": ran_s}
    return with_progress(build.snapshot(build.observed(rows), memory=memory), told)


@given(
    jobs=st.lists(
        st.tuples(
            st.booleans(),
            st.sampled_from([1, 3, 8]),
            st.floats(0, 30000),
            st.floats(0, 1),
            st.floats(0, 50000),
        ),
        min_size=1,
        max_size=10,
    ),
    told=st.sampled_from(NOBODY_TELLS),
    knob=st.sampled_from([0.0, 0.5, 4.0]),
    dimensions=st.sampled_from([1, 2]),
)
def test_where_nobody_tells_its_progress_it_is_discrete_las(
    jobs: list[tuple[bool, int, float, float, float]],
    told: float | None,
    knob: float,
    dimensions: Literal[1, 2],
) -> None:
    """The same queues, order, promotions, and the same instant of the next change."""
    rows, memory = [], {}
    for i, (runs, gpus, ran_s, forgiven, waited_s) in enumerate(jobs, start=1):
        rows.append(build.running(i, gpus) if runs else build.pending(i, gpus))
        memory[i] = {
            "ran_s": ran_s,
            "attained_gpu_s": ran_s * gpus,
            "forgiven_ran_s": ran_s * forgiven,
            "forgiven_gpu_s": ran_s * forgiven * gpus,
            "waiting_since_s": build.NOW_S - waited_s,
        }
    columns = {name: {i: m[name] for i, m in memory.items()} for name in memory[1]}
    snap = build.snapshot(build.observed(rows), memory=columns)
    snap = with_progress(snap, None if told is None else [told] * len(jobs))
    las: Policy = DiscreteLas(promote_knob=knob, dimensions=dimensions)
    elas: Policy = Elas(promote_knob=knob, dimensions=dimensions, quantum_s=1.0)
    one, other = las.order(snap), elas.order(snap)

    assert one.tier.tolist() == other.tier.tolist()
    assert one.key.tolist() == other.key.tolist()
    assert one.promote.tolist() == other.promote.tolist()
    assert (one.tiers, las.preempts, las.skips) == (other.tiers, elas.preempts, elas.skips)
    runs_now = np.array([j[0] for j in jobs])
    assert las.next_change_s(snap, one, runs_now) == elas.next_change_s(snap, other, runs_now)


@given(jobs=st.lists(st.tuples(st.integers(1, 40000), st.integers(1, 64)), min_size=1, max_size=12))
def test_the_queue_equals_exact_arithmetic(jobs: list[tuple[int, int]]) -> None:
    """Progress in 64ths is exact in binary; jobs within a rounding of a threshold may be either."""
    snap = running_jobs([float(s) for s, _ in jobs], [p / 64 for _, p in jobs])
    found = Elas().order(snap).tier.tolist()

    for (s, p), tier in zip(jobs, found, strict=True):
        needs = s * (1 - Fraction(p, 64)) / Fraction(p, 64)
        if all(abs(needs - q) > Fraction(1, 1000) for q in (3250, 7200, 18000)):
            assert tier == sum(needs >= q for q in (3250, 7200, 18000))


@given(
    jobs=st.lists(st.tuples(st.integers(2, 60000), st.floats(0.01, 0.99)), min_size=1, max_size=12)
)
def test_truthful_progress_means_least_remaining_service(jobs: list[tuple[int, float]]) -> None:
    """A job of size S that has had s and tells s / S is in the queue of S - s."""
    attained = [size * done for size, done in jobs]
    policy = Elas(dimensions=2)
    snap = running_jobs(attained, [done for _, done in jobs])

    left = [size * (1 - done) for size, done in jobs]
    assert policy.service(snap).tolist() == pytest.approx(left, rel=1e-9)


def test_inside_a_queue_the_earlier_submission_goes_first() -> None:
    """What a job still needs says its queue and no more."""
    snap = running_jobs([100.0, 100.0], [0.1, 0.9])

    order = Elas().order(snap)
    assert order.tier.tolist() == [0, 0]
    assert order.key.tolist() == snap.memory.first_submit_s.tolist()


def test_who_has_waited_too_long_is_promoted_whatever_it_needs() -> None:
    """As in discrete_las; and from then on only service since then counts."""
    rows = [build.pending(1), build.pending(2), build.running(3)]
    memory = {
        "attained_gpu_s": {1: 1000.0, 2: 1000.0, 3: 1000.0},
        "ran_s": {1: 1000.0, 2: 1000.0, 3: 1000.0},
        "forgiven_gpu_s": {3: 900.0},
        "waiting_since_s": {1: build.NOW_S - 2000, 2: build.NOW_S - 1999},
    }
    snap = build.snapshot(build.observed(rows), memory=memory)
    snap = with_progress(snap, [0.05, 0.05, 0.05])
    policy = Elas(promote_knob=2.0)
    order = policy.order(snap)

    assert order.promote.tolist() == [True, False, False]
    # 19 times 1000, and 19 times the 100 since the promotion.
    assert order.tier.tolist() == [0, 3, 0]
    nobody = np.zeros(3, dtype=np.bool_)
    assert policy.next_change_s(snap, order, nobody) == build.NOW_S + 1


@pytest.mark.parametrize(
    ("attained", "told", "quantum_s", "wait_s"),
    [
        # Needs 9000 of the queue from 7200 to 18000; a report of 0.1 that stays makes that grow
        # by 9 x 4 a second: 250 s; work that goes on makes it 7200 in 450 s.
        (1000.0, 0.1, 1.0, 250.0),
        (1000.0, 0.1, 360.0, 360.0),
        # Needs 8000, grows by 4 a second and by 4 a second falls.
        (8000.0, 0.5, 1.0, 200.0),
        # Needs nothing, and never more: a look after very long.
        (8000.0, 1.0, 1.0, 3250 / 4e-9),
        # Nothing told: the end of its queue, without a quantum.
        (3246.0, 0.0, 360.0, 1.0),
    ],
)
def test_the_next_change_is_the_first_that_either_reading_foresees(
    attained: float, told: float, quantum_s: float, wait_s: float
) -> None:
    """Whether its report stays as it is or its work goes on as it went."""
    policy = Elas(quantum_s=quantum_s)
    snap = running_jobs([attained], [told], gpus=4)
    order = policy.order(snap)

    next_s = policy.next_change_s(snap, order, np.array([True]))
    assert next_s - build.NOW_S == pytest.approx(wait_s)
    assert policy.next_change_s(snap, order, np.array([False])) == math.inf


def test_it_says_whom_it_trusts() -> None:
    """Progress is what jobs say of themselves, and the formula is a reading."""
    assert Elas.about.trusts == ("progress",)
    assert Elas.interpretation
