"""Gavel's fairness in two levels: between tenants by weight, and inside each one.

Tenants are Slurm accounts. A tenant's weight is split evenly over its jobs that can still get more
("fairness"), or goes to the first of them by arrival ("fifo"). All normalised throughputs rise at
the same time, each as fast as its weight, until some job can get no more; its weight then goes to
others of its tenant, and the rest rise on. This fills the cluster like water does a vessel:

    max c  with  gpus_m thr(m, X) / thr(m, X_proportional) >= level_m + c weight_m,  again and again

A job that can get no more shows by the price of its row, so no integer program is needed for it.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning
Workloads", OSDI 2020, section 4.3 and appendix (hierarchical policies, water filling).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from slurm_dl.model.jobs import F64, I64, Bool
from slurm_dl.model.parameter_bounds import Bound, Count
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic import linear_programs
from slurm_dl.policies.arithmetic.supply_and_demand import tenants
from slurm_dl.policies.gavel.objectives import FALLBACK, READING, SOURCE, normalised
from slurm_dl.policies.gavel.pool import ByName, Entrants, Solving, about_gavel, weight_of

Inside = Annotated[
    Literal["fairness", "fifo"], Bound("fairness or fifo", lambda one: one in {"fairness", "fifo"})
]

_TIGHT = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelHierarchical(Solving):
    """Weighted fairness between accounts; fairness or first come first served inside each.

    Attributes:
        weights: Weight of an account by its name; 1 for accounts that are not named.
        inside: How a tenant's weight is divided among its jobs.
        levels: Number of levels that are raised where there are more than a hundred classes; the
            rest then goes where the sum grows most. With fewer classes all levels are raised.
    """

    name = "gavel_hierarchical"
    source = f"{SOURCE}, section 4.3 (hierarchical policies)"
    interpretation = (
        f"{READING} Jobs that can get no more are found by the prices of the linear program; the "
        "paper solves an integer program. Inside an account all jobs have the same weight."
    )
    about = about_gavel(
        formula="water filling of normalised throughputs, each as fast as its part of the weight",
        needs=("rates", "accounts"),
        fallback=(
            "Without accounts each user is a tenant. With fifo inside and more than a hundred "
            "jobs, each tenant gets its slice of every type by weight and demand, filled in order "
            f"of arrival. {FALLBACK}"
        ),
    )

    weights: ByName = ()
    inside: Inside = "fairness"
    levels: Count = linear_programs.LEVELS

    def shares(self, snap: Snapshot, who: Entrants, /) -> linear_programs.Solved:
        """See `Sharing`."""
        of = tenants(snap).of[who.rows]
        weight = weight_of(snap, who.rows, self.weights)
        if self.inside == "fifo" and len(who.rows) > linear_programs.ALL_LEVELS_UP_TO:
            return linear_programs.Solved(slices(who, of, weight), "parts")
        # What a job brings of its tenant's weight, so that parts of a pool add up to the whole.
        brought = weight / np.bincount(of)[of]
        turn = who.arrival if self.inside == "fifo" else np.zeros(len(of))
        return linear_programs.by_classes(
            who.pool,
            (normalised(who), of.astype(np.float64), brought, turn.astype(np.float64)),
            lambda pool, columns: self._fill(pool, *columns),
            split_above=self.split_above,
        )

    def _fill(
        self, pool: linear_programs.Pool, gain: F64, of: F64, brought: F64, turn: F64
    ) -> linear_programs.Solved:
        """Raise all levels until nobody's can rise."""
        _, tenant = np.unique(of, return_inverse=True)
        weight: F64 = np.bincount(tenant, weights=brought * pool.count).astype(np.float64)
        level: F64 = np.zeros(len(pool))
        open_ = np.ones(len(pool), dtype=np.bool_)
        share = None
        every = len(pool) <= linear_programs.ALL_LEVELS_UP_TO
        for _ in range(len(pool) if every else self.levels):
            rise = self._rise(pool, tenant, weight, turn, open_)
            found = linear_programs.raise_level(
                pool, gain, floor=level, rise=rise, limit_s=self.limit_s
            )
            if found is None:
                break
            share = found.found.time
            level = level + found.level * rise
            open_ &= found.price * rise <= _TIGHT
            if not open_.any():
                break
        if share is None:
            return linear_programs.Solved(linear_programs.proportional(pool), "proportional")
        if open_.any():
            rest = linear_programs.max_sum(
                pool, gain, gain=gain, floor=level * (1 - 1e-9), limit_s=self.limit_s
            )
            if rest is not None and rest.how == "solved":
                share = rest.share
        return linear_programs.Solved(share, "solved")

    def _rise(
        self, pool: linear_programs.Pool, tenant: I64, weight: F64, turn: F64, open_: Bool
    ) -> F64:
        """``(k,)`` how fast each job's level rises: its part of its tenant's weight, if open."""
        if self.inside == "fairness":
            left = np.bincount(tenant, weights=pool.count * open_)
            return np.where(open_, weight[tenant] / np.maximum(left[tenant], 1.0), 0.0)
        first = np.full(len(weight), np.inf)
        np.minimum.at(first, tenant[open_], turn[open_])
        return np.where(open_ & (turn == first[tenant]), weight[tenant], 0.0)


def slices(who: Entrants, of: I64, weight: F64) -> F64:
    """``(k, t)`` each tenant's slice of every type, given to its jobs in order of arrival.

    Slices are GPUs by weight, at most what a tenant asks for in all; each has its part of every
    type. A job takes its fastest type of the slice first, for as much of its time as there is.
    """
    pool = who.pool
    _, first, tenant = np.unique(of, return_index=True, return_inverse=True)
    asked: F64 = np.bincount(tenant, weights=pool.gpus).astype(np.float64)
    gpus = filled(asked, weight[first], float(pool.capacity.sum()))
    room = (gpus[:, None] * pool.capacity / pool.capacity.sum()).tolist()
    share: F64 = np.zeros(pool.may.shape)
    best_first = np.argsort(-who.rates, axis=1, kind="stable")
    order = who.arrival.argsort()
    columns = (order, tenant[order], pool.gpus[order], best_first[order])
    may = pool.may.tolist()
    for job, mine, wanted, kinds in zip(*(c.tolist() for c in columns), strict=True):
        left, there = 1.0, room[mine]
        for kind in kinds:
            if may[job][kind] and there[kind] > 0:
                part = min(left, there[kind] / wanted)
                there[kind] -= part * wanted
                left -= part
                share[job, kind] = part
    return share


def filled(asked: F64, weight: F64, room: float) -> F64:
    """``(u,)`` *room* split by weight, nobody getting more than what was asked."""
    by = np.argsort(asked / weight, kind="stable")
    got: F64 = np.zeros(len(asked))
    heavy = float(weight.sum())
    for one in by.tolist():
        got[one] = min(asked[one], room * weight[one] / heavy)
        room, heavy = room - got[one], heavy - weight[one]
    return got
