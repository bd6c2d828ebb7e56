"""An experiment as one array of CPU jobs on a Slurm cluster, in a folder that all nodes see.

::

    experiment.json  the cells, and all that they share
    versions.json    of what computes, see `cell_store.Store`
    files/           copies of what options named: nobody changes them
    task.sh          what each task of the array runs
    jobs.json        the arrays that were submitted
    cells/           figures and jobs, see `cell_store.Store`
    logs/task-3.log  the output of a task

dlsubmit makes jobs that hold GPUs, run under dlrun and can be preempted by a checkpoint. A
simulation is none of these, so the array has a script and arguments of its own: the script is a
constant, everything a user typed is an argument of its own, sbatch is called without a shell and in
a cleaned environment.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

from slurm_dl.experiments import cluster_presets, grid
from slurm_dl.experiments.cell_store import Store
from slurm_dl.experiments.comparison import Refused
from slurm_dl.experiments.grid import Cell, Experiment, Figures, figures_of
from slurm_dl.experiments.process_pool import WorkFault
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.policies import policy_file
from slurm_dl.recording.snapshot_file import FormError, from_bytes, to_bytes
from slurm_dl.report.export import write_whole
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.submit import job_environment, option_values
from slurm_dl.text import counted, safe

MAX_TASKS: Final = 256
"""Below the MaxArraySize that Slurm comes with (1001), and enough for any cluster's idle cores."""

SCRIPT: Final = b"""\
#!/bin/bash
# One task of a sweep of dlsim: $1 is the Python that submitted it, $2 the folder of the sweep.
exec >>"$2/logs/task-$SLURM_ARRAY_TASK_ID.log" 2>&1
# -I: see own_python.py.
exec "$1" -I -c 'from slurm_dl.cli.dlsim.command import main; main()' \\
    sweep-cell "$2" "$SLURM_ARRAY_TASK_ID"
"""

_POLL_S: Final = 15.0  # The longest pause between two looks

_SETTLE_S: Final = 10.0
"""How long a result may take to be seen here after its task has left the queue."""

_SQUEUE_S: Final = 60.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRequest:
    """Options of the array."""

    partition: str | None = None  # As sbatch takes it; None for the default one
    time: str | None = None  # Time limit of a task in sbatch's words; None for the partition's
    most_at_once: int | None = None  # Tasks that may run at one time; None for as many as fit

    def __post_init__(self) -> None:
        option_values.clean_text(self.partition or "", "--partition")
        option_values.clean_text(self.time or "", "--time")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Content:
    """``experiment.json``; paths of copies are relative to its folder, which may be moved."""

    experiment: Experiment
    cells: tuple[Cell, ...]
    refused: tuple[tuple[str, str | None, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Folder:
    """The folder of an experiment."""

    path: Path  # Absolute, the same on all nodes
    experiment: Experiment
    cells: tuple[Cell, ...]
    refused: Refused  # Policies that are not among the cells; see `comparison.planned`
    store: Store  # The figures

    @property
    def tasks(self) -> int:
        """Into how many tasks the cells go, one after the other."""
        return min(len(self.cells), MAX_TASKS)

    @classmethod
    def create(
        cls, path: Path, experiment: Experiment, cells: tuple[Cell, ...], refused: Refused
    ) -> Self:
        """Write an experiment into a new or empty folder.

        Raises:
            ConfigError: There is something already, or it cannot be written.
        """
        path = path.absolute()
        if (path / "experiment.json").exists():
            msg = f"--dir {path}: holds a sweep already; --resume gathers it; or name another"
            raise ConfigError(msg)
        try:
            if path.is_dir() and any(path.iterdir()):
                msg = f"--dir {path}: is not empty; name a new folder"
                raise ConfigError(msg)
            path.parent.mkdir(parents=True, exist_ok=True)
            for directory in (path, path / "cells", path / "logs"):
                directory.mkdir(mode=0o700, exist_ok=True)
            _check_ours(path)
            files = _copies(experiment, cells, path)
        except OSError as err:
            msg = f"--dir {path}: {err.filename or path}: {err.strerror}"
            raise ConfigError(msg) from err
        content = _Content(
            experiment=dataclasses.replace(experiment, files=files),
            cells=cells,
            refused=tuple((*k, why) for k, why in refused.items()),
        )
        # Last, because a folder with it is whole.
        write_whole(path / "experiment.json", to_bytes(content, _Content))
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """The experiment in *path*, if it is of the versions here.

        Raises:
            ConfigError: There is none, it is not what it should be, or it is of other versions.
        """
        path = path.absolute()
        content = _read(path / "experiment.json", _Content)
        files = {word: str(path / copy) for word, copy in content.experiment.files.items()}
        experiment = dataclasses.replace(content.experiment, files=files)
        return cls(
            path=path,
            experiment=experiment,
            cells=content.cells,
            refused={(label, word): why for label, word, why in content.refused},
            store=Store(path, experiment).begin(),
        )

    def missing(self) -> tuple[Cell, ...]:
        """The cells without a result."""
        return self.store.missing(self.cells)

    def tasks_of(self, cells: Collection[Cell]) -> dict[int, list[Cell]]:
        """*cells* by the task that runs them."""
        number = {cell: index for index, cell in enumerate(self.cells)}
        tasks: dict[int, list[Cell]] = {}
        for cell in cells:
            tasks.setdefault(number[cell] % self.tasks, []).append(cell)
        return dict(sorted(tasks.items()))

    def run_task(self, task: int) -> list[str]:
        """Run the share of *task*, 0 is the first, that has no result; why cells failed.

        Raises:
            ConfigError: There is no such task.
        """
        if not 0 <= task < self.tasks:
            msg = f"{self.path}: has tasks 0 to {self.tasks - 1} (got {task})"
            raise ConfigError(msg)
        share = self.cells[task :: self.tasks]
        ran = grid.run(self.experiment, share, figures_of, store=self.store)
        return [value.text for _, value in ran if isinstance(value, WorkFault)]

    def gathered(self) -> dict[Cell, Figures]:
        """The figures of all cells, which are there."""
        found = ((cell, self.store.get(cell)) for cell in self.cells)
        return {cell: figures for cell, figures in found if figures is not None}

    def submitted(self) -> tuple[int, ...]:
        """Ids of the arrays that were submitted for it."""
        path = self.path / "jobs.json"
        return _read(path, tuple[int, ...]) if path.exists() else ()


def _check_ours(path: Path) -> None:
    """Raise if others may write where jobs of ours take what they run from."""
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        msg = f"--dir {path}: must be yours, and nobody else's to write to (chmod go-w)"
        raise ConfigError(msg)


def _read(file: Path, kind: type[_T]) -> _T:
    try:
        _check_ours(file.parent)
        return from_bytes(file.read_bytes(), kind)
    except OSError as err:
        msg = f"{file}: {err.strerror}; is this the folder of a sweep?"
        raise ConfigError(msg) from err
    except FormError as err:
        msg = f"{file}: {err}; delete it if it is damaged"
        raise ConfigError(msg) from err


def _copies(experiment: Experiment, cells: Collection[Cell], folder: Path) -> dict[str, str]:
    """Copy what options named into *folder*; the copies by their original, relative to it."""
    ground = experiment.ground
    named = {ground.profiles, ground.foresight.rates}
    for cell in cells:
        named |= {cluster_presets.file_of(cell.costs), policy_file.path_of(cell.policy.policy)}
    files = {}
    for number, path in enumerate(sorted(named - {None}, key=str)):
        source = Path(str(path))
        sources = sorted(source.glob("*.yaml")) if source.is_dir() else [source]
        into = Path("files", str(number), "profiles" if source.is_dir() else "")
        (folder / into).mkdir(mode=0o700, parents=True)
        for file in sources:
            write_whole(folder / into / file.name, file.read_bytes())
        files[str(path)] = str(into if source.is_dir() else into / source.name)
    copied = dataclasses.replace(experiment, files={p: f"{folder}/{c}" for p, c in files.items()})
    for cell in cells:
        policy_file.path_of(copied.policy_of(cell))
    return files


def arguments(folder: Folder, tasks: Collection[int], request: ArrayRequest) -> tuple[str, ...]:
    """The arguments of sbatch.

    Raises:
        ConfigError: The folder's name cannot be an argument.
    """
    path = option_values.clean_text(str(folder.path), "--dir")
    limit = "" if request.most_at_once is None else f"%{request.most_at_once}"
    given = {"partition": request.partition, "time": request.time}
    return (
        "--parsable",
        "--job-name=dlsim-sweep",
        f"--array={','.join(map(str, sorted(tasks)))}{limit}",
        f"--chdir={path}",
        # The script redirects its output: Slurm takes % in a folder's name for a pattern, even
        # before a relative path (measured on 22.05.8).
        "--output=/dev/null",
        # Results that are there already are not computed again.
        "--requeue",
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=1",
        *(f"--{name}={value}" for name, value in given.items() if value is not None),
        f"{path}/task.sh",
        option_values.clean_text(sys.executable, "Python"),
        path,
    )


def submit(
    folder: Folder, request: ArrayRequest, environ: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Submit the cells that have no result yet and are not in the queue.

    Args:
        say: Told what was submitted.

    Raises:
        ClusterError: Slurm refused, or its queue could not be asked.
    """
    missing = folder.missing()
    if not missing:
        return
    earlier = folder.submitted()
    slurm = Slurm(environ=environ, timeout_s=_SQUEUE_S)
    queued = _queued(earlier, slurm) if earlier else set()
    tasks = set(folder.tasks_of(missing)) - queued
    if not tasks:
        say(f"{counted(len(queued), 'task')} in the queue already; nothing more is submitted")
        return
    write_whole(folder.path / "task.sh", SCRIPT)
    cleaned = job_environment.clean(environ, keep_sbatch=True)
    answer = slurm.submit(*arguments(folder, tasks, request), environ=cleaned.environ)
    if answer.job_id is None:
        said = answer.text.decode(errors="replace").strip() or "nothing"
        msg = f"sbatch refused the array and said: {said}"
        raise ClusterError(msg)
    write_whole(folder.path / "jobs.json", json.dumps([*earlier, answer.job_id]).encode())
    say(
        f"job array {answer.job_id}: {counted(len(tasks), 'task')} for"
        f" {counted(len(missing), 'simulation')}; results gather in {folder.path}"
    )


def wait(
    folder: Folder, environ: Mapping[str, str], *, within_s: float, progress: Callable[[int], None]
) -> dict[Cell, Figures]:
    """Wait for all results and read them, in the order of the cells.

    Slurm is asked ever less often, every 15 s in the end; while it is silent, files are looked at.

    Args:
        within_s: Give up after so long.
        progress: Told how many results are there.

    Raises:
        ClusterError: No task is left in the queue and results are missing, or the time is over
            and the array goes on.
    """
    slurm = Slurm(environ=environ, timeout_s=_SQUEUE_S)
    began_s, gone_s, silent = time.monotonic(), math.inf, ""
    while missing := folder.missing():
        progress(len(folder.cells) - len(missing))
        waited_s = time.monotonic() - began_s
        if waited_s >= within_s:
            msg = (
                f"{len(missing)} of {len(folder.cells)} results are not there after {within_s:g} s"
                f"{silent}; the array goes on, and --on slurm --dir {folder.path} --resume gathers"
                " it"
            )
            raise ClusterError(msg)
        try:
            left = _queued(folder.submitted(), slurm) & set(folder.tasks_of(missing))
        except ClusterError as err:
            silent = f" (Slurm is silent: {err})"
        else:
            silent, gone_s = "", math.inf if left else min(gone_s, waited_s)
            if waited_s - gone_s >= _SETTLE_S:
                raise ClusterError("\n".join(_failures(folder, missing)))
        time.sleep(min(_POLL_S, 0.5 + waited_s / 10, within_s - waited_s))
    progress(len(folder.cells))
    return folder.gathered()


def _failures(folder: Folder, missing: Collection[Cell]) -> Iterator[str]:
    yield f"{len(missing)} of {len(folder.cells)} simulations have no result:"
    for task, cells in folder.tasks_of(missing).items():
        log = folder.path / "logs" / f"task-{task}.log"
        yield f"task {task} ({'; '.join(map(str, cells))}): log {log}: {_last_line(log)}"
    yield f"once that is mended, --on slurm --dir {folder.path} --resume runs these again"


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text("utf-8", errors="replace").strip().splitlines()
    except OSError as err:
        return f"cannot be read: {err.strerror}; do all nodes see this folder?"
    return safe(lines[-1], 600) if lines else "is empty"


def _queued(jobs: Collection[int], slurm: Slurm) -> set[int]:
    """The tasks of these arrays that wait, run or are just ending."""
    said = slurm.run("squeue", "--me", "--array", "--noheader", "--format=%F|%K")
    wanted = {str(job) for job in jobs}
    rows = (line.strip().partition("|") for line in said.splitlines())
    return {int(task) for job, _, task in rows if job in wanted and task.isdecimal()}
