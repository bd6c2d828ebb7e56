"""Linear programs over shares: who runs on which GPU type for which part of the time.

Jobs m of a pool share GPUs of types j. ``X[m, j]`` is the share of the time from now on that job m
runs on type j, on all its GPUs at once. Every program keeps to

    0 <= X[m, j],    sum_j X[m, j] <= 1,    sum_m gpus_m X[m, j] <= capacity_j,

and X[m, j] = 0 where job m cannot run on type j. Where the pool has speeds of pairs, two jobs may
run on the same GPUs, too; see `lp_pairs`. Objectives are ``max_min`` (raise the least gain,
then the next), ``max_sum`` (raise the sum) and ``min_max_ratio`` (of completion times).

Two reductions keep them small. Jobs that are alike are one class with a number of members, which
share evenly what the class gets: exact, since the mean of optimal answers is optimal. Where that
leaves too many classes the jobs are dealt out into parts by a hash of their ids, each with an equal
share of the GPUs: an approximation, whose answers are never above the best.

Rows of a program are sorted by what they say, so its answer does not depend on the order of jobs.
A solver that runs out of time answers with the proportional share, and says so in `Solved.how`.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning
Workloads", OSDI 2020, sections 3 and 4 (Gavel); the parts are those of Narayanan et al., "Solving
Large-Scale Granular Resource Allocation Problems Efficiently with POP", SOSP 2021, section 3.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import F64, I64, Bool
from slurm_dl.policies.arithmetic.lp_pairs import NO_PAIRS, PairShares, joined
from slurm_dl.policies.arithmetic.lp_solver import INFEASIBLE, SOLVED, Pool, Program, Shares

__all__ = [
    "How",
    "Pool",
    "ShareLevel",
    "Solved",
    "by_classes",
    "least_ratio",
    "max_min",
    "max_sum",
    "min_max_ratio",
    "pool",
    "proportional",
    "raise_level",
]

How = Literal["solved", "parts", "proportional"]
"""At once; in parts; or not all: the proportional share from the first part without time on."""

LIMIT_S = 5.0
"""Seconds a single linear program may take by default; one of `SPLIT_ABOVE` classes takes 0.2."""

LEVELS = 2  # Levels of a large pool that are raised one after the other by default
SPLIT_ABOVE = 2000  # Classes of jobs that differ above which a pool is split by default
ALL_LEVELS_UP_TO = 100  # Classes up to which every level is worked out, however many were asked for
_TRIES = 30  # Ratios that are tried at most; about six are
_CLOSE = 1e-9  # How near the best ratio is near enough, of what could be gained at all
_TIGHT = 1e-9  # Prices above it, of prices that sum to one, belong to jobs that nothing can raise


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """Shares of a pool, and how they were found.

    Attributes:
        share: ``(k, t)``, 0 to 1, at most 1 over all types.
        how: See `How`.
        paired: Which pairs run together, and for how much of that time.
    """

    share: F64
    how: How
    paired: PairShares = NO_PAIRS


@dataclass(frozen=True, slots=True, eq=False)
class ShareLevel:
    """What `raise_level` found.

    Attributes:
        level: The highest level c.
        price: ``(k,)`` what a unit of each job's gain costs in units of the level; above 0 only
            for jobs that cannot get more than ``floor + level x rise`` in any best answer.
        found: The same shares, with the pairs among them.
    """

    found: Shares
    level: float
    price: F64

    @property
    def solved(self) -> Solved:
        """The shares alone."""
        return _solved(self.found)


def pool(job_id: I64, gpus: F64, rates: F64, capacity: F64) -> Pool:
    """The pool of some jobs, each of which may run where it has a rate and where it fits.

    Args:
        job_id: ``(k,)``.
        gpus: ``(k,)`` above 0.
        rates: ``(k, t)`` 0 where a job cannot run.
        capacity: ``(t,)`` GPUs of each type.
    """
    may: Bool = (rates > 0) & (gpus[:, None] <= capacity + 1e-9) & (capacity > 0)
    return Pool(job_id=job_id, gpus=gpus, may=may, capacity=capacity, count=np.ones(len(gpus)))


def proportional(pool: Pool) -> F64:
    """``(k, t)`` the split that favours nobody: each job the same share, of types as there are.

    It is the yardstick of the other programs, and their answer when there is no time to solve them.
    """
    total = float(pool.capacity.sum())
    asked = float((pool.count * pool.gpus).sum())
    if total <= 0 or asked <= 0:
        return np.zeros(pool.may.shape)
    share = pool.capacity / total * min(1.0, total / asked)
    return np.where(pool.may, share, 0.0)


def max_min(pool: Pool, gain: F64, *, levels: int = LEVELS, limit_s: float = LIMIT_S) -> Solved:
    """Shares that make the least ``gain[m] . X[m]`` as large as can be, then the next, and so on.

    Jobs that gain nowhere get nothing and hold nobody up. With one type all levels are found
    exactly, without a solver.

    Args:
        gain: ``(k, t)`` what a job gains by running on a type all the time, 0 or more.
        levels: How many levels are raised one after the other where there are more than
            `ALL_LEVELS_UP_TO` rows; what is left then goes where the sum grows most. The first
            level is the max-min value in any case.
        limit_s: Seconds for each of the levels + 1 programs.
    """
    gain = np.where(pool.may, gain, 0.0)
    rising = (gain > 0).any(axis=1)
    if gain.shape[1] == 1 and pool.pairs is None:
        return Solved(_one_type(pool, gain[:, 0])[:, None], "solved")
    floor: F64 = np.zeros(len(pool))
    share = None
    for _ in range(len(pool) if len(pool) <= ALL_LEVELS_UP_TO else levels):
        if not rising.any():
            break
        found = raise_level(pool, gain, floor=floor, rise=rising.astype(float), limit_s=limit_s)
        if found is None:
            break
        share = found.solved
        floor = floor + found.level * rising
        rising &= found.price <= _TIGHT * found.price.sum()
    if share is None:
        nothing = not rising.any()
        return Solved(proportional(pool), "solved" if nothing else "proportional")
    if rising.any():
        rest = max_sum(pool, gain, gain=gain, floor=floor * (1 - 1e-9), limit_s=limit_s)
        if rest is not None and rest.how == "solved":
            share = rest
    return share


def max_sum(
    pool: Pool,
    value: F64,
    *,
    gain: F64 | None = None,
    floor: F64 | None = None,
    limit_s: float = LIMIT_S,
    interior: bool = False,
) -> Solved | None:
    """Shares with the largest sum of ``value x X``; None if they cannot reach the floors.

    Args:
        value: ``(k, t)``, 0 or more.
        gain: ``(k, t)``, for *floor*.
        floor: ``(k,)`` what ``gain[m] . X[m]`` must be at least; None: no such rows.
        interior: Near the analytic centre of the optimal shares.
    """
    program = Program(pool, interior=interior)
    cost = program.cost(value)
    bound = -float(cost.min(initial=0.0))
    if gain is not None and floor is not None:
        bounded = (floor > 0).nonzero()[0]
        # An interior answer depends on the scale of the rows: those are the caller's.
        unit = np.ones(len(bounded)) if interior else floor[bounded]
        if len(bounded):
            program.at_least(bounded, gain[bounded] / unit[:, None], floor[bounded] / unit)
    if bound <= 0 and not program.asks:
        return Solved(np.zeros(pool.may.shape), "solved")
    found = program.solve(cost / (bound or 1.0), limit_s)
    if found is None:
        return Solved(proportional(pool), "proportional")
    return None if found.status == INFEASIBLE else _solved(program.shares(found.variables))


def raise_level(
    pool: Pool,
    gain: F64,
    *,
    floor: F64,
    rise: F64,
    limit_s: float = LIMIT_S,
    interior: bool = False,
) -> ShareLevel | None:
    """The highest c with ``gain[m] . X[m] >= floor[m] + c rise[m]`` for all m; None: not solved.

    Args:
        gain: ``(k, t)``, 0 or more.
        floor: ``(k,)``, 0 or more; shares that reach it must exist.
        rise: ``(k,)``, 0 or more, above 0 for at least one job; each of those gains somewhere.
        interior: Near the analytic centre of the optimal shares, and without prices.
    """
    program = Program(pool, extra=1, interior=interior)
    rising, kept = (rise > 0).nonzero()[0], ((rise <= 0) & (floor > 0)).nonzero()[0]
    # What the proportional share reaches is the unit, so that the solver sees figures around 1.
    reached = (gain * proportional(pool)).sum(axis=1)[rising] / rise[rising]
    unit = float(reached.min(initial=math.inf))
    if not 0 < unit < math.inf:
        return None
    scale = 1.0 / (rise[rising] * unit)
    priced = program.at_least(rising, gain[rising] * scale[:, None], floor[rising] * scale, rise=1)
    program.at_least(kept, gain[kept] / floor[kept, None], np.full(len(kept), 1 - 1e-9))
    cost = np.zeros(program.width)
    cost[-1] = -1.0
    found = program.solve(cost, limit_s)
    if found is None or found.status != SOLVED:
        return None
    price = np.zeros(len(pool))
    price[rising] = -found.price[priced] / rise[rising]
    return ShareLevel(
        program.shares(found.variables), float(found.variables[-1]) * unit, np.maximum(price, 0.0)
    )


def min_max_ratio(
    pool: Pool, gain: F64, past: F64, coming: F64, *, limit_s: float = LIMIT_S
) -> Solved:
    """Shares that make the largest ``past[m] + coming[m] / (gain[m] . X[m])`` as small as can be.

    A ratio r is within reach if all gains ``coming / (r - past)`` are. Where they are not, the
    prices of the program that tries tell a ratio below which none is; it is tried next. What is
    left then goes where the sum of gains over what they need grows most.

    Args:
        gain: ``(k, t)``, 0 or more.
        past: ``(k,)`` what is lost already, finite.
        coming: ``(k,)`` what is to come, finite, above 0.
        limit_s: Seconds for each of about eight programs.
    """
    gain = np.where(pool.may, gain, 0.0)
    can = np.asarray((gain > 0).any(axis=1))
    start = proportional(pool)
    if not can.any():
        return Solved(start, "solved")
    least, high = float(past[can].max()), _worst_ratio(gain, start, past, coming, can)
    low, tried, best, none = least, high, Solved(start, "solved"), np.zeros(len(pool))
    for _ in range(_TRIES):
        need = np.where(can, coming / np.where(can, tried - past, 1.0), 0.0)
        found = raise_level(pool, gain, floor=none, rise=need, limit_s=limit_s)
        if found is None:
            return Solved(start, "proportional")
        reached = _worst_ratio(gain, found.found.worth, past, coming, can)
        if reached < high:
            high, best = reached, found.solved
        bought = found.price * need > _TIGHT * found.level
        low = max(low, _root(found.price[bought], coming[bought], past[bought], found.level))
        if high - low <= _CLOSE * (high - least):
            break
        last, tried = tried, low if low > least else (least + high) / 2
        if tried == last:
            break  # the solver's rounding hides what is left
    need = np.where(can, coming / np.where(can, high - past, 1.0), 0.0)
    value = gain / np.where(can, need, 1.0)[:, None]
    rest = max_sum(pool, value, gain=gain, floor=need * (1 - 1e-9), limit_s=limit_s)
    return best if rest is None or rest.how != "solved" else rest


def least_ratio(
    pool: Pool, gain: F64, *, past: F64, coming: F64, limit_s: float = LIMIT_S
) -> Solved:
    """`min_max_ratio` as one conic program, with an interior answer.

    Args:
        gain: ``(k, t)``, above 0 somewhere for each job.
        past: ``(k,)`` what is lost already, finite.
        coming: ``(k,)`` what is to come, finite, above 0.
    """
    program = Program(pool, extra=len(pool) + 1, interior=True)
    program.at_most(gain, past, coming)
    cost = np.zeros(program.width)
    cost[-1] = 1.0
    found = program.solve(cost, limit_s)
    if found is None or found.status != SOLVED:
        return Solved(proportional(pool), "proportional")
    return _solved(program.shares(found.variables))


def _solved(found: Shares) -> Solved:
    return Solved(found.time, "solved", found.paired)


def by_classes(
    pool: Pool,
    columns: tuple[F64, ...],
    solve: Callable[[Pool, tuple[F64, ...]], Solved],
    *,
    split_above: int = SPLIT_ABOVE,
) -> Solved:
    """The shares that *solve* finds, of classes of jobs that are alike, and in parts if need be.

    Args:
        columns: ``(k,)`` or ``(k, c)`` each; jobs that are equal in all of them, in GPUs and in
            where they may run are alike. They come to *solve* a row for each class.
        solve: Finds the shares of the pool it is given, by the columns that come with it.
        split_above: Most classes for one program, at least 1.
    """
    if not len(pool):
        return Solved(np.zeros(pool.may.shape), "solved")
    parts = -(-len(_classes(pool, columns)[0]) // split_above)
    if parts == 1:
        return _whole(pool, columns, solve)
    share: F64 = np.zeros(pool.may.shape)
    how: How = "parts"
    part = _mixed(pool.job_id) % np.uint64(parts)
    paired = []
    for number in range(parts):
        rows = (part == number).nonzero()[0]
        some = dataclasses.replace(_at(pool, rows), capacity=pool.capacity / parts)
        if how == "proportional":
            # The parts are of one size: the others would not be solved in time either.
            share[rows] = proportional(some)
            continue
        found = _whole(some, tuple(c[rows] for c in columns), solve)
        share[rows] = found.share
        paired.append(found.paired.at(rows))
        how = "proportional" if found.how == "proportional" else how
    return Solved(share, how, joined(paired))


def _whole(
    pool: Pool, columns: tuple[F64, ...], solve: Callable[[Pool, tuple[F64, ...]], Solved]
) -> Solved:
    first, of = _classes(pool, columns)
    if not len(first):
        return Solved(np.zeros(pool.may.shape), "solved")
    count: F64 = np.bincount(of, weights=pool.count, minlength=len(first)).astype(np.float64)
    found = solve(
        dataclasses.replace(_at(pool, first), count=count), tuple(c[first] for c in columns)
    )
    return Solved(found.share[of], found.how, found.paired.among(of))


def _classes(pool: Pool, columns: tuple[F64, ...]) -> tuple[I64, I64]:
    """The first row of each class, classes sorted by what they say; and the class of each row."""
    kind = () if pool.pairs is None else (pool.pairs.kind,)
    said = np.column_stack([pool.gpus, pool.may, *kind, *columns])
    _, first, of = np.unique(said, axis=0, return_index=True, return_inverse=True)
    return first, of.reshape(-1)


def _at(pool: Pool, rows: I64) -> Pool:
    return dataclasses.replace(
        pool,
        job_id=pool.job_id[rows],
        gpus=pool.gpus[rows],
        may=pool.may[rows],
        count=pool.count[rows],
        pairs=None if pool.pairs is None else pool.pairs.at(rows),
    )


def _mixed(job_id: I64) -> npt.NDArray[np.uint64]:
    """Numbers that look drawn at random, the same for a job each time (finaliser of SplitMix64)."""
    mixed = job_id.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def _one_type(pool: Pool, gain: F64) -> F64:
    """``(k,)`` all levels at once: every job is filled to one level, or to its whole time.

    ``X[m] = min(1, c / gain[m])`` with the c at which the GPUs are used up.
    """
    rows = (gain > 0).nonzero()[0]
    share = np.zeros(len(pool))
    gain, gpus = gain[rows], (pool.count * pool.gpus)[rows]
    by = gain.argsort(kind="stable")
    # Up to each gain, who is below it runs all the time; the others pay gpus / gain for a level.
    full = np.concatenate([[0.0], gpus[by].cumsum()[:-1]])
    slope = (gpus / gain)[by][::-1].cumsum()[::-1]
    used = full + slope * gain[by]
    at = int(used.searchsorted(pool.capacity[0], side="left"))
    level = math.inf if at == len(rows) else (pool.capacity[0] - full[at]) / slope[at]
    share[rows] = np.minimum(1.0, level / gain)
    return share


def _worst_ratio(gain: F64, share: F64, past: F64, coming: F64, can: Bool) -> float:
    rate = (gain * share).sum(axis=1)[can]
    if rate.min() <= 0:
        return math.inf
    return float((past[can] + coming[can] / rate).max())


def _root(price: F64, coming: F64, past: F64, most: float) -> float:
    """The r above all *past* at which ``sum price x coming / (r - past)`` is *most*.

    Newton's method from the left, where that sum is convex and falls.
    """
    if not len(price):
        return -math.inf
    # One term alone would be as large there, so the sum is too large still.
    at = float((past + price * coming / most).max())
    for _ in range(100):
        if at <= past.max():
            break
        term = price * coming / (at - past)
        step = (float(term.sum()) - most) / float((term / (at - past)).sum())
        at += step
        if step <= 1e-14 * abs(at):
            break
    return at
