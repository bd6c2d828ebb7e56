"""One finished job, as reports read it."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_dl.model.ids import JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What a job's life looked like once it was over. Metrics come from these alone.

    Attributes:
        gpus: GPUs it held while it ran.
        submit_s: First submission, epoch seconds.
        start_s: First start, epoch seconds.
        end_s: End of the last run, epoch seconds.
        service_gpu_s: GPU-seconds over all its runs.
        lost_gpu_s: Of those, GPU-seconds whose work did not survive a preemption.
        preemptions: How often it was put back into the queue.
        completed: It ended with success.
    """

    job_id: JobId
    user: str
    gpus: float
    submit_s: float
    start_s: float
    end_s: float
    service_gpu_s: float
    lost_gpu_s: float = 0.0
    preemptions: int = 0
    completed: bool = True

    @property
    def jct_s(self) -> float:
        """Job completion time: from first submission to the end, seconds."""
        return self.end_s - self.submit_s
