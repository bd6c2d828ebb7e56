"""A sweep as one array of CPU jobs on a Slurm cluster: submit, wait, say what failed.

dlsubmit makes jobs that hold GPUs, run under dlrun and can be preempted by a checkpoint. A
simulation is none of these, so the array has a script and arguments of its own. Of dlsubmit it has
the discipline: the script is a constant, everything a user typed is an argument of its own, sbatch
is called without a shell and in a cleaned environment.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_dl.experiments.sweep import CellResult, SweepCell
from slurm_dl.experiments.sweep_files import Folder
from slurm_dl.model.errors import ClusterError, SlurmDlError
from slurm_dl.report.atomic_files import write_whole
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.submit import job_environment, option_values
from slurm_dl.text import safe

SCRIPT: Final = b"""\
#!/bin/bash
# One task of a sweep of dlsim: $1 is the Python that submitted it, $2 the folder of the sweep.
exec >>"$2/logs/task-$SLURM_ARRAY_TASK_ID.log" 2>&1
# -I: see own_python.py.
exec "$1" -I -c 'from slurm_dl.cli.dlsim.command import main; main()' \\
    sweep-cell "$2" "$SLURM_ARRAY_TASK_ID"
"""

JOB_NAME: Final = "dlsim-sweep"

_FIRST_POLL_S: Final = 0.5
_SLOWEST_POLL_S: Final = 15.0
_SETTLE_S: Final = 10.0
"""How long a result may take to be seen here after its task has left the queue."""
_SQUEUE_S: Final = 60.0
_LAST_LINES: Final = 4096
_LONGEST_LINE: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """What was asked of Slurm.

    Attributes:
        partition: As sbatch takes it; None for the default one.
        time: Time limit of a task in sbatch's words; None for the partition's.
        most_at_once: Tasks that may run at one time; None for as many as fit.
    """

    partition: str | None = None
    time: str | None = None
    most_at_once: int | None = None

    def __post_init__(self) -> None:
        option_values.clean_text(self.partition or "", "--partition")
        option_values.clean_text(self.time or "", "--time")


class TasksFailedError(ClusterError):
    """Tasks ended without all of their results; says which, and where their logs are."""


class LateError(ClusterError):
    """The results were not all there in time; the array goes on."""


def arguments(folder: Folder, tasks: Collection[int], request: SweepRequest) -> tuple[str, ...]:
    """What sbatch is called with, without the program.

    Raises:
        ConfigError: The folder's name cannot be an argument.
    """
    path = option_values.clean_text(str(folder.path), "--dir")
    limit = "" if request.most_at_once is None else f"%{request.most_at_once}"
    given = {"partition": request.partition, "time": request.time}
    return (
        "--parsable",
        f"--job-name={JOB_NAME}",
        f"--array={_ranges(tasks)}{limit}",
        f"--chdir={path}",
        # The script says where its words go: Slurm takes % in a folder's name for a pattern, even
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


def _ranges(tasks: Collection[int]) -> str:
    """``0-3,7`` for 0, 1, 2, 3, 7."""
    parts: list[list[int]] = []
    for task in sorted(tasks):
        if parts and task == parts[-1][-1] + 1:
            parts[-1].append(task)
        else:
            parts.append([task])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else f"{p[0]}" for p in parts)


def submit(
    folder: Folder, request: SweepRequest, environ: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Submit what has no result yet and is not in the queue.

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
    tasks = sorted(set(folder.tasks_of(missing)) - queued)
    if not tasks:
        say(f"{_counted(len(queued), 'task')} in the queue already; nothing more is submitted")
        return
    write_whole(folder.path / "task.sh", SCRIPT)
    cleaned = job_environment.clean(environ, keep_sbatch=True)
    answer = slurm.submit(*arguments(folder, tasks, request), environ=cleaned.environ)
    if answer.job_id is None:
        said = answer.text.decode(errors="replace").strip() or "nothing"
        msg = f"sbatch refused the array and said: {said}"
        raise ClusterError(msg)
    folder.note_submitted(answer.job_id)
    say(
        f"job array {answer.job_id}: {_counted(len(tasks), 'task')} for"
        f" {_counted(len(missing), 'simulation')}; results gather in {folder.path}"
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def wait(
    folder: Folder,
    environ: Mapping[str, str],
    *,
    within_s: float,
    progress: Callable[[int], None],
) -> list[CellResult]:
    """Wait for all results and read them, in the order of the cells.

    Slurm is asked ever less often, every 15 s in the end; while it is silent, files are looked at.

    Args:
        within_s: Give up after so long.
        progress: Told how many results are there.

    Raises:
        TasksFailedError: No task is left in the queue and results are missing.
        LateError: The time is over.
    """
    cells = folder.sweep.cells
    slurm = Slurm(environ=environ, timeout_s=_SQUEUE_S)
    gone_s: float | None = None
    silent = ""
    for now_s in _polls(within_s):
        missing = folder.missing()
        progress(len(cells) - len(missing))
        if not missing:
            return [folder.read_result(cell) for cell in cells]
        try:
            left = _queued(folder.submitted(), slurm) & set(folder.tasks_of(missing))
        except ClusterError as err:
            silent = f" (Slurm is silent: {err})"
            continue
        silent = ""
        if left:
            gone_s = None
        elif gone_s is None:
            gone_s = now_s
        elif now_s - gone_s >= _SETTLE_S:
            raise TasksFailedError("\n".join(_failures(folder, missing)))
    missing = folder.missing()
    if not missing:
        return [folder.read_result(cell) for cell in cells]
    msg = (
        f"{len(missing)} of {len(cells)} results are not there after {within_s:g} s{silent};"
        f" the array goes on, and --on slurm --dir {folder.path} --resume gathers it"
    )
    raise LateError(msg)


def _polls(within_s: float) -> Iterator[float]:
    """Instants at which to look, as seconds since the first; slower and slower."""
    began_s = time.monotonic()
    pause_s = _FIRST_POLL_S
    while (now_s := time.monotonic() - began_s) < within_s:
        yield now_s
        time.sleep(min(pause_s, max(0.0, within_s - (time.monotonic() - began_s))))
        pause_s = min(pause_s * 1.2, _SLOWEST_POLL_S)


def run_task(folder: Folder, task: int, run: Callable[[SweepCell], CellResult]) -> list[str]:
    """Run the share of *task* that has no result yet; what failed and why, in words.

    Args:
        run: Runs one cell.
    """
    failed = []
    missing = set(folder.missing())
    for cell in folder.cells_of(task):
        if cell not in missing:
            continue
        try:
            folder.write_result(cell, run(cell))
        except SlurmDlError as err:
            failed.append(str(err))
        except Exception:  # noqa: BLE001 - the others of the share are to run all the same
            failed.append(f"{traceback.format_exc()}{cell}: a fault of dlsim, see above")
    return failed


def _failures(folder: Folder, missing: Collection[SweepCell]) -> Iterator[str]:
    tasks = folder.tasks_of(tuple(missing))
    yield f"{len(missing)} of {len(folder.sweep.cells)} simulations have no result:"
    for task in tasks:
        lost = [str(cell) for cell in missing if cell.index % folder.tasks == task]
        log = folder.log_of(task)
        yield f"task {task} ({'; '.join(lost)}): log {log}: {_last_line(log)}"
    yield f"once that is mended, --on slurm --dir {folder.path} --resume runs these again"


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_LINES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError as err:
        return f"cannot be read: {err.strerror}; do all nodes see this folder?"
    return safe(lines[-1], _LONGEST_LINE) if lines else "is empty"


def _queued(jobs: Collection[int], slurm: Slurm) -> set[int]:
    """The tasks of these arrays that wait, run or are just ending.

    Raises:
        ClusterError: squeue failed or took too long.
    """
    said = slurm.run("squeue", "--me", "--array", "--noheader", "--format=%F|%K")
    wanted = {str(job) for job in jobs}
    queued = set()
    for line in said.splitlines():
        job, _, task = line.strip().partition("|")
        if job in wanted and task.isascii() and task.isdigit():
            queued.add(int(task))
    return queued
