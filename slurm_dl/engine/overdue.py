"""A bound on waiting, whatever the policy: jobs that have waited too long come first.

Many policies serve jobs behind one that does not fit, so small jobs can pass a gang for ever. A job
that could start, has waited longer than the bound and is still not among those that should hold
GPUs is overdue. Overdue jobs are served before all others, longest wait first, as far as their GPUs
are no more than a share of their pool; the first is served whatever its size.
"""

from __future__ import annotations

import numpy as np

from slurm_dl.engine.settings import Overdue
from slurm_dl.engine.target import NOBODY, PartitionPool, Rows, to_serve
from slurm_dl.model.jobs import PENDING
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Order


def overdue_jobs(
    snap: Snapshot,
    order: Order,
    ranked: Rows,
    *,
    target: Rows,
    there: tuple[PartitionPool, ...],
    bound: Overdue,
) -> Rows:
    """Rows of the jobs that are served before all others, longest wait first.

    Args:
        ranked: Rows of the managed live jobs, best first.
        target: Rows of the jobs that should hold GPUs by the policy alone.
        there: The pools.
    """
    jobs, since_s = snap.jobs, snap.memory.waiting_since_s
    if not bound.after_s:
        return NOBODY
    late = ranked[(jobs.state[ranked] == PENDING) & (since_s[ranked] < snap.now_s - bound.after_s)]
    if not len(late):
        return NOBODY
    late = to_serve(snap, late, target, order.barred)
    late = late[np.lexsort([jobs.job_id[late], since_s[late]])]
    found = [NOBODY]
    for pool in there:
        rows, all_gpus = pool.of(late), pool.gpus(snap)
        rows = rows[jobs.gpus[rows] <= all_gpus]
        claimed = jobs.gpus[rows].cumsum() <= bound.share * all_gpus
        claimed[:1] = True
        found.append(rows[claimed & ~np.isin(rows, np.concatenate(found))])
    return np.concatenate(found)
