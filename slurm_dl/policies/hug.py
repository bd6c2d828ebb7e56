"""HUG: the best guarantee for tenants whose demands for several resources go together.

A tenant's demand is a vector d over GPUs, CPUs and memory whose largest entry is 1: so much of the
others it needs for each unit of what it needs most. Its progress is the smallest of c[r] / d[r],
with c what it has. Stage 1 gives everybody the same progress, the highest that all can have:

    P* = 1 / max over r of (sum over u of d[u, r]),      c[u, r] = P* d[u, r].

Stage 2 hands out what is left. Among tenants that might lie about their demands nobody may get more
than P* of any resource, because that takes away what a lie would win; among those that cooperate
there is no such cap, and nothing is left idle.

Source: Chowdhury et al., "HUG: Multi-Resource Fairness for Correlated and Elastic Demands",
NSDI 2016.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.model.jobs import F64, I64, PENDING, Bool
from slurm_dl.model.parameter_bounds import Positive
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.dominant_shares import fluid_progress, parts, sum_by
from slurm_dl.policies.arithmetic.supply_and_demand import (
    contenders,
    gpus_by_type,
    rates_of,
    tenants,
)
from slurm_dl.policies.base import About, Order, PolicyDefaults, by_share

_NOTHING: Final = 1e-12  # Part of a cluster that is nothing
_ROUNDING: Final = 1e-9  # Sums of parts of a cluster, and of GPUs, are off by less


@dataclass(frozen=True, slots=True, kw_only=True)
class Hug(PolicyDefaults):
    """The highest equal progress for all tenants, then the rest of the resources.

    Attributes:
        cooperative: Whether tenants may have more than the guarantee while others do not want it.
            False: never, so that no tenant gains by claiming false demands; GPUs stay idle.
        lease_s: Length of a lease, seconds, above 0.
    """

    name = "hug"
    source = "HUG, NSDI 2016 (both stages)"
    about = About(
        row="A20",
        level="W3",
        formula="P* = 1 / max_r sum_u d[u,r]; tenant u gets P* d[u,r], then a part of the rest",
        needs=("accounts",),
        fallback="without accounts each user is a tenant; memory counts where Slurm tracks it",
        idles=(
            "only if cooperative is false: a tenant that has, or has had, its guarantee starts no "
            "more jobs"
        ),
    )
    interpretation = (
        "A tenant's demand is the sum of the resources that its jobs hold and ask for. It wants "
        "no more than that, so stage 2 first raises the progress of the tenants that want more. "
        "Its jobs get equal shares of the time, in whole gangs. GPUs of all types are one "
        "resource. A job's share is spread over the types it can run on by their remaining GPUs, "
        "so a guarantee in GPUs of one type alone can be smaller. The cap of tenants that do not "
        "cooperate holds for what its jobs hold, and over time by the credit of each job. It "
        "keeps jobs from starting, but stops no job while its GPUs are not wanted by another. A "
        "tenant of which nothing runs starts one job, whatever its size. A job that would take its "
        "tenant above the cap holds back the tenant's later ones. An array counts as one job."
    )

    cooperative: bool = True
    lease_s: Positive = 1200.0

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        supply, rates = gpus_by_type(snap), rates_of(snap)
        share = np.zeros_like(rates)
        able = (rates > 0) & (supply > 0) & (snap.jobs.gpus[:, None] <= supply)
        rows = (contenders(snap) & able.any(axis=1)).nonzero()[0]
        # Sums of floats depend on their order; that of the listing must not matter.
        rows = rows[np.argsort(snap.jobs.job_id[rows], kind="stable")]
        whose = tenants(snap)
        of, names = np.unique(whose.of[rows], return_inverse=True)
        want = sum_by(parts(snap)[rows], names.reshape(-1), len(of))
        has = hug(want, cooperative=self.cooperative)
        time = progress(has, want)[names.reshape(-1)]
        share[rows] = spread(time, snap.jobs.gpus[rows], able[rows], supply)
        order = by_share(share)
        if self.cooperative:
            return order
        owed_s = self._owed_s(snap, share)
        sure = guarantee(want)
        # A guarantee of everything is no bound.
        barred = (snap.jobs.state == PENDING) & (owed_s <= 0) & (sure < 1)
        first = np.lexsort([snap.jobs.job_id, snap.memory.queued_s, -owed_s])
        barred[_over(snap, first[np.isin(first, rows)], sure)] = True
        return dataclasses.replace(order, barred=barred)

    def _owed_s(self, snap: Snapshot, share: F64) -> F64:
        """``(n,)`` what each job is owed at the end of the coming lease, seconds."""
        owed = share * self.lease_s
        if snap.credit_s is not None:
            owed = owed + snap.credit_s
        most: F64 = owed.max(axis=1, initial=-np.inf)
        return most


def _over(snap: Snapshot, rows: I64, sure: float) -> I64:
    """The jobs that wait beside enough free GPUs, and would take a tenant above its guarantee.

    A tenant of which nothing runs may start one job of any size. A job for which there is no room
    takes turns with the others of its tenant, so it is none of these.

    Args:
        rows: Jobs that take part, of each tenant first the one that is to start first.
        sure: The guarantee, as a part of what there is.
    """
    waits, part, whose = snap.jobs.state == PENDING, parts(snap), tenants(snap).of
    free = float(gpus_by_type(snap).sum() - snap.jobs.gpus[rows][~waits[rows]].sum())
    over = [np.zeros(0, dtype=np.int64)]
    for tenant in np.unique(whose[rows]).tolist() if sure < 1 else []:
        mine = rows[whose[rows] == tenant]
        mine = mine[np.argsort(waits[mine], kind="stable")]
        above = (part[mine].cumsum(axis=0) > sure + _ROUNDING).any(axis=1)
        above[0] = False
        over.append(mine[above & waits[mine] & (snap.jobs.gpus[mine] <= free + _ROUNDING)])
    return np.concatenate(over)


def guarantee(want: F64) -> float:
    """P*, the progress that every tenant is sure of; 1 if nobody wants anything.

    Args:
        want: ``(k, r)`` what each tenant wants, as parts of what there is.
    """
    busiest = float(_demand(want).sum(axis=0).max(initial=0.0))
    return min(1.0, 1.0 / busiest) if busiest > 0 else 1.0


def hug(want: F64, *, cooperative: bool) -> F64:
    """``(k, r)`` what each tenant gets of each resource, as parts of what there is.

    Args:
        want: ``(k, r)`` what each tenant wants, as parts of what there is.
        cooperative: Whether a tenant may have more than P* of a resource.
    """
    sure, demand = guarantee(want), _demand(want)
    most = want.max(axis=1, initial=0.0)
    # In units of what a tenant needs most its progress is its part of that.
    gets = np.minimum(sure, most)
    if cooperative:
        # Dominant shares that rise together are at P* when the first resource is used up.
        gets = fluid_progress(want, np.ones(len(want))) * most
    has: F64 = gets[:, None] * demand
    # What is left of a resource goes to those that have least of it, as far as they want it.
    top = want if cooperative else np.minimum(want, sure)
    for r in range(want.shape[1]):
        has[:, r] = _level_up(has[:, r], top[:, r], 1.0 - float(has[:, r].sum()))
    return has


def progress(has: F64, want: F64) -> F64:
    """``(k,)`` the part of what it wants that a tenant gets done with what it has, 0 to 1."""
    part = np.divide(has, want, out=np.ones_like(has), where=want > 0)
    done: F64 = np.clip(part.min(axis=1, initial=1.0), 0.0, 1.0)
    return done


def spread(time: F64, gpus: F64, able: Bool, supply: F64) -> F64:
    """``(n, t)`` shares of time by type; jobs that can run on the fewest types choose first.

    Args:
        time: ``(n,)`` share of the time of each job, on whatever type.
        gpus: ``(n,)`` GPUs of each, above 0.
        able: ``(n, t)`` bool, where each can run.
        supply: ``(t,)`` GPUs there are.
    """
    share, free = np.zeros(able.shape), supply.copy()
    kinds, of = np.unique(able, axis=0, return_inverse=True)
    for kind in np.argsort(kinds.sum(axis=1), kind="stable").tolist():
        mine = (of.reshape(-1) == kind).nonzero()[0]
        asked = float((time * gpus)[mine].sum())
        there = np.where(kinds[kind], free, 0.0)
        room = float(there.sum())
        if asked <= 0 or room <= 0:
            continue
        # By size; if there is not enough for all of them, to each as much less.
        part = there / max(room, asked)
        share[mine] = time[mine, None] * part
        free -= asked * part
    return share


def _demand(want: F64) -> F64:
    """``(k, r)`` demand vectors, the largest entry 1; all 0 of those that want nothing."""
    most = want.max(axis=1, keepdims=True, initial=0.0)
    demand: F64 = np.divide(want, most, out=np.zeros_like(want), where=most > 0)
    return demand


def _level_up(has: F64, top: F64, room: float) -> F64:
    """``(k,)`` *has*, the least raised first to one level, each to its *top* at most."""
    grows = top > has
    if room <= _NOTHING or not grows.any():
        return has
    low, high = has[grows], top[grows]
    # Between two of these levels what is used is a straight line.
    levels = np.unique(np.concatenate([low, high]))
    used = (np.clip(levels[:, None], low, high) - low).sum(axis=1)
    level = float(np.interp(room, used, levels)) if used[-1] > room else float(levels[-1])
    raised = has.copy()
    raised[grows] = np.clip(level, low, high)
    return raised
