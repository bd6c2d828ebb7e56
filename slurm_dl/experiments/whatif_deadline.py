"""One more job with a deadline, submitted at many instants of a history, each time simulated twice.

The two simulations of an instant differ in that job alone, so what differs in the other jobs is its
effect. Only the days around the instant are simulated: those before it fill the cluster, and those
after it go on until the job and all that it moved are over.

Source: the idea of a Master's thesis (MIT, 2012): to try deadlines and curves of value by
simulation before a site offers them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from slurm_dl.experiments import simulation_run
from slurm_dl.experiments.grid import Cell, Experiment
from slurm_dl.experiments.whatif_history import DAY_S, DailyHistory, Percentile
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64
from slurm_dl.model.trace import Ending, Trace
from slurm_dl.model.value_curve import ValueCurve
from slurm_dl.simulation.cluster_shape import ClusterShape, parse_shape
from slurm_dl.simulation.outcome import Outcome
from slurm_dl.text import seconds_in, shown
from slurm_dl.yaml_places import read_text

NAME: Final = "what-if job"
_DIGITS: Final = 3  # Times are told apart by the millisecond: sums differ by rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The job that is added."""

    gpus: float
    duration_s: float
    due_s: float  # The deadline that policies are told, seconds after its submission
    curve: ValueCurve  # Its value by seconds after its submission; of one deadline: a step of 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The end of the job at one instant, and what it changed for the others."""

    finish_s: float  # Seconds after its submission, to the millisecond; inf: never
    says: str  # ``yes`` or ``no`` at its first look; empty: the policy promises nothing
    kept: bool  # It was over by the deadline that was promised
    added_s: float  # Sum over the other jobs of what their JCT is longer
    later: int  # Other jobs that end later
    earlier: int
    missed: int  # Deadlines of others that are met without it alone
    unfinished: int  # Jobs that never end


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProbeStudy:
    """A job and the history that it is added to."""

    experiment: Experiment
    history: DailyHistory
    probe: Probe
    before_days: int = 14  # Simulated before each instant

    @property
    def shape(self) -> ClusterShape:
        """The cluster."""
        (workload,) = self.experiment.workloads.values()
        return parse_shape(workload.cluster)

    def instants(self, count: int) -> F64:
        """``(count,)`` whole seconds, drawn uniformly over the counted days while jobs come."""
        submit_s, first_s = self.history.trace.submit_s, self.history.first_s
        low_s = max(first_s, float(submit_s[0]))
        high_s = min(first_s + self.history.counted_days * DAY_S, float(submit_s[-1]))
        drawn = np.random.default_rng([self.experiment.seed, 5]).uniform(low_s, high_s, count)
        return np.sort(np.ceil(drawn))

    def probed(self, piece: tuple[Cell, float]) -> Probed:
        """The job under the policy of a cell, submitted at an instant.

        Raises:
            ConfigError: It cannot run.
            SimulationError: The policy stops time.
        """
        cell, at_s = piece
        trace, probe = self.history.trace, self.probe
        # With a job before it the clocks of both simulations begin with that job.
        before = int(trace.submit_s.searchsorted(at_s, "right")) - 1
        first = min(before, int(trace.submit_s.searchsorted(at_s - DAY_S * self.before_days)))
        ahead_s = 2 * max(probe.duration_s, probe.due_s, probe.curve.due_s[-1])
        while True:
            until = int(trace.submit_s.searchsorted(at_s + ahead_s, "right"))
            others = trace.of_jobs(np.arange(first, until))
            found, over_s = self._pair(cell, others, before + 1 - first, at_s)
            if until == len(trace) or over_s <= at_s + ahead_s:
                return found
            ahead_s *= 2  # Jobs that were moved wait with some that are still to come.

    def _pair(self, cell: Cell, others: Trace, row: int, at_s: float) -> tuple[Probed, float]:
        """Both simulations, and when all that differs is over; the job is put in at *row*."""
        jobs = added(others, self.probe, row, at_s)
        told = self._run(cell, jobs)
        alone_s = self._run(cell, others).records.end_s
        both_s, end_s = np.delete(told.records.end_s, row), float(told.records.end_s[row])
        moved_s = np.nan_to_num(np.round(both_s - alone_s, _DIGITS))
        over_s = float(np.fmax(both_s, alone_s)[moved_s != 0].max(initial=end_s))
        assert jobs.due_s is not None  # noqa: S101 - the job has a deadline
        last_s = np.delete(jobs.due_s, row) + 0.5 * 10.0**-_DIGITS
        answer = told.answers.get(row)
        return Probed(
            finish_s=math.inf if math.isnan(end_s) else round(end_s - at_s, _DIGITS),
            says="" if answer is None else answer.says,
            kept=answer is not None and end_s + told.zero_s <= answer.due_s + 10.0**-_DIGITS,
            added_s=float(moved_s.sum()),
            later=int((moved_s > 0).sum()),
            earlier=int((moved_s < 0).sum()),
            missed=int(((alone_s <= last_s) & ~(both_s <= last_s) & np.isfinite(last_s)).sum()),
            unfinished=(unended := int(np.isnan(told.records.end_s).sum())),
        ), math.inf if unended else over_s

    def _run(self, cell: Cell, jobs: Trace) -> Outcome:
        # What a preset knows of the sizes of jobs is of the whole history.
        chosen, _ = self.experiment.ready(cell)
        _, cluster = self.experiment.ready(cell, jobs)
        if cluster.measured:
            msg = "its jobs run as measured, and the job of --gpus and --time was not"
            raise ConfigError(msg)
        seed = self.experiment.seed
        return simulation_run.run(chosen, jobs, cluster, self.shape, seed=seed).outcome


def added(trace: Trace, probe: Probe, row: int, at_s: float) -> Trace:
    """*trace* with the job, of a user of its own, at *row*."""
    cells: dict[str, float] = {
        "submit_s": at_s, "duration_s": probe.duration_s, "gpus": probe.gpus,
        "user": len(trace.users), "model": -1, "ending": Ending.COMPLETED, "account": -1,
        "due_s": at_s + probe.due_s,
    }  # fmt: skip
    columns: dict[str, Any] = {f.name: getattr(trace, f.name) for f in fields(trace)}
    if trace.due_s is None:
        columns["due_s"] = np.full(len(trace), np.inf)
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            columns[name] = np.insert(column, row, cells.get(name, 0))
    columns["job_id"] = (*trace.job_id[:row], NAME, *trace.job_id[row:])
    several = len(probe.curve.due_s) > 1 and probe.curve.due_s[0] == probe.due_s
    if several or trace.curves is not None:
        curves = trace.curves or (None,) * len(trace)
        columns["curves"] = (*curves[:row], probe.curve if several else None, *curves[row:])
    return Trace(**{**columns, "users": (*trace.users, NAME)})


def summary(probe: Probe, found: Sequence[Probed]) -> dict[str, object]:
    """Figures over all instants, NaN where there is none; keys: `docs/evaluate/what-if.md`."""
    columns = {f.name: np.array([getattr(one, f.name) for one in found]) for f in fields(Probed)}
    finish_s, says = columns["finish_s"], columns["says"]
    in_time = finish_s <= probe.due_s
    added_s, moved = math.fsum(columns["added_s"]), (columns["later"] + columns["earlier"]).sum()
    return {
        "finish_s": _spread(finish_s),
        "value": _spread(np.array([probe.curve.at(end_s) for end_s in finish_s.tolist()])),
        "in_time": float(in_time.mean()),
        "done_by": [float((finish_s <= due_s).mean()) for due_s in probe.curve.due_s],
        "promised": float((says == "yes").mean()) if says.any() else math.nan,
        "kept": float(columns["kept"][says == "yes"].mean()) if "yes" in says else math.nan,
        "added_jct_s": added_s / len(found),
        "change_s": added_s / int(moved) if moved else 0.0,
        **{name: float(columns[name].mean()) for name in ("later", "earlier", "missed")},
        "unfinished": int(columns["unfinished"].sum()),
    }


def _spread(values: F64) -> dict[str, float]:
    """Percentiles as in all reports, and the mean."""
    alike = np.zeros(len(values), dtype=np.int64)
    told = {f"p{at}": Percentile(values, alike, at).of(np.ones((1, 1)))[0] for at in (10, 50, 90)}
    return {**told, "mean": float(values.mean())}


def read_curve(path: Path) -> ValueCurve:
    """A curve of value: lines ``TIME VALUE`` such as ``8h 10``; what follows ``#`` is a comment.

    Raises:
        ConfigError: The file cannot be read, or something in it is no such thing.
    """
    steps = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        try:
            if words := line.partition("#")[0].split():
                time, value = words
                steps.append((float(seconds_in(time) or "no time"), float(value)))
        except ValueError:
            msg = f"{path}:{number}: {shown(line)}: must be TIME VALUE, such as 8h 10"
            raise ConfigError(msg) from None
    try:
        return ValueCurve(tuple(due for due, _ in steps), tuple(value for _, value in steps))
    except ValueError as err:
        msg = f"{path}: {err}"
        raise ConfigError(msg) from None
