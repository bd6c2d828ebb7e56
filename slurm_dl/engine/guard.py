"""Who may be preempted, and who may be preempted for.

Each predicate answers with the reason, not with False: the same words go to ``why``, to the audit
log and to the admin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.settings import Preemption
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Bool, Held, JobState
from slurm_dl.model.snapshot import Snapshot

WAITS_FOR = {
    Held.USER_OR_ADMIN: "it is held",
    Held.DEPENDENCY: "it waits for another job (dependency)",
    Held.BEGIN_TIME: "it is not eligible yet (begin time, or the interval after a requeue)",
    Held.LIMIT: "it is over a limit of its account, QOS or partition",
    Held.RESERVATION: "it waits for a reservation",
    Held.UNAVAILABLE: "what it asks for is not available (constraints, nodes, licences)",
}
"""Why a pending job cannot start, whatever is free."""


@dataclass(frozen=True, slots=True, eq=False)
class Victims:
    """The running jobs, and which of them may be preempted.

    Attributes:
        rows: ``(r,)`` rows in `Jobs` of the managed running jobs.
        protected: One reason for each, empty if it may be preempted.
    """

    rows: npt.NDArray[np.int64]
    protected: tuple[str, ...]

    @property
    def may(self) -> npt.NDArray[np.int64]:
        """Rows in `Jobs` of those that may be preempted."""
        free = np.array([not reason for reason in self.protected], dtype=np.bool_)
        return self.rows[free]


def victims(snap: Snapshot, limits: Preemption) -> Victims:
    """Every managed running job with the reason why it is left alone, if it is.

    A job that has not opted in by a contract is never a victim.
    """
    jobs, memory, now_s = snap.jobs, snap.memory, snap.now_s
    rows = np.flatnonzero(snap.is_managed() & (jobs.state == JobState.RUNNING))
    busy = {v.run.job_id for h in snap.handovers for v in h.victims} | {
        b for h in snap.handovers for b in h.beneficiaries
    }
    ran_s = now_s - jobs.start_s[rows]
    left_s = jobs.start_s[rows] + jobs.limit_s[rows] - now_s
    since_s = now_s - memory.last_preempted_s[rows]
    preempted = memory.preemptions[rows]
    gpus = jobs.gpus[rows]
    reasons = []
    for i, row in enumerate(rows.tolist()):
        job_id = JobId(int(jobs.job_id[row]))
        contract = snap.seen.claim(job_id).contract
        reason = ""
        if contract is None:
            reason = "it has not opted in to preemption"
        elif not jobs.requeueable[row]:
            reason = "Slurm may not requeue it (--no-requeue, not a batch job, or a het job)"
        elif gpus[i] != int(gpus[i]):
            reason = "it shares a GPU with other jobs"
        elif job_id in busy:
            reason = "it is part of a hand-over already"
        elif contract.grace_s > limits.max_grace_s:
            reason = f"its grace of {contract.grace_s:.0f} s is above the site's limit"
        elif ran_s[i] < limits.min_quantum_s:
            reason = f"it is inside its minimum quantum of {limits.min_quantum_s:.0f} s"
        elif preempted[i] >= limits.max_preemptions:
            reason = f"it has been preempted {preempted[i]} times, the most allowed"
        elif since_s[i] < limits.cooldown_s:
            reason = f"it was preempted less than {limits.cooldown_s:.0f} s ago"
        elif left_s[i] < limits.limit_reserve_s:
            reason = "it is near its time limit"
        reasons.append(reason)
    return Victims(rows, tuple(reasons))


def waiting(snap: Snapshot) -> Bool:
    """``(n,)`` bool: managed, pending, and kept from starting by nothing but lack of room."""
    jobs = snap.jobs
    mask: Bool = (
        snap.is_managed()
        & (jobs.state == JobState.PENDING)
        & (jobs.held == Held.NO)
        & (jobs.priority > 0)
    )
    return mask


def not_beneficiary(snap: Snapshot, row: int) -> str:
    """Why nobody is preempted for the waiting job at *row*; empty if somebody may be."""
    gpus = float(snap.jobs.gpus[row])
    if gpus <= 0:
        return "it asks for no GPU"
    if gpus != int(gpus):
        return "it asks for shares of a GPU"
    return ""
