"""Muri (SIGCOMM'22): Tiresias' columns in milliseconds, and the time of one iteration.

Muri counts progress in iterations, so a job's length is iterations x iteration_time. That is
shorter than the duration column by less than one iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slurm_dl.backends.traces.gather import JobLine
from slurm_dl.backends.traces.table import TableFormat
from slurm_dl.backends.traces.values import amount, job_id, name, number, whole_gpus

_MS_PER_S: Final = 1000


def _job(_nth: int, fields: Sequence[str]) -> JobLine:
    given_id, gpus, submit_ms, iterations, iteration_ms, model = fields
    work_ms = number(iterations, "iterations") * number(iteration_ms, "iteration_time")
    return JobLine(
        job_id=job_id(given_id),
        submit_s=amount(submit_ms, "submit_time") / _MS_PER_S,
        duration_s=work_ms / _MS_PER_S,
        gpus=whole_gpus(gpus, "num_gpu"),
        model=name(model, "model_name"),
    )


MURI: Final = TableFormat(
    name="muri",
    about="Rivendile/Muri simulator: Tiresias' columns in ms, with iteration_time",
    columns=(("job_id",), ("num_gpu",), ("submit_time",), ("iterations",), ("iteration_time",)),
    optional=(("model_name",),),
    job=_job,
)
