"""From a policy's order to Slurm's SiteFactors: what to write, and what Slurm left out."""

from __future__ import annotations

from typing import Final

import numpy as np

from slurm_dl.engine.settings import Settings
from slurm_dl.engine.target import Rows
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import BY_HAND, I64, PENDING, Bool
from slurm_dl.model.plan import SetSiteFactor
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Order

HIGHEST_SITE_FACTOR: Final = 2**31 - 3
"""Slurm keeps SiteFactor as a signed 32-bit number around 0, and takes up to this of it."""


def wanted_site_factor(order: Order, settings: Settings) -> I64:
    """``(n,)`` int64, the SiteFactor of each job: one positive band for each tier.

    Slurm adds it to the priority it computes itself, and serves equal priorities in the order of
    job ids, which is the order of first submission: in native mode who was held early comes first
    inside a band. Positive, because Slurm cuts priorities off
    at 1 and a job that was never written has 0 and must be last.
    """
    bands: I64 = (order.tiers - order.tier.astype(np.int64)) * settings.band_width
    return bands


def highest_site_factor(tiers: int, band_width: int) -> int:
    """SiteFactor of a running job that no waiting one exceeds, where Slurm preempts by itself."""
    return tiers * band_width + band_width // 2


def site_factor_writes(
    snap: Snapshot, ranked: Rows, wanted: I64, settings: Settings
) -> list[SetSiteFactor]:
    """The SiteFactors that differ from what counts in Slurm, for the jobs where it matters.

    Those are the running jobs, which take their place along when they are requeued for any
    reason, and of the pending ones a window of each partition, best first.
    """
    jobs = snap.jobs
    stale = (wanted[ranked] != snap.memory.site_factor[ranked]) | rewritten(snap, ranked)
    pending = jobs.state[ranked] == PENDING
    writes = ranked[stale & (~pending | in_window(snap, ranked, pending, settings.window))]
    # Pending jobs first, best first: they are what the next scheduling pass looks at.
    writes = writes[np.argsort(jobs.state[writes] != PENDING, kind="stable")]
    return [
        SetSiteFactor(
            job_id=JobId(int(jobs.job_id[row])),
            value=int(wanted[row]),
            why=_why(snap, row, int(wanted[row])),
        )
        for row in writes.tolist()
    ]


def rewritten(snap: Snapshot, rows: Rows) -> Bool:
    """``(len(rows),)`` bool: the SiteFactor is to be written again as it is."""
    if not snap.rewrite:
        return np.zeros(len(rows), dtype=np.bool_)
    return np.isin(snap.jobs.job_id[rows], list(snap.rewrite))


def _why(snap: Snapshot, row: int, after: int) -> str:
    before = int(snap.memory.site_factor[row])
    if after == before:
        return "Slurm has undone the SiteFactor that was written (see doctor: backfill passes)"
    if not before:
        return "first place in the order"
    return "its place in the order changed" if after else "others come before it in the order"


def is_undone(snap: Snapshot, rows: Rows, band_width: int) -> Bool:
    """``(len(rows),)`` bool: the job's priority is not what its SiteFactor makes it.

    Slurm accepts the update and the priority stays or becomes an older one: during a backfill pass,
    or where the priority was set by hand. Slurm's own factors and the user's nice value may make
    a difference of half a band.
    """
    jobs = snap.jobs
    off = np.abs(jobs.priority[rows] - snap.memory.site_factor[rows])
    undone: Bool = (jobs.priority[rows] > 0) & (off > band_width // 2)
    return undone


def undone(snap: Snapshot, rows: Rows, band_width: int) -> tuple[JobId, ...]:
    """Those of the jobs at *rows* whose priority is not what their SiteFactor makes it."""
    these = rows[is_undone(snap, rows, band_width) & (snap.jobs.held[rows] != BY_HAND)]
    return tuple(JobId(j) for j in snap.jobs.job_id[these].tolist())


def in_window(snap: Snapshot, ranked: Rows, of: Bool, size: int) -> Bool:
    """``(len(ranked),)`` bool: among the first *size* of its partition of those marked in *of*."""
    inside = np.zeros(len(ranked), dtype=np.bool_)
    partition = snap.jobs.partition[ranked]
    for part in snap.managed.nonzero()[0].tolist():
        inside[(of & (partition == part)).nonzero()[0][:size]] = True
    return inside
