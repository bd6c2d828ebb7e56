"""SenseTime Helios (SC'21): cluster_log.csv, jobs of Slurm clusters, most of them without GPUs.

A virtual cluster stands for the account: it has nodes of its own, and users belong to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slurm_dl.backends.traces.gather import BadValue, JobLine
from slurm_dl.backends.traces.left_out import Reason
from slurm_dl.backends.traces.table import TableFormat
from slurm_dl.backends.traces.values import (
    account,
    clock_s,
    job_id,
    name,
    number,
    shown,
    whole_gpus,
)
from slurm_dl.model.trace import Ending

_ENDINGS: Final = {
    "COMPLETED": Ending.COMPLETED,
    "CANCELLED": Ending.CANCELLED,
    "FAILED": Ending.FAILED,
    # The release regards these two as failed (HeliosData, README, note 2).
    "TIMEOUT": Ending.FAILED,
    "NODE_FAIL": Ending.FAILED,
}


def _job(_nth: int, fields: Sequence[str]) -> JobLine:
    given_id, user, gpu_num, state, submit_time, duration, virtual_cluster = fields
    gpus = whole_gpus(gpu_num, "gpu_num")
    if not gpus:
        raise BadValue(Reason.NO_GPU, "gpu_num is 0")
    ending = _ENDINGS.get(state.strip())
    if ending is None:
        raise BadValue(Reason.STATE, f"state is {shown(state)}")
    return JobLine(
        job_id=job_id(given_id),
        submit_s=clock_s(submit_time, "submit_time"),
        duration_s=number(duration, "duration"),
        gpus=gpus,
        user=name(user, "user"),
        account=account(virtual_cluster),
        ending=ending,
    )


HELIOS: Final = TableFormat(
    name="helios",
    about="S-Lab-System-Group/HeliosData cluster_log.csv (jobs without GPUs left out)",
    columns=(
        ("job_id",),
        ("user",),
        ("gpu_num",),
        ("state",),
        ("submit_time",),
        ("duration",),
    ),
    optional=(("vc",),),
    job=_job,
)
