"""Chronus (SoCC'21): Philly jobs with deadlines; the virtual cluster stands for the user.

The unit of time is not documented. Minutes are assumed: the longest submission, 20,151, is then
14 days, and the durations are like Philly's. Deadlines are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slurm_dl.backends.traces.gather import JobLine
from slurm_dl.backends.traces.table import TableFormat
from slurm_dl.backends.traces.values import amount, job_id, name, number, whole_gpus

_S_PER_MINUTE: Final = 60


def _job(_nth: int, fields: Sequence[str]) -> JobLine:
    given_id, user, gpus, submit_min, duration_min, model = fields
    return JobLine(
        job_id=job_id(given_id),
        submit_s=amount(submit_min, "submit_time") * _S_PER_MINUTE,
        duration_s=number(duration_min, "duration") * _S_PER_MINUTE,
        gpus=whole_gpus(gpus, "num_gpu"),
        user=name(user, "user"),
        model=name(model, "model_name"),
    )


CHRONUS: Final = TableFormat(
    name="chronus",
    about="S-Lab-System-Group/ChronusArtifact: Tiresias' columns with deadlines (minutes assumed)",
    columns=(("job_id",), ("user",), ("num_gpu",), ("submit_time",), ("duration",)),
    optional=(("model_name",),),
    only=frozenset({"expect_time_list"}),
    job=_job,
)
