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
        purpose: What that was for; None if it is not known any more, and with it the rest.
    """

    at_s: float  # When its run was seen gone, epoch seconds
    notice_s: float  # From the signal until then, seconds; 0 if nobody knows
    gpus: float  # GPUs it gave
    handover_id: HandoverId  # The hand-over it was for
    purpose: Purpose | None = None
    beneficiaries: tuple[JobId, ...] = ()  # Jobs the GPUs went to
    signal: str = ""  # What was sent
    ended: int = 0  # See `Victim.ended`
    held: float = 0.0  # GPUs it held; 0 if it is not known any more
    then: Shape | None = None  # See `Victim.then`


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """The ledger's record of one job.

    Attributes:
        last_seen_s: When Slurm last listed it, epoch seconds; 0 if that is not known any more.
    """

    job_id: JobId  # The job
    attained_gpu_s: float  # GPU-seconds over all its runs
    ran_s: float  # Seconds over all its runs
    first_submit_s: float = 0.0  # First submit time, epoch seconds; 0 if it is not known any more
    last_seen_s: float = 0.0
    preemptions: int = 0  # How often it was preempted
    incomplete: bool = False  # It ran unseen: it has received at least that much
    runs: tuple[EndedRun, ...] = ()  # Runs that are over, oldest first
    gave_way: tuple[GaveWay, ...] = ()  # Each time it gave way, oldest first
    uids: frozenset[int] = frozenset()  # Whose it was, as far as anybody wrote that down
    ending: JobEnding | None = None  # How it ended; None if nobody saw that, or it is not over
