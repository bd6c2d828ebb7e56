"""Models that were measured: seconds of a step by placement and batch, progress by epoch.

Progress is counted in steps with the smallest batch, and is the same at the end of an epoch for
every batch. How a batch is divided, and what a step then takes, is as in Pollux' artifact (OSDI
2021; petuum/adaptdl@c793c70 ``simulator/simulator.py`` and ``applications.py``).

The files are those of its ``simulator/traces``, a folder for each application; hostile as any file
that somebody names:

- ``placements.csv``: step and synchronisation time by placement, a digit for the GPUs on each node,
  and samples of a GPU in one pass;
- ``scalability.csv``: the same by number of nodes and of GPUs, for larger jobs;
- ``validation-BATCH.csv``: a line for each epoch that was trained with this batch: progress and
  iterations at its end, and the variance of the gradient.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64
from slurm_dl.text import safe

PLACEMENT: Final = ("placement", "local_bsz", "step_time", "sync_time")
SCALE: Final = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
EPOCH: Final = ("progress", "iteration", "grad_sqr", "grad_var")
MAY_BE_0: Final = frozenset({"sync_time", "grad_sqr", "grad_var"})

_MOST_BYTES: Final = 1 << 24


def applications(folder: Path) -> list[str]:
    """The names of the applications in *folder*; empty if it is none."""
    return sorted(path.parent.name for path in folder.glob("*/placements.csv"))


def validations(folder: Path) -> list[tuple[int, Path]]:
    """The batches that were measured, smallest first, and the file of each."""
    found = []
    for path in folder.glob("validation-*.csv"):
        batch = path.stem.partition("-")[2]
        if not (batch.isascii() and batch.isdigit() and 0 < int(batch[:12]) == int(batch)):
            msg = f"{path}: the name must be validation-BATCH.csv"
            raise ConfigError(msg)
        found.append((int(batch), path))
    if not found:
        msg = f"{folder}: no validation-BATCH.csv in it"
        raise ConfigError(msg)
    return sorted(found)


def table(path: Path, columns: Sequence[str]) -> F64:
    """``(lines, columns)`` numbers of a table under a header; those of `MAY_BE_0` alone may be 0.

    Raises:
        ConfigError: It cannot be read, lacks a column, or has something else in it.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            lines = csv.reader(stream.read(_MOST_BYTES).splitlines(), strict=True)
            header = next(lines, [])
            lacking = [name for name in columns if name not in header]
            if lacking:
                msg = f"{path}:1: no column {', '.join(lacking)}"
                raise ConfigError(msg)
            at = {header.index(name): name in MAY_BE_0 for name in columns}
            found = [_numbers(path, lines.line_num, line, at) for line in lines if line]
    except (OSError, UnicodeDecodeError, csv.Error) as err:
        reason = err.strerror if isinstance(err, OSError) else err
        msg = f"{path}: cannot be read: {reason}"
        raise ConfigError(msg) from err
    if not found:
        msg = f"{path}: no line below the header"
        raise ConfigError(msg)
    return np.array(found)


def means(placements: F64) -> F64:
    """``(k, 5)`` columns of `SCALE`: placements of as many nodes, GPUs and samples as one."""
    digits = [str(int(place)) for place in placements[:, 0].tolist()]
    where = np.array([[len(d), sum(map(int, d))] for d in digits], dtype=np.float64)
    whole = np.column_stack([where, placements[:, 1:]])
    keys, group = np.unique(whole[:, :3], axis=0, return_inverse=True)
    averages = [whole[group.ravel() == i, 3:].mean(axis=0) for i in range(len(keys))]
    return np.column_stack([keys, averages])


def _numbers(path: Path, number: int, line: Sequence[str], at: Mapping[int, bool]) -> list[float]:
    try:
        values = [float(line[i]) for i in at]
    except (IndexError, ValueError):
        values = [math.nan] * len(at)
    least = [value > 0 or zero for value, zero in zip(values, at.values(), strict=True)]
    if not all(least) or not all(0 <= value < math.inf for value in values):
        msg = f"{path}:{number}: {safe(','.join(line), 60)}: must be {len(at)} numbers above 0"
        raise ConfigError(msg)
    return values


NODE_GPUS: Final = 4
MOST_NODES: Final = 16  # GPUs of a node, and nodes: larger clusters were not measured

_MOST_LOCAL: Final = {"yolov3": 8}
"""Samples of a GPU in one pass where they are fewer than what was measured (applications.py)."""

_ALONE: Final = frozenset({"ncf"})
"""Applications that the artifact never gives more than one GPU if it chooses (simulator.py)."""

_FIXED_BATCH: Final = {"ncf": 32_768}
"""Applications whose batch does not adapt (applications.py)."""

_TRIED_BATCHES: Final = 20
"""Batches among which the best one is sought, from the least to the most that a size allows."""

_ROUNDING: Final = 1e-8

Placement = tuple[int, ...]  # GPUs on each node of a job


class NotMeasuredError(ConfigError):
    """There is no measurement near what is asked for."""


class MeasuredModel:
    """One application; methods raise `NotMeasuredError` where nothing like it was measured.

    Attributes:
        name: The name of its folder.
        epochs: Epochs that it trains.
        ends: ``(epochs + 1,)`` progress at the beginning, 0, and at the end of each epoch.

    Raises:
        ConfigError: A file is missing or broken.
    """

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        placements = table(folder / "placements.csv", PLACEMENT)
        placements = placements[np.lexsort((placements[:, 1], placements[:, 0]))]
        self._by_place = {
            int(place): placements[placements[:, 0] == place][:, 1:]
            for place in np.unique(placements[:, 0])
        }
        self._points = np.concatenate([means(placements), table(folder / "scalability.csv", SCALE)])
        self._least_local = max(1, int(placements[:, 1].min()))
        most = max(1, int(placements[:, 1].max()))
        self._most_local = _MOST_LOCAL.get(self.name, most)
        self._trained = {batch: table(path, EPOCH) for batch, path in validations(folder)}
        self.epochs = min(map(len, self._trained.values()))
        ends = [trained[: self.epochs, 0] for trained in self._trained.values()]
        self.ends: F64 = np.concatenate([[0.0], np.min(ends, axis=0)])
        if not (np.diff(self.ends) > 0).all():
            msg = f"{folder}: validation-*.csv: progress does not increase from epoch to epoch"
            raise ConfigError(msg)
        self._rates: dict[tuple[Placement, int], F64] = {}
        self._best: dict[Placement, F64] = {}

    def rates(self, placement: Placement, batch: int) -> F64:
        """``(epochs,)`` progress a second in each epoch of a job with this batch."""
        key = placement, batch
        if key not in self._rates:
            gpus = sum(placement)
            local, more = self._split(batch, gpus, alone=batch > min(self._trained))
            step_s = self._step_s(placement, local, more)
            with np.errstate(invalid="ignore"):
                rates = self._gain(gpus * local * (more + 1)) / step_s
            if not (np.isfinite(rates) & (rates > 0)).all():
                msg = f"{self.name}: what was measured gives batch {batch} no speed above 0"
                raise ConfigError(msg)
            self._rates[key] = rates
        return self._rates[key]

    def best_rates(self, placement: Placement) -> F64:
        """``(epochs,)`` progress a second in each epoch with the batch that is best there.

        Batches are tried from the least to the most that was measured, in equal ratios.
        """
        if placement not in self._best:
            gpus = sum(placement)
            least, most = min(self._trained), max(self._trained)
            found = np.zeros(self.epochs)
            start = max(least, self._least_local * gpus)
            tried = np.unique(np.geomspace(start, most, _TRIED_BATCHES).round().astype(int))
            fixed = _FIXED_BATCH.get(self.name)
            for batch in tried.tolist() if fixed is None else [fixed]:
                if start > most:
                    break
                local, more = self._split(batch, gpus, alone=batch > least)
                inside = self._least_local <= local <= self._most_local
                if inside and gpus * local * (more + 1) >= least:
                    with contextlib.suppress(NotMeasuredError):
                        found = np.maximum(found, self.rates(placement, batch))
            if not found.all():
                spot = "+".join(map(str, placement))
                msg = f"{self.name} was not measured on {spot} GPUs"
                raise NotMeasuredError(msg)
            self._best[placement] = found
        return self._best[placement]

    def duration_s(self, gpus: int, batch: int) -> float:
        """Seconds of a whole job on as few nodes as can be."""
        return float((np.diff(self.ends) / self.rates(packed(gpus), batch)).sum())

    def foreseen_step_s(self, gpus: int, batch: int) -> float:
        """Seconds of a step on as few nodes as can be, as the artifact tells its policies.

        It differs from what a job really takes on one GPU: there the artifact foresees two passes
        at least (``simulator/optimus.py``).
        """
        return self._step_s(packed(gpus), *self._split(batch, gpus, alone=True))

    def foreseen_steps(self, epoch: int, batch: int) -> float:
        """Steps that are left in *epoch*, 0 is the first, as the artifact tells its policies.

        They are those from the end of *epoch* to that of the last one, 1 in the last one.
        """
        if epoch >= self.epochs - 1:
            return 1.0
        steps = self._between(batch, 1)
        return max(1.0, float(steps[-1] - steps[epoch]))

    def most_gpus(self, batch: int | None = None) -> int:
        """The largest size of an elastic job with this batch; None: with any."""
        batch = max(self._trained) if batch is None else batch
        most = 1 if self.name in _ALONE else batch // self._least_local
        return min(most, MOST_NODES * NODE_GPUS)

    def _split(self, batch: int, gpus: int, *, alone: bool) -> tuple[int, int]:
        """Samples of a GPU in one pass, and passes of a step beyond the first.

        Args:
            alone: A single GPU makes two passes at least.
        """
        self._near(batch)
        local = math.ceil(batch / gpus - _ROUNDING)
        more = math.ceil(local / self._most_local - _ROUNDING) - 1
        more = max(1 if gpus == 1 and alone else 0, more)
        atomic = math.ceil(local / (more + 1) - _ROUNDING)
        return min(atomic, max(self._trained) // (gpus * (more + 1))), more

    def _step_s(self, placement: Placement, local: int, more: int) -> float:
        """Seconds of a step of so many more passes, all but one without synchronisation."""
        step_s, sync_s = self._pass_s(placement, local)
        whole_s = step_s + (step_s - sync_s) * more
        if whole_s <= 0:
            msg = f"{self.name}: synchronisation takes longer than the step it is part of"
            raise ConfigError(msg)
        return whole_s

    def _pass_s(self, placement: Placement, local: int) -> tuple[float, float]:
        """Seconds of a pass with synchronisation, and of the synchronisation alone."""
        # Nodes are all alike: of rotations only the smallest one was measured.
        place = min(placement[i:] + placement[:i] for i in range(len(placement)))
        at = self._by_place.get(int("".join(map(str, place)))) if len(place) <= MOST_NODES else None
        if at is None:
            found = self._scattered([min(len(place), MOST_NODES), sum(place), local])[0]
        elif at[0, 0] <= local <= at[-1, 0]:
            found = [np.interp(local, at[:, 0], at[:, column]) for column in (1, 2)]
        else:
            found = [math.nan, math.nan]
        if math.isnan(found[0] + found[1]):
            spot = "+".join(map(str, placement))
            msg = f"{self.name} was not measured on {spot} GPUs with {local} samples each"
            raise NotMeasuredError(msg)
        return float(found[0]), float(found[1])

    @functools.cached_property
    def _scattered(self):  # type: ignore[no-untyped-def] # noqa: ANN202 - SciPy has no types
        from scipy.interpolate import LinearNDInterpolator  # noqa: PLC0415 - slow to import
        from scipy.spatial import QhullError  # noqa: PLC0415 - slow to import

        try:
            return LinearNDInterpolator(self._points[:, :3], self._points[:, 3:])
        except QhullError as err:
            msg = f"{self.name}: too few sizes were measured to go by those that are near"
            raise NotMeasuredError(msg) from err

    def _gain(self, batch: int) -> F64:
        """``(epochs,)`` progress of a step with this batch."""
        sqr, var = self._between(batch, 2), self._between(batch, 3)
        gain: F64 = (var + sqr) / (var / (batch / min(self._trained)) + sqr)
        return gain

    def _between(self, batch: int, column: int) -> F64:
        """``(epochs,)`` *column* of `EPOCH`, linear between the batches that were measured."""
        low, high = self._near(batch)
        below, above = (self._trained[b][: self.epochs, column] for b in (low, high))
        if low == high:
            return below
        between: F64 = ((batch - low) * above + (high - batch) * below) / (high - low)
        return between

    def _near(self, batch: int) -> tuple[int, int]:
        low = max((b for b in self._trained if b <= batch), default=0)
        high = min((b for b in self._trained if b >= batch), default=0)
        if not (low and high):
            there = ", ".join(map(str, self._trained))
            msg = f"{self.name} was not measured with batch {batch} (those are {there})"
            raise NotMeasuredError(msg)
        return low, high


def packed(gpus: int) -> Placement:
    """So many GPUs on as few nodes as can be."""
    full, rest = divmod(gpus, NODE_GPUS)
    return (NODE_GPUS,) * full + ((rest,) if rest else ())


@functools.lru_cache(maxsize=64)
def read_model(folder: Path) -> MeasuredModel:
    """The application in *folder*, read once.

    Raises:
        ConfigError: A file is missing or broken.
    """
    return MeasuredModel(folder)
