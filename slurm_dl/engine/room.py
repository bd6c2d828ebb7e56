"""Free GPUs, CPUs and memory node by node, and whether a job fits into them.

The arithmetic of "could Slurm start this now": gangs whole or not at all, the same count on every
node, only nodes of the job's partition, type and choice. It is a working copy that one decision
fills up as it goes; a fresh one is made for each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I64, Bool, JobState
from slurm_dl.model.snapshot import Snapshot

NodeRows = npt.NDArray[np.int64]

HOLDING = (JobState.RUNNING, JobState.CONFIGURING, JobState.SUSPENDED)
"""States whose resources are not about to be free. COMPLETING jobs' are: nobody is preempted for
what comes back by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Need:
    """What a pending job asks of each of its nodes.

    Attributes:
        key: Equal for jobs that ask for the same.
        n_nodes: Nodes it needs.
        gpus: GPUs on each; whole unless the job asks for shares of a GPU.
        cpus: CPUs on each.
        mem_mb: Memory on each, MB.
        exclusive: It wants nodes on which nothing else runs.
        allowed: ``(m,)`` bool, nodes it may use at all.
    """

    key: tuple[object, ...]
    n_nodes: int
    gpus: float
    cpus: int
    mem_mb: int
    exclusive: bool
    allowed: Bool


class Needs:
    """What the pending jobs of one snapshot ask for; equal places are worked out once."""

    def __init__(self, snap: Snapshot) -> None:
        self._snap = snap
        self._places: dict[tuple[object, ...], tuple[Bool, float]] = {}

    def of(self, row: int) -> Need:
        """What the job at *row* asks of each node, evenly split.

        A job that names GPUs in all and no node count gets the fewest nodes that could hold it.
        """
        jobs = self._snap.jobs
        place = self._place_of(row)
        allowed, most = self._places[place]
        gpus, n_nodes = float(jobs.gpus[row]), int(jobs.n_nodes[row])
        if most > 0:
            n_nodes = max(n_nodes, math.ceil(gpus / most))
        share = gpus / n_nodes if gpus != int(gpus) else math.ceil(gpus / n_nodes)
        cpus = math.ceil(int(jobs.cpus[row]) / n_nodes)
        mem_mb = math.ceil(int(jobs.mem_mb[row]) / n_nodes)
        exclusive = bool(jobs.exclusive[row])
        key = (*place, n_nodes, share, cpus, mem_mb, exclusive)
        return Need(key, n_nodes, share, cpus, mem_mb, exclusive, allowed)

    def _place_of(self, row: int) -> tuple[object, ...]:
        """Where the job may run, as a key into the places that were worked out."""
        snap, nodes = self._snap, self._snap.seen.nodes
        job_id = JobId(int(snap.jobs.job_id[row]))
        others = snap.seen.also_in.get(job_id, ())
        choice = snap.seen.choices.get(job_id)
        partition, gpu_type = int(snap.jobs.partition[row]), int(snap.jobs.gpu_type[row])
        key = (partition, others, gpu_type, None if choice is None else choice.tobytes())
        if key not in self._places:
            allowed = nodes.up & snap.seen.node_in[[partition, *others]].any(axis=0)
            if gpu_type >= 0:
                allowed &= nodes.gpu_type == gpu_type
            if choice is not None:
                allowed &= choice
            self._places[key] = allowed, float(nodes.gpus[allowed].max(initial=0.0))
        return key


@dataclass(slots=True, eq=False)
class Room:
    """What is free on each node, as ``(m,)`` columns that change while a decision is made.

    Attributes:
        gpus: Free GPUs.
        cpus: Free CPUs.
        mem_mb: Free memory, MB.
        jobs_on: Jobs that hold something of the node.
    """

    gpus: F64
    cpus: I64
    mem_mb: I64
    jobs_on: I64

    @classmethod
    def free_in(cls, snap: Snapshot) -> Self:
        """What is free now or is being freed by jobs that are ending anyway."""
        nodes, held = snap.seen.nodes, snap.seen.held
        staying = np.isin(snap.jobs.state[held.job], HOLDING)
        on, m = held.node[staying], len(nodes)
        return cls(
            gpus=nodes.gpus - np.bincount(on, weights=held.gpus[staying], minlength=m),
            cpus=nodes.cpus.astype(np.int64)
            - np.bincount(on, held.cpus[staying], m).astype(np.int64),
            mem_mb=nodes.mem_mb - np.bincount(on, held.mem_mb[staying], m).astype(np.int64),
            jobs_on=np.bincount(on, minlength=m).astype(np.int64),
        )

    def copy(self) -> Room:
        """A room of its own with the same content."""
        return Room(self.gpus.copy(), self.cpus.copy(), self.mem_mb.copy(), self.jobs_on.copy())

    def fits_on(self, need: Need) -> Bool:
        """``(m,)`` bool, nodes on which one node's share of *need* fits."""
        fits: Bool = (
            need.allowed
            & (self.gpus >= need.gpus)
            & (self.cpus >= need.cpus)
            & (self.mem_mb >= need.mem_mb)
        )
        if need.exclusive:
            fits &= self.jobs_on == 0
        return fits

    def place(self, need: Need, within: Bool | None = None) -> NodeRows | None:
        """Nodes for *need*, the fullest that still fit first; None if it does not fit.

        Args:
            within: ``(m,)`` bool, the nodes that may be used; all if None.
        """
        fits = self.fits_on(need) if within is None else self.fits_on(need) & within
        rows = np.flatnonzero(fits)
        if len(rows) < need.n_nodes:
            return None
        best: NodeRows = rows[np.argsort(self.gpus[rows], kind="stable")[: need.n_nodes]]
        return best

    def take(self, need: Need, rows: NodeRows) -> None:
        """Give the nodes at *rows* one share of *need* each."""
        self.gpus[rows] -= need.gpus
        self.cpus[rows] -= need.cpus
        self.mem_mb[rows] -= need.mem_mb
        self.jobs_on[rows] += 1

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
