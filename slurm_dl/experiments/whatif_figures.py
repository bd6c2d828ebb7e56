"""Figures of the jobs of some days, as functions of how often each day is drawn.

Shapes: d days, b resamples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.model.jobs import F64, I64, Bool

ROUNDING: Final = 1e-9
"""Relative; a simulation adds up times in another order under another policy."""


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
        """``(b,)`` the figure of each resample; NaN where it has no job.

        Args:
            weights: ``(b, d)`` how often each day is drawn.
        """
        below = weights @ self.below
        some = below > 0
        ratio: F64 = np.where(some, (weights @ self.above) / np.where(some, below, 1.0), np.nan)
        return ratio

    def has_jobs(self, _days: int, /) -> Bool:
        """``(d,)`` of each of so many days, whether jobs of it are in the figure."""
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
        """See `Ratio`."""
        return np.array([self._one(self._upto(row)) for row in weights])

    def has_jobs(self, days: int, /) -> Bool:
        """See `Ratio`."""
        return np.bincount(self._day, minlength=days) > 0

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


Figure = Ratio | Percentile
"""A figure of the jobs of some days."""
