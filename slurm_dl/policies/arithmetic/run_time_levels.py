"""Where a job's run time lies, by its owner and its name: a hierarchical normal posterior.

The logarithm of the run time is normal around a mean of its own in each group. Groups are nested:
GPU class, then user within the class, then label (user, name, GPUs). A group of n finished jobs of
mean y has the posterior mean

    mu = (n y + k mu_parent) / (n + k),   k = variance within groups / variance between groups,

with both variances estimated from all groups of the level (sums of squares). A level whose groups
explain next to nothing of the variance is not used.

Source: Efron and Morris, "Stein's estimation rule and its competitors", J. American Statistical
Association 68, 1973; Gelman et al., "Bayesian Data Analysis", 3rd edition, section 5.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from slurm_dl.model.jobs import F64, I64

_LEAST_EXPLAINED = 0.1  # A level is used if it explains this share of its parent's variance
_PRIOR_JOBS = 4.0  # The parent's variance counts like so many jobs in the variance within groups


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The groups of one level, as they are after all finished jobs.

    Attributes:
        key: ``(g,)`` keys of the groups, increasing.
        jobs: ``(g,)`` finished jobs of each.
        mean: ``(g,)`` mean logarithm of their run times.
        weight: k, the number of jobs at which a group counts as much as its parent; inf: the level
            is not used.
        before_jobs: ``(n,)`` for each finished job, how many of its group had ended before it.
        before_mean: ``(n,)`` their mean; 0 if there were none.
    """

    key: I64
    jobs: F64
    mean: F64
    weight: float
    before_jobs: F64
    before_mean: F64

    @classmethod
    def of(cls, keys: I64, parents: I64, log_s: F64) -> Self:
        """The groups by *keys*.

        Args:
            keys: ``(n,)`` the group of each finished job, in the order in which they ended.
            parents: ``(n,)`` its group in the level above.
            log_s: ``(n,)`` logarithm of its run time.
        """
        key, group = np.unique(keys, return_inverse=True)
        jobs = np.bincount(group, minlength=len(key)).astype(np.float64)
        total = np.bincount(group, weights=log_s, minlength=len(key))
        mean = total / jobs
        order = np.argsort(group, kind="stable")
        sums = np.cumsum(log_s[order]) - log_s[order]
        first = np.concatenate([[0], np.cumsum(jobs)[:-1]]).astype(np.int64)
        before_jobs, before_sum = np.empty(len(keys)), np.empty(len(keys))
        before_jobs[order] = np.arange(len(keys)) - first[group[order]]
        before_sum[order] = sums - sums[first][group[order]]
        return cls(
            key=key,
            jobs=jobs,
            mean=mean,
            weight=_weight(group, parents, log_s),
            before_jobs=before_jobs,
            before_mean=before_sum / np.maximum(before_jobs, 1.0),
        )

    @property
    def used(self) -> bool:
        """Whether its groups explain enough."""
        return not np.isinf(self.weight)

    def find(self, keys: I64) -> tuple[F64, F64]:
        """``(n,)`` finished jobs of the group of each key, and their mean; 0 if it is unknown."""
        at = np.minimum(self.key.searchsorted(keys), len(self.key) - 1)
        known = self.key[at] == keys
        return np.where(known, self.jobs[at], 0.0), np.where(known, self.mean[at], 0.0)

    def posterior(self, jobs: F64, mean: F64, parent: F64) -> F64:
        """``(n,)`` posterior means of groups with so many *jobs* of this *mean*."""
        if not self.used:
            return parent
        found: F64 = (jobs * mean + self.weight * parent) / (jobs + self.weight)
        return found


def _weight(group: I64, parents: I64, log_s: F64) -> float:
    """The weight of a level; inf if its groups explain too little."""
    inside, freedom = _squares(group, log_s)
    outside, parent_freedom = _squares(np.unique(parents, return_inverse=True)[1], log_s)
    if parent_freedom <= 0 or outside <= 0:
        return np.inf
    parent_variance = outside / parent_freedom
    variance = (inside + _PRIOR_JOBS * parent_variance) / (freedom + _PRIOR_JOBS)
    between = parent_variance - variance
    if between < _LEAST_EXPLAINED * parent_variance:
        return np.inf
    return variance / between


def _squares(group: I64, log_s: F64) -> tuple[float, float]:
    """Sum of squares within groups, and its degrees of freedom."""
    jobs = np.bincount(group)
    mean = np.bincount(group, weights=log_s) / np.maximum(jobs, 1)
    return float(((log_s - mean[group]) ** 2).sum()), float(len(log_s) - (jobs > 0).sum())
