"""Gavel's objectives that are linear programs: fairness, makespan, finish times, sums and costs.

Each policy says of every job for which share of the time it had best run on each GPU type, given
how fast it is on each. With thr(m, X) = sum_j T[m, j] X[m, j] for the throughput of job m:

    max-min          max min_m  gpus_m thr(m, X) / (w_m thr(m, X_proportional))
    agnostic         the same with every T[m, j] = 1 where job m may run
    makespan         min max_m  left_m / thr(m, X)
    finish time      min max_m  (t_m + left_m / thr(m, X)) thr(m, X_isolated) / (done_m + left_m)
    sum              max sum_m  thr(m, X)
    cost             max sum_m,j  T[m, j] / cost_j X[m, j]
    cost, with SLOs  the same with thr(m, X) >= left_m / (due_m - now) for jobs that are due

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning
Workloads", OSDI 2020, section 4.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from slurm_dl.model.jobs import F64
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic import linear_programs
from slurm_dl.policies.gavel.pool import ByName, Choosing, Entrants, about_gavel, left_of, weight_of

SOURCE = "Gavel, OSDI 2020"
READING = (
    "Unknown throughputs are not completed from reference jobs: they are those of the snapshot. "
    "Jobs share GPUs only in dlsim, and only where the policy packs; an order on Slurm goes by the "
    "whole share of each job. A job runs on one type at a time, so one that fits on none of them "
    "alone has no share. Waiting jobs beyond the window have no share until others end."
)
FALLBACK = (
    "Every type counts as equally fast. If a program takes longer than limit_s, the proportional "
    "share is used."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelMaxMin(Choosing):
    """Maximise the least normalised throughput: LAS for GPUs of several types.

    Attributes:
        weights: Weight of an account's jobs by the account's name; 1 for accounts that are not
            named.
    """

    name = "gavel_max_min"
    source = f"{SOURCE}, section 4.1 (max-min fairness)"
    interpretation = (
        f"{READING} Capacity that the least level leaves is raised level by level, then goes to "
        "the sum."
    )
    about = about_gavel(
        formula="max min over jobs of GPUs x thr(X) / (weight x thr(X proportional))",
        needs=("rates",),
        fallback=FALLBACK,
    )

    weights: ByName = ()

    def shares(self, snap: Snapshot, who: Entrants, /) -> linear_programs.Solved:
        """See `Sharing`."""
        gain = normalised(who) / weight_of(snap, who.rows, self.weights)[:, None]
        return self._max_min(who, gain)

    def _max_min(self, who: Entrants, gain: F64) -> linear_programs.Solved:
        if self.interior:
            return self.centre(who.pool, gain)
        return self.solve(who, linear_programs.max_min, gain)


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelMaxMinAgnostic(GavelMaxMin):
    """Max-min fairness that treats all GPU types as equally fast."""

    name = "gavel_max_min_agnostic"
    source = f"{SOURCE}, section 7 (the baseline without throughputs)"
    about = about_gavel(
        formula="max min over jobs of GPUs x (time on any type) / weight",
        fallback="if a program takes longer than limit_s, the proportional share is used",
    )

    def shares(self, snap: Snapshot, who: Entrants, /) -> linear_programs.Solved:
        """See `Sharing`."""
        gpus = who.pool.gpus / weight_of(snap, who.rows, self.weights)
        if self.interior:
            # Gavel takes every speed as 1, also where a job cannot run.
            pool = dataclasses.replace(who.pool, may=np.ones_like(who.pool.may))
            return self.centre(pool, np.broadcast_to(gpus[:, None], pool.may.shape))
        return self._max_min(who, np.where(who.pool.may, gpus[:, None], 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelMakespan(Choosing):
    """Minimise the time at which the last of the present jobs is done."""

    name = "gavel_makespan"
    source = f"{SOURCE}, section 4.2 (minimum makespan)"
    interpretation = (
        f"{READING} One program replaces a bisection: thr >= left / T for the least T is the "
        "largest least thr / left."
    )
    about = about_gavel(
        formula="the least T with thr(X) >= left / T for every job",
        needs=("left_s", "rates"),
        fallback=f"A job of unknown length is as long as the longest known one. {FALLBACK}",
    )

    def shares(self, snap: Snapshot, who: Entrants, /) -> linear_programs.Solved:
        """See `Sharing`."""
        left = left_of(snap, who.rows)
        known = np.isfinite(left)
        left = np.where(known, left, left[known].max(initial=1.0))
        if self.interior:
            return self._in_time(who, left)
        return self.solve(who, linear_programs.max_min, who.rates / left[:, None])

    def _in_time(self, who: Entrants, left: F64) -> linear_programs.Solved:
        """Shares with which all are done in time T, up to 5 % above the least.

        Gavel's code (c4fa400, policies/min_total_duration.py) halves the range of T, 100 s to
        1e6 s, until its ends are within 5 % of each other.
        """
        gain = who.rates / left[:, None]
        best = self.highest(who.pool, gain)
        if best is None:
            return self.centre(who.pool, gain)
        least, low, high = 1 / (gain * best.found.worth).sum(axis=1).min(), 100.0, 1e6
        while high < least:
            low, high = high, 10 * high
        while 1.05 * low < high:
            tried = (low + high) / 2
            low, high = (low, tried) if tried >= least else (tried, high)
        found = linear_programs.max_sum(
            who.pool, np.zeros_like(gain), gain=who.rates, floor=left / max(high, least),
            limit_s=self.limit_s, interior=True,
        )  # fmt: skip
        return found or best.solved


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelFinishTime(Choosing):
    """Minimise the largest ratio of finish time to finish time on a fair part of the cluster."""

    name = "gavel_finish_time"
    source = f"{SOURCE}, section 4.2 (finish-time fairness of Themis, NSDI 2020)"
    interpretation = (
        f"{READING} A job alone has the n-th part of every type for the n present jobs, also for "
        "the work it has done; the paper adds up the parts of each moment."
    )
    about = about_gavel(
        formula="min max of (age + left / thr(X)) / ((done + left) / thr(X isolated))",
        needs=("left_s", "progress", "rates"),
        fallback=(
            "Work done is the time run at the mean speed of the types. For a job of unknown "
            f"length the ratio in the long run counts, thr(X isolated) / thr(X). {FALLBACK}"
        ),
        trusts=("progress",),
    )

    def shares(self, snap: Snapshot, who: Entrants, /) -> linear_programs.Solved:
        """See `Sharing`."""
        past, coming = finish_time_terms(snap, who)
        if self.interior:
            return linear_programs.least_ratio(
                who.pool, who.rates, past=past, coming=coming, limit_s=self.limit_s
            )
        return self.solve(who, linear_programs.min_max_ratio, who.rates, past, coming)


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelSum(Choosing):
    """Maximise the sum of throughputs."""

    name = "gavel_sum"
    source = f"{SOURCE}, section 4.2 (maximum sum of throughputs)"
    interpretation = (
        f"{READING} A job's throughput counts in units of its own speed on a type of rate 1."
    )
    about = about_gavel(
        formula="max sum over jobs of thr(X)",
        needs=("rates",),
        fallback=FALLBACK,
        starves="jobs of many GPUs or of small gain, while others come",
    )

    def shares(self, snap: Snapshot, who: Entrants, /) -> linear_programs.Solved:
        """See `Sharing`."""
        value, floor = self._value(snap, who), self._floor(snap, who)
        if self.interior and not floor.any():
            found = linear_programs.max_sum(who.pool, value, limit_s=self.limit_s, interior=True)
            assert found is not None  # noqa: S101 - no floors, so there are such shares
            return found
        return self.solve(who, _floored, value, who.rates, floor)

    def _value(self, snap: Snapshot, who: Entrants) -> F64:  # noqa: ARG002
        """``(k, t)`` what the sum counts."""
        return who.rates

    def _floor(self, snap: Snapshot, who: Entrants) -> F64:  # noqa: ARG002
        """``(k,)`` the least throughput of each job."""
        return np.zeros(len(who.rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelCost(GavelSum):
    """Maximise the sum of throughput per cost.

    Attributes:
        costs: Cost of a GPU by the name of its type, in any unit; 1 for types that are not named.
    """

    name = "gavel_cost"
    source = f"{SOURCE}, section 4.2 (cost)"
    interpretation = (
        f"{GavelSum.interpretation} The sum of throughput by cost is that of the paper's public "
        "code; the text divides the sum of throughputs by the sum of costs."
    )
    about = dataclasses.replace(
        GavelSum.about, formula="max sum over jobs and types of rate / cost x X"
    )

    costs: ByName = ()

    def _value(self, snap: Snapshot, who: Entrants) -> F64:
        known = dict(self.costs)
        costs = [known.get(name, 1.0) for name in snap.seen.gpu_types] or [1.0]
        value: F64 = who.rates / np.array(costs)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelCostSlo(GavelCost):
    """Maximise the sum of throughput per cost, subject to the deadlines of jobs."""

    name = "gavel_cost_slo"
    source = f"{SOURCE}, section 4.2 (cost subject to SLOs)"
    interpretation = (
        f"{GavelCost.interpretation} A job that cannot meet its deadline even alone has no "
        "deadline constraint. If the other jobs cannot all meet their deadlines, no job has one."
    )
    about = about_gavel(
        formula="max sum of rate / cost x X, thr(X) >= left / (due - now) for jobs that are due",
        needs=("rates", "left_s", "due_s"),
        fallback=(
            "A job of unknown length, without a deadline or past it has no deadline constraint. "
            f"{FALLBACK}"
        ),
        starves="jobs of many GPUs or of small gain that have no deadline, while others come",
        trusts=("its deadline",),
    )

    def _floor(self, snap: Snapshot, who: Entrants) -> F64:
        return due_floor(snap, who)


def normalised(who: Entrants) -> F64:
    """``(k, t)`` GPUs x rate over the throughput under the proportional split."""
    return who.rates * (who.pool.gpus / who.normal)[:, None]


def finish_time_terms(snap: Snapshot, who: Entrants) -> tuple[F64, F64]:
    """``(k,)`` a and b of each job's finish-time ratio ``a + b / thr(X)``.

    ``a = age / D`` and ``b = left / D`` with ``D = (done + left) / thr(X isolated)``; as *left*
    grows without end they go to 0 and thr(X isolated).
    """
    left = left_of(snap, who.rows)
    alone = (who.rates * isolated(who)).sum(axis=1)
    # The window's jobs are those that would have to share; each of them can run somewhere.
    known = np.isfinite(left)
    finite = np.where(known, left, 1.0)
    whole = (done_of(snap, who, finite) + finite) / alone
    age = np.maximum(snap.now_s - snap.memory.first_submit_s[who.rows], 0.0)
    return np.where(known, age / whole, 0.0), np.where(known, finite / whole, alone)


def done_of(snap: Snapshot, who: Entrants, left: F64) -> F64:
    """``(k,)`` work done so far, in seconds at rate 1."""
    held = np.where(who.pool.may, who.pool.capacity, 0.0)
    speed = (who.rates * held).sum(axis=1) / held.sum(axis=1)
    ran: F64 = snap.memory.ran_s[who.rows] * speed
    if snap.progress is None:
        return ran
    told = snap.progress[who.rows]
    told = np.where((told >= 0) & (told < 1), told, np.nan)
    return np.where(np.isnan(told), ran, left * told / (1 - told))


def isolated(who: Entrants) -> F64:
    """``(k, t)`` an equal part of the GPUs of every type for each job, at most its whole time.

    The part on types where a job cannot run is lost to it.
    """
    pool = who.pool
    share = pool.capacity / (len(pool) * pool.gpus)[:, None]
    whole: F64 = share / np.maximum(1.0, share.sum(axis=1))[:, None]
    return np.where(pool.may, whole, 0.0)


def due_floor(snap: Snapshot, who: Entrants) -> F64:
    """``(k,)`` throughput with which each job is done when it is due; 0 if it is not, or cannot."""
    if snap.due_s is None:
        return np.zeros(len(who.rows))
    left, ahead = left_of(snap, who.rows), snap.due_s[who.rows] - snap.now_s
    known = np.isfinite(left) & np.isfinite(ahead) & (ahead > 0)
    floor: F64 = np.where(known, left, 0.0) / np.where(known, ahead, 1.0)
    return np.where(floor <= who.rates.max(axis=1), floor, 0.0)


def _floored(
    pool: linear_programs.Pool, value: F64, gain: F64, floor: F64, *, limit_s: float
) -> linear_programs.Solved:
    """The largest sum with the floors, or without any if they cannot be reached together."""
    found = linear_programs.max_sum(pool, value, gain=gain, floor=floor, limit_s=limit_s)
    if found is None:
        found = linear_programs.max_sum(pool, value, limit_s=limit_s)
    return found or linear_programs.Solved(linear_programs.proportional(pool), "proportional")
