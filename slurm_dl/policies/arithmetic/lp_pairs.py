"""Pairs of jobs as variables of the linear programs: two jobs on the same GPUs at once.

A pair of jobs that ask for as many GPUs is one more row of X: it holds its GPUs once, takes time of
both jobs, and each of them works at its own speed beside the other. The rows are then

    sum over its variables of job m <= 1,   sum of GPUs on type j, a pair's once, <= capacity_j.

Three reductions keep this small. A pair whose relative speeds add up to no more than 1 on a type is
left out there: jobs that take turns on those GPUs, each for the part that its relative speed is of
the sum, do as much or more. Of more than 200 jobs each has its 8 best partners only, and those that
it is such a partner of: an approximation, whose answers are never above the best. And a pair of
classes stands for all pairs of their members, which share evenly what it gets.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning
Workloads", OSDI 2020, section 3.1 (space sharing) and 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.model.jobs import F64, I64, Bool
from slurm_dl.model.pair_rates import PairRates

TURNS: Final = 1.0
"""Sum of the relative speeds of two jobs that take turns; a pair has to be better."""

ALL: Final = -1.0
"""A least sum for which every pair counts, also one that does not fit.

Such a pair is worth nothing, but draws an answer near the centre to itself, as in Gavel's code.
"""

_ALL_PARTNERS_UP_TO = 200  # Jobs, or classes of them
_PARTNERS = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairShares:
    """Pairs that run together, and for which share of the time.

    Attributes:
        first: ``(p,)`` row of a job.
        second: ``(p,)`` row of another, or of the same where rows are classes of jobs.
        kind: ``(p,)`` the type of their GPUs.
        share: ``(p,)`` above 0: of the time; of classes, how many pairs run at a time.
    """

    first: I64
    second: I64
    kind: I64
    share: F64

    def at(self, rows: I64) -> PairShares:
        """The same where row i is row ``rows[i]``."""
        return PairShares(
            first=rows[self.first], second=rows[self.second], kind=self.kind, share=self.share
        )

    def time(self, k: int, kinds: int) -> F64:
        """``(k, kinds)`` what each of k jobs gets of its time in pairs."""
        found: F64 = np.zeros((k, kinds))
        for one in (self.first, self.second):
            np.add.at(found, (one, self.kind), self.share)
        return found

    def among(self, of: I64) -> PairShares:
        """Those of jobs, where the rows are classes: ``of[i]`` is that of job i."""
        found = []
        columns = (self.first, self.second, self.kind, self.share)
        for a, b, kind, amount in zip(*(c.tolist() for c in columns), strict=True):
            these, those = (of == a).nonzero()[0], (of == b).nonzero()[0]
            if a == b:
                one, other = these[np.stack(np.triu_indices(len(these), 1))]
            else:
                one, other = np.repeat(these, len(those)), np.tile(those, len(these))
            each, n = np.full(len(one), kind), max(1, len(one))
            found.append(
                PairShares(first=one, second=other, kind=each, share=np.full(len(one), amount / n))
            )
        return joined(found)


_NONE: Final = np.zeros(0, dtype=np.int64)
NO_PAIRS: Final = PairShares(first=_NONE, second=_NONE, kind=_NONE, share=np.zeros(0))


def joined(some: Iterable[PairShares]) -> PairShares:
    """All of them, one after the other."""
    all_ = [NO_PAIRS, *some]
    return PairShares(
        first=np.concatenate([one.first for one in all_]),
        second=np.concatenate([one.second for one in all_]),
        kind=np.concatenate([one.kind for one in all_]),
        share=np.concatenate([one.share for one in all_]),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairColumns:
    """The variables of pairs: how many of each pair run at a time on each type, p of them.

    Attributes:
        first: ``(p,)`` row of a job, or class.
        second: ``(p,)`` row of the other; the same for two members of one class.
        kind: ``(p,)`` the type.
        rate: ``(2, p)`` relative speed of either.
    """

    first: I64
    second: I64
    kind: I64
    rate: F64

    def entries(self, count: F64) -> tuple[I64, I64, F64, F64]:
        """Row, pair, part of a member's time and relative speed: two of each pair.

        Of two members of one class there is one, with the time of both.

        Args:
            count: ``(k,)`` members of each class.
        """
        alike, at = self.first == self.second, np.arange(len(self.first))
        others = (~alike).nonzero()[0]
        row = np.concatenate([self.first, self.second[others]])
        part = np.concatenate([np.where(alike, 2.0, 1.0), np.ones(len(others))]) / count[row]
        rate = np.concatenate([self.rate[0], self.rate[1, others]])
        return row, np.concatenate([at, others]), part, rate


def pair_columns(
    rates: PairRates, *, gpus: F64, may: Bool, count: F64, least: float = TURNS
) -> PairColumns:
    """The pairs of k jobs, or classes, that are worth a variable.

    Args:
        rates: Of these.
        gpus: ``(k,)`` GPUs each asks for.
        may: ``(k, t)`` bool, where each may run.
        count: ``(k,)`` members of each class.
        least: What the relative speeds of a pair must add up to more than.
    """
    k, kind = len(gpus), rates.kind
    sums = rates.sums()
    best = np.where(sums > least, sums, -math.inf).max(axis=2, initial=-math.inf)
    shares = (kind >= 0).nonzero()[0]
    worth = np.full((k, k), -math.inf)
    worth[np.ix_(shares, shares)] = best[np.ix_(kind[shares], kind[shares])]
    worth[gpus[:, None] != gpus] = -math.inf
    np.fill_diagonal(worth, np.where(count >= 2, worth.diagonal(), -math.inf))  # noqa: PLR2004
    if k > _ALL_PARTNERS_UP_TO:
        bar = np.partition(worth, k - _PARTNERS, axis=1)[:, k - _PARTNERS]
        worth[(worth < bar[:, None]) & (worth < bar)] = -math.inf
    first, second = np.triu(worth > -math.inf).nonzero()
    good = may[first] & may[second] & (sums[kind[first], kind[second]] > least)
    pair, on = good.nonzero()
    first, second = first[pair], second[pair]
    a, b = kind[first], kind[second]
    both = np.stack([rates.rate[a, b, on], rates.rate[b, a, on]])
    rate = np.where(sums[a, b, on] > 0, both, 0.0)
    return PairColumns(first=first, second=second, kind=on, rate=rate)
