"""Traces of one line a job under a header: Chronus, Helios, ITP, Muri, Philly, Tiresias."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from slurm_dl.model.trace import Ending
from slurm_dl.model.value_curve import ValueCurve
from slurm_dl.text import shown
from slurm_dl.traces.builder import BadValue, JobLine, Reason
from slurm_dl.traces.field_values import account, amount, job_id, moment_s, name, number, whole_gpus
from slurm_dl.traces.table_format import TableFormat


# Tiresias (NSDI'19), bundled traces of its simulator: whole seconds from the first job.
def _tiresias_job(_nth: int, fields: Sequence[str]) -> JobLine:
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
    job=_tiresias_job,
)


# Microsoft Philly (ATC'19) as one line a job: the file that Pollux and others simulate.
#
# It has no ids: a job is called by its place in the file, 0 is the first. It tells the virtual
# cluster and no user, so the virtual cluster stands for the user.
def _philly_job(nth: int, fields: Sequence[str]) -> JobLine:
    timestamp, duration_s, gpus, virtual_cluster = fields
    return JobLine(
        job_id=str(nth),
        submit_s=moment_s(timestamp, "timestamp"),
        duration_s=number(duration_s, "duration"),
        gpus=whole_gpus(gpus, "num_gpus"),
        user=name(virtual_cluster, "cluster"),
    )


PHILLY: Final = TableFormat(
    name="philly",
    about="Philly as one line a job: timestamp,duration,num_gpus,gpu_time,cluster",
    columns=(("timestamp",), ("duration",), ("num_gpus",), ("cluster",)),
    job=_philly_job,
)


# Muri (SIGCOMM'22): Tiresias' columns in milliseconds, and the time of one iteration.
#
# Muri counts progress in iterations, so a job's length is iterations x iteration_time. That is
# shorter than the duration column by less than one iteration.
_MS_PER_S: Final = 1000


def _muri_job(_nth: int, fields: Sequence[str]) -> JobLine:
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
    job=_muri_job,
)


# Microsoft ITP clusters (elasticflow-traces, ASPLOS'23): raw, or enriched with a model.
#
# The deadline, batch size and iterations of enriched files were drawn at random by their authors.
# The deadline is taken, as there is no other; duration is the one of the real job. The speed of a
# model in other sizes depends on its batch size, which is therefore part of its name.
def _itp_job(_nth: int, fields: Sequence[str]) -> JobLine:
    given_id, submit_s, duration_s, gpus, model, due_s, batch = fields
    return JobLine(
        job_id=job_id(given_id),
        due_s=number(due_s, "deadline") if due_s.strip() else math.inf,
        submit_s=amount(submit_s, "submission_time"),
        duration_s=number(duration_s, "duration"),
        gpus=whole_gpus(gpus, "num_gpu"),
        model=name(f"{model} (batch size {batch})" if batch.strip() else model, "model_name"),
    )


ITP: Final = TableFormat(
    name="itp",
    about="microsoft/elasticflow-traces, raw or enriched: job_id,submission_time,duration,num_gpu",
    columns=(("job_id",), ("submission_time", "submit_time"), ("duration",), ("num_gpu",)),
    optional=(("model_name",), ("deadline", "ddl"), ("batch_size",)),
    only=frozenset({"submission_time", "ddl", "deadline"}),
    job=_itp_job,
)


# Chronus (SoCC'21): Tiresias' columns, and a deadline or several of decreasing value.
#
# The release names no unit. Its simulator has 60 units in an hour, so these are minutes. Of several
# deadlines the one of the highest value is the job's, the earliest.
_MINUTE_S: Final = 60


def _chronus_job(_nth: int, fields: Sequence[str]) -> JobLine:
    given_id, user, gpu_num, submit_min, duration_min, ahead, values, best_effort, model = fields
    gpus = whole_gpus(gpu_num, "num_gpu")
    if not gpus:
        raise BadValue(Reason.NO_GPU, "num_gpu is 0")
    submit_s = amount(submit_min, "submit_time") * _MINUTE_S
    due_s, curve = math.inf, None
    if best_effort.strip() != "1":
        times = [amount(text, "expect_time_list") * _MINUTE_S for text in ahead.split("-")]
        worth = [amount(text, "expect_value_list") for text in values.split("-")]
        if len(times) != len(worth):
            raise BadValue(Reason.FIELDS, f"{len(times)} deadlines, but {len(worth)} values")
        steps = list(zip(times, worth, strict=True))
        ahead_s, _ = min(steps, key=lambda step: (-step[1], step[0]))
        due_s = submit_s + ahead_s
        curve = _curve(steps)
    return JobLine(
        job_id=job_id(given_id),
        submit_s=submit_s,
        duration_s=number(duration_min, "duration") * _MINUTE_S,
        gpus=gpus,
        user=name(user, "user"),
        model=name(model, "model_name"),
        due_s=due_s,
        curve=curve,
    )


def _curve(steps: Sequence[tuple[float, float]]) -> ValueCurve | None:
    """Values of a job with several deadlines; None if only one is of use."""
    first_s: dict[float, float] = {}
    for ahead_s, value in steps:
        if ahead_s > 0 and value > 0:
            first_s[value] = min(ahead_s, first_s.get(value, ahead_s))
    try:
        curve = ValueCurve.of((at_s, value) for value, at_s in first_s.items()) if first_s else None
    except ValueError as err:
        raise BadValue(Reason.FIELDS, str(err)) from None
    return curve if curve is not None and len(curve.due_s) > 1 else None


_CHRONUS: Final = (
    "job_id", "user", "num_gpu", "submit_time", "duration", "expect_time_list",
    "expect_value_list", "best_effort",
)  # fmt: skip
CHRONUS: Final = TableFormat(
    name="chronus",
    about="S-Lab-System-Group/ChronusArtifact: deadlines as expect_time_list,expect_value_list",
    columns=tuple((column,) for column in _CHRONUS),
    optional=(("model_name",),),
    job=_chronus_job,
)


# SenseTime Helios (SC'21): cluster_log.csv, jobs of Slurm clusters, most of them without GPUs.
#
# A virtual cluster stands for the account: it has nodes of its own, and users belong to it.
_ENDINGS: Final = {
    "COMPLETED": Ending.COMPLETED,
    "CANCELLED": Ending.CANCELLED,
    "FAILED": Ending.FAILED,
    # The release regards these two as failed (HeliosData, README, note 2).
    "TIMEOUT": Ending.FAILED,
    "NODE_FAIL": Ending.FAILED,
}


def _helios_job(_nth: int, fields: Sequence[str]) -> JobLine:
    given_id, user, gpu_num, state, submit_time, duration, virtual_cluster = fields
    gpus = whole_gpus(gpu_num, "gpu_num")
    if not gpus:
        raise BadValue(Reason.NO_GPU, "gpu_num is 0")
    ending = _ENDINGS.get(state.strip())
    if ending is None:
        raise BadValue(Reason.STATE, f"state is {shown(state)}")
    return JobLine(
        job_id=job_id(given_id),
        submit_s=moment_s(submit_time, "submit_time"),
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
    job=_helios_job,
)
