"""How sure a figure of a history is: a bootstrap over its days, plain and paired.

Days are resampled whole, as jobs of one day are not independent of each other: a resample is a
number of draws for each day. A figure is a function of such numbers, so two policies are held
against each other on the same days by taking the difference of their figures.

Intervals are bias-corrected and accelerated (Efron, "Better bootstrap confidence intervals",
Journal of the American Statistical Association 82, 1987, with the acceleration from the
jackknife), with tails widened for few days (Hesterberg, "What teachers should know about the
bootstrap", The American Statistician 69(4), 2015, the expanded percentile interval: Student's t in
place of the normal, times sqrt(n / (n - 1))). For the mean of normal values the interval is then
Student's.

Shapes: d days, b resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Protocol

import numpy as np

from slurm_dl.apps.sim.interval import LEVEL, t_quantile
from slurm_dl.model.jobs import F64, I64

FEWEST_DAYS: Final = 5
"""With fewer a bootstrap tells nothing."""

FEWEST_RESAMPLES: Final = 2000
_BEYOND: Final = 10
"""Resamples that are to lie beyond each end of an interval."""

_NORMAL: Final = NormalDist()
_AT_ONCE: Final = 500
_ROUNDING: Final = 1e-9
"""Relative; a simulation adds up times in another order under another policy."""


class Figure(Protocol):
    """A figure of the jobs of some days."""

    def of(self, weights: F64, /) -> F64:
        """``(b,)`` the figure of each resample; NaN where it has no job.

        Args:
            weights: ``(b, d)`` how often each day is drawn.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Ratio:
    """A sum over another, such as a mean over jobs.

    Attributes:
        above: ``(d,)`` of each day.
        below: ``(d,)`` of each day, 0 or more.
    """

    above: F64
    below: F64

    def of(self, weights: F64, /) -> F64:
        """See `Figure`."""
        below = weights @ self.below
        some = below > 0
        ratio: F64 = np.where(some, (weights @ self.above) / np.where(some, below, 1.0), np.nan)
        return ratio


class Percentile:
    """The smallest value that at least so many percent of the jobs do not exceed.

    The 50th of an even number of jobs is the mean of the middle two, as in all reports.
    """

    __slots__ = ("_day", "_percent", "_values")

    def __init__(self, values: F64, day: I64, percent: int) -> None:
        """Sort once for all resamples.

        Args:
            values: ``(n,)`` of each job.
            day: ``(n,)`` its day, from 0.
            percent: 1 to 100.
        """
        order = np.argsort(values, kind="stable")
        self._values, self._day, self._percent = values[order], day[order], percent

    def of(self, weights: F64, /) -> F64:
        """See `Figure`."""
        return np.array([self._one(row) for row in weights])

    def _one(self, row: F64) -> float:
        upto = np.cumsum(row[self._day].astype(np.int64))
        total = int(upto[-1]) if len(upto) else 0
        if not total:
            return math.nan
        if self._percent == 50:  # noqa: PLR2004 - the median
            ranks = [(total + 1) // 2, total // 2 + 1]
        else:
            ranks = [-(-total * self._percent // 100)]
        return float(self._values[np.searchsorted(upto, ranks)].mean())


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A figure of all days, of resamples of them, and of all but each.

    Attributes:
        value: Of all days; NaN if there is no job.
        drawn: ``(b,)`` of the resamples.
        without: ``(d,)`` of all days but one.
    """

    value: float
    drawn: F64
    without: F64

    def less(self, base: Sample) -> Sample:
        """This figure less another, on the same days; 0 where only rounding tells them apart."""
        return self._with(base, _apart)

    def change(self, base: Sample) -> Sample | None:
        """The same as a share of the other figure; None where that is not above 0 everywhere."""
        columns = (np.array([base.value]), base.drawn, base.without)
        if any(np.nanmin(column, initial=np.inf) <= 0 for column in columns):
            return None
        return self._with(base, lambda ours, theirs: _apart(ours, theirs) / theirs)

    def _with(self, base: Sample, of: Callable[[F64, F64], F64]) -> Sample:
        value = of(np.array([self.value]), np.array([base.value]))[0]
        return Sample(float(value), of(self.drawn, base.drawn), of(self.without, base.without))


def _apart(ours: F64, theirs: F64) -> F64:
    apart = ours - theirs
    size = np.maximum(np.abs(ours), np.abs(theirs))
    # Written so that NaN stays.
    return np.where(np.abs(apart) <= _ROUNDING * size, 0.0, apart)


@dataclass(frozen=True, slots=True)
class Range:
    """A figure of all days, and its interval.

    Attributes:
        value: NaN if there is no job.
        low: The lower end; NaN if there are too few days.
        high: The upper end.
    """

    value: float
    low: float
    high: float

    @property
    def is_known(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def has_zero(self) -> bool:
        """Whether 0 is inside: then the history shows no difference."""
        return not self.is_known or self.low <= 0 <= self.high


def resamples_for(intervals: int) -> int:
    """How many resamples suffice for so many intervals that are to hold all at once."""
    return max(FEWEST_RESAMPLES, round(2 * _BEYOND * intervals / (1 - LEVEL)))


def joint_level(intervals: int) -> float:
    """The level of each of so many intervals if all are to hold at once in 95 % (Bonferroni)."""
    return 1 - (1 - LEVEL) / max(1, intervals)


def draws(days: int, resamples: int, seed: int) -> F64:
    """``(resamples, days)`` how often each day is drawn; *days* draws with replacement in each.

    Args:
        seed: Of NumPy's default generator.
    """
    rng = np.random.default_rng(seed)
    return rng.multinomial(days, np.full(days, 1 / days), size=resamples).astype(np.float64)


def sample(figure: Figure, weights: F64, tick: Callable[[], None] = lambda: None) -> Sample:
    """*figure* of all days and of resamples.

    Args:
        weights: ``(b, d)`` of `draws`.
        tick: Called now and then while it works.
    """
    days = weights.shape[1]
    parts = []
    for first in range(0, len(weights), _AT_ONCE):
        parts.append(figure.of(weights[first : first + _AT_ONCE]))
        tick()
    return Sample(
        value=float(figure.of(np.ones((1, days)))[0]),
        drawn=np.concatenate(parts),
        without=figure.of(np.ones((days, days)) - np.eye(days)),
    )


def range_of(found: Sample, level: float = LEVEL) -> Range:
    """A figure and its interval; none for fewer days than `FEWEST_DAYS`.

    Args:
        level: How often the interval holds the figure.
    """
    days = len(found.without)
    if days < FEWEST_DAYS or not math.isfinite(found.value):
        return Range(found.value, math.nan, math.nan)
    tail = widened_tail(days, level)
    # No end lies beyond the data: where all days may differ in one direction by chance more often
    # than the interval may fail, or no resample lies beyond the end, there is none to tell.
    if 2.0 ** (1 - days) > 1 - level or tail * len(found.drawn) < 1:
        return Range(found.value, math.nan, math.nan)
    return Range(found.value, *bca(found.value, found.drawn, found.without, tail=tail))


def widened_tail(days: int, level: float) -> float:
    """The share beyond each end, less than ``(1 - level) / 2`` to make up for few days."""
    wide = math.sqrt(days / (days - 1)) * t_quantile(days - 1, level)
    return _NORMAL.cdf(-wide)


def bca(value: float, resampled: F64, without: F64, *, tail: float) -> tuple[float, float]:
    """Both ends of the bias-corrected and accelerated interval.

    Args:
        value: The figure of all days.
        resampled: ``(b,)`` of the resamples; NaN is left out.
        without: ``(d,)`` of all days but one; NaN is left out.
        tail: The share beyond each end, above 0 and below 0.5.

    Returns:
        NaN twice if no resample has a figure.
    """
    known = resampled[np.isfinite(resampled)]
    if not len(known):
        return math.nan, math.nan
    is_same = np.isclose(known, value, rtol=_ROUNDING, atol=0)
    below = ((known < value) & ~is_same).mean() + is_same.mean() / 2
    least = 0.5 / len(known)
    bias = _NORMAL.inv_cdf(float(np.clip(below, least, 1 - least)))
    apart = np.nanmean(without) - without[np.isfinite(without)]
    squares = float((apart**2).sum())
    skew = float((apart**3).sum()) / (6 * squares**1.5) if squares > 0 else 0.0

    def end(z: float) -> float:
        moved = bias + z
        scale = 1 - skew * moved
        share = _NORMAL.cdf(bias + moved / scale) if scale > 0 else float(moved > 0)
        return float(np.quantile(known, share))

    z = _NORMAL.inv_cdf(tail)
    return end(z), end(-z)
