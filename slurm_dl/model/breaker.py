"""What the circuit breakers go by: GPUs taken back, what became of who lost them, and the trips.

A limit keeps the daemon within a bound and goes on; a breaker that trips stops it from beginning
anything new until it re-arms or an admin resets it. See `engine.circuit_breakers`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from slurm_dl.model.ids import HandoverId, JobId

BreakerName = Literal["gpus_per_hour", "cluster_share", "failed_restarts"]
"""The breakers: GPUs taken back in an hour; the share of the managed GPUs that was taken back in
an hour; jobs that did not come back from a preemption."""

BREAKERS: tuple[BreakerName, ...] = get_args(BreakerName)
"""Their names, in the order in which they are shown."""

NOT_OURS = HandoverId(0)  # In place of a hand-over's number where we did not put the job back
OWNER_UNKNOWN = -1  # In place of a uid where nobody wrote down whose job it was


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """Where one breaker stands.

    Attributes:
        reset_s: When it was reset or re-armed last, epoch seconds; 0 if never. What was before
            counts no more.
        counts_from: First hand-over whose GPUs count: those begun before the reset do not.
        rearm_s: Time from the trip until it re-arms by itself, seconds; 0: only a reset ends it.
    """

    name: BreakerName
    tripped_s: float = 0.0  # When it tripped, epoch seconds; 0 while it has not
    why: str = ""  # What it saw then, in numbers; it names no job. Empty while it has not tripped.
    jobs: tuple[JobId, ...] = ()  # The jobs it tripped because of, if it is about jobs
    reset_s: float = 0.0
    reset_by: str = ""  # Who reset it; empty if it re-armed by itself
    counts_from: HandoverId = NOT_OURS
    rearm_s: float = 0.0

    @property
    def rearms_at_s(self) -> float:
        """When it re-arms by itself, epoch seconds; inf: it has not tripped, or never does."""
        return self.tripped_s + self.rearm_s if self.tripped_s and self.rearm_s else math.inf

    def at(self, now_s: float) -> Breaker:
        """As it stands at *now_s*: one that has re-armed by then is as after a reset."""
        if now_s < self.rearms_at_s:
            return self
        return Breaker(name=self.name, reset_s=self.rearms_at_s, counts_from=self.counts_from)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """GPUs that were taken back from one run."""

    at_s: float  # When the run was seen gone, epoch seconds
    job_id: JobId
    gpus: float  # GPUs it has fewer since
    notice_s: float  # Time from the signal until it was gone, seconds
    handover_id: HandoverId


Fate = Literal["open", "well", "failed", "stuck", "unknown"]
"""What became of a job that was put back into the queue. ``open``: nobody knows yet, it may wait
for its turn as long as it takes. ``well``: it ran on for a while, or completed. ``failed``: it
started and failed soon. ``stuck``: Slurm will not start it any more. ``unknown``: it was cancelled,
put back once more, or is not listed any more, which says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """One run of a job that opted in and was put back into the queue, and what came after it.

    Attributes:
        handover_id: The hand-over that put it back, or `NOT_OURS`: Slurm or the job itself did.
    """

    job_id: JobId
    restarts: int  # Restart count of the run that was ended
    gpus: float  # GPUs that run held
    requeued_s: float  # When it was seen to be back in the queue, epoch seconds
    handover_id: HandoverId = NOT_OURS
    restarted_s: float = 0.0  # Start of the next run, epoch seconds; 0 while it has not started
    fate: Fate = "open"  # What became of it
    settled_s: float = 0.0  # When that was seen, epoch seconds; 0 while it is open
    uid: int = OWNER_UNKNOWN  # Whose job it is, or `OWNER_UNKNOWN`
