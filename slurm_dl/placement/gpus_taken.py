"""GPUs of each node that are lost to whole-GPU jobs, because others hold them or parts of them.

A device of which one job holds a share can be given to nobody as a whole: two halves on two
devices take two GPUs from the jobs that want whole ones, two halves on one device take one.
"""

from __future__ import annotations

import numpy as np

from slurm_dl.model.jobs import F64, Bool
from slurm_dl.model.nodes import SLACK
from slurm_dl.model.snapshot import Snapshot


def gpus_taken(snap: Snapshot, staying: Bool) -> F64:
    """``(m,)`` GPUs of each node that cannot be given away as whole ones.

    Shares whose device is not known count as if they filled one device after the other: Slurm
    takes the first that has room.

    Args:
        staying: ``(k,)`` bool, the rows of `Allocations` that count; others are about to be free.
    """
    held, m = snap.seen.held, len(snap.seen.nodes)
    on, gpus = held.node[staying], held.gpus[staying]
    whole = np.floor(gpus + SLACK)
    part = np.maximum(gpus - whole, 0.0)
    taken: F64 = np.bincount(on, weights=whole, minlength=m).astype(np.float64)
    if not (part > SLACK).any():
        return taken
    job_id = snap.jobs.job_id[held.job[staying]].tolist()
    unknown = {
        (job, node): share
        for job, node, share in zip(job_id, on.tolist(), part.tolist(), strict=True)
        if share > SLACK
    }
    shares = dict(unknown)
    for gpu in snap.seen.shared:
        tenants = [(job, gpu.node) for job in gpu.jobs if (job, gpu.node) in shares]
        taken[gpu.node] += bool(tenants)
        for tenant in tenants:
            unknown.pop(tenant, None)
    loose = np.zeros(m)
    for (_, node), share in unknown.items():
        loose[node] += share
    taken += np.ceil(loose - SLACK)
    return taken
