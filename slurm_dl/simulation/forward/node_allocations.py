"""The nodes of a forward run, who holds what on them, and what Slurm would start there.

Slurm's two scheduling passes as in `slurm_dl.simulation.slurm.scheduler`, on real nodes: by
partition, GPU type and node list, with the CPUs and memory that are free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import F64, I64, Bool
from slurm_dl.model.nodes import Allocations
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.simulation.forward.initial_state import node_mask
from slurm_dl.simulation.slurm.scheduler import Backfill, Running, WaitingJob, backfill_pass, place

PARTS: Final = 120
"""GPUs are counted in these, so that halves, thirds, quarters and fifths are whole numbers."""

UNLIMITED_S: Final = 365 * 86400.0  # Slurm plans a job without a time limit as if it had this one


class NodeAllocations:
    """What is free, and what each job holds; see the module.

    Args:
        snap: What `initial_state` made; jobs are named by their rows in it.
    """

    def __init__(self, snap: Snapshot, backfill: Backfill) -> None:
        self._snap, self._how = snap, backfill
        nodes, held = snap.seen.nodes, snap.seen.held
        m = len(nodes)
        self._whole = np.round(nodes.gpus * PARTS).astype(np.int64)
        self._free: I64 = self._whole - _sum(held.node, np.round(held.gpus * PARTS), m)
        self._free_cpus: I64 = nodes.cpus - _sum(held.node, held.cpus, m)
        self._free_mem: I64 = nodes.mem_mb - _sum(held.node, held.mem_mb, m)
        self._limit_s = np.minimum(snap.jobs.limit_s, UNLIMITED_S)
        self._allowed: dict[int, Bool] = {}
        self._nothing = Allocations(
            held.job[:0], held.node[:0], held.gpus[:0], held.cpus[:0], held.mem_mb[:0]
        )
        self._on: dict[int, Allocations] = {}
        for row in np.unique(held.job).tolist():
            at = slice(*np.searchsorted(held.job, [row, row + 1]).tolist())
            self._on[row] = Allocations(
                held.job[at], held.node[at], held.gpus[at], held.cpus[at], held.mem_mb[at]
            )

    def allocations(self, live: I64) -> Allocations:
        """Who holds what, with the rows *live* of the jobs counted anew from 0."""
        rows = sorted(self._on)
        parts = [self._on[row] for row in rows]
        job = np.repeat(np.searchsorted(live, rows), [len(part) for part in parts])
        parts.append(self._nothing)
        return Allocations(
            job=job.astype(np.int32),
            node=np.concatenate([part.node for part in parts]),
            gpus=np.concatenate([part.gpus for part in parts]),
            cpus=np.concatenate([part.cpus for part in parts]),
            mem_mb=np.concatenate([part.mem_mb for part in parts]),
        )

    def give_back(self, row: int) -> None:
        """The job at *row* holds nothing any more."""
        held = self._on.pop(row, None)
        if held is None:
            return
        np.add.at(self._free, held.node, np.round(held.gpus * PARTS).astype(np.int64))
        np.add.at(self._free_cpus, held.node, held.cpus)
        np.add.at(self._free_mem, held.node, held.mem_mb)

    def take_within(self, row: int, names: Sequence[str]) -> bool:
        """Let the job at *row* have nodes of these names; False if it does not fit there."""
        within = np.isin(np.array(self._snap.seen.nodes.name), list(names))
        return self._take(self._waiting(row), within)

    def starts(
        self, rows: Sequence[int], start_s: F64, now_s: float, *, fills: bool
    ) -> Iterator[int]:
        """What Slurm's main pass starts, then, if it *fills*, backfill; they have their nodes then.

        Args:
            rows: Waiting jobs, best first.
            start_s: ``(n,)`` when each job of the snapshot that holds nodes has started.
        """
        if not rows or not self._free.max(initial=0):
            return
        behind: list[WaitingJob] = []
        full: set[int] = set()
        anywhere = np.ones(len(self._free), dtype=np.bool_)
        for row in rows:
            if len(behind) >= self._how.max_jobs:
                break
            partition = int(self._snap.jobs.partition[row])
            job = self._waiting(row)
            if partition in full:
                behind.append(job)
            elif self._take(job, anywhere):
                yield row
            elif np.count_nonzero(self._may(row)) >= job.n_nodes:
                # Slurm passes over jobs that could not start on the empty cluster either.
                full.add(partition)
                behind.append(job)
        if fills and behind and min(job.share for job in behind) <= self._free.max():
            yield from self._backfilled(behind, start_s, now_s)

    def _backfilled(self, behind: list[WaitingJob], start_s: F64, now_s: float) -> Iterator[int]:
        holding = list(self._on)
        end_s = start_s[holding] + self._limit_s[holding]
        order = np.argsort(end_s, kind="stable")
        on = [self._on[holding[index]] for index in order.tolist()]
        parts = np.concatenate([held.gpus for held in on] or [np.zeros(0)])
        found = backfill_pass(
            behind,
            self._free,
            self._snap.seen.nodes.up,
            [],
            Running.of(
                end_s[order],
                [held.node for held in on],
                np.round(parts * PARTS).astype(np.int64),
            ),
            now_s=now_s,
            how=self._how,
        )
        by_row = {job.job: job for job in behind}
        for row, nodes in found:
            within = np.zeros(len(self._free), dtype=np.bool_)
            within[nodes] = True
            if self._take(by_row[row], within):
                yield row

    def _may(self, row: int) -> Bool:
        """``(m,)`` bool, nodes that the job at *row* may start on."""
        mask = self._allowed.get(row)
        if mask is None:
            mask = self._allowed[row] = node_mask(self._snap, row) & self._snap.seen.nodes.up
        return mask

    def _waiting(self, row: int) -> WaitingJob:
        """The job at *row* as a pass of Slurm's scheduler takes it; its share is in `PARTS`."""
        may, jobs = self._may(row), self._snap.jobs
        n_nodes = max(1, int(jobs.n_nodes[row]))
        share = max(1, round(float(jobs.gpus[row]) / n_nodes * PARTS))
        if jobs.exclusive[row]:
            share = max(share, int(self._whole[may].max(initial=0)))
        return WaitingJob(
            job=row,
            n_nodes=n_nodes,
            share=share,
            limit_s=float(self._limit_s[row]),
            excluded=~may,
        )

    def _take(self, job: WaitingJob, within: Bool) -> bool:
        """Give the job nodes of *within* if it fits there; whether it did."""
        nodes = place(job, self._free, within & self._may(job.job) & self._holds(job.job))
        if nodes is None:
            return False
        row, jobs, k = job.job, self._snap.jobs, len(nodes)
        cpus, mem_mb = int(jobs.cpus[row]) // k, int(jobs.mem_mb[row]) // k
        self._on[row] = Allocations(
            job=np.full(k, row, dtype=np.int32),
            node=nodes.astype(np.int32),
            gpus=np.full(k, job.share / PARTS),
            cpus=np.full(k, cpus, dtype=np.int32),
            mem_mb=np.full(k, mem_mb, dtype=np.int64),
        )
        self._free[nodes] -= job.share
        self._free_cpus[nodes] -= cpus
        self._free_mem[nodes] -= mem_mb
        return True

    def _holds(self, row: int) -> Bool:
        """``(m,)`` bool, nodes with CPUs and memory for one node's part of the job."""
        jobs = self._snap.jobs
        n_nodes = max(1, int(jobs.n_nodes[row]))
        enough: Bool = (self._free_cpus >= int(jobs.cpus[row]) // n_nodes) & (
            self._free_mem >= int(jobs.mem_mb[row]) // n_nodes
        )
        return enough & (self._free == self._whole) if jobs.exclusive[row] else enough


def _sum(node: npt.NDArray[np.int32], amount: npt.NDArray[Any], m: int) -> I64:
    """``(m,)`` the *amount* on each node."""
    total: I64 = np.bincount(node, amount, m).astype(np.int64)
    return total
