"""A job's run directory: which one it is, what lies in it, and writing there without half files.

`dlrun` and the training script meet in these files only, so both read their names and their
form from here. All of them are JSON objects.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from slurm_dl.job.untrusted_files import read_regular

RUN_DIR_VARIABLE = "SLURM_DL_RUN_DIR"
RESTART_VARIABLE = "SLURM_DL_RESTART_COUNT"
ATTEMPT_VARIABLE = "SLURM_DL_ATTEMPT"
SIGNAL_VARIABLE = "SLURM_DL_SIGNAL"

REQUEST_FILE = "slurm_dl.request"
"""Written by dlrun: save a checkpoint and stop."""

LISTENING_FILE = "slurm_dl.listening"
"""Written by the script: it looks for the request file, so it needs no signal."""

IMPORTED_FILE = "slurm_dl.imported"
"""Written when `slurm_dl.job` is imported: the script may yet look for the request file."""

STOPPED_FILE = "slurm_dl.stopped"
"""Written by the script: it ends now in order to be run again. A launcher such as torchrun
replaces exit status 75 by its own, this file tells it nevertheless."""

STATE_FILE = "slurm_dl.state.json"
"""Written by the script: its last checkpoints."""

PROGRESS_FILE = "slurm_dl.progress.json"
"""Written by the script: how far it is."""

_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


class RunId(NamedTuple):
    """One start of the command."""

    restart: int  # How often Slurm has restarted the job
    attempt: int  # How often dlrun has started the command again within this allocation


def run_dir() -> Path | None:
    """The job's directory, the same over all its restarts; None outside dlrun."""
    value = os.environ.get(RUN_DIR_VARIABLE)
    return Path(value) if value else None


def restart_count() -> int:
    """How often Slurm has put this job back and started it again; 0 outside Slurm."""
    return _count(RESTART_VARIABLE) or _count("SLURM_RESTART_COUNT")


def this_run() -> RunId:
    """Which start of the command this process belongs to."""
    return RunId(restart_count(), _count(ATTEMPT_VARIABLE))


def is_first_rank() -> bool:
    """True in the one process that speaks for the job: rank 0, or a process without ranks."""
    for name in _RANK_VARIABLES:
        value = os.environ.get(name, "")
        if value:
            return value == "0"
    return True


def write_whole(
    path: Path, content: Mapping[str, object], *, durable: bool = True, mode: int = 0o666
) -> None:
    """Put *content* at *path* so that a kill at any moment leaves the old file or the new one.

    If *durable*, it is on disk when this returns and survives a crash of the node.

    Raises:
        OSError: The directory is gone, full or not writable; the old file is as it was.
        ValueError: *content* has numbers that are not finite.
    """
    _write(path, json.dumps(content, allow_nan=False) + "\n", durable=durable, mode=mode)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Put *lines* at *path* as a whole, like `write_whole`, for as long as this run lasts.

    Raises:
        OSError: The directory is gone, full or not writable; the old file is as it was.
    """
    _write(path, "".join(f"{line}\n" for line in lines), durable=False)


def _write(path: Path, text: str, *, durable: bool, mode: int = 0o666) -> None:
    # Random, not the pid: processes on several nodes may write into one directory.
    scratch = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with open(os.open(scratch, flags, mode), "w", encoding="utf-8") as out:  # noqa: PTH123
            out.write(text)
            out.flush()
            if durable:
                os.fsync(out.fileno())
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    if durable:
        sync_to_disk(path.parent)


def sync_to_disk(path: Path) -> None:
    """Wait until the file or directory at *path* itself is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_object(path: Path, *, must_be_ours: bool = False) -> dict[str, object] | None:
    """The JSON object at *path*; None if there is none.

    Args:
        must_be_ours: Refuse a file that belongs neither to the effective user nor to root.

    Raises:
        OSError: It is there and cannot be read.
        ValueError: It is no JSON object, or not to be trusted.
    """
    try:
        text = read_regular(path, must_be_ours=must_be_ours)
    except FileNotFoundError:
        return None
    try:
        content: object = json.loads(text)
    except RecursionError:
        content = None
    if not isinstance(content, dict):
        msg = f"{path} is no JSON object"
        raise ValueError(msg)  # noqa: TRY004 -- one error for every unreadable content
    return content


def write_mark(path: Path, run: RunId, *, durable: bool = True, **more: object) -> None:
    """Write a file that counts for *run* only."""
    content = {"v": 1, "restart": run.restart, "attempt": run.attempt, **more}
    write_whole(path, content, durable=durable)


def mark_import() -> None:
    """Leave `IMPORTED_FILE` for dlrun, in a process of its command; no import fails of it."""
    directory, run = run_dir(), this_run()
    if directory is None or ATTEMPT_VARIABLE not in os.environ:
        return
    with contextlib.suppress(OSError):
        if not is_marked(directory / IMPORTED_FILE, run):
            write_mark(directory / IMPORTED_FILE, run, durable=False)


def is_marked(path: Path, run: RunId) -> bool:
    """True if the file at *path* was written for *run*; false for older, broken or no files."""
    try:
        content = read_object(path)
    except (OSError, ValueError):
        return False
    return content is not None and run == (content.get("restart"), content.get("attempt"))


def _count(variable: str) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isascii() and value.isdigit() else 0
