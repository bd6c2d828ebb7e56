"""Workloads of artifacts: jobs that name a model, and not how long they run.

Pollux (OSDI 2021): name, time, application, num_replicas, batch_size. Durations follow from
measured models (`slurm_dl.simulation.ideal.measured_models`), a folder for each application, in
``models`` beside the workload or where ``--models`` says: a job's is that on as few nodes of 4 GPUs
as can be. A job whose application, batch or size was not measured is left out.

Synergy (OSDI'22), deploy traces: id,model,arrival,iterations,gpus without a header. The files tell
iterations, not times. `ITERATION_S` is the time of one iteration that Synergy's own simulator takes
for the model on one GPU with a fair share of CPUs. For more GPUs it has times of another kind, so
such jobs are left out; the published traces have none.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from slurm_dl.model.errors import ConfigError
from slurm_dl.simulation.ideal.measured_models import NotMeasuredError, applications, read_model
from slurm_dl.text import shown
from slurm_dl.traces.builder import BadValue, Gathering, JobLine, Reason
from slurm_dl.traces.field_values import amount, job_id, name, number, whole_gpus
from slurm_dl.traces.file_lines import Head, numbered_lines, opened
from slurm_dl.traces.table_format import Columns, gather, rows

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


ITERATION_S: Final[Mapping[str, float]] = MappingProxyType(
    {
        "alexnet": 0.6,
        "deepspeech": 0.757,
        "gnmt": 0.12,
        "lstm": 0.011,
        "mobilenet": 0.71,
        "res18": 0.64,
        "res50": 0.78,
        "shufflenet": 0.615,
        "transformer": 0.67,
    }
)
"""Seconds of one iteration on one V100 and 3 CPUs.

Source: msr-fiddle/synergy@1bb2bed, ``iter_time_base`` in simulator/models*/MODEL_1.py; MIT.
"""

_FIELDS: Final = 5


def _synergy_job(_nth: int, fields: Sequence[str]) -> JobLine:
    given_id, model, arrival_s, iterations, gpu_text = fields
    gpus = whole_gpus(gpu_text, "gpus")
    model = name(model, "model")
    if gpus != 1 or model not in ITERATION_S:
        raise BadValue(
            Reason.NO_RATE, f"no time of an iteration known for {shown(model)} on {gpus:g} GPUs"
        )
    return JobLine(
        job_id=job_id(given_id),
        submit_s=amount(arrival_s, "arrival"),
        duration_s=number(iterations, "iterations") * ITERATION_S[model],
        gpus=gpus,
        model=model,
    )


@dataclass(frozen=True, slots=True)
class SynergyFormat:
    """Five fields a line, the second a model."""

    name: str = "synergy"
    about: str = "msr-fiddle/synergy deploy_trace: id,model,arrival,iterations,gpus, no header"

    def recognizes(self, head: Head) -> bool:
        """Whether the first line is such a job, of a model that is known or not."""
        fields = head.first_line.split(",")
        if len(fields) != _FIELDS or not fields[1].strip() or fields[1].strip().isdigit():
            return False
        try:
            for text in (fields[0], *fields[2:]):
                number(text, "field")
        except BadValue:
            return False
        return True

    def read(self, path: Path, jobs: Gathering) -> None:
        """Every job of *path* into *jobs*."""
        with opened(path) as stream:
            lines = numbered_lines(stream, jobs.file)
            gather(rows(lines, jobs, ",", {_FIELDS}), jobs, _synergy_job)


SYNERGY: Final = SynergyFormat()
