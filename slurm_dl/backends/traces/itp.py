"""Microsoft ITP clusters (elasticflow-traces, ASPLOS'23): raw, or enriched with a model.

The deadline, batch size and iterations of enriched files were drawn at random by their authors;
duration is the one of the real job, and the one that is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slurm_dl.backends.traces.gather import JobLine
from slurm_dl.backends.traces.table import TableFormat
from slurm_dl.backends.traces.values import amount, job_id, name, number, whole_gpus


def _job(_nth: int, fields: Sequence[str]) -> JobLine:
    given_id, submit_s, duration_s, gpus, model = fields
    return JobLine(
        job_id=job_id(given_id),
        submit_s=amount(submit_s, "submission_time"),
        duration_s=number(duration_s, "duration"),
        gpus=whole_gpus(gpus, "num_gpu"),
        model=name(model, "model_name"),
    )


ITP: Final = TableFormat(
    name="itp",
    about="microsoft/elasticflow-traces, raw or enriched: job_id,submission_time,duration,num_gpu",
    columns=(("job_id",), ("submission_time", "submit_time"), ("duration",), ("num_gpu",)),
    optional=(("model_name",),),
    only=frozenset({"submission_time", "ddl", "deadline"}),
    job=_job,
)
