"""Workloads of Pollux' artifact (OSDI 2021): name, time, application, num_replicas, batch_size.

A workload does not say how long a job runs. That follows from measured models
(`slurm_dl.simulation.ideal.measured_models`), a folder for each application, in ``models`` beside
the workload or where ``--models`` says: the job's duration is that on as few nodes of 4 GPUs as can
be. A job whose application, batch or size was not measured is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from slurm_dl.model.errors import ConfigError
from slurm_dl.simulation.ideal.measured_models import NotMeasuredError, applications, read_model
from slurm_dl.text import shown
from slurm_dl.traces.builder import BadValue, Gathering, JobLine, Reason
from slurm_dl.traces.field_values import amount, job_id, name, whole_gpus
from slurm_dl.traces.file_lines import opened
from slurm_dl.traces.table_format import Columns, gather

_MOST_BATCH: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PolluxFormat(Columns):
    """A table of jobs, and the folder of the models they train; None: beside the table."""

    about: str
    models: Path | None = None

    def read(self, path: Path, jobs: Gathering) -> None:
        """Every job of *path* into *jobs*.

        Raises:
            ConfigError: The header lacks a column, or a measured model is missing or broken.
        """
        folder = self.models or path.parent / "models"
        jobs.measured = str(folder.absolute())
        with opened(path) as stream:
            job = functools.partial(_job, folder, applications(folder))
            gather(self.rows(stream, jobs), jobs, job)


def _job(folder: Path, names: Sequence[str], _nth: int, fields: Sequence[str]) -> JobLine:
    if not names:
        msg = f"{folder}: no measured models (APPLICATION/placements.csv); name them: --models"
        raise ConfigError(msg)
    given_id, submit_s, application, replicas, batch_size = fields
    application = name(application, "application")
    if application not in names:
        why = f"application {shown(application)} was not measured (those are {', '.join(names)})"
        raise BadValue(Reason.NO_RATE, why)
    gpus, batch = whole_gpus(replicas, "num_replicas"), amount(batch_size, "batch_size")
    if not gpus:
        raise BadValue(Reason.NO_GPU, "num_replicas is 0")
    if batch != int(batch) or not 0 < batch < _MOST_BATCH:
        raise BadValue(Reason.OUT_OF_RANGE, f"batch_size is {shown(batch_size)}")
    if gpus > batch:
        raise BadValue(Reason.OUT_OF_RANGE, f"a batch of {batch:g} on {gpus:g} GPUs")
    try:
        duration_s = read_model(folder / application).duration_s(int(gpus), int(batch))
    except NotMeasuredError as err:
        raise BadValue(Reason.NO_RATE, str(err)) from err
    return JobLine(
        job_id=job_id(given_id),
        submit_s=amount(submit_s, "time"),
        duration_s=duration_s,
        gpus=gpus,
        model=application,
        batch=int(batch),
    )


POLLUX: Final = PolluxFormat(
    name="pollux",
    about="petuum/adaptdl osdi21-artifact: name,time,application,num_replicas,batch_size",
    columns=(("name",), ("time",), ("application",), ("num_replicas",), ("batch_size",)),
)


def with_models(folder: Path) -> PolluxFormat:
    """The format, with the measured models of *folder*."""
    return replace(POLLUX, models=folder)
