"""Reservations of others: on which nodes a job would be over before the next one begins.

Slurm starts no job on nodes of a reservation that begins before the job's time limit, unless the
job was submitted into that reservation (`Blocked.jobs`). What is not looked at: a shorter run that
``--time-min`` allows, and that a MAGNETIC reservation takes jobs that did not ask for it.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, Bool
from slurm_dl.model.snapshot import Observed, Snapshot


def free_until_s(seen: Observed, job_id: JobId, at_s: float) -> F64:
    """``(m,)`` when the next reservation that the job is not in begins on each node, epoch seconds.

    Inf if there is none. One that has ended by *at_s* does not count, one that is active then has
    begun by then.
    """
    until_s = np.full(len(seen.nodes), np.inf)
    for one in seen.blocked:
        if one.end_s > at_s and job_id not in one.jobs:
            np.minimum(until_s, one.start_s, out=until_s, where=one.nodes)
    return until_s


def eligible(snap: Snapshot, row: int) -> Bool:
    """``(m,)`` bool: in the partitions of the job at *row*, of its GPU type and its owner's choice.

    Whether they are up is not looked at.
    """
    seen, jobs = snap.seen, snap.jobs
    job_id = JobId(int(jobs.job_id[row]))
    partitions = [int(jobs.partition[row]), *seen.also_in.get(job_id, ())]
    nodes: Bool = np.any(seen.node_in[partitions], axis=0)
    gpu_type, choice = int(jobs.gpu_type[row]), snap.choice(job_id)
    if gpu_type >= 0:
        nodes &= seen.nodes.with_type(gpu_type)
    if choice is not None:
        nodes &= choice
    return nodes


class Unreserved:
    """Nodes on which jobs of one snapshot would be over before the next reservation."""

    def __init__(self, snap: Snapshot) -> None:
        self._snap = snap
        self._known: dict[tuple[float, float, tuple[bool, ...]], Bool] = {}

    def at(self, row: int, at_s: float) -> Bool:
        """``(m,)`` bool: nodes on which the job at *row* could start at *at_s*, epoch seconds."""
        seen, limit_s = self._snap.seen, float(self._snap.jobs.limit_s[row])
        job_id = JobId(int(self._snap.jobs.job_id[row]))
        key = (at_s, limit_s, tuple(job_id in one.jobs for one in seen.blocked))
        if key not in self._known:
            self._known[key] = free_until_s(seen, job_id, at_s) >= at_s + limit_s
        return self._known[key]


def shut_out(
    snap: Snapshot, rows: npt.NDArray[np.int64], at_s: F64, gpus_left: F64 | None = None
) -> Bool:
    """``(r,)`` bool: jobs that a reservation leaves too few nodes if they start at *at_s*.

    Counted are nodes that are up, or not up because of the reservation, and large enough.

    Args:
        rows: ``(r,)`` rows in `Jobs`.
        at_s: ``(r,)`` epoch seconds.
        gpus_left: ``(m,)`` GPUs of each node that jobs may have at all; None: all of them.
    """
    jobs, nodes, unreserved = snap.jobs, snap.seen.nodes, Unreserved(snap)
    there = nodes.up.copy()
    for one in snap.seen.blocked:
        there |= one.nodes & (one.start_s <= snap.now_s)
    first_s = min((one.start_s for one in snap.seen.blocked), default=math.inf)
    found = np.zeros(len(rows), dtype=np.bool_)
    for i in (at_s + jobs.limit_s[rows] > first_s).nonzero()[0].tolist():
        row = int(rows[i])
        nodes_of_job = eligible(snap, row) & there
        size = nodes.of_type(int(jobs.gpu_type[row]))
        gpus, n_nodes = float(jobs.gpus[row]), int(jobs.n_nodes[row])
        most = float(size[nodes_of_job].max(initial=0.0))
        if most > 0:
            n_nodes = max(n_nodes, math.ceil(gpus / most))
        most_nodes = snap.seen.claim(JobId(int(jobs.job_id[row]))).most_nodes or n_nodes
        least = math.floor(gpus / max(n_nodes, most_nodes))
        nodes_of_job &= size >= least
        left = nodes_of_job & unreserved.at(row, float(at_s[i]))
        if gpus_left is not None:
            left &= gpus_left >= least
        found[i] = left.sum() < n_nodes <= nodes_of_job.sum()
    return found
