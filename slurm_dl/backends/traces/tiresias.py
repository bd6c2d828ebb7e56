"""Tiresias (NSDI'19), bundled traces of its simulator: whole seconds from the first job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slurm_dl.backends.traces.gather import JobLine
from slurm_dl.backends.traces.table import TableFormat
from slurm_dl.backends.traces.values import amount, job_id, name, number, whole_gpus


def _job(_nth: int, fields: Sequence[str]) -> JobLine:
    given_id, gpus, submit_s, duration_s, model = fields
    return JobLine(
        job_id=job_id(given_id),
        submit_s=amount(submit_s, "submit_time"),
        duration_s=number(duration_s, "duration"),
        gpus=whole_gpus(gpus, "num_gpu"),
        model=name(model, "model_name"),
    )


TIRESIAS: Final = TableFormat(
    name="tiresias",
    about="SymbioticLab/Tiresias simulator: job_id,num_gpu,submit_time,...,duration (seconds)",
    columns=(("job_id",), ("num_gpu",), ("submit_time",), ("duration",)),
    optional=(("model_name",),),
    only=frozenset({"interval"}),
    never=frozenset({"iteration_time", "expect_time_list"}),
    job=_job,
)
