"""How far a job is, for people and for dlqueue: one small file, replaced now and then."""

from __future__ import annotations

import math
import time
from pathlib import Path

from slurm_dl.job.run_files import (
    PROGRESS_FILE,
    is_first_rank,
    restart_count,
    run_dir,
    write_whole,
)

WRITE_EVERY_S = 1.0
"""Least time between two writes; the last step is always written."""


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


_throttle = _Throttle()


def report(step: int, total: int | None = None, **numbers: float) -> None:
    """Tell how far the training is: *step* of *total*, with numbers such as ``loss=0.3``.

    Cheap enough for every step: most calls write nothing. A full disk is no reason to stop
    training, so a failed write is not an error. On ranks above 0 it does nothing.

    Raises:
        ValueError: *step* is negative, or a number is not finite.
    """
    if step < 0:
        msg = f"report: step must be 0 or more (got {step})"
        raise ValueError(msg)
    values = {name: float(value) for name, value in numbers.items()}
    for name, value in values.items():
        if not math.isfinite(value):
            msg = f"report: {name} must be finite (got {value})"
            raise ValueError(msg)
    directory = run_dir()
    if directory is None or not is_first_rank():
        return
    if not _throttle.is_due(directory, time.monotonic()) and step != total:
        return
    content = {
        "v": 1,
        "step": step,
        "total": total,
        "time_s": time.time(),
        "restart": restart_count(),
        "numbers": values,
    }
    try:
        write_whole(directory / PROGRESS_FILE, content, durable=False)
    except OSError:
        return
