"""A sweep in a folder that all nodes see: what is to run, and one file for each result.

::

    sweep.json       the sweep, its cells, into how many tasks they go, the versions it is for
    trace.csv        the trace in the project's own format, from which it is read back exactly
    costs/NAME       the table of --costs, if it was a file
    profiles/NAME    the profiles of --profiles
    task.sh          what each task of the array runs
    jobs.json        the arrays that were submitted
    cells/000012.json  a result; there whole or not at all
    logs/task-3.log  what a task said

Files are data: nothing of them is executed, and a file that is not what it should be is an error
that names it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

import slurm_dl
from slurm_dl.experiments import cluster_presets
from slurm_dl.experiments.sweep import MAX_CELLS, CellResult, Sweep, SweepCell
from slurm_dl.experiments.sweep_placement import GroundFile, Part, WishFile, copy_profiles
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import I32
from slurm_dl.model.trace import Trace
from slurm_dl.report.atomic_files import write_whole
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.writer import write_trace

FORMAT: Final = 1
MAX_TASKS: Final = 256
"""Below the MaxArraySize that Slurm comes with (1001), and enough for any cluster's idle cores."""

_LARGEST_FILE: Final = 64 << 20

T = TypeVar("T")


class Versions(Part):
    """What computes; results of different versions are not put together."""

    slurm_dl: str
    numpy: str
    python: str

    @classmethod
    def here(cls) -> Self:
        """Those of this process."""
        return cls(
            slurm_dl=slurm_dl.__version__,
            numpy=np.__version__,
            python=platform.python_version(),
        )


class _CellFile(Part):
    index: int
    policy: str
    load: float
    seed: int


class _SweepFile(Part):
    format: int
    versions: Versions
    trace: str
    trace_format: str
    users: tuple[str, ...]
    models: tuple[str, ...]
    cluster: str
    costs: str | None
    costs_is_file: bool
    policies: tuple[WishFile, ...]
    ground: GroundFile = GroundFile()
    loads: tuple[float, ...]
    seeds: int = Field(ge=1, le=MAX_CELLS)
    tasks: int = Field(ge=1, le=MAX_TASKS)
    cells: tuple[_CellFile, ...]


def check_ours(path: Path) -> None:
    """Raise if others may write where jobs of ours take what they run from.

    Raises:
        ConfigError: The folder is somebody else's, or others may write to it.
    """
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        msg = f"--dir {path}: must be yours, and nobody else's to write to (chmod go-w)"
        raise ConfigError(msg)


class _ResultFile(BaseModel):
    # A figure over no job is NaN, which is no fault.
    model_config = ConfigDict(frozen=True, extra="forbid")

    cell: _CellFile
    result: CellResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """The folder of a sweep.

    Attributes:
        path: Absolute, the same on all nodes.
        sweep: What is run; a table of costs is the folder's own copy.
        tasks: Into how many tasks the cells go.
        versions: What it was made with.
        trace_name: What reports call the trace.
        trace_format: The format that it came in.
        users: The trace's, in its order: sums over users depend on it in their last digit.
        models: The trace's, in its order.
    """

    path: Path
    sweep: Sweep
    tasks: int
    versions: Versions
    trace_name: str
    trace_format: str
    users: tuple[str, ...]
    models: tuple[str, ...]

    @classmethod
    def create(cls, path: Path, sweep: Sweep, trace: Trace) -> Self:
        """Write a sweep into a new or empty folder.

        Raises:
            ConfigError: There is something already, or it cannot be written.
        """
        path = path.absolute()
        if (path / "sweep.json").exists():
            msg = f"--dir {path}: holds a sweep already; --resume gathers it; or name another"
            raise ConfigError(msg)
        try:
            if path.is_dir() and any(path.iterdir()):
                msg = f"--dir {path}: is not empty; name a new folder"
                raise ConfigError(msg)
            path.parent.mkdir(parents=True, exist_ok=True)
            for directory in (path, path / "cells", path / "logs"):
                directory.mkdir(mode=0o700, exist_ok=True)
            check_ours(path)
        except OSError as err:
            msg = f"--dir {path}: {err.strerror}"
            raise ConfigError(msg) from err
        costs_is_file = sweep.costs is not None and sweep.costs not in cluster_presets.NAMED
        if costs_is_file:
            sweep = dataclasses.replace(sweep, costs=str(_copy_costs(str(sweep.costs), path)))
        if sweep.ground.profiles is not None:
            sweep = dataclasses.replace(sweep, ground=copy_profiles(sweep.ground, path))
        write_trace(trace, path / "trace.csv")
        folder = cls(
            path=path,
            sweep=sweep,
            tasks=min(len(sweep.cells), MAX_TASKS),
            versions=Versions.here(),
            trace_name=trace.name,
            trace_format=trace.format,
            users=trace.users,
            models=trace.models,
        )
        # Last, because a folder with it is a whole sweep.
        folder._write(costs_is_file=costs_is_file)
        return folder

    def _write(self, *, costs_is_file: bool) -> None:
        sweep = self.sweep
        file = _SweepFile(
            format=FORMAT,
            versions=self.versions,
            trace=self.trace_name,
            trace_format=self.trace_format,
            users=self.users,
            models=self.models,
            cluster=sweep.cluster,
            costs=Path(str(sweep.costs)).name if costs_is_file else sweep.costs,
            costs_is_file=costs_is_file,
            policies=tuple(map(WishFile.of, sweep.wishes)),
            ground=GroundFile.of(sweep.ground),
            loads=sweep.loads,
            seeds=sweep.seeds,
            tasks=self.tasks,
            cells=tuple(map(_cell_file, sweep.cells)),
        )
        write_whole(self.path / "sweep.json", f"{file.model_dump_json(indent=1)}\n".encode())

    @classmethod
    def open(cls, path: Path) -> Self:
        """The sweep in *path*.

        Raises:
            ConfigError: There is none, or it is not what it should be.
        """
        path = path.absolute()
        if path.is_dir():
            check_ours(path)
        file = _read(path / "sweep.json", TypeAdapter(_SweepFile))
        if file.format != FORMAT:
            msg = f"{path / 'sweep.json'}: is of format {file.format}, not {FORMAT}"
            raise ConfigError(msg)
        costs = file.costs
        if file.costs_is_file:
            costs = str(path / "costs" / Path(str(costs)).name)
        elif costs not in {None, *cluster_presets.NAMED}:
            msg = f"{path / 'sweep.json'}: costs are {costs!r}"
            raise ConfigError(msg)
        sweep = Sweep(
            wishes=tuple(wish.made() for wish in file.policies),
            loads=file.loads,
            seeds=file.seeds,
            cluster=file.cluster,
            costs=costs,
            ground=file.ground.made(path),
        )
        if file.cells != tuple(map(_cell_file, sweep.cells)):
            msg = f"{path / 'sweep.json'}: its cells are not those of its policies, loads and seeds"
            raise ConfigError(msg)
        return cls(
            path=path,
            sweep=sweep,
            tasks=file.tasks,
            versions=file.versions,
            trace_name=file.trace,
            trace_format=file.trace_format,
            users=file.users,
            models=file.models,
        )

    def trace(self) -> Trace:
        """The trace, as it was read for the sweep.

        Raises:
            ConfigError: Its file cannot be read whole.
        """
        path = self.path / "trace.csv"
        trace = read_trace(path, "slurm_dl")
        if trace.bad:
            msg = f"{trace.bad[0]}; the sweep's own copy of the trace is damaged"
            raise ConfigError(msg)
        return dataclasses.replace(
            trace,
            name=self.trace_name,
            format=self.trace_format,
            user=_renumbered(path, trace.user, trace.users, self.users),
            users=self.users,
            model=_renumbered(path, trace.model, trace.models, self.models),
            models=self.models,
        )

    def check_versions(self) -> None:
        """Raise if results from here would not belong to the others.

        Raises:
            ConfigError: Another version of something that computes.
        """
        here = Versions.here()
        if here != self.versions:
            msg = f"{self.path} was made with {_told(self.versions)}; here are {_told(here)}"
            raise ConfigError(msg)

    def cells_of(self, task: int) -> tuple[SweepCell, ...]:
        """The share of a task, 0 is the first.

        Raises:
            ConfigError: There is no such task.
        """
        if not 0 <= task < self.tasks:
            msg = f"{self.path}: has tasks 0 to {self.tasks - 1} (got {task})"
            raise ConfigError(msg)
        return self.sweep.cells[task :: self.tasks]

    def missing(self) -> tuple[SweepCell, ...]:
        """The cells without a result."""
        try:
            there = {entry.name for entry in (self.path / "cells").iterdir()}
        except OSError as err:
            msg = f"{self.path / 'cells'}: {err.strerror}"
            raise ConfigError(msg) from err
        return tuple(cell for cell in self.sweep.cells if _result_name(cell) not in there)

    def tasks_of(self, cells: Sequence[SweepCell]) -> tuple[int, ...]:
        """The tasks that these cells belong to, sorted."""
        return tuple(sorted({cell.index % self.tasks for cell in cells}))

    def log_of(self, task: int) -> Path:
        """Where a task says what went wrong."""
        return self.path / "logs" / f"task-{task}.log"

    def write_result(self, cell: SweepCell, result: CellResult) -> None:
        """Put the result of *cell* there, whole.

        Raises:
            ConfigError: It cannot be written.
        """
        told = {"cell": _cell_file(cell).model_dump(), "result": dataclasses.asdict(result)}
        write_whole(self.path / "cells" / _result_name(cell), f"{json.dumps(told)}\n".encode())

    def read_result(self, cell: SweepCell) -> CellResult:
        """The result of *cell*.

        Raises:
            ConfigError: It is not there, or is that of something else.
        """
        path = self.path / "cells" / _result_name(cell)
        file = _read(path, TypeAdapter(_ResultFile))
        if file.cell != _cell_file(cell):
            msg = f"{path}: is not the result of {cell}; delete it and gather with --resume"
            raise ConfigError(msg)
        return file.result

    def submitted(self) -> tuple[int, ...]:
        """Ids of the arrays that were submitted for it."""
        path = self.path / "jobs.json"
        return _read(path, TypeAdapter(tuple[int, ...])) if path.exists() else ()

    def note_submitted(self, job_id: int) -> None:
        """Remember one more array."""
        ids = [*self.submitted(), job_id]
        write_whole(self.path / "jobs.json", f"{json.dumps(ids)}\n".encode())


def _renumbered(path: Path, column: I32, names: Sequence[str], wanted: Sequence[str]) -> I32:
    """*column*, an index into *names*, as an index into *wanted*; -1 stays."""
    place = {name: i for i, name in enumerate(wanted)}
    try:
        # The last one is for -1.
        numbers = np.array([*(place[name] for name in names), -1], dtype=np.int32)
    except KeyError as err:
        msg = f"{path}: {err} is not among the sweep's users or models; the copy is damaged"
        raise ConfigError(msg) from err
    renumbered: I32 = numbers[column]
    return renumbered


def _cell_file(cell: SweepCell) -> _CellFile:
    return _CellFile(index=cell.index, policy=cell.label, load=cell.load, seed=cell.seed)


def _result_name(cell: SweepCell) -> str:
    return f"{cell.index:06}.json"


def _told(versions: Versions) -> str:
    return f"slurm_dl {versions.slurm_dl}, NumPy {versions.numpy}, Python {versions.python}"


def _copy_costs(given: str, folder: Path) -> Path:
    source = Path(given)
    copy = folder / "costs" / source.name
    try:
        content = source.read_bytes()
        copy.parent.mkdir(exist_ok=True)
    except OSError as err:
        msg = f"--costs {given}: {err.strerror}"
        raise ConfigError(msg) from err
    write_whole(copy, content)
    return copy


def _read(path: Path, kind: TypeAdapter[T]) -> T:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE)
        return kind.validate_python(json.loads(content))
    except OSError as err:
        msg = f"{path}: {err.strerror}; is this the folder of a sweep?"
        raise ConfigError(msg) from err
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        msg = f"{path}: {where}: {first['msg']}; delete it if it is damaged"
        raise ConfigError(msg) from err
    except (ValueError, RecursionError) as err:
        msg = f"{path}: is no JSON: {err}; delete it if it is damaged"
        raise ConfigError(msg) from err
