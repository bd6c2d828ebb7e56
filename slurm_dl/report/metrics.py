"""What a finished workload amounted to, computed from the records of its jobs alone.

Pure arithmetic: the same numbers come out for a real cluster, a simulation and a trace. Means and
percentiles are over the jobs that completed; jobs that did not are only counted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_dl.model.record import JobRecord

NAN = float("nan")
"""What a mean over no jobs is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One workload in numbers; a figure over no completed job is NaN.

    Attributes:
        jobs: Jobs in all.
        completed: Of those, how many ended with success.
        mean_jct_s: Mean job completion time, from first submission to the last end.
        median_jct_s: Median; of an even number of jobs the mean of the middle two.
        p95_jct_s: 95th percentile by nearest rank, so it is the JCT of one of the jobs.
        makespan_s: From the first submission to the last end.
        utilisation_frac: GPU-seconds of service / (GPUs x makespan).
        service_gpu_s: GPU-seconds of service, all jobs and runs.
        lost_gpu_s: Of those, GPU-seconds that preemptions cost.
        preemptions: How often a job was put back into the queue.
    """

    jobs: int
    completed: int
    mean_jct_s: float
    median_jct_s: float
    p95_jct_s: float
    makespan_s: float
    utilisation_frac: float
    service_gpu_s: float
    lost_gpu_s: float
    preemptions: int


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


def summarise(records: Sequence[JobRecord], *, gpus: float) -> Summary:
    """The workload in numbers.

    Args:
        gpus: GPUs of the cluster, above 0.
    """
    if not gpus > 0:
        msg = f"gpus must be above 0 (got {gpus})"
        raise ValueError(msg)
    completed = [r for r in records if r.completed]
    jct_s = [r.jct_s for r in completed]
    makespan_s = (
        max(r.end_s for r in records) - min(r.submit_s for r in records) if records else NAN
    )
    service_gpu_s = math.fsum(r.service_gpu_s for r in records)
    return Summary(
        jobs=len(records),
        completed=len(completed),
        mean_jct_s=mean(jct_s),
        median_jct_s=statistics.median(jct_s) if jct_s else NAN,
        p95_jct_s=percentile(jct_s, 95),
        makespan_s=makespan_s,
        utilisation_frac=service_gpu_s / (gpus * makespan_s) if makespan_s > 0 else NAN,
        service_gpu_s=service_gpu_s,
        lost_gpu_s=math.fsum(r.lost_gpu_s for r in records),
        preemptions=sum(r.preemptions for r in records),
    )


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean; NaN of nothing."""
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else NAN


def percentile(values: Iterable[float], percent: float) -> float:
    """Nearest rank: the smallest value that at least *percent* of all do not exceed.

    Args:
        percent: Above 0, at most 100.

    Returns:
        One of the values; NaN if there are none.
    """
    if not 0 < percent <= 100:  # noqa: PLR2004 - a whole is 100 percent
        msg = f"percent must be above 0 and at most 100 (got {percent})"
        raise ValueError(msg)
    ordered = sorted(values)
    if not ordered:
        return NAN
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]
