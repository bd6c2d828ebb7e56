"""The bootstrap over days: against simulated histories whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from slurm_dl.experiments.whatif_bootstrap import FEWEST_DAYS, Interval, PairedFigure, held
from slurm_dl.experiments.whatif_history import Figure, Percentile, Ratio
from slurm_dl.model.jobs import F64
from slurm_dl.report.summary_metrics import spread

Days = list[list[float]]

DAYS = st.lists(
    st.lists(st.sampled_from([0.0, 1.0, 2.5, 7.0, 7.5, 100.0]), max_size=5), min_size=1, max_size=5
)


@given(DAYS, st.data())
def test_a_figure_of_a_resample_is_that_of_its_jobs(days: Days, data: st.DataObject) -> None:
    """Weights are nothing but days laid end to end, and the figures those of every report."""
    drawn = data.draw(
        st.lists(st.integers(0, len(days) - 1), min_size=len(days), max_size=len(days))
    )
    weights = np.bincount(drawn, minlength=len(days)).astype(np.float64)[None, :]
    laid = spread(np.array([value for number in drawn for value in days[number]]))
    values = np.array([value for day in days for value in day], dtype=np.float64)
    day = np.repeat(np.arange(len(days)), [len(one) for one in days])
    mean = Ratio(np.array(list(map(math.fsum, days))), np.array([float(len(d)) for d in days]))
    percentiles = [Percentile(values, day, percent) for percent in (50, 95, 99)]

    for figure, expected in zip(
        (mean, *percentiles), (laid.mean, laid.median, laid.p95, laid.p99), strict=True
    ):
        assert figure.of(weights).tolist() == pytest.approx([expected], nan_ok=True)


def daily(values: F64) -> Ratio:
    """A mean of days with one job each."""
    return Ratio(values, np.ones(len(values)))


def paired(*figures: Figure, days: int, resamples: int = 2000) -> list[PairedFigure]:
    return held(figures, days, resamples=resamples, seed=0)


@pytest.mark.parametrize("days", [10, 14, 28])
def test_a_range_holds_the_change_as_often_as_it_says(days: int) -> None:
    """Days that differ a lot, and a policy that is 20 % better on them, more or less."""
    rng = np.random.default_rng(days)
    holds = shown = 0
    for _ in range(200):
        base = rng.lognormal(0, 0.6, days)
        own = 0.8 * base * rng.lognormal(-0.125, 0.5, days)
        change = paired(daily(base), daily(own), days=days, resamples=600)[1].change
        holds += change.low <= -0.2 <= change.high
        shown += change.high < 0

    assert 0.9 <= holds / 200 <= 0.99
    assert shown > 20


@pytest.mark.parametrize("policies", [1, 10])
def test_policies_that_are_no_better_are_not_called_better(policies: int) -> None:
    """In one history of twenty some of them are; a real difference beside them is shown."""
    rng = np.random.default_rng(policies)
    runs, days, any_shown, real_shown = 200, 12, 0, 0
    for _ in range(runs):
        day = rng.lognormal(0, 0.6, days)
        alike = day * rng.lognormal(0, 0.3, (policies + 1, days))
        better = alike[0] * rng.lognormal(-0.7, 0.3, days)
        found = paired(*map(daily, [*alike, better]), days=days, resamples=600)[1:]
        any_shown += any(not one.judged.has_zero for one in found[:-1])
        real_shown += found[-1].judged.high < 0

    assert any_shown <= stats.binom.ppf(1 - 1e-3, runs, 0.05)
    assert real_shown > 0.7 * runs


def test_what_is_left_by_holm_is_judged_less_strictly() -> None:
    """A difference that is shown leaves the others the level of one fewer."""
    rng = np.random.default_rng(4)
    base = rng.lognormal(0, 0.5, 20)
    weak = daily(base * rng.lognormal(0.05, 0.2, 20))
    strong = daily(0.3 * base * rng.lognormal(0, 0.1, 20))
    alone = paired(daily(base), weak, days=20)[1]
    beside = paired(daily(base), weak, strong, days=20)[1]
    twice = paired(daily(base), weak, weak, days=20)[1]

    assert beside == alone
    assert twice.difference.low < alone.difference.low
    assert twice.difference.high > alone.difference.high


@pytest.mark.parametrize("percent", [50, 95])
def test_a_range_of_a_percentile_is_about_that_of_its_resamples(percent: int) -> None:
    """Of many jobs on days that differ."""
    rng = np.random.default_rng(percent)
    counts = rng.integers(20, 400, 50)
    day = np.repeat(np.arange(50), counts)
    values = np.exp(rng.normal(0, 0.3, 50)[day] + rng.normal(0, 1, len(day)))
    figure = Percentile(values, day, percent)
    own = paired(figure, days=50, resamples=400)[0].own
    drawn = figure.of(rng.multinomial(50, [1 / 50] * 50, size=400).astype(float))

    assert own.high - own.low == pytest.approx(2 * 2.0 * drawn.std(), rel=0.2)
    assert own.low < own.value < own.high


def test_what_never_differs_has_no_width() -> None:
    """The same policy, but for rounding; and jobs that all took a minute. No ratio is of 0.

    What a single day makes is not shown: another month may not have it. A seed draws its days.
    """
    base, none = np.random.default_rng(4).lognormal(0, 1, 12), np.zeros(12)
    minute = Percentile(np.full(36, 60.0), np.repeat(np.arange(12), 3), 95)
    same = paired(daily(base), daily(base * (1 + 1e-13)), days=12)[1]
    rest = paired(daily(none), minute, days=12)

    assert same.difference == same.change == Interval(0, 0, 0)
    assert same.judged.has_zero
    assert [one.own for one in rest] == [Interval(0, 0, 0), Interval(60, 60, 60)]
    assert rest[1].change is None
    assert rest[1].judged == Interval(60, 60, 60)
    base = np.random.default_rng(1).lognormal(1, 0.4, 16)
    single = paired(daily(base), daily(base - (np.arange(16) == 4)), days=16)[1]
    assert (single.judged.is_known, single.judged.has_zero) == (True, True)
    one, again, other = (held([daily(base)] * 2, 16, resamples=300, seed=s) for s in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize("busy", [1, FEWEST_DAYS - 1, FEWEST_DAYS])
@pytest.mark.parametrize("empty", [0, 10])
def test_a_range_rests_on_days_with_jobs_alone(busy: int, empty: int) -> None:
    """Of both figures where two are held against each other; an empty day adds nothing."""
    days = busy + empty
    has = (np.arange(days) < busy).astype(np.float64)
    values = np.random.default_rng(0).uniform(1, 2, days)
    one, other = Ratio(values * has, has), Ratio(1.5 * values, np.ones(days))
    found = paired(one, other, days=days)

    assert {row.difference.is_known for row in found} == {busy >= FEWEST_DAYS}
    assert found[0].own.is_known is (busy >= FEWEST_DAYS)
    assert found[1].own.is_known is (days >= FEWEST_DAYS)
    assert found[0].own.value == pytest.approx(values[:busy].mean())
    assert found[1].judged.has_zero is (busy < FEWEST_DAYS)
