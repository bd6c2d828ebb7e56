"""The parts of the daemon that answers are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from slurm_dl.daemon.audit_log import AuditLog
from slurm_dl.daemon.breaker_resets import not_here
from slurm_dl.daemon.control.job_history import JobHistory
from slurm_dl.daemon.live_recordings import LiveRecordings
from slurm_dl.daemon.pause import PauseSwitch
from slurm_dl.daemon.published_state import Board, Reloaded
from slurm_dl.model.breaker import Breaker, BreakerName


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlContext:
    """The parts of the daemon that a request may read or move.

    Attributes:
        reload: Read the configuration again on behalf of an actor; waits for the outcome.
        wake: Begin the next cycle now.
        past: What became of jobs.
        recordings: Told of each cycle.
        reset_breaker: Let a breaker go on behalf of an actor; gives the breaker as it was, or
            raises `NotResetError`.
    """

    board: Board
    audit: AuditLog
    pause: PauseSwitch
    reload: Callable[[str], Reloaded]
    wake: Callable[[], None]
    reset_breaker: Callable[[BreakerName, str], Breaker] = not_here
    past: JobHistory = field(default_factory=JobHistory)
    recordings: LiveRecordings = field(default_factory=LiveRecordings)
