"""Alibaba PAI (cluster-trace-gpu-v2020, NSDI'22): pai_job_table.csv joined with pai_task_table.csv.

The tables have no header; their columns are those of the release's README. A job's GPUs are
inst_num x plan_gpu / 100 summed over its tasks, often a fraction. Its duration is the time from
the first start to the last end of its tasks with GPUs; its submission is the job's start_time,
which the release defines as just that. Both tables stand in one directory, packed or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Ending
from slurm_dl.text import shown
from slurm_dl.traces.builder import BadValue, Gathering, JobLine, Reason
from slurm_dl.traces.field_values import amount, job_id, name, number
from slurm_dl.traces.file_lines import Head, numbered_lines, opened
from slurm_dl.traces.table_format import gather, rows

JOB_COLUMNS: Final = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
TASK_COLUMNS: Final = (
    *("job_name", "task_name", "inst_num", "status", "start_time"),
    *("end_time", "plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)

_JOB_TABLE: Final = "pai_job_table.csv"
_TASK_TABLE: Final = "pai_task_table.csv"
_ENDINGS: Final = {"Terminated": Ending.COMPLETED, "Failed": Ending.FAILED}
_NOT_ENDED: Final = frozenset({"Running", "Waiting"})


@dataclass(slots=True)
class _Tasks:
    """What the tasks of one job need together; `known` once each has a start and an end."""

    gpus: float = 0.0
    start_s: float = float("inf")
    end_s: float = 0.0
    known: bool = True


@dataclass(frozen=True, slots=True)
class PaiFormat:
    """A directory with both tables, or the job table in one."""

    name: str = "pai"
    about: str = "alibaba/clusterdata gpu-v2020: the directory of pai_job_table and pai_task_table"

    def recognizes(self, head: Head) -> bool:
        """Whether *head* is such a directory, or begins a job table."""
        if head.path.is_dir():
            return _table(head.path, _JOB_TABLE) is not None
        fields = head.first_line.split(",")
        return tuple(fields) == JOB_COLUMNS or (
            len(fields) == len(JOB_COLUMNS) and fields[3] in _NOT_ENDED | set(_ENDINGS)
        )

    def read(self, path: Path, jobs: Gathering) -> None:
        """Every job with GPUs into *jobs*.

        Raises:
            ConfigError: A table is missing.
        """
        directory = path if path.is_dir() else path.parent
        job_table = _table(path, _JOB_TABLE) if path.is_dir() else path
        task_table = _table(directory, _TASK_TABLE)
        if job_table is None or task_table is None:
            missing = _TASK_TABLE if job_table else _JOB_TABLE
            msg = f"{directory}: no {missing} in it; format 'pai' needs both tables"
            raise ConfigError(msg)
        tasks = _read_tasks(task_table)
        with opened(job_table) as stream:
            # Some copies have a header; the release has none.
            lines = numbered_lines(stream, jobs.file)
            body = ((line, text) for line, text in lines if text != ",".join(JOB_COLUMNS))
            found = rows(body, jobs, ",", {len(JOB_COLUMNS)})
            gather(found, jobs, lambda _nth, fields: _job(fields, tasks))


PAI: Final = PaiFormat()


def _table(directory: Path, file: str) -> Path | None:
    return next((p for p in (directory / file, directory / f"{file}.gz") if p.is_file()), None)


def _read_tasks(path: Path) -> dict[str, _Tasks]:
    """The tasks with GPUs by the name of their job; a task that cannot be read spoils its job."""
    found: dict[str, _Tasks] = {}
    with opened(path) as stream:
        for _line, text in numbered_lines(stream, str(path)):
            fields = (text or "").split(",")
            if fields == list(TASK_COLUMNS):
                continue
            if len(fields) != len(TASK_COLUMNS):
                found.setdefault(fields[0].strip(), _Tasks()).known = False
                continue
            job_name, _, inst_num, _, start, end, _, _, plan_gpu, _ = fields
            try:
                gpus = amount(plan_gpu or "0", "plan_gpu") / 100 * amount(inst_num, "inst_num")
            except BadValue:
                found.setdefault(job_name.strip(), _Tasks()).known = False
                continue
            if not gpus:
                continue
            tasks = found.setdefault(job_name.strip(), _Tasks())
            tasks.gpus += gpus
            try:
                tasks.start_s = min(tasks.start_s, amount(start, "start_time"))
                tasks.end_s = max(tasks.end_s, amount(end, "end_time"))
            except BadValue:
                tasks.known = False
    return found


def _job(fields: Sequence[str], tasks: dict[str, _Tasks]) -> JobLine:
    """A line of the job table as a job."""
    job_name, _, user, status, start, _ = fields
    status = status.strip()
    if status in _NOT_ENDED:
        raise BadValue(Reason.NOT_ENDED, f"status is {status}")
    if status not in _ENDINGS:
        raise BadValue(Reason.STATE, f"status is {shown(status)}")
    needs = tasks.get(job_name.strip())
    if needs is None:
        raise BadValue(Reason.NO_GPU, "no task with GPUs")
    if not needs.known:
        raise BadValue(Reason.BROKEN, "a task of it has no start, end or number of GPUs")
    return JobLine(
        job_id=job_id(job_name),
        submit_s=number(start, "start_time"),
        duration_s=needs.end_s - needs.start_s,
        gpus=needs.gpus,
        user=name(user, "user"),
        ending=_ENDINGS[status],
    )
