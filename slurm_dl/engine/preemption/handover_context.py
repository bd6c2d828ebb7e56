"""What a hand-over is judged by: the snapshot, and what it says of those who take part.

It stands apart from `handover_protocol` because these are questions about what is seen, whatever
step comes next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_dl.engine.preemption.displacement import DisplacementRule
from slurm_dl.engine.preemption.eligibility import Victims
from slurm_dl.engine.settings import Preemption
from slurm_dl.model.handover import Victim
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, COMPLETING, PENDING, RUNNING, Held
from slurm_dl.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HandoverContext:
    """What a hand-over is judged by.

    Attributes:
        rows: Row in `Jobs` of each job id.
        rule: Which running jobs a waiting job may displace.
        candidates: Who may be a victim.
        limits: The site's limits.
    """

    snap: Snapshot
    rows: Mapping[JobId, int]
    rule: DisplacementRule
    candidates: Victims
    limits: Preemption


def gone(victim: Victim, context: HandoverContext) -> str:
    """How the victim's run ended, in a word; empty while it has not, or its GPUs are not free."""
    jobs = context.snap.jobs
    row = context.rows.get(victim.run.job_id)
    if row is None:
        return "" if context.snap.seen.may_list(victim.run.job_id) else "left"
    state = jobs.state[row]
    if state >= COMPLETED:
        return "finished"
    if state == COMPLETING:
        return ""
    same_run = (
        state != PENDING
        and int(jobs.restarts[row]) == victim.run.restarts
        and float(jobs.start_s[row]) == victim.run.start_s
    )
    return "" if same_run else "requeued"


def is_waiting(job_id: JobId, context: HandoverContext) -> bool:
    """Whether the job could start if there were room for it."""
    row = context.rows.get(job_id)
    if row is None:
        return False
    jobs = context.snap.jobs
    return bool(jobs.state[row] == PENDING and jobs.held[row] == Held.NO and jobs.priority[row] > 0)


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
