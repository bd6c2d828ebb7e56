"""From a policy's order to ranks, to the set that should run, and to SiteFactors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.settings import Settings
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import I32, I64, Bool, JobState
from slurm_dl.model.plan import SetSiteFactor
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Order, Policy

ALIVE = (
    JobState.PENDING,
    JobState.CONFIGURING,
    JobState.RUNNING,
    JobState.SUSPENDED,
)
"""States of a job that has a place in the order."""

Rows = npt.NDArray[np.int64]


def checked(order: Order, policy: Policy, n: int) -> Order:
    """*order*, if it is one.

    Raises:
        ValueError: The policy returned nonsense; nothing may be done by it.
    """
    shapes = {order.tier.shape, order.key.shape, order.promote.shape}
    if shapes != {(n,)}:
        msg = f"policy {policy.name}: columns of shapes {shapes} for {n} jobs"
        raise ValueError(msg)
    if n and not (order.tier.min() >= 0 and order.tier.max() < order.tiers):
        msg = f"policy {policy.name}: tiers outside 0 to {order.tiers - 1}"
        raise ValueError(msg)
    if np.isnan(order.key).any():
        msg = f"policy {policy.name}: a key is not a number"
        raise ValueError(msg)
    return order


def rank_jobs(snap: Snapshot, order: Order) -> tuple[Rows, I32]:
    """The managed live jobs in the order they are to be served.

    Returns:
        Their rows, best first, and ``(n,)`` the rank of every job, -1 for jobs without one.
    """
    jobs = snap.jobs
    rows = np.flatnonzero(snap.is_managed() & np.isin(jobs.state, ALIVE))
    # Job id last: ties must not depend on the order in which Slurm listed the jobs.
    keys = (
        jobs.job_id[rows],
        snap.memory.first_submit_s[rows],
        order.key[rows],
        order.tier[rows],
    )
    ranked = rows[np.lexsort(keys)]
    rank = np.full(len(jobs), -1, dtype=np.int32)
    rank[ranked] = np.arange(len(ranked), dtype=np.int32)
    return ranked, rank


def choose_target(snap: Snapshot, ranked: Rows, pinned: Rows) -> frozenset[JobId]:
    """The jobs that would hold GPUs if the policy alone decided, gangs whole or not at all.

    GPUs are counted by type over the whole cluster, as in the paper's simulator; where on the
    nodes they are is `Room`'s business.

    Args:
        ranked: Managed live jobs, best first.
        pinned: Rows of running jobs that cannot be moved; they are in whatever their rank.
    """
    jobs, nodes = snap.jobs, snap.seen.nodes
    free = np.bincount(
        nodes.gpu_type[nodes.up] + 1, weights=nodes.gpus[nodes.up], minlength=2
    ).tolist()
    total = sum(free)
    target: list[int] = []

    def take(row: int) -> bool:
        nonlocal total
        wanted, kind = float(jobs.gpus[row]), int(jobs.gpu_type[row]) + 1
        if kind and (kind >= len(free) or free[kind] < wanted):
            return False
        if wanted > total:
            return False
        if kind:
            free[kind] -= wanted
        total -= wanted
        target.append(int(jobs.job_id[row]))
        return True

    fixed = set(pinned.tolist())
    for row in pinned.tolist():
        take(row)
    waits = (jobs.state != JobState.PENDING) | (jobs.held == 0)
    for row in ranked[waits[ranked] & (jobs.gpus[ranked] > 0)].tolist():
        if total <= 0:
            break
        if row not in fixed:
            take(row)
    return frozenset(JobId(j) for j in target)


def wanted_site_factor(order: Order, settings: Settings) -> I64:
    """``(n,)`` int64, the SiteFactor of each job: one positive band for each tier.

    Slurm adds it to the priority it computes itself, and serves equal priorities in the order of
    job ids, which is the order of first submission. Positive, because Slurm cuts priorities off
    at 1 and a job that was never written has 0 and must be last.
    """
    bands: I64 = (order.tiers - order.tier.astype(np.int64)) * settings.band_width
    return bands


def site_factor_writes(
    snap: Snapshot, ranked: Rows, wanted: I64, settings: Settings
) -> list[SetSiteFactor]:
    """The SiteFactors that differ from what was last written, for the jobs where it matters.

    Those are the running jobs, which take their place along when they are requeued for any
    reason, and of the pending ones a window of each partition, best first.
    """
    jobs = snap.jobs
    stale = wanted[ranked] != snap.memory.site_factor[ranked]
    pending = jobs.state[ranked] == JobState.PENDING
    writes = ranked[stale & (~pending | in_window(snap, ranked, pending, settings.window))]
    # Pending jobs first, best first: they are what the next scheduling pass looks at.
    writes = writes[np.argsort(jobs.state[writes] != JobState.PENDING, kind="stable")]
    return [
        SetSiteFactor(
            job_id=JobId(int(jobs.job_id[row])),
            value=int(wanted[row]),
            why="first place in the order"
            if snap.memory.site_factor[row] == 0
            else "it changed its tier",
        )
        for row in writes.tolist()
    ]


def unhonoured(snap: Snapshot, ranked: Rows, band_width: int) -> tuple[JobId, ...]:
    """Waiting jobs whose priority lacks the SiteFactor that was written.

    Slurm accepts the update and leaves it out where the priority was set directly, or with
    priority/basic. A priority may be lower than the SiteFactor by the user's nice value, so half
    a band is allowed.
    """
    jobs = snap.jobs
    waiting = (jobs.state[ranked] == JobState.PENDING) & (jobs.priority[ranked] > 0)
    missing = jobs.priority[ranked] < snap.memory.site_factor[ranked] - band_width // 2
    return tuple(JobId(j) for j in jobs.job_id[ranked[waiting & missing]].tolist())


def in_window(snap: Snapshot, ranked: Rows, of: Bool, size: int) -> Bool:
    """``(len(ranked),)`` bool: among the first *size* of its partition of those marked in *of*."""
    inside = np.zeros(len(ranked), dtype=np.bool_)
    partition = snap.jobs.partition[ranked]
    for part in np.flatnonzero(snap.managed).tolist():
        inside[np.flatnonzero(of & (partition == part))[:size]] = True
    return inside
