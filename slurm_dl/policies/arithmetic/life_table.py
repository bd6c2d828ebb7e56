"""Distributions of run times from finished jobs and from jobs that still run (censored).

Times are counted in bins whose edges grow by a constant factor, apart for each group of jobs. In
each bin the hazard is the share of the jobs at risk that end in it; a job censored in the bin is at
risk for half of it. The survival function is the product of 1 - hazard.

Source: Kaplan and Meier, "Nonparametric estimation from incomplete observations", J. American
Statistical Association 53, 1958, section 3 (the estimate for grouped times).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from slurm_dl.model.jobs import F64, I64

BINS_PER_DECADE = 24
FIRST_EXPONENT = -6
LAST_EXPONENT = 10
BINS = BINS_PER_DECADE * (LAST_EXPONENT - FIRST_EXPONENT)
"""Times below 10 ** FIRST_EXPONENT are in the first bin, those above the last edge in the last."""

TAIL_FACTOR = 2.0
"""Jobs of which no end is known end at this many times the largest time."""


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Times counted in bins, by group.

    Attributes:
        number: ``(g, BINS)`` how many lie in each bin.
        total: ``(g, BINS)`` their sum.
    """

    number: F64
    total: F64

    @classmethod
    def of(cls, group: I64, times: F64, groups: int) -> Self:
        """*times*, each above 0, of jobs in *groups* groups; a group below 0 is not counted."""
        rows = group >= 0
        exponent = np.log10(times[rows]) - FIRST_EXPONENT
        bins = np.clip(exponent * BINS_PER_DECADE, 0, BINS - 1).astype(np.int64)
        at, size = group[rows] * BINS + bins, groups * BINS
        number: F64 = np.bincount(at, minlength=size).astype(np.float64)
        total: F64 = np.bincount(at, weights=times[rows], minlength=size).astype(np.float64)
        return cls(number.reshape(groups, BINS), total.reshape(groups, BINS))

    def pooled(self) -> Counts:
        """All groups as one."""
        return Counts(self.number.sum(axis=0)[None, :], self.total.sum(axis=0)[None, :])


@dataclass(frozen=True, slots=True, eq=False)
class Distributions:
    """Discrete distributions of run times with one support.

    Attributes:
        at: ``(k,)`` the support, increasing, above 0.
        mass: ``(g, k)`` probabilities, each row with sum 1.
    """

    at: F64
    mass: F64


def life_tables(ended: Counts, censored: Counts) -> Distributions:
    """The distribution of the time at which jobs of each group end.

    A point of the support is the mean of the ends in a bin, over all groups. What is left after the
    last end of a group lies at twice the largest time of all.

    Args:
        ended: Times of finished jobs; at least one in all groups together.
        censored: Times that jobs have reached without having ended.
    """
    seen = ended.number + censored.number
    gone = seen.cumsum(axis=1)
    at_risk = gone[:, -1:] - gone + ended.number + censored.number / 2
    hazard = np.divide(ended.number, at_risk, out=np.zeros(seen.shape), where=ended.number > 0)
    survival = np.cumprod(1 - np.minimum(hazard, 1.0), axis=1)
    number = ended.number.sum(axis=0)
    there = number.nonzero()[0]
    at = ended.total.sum(axis=0)[there] / number[there]
    last = int(seen.sum(axis=0).nonzero()[0][-1])
    largest = (ended.total + censored.total)[:, last].sum() / seen[:, last].sum()
    left = survival[:, there]
    mass = np.concatenate([1 - left[:, :1], left[:, :-1] - left[:, 1:], left[:, -1:]], axis=1)
    return Distributions(np.append(at, TAIL_FACTOR * largest), mass)
