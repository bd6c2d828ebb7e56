"""Dominant Resource Fairness: next is a job of the tenant that has least of what it needs most.

A tenant's dominant share is the largest of its shares of the cluster's GPUs, CPUs and memory,
divided by its weight:

    s_u = max over r of  used[u, r] / (w_u capacity[r]).

Again and again the tenant of least s_u whose next job fits is given that job, and its share grows
by it. When nothing fits any more the rest is put in order by the same rule, as if it did.

Source: Ghodsi et al., "Dominant Resource Fairness: Fair Allocation of Multiple Resource Types",
NSDI 2011, section 4 (Algorithm 1), section 4.3 (weights).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import COMPLETING, F64, PENDING
from slurm_dl.model.parameter_bounds import Weights
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.dominant_shares import (
    parts,
    sum_by,
    weights_of,
)
from slurm_dl.policies.arithmetic.supply_and_demand import contenders, tenants
from slurm_dl.policies.base import About, Order, PolicyDefaults, one_tier

I64 = npt.NDArray[np.int64]

_SLACK: Final = 1e-9  # Ten tenths of a cluster are one, whatever the rounding of their sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Drf(PolicyDefaults):
    """Least dominant share first.

    Attributes:
        weights: Weights by account, above 0; 1 for accounts that are not named.
    """

    name = "drf"
    source = "DRF, NSDI 2011, section 4, Algorithm 1"
    about = About(
        row="A19",
        level="W3",
        formula="s_u = max_r used[u,r] / (w_u capacity[r]); next job of the tenant of least s_u",
        needs=("accounts",),
        fallback="without accounts each user is a tenant; memory counts where Slurm tracks it",
        starves="a job that asks for more than becomes free at a time, while others fit",
    )
    interpretation = (
        "No job is displaced: the paper's rule selects the next job to launch. GPUs of all types "
        "are one resource. A job fits if the sums over the cluster suffice. A tenant has one "
        "weight, the same for each resource. Jobs that do not fit come after those that do, by "
        "the same rule. Jobs of unmanaged partitions count as used."
    )
    preempts = "never"

    weights: Weights = ()

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        jobs, whose = snap.jobs, tenants(snap)
        # What takes no part comes last; what runs keeps what it holds.
        key = np.full(len(jobs), np.inf)
        holds = (jobs.state > PENDING) & (jobs.state <= COMPLETING)
        key[holds] = -1.0
        waits = (contenders(snap) & (jobs.state == PENDING)).nonzero()[0]
        waits = waits[np.lexsort([jobs.job_id[waits], snap.memory.queued_s[waits]])]
        part = parts(snap)
        used = sum_by(part[holds], whose.of[holds], len(whose))
        turn = launch_order(
            part[waits],
            whose.of[waits],
            used,
            weights_of(self.weights, whose.names),
            room=1.0 - used.sum(axis=0),
        )
        key[waits[turn]] = np.arange(len(turn))
        return one_tier(key)


def launch_order(part: F64, tenant: I64, used: F64, weight: F64, room: F64) -> I64:
    """The jobs in the order in which they are launched, as indices into *part*.

    Args:
        part: ``(m, r)`` what each waiting job asks for, as parts of what there is; the jobs of one
            tenant in the order in which it wants them.
        tenant: ``(m,)`` whose each is, an index into the rows of *used*.
        used: ``(k, r)`` what each tenant has, as parts of what there is.
        weight: ``(k,)`` weights, above 0.
        room: ``(r,)`` what is left of each, as parts of what there is.
    """
    asks, shares, free = part.tolist(), used.tolist(), (room + _SLACK).tolist()
    weights = weight.tolist()
    queues: list[list[int]] = [[] for _ in shares]
    for job, owner in enumerate(tenant.tolist()):
        queues[owner].append(job)
    nexts = [0] * len(queues)
    turn: list[int] = []
    waiting = [(max(shares[u]) / weights[u], u) for u, queue in enumerate(queues) if queue]
    for must_fit in (True, False):
        heap, waiting = waiting, []
        heapq.heapify(heap)
        while heap:
            share, u = heap[0]
            job = queues[u][nexts[u]]
            ask = asks[job]
            if must_fit:
                if any(a > f for a, f in zip(ask, free, strict=True)):
                    # Room only shrinks: it will not fit later either.
                    waiting.append(heapq.heappop(heap))
                    continue
                free = [f - a for f, a in zip(free, ask, strict=True)]
            turn.append(job)
            nexts[u] += 1
            shares[u] = [s + a for s, a in zip(shares[u], ask, strict=True)]
            share = max(shares[u]) / weights[u]
            if nexts[u] < len(queues[u]):
                heapq.heapreplace(heap, (share, u))
            else:
                heapq.heappop(heap)
    return np.array(turn, dtype=np.int64)
