"""What one preemption cost, where each of its parts was measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """One preemption as it is billed: a run that was stopped, and the next one that goes on.

    Attributes:
        gpus: GPUs of the job.
        stopping_s: From the signal to the end of the run; 0 if it was not signalled.
        restoring_s: From the start of the next run until the training was where the checkpoint is.
        redone_s: Work of the stopped run that the next one had to do again.
    """

    gpus: float
    stopping_s: float
    restoring_s: float
    redone_s: float

    @property
    def lost_gpu_s(self) -> float:
        """GPU-seconds it cost. Time that a training used between signal and checkpoint counts."""
        parts = (self.stopping_s, self.restoring_s, self.redone_s)
        return self.gpus * sum(max(0.0, part) for part in parts)
