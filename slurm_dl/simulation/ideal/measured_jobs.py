"""Jobs on nodes of 4 GPUs, as fast as was measured there: the cluster of Pollux' simulator.

A job is put on the node with most free GPUs, again and again until it has all it is to hold. It
goes on epoch by epoch, each at a speed of its own, and the time to the end of an epoch is rounded
to whole seconds (petuum/adaptdl@c793c70 ``simulator/simulator.py``, ``tiresias.py``). A job that is
to have another size is stopped, and starts again in it.

A job keeps the batch that it was submitted with, or has the best one for what it holds and for the
epoch it is in, as the jobs of Pollux have.
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.intent import Intent
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.cluster_shape import ClusterShape
from slurm_dl.simulation.ideal.active_jobs import ActiveJobs
from slurm_dl.simulation.ideal.measured_models import (
    NODE_GPUS,
    MeasuredModel,
    NotMeasuredError,
    Placement,
    applications,
    packed,
    read_model,
)
from slurm_dl.simulation.ideal.placement_model import Anywhere, PlacementChange
from slurm_dl.simulation.job_knowledge import JobSizes
from slurm_dl.text import safe

Rows = npt.NDArray[np.int64]

_LATE_S: Final = 1e-4
"""Seconds by which an end that was rounded down is late.

One that so falls on a decision holds its GPUs one round more, as in the artifact. It is more than
what `DecisionTimes` takes for an error of rounding with rounds of 60 s.
"""


class OnMeasured(Anywhere):
    """See the module.

    Args:
        adapts: Batches adapt.

    Attributes:
        sizes: Of each job: every number of GPUs up to the most that its application may have.

    Raises:
        ConfigError: *trace* has no measured models, or *shape* nodes that were not measured.
    """

    def __init__(self, trace: Trace, shape: ClusterShape, *, adapts: bool = False) -> None:
        self._models, self._batch = _models(trace), _batches(trace)
        self._adapts = adapts
        self._node_gpus = shape.nodes().gpus.astype(np.float64)
        if self._node_gpus.max() > NODE_GPUS or len(shape.gpu_types) > 1:
            msg = f"cluster {shape}: jobs were measured on nodes of {NODE_GPUS} GPUs of one type"
            raise ConfigError(msg)
        self._duration_s = trace.duration_s
        asked = [
            (m, int(g), b) for m, g, b in zip(self._models, trace.gpus, self._batch, strict=True)
        ]
        known = {one: _adapted(one[0]) if adapts else _sizes(*one) for one in set(asked)}
        self.sizes = tuple(known[one] for one in asked)
        step_s = {(m, g, b): m.foreseen_step_s(g, b) for m, g, b in known}
        self._step_s = [step_s[one] for one in asked]
        self._epoch = np.zeros(len(trace), dtype=np.int64)
        self._progress = np.zeros(len(trace))
        self._held: dict[int, dict[int, int]] = {}
        self._next: dict[int, dict[int, int]] = {}
        self._gpus: F64 = np.zeros(0)

    def show(self, jobs: ActiveJobs, now_s: float, /) -> None:
        """See `PlacementModel`: the work left, in the artifact's words, and progress."""
        for row, job in enumerate(jobs.job_id.tolist()):
            model = self._models[job]
            epoch, progress = int(self._epoch[job]), float(self._progress[job])
            if jobs.running[row]:
                passed_s = now_s - float(jobs.since_s[row])
                epoch, progress = self._after(job, max(0.0, passed_s - float(jobs.lag_s[row])))
            if self._adapts:
                jobs.left_s[row] = _left_alone_s(model, epoch, progress)
            else:
                left = model.foreseen_steps(epoch, self._batch[job])
                jobs.left_s[row] = left * self._step_s[job]
            jobs.progress[row] = progress / model.ends[-1]

    def settle(self, jobs: ActiveJobs, snap: Snapshot, intent: Intent, /) -> PlacementChange:
        """See `PlacementModel`."""
        self._gpus = intent.gpus(snap).copy()
        wanted = np.zeros(len(jobs), dtype=np.bool_)
        wanted[intent.target] = True
        stays = jobs.running & wanted & (self._gpus == jobs.gpus)
        free = self._node_gpus.copy()
        for job in jobs.job_id[stays].tolist():
            for node, count in self._held[job].items():
                free[node] -= count
        starts = [row for row in intent.ranked.tolist() if wanted[row] and not stays[row]]
        self._next = {int(jobs.job_id[r]): _spot(free, int(self._gpus[r])) for r in starts}
        stops = (jobs.running & ~stays).nonzero()[0]
        return PlacementChange(stops, np.array(sorted(starts), dtype=np.int64), math.inf)

    def enter(self, jobs: ActiveJobs, rows: Rows, /) -> None:
        """See `PlacementModel`."""
        jobs.gpus[rows] = self._gpus[rows]
        self._held |= {job: self._next[job] for job in jobs.job_id[rows].tolist()}

    def leave(self, jobs: ActiveJobs, rows: Rows, /) -> None:
        """See `PlacementModel`."""
        for job in jobs.job_id[rows].tolist():
            del self._held[job]

    def finish(self, jobs: ActiveJobs, rows: Rows, /) -> None:
        """See `PlacementModel`."""
        self.leave(jobs, rows)

    def needs_s(self, jobs: ActiveJobs, rows: Rows, /) -> F64:
        """See `PlacementModel`."""
        return np.array([self._left_s(job) for job in jobs.job_id[rows].tolist()])

    def book(self, jobs: ActiveJobs, rows: Rows, worked_s: F64, /) -> F64:
        """See `PlacementModel`: a job's work is its duration, and its progress a share of that."""
        work_s = np.zeros(len(rows))
        for i, job in enumerate(jobs.job_id[rows].tolist()):
            before = float(self._progress[job])
            self._epoch[job], self._progress[job] = self._after(job, float(worked_s[i]))
            share = (self._progress[job] - before) / self._models[job].ends[-1]
            work_s[i] = self._duration_s[job] * share
        return work_s

    def _rates(self, job: int) -> F64:
        placement: Placement = tuple(self._held[job].values())
        if self._adapts:
            return self._models[job].best_rates(placement)
        return self._models[job].rates(placement, self._batch[job])

    def _left_s(self, job: int) -> float:
        """Seconds until the job at this row of the trace is done where it is."""
        ends, rates = self._models[job].ends, self._rates(job)
        at, exactly_s, whole_s = float(self._progress[job]), 0.0, 0
        for epoch in range(int(self._epoch[job]), self._models[job].epochs):
            exactly_s = float((ends[epoch + 1] - at) / rates[epoch])
            whole_s += round(exactly_s)
            at = float(ends[epoch + 1])
        return whole_s + (_LATE_S if round(exactly_s) < exactly_s else 0.0)

    def _after(self, job: int, worked_s: float) -> tuple[int, float]:
        """Epoch and progress of this job after so many seconds of work where it is."""
        ends, rates = self._models[job].ends, self._rates(job)
        at, epoch = float(self._progress[job]), int(self._epoch[job])
        while epoch < len(rates) and worked_s > 0:
            end = float(ends[epoch + 1])
            if at + rates[epoch] * worked_s < end:
                return epoch, float(at + rates[epoch] * worked_s)
            worked_s -= round(float((end - at) / rates[epoch]))
            at, epoch = end, epoch + 1
        return epoch, at


def _spot(free: F64, gpus: int) -> dict[int, int]:
    """Nodes for so many GPUs, and how many on each; they are taken off *free*."""
    spot: dict[int, int] = {}
    while gpus > 0:
        node = int(free.argmax())
        count = min(int(free[node]), gpus)
        free[node] -= count
        gpus -= count
        spot[node] = count
    return spot


def _sizes(model: MeasuredModel, gpus: int, batch: int) -> JobSizes:
    """Those that were measured, up to the most that it may have, and the one it asks for."""
    step_s = {gpus: model.foreseen_step_s(gpus, batch)}
    for count in range(1, model.most_gpus(batch) + 1):
        with contextlib.suppress(NotMeasuredError):
            step_s[count] = model.foreseen_step_s(count, batch)
    counts = sorted(step_s)
    return JobSizes(
        gpus=np.array(counts, dtype=np.float64),
        nodes=np.array([len(packed(count)) for count in counts], dtype=np.float64),
        rate=step_s[gpus] / np.array([step_s[count] for count in counts]),
        asked=counts.index(gpus),
    )


def _adapted(model: MeasuredModel) -> JobSizes:
    """Sizes with the best batch in each, by the time that a whole job takes; 1 GPU is the first."""
    took_s = list[float]()
    for count in range(1, model.most_gpus() + 1):
        try:
            rates = model.best_rates(packed(count))
        except NotMeasuredError:
            break
        took_s.append(float((np.diff(model.ends) / rates).sum()))
    gpus = np.arange(1.0, len(took_s) + 1)
    return JobSizes(gpus=gpus, nodes=np.ceil(gpus / NODE_GPUS), rate=took_s[0] / np.array(took_s))


def _left_alone_s(model: MeasuredModel, epoch: int, progress: float) -> float:
    """Seconds that a job would need on one GPU, with the best batches."""
    if epoch >= model.epochs:
        return 0.0
    ends = np.append(progress, model.ends[epoch + 1 :])
    return max(1.0, float((np.diff(ends) / model.best_rates((1,))[epoch:]).sum()))


def _models(trace: Trace) -> list[MeasuredModel]:
    if not trace.measured:
        msg = f"trace {trace.name}: its jobs have no measured models (format pollux has them)"
        raise ConfigError(msg)
    names = [trace.models[model] for model in trace.model.tolist()]
    unknown = set(names).difference(applications(Path(trace.measured)))
    if unknown:
        msg = f"{trace.measured}: {safe(min(unknown), 60)} was not measured: leave out --tags"
        raise ConfigError(msg)
    return [read_model(Path(trace.measured, name)) for name in names]


def _batches(trace: Trace) -> list[int]:
    assert trace.batch is not None  # noqa: S101 - the reader of measured jobs gives it
    batches: list[int] = trace.batch.tolist()
    return batches
