"""Waiting jobs that could not start now even if GPUs were taken back for them.

The target counts GPUs. A gang that finds too few whole nodes because jobs without a contract run on
them would be in the target all the same, and keep the GPUs that it cannot use from others. So
would a job that Slurm did not start on GPUs that were freed for it, and one that would not be over
before a reservation begins.
"""

from __future__ import annotations

import numpy as np

from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.placing.place_waiting import sealed_nodes
from slurm_dl.engine.preemption.eligibility import pause_after_vain_tries_s
from slurm_dl.engine.target import SLACK_GPUS, Rows
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I64, PENDING, Bool, is_in
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.reservations import shut_out
from slurm_dl.placement.resource_request import ResourceRequests


def out_of_reach(snap: Snapshot, staying: Rows, pause_s: float) -> Bool:
    """``(n,)`` bool: pending jobs for which it is of no use to free GPUs now.

    They find no nodes beside the running jobs at *staying*, GPUs were freed for them in vain, or a
    reservation of others leaves them too few nodes. A job that finds none even with nobody there is
    not meant: what it asks for is not understood.

    Args:
        pause_s: Time between the first two tries, see `pause_after_vain_tries_s`.
    """
    jobs, nodes, held, seen = snap.jobs, snap.seen.nodes, snap.seen.held, snap.seen
    found = np.zeros(len(jobs), dtype=np.bool_)
    tried = (snap.memory.fruitless > 0).nonzero()[0]
    tried = tried[pause_after_vain_tries_s(snap, tried, pause_s) > 0]
    found[tried] = jobs.state[tried] == PENDING
    stays = is_in(held.job, staying)
    if not stays.any() and not seen.blocked:
        return found
    taken = np.bincount(held.node[stays], held.gpus[stays], len(nodes))
    whole = np.where(nodes.up, nodes.gpus, 0.0)
    spare = np.maximum(nodes.gpus - taken, 0.0)
    left = np.where(nodes.up, spare, 0.0)
    rows = ((jobs.state == PENDING) & (jobs.gpus > 0) & snap.managed_jobs).nonzero()[0]
    if seen.blocked:
        found[rows] |= shut_out(snap, rows, np.full(len(rows), snap.now_s), spare)
    if not stays.any():
        return found
    n_nodes, per_node = jobs.n_nodes[rows], jobs.gpus[rows] / jobs.n_nodes[rows] - SLACK_GPUS
    # Most jobs find enough nodes even if each wanted as much of a node as the one that wants most.
    large = (n_nodes > _wide(left, per_node.max(initial=0.0, keepdims=True))).nonzero()[0]
    n_nodes, per_node = n_nodes[large], per_node[large]
    short = (_wide(left, per_node) < n_nodes) & (_wide(whole, per_node) >= n_nodes)
    for row in rows[large][short].tolist():
        # A job that may be spread over more nodes needs less of each.
        found[row] |= seen.claim(JobId(int(jobs.job_id[row]))).most_nodes is None
    left_on: dict[int, float] = {}
    confined = rows[is_in(jobs.job_id[rows], list(seen.choices))] if seen.choices else rows[:0]
    for row in confined.tolist():
        within = seen.choices[JobId(int(jobs.job_id[row]))]
        gpus = left_on.get(id(within))
        if gpus is None:
            gpus = left_on[id(within)] = float(left[within].sum())
        found[row] |= bool(jobs.gpus[row] > gpus + SLACK_GPUS)
    return found


def without_room(
    snap: Snapshot,
    ranked: Rows,
    may_displace: Bool,
    window: int,
    available: FreeResources | None = None,
) -> Bool:
    """``(n,)`` bool: pending jobs that may displace nobody and find no room beside running jobs.

    In the target they would take the GPUs of jobs that they may not displace. Jobs that ask for
    shares of a GPU are not meant.

    Args:
        ranked: Rows of the managed live jobs, best first.
        may_displace: ``(n,)`` bool, jobs for which others may be preempted.
        window: Most of these jobs that are placed; those behind count as without room.
        available: Room that there is, which is used up; None: what is free now.
    """
    jobs = snap.jobs
    found: Bool = np.zeros(len(jobs), dtype=np.bool_)
    rows = ranked[(jobs.state[ranked] == PENDING) & (jobs.gpus[ranked] > 0) & ~may_displace[ranked]]
    # Of a device that is shared some may be left, which is not counted here.
    rows = rows[jobs.gpus[rows] == np.floor(jobs.gpus[rows])]
    if not len(rows):
        return found
    found[rows] = True
    available, needs = available or FreeResources.free_in(snap), ResourceRequests(snap)
    open_ = snap.seen.nodes.up & ~sealed_nodes(snap, snap.handovers)
    rows = rows[jobs.gpus[rows] <= float(available.gpus[open_].sum()) + SLACK_GPUS]
    no_room: set[tuple[object, ...]] = set()
    for row in rows[:window].tolist():
        need = needs.of(row)
        nodes = None if need.key in no_room else available.place(need, within=open_)
        if nodes is None:
            no_room.add(need.key)
        else:
            available.take(need, nodes)
            found[row] = False
    return found


def _wide(gpus: F64, least: F64) -> I64:
    """``(len(least),)`` how many nodes have at least so many GPUs."""
    count: I64 = len(gpus) - np.sort(gpus).searchsorted(least)
    return count
