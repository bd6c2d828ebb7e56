"""Waiting jobs that could not start now even if GPUs were taken back for them.

The target counts GPUs. A gang that finds too few whole nodes because jobs without a contract run on
them would be in the target all the same, and keep the GPUs that it cannot use from others. So
would a job that Slurm did not start on GPUs that were freed for it.
"""

from __future__ import annotations

import numpy as np

from slurm_dl.engine.preemption.eligibility import pause_after_vain_tries_s
from slurm_dl.engine.target import SLACK_GPUS, Rows
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I64, PENDING, Bool
from slurm_dl.model.snapshot import Snapshot


def out_of_reach(snap: Snapshot, staying: Rows, pause_s: float) -> Bool:
    """``(n,)`` bool: pending jobs for which it is of no use to free GPUs now.

    They find no nodes beside the running jobs at *staying*, or GPUs were freed for them in vain. A
    job that finds none even with nobody there is not meant: what it asks for is not understood.

    Args:
        pause_s: Time between the first two tries, see `pause_after_vain_tries_s`.
    """
    jobs, nodes, held, seen = snap.jobs, snap.seen.nodes, snap.seen.held, snap.seen
    found = np.zeros(len(jobs), dtype=np.bool_)
    tried = (snap.memory.fruitless > 0).nonzero()[0]
    tried = tried[pause_after_vain_tries_s(snap, tried, pause_s) > 0]
    found[tried] = jobs.state[tried] == PENDING
    stays = np.isin(held.job, staying)
    if not stays.any():
        return found
    taken = np.bincount(held.node[stays], held.gpus[stays], len(nodes))
    whole = np.where(nodes.up, nodes.gpus, 0.0)
    left = np.where(nodes.up, np.maximum(nodes.gpus - taken, 0.0), 0.0)
    rows = ((jobs.state == PENDING) & (jobs.gpus > 0) & snap.is_managed()).nonzero()[0]
    n_nodes, per_node = jobs.n_nodes[rows], jobs.gpus[rows] / jobs.n_nodes[rows] - SLACK_GPUS
    # Most jobs find enough nodes even if each wanted as much of a node as the one that wants most.
    large = (n_nodes > _wide(left, per_node.max(initial=0.0, keepdims=True))).nonzero()[0]
    n_nodes, per_node = n_nodes[large], per_node[large]
    short = (_wide(left, per_node) < n_nodes) & (_wide(whole, per_node) >= n_nodes)
    for row in rows[large][short].tolist():
        # A job that may be spread over more nodes needs less of each.
        found[row] |= seen.claim(JobId(int(jobs.job_id[row]))).most_nodes is None
    left_on: dict[int, float] = {}
    confined = rows[np.isin(jobs.job_id[rows], list(seen.choices))] if seen.choices else rows[:0]
    for row in confined.tolist():
        within = seen.choices[JobId(int(jobs.job_id[row]))]
        gpus = left_on.get(id(within))
        if gpus is None:
            gpus = left_on[id(within)] = float(left[within].sum())
        found[row] |= bool(jobs.gpus[row] > gpus + SLACK_GPUS)
    return found


def _wide(gpus: F64, least: F64) -> I64:
    """``(len(least),)`` how many nodes have at least so many GPUs."""
    count: I64 = len(gpus) - np.sort(gpus).searchsorted(least)
    return count
