"""What a simulation hands back."""

from __future__ import annotations

import array
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurm_dl.model.completed_jobs import Records, RunNodes
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.model.jobs import F64, I32
from slurm_dl.model.promise import Promise

_ROUNDING_S: Final = 1e-3


class NodeJournal:
    """Runs and their nodes, in the order in which the runs end: that of `Runs`.

    A simulation is handed a journal by who wants one; without one nothing is noted.
    """

    def __init__(self) -> None:
        self._runs = 0
        self._run = array.array("i")
        self._node = array.array("i")
        self._gpus = array.array("d")

    def close(self, nodes: Sequence[int], gpus: Sequence[float]) -> None:
        """The next run ends, and held so many GPUs of each of *nodes*."""
        self._run.extend([self._runs] * len(nodes))
        self._node.extend(nodes)
        self._gpus.extend(gpus)
        self._runs += 1

    def run_nodes(self) -> RunNodes:
        """All that was noted so far."""
        return RunNodes(
            run=np.array(self._run, dtype=np.int32),
            node=np.array(self._node, dtype=np.int32),
            gpus=np.array(self._gpus, dtype=np.float64),
        )


class SimulationError(SlurmDlError):
    """The simulation cannot go on; says at which instant and why."""


SKEWED_FROM = 0.4
"""A model of this skew or more is told as skewed.

Source: the tensor sizes in Tiresias' public simulator: VGG and AlexNet are above 0.6, ResNet and
Inception below 0.14.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lay:
    """How the jobs of the trace lay on nodes, as columns of length n.

    Attributes:
        speed: ``(n,)`` its speed relative to its best place, the mean over the time it worked; NaN
            if it never did.
        rungs: Jobs that ever lay on more nodes than the fewest, by where their speed there is from
            (`slurm_dl.simulation.ideal.placement_speed.Rung`).
    """

    gpus: F64  # ``(n,)`` GPUs of each
    nodes: F64  # ``(n,)`` nodes it lay on, the mean over the time it worked; NaN if it never did
    most_nodes: I32  # ``(n,)`` int32, most nodes it ever lay on; 0 if it never ran
    fewest_nodes: I32  # ``(n,)`` int32, the fewest it could lie on
    speed: F64
    skew: F64  # ``(n,)`` its model's; NaN if unknown
    rungs: Mapping[str, int]

    @property
    def mean_nodes(self) -> float:
        """Nodes a job lay on, mean over the jobs; NaN if none ran."""
        return _mean(self.nodes[~np.isnan(self.nodes)])

    @property
    def mean_speed(self) -> float:
        """Speed relative to the best place, mean over the jobs; NaN if none ran."""
        return _mean(self.speed[~np.isnan(self.speed)])

    @property
    def skewed_spread_frac(self) -> float:
        """Of the skewed jobs that ran, how many ever lay on more than the fewest nodes; NaN: none.

        Jobs of one GPU do not count: they cannot be spread.
        """
        skewed = (self.skew >= SKEWED_FROM) & (self.most_nodes > 0) & (self.gpus > 1)
        return _mean((self.most_nodes > self.fewest_nodes)[skewed].astype(np.float64))

    def as_json(self) -> dict[str, object]:
        """The means, null where there is none, and the rungs."""
        names = ("mean_nodes", "skewed_spread_frac", "mean_speed")
        means = {name: getattr(self, name) for name in names}
        told = {name: None if np.isnan(mean) else mean for name, mean in means.items()}
        return {**told, "rungs": dict(self.rungs)}


def _mean(values: F64) -> float:
    return float(values.mean()) if len(values) else float("nan")


@dataclass(frozen=True, slots=True)
class DeadlinesMet:
    """Deadlines of one simulation."""

    jobs: int  # That have one
    met: int  # Of those, how many were over by it
    met_gpu_frac: float  # The same by GPU time alone on the cluster, as a share of all
    promised: int  # Of those, how many got a promise at their first look
    kept: int  # Of these, how many were over by their deadline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """One simulation, whole."""

    records: Records  # What became of each job, in the order of the trace
    decisions: int  # How often the engine decided
    events: int  # Instants at which something happened
    now_s: float  # The simulated time at the end, seconds
    lay: Lay | None = None  # How the jobs lay on nodes; None if GPUs were only counted
    answers: Mapping[int, Promise] = field(default_factory=dict)  # First one of each job, by row
    zero_s: float = 0.0  # The trace's zero on the clock of *answers*
    pairs: int | None = None  # Times that two jobs began to share GPUs; None: none could
    due_s: F64 | None = None  # ``(n,)`` deadline of each job, inf: none; None: no job has one

    @property
    def deadlines(self) -> DeadlinesMet | None:
        """The deadlines that were met; None if no job has one."""
        if self.due_s is None or not (asked := np.isfinite(self.due_s)).any():
            return None
        jobs, met = self.records, self.records.end_s <= self.due_s + _ROUNDING_S
        weight = np.where(asked, jobs.gpus * np.nan_to_num(jobs.alone_s), 0.0)
        promised_s = {row: one.due_s for row, one in self.answers.items() if one.says == "yes"}
        end_s = self.records.end_s + self.zero_s
        return DeadlinesMet(
            jobs=int(asked.sum()),
            met=int((asked & met).sum()),
            met_gpu_frac=float((weight * met).sum() / weight.sum()) if weight.any() else math.nan,
            promised=len(promised_s),
            # Of several deadlines a later one may have been promised.
            kept=sum(bool(end_s[row] <= due_s + _ROUNDING_S) for row, due_s in promised_s.items()),
        )
