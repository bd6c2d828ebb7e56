"""The bootstrap over days: against brute force, scipy, Student, and simulated histories."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from slurm_dl.apps.sim.whatif_interval import (
    FEWEST_DAYS,
    Percentile,
    Range,
    Ratio,
    bca,
    draws,
    joint_level,
    range_of,
    resamples_for,
    sample,
    widened_tail,
)
from slurm_dl.model.jobs import F64, I64
from slurm_dl.report.spread import spread

Days = list[list[float]]

DAYS = st.lists(
    st.lists(st.sampled_from([0.0, 1.0, 2.5, 7.0, 7.5, 100.0]), max_size=5), min_size=1, max_size=5
)


def columns(days: Days) -> tuple[F64, I64]:
    """Values of all jobs, and the day of each."""
    values = [value for day in days for value in day]
    return np.array(values, dtype=np.float64), np.array(
        [number for number, day in enumerate(days) for _ in day], dtype=np.int64
    )


def mean_of(days: Days) -> Ratio:
    return Ratio(
        np.array([math.fsum(day) for day in days]), np.array([float(len(day)) for day in days])
    )


@given(DAYS, st.data())
def test_a_figure_of_a_resample_is_that_of_its_jobs(days: Days, data: st.DataObject) -> None:
    """Weights are nothing but days laid end to end, and the figures those of every report."""
    drawn = data.draw(
        st.lists(st.integers(0, len(days) - 1), min_size=len(days), max_size=len(days))
    )
    weights = np.bincount(drawn, minlength=len(days)).astype(np.float64)[None, :]
    laid = spread(np.array([value for number in drawn for value in days[number]]))
    values, day = columns(days)

    def same(found: F64, expected: float) -> None:
        assert found.shape == (1,)
        assert found[0] == pytest.approx(expected, nan_ok=True)

    same(mean_of(days).of(weights), laid.mean)
    same(Percentile(values, day, 50).of(weights), laid.median)
    same(Percentile(values, day, 95).of(weights), laid.p95)
    same(Percentile(values, day, 99).of(weights), laid.p99)


def test_drawn_resamples_are_spread_as_all_there_are() -> None:
    """All 3,125 resamples of five days, by brute force, have the mean, spread and ends drawn."""
    days = [[1.0, 9.0], [4.0], [2.0, 2.0, 30.0], [5.0], [11.0, 0.5]]
    whole = [
        np.mean([value for number in drawn for value in days[number]])
        for drawn in itertools.product(range(5), repeat=5)
    ]
    found = mean_of(days).of(draws(5, 40_000, seed=3))

    assert found.mean() == pytest.approx(np.mean(whole), rel=0.01)
    assert found.std() == pytest.approx(np.std(whole), rel=0.02)
    for share in (0.025, 0.5, 0.975):
        assert np.quantile(found, share) == pytest.approx(np.quantile(whole, share), rel=0.03)


@pytest.mark.parametrize("seed", range(4))
def test_ends_are_scipys(seed: int) -> None:
    """Bias and acceleration as in another's code, on the same resamples."""
    rng = np.random.default_rng(seed)
    values = rng.lognormal(sigma=1.2, size=24)
    weights = draws(24, 4000, seed)
    figure = Ratio(values, np.ones(24))
    resampled = figure.of(weights)
    without = figure.of(np.ones((24, 24)) - np.eye(24))
    low, high = bca(float(values.mean()), resampled, without, tail=0.05)

    drawn = stats.bootstrap(
        (values,), np.mean, n_resamples=99, method="BCa", rng=np.random.default_rng(0)
    )
    drawn.bootstrap_distribution = resampled
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=0, method="BCa", confidence_level=0.9,
        bootstrap_result=drawn,
    ).confidence_interval  # fmt: skip

    assert (low, high) == pytest.approx((theirs.low, theirs.high))


@pytest.mark.parametrize("days", [6, 12, 40])
def test_of_normal_days_it_is_students(days: int) -> None:
    """The closed form: mean +- t s / sqrt(n), which the plain percentiles miss for few days."""
    # Quantiles of a normal, so that the sample has no skew and the figure no chance in it.
    at = stats.norm.ppf((np.arange(days) + 0.5) / days)
    found = range_of(sample(Ratio(at + 10, np.ones(days)), draws(days, 20_000, seed=1)))
    half = stats.t.ppf(0.975, days - 1) * at.std(ddof=1) / math.sqrt(days)

    assert found.value == pytest.approx(10)
    assert (found.low, found.high) == pytest.approx((10 - half, 10 + half), abs=0.08 * half)


def covered(histories: list[tuple[Ratio, float]], days: int) -> int:
    """How many of the intervals hold what they should."""
    weights = draws(days, 1000, seed=5)
    ranges = [(range_of(sample(figure, weights)), truth) for figure, truth in histories]
    return sum(found.low <= truth <= found.high for found, truth in ranges)


def test_ranges_hold_the_truth_as_often_as_they_say() -> None:
    """95 % of 600 histories of normal days, within what chance allows (four standard errors)."""
    rng = np.random.default_rng(11)
    runs, days = 600, 15
    histories = [(Ratio(rng.normal(3, 2, days), np.ones(days)), 3.0) for _ in range(runs)]
    low, high = stats.binom.ppf([stats.norm.cdf(-4), stats.norm.cdf(4)], runs, 0.95)

    assert low <= covered(histories, days) <= high


def test_ranges_hold_where_jobs_of_a_day_are_alike() -> None:
    """Days that differ and jobs that are skewed: days are drawn, so the range is wide enough.

    Taking each job by itself would hold the truth in a third of all cases.
    """
    rng = np.random.default_rng(12)
    runs, days, sigma = 400, 30, 0.6
    histories, by_job = [], 0
    truth = math.exp(sigma**2 / 2)
    for _ in range(runs):
        jobs = np.full(days, 40.0)
        means = rng.lognormal(0, sigma, days)
        values = means[:, None] * rng.exponential(1, (days, 40))
        histories.append((Ratio(values.sum(axis=1), jobs), truth))
        error = 1.96 * values.std(ddof=1) / math.sqrt(values.size)
        by_job += abs(values.mean() - truth) <= error

    assert covered(histories, days) >= 0.90 * runs
    assert by_job < 0.6 * runs


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.floats(-5, 5), st.floats(0.1, 10))
def test_ranges_move_with_the_figure(seed: int, shift: float, scale: float) -> None:
    """Other units give the same range in other units; ends are in order around it."""
    values = np.random.default_rng(seed).exponential(size=9)
    weights = draws(9, 300, seed)
    plain = range_of(sample(Ratio(values, np.ones(9)), weights))
    other = range_of(sample(Ratio(scale * values + shift, np.ones(9)), weights))

    assert plain.low <= plain.high
    assert (other.low, other.high) == pytest.approx(
        (scale * plain.low + shift, scale * plain.high + shift)
    )


def test_pairing_takes_out_what_days_have_in_common() -> None:
    """One policy is 5 % better on each day, and days differ by ten times: it is seen."""
    rng = np.random.default_rng(2)
    base = 10 ** rng.uniform(0, 1, 20)
    jobs = np.ones(20)
    weights = draws(20, 2000, seed=0)
    worse, better = Ratio(base, jobs), Ratio(0.95 * base * rng.normal(1, 0.01, 20), jobs)
    first = sample(worse, weights)
    held = range_of(sample(better, weights).less(first))
    share = sample(better, weights).change(first)
    alone = [range_of(sample(figure, weights)) for figure in (worse, better)]

    assert held.high < 0
    assert share is not None
    assert range_of(share).low < -0.05 < range_of(share).high < -0.04
    assert not held.has_zero
    assert alone[1].high > alone[0].low
    rounded = Ratio(base * (1 + 1e-13), jobs)
    for same in (worse, rounded):
        none = range_of(sample(same, weights).less(first))
        assert none == Range(0, 0, 0)
        assert none.has_zero


def test_there_is_no_share_of_nothing() -> None:
    """A figure that may be 0 on some days has differences, and no ratio to it."""
    weights = draws(9, 200, 0)
    nothing = sample(Ratio(np.zeros(9), np.ones(9)), weights)
    some = sample(Ratio(np.ones(9), np.ones(9)), weights)

    assert some.change(nothing) is None
    assert range_of(some.less(nothing)) == Range(1, 1, 1)


def test_too_few_days_have_no_range() -> None:
    few = FEWEST_DAYS - 1
    found = range_of(sample(Ratio(np.arange(few), np.ones(few)), draws(few, 100, 0)))

    assert found.value == pytest.approx(1.5)
    assert not found.is_known
    assert found.has_zero


def test_days_without_jobs_are_drawn_and_change_nothing() -> None:
    """A resample of empty days alone has no figure, and is not counted as 0."""
    above, below = np.array([0.0] * 7 + [6]), np.array([0.0] * 7 + [2])
    found = range_of(sample(Ratio(above, below), draws(8, 500, 1)))

    assert (found.value, found.low, found.high) == (3, 3, 3)


def test_many_ranges_at_once_are_wider_and_take_more_resamples() -> None:
    assert joint_level(1) == pytest.approx(0.95)
    assert joint_level(10) == pytest.approx(0.995)
    assert widened_tail(20, joint_level(10)) < widened_tail(20, 0.95) < 0.025
    assert widened_tail(100_000, 0.95) == pytest.approx(0.025, abs=1e-5)
    assert resamples_for(1) == 2000
    assert resamples_for(10) * (1 - joint_level(10)) / 2 >= 10


def test_the_same_seed_draws_the_same_days() -> None:
    weights = draws(7, 50, 4)

    assert (weights == draws(7, 50, 4)).all()
    assert (weights.sum(axis=1) == 7).all()
    assert (weights != draws(7, 50, 5)).any()


@pytest.mark.parametrize(("days", "others", "told"), [(5, 1, False), (8, 1, True), (8, 20, False)])
def test_days_too_few_for_the_level_show_nothing(days: int, others: int, *, told: bool) -> None:
    """All of d days may lie on one side of 0 by chance, which happens 2 in 2**d times."""
    apart = Ratio(np.arange(1.0, days + 1), np.ones(days))
    found = range_of(sample(apart, draws(days, 4000, 1)), joint_level(others))

    assert found.is_known is told
