"""Themis: apps bid for GPUs with how late they would be, and pay so that lies do not help.

When leases end all GPUs are on offer. Every app is judged by its finish-time fairness

    rho = T_shared / T_ideal,    T_shared = elapsed + work left / speed,

with T_ideal the time alone on 1/N of the cluster (see `finish_fairness`). Only the apps with the
largest rho, a fraction 1 - f of all, may bid; the rest get what is left. Who wins what is found by
a partial allocation auction with hidden payments (see `partial_allocation`).

`Themis` is that auction. `ThemisConvex` asks for the same end directly: shares of the time that
make the largest rho as small as can be.

Source: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020; the convex
form is that of Narayanan et al. (Gavel), OSDI 2020, section 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from slurm_dl.model.jobs import F64, I16, I64, PENDING
from slurm_dl.model.parameter_bounds import Bound
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic import linear_programs
from slurm_dl.policies.arithmetic.finish_fairness import Apps, apps
from slurm_dl.policies.arithmetic.supply_and_demand import type_held
from slurm_dl.policies.base import About
from slurm_dl.policies.gavel.objectives import done_of
from slurm_dl.policies.gavel.pool import Entrants, Sharing, Solving, left_of
from slurm_dl.policies.themis.partial_allocation import Bid, Won, auction

SOURCE = "Themis, NSDI 2020"
_SLACK_GPUS = 1e-9  # Ten tenths of a GPU are one, whatever the rounding of their sum

_FALLBACK = (
    "left_s is the time limit less the time run. A job without a limit is assumed to run as long "
    "again as it has run, a lease at least. Without progress the time run is work done. Without "
    "rates every type counts as equally fast. Without finished jobs N counts live apps alone."
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ThemisState:
    """How the apps stand that have jobs among the entrants.

    Attributes:
        of: ``(k,)`` the app of each entrant, an index into the columns below.
        elapsed_s: ``(a,)`` since each app came.
        left_gpu_s: ``(a,)`` work left, GPU-seconds at rate 1, above 0.
        ideal_s: ``(a,)`` T_ideal, above 0.
        rho: ``(a,)`` if it had all its jobs run from now on.
        speed: ``(k,)`` work that an entrant does in a second on its fastest type.
    """

    of: I64
    elapsed_s: F64
    left_gpu_s: F64
    ideal_s: F64
    rho: F64
    speed: F64


@dataclass(frozen=True, slots=True, kw_only=True)
class Themis(Sharing):
    """Auction of GPUs by finish-time fairness, with hidden payments.

    Attributes:
        window: Most waiting jobs that take part; running jobs always do.
        fairness: f, the fraction of the apps, those with the smallest rho, that may not bid; 0 or
            more, below 1. One app may always bid.
    """

    name = "themis"
    source = f"{SOURCE} (finish-time fairness, partial allocation auction)"
    about = About(
        row="A5",
        level="W3",
        formula=(
            "rho = (elapsed + left / speed) / (time alone on 1/N); of the 1-f largest rho, GPUs by "
            "argmax prod 1/rho; a winner keeps prod others' V / prod others' V without it"
        ),
        needs=("left_s", "progress", "rates", "history"),
        fallback=_FALLBACK,
        starves=(
            "a job with a poor bid for its GPUs, while apps as late as its own keep coming faster "
            "than they end"
        ),
        trusts=("progress", "its array: tasks are judged together"),
    )
    interpretation = (
        "The arbiter computes each app's bid, since an app values nothing but its finish. A job "
        "is a gang of fixed size, so an app wins whole jobs, running jobs first, then the first "
        "eligible. Times count from submission, as in the paper. "
        "Its speed grows with their GPUs (S = 1: placement is not priced). The product is the "
        "best by gain per GPU, exact but for gangs that do not fit. An app without GPUs counts as "
        "waiting for a lease, not as late without end. Otherwise nothing would be left to a "
        "winner that keeps another out. All GPUs are on offer, since leases end together. A "
        "winner keeps its whole gang for the fraction c of the time: its share is c, and engine "
        "credits divide the time into turns. Payments go to the other jobs by rho, the largest "
        "first, not at random. GPUs of all types are sold as one kind. The bidders are selected "
        "by rho with all jobs running, which is finite. Finished tasks of an array count for "
        "contention, not as work done."
    )

    fairness: Annotated[float, Bound("0 or more and below 1", lambda part: 0 <= part < 1)] = 0.8

    def shares(self, snap: Snapshot, who: Entrants, /) -> linear_programs.Solved:
        """See `Sharing`."""
        now = standing(snap, who, apps(snap), self.lease_s)
        by_rho = np.lexsort((np.arange(len(now.rho)), -now.rho))
        may_bid = by_rho[: max(1, math.ceil((1 - self.fairness) * len(by_rho) - 1e-9))]
        queues = _queues(snap, who, now)
        bids = [self._bid(now, app, who.pool.gpus, queues[app]) for app in may_bid.tolist()]
        won = auction(bids, float(who.pool.capacity.sum()))
        wanted = _wanted(won, may_bid, by_rho, queues)
        share = handed_out(wanted, who, type_held(snap.seen, snap.on_type)[who.rows])
        return linear_programs.Solved(share, "solved")

    def _bid(self, now: ThemisState, app: int, gpus: F64, queue: I64) -> Bid:
        """V = 1 / rho with no job of the app, with the first of its *queue*, with two and so on."""
        left_s = now.left_gpu_s[app] / np.cumsum(now.speed[queue])
        total_s = now.elapsed_s[app] + np.append(left_s[0] + self.lease_s, left_s)
        return Bid(gpus[queue], now.ideal_s[app] / total_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThemisConvex(Solving):
    """Shares of the time that minimise the largest rho.

    Attributes:
        window: Most waiting jobs that take part; running jobs always do.
    """

    name = "themis_convex"
    source = f"{SOURCE}, in the form of Gavel, OSDI 2020, section 4.2"
    about = About(
        row="A5",
        level="W3",
        formula="min over X of max (elapsed + left / thr(X)) / (time alone on 1/N)",
        needs=("left_s", "progress", "rates", "history"),
        fallback=(
            f"{_FALLBACK} If a program takes longer than limit_s, the proportional share is used."
        ),
        trusts=("progress",),
    )
    interpretation = (
        "rho is each job's own. N is its app's: the mean number of apps since it came; Gavel's "
        "policy counts the present jobs. With one GPU type the largest rho that can still be "
        "reduced is minimised too, and so on down, without a solver. With several types the rest "
        "goes where it helps most."
    )

    def shares(self, snap: Snapshot, who: Entrants, /) -> linear_programs.Solved:
        """See `Sharing`."""
        among = apps(snap)
        n = among.contention[among.of[who.rows]]
        done, left = _work(snap, who, self.lease_s)
        ideal_s = (done + left) / _alone(who, who.pool.gpus, n)
        elapsed_s = np.maximum(snap.now_s - snap.memory.first_submit_s[who.rows], 0.0)
        past, coming = elapsed_s / ideal_s, left / ideal_s
        if who.rates.shape[1] == 1:
            return linear_programs.Solved(
                least_worst(past, coming / who.rates[:, 0], who.pool), "solved"
            )
        return self.solve(who, linear_programs.min_max_ratio, who.rates, past, coming)


def standing(snap: Snapshot, who: Entrants, among: Apps, lease_s: float) -> ThemisState:
    """How late the apps are that have jobs among the entrants, of which there is at least one."""
    there, of = np.unique(among.of[who.rows], return_inverse=True)
    of, a = of.reshape(-1), len(there)
    gpus = who.pool.gpus

    def sum_by_app(values: F64) -> F64:
        return np.bincount(of, weights=values, minlength=a).astype(np.float64)

    done, left = _work(snap, who, lease_s)
    # A record of an array's pending tasks stands for all of them.
    wants = gpus * snap.jobs.tasks[who.rows]
    left_gpu_s = sum_by_app(left * wants)
    work_gpu_s = left_gpu_s + sum_by_app(done * gpus)
    demand = sum_by_app(wants)
    # Of apps whose jobs differ in speed the GPUs that each wants weigh.
    alone = _alone(who, demand[of], among.contention[there][of]) * demand[of]
    speed = gpus * who.rates.max(axis=1)
    full = sum_by_app(speed * snap.jobs.tasks[who.rows])
    full = full * np.minimum(1.0, float(who.pool.capacity.sum()) / demand)
    ideal_s = work_gpu_s / (sum_by_app(alone * wants) / demand)
    elapsed_s = np.maximum(snap.now_s - among.came_s[there], 0.0)
    return ThemisState(
        of=of,
        elapsed_s=elapsed_s,
        left_gpu_s=left_gpu_s,
        ideal_s=ideal_s,
        rho=(elapsed_s + left_gpu_s / full) / ideal_s,
        speed=speed,
    )


def least_worst(past: F64, coming: F64, pool: linear_programs.Pool) -> F64:
    """``(k, 1)`` the shares of one GPU type that make the largest ``past + coming / X`` smallest.

    Of the jobs that could still have more, the largest too. All of those come to one ratio r,

        X = min(1, coming / (r - past)),

    which falls as r grows; r is where it uses up the GPUs.

    Args:
        past: ``(k,)`` 0 or more.
        coming: ``(k,)`` above 0.
    """
    room = float(pool.capacity[0])

    def at(ratio: float) -> F64:
        wait = ratio - past
        return np.where(wait > coming, coming / np.where(wait > coming, wait, 1.0), 1.0)

    low = float((past + coming).min())
    gpus = float(pool.gpus.sum())
    if gpus <= room:
        return np.ones((len(past), 1))
    # There nobody needs more than its even part.
    high = float((past + coming * gpus / room).max())
    while low < (middle := (low + high) / 2) < high:
        if float((pool.gpus * at(middle)).sum()) > room:
            low = middle
        else:
            high = middle
    return at(high)[:, None]


def handed_out(wanted: Sequence[tuple[int, float]], who: Entrants, held: I16) -> F64:
    """``(k, t)`` shares of entrants, each on the fastest type with time left for it.

    Args:
        wanted: Entrants and the share of the time that each should get, in the order of service.
        held: ``(k,)`` type that each runs on, -1 for those that wait; it wins against types as
            fast.
    """
    share: F64 = np.zeros(who.rates.shape)
    room = who.pool.capacity.tolist()
    kinds = range(len(room))
    for job, part in wanted:
        gpus, rates, here = float(who.pool.gpus[job]), who.rates[job].tolist(), int(held[job])
        open_to = [kind for kind in kinds if rates[kind] > 0 and room[kind] > _SLACK_GPUS]
        if not open_to:
            continue
        cost = gpus * part

        def goodness(kind: int) -> tuple[bool, float, bool, float]:
            enough = room[kind] >= cost - _SLACK_GPUS  # noqa: B023 - used in this turn alone
            return (enough, rates[kind], kind == here, room[kind])  # noqa: B023

        kind = max(open_to, key=goodness)
        share[job, kind] = min(part, room[kind] / gpus)
        room[kind] = max(room[kind] - cost, 0.0)
        if sum(room) <= _SLACK_GPUS:
            break
    return share


def _queues(snap: Snapshot, who: Entrants, now: ThemisState) -> list[I64]:
    """By app, its entrants: those that run first, then the oldest."""
    rows = who.rows
    waits = snap.jobs.state[rows] == PENDING
    keys = (snap.jobs.job_id[rows], snap.memory.queued_s[rows], waits, now.of)
    ordered: I64 = np.lexsort(keys)
    return np.split(ordered, np.flatnonzero(np.diff(now.of[ordered])) + 1)


def _wanted(won: Won, may_bid: I64, by_rho: I64, queues: Sequence[I64]) -> list[tuple[int, float]]:
    """Winners with what they keep, then all others as far as it goes; the largest rho first."""
    steps = dict(zip(may_bid.tolist(), won.steps.tolist(), strict=True))
    kept = dict(zip(may_bid.tolist(), won.kept.tolist(), strict=True))
    winners: list[tuple[int, float]] = []
    others: list[tuple[int, float]] = []
    for app in by_rho.tolist():
        queue, first = queues[app].tolist(), steps.get(app, 0)
        if kept.get(app, 1.0) > 0:
            winners += [(job, kept[app]) for job in queue[:first]]
        others += [(job, 1.0) for job in queue[first:]]
    return winners + others


def _work(snap: Snapshot, who: Entrants, lease_s: float) -> tuple[F64, F64]:
    """``(k,)`` seconds at rate 1 done, and left: as many as done where nothing is known."""
    done = done_of(snap, who, np.ones(len(who.rows)))
    left = left_of(snap, who.rows)
    left = np.where(np.isfinite(left), left, np.maximum(done, lease_s))
    return (done if snap.progress is None else done_of(snap, who, left)), left


def _alone(who: Entrants, demand: F64, n: F64) -> F64:
    """``(k,)`` speed, in units of all its GPUs at rate 1, of each job alone on 1/N of every type.

    Args:
        demand: ``(k,)`` GPUs that can be used at most.
        n: ``(k,)`` N.
    """
    capacity = np.where(who.rates > 0, who.pool.capacity, 0.0)
    part = capacity.sum(axis=1) / n
    mean = (who.rates * capacity).sum(axis=1) / capacity.sum(axis=1)
    found: F64 = mean * np.minimum(1.0, part / demand)
    return found
