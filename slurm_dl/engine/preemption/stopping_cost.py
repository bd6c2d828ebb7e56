"""Cost of stopping a running job: work that is lost or done twice, and time to set it up again.

In GPU-seconds it is GPUs x (save + restore + p x time since its last checkpoint), where p is
the share of that time's work that is expected to be lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.settings import Settings
from slurm_dl.model.breaker import NOT_OURS
from slurm_dl.model.contract import NO_CLAIM
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, F64, Bool, is_in
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import DEFAULT_HOLD_S, Snapshot

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoppingCost:
    """Cost of stopping each of some running jobs, in its parts.

    Attributes:
        share: ``(r,)`` p, the share of the work since the last checkpoint that is expected to be
            lost, 0 to 1.
    """

    gpus: F64  # ``(r,)`` GPUs they hold
    save_restore_s: F64  # ``(r,)`` seconds that a save and a restore take
    share: F64
    since_s: F64  # ``(r,)`` seconds since the last checkpoint, or since the start of the run
    has_saved: Bool  # ``(r,)`` bool, a checkpoint of this run was reported

    @property
    def gpu_s(self) -> F64:
        """``(r,)`` GPU-seconds; what may be lost in whole ones, so that sums are exact."""
        cost: F64 = self.gpus * self.save_restore_s + np.rint(self.gpus * self.share * self.since_s)
        return cost

    def in_words(self) -> str:
        """The sum of the first of them, as one line."""
        gpus, share = float(self.gpus[0]), float(self.share[0])
        many = f"{gpus:g} GPU" + ("" if gpus == 1 else "s")
        since, silent = "its last checkpoint", ""
        if not self.has_saved[0]:
            since, silent = "it started", ": it has reported no checkpoint in this run"
        return (
            f"about {self.gpu_s[0]:,.0f} GPU-s: {many} x ({self.save_restore_s[0]:g} s to save and "
            f"restore + {share:g} x {self.since_s[0]:.0f} s since {since}){silent}"
        )


def stopping_cost(snap: Snapshot, rows: Rows, settings: Settings) -> StoppingCost:
    """Cost of stopping each of the running jobs at *rows*.

    A job that acknowledged when it was last preempted is expected to lose no work; one that did
    not, all since its last checkpoint; one that was never preempted `Preemption.unsaved_share` of
    it. Users write when the last checkpoint was: one in the future counts as one of now, one
    before the run as none. No claim makes a job dearer: nobody could tell a true one from a lie.
    """
    ids, start_s = snap.jobs.job_id[rows], snap.jobs.start_s[rows]
    claims = [snap.seen.claims.get(JobId(j), NO_CLAIM) for j in ids.tolist()]
    saved_s = np.array([c.saved_s or 0 for c in claims], dtype=np.float64)
    limits, answers = settings.preemption, snap.answers
    share = np.full(len(rows), limits.unsaved_share)
    share[is_in(ids, [j for j, acked in answers.items() if acked])] = 0.0
    share[is_in(ids, [j for j, acked in answers.items() if not acked])] = 1.0
    return StoppingCost(
        gpus=snap.jobs.gpus[rows],
        save_restore_s=save_restore_s(
            snap, rows, settings.placement.profiles, limits.checkpoint_cost_s
        ),
        share=share,
        since_s=np.maximum(snap.now_s - np.maximum(saved_s, start_s), 0.0),
        has_saved=saved_s >= start_s,
    )


def save_restore_s(
    snap: Snapshot, rows: Rows, profiles: Mapping[str, Profile], otherwise_s: float
) -> F64:
    """``(len(rows),)`` seconds that a save and a restore of each job take.

    Args:
        otherwise_s: For jobs whose model's profile does not have both, seconds.
    """
    seconds = np.full(len(rows), otherwise_s)
    for i, job_id in enumerate(snap.jobs.job_id[rows].tolist() if profiles else ()):
        model = snap.seen.claim(JobId(job_id)).model
        profile = None if model is None else profiles.get(model)
        if profile is None:
            continue
        save_s, restore_s = profile.checkpoint.save_s, profile.checkpoint.restore_s
        if save_s is not None and restore_s is not None:
            seconds[i] = save_s + restore_s
    return seconds


def setup_s(snap: Snapshot, profiles: Mapping[str, Profile], checkpoint_cost_s: float) -> F64:
    """``(n,)`` seconds that stopping each job and starting it again takes.

    Three parts: the notice (from the signal until the run is gone, as measured when the job was
    last preempted, else the median of the last hour), the requeue hold (the shortest time within a
    day from a requeue to the next start), and the restore (half of `save_restore_s`). Where no
    notice was measured, the save is the other half.

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
