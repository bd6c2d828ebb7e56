"""Seconds that a job loses by being stopped and started again, from measurements.

Three parts: the notice (from the signal until the run is gone, as measured when the job was last
preempted, else the median of the last hour), the requeue hold (the shortest time within a day
from a requeue to the next start), and the restore (half of `stopping_cost.save_restore_s`). Where
no notice was measured, the save is the other half.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slurm_dl.engine.preemption.stopping_cost import save_restore_s
from slurm_dl.model.breaker import NOT_OURS
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, F64, is_in
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import DEFAULT_HOLD_S, Snapshot


def setup_s(snap: Snapshot, profiles: Mapping[str, Profile], checkpoint_cost_s: float) -> F64:
    """``(n,)`` seconds that stopping each job and starting it again takes.

    Args:
        profiles: What is known of models, by name.
        checkpoint_cost_s: Save and restore of a job whose model's profile does not tell.
    """
    jobs = snap.jobs
    rows = (jobs.state < COMPLETING).nonzero()[0]
    found = np.full(len(jobs), checkpoint_cost_s)
    found[rows] = save_restore_s(snap, rows, profiles, checkpoint_cost_s)
    if snap.taken:
        # Half of save and restore is the save, which the notice has in it.
        notice_s = {taken.job_id: taken.notice_s for taken in snap.taken}
        notices = np.full(len(jobs), np.median([taken.notice_s for taken in snap.taken]))
        own = is_in(jobs.job_id, list(notice_s))
        notices[own] = [notice_s[JobId(j)] for j in jobs.job_id[own].tolist()]
        found = found / 2 + notices
    return found + _hold_s(snap)


def _hold_s(snap: Snapshot) -> float:
    """Seconds from a requeue until the job may start."""
    held_s = [
        one.restarted_s - one.requeued_s
        for one in snap.restarts
        if one.restarted_s and one.handover_id != NOT_OURS
    ]
    return min(held_s, default=DEFAULT_HOLD_S)
