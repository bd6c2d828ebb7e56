"""How far and how fast a job is: two small files, replaced now and then.

The first is for people and for dlqueue. The second keeps what an admin's ``dlctl profile learn``
makes a speed of: the lengths of short windows of steps, and what the run lay on.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from slurm_dl.job.elastic import Split
from slurm_dl.job.run_files import (
    PROGRESS_FILE,
    RunId,
    is_first_rank,
    read_object,
    restart_count,
    run_dir,
    this_run,
    write_whole,
)

WRITE_EVERY_S = 1.0  # Least time between two writes; the last step is always written

SPEED_FILE = "slurm_dl.speed.json"
"""Windows of steps of this job's runs, with the nodes and GPUs of each."""

MODEL_VARIABLE = "SLURM_DL_MODEL"
HINTS_VARIABLE = "SLURM_DL_HINTS"
"""The hints by which a run's speed is told apart, as ``byteps=4096000,p3=40000``."""

WINDOW_S = 1.0
"""Least length of a window. A pause makes one window slow and leaves the others as they are."""

KEPT_WINDOWS = 128
"""When there are so many, every second one is dropped: the rest still covers the whole run."""

KEPT_RUNS = 16


class _Throttle:
    """When the file was last written, and for which directory."""

    def __init__(self) -> None:
        self.directory: Path | None = None
        self.write_again_s = 0.0

    def is_due(self, directory: Path, now_s: float) -> bool:
        if directory == self.directory and now_s < self.write_again_s:
            return False
        self.directory = directory
        self.write_again_s = now_s + WRITE_EVERY_S
        return True


class _Division:
    """How steps are divided, and since which of them."""

    def __init__(self) -> None:
        self.part: Split | None = None
        self.first_step = 0

    def see(self, part: Split | None, step: int) -> None:
        if part != self.part:
            self.part, self.first_step = part, step

    def content(self) -> dict[str, object]:
        if self.part is None:
            return {}
        return {"part": [int(number) for number in self.part], "part_step": self.first_step}


class _Windows:
    """Steps and seconds of some windows of this run, in a fixed room however long it is."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory
        self.windows: list[tuple[int, float, float]] = []
        """Steps, seconds, and the end in seconds since the epoch."""
        self.started: tuple[int, float] | None = None
        """Step and monotonic time at which the window that is open began."""
        self.keep_every = 1
        self.closed = 0
        self.write_at = 1
        """So many windows must have been closed for the next write; ever fewer writes are made."""
        self.older: list[object] | None = None
        """Runs before this one, once they have been read."""

    def see(self, step: int, now_s: float) -> None:
        if self.started is None or step < self.started[0]:
            self.started = (step, now_s)
            return
        steps, seconds = step - self.started[0], now_s - self.started[1]
        if seconds < WINDOW_S or steps < 1:
            return
        self.started = (step, now_s)
        if self.closed % self.keep_every == 0:
            self.windows.append((steps, seconds, time.time()))
        self.closed += 1
        if len(self.windows) > KEPT_WINDOWS:
            self.windows = self.windows[::2]
            self.keep_every *= 2

    def is_due(self) -> bool:
        return self.closed >= self.write_at

    def write(self, path: Path) -> None:
        self.write_at = self.closed + 1 + min(self.closed // 8, 60)
        run = this_run()
        if self.older is None:
            self.older = older_runs(path, run)
        this: dict[str, object] = {
            "restart": run.restart,
            "attempt": run.attempt,
            **placed(os.environ),
            "windows": [[n, round(seconds, 6), round(end, 1)] for n, seconds, end in self.windows],
        }
        write_whole(path, {"v": 1, "runs": [*self.older, this]}, durable=False)


_throttle = _Throttle()
_windows = _Windows()
_division = _Division()


def report(
    step: int,
    total: int | None = None,
    *,
    part: Split | None = None,
    memory: tuple[float, float] | None = None,
    **numbers: float | None,
) -> None:
    """Tell how far the training is: *step* of *total*, with numbers such as ``loss=0.3``.

    Cheap enough for every step: most calls write nothing. A full disk is no reason to stop
    training, so a failed write is not an error. On ranks above 0 it does nothing. A number that
    is None is left out.

    Args:
        step: Steps of the optimiser that are done, over all runs.
        part: How a step is divided now. With it and ``noise=``, the noise scale in samples, the
            scheduler learns how fast and how good steps are.
        memory: Bytes of GPU memory that are in use between steps, and the most inside one, as
            ``torch.cuda.memory_allocated()`` and ``torch.cuda.max_memory_allocated()`` give them.
            Two jobs that share a GPU may then use the difference in turns.

    Raises:
        ValueError: *step* is negative, or a number is not finite.
    """
    if step < 0:
        msg = f"report: step must be 0 or more (got {step})"
        raise ValueError(msg)
    values = {name: float(value) for name, value in numbers.items() if value is not None}
    memory_mb = [round(float(size) / 2**20, 1) for size in memory or ()]
    for name, value in [*values.items(), *(("memory", size) for size in memory_mb)]:
        if not math.isfinite(value):
            msg = f"report: {name} must be finite (got {value})"
            raise ValueError(msg)
    directory = run_dir()
    if directory is None or not is_first_rank():
        return
    now_s = time.monotonic()
    windows = _windows_of(directory)
    windows.see(step, now_s)
    _division.see(part, step)
    if not _throttle.is_due(directory, now_s) and step != total:
        return
    content = {
        "v": 1,
        "step": step,
        "total": total,
        "time_s": time.time(),
        "restart": restart_count(),
        "numbers": values,
        **({"memory_mb": memory_mb} if memory_mb else {}),
        **_division.content(),
    }
    try:
        write_whole(directory / PROGRESS_FILE, content, durable=False)
        if windows.windows and (windows.is_due() or step == total):
            windows.write(directory / SPEED_FILE)
    except OSError:
        return


def _windows_of(directory: Path) -> _Windows:
    global _windows  # noqa: PLW0603 -- one job in a process, as good as always
    if _windows.directory != directory:
        _windows = _Windows(directory)
    return _windows


def placed(environ: Mapping[str, str]) -> dict[str, object]:
    """What this run lies on, by Slurm's variables; None for what they do not tell.

    Keys: ``nodes``, ``gpus_per_node`` (None unless each node has as many), ``gpu_type`` as in the
    request, ``model`` as the job was submitted with, ``hints`` that it is under if there are any.
    """
    nodes = _number(environ, "SLURM_JOB_NUM_NODES") or _number(environ, "SLURM_NNODES")
    requested = {
        name: environ.get(name, "").rpartition(":")
        for name in ("SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK")
    }
    kinds = {kind for kind, _, _ in requested.values() if kind}
    here = _gpus_here(environ)
    return {
        "nodes": nodes,
        "gpus_per_node": here if nodes and here and _is_even(environ, nodes, here) else None,
        "gpu_type": kinds.pop() if len(kinds) == 1 else None,
        "model": environ.get(MODEL_VARIABLE) or None,
        **({"hints": hints} if (hints := environ.get(HINTS_VARIABLE)) else {}),
    }


def _is_even(environ: Mapping[str, str], nodes: int, here: int) -> bool:
    """True if every node surely has as many GPUs as this one, *here*."""
    if nodes == 1 or environ.get("SLURM_GPUS_PER_NODE"):
        return True
    if environ.get("SLURM_GPUS_PER_TASK"):
        return "," not in environ.get("SLURM_TASKS_PER_NODE", ",")
    total = environ.get("SLURM_GPUS", "").rpartition(":")[2]
    # --gpus=8 on 3 nodes may be 3 + 3 + 2 or 4 + 2 + 2; of two, one tells the other.
    return not total or (nodes, total) == (2, str(2 * here))


def _gpus_here(environ: Mapping[str, str]) -> int | None:
    if environ.get("SLURM_SHARDS_ON_NODE"):
        # Part of a GPU, which Slurm counts as a whole one here.
        return None
    if count := _number(environ, "SLURM_GPUS_ON_NODE"):
        return count
    for name in ("SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES"):
        listed = environ.get(name, "")
        if re.fullmatch(r"[\w-]+(,[\w-]+)*", listed) and listed != "NoDevFiles":
            return len(listed.split(","))
    return None


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,5}", text) else None


def older_runs(path: Path, this: RunId) -> list[object]:
    """Runs that are in the file already, but for *this*; what cannot be read is dropped."""
    try:
        content = read_object(path)
    except (OSError, ValueError):
        return []
    runs = content.get("runs") if content else None
    older: list[object] = [
        entry
        for entry in (runs if isinstance(runs, list) else [])
        if isinstance(entry, dict) and (entry.get("restart"), entry.get("attempt")) != this
    ]
    return older[-(KEPT_RUNS - 1) :]
