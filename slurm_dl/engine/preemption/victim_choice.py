"""Choice of the running jobs to stop so that one pending job can start: enough of them, or none.

Least lost work first, of equal cost who was preempted less often, and jobs the policy wants to run
last. Choosing the cheapest set exactly is a covering problem; this clears nodes from the cheapest
upwards and then puts back every victim that turned out not to be needed, so no proper subset of the
result would do.

Hot path: whether any set would do is decided on columns first, and so is what each node would cost;
nodes are looked at one by one only in that order, and only until enough are clear.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.placing.free_resources import FreeResources, gres_held, gres_of_rows
from slurm_dl.engine.preemption.stopping_cost import stopping_cost
from slurm_dl.engine.settings import Settings
from slurm_dl.model.jobs import F64, I64, Bool, is_in
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import ResourceRequest

Rows = npt.NDArray[np.int64]

_UNHANDLED_GPU_S = 2.0**-20
"""What a run costs more in which nothing takes the signal: it comes after its equals, and after no
other, and sums of it are exact."""


@dataclass(frozen=True, slots=True)
class _Share:
    """Resources of one candidate on one node, in the order of `_Clearing`'s shortages."""

    row: int
    gives: tuple[float, ...]


def choose_victims(
    snap: Snapshot,
    available: FreeResources,
    need: ResourceRequest,
    *,
    candidates: Rows,
    reluctance_gpu_s: F64,
    within: Bool,
    at_most: int,
) -> tuple[int, ...] | str:
    """Rows of the jobs to stop so that *need* fits, or in words why there are none.

    Args:
        available: What is free now; left as it was.
        candidates: Rows of jobs that may be stopped, most dispensable first.
        reluctance_gpu_s: ``(n,)`` what stopping each job costs, see `reluctance`.
        within: ``(m,)`` bool, nodes the job may be placed on.
        at_most: Most victims.
    """
    usable = within & _after_all_go(snap, available, candidates).fits_on(need)
    if int(np.count_nonzero(usable)) < need.n_nodes:
        return "stopping all jobs that may be stopped for it would not make room for it"
    clearing = _Clearing(
        snap,
        available,
        need,
        candidates=candidates,
        reluctance_gpu_s=reluctance_gpu_s,
        usable=usable,
    )
    while clearing.clear < need.n_nodes:
        clearing.clear_cheapest()
        if len(clearing.chosen) > 2 * at_most:
            break
    chosen = clearing.without_surplus()
    if len(chosen) > at_most:
        return f"it would take more than the {at_most} victims that are allowed"
    return tuple(chosen)


def reluctance(snap: Snapshot, rows: Rows, target: Bool, settings: Settings) -> F64:
    """``(n,)`` what stopping each of the running jobs at *rows* costs, GPU-seconds; 0 for others.

    See `stopping_cost`. Of jobs of equal cost those come last of which it is known that they would
    not save. Stopping a job that the policy wants to run is dearer than stopping any number of
    others: it would only ask for its GPUs back.

    Args:
        target: ``(n,)`` bool, the policy wants the job to run.
    """
    lost, ids = stopping_cost(snap, rows, settings).gpu_s, snap.jobs.job_id[rows]
    runs = {j: c.unhandled_run for j, c in snap.seen.claims.items() if c.unhandled_run is not None}
    at = np.flatnonzero(is_in(ids, [*runs]))
    is_now = snap.jobs.restarts[rows[at]] == [runs[j] for j in ids[at].tolist()]
    lost[at] += _UNHANDLED_GPU_S * is_now
    dearer = np.zeros(len(snap.jobs))
    dearer[rows] = lost + (float(lost.sum()) + 1.0) * target[rows]
    return dearer


def _after_all_go(snap: Snapshot, available: FreeResources, candidates: Rows) -> FreeResources:
    held = snap.seen.held
    going = _rows(snap, candidates)[held.job]
    on, m = held.node[going], len(available.gpus)
    return FreeResources(
        gpus=available.gpus + np.bincount(on, held.gpus[going], m),
        cpus=available.cpus + np.bincount(on, held.cpus[going], m).astype(np.int64),
        mem_mb=available.mem_mb + np.bincount(on, held.mem_mb[going], m).astype(np.int64),
        jobs_on=available.jobs_on - np.bincount(on, minlength=m),
        gres=available.gres + gres_held(snap, going),
    )


def _rows(snap: Snapshot, rows: Rows) -> Bool:
    mask = np.zeros(len(snap.jobs), dtype=np.bool_)
    mask[rows] = True
    return mask


class _Clearing:
    """Nodes being cleared for one need.

    A heap holds the nodes by what they cost, and how often the jobs to be stopped there were
    preempted before; which jobs those are is worked out when one comes to the top, and again when a
    job that spans it has been chosen since.
    """

    def __init__(
        self,
        snap: Snapshot,
        available: FreeResources,
        need: ResourceRequest,
        *,
        candidates: Rows,
        reluctance_gpu_s: F64,
        usable: Bool,
    ) -> None:
        self._snap, self._need, self._usable = snap, need, usable
        self._cost, self._evicted = reluctance_gpu_s, snap.memory.preemptions
        self._available = available.copy()
        self._fits = self._available.fits_on(need) & usable
        where = usable & ~self._fits
        self._shares = _Shares(snap, candidates, where, self._cost, n_gres=len(need.gres))
        first = np.full(len(snap.jobs), len(candidates))
        first[candidates] = np.arange(len(candidates))
        self._first = np.full(len(usable), len(candidates))
        np.minimum.at(self._first, self._shares.node, first[self._shares.row])
        self._cheapest: dict[int, tuple[list[int], _Price]] = {}
        nodes = np.flatnonzero(self._first < len(candidates))
        self._is_held = np.zeros(len(usable), dtype=np.bool_)
        self._is_held[nodes] = True
        least, evicted = (price[nodes].tolist() for price in self._shares.cost_of(self._short()))
        prices = zip(least, evicted, strict=True)
        self._heap = list(zip(prices, self._first[nodes].tolist(), nodes.tolist(), strict=True))
        heapq.heapify(self._heap)
        self.chosen: list[int] = []

    @property
    def clear(self) -> int:
        """Nodes on which the need fits now."""
        return int(np.count_nonzero(self._fits))

    def clear_cheapest(self) -> None:
        """Choose the jobs to stop on the node that costs least to clear."""
        while True:
            price, first, node = heapq.heappop(self._heap)
            if self._fits[node]:
                continue
            if node not in self._cheapest:
                jobs = self._jobs_to_stop(node)
                cost = float(self._cost[jobs].sum()), int(self._evicted[jobs].sum())
                self._cheapest[node] = jobs, cost
                heapq.heappush(self._heap, (cost, first, node))
            elif price == self._cheapest[node][1]:
                break
        for row in self._cheapest[node][0]:
            self.chosen.append(row)
            self._available.release(self._snap, row)
            for other in self._snap.seen.held.nodes_of(row).tolist():
                # It is cheaper now, or even clear: to be worked out anew.
                self._cheapest.pop(other, None)
                if self._is_held[other] and other != node:
                    heapq.heappush(self._heap, (_FREE, int(self._first[other]), other))
        self._fits = self._available.fits_on(self._need) & self._usable

    def without_surplus(self) -> list[int]:
        """The chosen jobs without those, dearest first, that the need can do without."""
        keep = list(self.chosen)
        available, job_id = self._available, self._snap.jobs.job_id
        cost, evicted = self._cost, self._evicted
        clear = self.clear
        # Ties by job id: a row is only where Slurm happened to list the job.
        for row in sorted(self.chosen, key=lambda r: (-cost[r], -evicted[r], job_id[r])):
            on = self._snap.seen.held.nodes_of(row)
            before = int(np.count_nonzero(self._fits[on]))
            available.hold(self._snap, row)
            after = available.fits_on(self._need)[on] & self._usable[on]
            if clear - before + int(np.count_nonzero(after)) >= self._need.n_nodes:
                clear += int(np.count_nonzero(after)) - before
                self._fits[on] = after
                keep.remove(row)
            else:
                available.release(self._snap, row)
        return keep

    def _short(self) -> tuple[F64 | I64, ...]:
        """``(m,)`` what each node lacks: GPUs, CPUs, memory, jobs that are to go, other GRES."""
        need, available = self._need, self._available
        return (
            need.gpus - available.gpus,
            need.cpus - available.cpus,
            need.mem_mb - available.mem_mb,
            available.jobs_on * need.exclusive,
            *(u - free for u, free in zip(need.gres, available.gres, strict=False)),
        )

    def _jobs_to_stop(self, node: int) -> list[int]:
        """The cheap jobs whose end would make the need fit on *node*."""
        short: list[float] = [float(column[node]) for column in self._short()]
        taken: list[_Share] = []
        for share in self._shares.on(node):
            if share.row in self.chosen:
                continue
            if max(short) <= 0:
                break
            short = _less(short, share, 1)
            taken.append(share)
        for share in reversed(taken):
            back = _less(short, share, -1)
            if max(back) <= 0:
                short = back
                taken = [s for s in taken if s is not share]
        return [s.row for s in taken]


_Price = tuple[float, int]
"""What the jobs of a node cost, GPU-seconds, and how often they were preempted before."""

_FREE: _Price = (0.0, 0)


def _less(short: list[float], share: _Share, sign: int) -> list[float]:
    """The shortage once *share* is free (sign 1) or is held after all (-1)."""
    return [s - sign * g for s, g in zip(short, share.gives, strict=True)]


class _Shares:
    """Resources of the candidates on the nodes *where*, node by node, the cheapest to stop first.

    Attributes:
        node: ``(h,)`` where each share is, ascending.
        row: ``(h,)`` whose it is.
    """

    def __init__(
        self, snap: Snapshot, candidates: Rows, where: Bool, cost: F64, *, n_gres: int
    ) -> None:
        held = snap.seen.held
        self._cost = cost
        mine = np.flatnonzero(_rows(snap, candidates)[held.job] & where[held.node])
        job = held.job[mine]
        # Ties by job id: a row is only where Slurm happened to list the job.
        evicted = self._evicted = snap.memory.preemptions
        order = (snap.jobs.job_id[job], evicted[job], cost[job], held.node[mine])
        self._at = mine[np.lexsort(order)]
        self.node, self.row = held.node[self._at], held.job[self._at]
        self._edges = np.searchsorted(self.node, np.arange(len(where) + 1)).tolist()
        gives = [held.gpus[self._at], held.cpus[self._at], held.mem_mb[self._at]]
        gres = [*gres_of_rows(snap, self._at)] if n_gres else []
        self._gives = np.array([*gives, np.ones(len(self._at)), *gres], dtype=np.float64)

    def on(self, node: int) -> list[_Share]:
        """Those on *node*."""
        here = slice(self._edges[node], self._edges[node + 1])
        gives = self._gives[:, here].T.tolist()
        rows = self.row[here].tolist()
        return [_Share(row, tuple(of)) for row, of in zip(rows, gives, strict=True)]

    def cost_of(self, short: tuple[F64 | I64, ...]) -> tuple[F64, I64]:
        """Twice ``(m,)`` of the jobs that would be stopped on each node: GPU-seconds, preemptions.

        It is `_Clearing`'s choice of them on all nodes at once, one share of each after the other.

        Args:
            short: Some times ``(m,)``, what each node lacks.
        """
        first = np.array(self._edges[:-1])
        lacks = np.array(short, dtype=np.float64)
        released, price = self._gives, self._cost[self.row]
        many = np.diff(self._edges)
        steps = [np.flatnonzero(many > k) for k in range(int(many.max(initial=0)))]
        taken = np.zeros(len(self._at), dtype=np.bool_)
        for k, nodes in enumerate(steps):
            more = nodes[lacks[:, nodes].max(axis=0) > 0]
            lacks[:, more] -= released[:, first[more] + k]
            taken[first[more] + k] = True
        for k, nodes in reversed([*enumerate(steps)]):
            at = first[nodes] + k
            back = lacks[:, nodes] + released[:, at]
            spare = taken[at] & (back.max(axis=0) <= 0)
            lacks[:, nodes[spare]] = back[:, spare]
            taken[at[spare]] = False
        cost = np.bincount(self.node[taken], price[taken], len(many)).astype(np.float64)
        if (price != np.floor(price)).any():
            # Whole numbers add up to the same in any order; of others less is promised.
            cost *= 1.0 - 1e-9
        evicted = np.bincount(self.node[taken], self._evicted[self.row[taken]], len(many))
        return cost, evicted.astype(np.int64)
