"""Gavel's fairness that nobody gains from by naming false throughputs.

First the shares with the largest product of throughputs (proportional fairness). Then each job is
paid only a part of its own share: the product, over all other jobs, of what each has with this job
there over what it would have without it. A job that hurts the others loses as much itself, which is
what takes the gain out of a lie. What is held back stays free.

    X = argmax sum_m w_m log thr(m, X),    f_m = prod_(i != m) thr(i, X) / thr(i, X without m)

With one GPU type every job's share is in proportion to its weight over its GPUs, up to all of the
time. With several the product of throughputs is smooth, so it is found by Newton steps along a
barrier that keeps shares inside their bounds; jobs meet only in the GPUs of each type, which makes
a step cheap.

Source: Cole, Gkatzelis and Goel, "Mechanism Design for Fair Division: Allocating Divisible Items
without Payments", EC 2013, section 3 (partial allocation), as used by Narayanan et al.,
"Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020 (code).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from slurm_dl.model.jobs import F64, Bool
from slurm_dl.model.parameter_bounds import Count
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic import linear_programs
from slurm_dl.policies.gavel.objectives import READING, SOURCE
from slurm_dl.policies.gavel.pool import ByName, Entrants, Sharing, about_gavel, weight_of

_BARRIER_END = 0.9e-10
"""Weight of the barrier at which the answer is near enough; the loss is that times its terms."""

_STEPS = 200  # Newton steps for one barrier at most; about five are taken
_CENTRED = 1e-3  # A step that gains less, in barriers, is not worth it
_SHORTEST = 1e-12  # Part of a step below which rounding decides what it gains


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelStrategyProof(Sharing):
    """Proportional fairness; each job's share is cut by its cost to the others.

    Attributes:
        weights: Weight of an account's jobs by the account's name; 1 for accounts that are not
            named.
        discounts_up_to: Most classes of equal jobs for which shares are cut; each takes a program
            of its own.
    """

    name = "gavel_strategy_proof"
    source = f"{SOURCE}, public code; Cole, Gkatzelis and Goel, EC 2013, section 3"
    interpretation = (
        f"{READING} The mechanism is that of the second source; its proof needs the product of "
        "throughputs, not their minimum. The part that is held back is in no job's share. An "
        "engine that leaves no GPU idle may still give it away, and a lie may then pay."
    )
    about = about_gavel(
        formula="X = argmax sum w log thr(X), times prod over others of thr(X) / thr(X without me)",
        needs=("rates",),
        fallback=(
            "Every type counts as equally fast. Above discounts_up_to classes shares are not cut, "
            "and naming false throughputs may pay."
        ),
        idles="the part of each job's share that is held back",
    )

    weights: ByName = ()
    discounts_up_to: Count = 32

    def shares(self, snap: Snapshot, who: Entrants, /) -> linear_programs.Solved:
        """See `Sharing`."""
        weight = weight_of(snap, who.rows, self.weights)
        return linear_programs.by_classes(who.pool, (who.rates, weight), self._cut)

    def _cut(self, pool: linear_programs.Pool, columns: tuple[F64, ...]) -> linear_programs.Solved:
        rates, weight = columns
        share = proportionally_fair(pool, rates, weight)
        if len(pool) <= self.discounts_up_to:
            share = share * discounts(pool, rates, weight, share)[:, None]
        return linear_programs.Solved(share, "solved")


def discounts(pool: linear_programs.Pool, rates: F64, weight: F64, share: F64) -> F64:
    """``(k,)`` the part of its share that each job keeps, above 0, at most 1.

    Args:
        share: ``(k, t)`` proportionally fair.
    """
    have = np.log((rates * share).sum(axis=1))
    kept: F64 = np.ones(len(pool))
    for one in range(len(pool)):
        others = dataclasses.replace(pool, count=pool.count - (np.arange(len(pool)) == one))
        there = others.count > 0
        if not there.any():
            continue
        some = dataclasses.replace(
            others,
            job_id=pool.job_id[there],
            gpus=pool.gpus[there],
            may=pool.may[there],
            count=others.count[there],
        )
        without = proportionally_fair(some, rates[there], weight[there])
        could = np.log((rates[there] * without).sum(axis=1))
        lost = float((some.count * weight[there] * (have[there] - could)).sum())
        kept[one] = np.exp(min(0.0, lost / weight[one]))
    return kept


def proportionally_fair(pool: linear_programs.Pool, rates: F64, weight: F64) -> F64:
    """``(k, t)`` the shares with the largest sum of ``count x weight x log(rates . X)``.

    Args:
        rates: ``(k, t)``, above 0 somewhere for each job where it may run.
        weight: ``(k,)``, above 0.
    """
    if rates.shape[1] == 1:
        return _of_one_type(pool, weight)
    problem = _Problem.of(pool, rates, weight)
    share, barrier = linear_programs.proportional(pool) * 0.5, 1.0
    while barrier >= _BARRIER_END:
        share = problem.centred(share, barrier)
        barrier *= 0.01
    return share


def _of_one_type(pool: linear_programs.Pool, weight: F64) -> F64:
    """``(k, 1)`` shares ``min(1, level x weight / gpus)`` with the highest level that fits."""
    per_gpu = weight / pool.gpus
    by = np.argsort(-per_gpu, kind="stable")
    room = float(pool.capacity[0])
    # GPUs of those that have all of the time, and weight of those that do not, as they are counted.
    full = np.concatenate([[0.0], np.cumsum((pool.count * pool.gpus)[by])])
    rest = np.concatenate([np.cumsum((pool.count * weight)[by][::-1])[::-1], [0.0]])
    for n in range(len(by)):
        level = (room - full[n]) / rest[n]
        if level * per_gpu[by[n]] <= 1:
            found: F64 = np.minimum(level * per_gpu, 1.0)
            return found[:, None]
    return np.ones((len(by), 1))


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """Raise ``sum heavy x log(rates . X)``.

    Attributes:
        rates: ``(k, t)``, the largest of each row 1.
        heavy: ``(k,)`` count x weight, the mean of them 1.
        used: ``(k, t)`` part of a type's GPUs that a job holds at share 1.
        may: ``(k, t)`` bool; elsewhere shares stay 0.
    """

    rates: F64
    heavy: F64
    used: F64
    may: Bool

    @classmethod
    def of(cls, pool: linear_programs.Pool, rates: F64, weight: F64) -> Self:
        """The problem with figures around 1, so that steps need not know of units."""
        rates = np.where(pool.may, rates, 0.0)
        heavy = pool.count * weight
        held = (pool.count * pool.gpus)[:, None] / np.where(pool.capacity > 0, pool.capacity, 1.0)
        return cls(
            rates=rates / rates.max(axis=1, keepdims=True),
            heavy=heavy / heavy.mean(),
            used=np.where(pool.may, held, 0.0),
            may=pool.may,
        )

    def centred(self, share: F64, barrier: float) -> F64:
        """The best shares with a barrier of that weight, from some inside the bounds.

        Newton's method with steps halved until they gain.
        """
        at = self._value(share, barrier)
        for _ in range(_STEPS):
            try:
                step, gain = self._step(share, barrier)
            except np.linalg.LinAlgError:
                # As near to a bound as rounding allows: types are alike for the only job.
                break
            if gain <= _CENTRED * barrier:
                break
            length = 1.0
            while length > _SHORTEST:
                there = share + length * step
                value = self._value(there, barrier)
                if value >= at + 0.1 * length * gain:
                    break
                length /= 2
            else:
                break
            share, at = there, value
        return share

    def _value(self, share: F64, barrier: float) -> float:
        """What a step is to raise; minus infinity outside the bounds."""
        time, room = 1 - share.sum(axis=1), 1 - (self.used * share).sum(axis=0)
        inside = share[self.may]
        if min(time.min(), room.min(), inside.min()) <= 0:
            return -math.inf
        logs = np.log(inside).sum() + np.log(time).sum() + np.log(room).sum()
        speed = (self.rates * share).sum(axis=1)
        return float((self.heavy * np.log(speed)).sum() + barrier * logs)

    def _step(self, share: F64, barrier: float) -> tuple[F64, float]:
        """Newton's step, and what it would gain if the slope held."""
        rates, may = self.rates, self.may
        speed = (rates * share).sum(axis=1)
        time, room = 1 - share.sum(axis=1), 1 - (self.used * share).sum(axis=0)
        own = np.where(may, 1.0 / np.where(may, share, 1.0), 0.0)
        slope = (self.heavy / speed)[:, None] * rates
        slope += barrier * (own - (1.0 / time)[:, None] - self.used / room)
        slope = np.where(may, slope, 0.0)
        # Second derivatives: a block for each job, and one column for each type that joins them.
        # A block is the product of these rows with themselves. Where types are alike for a job
        # rows differ so much in size that the product would be singular by rounding; a triangle
        # is found from the rows, the largest first, without it.
        parts = np.concatenate(
            [
                np.where(may, (math.sqrt(barrier) / time)[:, None], 0.0)[:, None, :],
                ((np.sqrt(self.heavy) / speed)[:, None] * rates)[:, None, :],
                np.where(may, math.sqrt(barrier) * own, 1.0)[:, :, None] * np.eye(may.shape[1]),
            ],
            axis=1,
        )
        upper = np.linalg.inv(np.linalg.qr(parts, mode="r"))
        inverse = upper @ upper.transpose(0, 2, 1)
        joins = self.used * math.sqrt(barrier) / room
        step = (inverse @ slope[:, :, None])[:, :, 0]
        moved = inverse * joins[:, None, :]
        small = np.eye(may.shape[1]) + np.einsum("ma,mab->ab", joins, moved)
        step -= moved @ np.linalg.solve(small, (joins * step).sum(axis=0))
        return step, float((slope * step).sum())
