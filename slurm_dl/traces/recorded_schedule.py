"""How the jobs of a trace really fared: when they ran.

A simulation does not need it; who draws what really happened beside it does. Only Slurm's
accounting tells it (`traces.slurm.sacct`), so its file is read once more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.job_record import Records, Runs
from slurm_dl.model.trace import Ending, Trace
from slurm_dl.traces.builder import BadValue, Gathering
from slurm_dl.traces.field_values import moment_s
from slurm_dl.traces.slurm.sacct import SACCT, RunLine, SacctHistory


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
    lines: defaultdict[tuple[str, str], list[RunLine]] = defaultdict(list)
    history = SacctHistory(lambda line: lines[line.job].append(line))
    jobs = Gathering(str(path))
    history.take_all(path, jobs)
    told = {job_id: lines[job] for job, job_id in history.give(jobs).items()}
    if missing := next((job_id for job_id in trace.job_id if job_id not in told), None):
        msg = f"{path}: job {missing} is not in it any more; it was changed while it was read"
        raise ConfigError(msg)
    of_jobs = [told[job_id] for job_id in trace.job_id]
    return RecordedSchedule(records=_records(trace, of_jobs))


def _records(trace: Trace, of_jobs: list[list[RunLine]]) -> Records:
    n = len(trace)
    start_s, end_s = np.full(n, np.nan), np.full(n, np.nan)
    service_gpu_s = np.zeros(n)
    preemptions = np.zeros(n, dtype=np.int32)
    runs: list[tuple[float, int, float, float]] = []
    for row, (submit_s, lines) in enumerate(zip(trace.submit_s.tolist(), of_jobs, strict=True)):
        again: Counter[str] = Counter()
        for line in lines:
            began_s = _start_s(line)
            if not (began_s >= submit_s and line.elapsed_s > 0 and line.gpus > 0):
                continue
            ended_s = began_s + line.elapsed_s
            runs.append((ended_s, row, began_s, line.gpus))
            start_s[row] = np.fmin(start_s[row], began_s)
            end_s[row] = np.fmax(end_s[row], ended_s)
            service_gpu_s[row] += line.elapsed_s * line.gpus
            again[line.component] += 1
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


def _start_s(line: RunLine) -> float:
    """Seconds; NaN if it is not known."""
    try:
        return moment_s(line.start, "Start")
    except BadValue:
        return float("nan")
