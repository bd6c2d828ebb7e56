"""Linear programs over shares: the best there is, in time or said so, whatever the order."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import shares_oracle as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.model.jobs import F64
from slurm_dl.policies.arithmetic import linear_programs, lp_solver

VECTOR = np.array([[4.0, 1.0], [3.0, 1.0], [2.0, 1.0]])
"""Three jobs on one GPU of each of two types: each can have 1.0909 of its equal split."""


def vector() -> tuple[linear_programs.Pool, F64]:
    """The pool of the vector and its normalised throughputs."""
    pool = linear_programs.pool(np.arange(3), np.ones(3), VECTOR, np.ones(2))
    return pool, VECTOR / (VECTOR * linear_programs.proportional(pool)).sum(axis=1)[:, None]


def large(k: int, seed: int = 1) -> tuple[linear_programs.Pool, F64]:
    """So many jobs, all different, on three types; they ask for four times what there is."""
    draw = np.random.default_rng(seed)
    gpus = draw.choice([1.0, 2.0, 4.0, 8.0], k)
    gain = draw.uniform(0.2, 4.0, (k, 3))
    capacity = np.round(np.array([0.3, 0.3, 0.4]) * gpus.sum() / 4)
    pool = linear_programs.pool(np.arange(k) + 1, gpus, gain, capacity)
    return pool, gain * gpus[:, None]


def least(gain: F64, share: F64) -> float:
    """The least gain of all jobs that can gain."""
    can = (gain > 0).any(axis=1)
    return float((gain * share).sum(axis=1)[can].min())


@pytest.mark.parametrize("seed", range(60))
def test_the_least_gain_is_as_large_as_cbc_says(seed: int) -> None:
    """Classes, types without GPUs and jobs that can run nowhere included."""
    pool, rates, draw = oracle.draw_pool(seed)
    gain = np.where(pool.may, rates * 10 ** draw.uniform(-3, 3), 0.0)
    can = gain.any(axis=1).nonzero()[0]

    found = oracle.whole(pool, (gain,), linear_programs.max_min)

    oracle.check_within(pool, found.share)
    if len(can):
        best = oracle.of_pool(pool).largest_level((m, gain[m], 0.0, 1.0) for m in can.tolist())
        assert least(gain, found.share) == pytest.approx(best, rel=1e-6)
    assert (found.share[~gain.any(axis=1)] == 0).all()


@pytest.mark.parametrize("seed", range(100, 150))
def test_the_sum_is_as_large_as_cbc_says(seed: int) -> None:
    """With floors in two of three cases; both agree on which floors are out of reach."""
    pool, rates, draw = oracle.draw_pool(seed)
    value = draw.uniform(0.0, 3.0, rates.shape)
    reached = (rates * linear_programs.proportional(pool)).sum(axis=1)
    floor = reached * draw.uniform(0.0, 2.0, len(pool)) * (seed % 3 > 0)
    floor[(floor > 0) & (reached <= 0)] = 0.0
    shares = oracle.of_pool(pool)
    for m in floor.nonzero()[0].tolist():
        shares.holds(shares.dot(m, rates[m]) >= floor[m])
    best = shares.largest(sum(shares.dot(m, value[m]) for m in range(len(pool))))

    found = linear_programs.max_sum(pool, value, gain=rates, floor=floor)

    assert (found is None) == (best is None)
    if found is not None:
        oracle.check_within(pool, found.share)
        assert (value * found.share).sum() == pytest.approx(best, rel=1e-6, abs=1e-9)
        assert ((rates * found.share).sum(axis=1) >= floor - 1e-6).all()


def test_the_sum_counts_every_job_of_a_class() -> None:
    """Two of three jobs alike are worth more than the one that would take both their GPUs."""
    value = np.array([[0.6], [0.6], [0.6], [1.1]])
    pool = linear_programs.pool(
        np.arange(4), np.array([1.0, 1.0, 1.0, 2.0]), value, np.full(1, 2.0)
    )

    found = oracle.whole(pool, (value,), linear_programs.max_sum)

    assert found.share[:, 0] == pytest.approx([2 / 3, 2 / 3, 2 / 3, 0])


def test_floors_are_out_of_reach_just_above_what_can_be_had() -> None:
    """The published example: 12/11 for all, and no more."""
    pool, gain = vector()
    assert (
        linear_programs.max_sum(pool, gain, gain=gain, floor=np.full(3, 12 / 11 - 1e-6)) is not None
    )
    assert linear_programs.max_sum(pool, gain, gain=gain, floor=np.full(3, 12 / 11 + 1e-4)) is None


@pytest.mark.parametrize("seed", range(200, 240))
def test_no_ratio_is_better_as_cbc_says(seed: int) -> None:
    """At the ratio reached the gains it needs are just within reach: level 1."""
    pool, rates, draw = oracle.draw_pool(seed)
    k = len(pool)
    past, coming = draw.uniform(0.0, 3.0, k), 10 ** draw.uniform(-2, 2, k)
    can = pool.may.any(axis=1).nonzero()[0]

    found = oracle.whole(
        pool,
        (rates, past, coming),
        lambda some, gain, a, b: linear_programs.min_max_ratio(some, gain, past=a, coming=b),
    )

    oracle.check_within(pool, found.share)
    if len(can):
        ratio = past[can] + coming[can] / (rates * found.share).sum(axis=1)[can]
        worst = float(ratio.max())
        rows = ((m, rates[m], 0.0, coming[m] / (worst - past[m])) for m in can.tolist())
        assert oracle.of_pool(pool).largest_level(rows) == pytest.approx(1.0, rel=1e-6)


@given(
    gain=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=8),
    gpus=st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=8, max_size=8),
    capacity=st.sampled_from([0.0, 1.0, 3.0, 4.0, 50.0]),
)
@settings(max_examples=40, deadline=None)
def test_one_type_needs_no_solver(gain: list[float], gpus: list[float], capacity: float) -> None:
    """Its closed form is what the program with a second, useless type says, level by level."""
    k = len(gain)
    rates, wants = np.array(gain)[:, None], np.array(gpus[:k])
    pool = linear_programs.pool(np.arange(k), wants, rates, np.array([capacity]))
    wide = linear_programs.pool(np.arange(k), wants, rates * [1, 0], np.array([capacity, 5.0]))

    found, program = (
        linear_programs.max_min(pool, rates),
        linear_programs.max_min(wide, rates * [1, 0]),
    )

    oracle.check_within(pool, found.share)
    assert found.share[:, 0] == pytest.approx(program.share[:, 0], rel=1e-5, abs=1e-6)


def test_levels_beyond_the_first_rise_too() -> None:
    """Of two jobs on GPUs of their own the one that can gain more does."""
    rates = np.array([[1.0, 0.0], [0.0, 5.0], [0.0, 3.0]])
    pool = linear_programs.pool(np.arange(3), np.ones(3), rates, np.array([1.0, 1.0]))

    found = linear_programs.max_min(pool, rates)

    assert (rates * found.share).sum(axis=1) == pytest.approx([1.0, 15 / 8, 15 / 8])


def test_what_the_levels_leave_is_not_idle() -> None:
    """So many jobs that only the first levels are raised: each runs all the time, as it may."""
    k = linear_programs.ALL_LEVELS_UP_TO + 20
    draw = np.random.default_rng(5)
    gain = draw.uniform(0.5, 4.0, (k, 2))
    pool = linear_programs.pool(np.arange(k), np.ones(k), gain, np.array([k / 2, k]))

    assert linear_programs.max_min(pool, gain, levels=1).share.sum(axis=1) == pytest.approx(
        np.ones(k)
    )


def test_jobs_that_are_alike_have_the_same_share() -> None:
    """Their class is solved once, and split evenly."""
    pool, gain = large(12)
    rows = np.repeat(np.arange(12), 5)
    many = dataclasses.replace(
        pool,
        job_id=np.arange(60),
        gpus=pool.gpus[rows],
        may=pool.may[rows],
        count=np.ones(60),
        capacity=pool.capacity * 5,
    )
    seen = []

    def solve(some: linear_programs.Pool, gains: F64) -> linear_programs.Solved:
        seen.append(len(some))
        return linear_programs.max_min(some, gains)

    found = oracle.whole(many, (gain[rows],), solve)

    assert seen == [12]
    assert (found.share.reshape(12, 5, 3) == found.share[::5][:, None]).all()
    assert found.share[::5] == pytest.approx(linear_programs.max_min(pool, gain).share, abs=1e-6)
    assert least(gain[rows], found.share) == pytest.approx(
        least(gain, linear_programs.max_min(pool, gain).share)
    )


@pytest.mark.parametrize("seed", range(6))
def test_parts_stay_within_the_whole_and_near_its_best(seed: int) -> None:
    """Four parts of fifty jobs: the least gain is at least 0.8 of the best, never above it."""
    pool, gain = large(200, seed)
    best = least(gain, linear_programs.max_min(pool, gain).share)

    found = linear_programs.by_classes(
        pool, (gain,), lambda p, c: linear_programs.max_min(p, c[0]), split_above=50
    )

    oracle.check_within(pool, found.share)
    assert found.how == "parts"
    assert 0.8 * best <= least(gain, found.share) <= best * (1 + 1e-6)


def test_a_job_is_in_the_same_part_whoever_else_is_there() -> None:
    """Which part it is follows from its id alone; parts are of about one size."""
    pool, gain = large(200)
    parts: list[frozenset[int]] = []

    def solve(some: linear_programs.Pool, columns: tuple[F64, ...]) -> linear_programs.Solved:
        parts.append(frozenset(some.job_id.tolist()))
        return linear_programs.Solved(columns[0] * 0, "solved")

    linear_programs.by_classes(pool, (gain,), solve, split_above=50)
    before, parts = parts, []
    fewer = np.arange(160, 200)
    most = np.delete(np.arange(200), fewer[:20])
    linear_programs.by_classes(
        linear_programs._at(pool, most), (gain[most],), solve, split_above=50
    )

    assert len(before) == len(parts) == 4
    assert all(now <= then for now, then in zip(parts, before, strict=True))
    assert min(len(part) for part in before) > 35


def test_the_order_of_the_jobs_changes_nothing() -> None:
    """Exactly the same shares, whole and in parts."""
    pool, gain = large(120)
    moved = np.random.default_rng(3).permutation(120)
    for split_above in (200, 40):
        shares = [
            linear_programs.by_classes(
                linear_programs._at(pool, rows),
                (gain[rows],),
                lambda p, c: linear_programs.max_min(p, c[0]),
                split_above=split_above,
            ).share
            for rows in (np.arange(120), moved)
        ]
        assert (shares[0][moved] == shares[1]).all()


def test_a_solver_without_time_answers_with_the_proportional_share() -> None:
    """The limit is HiGHS' own, and really reached."""
    pool, gain = large(400)
    fair = linear_programs.proportional(pool)

    for found in (
        linear_programs.max_min(pool, gain, limit_s=1e-6),
        linear_programs.max_sum(pool, gain, limit_s=1e-6),
        linear_programs.min_max_ratio(
            pool, gain, past=np.zeros(400), coming=np.ones(400), limit_s=1e-6
        ),
    ):
        assert found.how == "proportional"
        assert (found.share == fair).all()


@pytest.mark.parametrize("status", [1, 3, 4])
def test_a_solver_that_gives_up_is_not_believed(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits and numerical trouble: the proportional share, and the word for it."""
    pool, gain = vector()
    answer = scipy.optimize.OptimizeResult(status=status, x=None)
    monkeypatch.setattr(scipy.optimize, "linprog", lambda *_, **__: answer)

    found = linear_programs.max_min(pool, gain)

    assert found.how == "proportional"
    assert found.share == pytest.approx(np.full((3, 2), 1 / 3))


def test_after_a_part_without_time_no_other_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part keeps what was found for it; from the second on all have the proportional."""
    pool, gain = large(200)
    real, parts = lp_solver.minimise, []

    def sometimes(*args: Any, **more: Any) -> Any:  # noqa: ANN401
        return None if len(parts) > 1 else real(*args, **more)

    def solve(some: linear_programs.Pool, columns: tuple[F64, ...]) -> linear_programs.Solved:
        parts.append(len(some))
        return linear_programs.max_min(some, columns[0])

    monkeypatch.setattr(lp_solver, "minimise", sometimes)

    found = linear_programs.by_classes(pool, (gain,), solve, split_above=50)

    assert found.how == "proportional"
    oracle.check_within(pool, found.share)
    assert len(parts) == 2
    fair = found.share / found.share.sum(axis=1)[:, None]
    proportional = np.isclose(fair, pool.capacity / pool.capacity.sum()).all(axis=1)
    assert proportional.sum() == 200 - parts[0]


def test_no_job_no_type_and_no_gpu_are_no_trouble() -> None:
    """Empty pools, and pools in which nobody can run."""
    none = linear_programs.pool(np.zeros(0, np.int64), np.zeros(0), np.zeros((0, 2)), np.ones(2))
    assert linear_programs.by_classes(
        none, (), lambda p, _: linear_programs.max_min(p, np.zeros((0, 2)))
    ).share.shape == (
        0,
        2,
    )
    for rates, capacity in ((np.ones((2, 2)), np.zeros(2)), (np.zeros((2, 2)), np.ones(2))):
        pool = linear_programs.pool(np.arange(2), np.ones(2), rates, capacity)
        found = (
            linear_programs.max_min(pool, rates),
            linear_programs.max_sum(pool, rates),
            linear_programs.min_max_ratio(pool, rates, past=np.zeros(2), coming=np.ones(2)),
        )
        assert all(f is not None and f.how == "solved" and not f.share.any() for f in found)
