"""What there is to hand out: GPUs by type, and how fast each job would be on them."""

from __future__ import annotations

import numpy as np

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64
from slurm_dl.model.snapshot import Snapshot


def gpus_by_type(snap: Snapshot) -> F64:
    """``(t,)`` GPUs of each of the `Observed.gpu_types` on nodes that are up.

    Where no type has a name they are of one; beside others those without a name do not count.
    """
    nodes = snap.seen.nodes
    kinds = max(1, len(snap.seen.gpu_types))
    there = nodes.up & ((nodes.gpu_type >= 0) | (not snap.seen.gpu_types))
    found: F64 = np.zeros(kinds)
    np.add.at(found, np.maximum(nodes.gpu_type[there], 0), nodes.gpus[there])
    return found


def rates_of(snap: Snapshot) -> F64:
    """``(n, t)`` speed of each job on each GPU type; 0 where it may not or cannot run.

    Where nothing is known every type is as fast as any other. A job that asks for a type, or
    whose nodes are restricted to some (``--constraint``, ``--nodelist``), runs on no other.
    """
    jobs, seen = snap.jobs, snap.seen
    kinds = max(1, len(seen.gpu_types))
    rates = np.ones((len(jobs), kinds)) if snap.rates is None else snap.rates.copy()
    asks = (jobs.gpu_type >= 0).nonzero()[0]
    others = np.arange(kinds) != jobs.gpu_type[asks, None]
    rates[asks] = np.where(others, 0.0, rates[asks])
    if seen.choices and kinds > 1:
        row_of = jobs.row_of()
        for job_id, nodes in seen.choices.items():
            row = row_of.get(JobId(job_id))
            if row is not None:
                rates[row, ~np.isin(np.arange(kinds), seen.nodes.gpu_type[nodes])] = 0.0
    return rates
