"""Every policy on every shipped trace, as cells that are kept in a folder.

::

    study.json       the versions that the figures are of
    costs-180.yaml   the table of costs of so many seconds a restart
    cells/NAME.json  the figures of one simulation; the name says which one it is

Whatever changes a figure is in the name of its cell, or in ``study.json``. So a second call runs
what is not there yet, and calls with other options share what they have in common.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slurm_dl.experiments import bootstrap_interval, sweep
from slurm_dl.experiments.bootstrap_interval import Mean
from slurm_dl.experiments.process_pool import WorkFault, process_pool
from slurm_dl.experiments.study_cells import BEST, NONE, USUAL, StudyCell, parse_policy
from slurm_dl.experiments.sweep import CellResult, Sweep
from slurm_dl.experiments.sweep_files import Versions
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64
from slurm_dl.model.trace import Trace
from slurm_dl.report import export
from slurm_dl.report.atomic_files import write_whole
from slurm_dl.text import shown
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.made_tags import tagged

Figures = dict[str, Any]
"""What came of a cell, with the keys of `export.summary_json` and those of the cell."""


@dataclass(frozen=True, slots=True)
class StudyFolder:
    """Where the cells of a study are kept, and where its traces are.

    Attributes:
        path: The folder of the study.
        traces: The folder of the shipped traces.
    """

    path: Path
    traces: Path

    def begin(self) -> None:
        """Make the folder, or see that what is in it may stand beside new cells.

        Raises:
            ConfigError: It holds something else or figures of other versions, or cannot be made.
        """
        mark, here = self.path / "study.json", Versions.here().model_dump()
        try:
            (self.path / "cells").mkdir(parents=True, exist_ok=True)
            there = json.loads(mark.read_text("utf-8")) if mark.exists() else None
        except (OSError, ValueError) as err:
            msg = f"--dir {self.path}: {err}"
            raise ConfigError(msg) from err
        if there is None:
            write_whole(mark, json.dumps(here).encode())
        elif there != here:
            msg = f"--dir {self.path}: is of {_told(there)}; here are {_told(here)}: name a new one"
            raise ConfigError(msg)

    def costs(self, word: str) -> str:
        """What ``--costs`` of a simulation is for *word*; a file of this folder for seconds.

        Raises:
            ConfigError: It is no cost.
        """
        if word in (NONE, "slurm"):
            return word
        try:
            seconds = float(word)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds < math.inf:
            msg = f"--costs {shown(word)}: must be none, slurm or the seconds of each restart"
            raise ConfigError(msg)
        path = self.path / f"costs-{seconds:g}.yaml"
        if not path.exists():
            write_whole(path, f"restart_s: {seconds}\n".encode())
        return str(path)

    def found(self, cell: StudyCell) -> Figures | None:
        """The figures of *cell* if they are there."""
        path = self._path(cell)
        return json.loads(path.read_text("utf-8")) if path.exists() else None

    def keep(self, cell: StudyCell, figures: Figures) -> None:
        """Put the figures of *cell* there, whole.

        Raises:
            ConfigError: They cannot be written.
        """
        write_whole(self._path(cell), f"{json.dumps(figures)}\n".encode())

    def _path(self, cell: StudyCell) -> Path:
        return self.path / "cells" / f"{cell.name}.json"

    def sweep_of(self, cell: StudyCell) -> Sweep:
        """A sweep of which *cell* is the one with its seed."""
        return Sweep(
            wishes=(parse_policy(cell.policy),),
            loads=(1.0,),
            seeds=cell.seed + 1,
            cluster=cell.trace.cluster,
            costs=self.costs(cell.costs),
        )

    def jobs_of(self, cell: StudyCell) -> Trace:
        """The trace of *cell*, with its tags."""
        return _jobs(self.traces / cell.trace.path, cell.tags)

    def __call__(self, cell: StudyCell, /) -> Figures:
        """Run one simulation."""
        one = self.sweep_of(cell)
        return _figures(cell, sweep.run_cell(one, self.jobs_of(cell), one.cells[cell.seed]))


@functools.lru_cache(maxsize=2)
def _jobs(path: Path, tags: str) -> Trace:
    return tagged(read_trace(path, None), tags)


def _figures(cell: StudyCell, result: CellResult) -> Figures:
    return {
        "trace": cell.trace.name,
        "cluster": cell.trace.cluster,
        "costs": cell.costs,
        "policy": cell.policy,
        "tags": cell.tags,
        "seed": cell.seed,
        "parameters": result.parameters,
        **export.summary_json(result.summary),
        "decisions": result.decisions,
        "events": result.events,
        "wall_s": result.wall_s,
    }


def _told(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def refused(folder: StudyFolder, cells: Sequence[StudyCell]) -> dict[tuple[str, str], str]:
    """The policies that cannot run under a cost model, as (policy, costs), and why.

    Raises:
        ConfigError: A cost model or a trace cannot be read.
    """
    whys, jobs = {}, folder.jobs_of(cells[0])
    for cell in {(cell.policy, cell.costs): cell for cell in cells}.values():
        one = folder.sweep_of(cell)
        try:
            sweep.check_wish(one, one.wishes[0], jobs)
        except ConfigError as err:
            whys[cell.policy, cell.costs] = str(err)
    return whys


def run(
    folder: StudyFolder, cells: Sequence[StudyCell], processes: int
) -> Iterator[tuple[StudyCell, Figures | str]]:
    """Run *cells* and keep their figures; each with those, or why it could not be run."""
    with process_pool(folder, min(processes, len(cells))) as started:
        for number, said in started(cells):
            cell = cells[number]
            if isinstance(said, WorkFault):
                yield cell, said.why
            else:
                folder.keep(cell, said)
                yield cell, said


class TimeLeft:
    """About how long the cells that are left will take, from those that are done."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, ...], tuple[float, int]] = {}

    def add(self, cell: StudyCell, wall_s: float) -> None:
        """A cell took *wall_s*."""
        for kind in self._kinds(cell):
            total_s, count = self._seen.get(kind, (0.0, 0))
            self._seen[kind] = (total_s + wall_s, count + 1)

    def of(self, cells: Collection[StudyCell]) -> float:
        """Seconds of one process; cells that are like none before take the mean of all."""
        return math.fsum(map(self._one, cells))

    def _one(self, cell: StudyCell) -> float:
        for kind in self._kinds(cell):
            total_s, count = self._seen.get(kind, (0.0, 0))
            if count:
                return total_s / count
        return 0.0

    @staticmethod
    def _kinds(cell: StudyCell) -> tuple[tuple[str, ...], ...]:
        whole = (cell.trace.name, cell.costs, cell.policy)
        return whole, whole[:2], whole[:1], ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """A policy on a trace under a cost model.

    Attributes:
        trace: Name of the trace.
        costs: As in `StudyCell`.
        policy: As in `StudyCell`.
        tags: As in `StudyCell`.
        workloads: How many were asked for.
        done: On how many it ran.
        unfinished: Jobs that did not come to an end, all workloads together.
        jct: Mean JCT over that of `BEST` at no cost, on the workloads where both ran.
        preemptions: Mean over the workloads.
        p99: 99th percentile of the JCT over that of `USUAL` under the same costs.
        largest: The same of the largest JCT.
        preempted: The same of preemptions; NaN where `USUAL` has none.
    """

    trace: str
    costs: str
    policy: str
    tags: str
    workloads: int
    done: int
    unfinished: int
    jct: Mean
    preemptions: Mean
    p99: Mean
    largest: Mean
    preempted: Mean


def rows_of(
    cells: Iterable[StudyCell], figures: Mapping[StudyCell, Figures]
) -> tuple[StudyRow, ...]:
    """The cells put together over their seeds, in the order in which they are first there.

    Args:
        figures: Of the cells that are done.
    """
    several: dict[StudyCell, list[StudyCell]] = {}
    for cell in cells:
        several.setdefault(dataclasses.replace(cell, seed=0), []).append(cell)
    return tuple(_row(cell, of_seeds, figures) for cell, of_seeds in several.items())


def _row(
    cell: StudyCell, of_seeds: Sequence[StudyCell], figures: Mapping[StudyCell, Figures]
) -> StudyRow:
    done = [one for one in of_seeds if one in figures]

    def held(name: str, **base: str) -> Mean:
        against = [(one, dataclasses.replace(one, tags=NONE, **base)) for one in done]  # type: ignore[arg-type]
        both = [pair for pair in against if pair[1] in figures]
        columns = (_column(side, name, figures) for side in zip(*both, strict=True))
        return bootstrap_interval.paired_ratio(*columns) if both else Mean(math.nan, math.nan)

    preemptions = _column(done, "preemptions", figures)
    return StudyRow(
        trace=cell.trace.name,
        costs=cell.costs,
        policy=cell.policy,
        tags=cell.tags,
        workloads=len(of_seeds),
        done=len(done),
        unfinished=sum(figures[one]["jobs"] - figures[one]["finished"] for one in done),
        jct=held("avg_jct_s", policy=BEST, costs=NONE),
        preemptions=bootstrap_interval.mean(preemptions) if done else Mean(math.nan, math.nan),
        p99=held("p99_jct_s", policy=USUAL),
        largest=held("max_jct_s", policy=USUAL),
        preempted=held("preemptions", policy=USUAL),
    )


def _column(cells: Sequence[StudyCell], name: str, figures: Mapping[StudyCell, Figures]) -> F64:
    values = [figures[cell][name] for cell in cells]
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def as_json(
    cells: Sequence[StudyCell], figures: Mapping[StudyCell, Figures], failed: Mapping[str, str]
) -> dict[str, object]:
    """All of it as plain values.

    Args:
        figures: Of the cells that are done.
        failed: Why a cell could not be run, by its name.
    """
    return {
        "rows": [_plain(row) for row in rows_of(cells, figures)],
        "cells": [figures[cell] for cell in cells if cell in figures],
        "failed": [{"cell": name, "why": why} for name, why in failed.items()],
    }


def _plain(row: StudyRow) -> dict[str, object]:
    told: dict[str, object] = {}
    for one in dataclasses.fields(row):
        value = getattr(row, one.name)
        if isinstance(value, Mean):
            value = {
                end: number if math.isfinite(number) else None
                for end, number in (("mean", value.value), ("low", value.low), ("high", value.high))
            }
        told[one.name] = value
    return told
