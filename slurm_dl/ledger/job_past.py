"""The ledger's record of one job: its runs, and each preemption."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_dl.ledger.attained_service import EndedRun
from slurm_dl.ledger.completions import JobEnding
from slurm_dl.model.handover import Purpose
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.shape import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveWay:
    """One time that a job gave its GPUs back.

    Attributes:
        at_s: When its run was seen gone, epoch seconds.
        notice_s: From the signal until then, seconds; 0 if nobody knows.
        gpus: GPUs it gave.
        handover_id: The hand-over it was for.
        purpose: What that was for; None if it is not known any more, and with it the rest.
        beneficiaries: Jobs the GPUs went to.
        signal: What was sent.
        ended: See `Victim.ended`.
        held: GPUs it held; 0 if it is not known any more.
        then: See `Victim.then`.
    """

    at_s: float
    notice_s: float
    gpus: float
    handover_id: HandoverId
    purpose: Purpose | None = None
    beneficiaries: tuple[JobId, ...] = ()
    signal: str = ""
    ended: int = 0
    held: float = 0.0
    then: Shape | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """The ledger's record of one job.

    Attributes:
        job_id: The job.
        attained_gpu_s: GPU-seconds over all its runs.
        ran_s: Seconds over all its runs.
        first_submit_s: First submit time, epoch seconds; 0 if it is not known any more.
        last_seen_s: When Slurm last listed it, epoch seconds; 0 if that is not known any more.
        preemptions: How often it was preempted.
        incomplete: It ran unseen: it has received at least that much.
        runs: Runs that are over, oldest first.
        gave_way: Each time it gave way, oldest first.
        uids: Whose it was, as far as anybody wrote that down.
        ending: How it ended; None if nobody saw that, or it is not over.
    """

    job_id: JobId
    attained_gpu_s: float
    ran_s: float
    first_submit_s: float = 0.0
    last_seen_s: float = 0.0
    preemptions: int = 0
    incomplete: bool = False
    runs: tuple[EndedRun, ...] = ()
    gave_way: tuple[GaveWay, ...] = ()
    uids: frozenset[int] = frozenset()
    ending: JobEnding | None = None
