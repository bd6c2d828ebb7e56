"""Snapshot queries about victims and beneficiaries of a hand-over, and whom a job may displace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.preemption.eligibility import Victims
from slurm_dl.engine.settings import Preemption
from slurm_dl.model.contract import FINAL_STATUS
from slurm_dl.model.handover import Handover, Victim, VictimState
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, COMPLETING, I16, I64, PENDING, RUNNING, Bool, Held
from slurm_dl.model.sizes import size_of
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import ResourceRequests


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DisplacementRule:
    """The rule by which a waiting job displaces running jobs.

    By target, a waiting job that should hold GPUs displaces running ones that should not. By tier,
    it displaces those of a worse tier; where both hold, only if it should itself hold GPUs. Tiers
    are needed beside the target because the target counts GPUs, not nodes: a gang whose GPUs lie
    in pieces is in the target, and so may be all jobs that run on its nodes.

    Nobody displaces a job that runs in a partition of a higher PriorityTier.

    GPUs that a job was lent it gives back for any job that should hold GPUs, see `surplus`.
    """

    target: Bool  # ``(n,)`` bool, jobs that should hold GPUs
    tier: I16  # ``(n,)`` tier of each job
    by_target: bool  # Whether the target decides
    by_tier: bool  # Whether tiers decide
    may: Bool  # ``(n,)`` bool, jobs that displace others at all, see `eligibility.displacers`
    priority_tier: I64 | None = None  # ``(n,)`` PriorityTier of each job; None: all have the same
    lent: Bool | None = None  # ``(n,)`` bool, jobs that should be smaller; None: nobody

    def displaceable(self, row: int, rows: npt.NDArray[np.int64]) -> Bool:
        """``(len(rows),)`` bool: which of the jobs at *rows* the waiting job at *row* displaces."""
        below: Bool = np.zeros(len(rows), dtype=np.bool_)
        lent = None if self.lent is None or not self.target[row] else self.lent[rows]
        if not self.may[row]:
            return below if lent is None else lent
        if self.by_target and self.target[row]:
            below |= ~self.target[rows]
        if self.by_tier and (self.target[row] or not self.by_target):
            below |= self.tier[rows] > self.tier[row]
        if self.priority_tier is not None:
            below &= self.priority_tier[rows] <= self.priority_tier[row]
        return below if lent is None else below | lent

    def kinds(self) -> I64:
        """``(n,)`` a number for each job; jobs of one number displace the same jobs."""
        tier = self.tier.astype(np.int64) if self.by_tier else np.zeros(len(self.tier), np.int64)
        if self.priority_tier is not None:
            tier += self.priority_tier << 16
        kinds: I64 = tier * 4 + self.target * 2 + self.may
        return kinds


REQUEUE_WITHIN_S = 60.0
"""So long after its end a failed victim is tried to be requeued, and after its grace it may end."""

MOST_TRIES = 5
"""So often its requeue is tried at least, and what is left of it: a daemon may have been away."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HandoverContext:
    """A snapshot with the rules and limits that hand-overs are checked against."""

    snap: Snapshot
    rule: DisplacementRule  # Which running jobs a waiting job may displace
    candidates: Victims  # Who may be a victim
    limits: Preemption  # The site's limits
    needs: ResourceRequests  # What the waiting jobs ask for
    free: FreeResources  # What is free now; nobody may change it

    @property
    def rows(self) -> Mapping[JobId, int]:
        """Row in `Jobs` of each job id."""
        return self.snap.jobs.rows


def gone(victim: Victim, context: HandoverContext) -> str:
    """The end of the victim's run, in a word; empty while it runs or its GPUs are not free."""
    jobs = context.snap.jobs
    row = context.rows.get(victim.run.job_id)
    if row is None:
        return "" if context.snap.seen.may_list(victim.run.job_id) else "left"
    state = jobs.state[row]
    if state == COMPLETING or failed_of_signal(victim, context) != 0:
        return ""
    if state >= COMPLETED:
        return "finished"
    if state == PENDING or not _is_in_run(victim, row, context):
        return "requeued"
    shrinks = victim.state is VictimState.SHRINKING
    return "shrunk" if shrinks and size_of(jobs, row) == victim.then else ""


def _is_in_run(victim: Victim, row: int, context: HandoverContext) -> bool:
    jobs = context.snap.jobs
    same_count = int(jobs.restarts[row]) == victim.run.restarts
    return same_count and float(jobs.start_s[row]) == victim.run.start_s


def failed_of_signal(victim: Victim, context: HandoverContext) -> int | None:
    """Exit status of a victim that failed because it was asked to save, and may run again; or 0.

    Whatever the status is: a shell without a handler dies of the signal, a command may catch it and
    end with 1. An end that is final, or long after the grace, is the job's own. None: Slurm has not
    told the status. Of one that is back, and may have been requeued only in part, it is the status
    then.
    """
    seen, run = context.snap.seen, victim.run
    row, status = context.rows.get(run.job_id), seen.failed_with.get(run.job_id, 0)
    in_part = 0 < victim.tries < MOST_TRIES
    if row is not None and in_part and not _is_in_run(victim, row, context):
        return victim.ended
    if row is None or status in (0, FINAL_STATUS) or not _is_in_run(victim, row, context):
        return 0
    claim, end_s = seen.claim(run.job_id), float(seen.jobs.end_s[row])
    if not seen.jobs.requeueable[row] or claim.final_run == run.restarts:
        return 0
    match victim.state:
        case VictimState.SIGNALLING:  # A daemon died: it writes this just before it signals.
            due = claim.preempted_run == run.restarts
        case VictimState.SIGNALLED:
            late_s = victim.signalled_s + victim.contract.grace_s + REQUEUE_WITHIN_S
            due = end_s <= late_s
        case VictimState.REQUEUING:  # Refused, or ended as its grace was over, or a daemon died.
            due = in_part or seen.now_s <= end_s + REQUEUE_WITHIN_S
        case _:
            due = False
    return status if due else 0


def how_it_failed(status: int) -> str:
    """The end of a run in words, from the exit *status* that a shell reports."""
    signal = status - 128
    return f"ended by signal {signal}" if signal > 0 else f"ended with status {status}"


def is_waiting(job_id: JobId, context: HandoverContext) -> bool:
    """Whether the job could start if there were room for it."""
    row = context.rows.get(job_id)
    if row is None:
        return False
    jobs = context.snap.jobs
    return bool(jobs.state[row] == PENDING and jobs.held[row] == Held.NO and jobs.priority[row] > 0)


def still_waits(job_id: JobId, handover: Handover, context: HandoverContext) -> bool:
    """Whether *handover* has not made the job start; of a pending array, no task of it."""
    snap = context.snap
    if not is_waiting(job_id, context):
        return False
    text, jobs = snap.seen.texts.get(job_id), snap.jobs
    array, task, _ = ("", "", "") if text is None else text.label.partition("_")
    if not task:
        return True
    new = jobs.job_id[(jobs.state == RUNNING) & (jobs.start_s >= handover.opened_s)].tolist()
    labels = [snap.seen.texts[j].label for j in map(JobId, new) if j in snap.seen.texts]
    return not any(label.startswith(f"{array}_") for label in labels)


def is_running(victim: Victim, context: HandoverContext) -> bool:
    """Whether the job runs, in this run or another."""
    row = context.rows.get(victim.run.job_id)
    return row is not None and context.snap.jobs.state[row] == RUNNING


def agrees(victim: Victim, context: HandoverContext) -> bool:
    """Whether its contract is still the one by which it was chosen."""
    return context.snap.seen.claim(victim.run.job_id).contract == victim.contract


def is_out(victim: Victim, context: HandoverContext) -> bool:
    """Whether a job that was requeued has not come back yet."""
    row = context.rows.get(victim.run.job_id)
    if row is None or victim.outcome != "requeued":
        return False
    jobs = context.snap.jobs
    return bool(jobs.state[row] == PENDING and jobs.held[row] != Held.USER_OR_ADMIN)
