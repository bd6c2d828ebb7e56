"""What starting a job costs in the ideal cluster: seconds on its GPUs without progress.

The papers' simulators differ in this more than in anything else, so every report names the model.
What a real Slurm costs on top (polling, grace, requeue hold) is `slurm_dl.simulation.slurm`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64, Bool
from slurm_dl.model.trace import Trace

Rows = npt.NDArray[np.int64]


class Costs(Protocol):
    """A cost model. It may draw from *random*, and must draw nothing else."""

    @property
    def name(self) -> str:
        """What reports call it, parameters included."""

    @property
    def restart_s(self) -> float:
        """What a restart costs about, as an engine that weighs restarts is told; seconds."""

    at_every_event: ClassVar[bool]
    """Whether running jobs pay whenever anything happens, and not when they start.

    What they pay then is not foreseen: an end is planned as if nothing were to be paid.
    """
    slowdown: ClassVar[float]  # How much longer running takes than the trace says, 1 or more

    def lag_s(self, rows: Rows, first: Bool, random: np.random.Generator, /) -> F64:
        """Seconds without progress when the jobs at *rows* of the trace start now.

        Args:
            first: ``(len(rows),)`` bool, it never ran before.
        """


@dataclass(frozen=True, slots=True)
class NoCosts:
    """Jobs start and stop in no time and lose nothing, as in most papers' simulators."""

    name: ClassVar[str] = "none"
    restart_s: ClassVar[float] = 0.0
    at_every_event: ClassVar[bool] = False
    slowdown: ClassVar[float] = 1.0

    def lag_s(self, rows: Rows, first: Bool, random: np.random.Generator, /) -> F64:  # noqa: ARG002
        """Nothing; see `Costs`."""
        return np.zeros(len(rows))


@dataclass(frozen=True, slots=True)
class FlatCosts:
    """Every start but a job's first costs the same, by the size of the job.

    Raises:
        ValueError: A cost is negative or not finite.
    """

    restart_s: float  # Seconds for a job of at most *large_gpus* GPUs
    large_restart_s: float  # Seconds for a larger one
    gpus: F64
    large_gpus: float = np.inf  # Where large begins
    start_s: float = 0.0  # Seconds for the first start
    file: str = ""  # Where they are from, if they are from a file
    at_every_event: ClassVar[bool] = False
    slowdown: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        for name in ("restart_s", "large_restart_s", "start_s"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                msg = f"{name} must be a finite number, 0 or more (got {value})"
                raise ValueError(msg)

    @property
    def name(self) -> str:
        """See `Costs`."""
        large = (
            f", {self.large_restart_s:g} s above {self.large_gpus:g} GPUs"
            if np.isfinite(self.large_gpus)
            else ""
        )
        where = f" ({self.file})" if self.file else ""
        return f"restart {self.restart_s:g} s{large}, first start {self.start_s:g} s{where}"

    def lag_s(self, rows: Rows, first: Bool, random: np.random.Generator, /) -> F64:  # noqa: ARG002
        """See `Costs`."""
        large = self.gpus[rows] > self.large_gpus
        return np.where(first, self.start_s, np.where(large, self.large_restart_s, self.restart_s))


def restarts_s(costs: Costs, gpus: F64) -> F64:
    """``(n,)`` what a restart costs jobs of so many GPUs about, seconds."""
    if isinstance(costs, FlatCosts):
        return np.where(gpus > costs.large_gpus, costs.large_restart_s, costs.restart_s)
    return np.full(len(gpus), costs.restart_s)


@dataclass(frozen=True, slots=True)
class QuantileCosts:
    """Every start but the first costs what was once measured, drawn anew each time."""

    label: str  # Where the table is from
    quantiles_s: F64  # The measured seconds at evenly spaced quantiles from 0 to 1, not decreasing
    at_every_event: ClassVar[bool] = False
    slowdown: ClassVar[float] = 1.0

    @property
    def name(self) -> str:
        """See `Costs`."""
        return f"quantile table {self.label}"

    @property
    def restart_s(self) -> float:
        """See `Costs`: the median."""
        return float(np.median(self.quantiles_s))

    def lag_s(self, rows: Rows, first: Bool, random: np.random.Generator, /) -> F64:
        """See `Costs`."""
        at = random.random(len(rows)) * (len(self.quantiles_s) - 1)
        drawn = np.interp(at, np.arange(len(self.quantiles_s)), self.quantiles_s)
        return np.where(first, 0.0, drawn)


@dataclass(frozen=True, slots=True)
class MuriCosts:
    """Muri's rule: each running job pays its start overhead whenever anything happens.

    Source: Zhao et al., "Multi-resource interleaving for deep learning training" (Muri), SIGCOMM
    2022: its public simulator deducts the overhead from jobs that never stopped, too, and lets an
    iteration take 1.5 % longer than measured (found from its published values).
    """

    overhead_s: F64  # ``(n,)`` measured start overhead of each job of the trace, by model and GPUs
    name: ClassVar[str] = "muri"
    at_every_event: ClassVar[bool] = True
    slowdown: ClassVar[float] = 1.015

    @property
    def restart_s(self) -> float:
        """See `Costs`: the mean over the jobs."""
        return float(self.overhead_s.mean()) if len(self.overhead_s) else 0.0

    def lag_s(self, rows: Rows, first: Bool, random: np.random.Generator, /) -> F64:  # noqa: ARG002
        """See `Costs`."""
        overhead: F64 = self.overhead_s[rows]
        return overhead


def muri_costs(trace: Trace) -> MuriCosts:
    """Muri's measured start overheads laid beside the jobs of *trace*."""
    table = measured("muri_start_overhead_s")
    by_size: Mapping[str, Mapping[str, float]] = table["overhead_s"]
    other = float(table["default_s"])
    names = [trace.models[m] if m >= 0 else "" for m in trace.model.tolist()]
    return MuriCosts(
        np.array(
            [
                by_size.get(f"{g:g}", {}).get(name, other)
                for g, name in zip(trace.gpus.tolist(), names, strict=True)
            ],
            dtype=np.float64,
        )
    )


def quantile_costs(label: str, values: object) -> QuantileCosts:
    """A table of measured seconds at evenly spaced quantiles.

    Raises:
        ConfigError: *values* is no list of two or more finite, not decreasing numbers from 0 up.
    """
    numbers = isinstance(values, list) and all(
        isinstance(v, (int, float)) and not isinstance(v, bool) for v in values
    )
    try:
        table = np.array(values if numbers else [], dtype=np.float64)
    except OverflowError:
        table = np.zeros(0)
    fits = table.ndim == 1 and len(table) > 1 and bool(np.isfinite(table).all())
    if not fits or table[0] < 0 or bool((np.diff(table) < 0).any()):
        msg = f"{label}: 'seconds' must be two or more finite numbers, 0 or more, not decreasing"
        raise ConfigError(msg)
    return QuantileCosts(label, table)


def measured(name: str) -> dict[str, Any]:
    """A table of measured values that comes with the package, as its JSON says."""
    path = resources.files(__package__).joinpath("measured", f"{name}.json")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
