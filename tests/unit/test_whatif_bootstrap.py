"""The bootstrap over days: against the definition, scipy, Student, and simulated histories."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from slurm_dl.experiments.whatif_bootstrap import (
    FEWEST_DAYS,
    Interval,
    Sample,
    amount_of,
    change_of,
    draws,
    held,
    joint_level,
    range_of,
    resamples_for,
)
from slurm_dl.experiments.whatif_figures import Figure, Percentile, Ratio
from slurm_dl.model.jobs import F64, I64
from slurm_dl.report.distribution import spread

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


def only(figure: Figure, weights: F64) -> Sample:
    return held([figure], weights)[0].own


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
    figures: list[Figure] = [mean_of(days), *(Percentile(values, day, p) for p in (50, 95, 99))]
    for figure in figures:
        same(figure.linear(weights).value, figure.of(weights)[0])


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


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(3, 8))
def test_slopes_are_what_a_little_more_of_a_day_adds(seed: int, days: int) -> None:
    """Finite differences of a mean, of a difference and of a multiple, at a resample."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 20, days).astype(np.float64)
    one, base = (Ratio(rng.exponential(size=days) * counts, counts) for _ in range(2))
    weights = draws(days, 1, seed)
    step = 1e-6
    moved = weights + np.concatenate([np.zeros((1, days)), step * np.eye(days)])
    at, under = one.of(moved), base.of(moved)
    drawn, below = one.linear(weights), base.linear(weights)

    for found, values in (
        (drawn, at),
        (drawn.less(below), at - under),
        (drawn.over(below), at / under),
    ):
        assert found.value[0] == pytest.approx(values[0])
        assert found.slope[0] == pytest.approx((values[1:] - values[0]) / step, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("percent", [50, 95])
def test_the_error_of_a_percentile_is_the_spread_of_its_resamples(percent: int) -> None:
    """Where jobs are many the formula and the resamples tell the same, on uneven days, too."""
    rng = np.random.default_rng(percent)
    counts = rng.integers(20, 400, 50)
    day = np.repeat(np.arange(50), counts)
    values = np.exp(rng.normal(0, 0.3, 50)[day] + rng.normal(0, 1, len(day)))
    found = only(Percentile(values, day, percent), draws(50, 400, seed=2))

    assert found.error == pytest.approx(found.drawn.std(), rel=0.15)
    assert found.errors.mean() == pytest.approx(found.drawn.std(), rel=0.15)


@pytest.mark.parametrize("seed", range(3))
def test_ends_are_those_of_the_definition(seed: int) -> None:
    """Each resample laid out as a list, its mean and its standard error by scipy."""
    rng = np.random.default_rng(seed)
    values = rng.lognormal(sigma=1.2, size=9)
    weights = draws(9, 400, seed)
    away = []
    for row in weights:
        laid = np.repeat(values, row.astype(int))
        error = stats.sem(laid) / laid.mean()
        away.append(abs(math.log(laid.mean() / values.mean())) / error)
    # 380 of 400 are nearer than the 381st.
    half = sorted(away)[380] * stats.sem(values) / values.mean()
    found = range_of(only(Ratio(values, np.ones(9)), weights))

    assert math.log(found.high / found.value) == pytest.approx(half)
    assert math.log(found.value / found.low) == pytest.approx(half)


@pytest.mark.parametrize("days", [14, 40])
def test_of_normal_days_it_is_students(days: int) -> None:
    """The closed form: mean +- t s / sqrt(n), which the plain percentiles miss for few days."""
    # Quantiles of a normal, so that the sample has no skew and the figure no chance in it.
    at = stats.norm.ppf((np.arange(days) + 0.5) / days)
    found = range_of(only(Ratio(at + 1000, np.ones(days)), draws(days, 10_000, seed=1)))
    half = stats.t.ppf(0.975, days - 1) * at.std(ddof=1) / math.sqrt(days)

    assert found.value == pytest.approx(1000)
    assert (found.low, found.high) == pytest.approx((1000 - half, 1000 + half), abs=0.1 * half)


def test_no_range_is_narrower_than_students() -> None:
    """Of evenly spread days resamples are nearer than t is, as often as not."""
    rng = np.random.default_rng(6)
    weights = draws(12, 300, seed=6)
    for values in rng.uniform(-1, 1, (20, 12)):
        found = range_of(only(Ratio(values, np.ones(12)), weights))

        assert found.high - found.value >= stats.t.ppf(0.975, 11) * stats.sem(values) * (1 - 1e-9)
        assert found.value - found.low == pytest.approx(found.high - found.value)


def covered(histories: Sequence[tuple[Figure, float]], days: int, resamples: int = 300) -> float:
    """How many of the intervals hold what they should, as a share."""
    weights = draws(days, resamples, seed=5)
    ranges = [(range_of(only(figure, weights)), truth) for figure, truth in histories]
    return sum(found.low <= truth <= found.high for found, truth in ranges) / len(ranges)


def at_least(share: float, runs: int) -> float:
    """What so many runs of something that holds in *share* fall below once in 10,000 times."""
    return float(stats.binom.ppf(1e-4, runs, share)) / runs


@pytest.mark.parametrize("days", [7, 14, 28])
def test_ranges_of_normal_days_hold_the_truth_as_often_as_they_say(days: int) -> None:
    """95 %, whatever the days: a wider range than need be is a fault as well."""
    rng = np.random.default_rng(days)
    histories = [(Ratio(rng.normal(3, 2, days), np.ones(days)), 3.0) for _ in range(300)]
    share = covered(histories, days)

    assert at_least(0.95, 300) <= share < 0.99


@pytest.mark.parametrize(("days", "holds"), [(7, 0.92), (14, 0.94), (28, 0.94)])
def test_ranges_of_skewed_days_hold_the_truth_nearly_as_often(days: int, holds: float) -> None:
    """Lognormal days, the 84th of 100 1.8 times the median; BCa holds in 87, 92 and 93 %."""
    rng = np.random.default_rng(20 + days)
    sigma, runs = 0.6, 300
    histories = [
        (Ratio(rng.lognormal(0, sigma, days), np.ones(days)), math.exp(sigma**2 / 2))
        for _ in range(runs)
    ]

    assert at_least(holds, runs) <= covered(histories, days) < 0.99


def test_ranges_hold_where_jobs_of_a_day_are_alike() -> None:
    """Days that differ, also in their jobs, of which they have many or few; jobs are skewed.

    Taking each job by itself would hold the truth in a third of all cases.
    """
    rng = np.random.default_rng(12)
    runs, days, sigma = 300, 14, 0.6
    histories: list[tuple[Figure, float]] = []
    by_job = 0
    truth = math.exp(sigma**2 / 2)
    for _ in range(runs):
        jobs = 5 + rng.poisson(rng.lognormal(3, 0.5, days))
        values = [
            mean * rng.exponential(1, count)
            for mean, count in zip(rng.lognormal(0, sigma, days), jobs.tolist(), strict=True)
        ]
        histories.append((Ratio(np.array([v.sum() for v in values]), jobs.astype(float)), truth))
        laid = np.concatenate(values)
        by_job += abs(laid.mean() - truth) <= 1.96 * stats.sem(laid)

    assert covered(histories, days) >= at_least(0.94, runs)
    assert by_job < 0.6 * runs


@pytest.mark.parametrize(("percent", "days", "holds"), [(50, 7, 0.95), (95, 14, 0.91)])
def test_ranges_of_percentiles_hold_the_truth(percent: int, days: int, holds: float) -> None:
    """Lognormal jobs on lognormal days: all jobs together are lognormal again."""
    rng = np.random.default_rng(percent)
    runs, jobs = 60, 30
    truth = math.exp(math.hypot(0.6, 1) * stats.norm.ppf(percent / 100))
    day = np.repeat(np.arange(days), jobs)
    histories: list[tuple[Figure, float]] = []
    for _ in range(runs):
        values = np.exp(rng.normal(0, 0.6, days)[:, None] + rng.normal(0, 1, (days, jobs)))
        histories.append((Percentile(values.ravel(), day, percent), truth))

    assert at_least(holds, runs) <= covered(histories, days, 150)


def test_the_best_of_ten_that_are_no_better_is_not_called_better() -> None:
    """Ten policies as good as the first: one in twenty histories shows any difference at all.

    Each held against the first by itself, the best of them would seem better far more often.
    """
    rng = np.random.default_rng(3)
    runs, days = 50, 12
    weights = draws(days, 600, seed=5)
    any_shown = any_alone = 0
    for _ in range(runs):
        day = rng.lognormal(0, 0.6, days)
        policies = day * rng.lognormal(0, 0.3, (11, days))
        figures = [Ratio(values, np.ones(days)) for values in policies]
        judged = [one.judged for one in held(figures, weights)[1:]]
        level = joint_level(judged)
        any_shown += any(not change_of(one, level).has_zero for one in judged)
        any_alone += any(not change_of(one).has_zero for one in judged)

    most = stats.binom.ppf(1 - 1e-4, runs, 0.05)
    assert any_shown <= most < any_alone


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.floats(-5, 5), st.floats(0.1, 10))
def test_ranges_move_with_the_figure(seed: int, shift: float, scale: float) -> None:
    """Other units give the same range in other units; ends are in order around it.

    Of a figure above 0 only the unit may change, of another also where 0 is.
    """
    values = np.random.default_rng(seed).exponential(size=9)
    weights = draws(9, 300, seed)
    above = range_of(only(Ratio(values, np.ones(9)), weights))
    same = range_of(only(Ratio(scale * values, np.ones(9)), weights))
    plain = range_of(only(Ratio(values - 50, np.ones(9)), weights))
    other = range_of(only(Ratio(scale * (values - 50 - shift), np.ones(9)), weights))
    shift *= -scale

    assert 0 < above.low < above.value < above.high
    assert (same.low, same.high) == pytest.approx((scale * above.low, scale * above.high))

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
    rounded = Ratio(base * (1 + 1e-13), jobs)
    first, found, *same = held([worse, better, worse, rounded], weights)

    less = range_of(found.less)
    assert less.high < 0
    assert not less.has_zero
    assert found.over is not None
    assert change_of(found.over).low < -0.05 < change_of(found.over).high < -0.04
    assert range_of(found.own).high > range_of(first.own).low
    for one in same:
        assert range_of(one.less) == Interval(0, 0, 0)
        assert one.over is not None
        assert change_of(one.over) == Interval(0, 0, 0)
        assert change_of(one.over).has_zero


def test_what_never_differs_has_no_width() -> None:
    """A tenth more on each day, and jobs that all took a minute: ends are the figure, exactly."""
    base, jobs = np.random.default_rng(4).lognormal(0, 1, 12), np.ones(12)
    weights = draws(12, 300, seed=0)
    over = held([Ratio(base, jobs), Ratio(1.1 * base, jobs)], weights)[1].over
    minute = Percentile(np.full(36, 60.0), np.repeat(np.arange(12), 3), 95)

    assert over is not None
    assert (over.error, over.errors.max()) == (0, 0)
    assert change_of(over).low == change_of(over).high == pytest.approx(0.1)
    assert range_of(only(minute, weights)) == Interval(60, 60, 60)


def test_there_is_no_share_of_nothing() -> None:
    """A figure that may be 0 on some days has differences, and no ratio to it."""
    weights = draws(9, 200, 0)
    nothing, some = Ratio(np.zeros(9), np.ones(9)), Ratio(np.ones(9), np.ones(9))
    found = held([nothing, some], weights)[1]
    other = held([some, nothing], weights)[1]

    assert found.over is None
    assert range_of(found.judged) == Interval(1, 1, 1)
    assert other.over is not None
    assert change_of(other.over) == Interval(-1, -1, -1)


def test_too_few_days_have_no_range() -> None:
    for few in range(1, FEWEST_DAYS):
        found = range_of(only(Ratio(np.arange(float(few)), np.ones(few)), draws(few, 100, 0)))

        assert found.value == pytest.approx((few - 1) / 2)
        assert not found.is_known
        assert found.has_zero


def test_days_without_jobs_are_drawn_and_change_nothing() -> None:
    """A resample of empty days alone has no figure, and is not counted as 0."""
    above, below = np.array([0.0] * 34 + [6] * 6), np.array([0.0] * 34 + [2] * 6)
    found = only(Ratio(above, below), draws(40, 4000, 1))

    assert np.isnan(found.drawn).any()
    assert range_of(found) == Interval(3, 3, 3)


@pytest.mark.parametrize("busy", [1, 5, 6])
def test_a_range_rests_on_days_with_jobs_alone(busy: int) -> None:
    """Of ten days some have jobs; five may lie on one side by chance, six hardly can."""
    has = np.arange(10) < busy
    rng = np.random.default_rng(0)
    day = np.repeat(np.arange(busy), 3)
    weights = draws(10, 4000, 0)
    mean = Ratio(np.where(has, rng.uniform(1, 2, 10), 0.0), has.astype(float))
    lost = Ratio(mean.above, np.ones(10), has.astype(float))
    for figure in (mean, lost, Percentile(np.round(rng.uniform(1, 3, 3 * busy)), day, 50)):
        found = only(figure, weights)

        assert found.days == busy
        assert range_of(found).is_known is (busy >= 6)
    half = range_of(only(mean, weights))
    if half.is_known:
        least = stats.t.ppf(0.975, busy - 1) * stats.sem(mean.above[:busy])
        assert math.log(half.high / half.value) >= 0.9 * least / half.value


def test_a_difference_rests_on_days_with_jobs_of_both() -> None:
    """Ten days of one, ten of the other, and five of them are the same."""
    day = np.arange(15)
    early, late = (day < 10).astype(np.float64), (day > 4).astype(np.float64)
    found = held([Ratio(early, early), Ratio(2 * late, late)], draws(15, 2000, 0))[1]

    assert found.own.days == 10
    assert range_of(found.own).is_known
    assert (found.less.days, found.judged.days) == (5, 5)
    assert not range_of(found.less).is_known
    assert not change_of(found.judged).is_known


def test_ends_are_where_the_figure_can_be() -> None:
    """Waiting, a share of jobs and a multiple are not below 0, and a share is not above 1."""
    jobs, weights = np.ones(14), draws(14, 2000, 0)
    rare = (np.arange(14) < 3).astype(np.float64)
    few, most = only(Ratio(rare, jobs), weights), only(Ratio(1 - rare, jobs), weights)
    below, above = range_of(few), range_of(most)

    assert below.low < 0 < below.high < 1
    assert amount_of(few, 1.0) == Interval(few.value, 0.0, below.high)
    assert 0 < above.low < 1 < above.high
    assert amount_of(most, 1.0) == Interval(most.value, above.low, 1.0)
    assert amount_of(most, math.inf) == above
    over = held([Ratio(jobs, jobs), Ratio(rare, jobs)], weights)[1].over
    assert over is not None
    assert range_of(over).low == pytest.approx(below.low)
    assert change_of(over).low == -1
    assert change_of(over).high == pytest.approx(below.high - 1)


def test_days_that_are_all_at_an_end_do_not_tell_how_far_others_are() -> None:
    """None unfair in nine days is no proof that none can be; too few days tell nothing at all."""
    jobs, weights = np.ones(9), draws(9, 300, 0)
    never, always = only(Ratio(0 * jobs, jobs), weights), only(Ratio(jobs, jobs), weights)

    assert amount_of(never, 1.0) == Interval(0, 0, math.inf)
    assert amount_of(always, 1.0) == Interval(1, -math.inf, 1)
    assert amount_of(always, math.inf) == Interval(1, 1, 1)
    few = amount_of(only(Ratio(np.zeros(3), np.ones(3)), draws(3, 300, 0)), 1.0)
    assert math.isnan(few.low)
    assert math.isnan(few.high)


def test_what_a_single_day_makes_has_no_end() -> None:
    """A third of the resamples are without that day, and say with no error that there is nothing.

    It tells so of itself alone: others that it is told with have their ends.
    """
    jobs, day = np.ones(16), np.arange(16) == 4
    rng = np.random.default_rng(1)
    base = rng.lognormal(1, 0.4, 16)
    other = base * rng.normal(1.1, 0.1, 16)
    figures = [Ratio(base, jobs), Ratio(base - day, jobs), Ratio(other, jobs)]
    one, two = (found.judged for found in held(figures, draws(16, 2000, 1))[1:])
    level = joint_level([one, two])

    assert not change_of(one, level).is_bounded
    assert change_of(one, level).is_known
    assert change_of(one, level).has_zero
    assert level < 0.98
    assert change_of(two, level).is_bounded


def test_many_ranges_at_once_are_wider_and_take_more_resamples() -> None:
    """Of policies that are independent the level is Sidak's; of twins it is that of one."""
    rng = np.random.default_rng(8)
    figures = [Ratio(rng.normal(100, 1, 40), np.ones(40)) for _ in range(11)]
    weights = draws(40, resamples_for(10), 8)
    first, *others = (found.own for found in held(figures, weights))

    assert joint_level(others) == pytest.approx(0.95**0.1, abs=0.0015)
    assert joint_level([first]) == pytest.approx(0.95, abs=1e-3)
    assert joint_level([first, first]) == joint_level([first])
    wide, narrow = range_of(first, joint_level(others)), range_of(first)
    assert wide.low < narrow.low < narrow.high < wide.high
    assert resamples_for(1) == 2000
    assert resamples_for(10) * 0.05 / 10 >= 20


def test_the_same_seed_draws_the_same_days() -> None:
    weights = draws(7, 50, 4)

    assert (weights == draws(7, 50, 4)).all()
    assert (weights.sum(axis=1) == 7).all()
    assert (weights != draws(7, 50, 5)).any()


@pytest.mark.parametrize(
    ("days", "level", "told"), [(5, 0.95, False), (8, 0.95, True), (8, 0.9975, False)]
)
def test_days_too_few_for_the_level_show_nothing(days: int, level: float, *, told: bool) -> None:
    """All of d days may lie on one side of 0 by chance, which happens 2 in 2**d times."""
    apart = Ratio(np.arange(1.0, days + 1), np.ones(days))
    found = range_of(only(apart, draws(days, 4000, 1)), level)

    assert found.is_known is told
