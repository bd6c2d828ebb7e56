"""Free GPUs, CPUs and memory node by node, and whether a job fits into them.

The arithmetic of "could Slurm start this now": gangs whole or not at all, the same count on every
node, only nodes of the job's partition, type and choice. It is a working copy that one decision
fills up as it goes; a fresh one is made for each. Where a scheme is to choose among nodes see
`slurm_dl.placement.free_nodes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I64, Bool, JobState, is_in
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.free_nodes import gpus_taken
from slurm_dl.placement.resource_request import Ask, ResourceRequest

NodeRows = npt.NDArray[np.int64]

HOLDING = (JobState.RUNNING, JobState.CONFIGURING, JobState.SUSPENDED)
"""States whose resources are not about to be free. COMPLETING jobs' are: nobody is preempted for
what comes back by itself."""


@dataclass(slots=True, eq=False)
class FreeResources:
    """Free resources of each node, as ``(m,)`` columns that change while a decision is made."""

    gpus: F64  # Free GPUs, whole ones: a device that is shared is not free
    cpus: I64  # Free CPUs
    mem_mb: I64  # Free memory, MB
    jobs_on: I64  # Jobs that hold something of the node
    gres: F64  # ``(g, m)`` free units of GRES, see `total_gres`

    @classmethod
    def free_in(cls, snap: Snapshot) -> Self:
        """Resources that are free now or that ending jobs are freeing."""
        return cls.beside(snap, is_in(snap.jobs.state[snap.seen.held.job], HOLDING))

    @classmethod
    def unoccupied(cls, snap: Snapshot) -> Self:
        """All resources of the nodes, as if no job ran."""
        return cls.beside(snap, np.zeros(len(snap.seen.held.job), dtype=np.bool_))

    @classmethod
    def beside(cls, snap: Snapshot, staying: Bool) -> Self:
        """Resources that are free beside the rows *staying*, ``(k,)`` bool, of `Allocations`."""
        nodes, held = snap.seen.nodes, snap.seen.held
        on, m = held.node[staying], len(nodes)
        return cls(
            gpus=nodes.gpus - gpus_taken(snap, staying),
            cpus=nodes.cpus.astype(np.int64)
            - np.bincount(on, held.cpus[staying], m).astype(np.int64),
            mem_mb=nodes.mem_mb - np.bincount(on, held.mem_mb[staying], m).astype(np.int64),
            jobs_on=np.bincount(on, minlength=m).astype(np.int64),
            gres=total_gres(snap) - gres_held(snap, staying),
        )

    def copy(self) -> FreeResources:
        """A room of its own with the same content."""
        return FreeResources(
            self.gpus.copy(),
            self.cpus.copy(),
            self.mem_mb.copy(),
            self.jobs_on.copy(),
            self.gres.copy(),
        )

    def lesser(self, other: FreeResources) -> FreeResources:
        """Resources of each node that are free in both."""
        return FreeResources(
            np.minimum(self.gpus, other.gpus),
            np.minimum(self.cpus, other.cpus),
            np.minimum(self.mem_mb, other.mem_mb),
            np.maximum(self.jobs_on, other.jobs_on),
            np.minimum(self.gres, other.gres),
        )

    def fits_on(self, need: ResourceRequest, ask: Ask | None = None) -> Bool:
        """``(m,)`` bool, nodes on which one node's share of *need* fits.

        Args:
            ask: Which of its ways; None: the one with the fewest nodes.
        """
        ask = ask or need.asks[0]
        fits: Bool = (
            need.allowed
            & (self.gpus >= ask.gpus)
            & (self.cpus >= ask.cpus)
            & (self.mem_mb >= ask.mem_mb)
        )
        if need.exclusive:
            fits &= self.jobs_on == 0
        for free, least in zip(self.gres, ask.gres, strict=False):
            fits &= free >= least
        return fits

    def place(self, need: ResourceRequest, within: Bool | None = None) -> NodeRows | None:
        """Nodes for *need*, as few as may be and the fullest that still fit; None if none do.

        Args:
            within: ``(m,)`` bool, the nodes that may be used; all if None.
        """
        for ask in need.asks:
            fits = self.fits_on(need, ask)
            rows = (fits if within is None else fits & within).nonzero()[0]
            if len(rows) >= ask.n_nodes:
                best: NodeRows = rows[np.argsort(self.gpus[rows], kind="stable")[: ask.n_nodes]]
                return best
        return None

    def take(self, need: ResourceRequest, rows: NodeRows) -> None:
        """Give the nodes at *rows* one share of *need* each."""
        ask = need.ask(len(rows))
        self.gpus[rows] -= ask.gpus
        self.cpus[rows] -= ask.cpus
        self.mem_mb[rows] -= ask.mem_mb
        self.jobs_on[rows] += 1
        for free, taken in zip(self.gres, ask.gres, strict=False):
            free[rows] -= taken

    def release(self, snap: Snapshot, job_row: int) -> None:
        """Count what the job at *job_row* holds as free."""
        self._shift(snap, job_row, 1)

    def hold(self, snap: Snapshot, job_row: int) -> None:
        """Count what the job at *job_row* holds as taken again."""
        self._shift(snap, job_row, -1)

    def _shift(self, snap: Snapshot, job_row: int, sign: int) -> None:
        held = snap.seen.held
        lo, hi = np.searchsorted(held.job, [job_row, job_row + 1])
        on = held.node[lo:hi]
        self.gpus[on] += sign * held.gpus[lo:hi]
        self.cpus[on] += sign * held.cpus[lo:hi]
        self.mem_mb[on] += sign * held.mem_mb[lo:hi]
        self.jobs_on[on] -= sign
        if len(self.gres):
            self.gres[:, on] += sign * gres_of_rows(snap, slice(lo, hi))


def total_gres(snap: Snapshot) -> F64:
    """``(g, m)`` units of each node.

    Of `Observed.gres`, and of the GPUs of each type where a node has several.
    """
    other, nodes = snap.seen.gres, snap.seen.nodes
    tables = [] if other is None else [other.total]
    tables += [] if nodes.by_type is None else [nodes.by_type]
    return np.concatenate(tables) if tables else np.zeros((0, len(nodes)))


def gres_of_rows(snap: Snapshot, rows: slice | Bool | NodeRows) -> F64:
    """``(g, r)`` units that *rows* of `Allocations` hold of each of `total_gres`."""
    other, held = snap.seen.gres, snap.seen.held
    nodes, kinds = snap.seen.nodes, len(snap.seen.gpu_types)
    tables = [] if nodes.by_type is None else [held.gpus_by_type(nodes, kinds)[:, rows]]
    if other is not None:
        nothing = (0.0,) * len(other.names)
        ids = snap.jobs.job_id[held.job[rows]].tolist()
        units = [other.asked.get(JobId(job_id), nothing) for job_id in ids]
        tables.insert(0, np.array(units).reshape(len(ids), len(nothing)).T)
    return np.concatenate(tables) if tables else np.zeros((0, len(held.job[rows])))


def gres_held(snap: Snapshot, those: Bool) -> F64:
    """``(g, m)`` units that jobs hold of each of `total_gres` on each node.

    Args:
        those: ``(k,)`` bool, the rows of `Allocations` that count.
    """
    on, m = snap.seen.held.node[those], len(snap.seen.nodes)
    held = [np.bincount(on, units, m) for units in gres_of_rows(snap, those)]
    return np.array(held, dtype=np.float64).reshape(len(held), m)
