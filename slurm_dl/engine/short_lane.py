"""The lane for short jobs: a share of the GPUs on which they come before all others.

Many jobs of a site are short trials on one GPU. Behind jobs that run for days they wait for days.
So a job with a short time limit is served first, as far as short jobs hold no more than the lane's
share of their pool. Slurm ends a job at its limit: the limit is no mere word. The time that a job
ran before counts, so a job that is put back again and again does not come first any more; while it
runs its GPUs count. An array counts with all of its waiting tasks, since Slurm may start them all.
Of the users with waiting short jobs the one whose short jobs hold the fewest GPUs comes first: who
submits a hundred gets no larger part.

The wait is bounded while no more short work arrives than the lane's GPUs can do, and the policy
preempts. One that preempts nobody leaves the lane only the GPUs that become free by themselves.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from slurm_dl.engine.settings import Overdue
from slurm_dl.engine.target import NOBODY, SLACK_GPUS, PartitionPool, Rows, to_serve
from slurm_dl.model.jobs import COMPLETING, PENDING, Bool
from slurm_dl.model.snapshot import Snapshot


def short_jobs(
    snap: Snapshot, barred: Bool | None, *, there: tuple[PartitionPool, ...], bound: Overdue
) -> Rows:
    """Rows of the waiting jobs that the lane serves now, in its order.

    Args:
        barred: ``(n,)`` bool, waiting jobs that could not start; None: nobody.
        there: The pools.
    """
    jobs, memory = snap.jobs, snap.memory
    if not bound.short_s:
        return NOBODY
    short = (jobs.limit_s <= bound.short_s) & (jobs.gpus <= bound.short_gpus) & snap.managed_jobs
    short &= jobs.state < COMPLETING
    if snap.sizes is not None:
        # The policy may choose the largest size of an elastic job.
        most_gpus = snap.sizes.gpus[snap.sizes.first[1:] - 1]
        short[snap.sizes.row[most_gpus > bound.short_gpus]] = False
    new = short & (jobs.state == PENDING) & (memory.ran_s < bound.short_s)
    waits = to_serve(snap, np.flatnonzero(new), NOBODY, barred)
    runs = np.flatnonzero(short & (jobs.state != PENDING))
    found = [NOBODY]
    for pool in there:
        rows, holding = pool.of(waits), pool.of(runs)
        rows = rows[np.lexsort([jobs.job_id[rows], memory.queued_s[rows]])]
        rows = rows[np.argsort(_used_gpus(snap, rows, holding), kind="stable")]
        gpus = jobs.gpus[holding].sum() + (jobs.gpus * jobs.tasks)[rows].cumsum()
        rows = rows[gpus <= bound.short_share * pool.gpus(snap) + SLACK_GPUS]
        found.append(rows[~np.isin(rows, np.concatenate(found))])
    return np.concatenate(found)


def _used_gpus(snap: Snapshot, rows: Rows, holding: Rows) -> list[float]:
    """GPUs that each job's user has in the lane with it, those of its jobs before it included."""
    jobs, all_rows = snap.jobs, np.concatenate([holding, rows])
    used: dict[int, float] = defaultdict(float)
    with_it = list[float]()
    gpus = (jobs.gpus * jobs.tasks)[all_rows].tolist()
    for uid, more in zip(jobs.uid[all_rows].tolist(), gpus, strict=True):
        used[uid] += more
        with_it.append(used[uid])
    return with_it[len(holding) :]
