"""How the jobs of a trace really fared: when they ran.

A simulation does not need it; who draws what really happened beside it does. Only Slurm's
accounting tells it (`traces.slurm.sacct`), so its file is read once more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slurm_dl.model.completed_jobs import Records, Runs
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Ending, Trace
from slurm_dl.slurm.accounting.past_jobs import AccountedRun
from slurm_dl.traces.builder import Gathering
from slurm_dl.traces.slurm.sacct import SACCT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedSchedule:
    """What a file tells beyond the trace that was read from it."""

    records: Records  # The jobs with their real runs; one whose start is not known never ran

    @property
    def knows_runs(self) -> bool:
        """Whether it is known of any job when it ran."""
        return len(self.records.runs) > 0


def read_recorded(path: Path, trace: Trace) -> RecordedSchedule | None:
    """What really became of the jobs of *trace*; None if its format does not tell.

    Runs without GPUs, without a start, or that start before their job was submitted are left out.

    Args:
        path: The file that *trace* was read from.

    Raises:
        ConfigError: The file cannot be read, or is another one by now.
    """
    if trace.format != SACCT.name:
        return None
    told = SACCT.runs(path, Gathering(str(path)))
    if missing := next((job_id for job_id in trace.job_id if job_id not in told), None):
        msg = f"{path}: job {missing} is not in it any more; it was changed while it was read"
        raise ConfigError(msg)
    of_jobs = [told[job_id] for job_id in trace.job_id]
    return RecordedSchedule(records=_records(trace, of_jobs))


def _records(trace: Trace, of_jobs: list[list[AccountedRun]]) -> Records:
    n = len(trace)
    start_s, end_s = np.full(n, np.nan), np.full(n, np.nan)
    service_gpu_s = np.zeros(n)
    preemptions = np.zeros(n, dtype=np.int32)
    runs: list[tuple[float, int, float, float]] = []
    for row, (submit_s, of_job) in enumerate(zip(trace.submit_s.tolist(), of_jobs, strict=True)):
        again: Counter[int] = Counter()
        for run in of_job:
            # A start that is not known is NaN.
            if not (run.start_s >= submit_s and run.ran_s > 0 and run.gpus > 0):
                continue
            ended_s = run.start_s + run.ran_s
            runs.append((ended_s, row, run.start_s, run.gpus))
            start_s[row] = np.fmin(start_s[row], run.start_s)
            end_s[row] = np.fmax(end_s[row], ended_s)
            service_gpu_s[row] += run.ran_s * run.gpus
            again[run.component] += 1
        preemptions[row] = max(again.values(), default=1) - 1
    runs.sort()
    ran = np.array(runs, dtype=np.float64).reshape(-1, 4)
    return Records(
        job_id=trace.job_id,
        user=trace.user,
        users=trace.users,
        gpus=trace.gpus,
        submit_s=trace.submit_s,
        start_s=start_s,
        end_s=end_s,
        alone_s=trace.duration_s,
        service_gpu_s=service_gpu_s,
        preemptions=preemptions,
        promotions=np.zeros(n, dtype=np.int32),
        success=~np.isnan(end_s) & (trace.ending == Ending.COMPLETED),
        runs=Runs(
            job=ran[:, 1].astype(np.int32), start_s=ran[:, 2], end_s=ran[:, 0], gpus=ran[:, 3]
        ),
    )
