"""Microsoft Philly (ATC'19) as one line a job: the file that Pollux and others simulate.

It has no ids: a job is called by its place in the file, 0 is the first. It tells the virtual
cluster and no user, so the virtual cluster stands for the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slurm_dl.backends.traces.gather import JobLine
from slurm_dl.backends.traces.table import TableFormat
from slurm_dl.backends.traces.values import clock_s, name, number, whole_gpus


def _job(nth: int, fields: Sequence[str]) -> JobLine:
    timestamp, duration_s, gpus, virtual_cluster = fields
    return JobLine(
        job_id=str(nth),
        submit_s=clock_s(timestamp, "timestamp"),
        duration_s=number(duration_s, "duration"),
        gpus=whole_gpus(gpus, "num_gpus"),
        user=name(virtual_cluster, "cluster"),
    )


PHILLY: Final = TableFormat(
    name="philly",
    about="Philly as one line a job: timestamp,duration,num_gpus,gpu_time,cluster",
    columns=(("timestamp",), ("duration",), ("num_gpus",), ("cluster",)),
    job=_job,
)
