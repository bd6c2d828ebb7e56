"""A ``for`` over the steps of a training that saves, reports, stops and resumes by itself."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slurm_dl.job.checkpoint import (
    checkpoint_saved,
    exit_for_requeue,
    install,
    recorded,
    resume_from,
    should_checkpoint,
)
from slurm_dl.job.progress import report
from slurm_dl.job.run_files import is_first_rank, run_dir

SAVE_EVERY_S = 900.0

NAMES = ("checkpoint-0", "checkpoint-1")
"""In turn: the one before is whole while this one is being written."""

RANGE = "loop-range"  # Start and step of the range that the checkpoints are of

_begun = []  # type: list[range]
_GO_ON, _SAVE, _STOP = range(3)


def loop(
    steps: range,
    *,
    save: Callable[[Path], object],
    load: Callable[[Path], object],
    every_s: float = SAVE_EVERY_S,
) -> Iterator[int]:
    """The *steps* that are left to do, each as it is in the range. Outside dlrun: all of them.

    Once the run has been asked to stop it saves after the step and ends the process with status 75.
    After the last step it saves and returns, so that the script can end. It reports each step.
    A script has one loop, over one range; the next run may only have a longer or a shorter one.
    On several ranks ``torch.distributed`` must be initialised: ranks agree after each step, rank 0
    saves, all ranks load.

    Args:
        save: Writes the whole state to the path that it gets, as a file or a directory.
        load: Brings the state of a path back that *save* has written.
        every_s: Seconds between checkpoints that nobody has asked for.

    Raises:
        FileNotFoundError: *save* has written nothing to its path.
        OSError: The checkpoint or its record cannot be written to disk.
        ValueError: The record is unreadable, the last checkpoint is none of a loop or of one over
            another range, ranks cannot agree, or the script has had a loop already.
    """
    directory = _begin(steps)
    if directory is None:
        yield from steps
        return
    install()
    path = resume_from()
    done = 0 if path is None else _steps_of(directory, path, steps)
    if path is not None:
        load(path)
    saved_s = time.monotonic()
    for step in steps[done:]:
        yield step
        done += 1
        report(done, len(steps))
        wanted = _STOP if should_checkpoint() else _GO_ON
        is_due = is_first_rank() and time.monotonic() >= saved_s + every_s
        if is_due or done == len(steps):
            wanted = max(wanted, _SAVE)
        wanted = _largest(wanted)
        if wanted == _GO_ON:
            continue
        if is_first_rank():
            path = directory / NAMES[path is not None and path.name == NAMES[0]]
            (directory / RANGE).write_text(_form(steps))
            _save(path, done, save)
        saved_s = time.monotonic()
        if wanted == _STOP:
            _largest(wanted)  # torchrun ends all ranks at the first that leaves
            if done < len(steps):
                exit_for_requeue()


def _begin(steps: range) -> Path | None:
    """The job's directory, None outside dlrun; once for each script."""
    if _begun:
        msg = "job.loop: a script has one loop: make its steps one range, say range(epochs * steps)"
        raise ValueError(msg)
    _begun.append(steps)
    directory = run_dir()
    if directory is not None and not is_first_rank() and distributed() is None:
        msg = "job.loop: on several ranks call torch.distributed.init_process_group before it"
        raise ValueError(msg)
    return directory


def _save(path: Path, done: int, save: Callable[[Path], object]) -> None:
    scratch = path.with_name(path.name + ".part")
    _remove(scratch)
    began_s = time.monotonic()
    save(scratch)
    save_s = time.monotonic() - began_s
    if not scratch.exists():
        msg = f"job.loop: save has written nothing to {scratch}"
        raise FileNotFoundError(msg)
    _remove(path)
    scratch.replace(path)
    checkpoint_saved(path, done, save_s=save_s)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def _form(steps: range) -> str:
    return f"from {steps.start} by {steps.step}"


def _steps_of(directory: Path, path: Path, steps: range) -> int:
    """Number of steps that are in the checkpoint at *path*."""
    with contextlib.suppress(OSError):
        if (form := (directory / RANGE).read_text()) != _form(steps):
            msg = f"job.loop: the checkpoint is of a range {form[:80]}, and this is {steps}"
            raise ValueError(msg)
    step = next(c.get("step") for c in recorded(directory) if c["path"] == str(path))
    if not isinstance(step, int) or step < 0:
        msg = f"job.loop: {path} was recorded without the number of steps done"
        raise ValueError(msg)
    return step


def distributed() -> Any:  # noqa: ANN401 -- a module that is not here
    """torch.distributed, if the script has initialised it; it is never imported for that."""
    module = sys.modules.get("torch.distributed")
    return module if module and module.is_available() and module.is_initialized() else None


def _largest(wanted: int) -> int:
    """The largest number of all ranks, once each of them is here."""
    group = distributed()
    if group is None:
        return wanted
    device = "cuda" if "nccl" in group.get_backend() else "cpu"
    number = sys.modules["torch"].tensor([wanted], device=device)
    group.all_reduce(number, group.ReduceOp.MAX)
    return int(number.item())
