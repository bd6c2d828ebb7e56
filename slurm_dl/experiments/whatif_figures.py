"""Figures of the jobs of some days, as functions of how often each day is drawn.

To first order a figure is linear in those numbers, and its standard error follows from the slope
for each day as that of a sum over days does (the infinitesimal jackknife: Efron and Tibshirani,
"An Introduction to the Bootstrap", 1993, chapter 21). Slopes of a percentile take the density of
the jobs there from the width of Woodruff's interval of one standard error ("Confidence intervals
for medians and other position measures", Journal of the American Statistical Association 47, 1952;
for days as clusters of jobs: Francisco and Fuller, "Quantile estimation with a complex survey
design", Annals of Statistics 19(1), 1991).

Shapes: d days, b resamples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from slurm_dl.model.jobs import F64, I64, Bool

ROUNDING: Final = 1e-9
"""Relative; a simulation adds up times in another order under another policy."""


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A figure of each of b resamples, and what one more draw of a day would add to it.

    Attributes:
        value: ``(b,)``; NaN where there is no job.
        slope: ``(b, d)`` for each day; the mean over the days drawn is 0.
    """

    value: F64
    slope: F64

    def error(self, weights: F64) -> F64:
        """``(b,)`` the standard error; NaN if there is one day alone.

        Args:
            weights: ``(b, d)`` how often each day was drawn.
        """
        days = weights.shape[1]
        if days == 1:
            return np.full(len(weights), np.nan)
        squares = np.einsum("bd,bd,bd->b", weights, self.slope, self.slope)
        error: F64 = np.sqrt(squares * days / (days - 1))
        return error

    def less(self, base: Linear) -> Linear:
        """This figure less another on the same days; 0 where only rounding tells them apart."""
        size = np.maximum(np.abs(self.value), np.abs(base.value))
        return Linear(
            _unless_rounding(self.value - base.value, size),
            _unless_rounding(self.slope - base.slope, size[:, None]),
        )

    def over(self, base: Linear) -> Linear:
        """This figure as a multiple of another on the same days; NaN where that is not above 0."""
        below = np.where(base.value > 0, base.value, np.nan)
        apart = self.less(base)
        more = apart.value / below
        # (s - r t) / b with r = 1 + more: written so that no rounding is left where r is 1.
        slope = (apart.slope - more[:, None] * base.slope) / below[:, None]
        return Linear(1 + more, _unless_rounding(slope, np.abs(1 + more)[:, None]))


def _unless_rounding(apart: F64, size: F64) -> F64:
    # Written so that NaN stays.
    return np.where(np.abs(apart) <= ROUNDING * size, 0.0, apart)


class Figure(Protocol):
    """A figure of the jobs of some days."""

    def of(self, weights: F64, /) -> F64:
        """``(b,)`` the figure of each resample; NaN where it has no job.

        Args:
            weights: ``(b, d)`` how often each day is drawn.
        """

    def linear(self, weights: F64, /) -> Linear:
        """The same with its slopes."""

    def has_jobs(self, days: int, /) -> Bool:
        """``(d,)`` of each of so many days, whether jobs of it are in the figure."""


@dataclass(frozen=True, slots=True, eq=False)
class Ratio:
    """A sum over another, such as a mean over jobs.

    Attributes:
        above: ``(d,)`` of each day.
        below: ``(d,)`` of each day, 0 or more.
        jobs: ``(d,)`` jobs of each day; None: *below* is 0 where there is none.
    """

    above: F64
    below: F64
    jobs: F64 | None = None

    def of(self, weights: F64, /) -> F64:
        """See `Figure`."""
        below = weights @ self.below
        some = below > 0
        ratio: F64 = np.where(some, (weights @ self.above) / np.where(some, below, 1.0), np.nan)
        return ratio

    def linear(self, weights: F64, /) -> Linear:
        """See `Figure`."""
        value = self.of(weights)
        below = np.where(np.isnan(value), np.nan, weights @ self.below)
        rest = self.above - value[:, None] * self.below
        rest = _unless_rounding(rest, np.abs(self.above))
        return Linear(value, rest / below[:, None])

    def has_jobs(self, _days: int, /) -> Bool:
        """See `Figure`."""
        return (self.below if self.jobs is None else self.jobs) > 0


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
        return np.array([self._one(self._upto(row)) for row in weights])

    def linear(self, weights: F64, /) -> Linear:
        """See `Figure`."""
        days = weights.shape[1]
        jobs = np.bincount(self._day, minlength=days)
        value, slope = np.full(len(weights), np.nan), np.full(weights.shape, np.nan)
        for at, row in enumerate(weights):
            upto = self._upto(row)
            total = int(upto[-1]) if len(upto) else 0
            if total:
                value[at] = self._one(upto)
                slope[at] = self._slope(value[at], row, upto, jobs)
        return Linear(value, slope)

    def has_jobs(self, days: int, /) -> Bool:
        """See `Figure`."""
        return np.bincount(self._day, minlength=days) > 0

    def _slope(self, value: float, row: F64, upto: I64, jobs: I64) -> F64:
        """``(d,)`` at one resample; 0 where jobs lie too close to tell a density."""
        total = int(upto[-1])
        within = int(np.searchsorted(self._values, value, side="right"))
        below = np.bincount(self._day[:within], minlength=len(row))
        share = float(upto[within - 1]) / total
        rest = (below - share * jobs) / total
        days = len(row)
        error = math.sqrt(float(row @ rest**2) * days / max(1, days - 1))
        if not error > 0:
            return np.zeros(days)
        middle = self._percent / 100
        ranks = [max(1, math.ceil((middle - error) * total))]
        ranks += [min(total, math.ceil((middle + error) * total))]
        low, high = self._values[np.searchsorted(upto, ranks)]
        slope: F64 = -rest * (high - low) / (2 * error)
        return slope

    def _upto(self, row: F64) -> I64:
        """``(n,)`` how many jobs were drawn up to each."""
        upto: I64 = np.cumsum(row[self._day].astype(np.int64))
        return upto

    def _one(self, upto: I64) -> float:
        total = int(upto[-1]) if len(upto) else 0
        if not total:
            return math.nan
        if self._percent == 50:  # noqa: PLR2004 - the median
            ranks = [(total + 1) // 2, total // 2 + 1]
        else:
            ranks = [-(-total * self._percent // 100)]
        return float(self._values[np.searchsorted(upto, ranks)].mean())
