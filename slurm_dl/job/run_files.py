"""A job's run directory: which one it is, what lies in it, and writing there without half files.

`dlrun` and the training script meet in these files only, so both read their names and their
form from here. All of them are JSON objects.

`read_regular` is the one way to open a file that users or jobs can plant. It serves the job itself,
and commands of admins that look into run directories.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

LARGEST_BYTES = 1_000_000  # Our own files in a run directory are far smaller

RUNS_NAME = "slurm_dl_runs"
"""The directory of a user's run directories, where nothing else is named."""

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_INSTEAD = "set SLURM_DL_RUN_DIR (dlsubmit --run-dir) to a place in a directory of your own"


def read_regular(
    path: Path,
    *,
    largest_bytes: int = LARGEST_BYTES,
    must_be_ours: bool = False,
    owner: int | None = None,
) -> bytes:
    """The content of a regular file; no link is followed, and no FIFO or device is waited for.

    Args:
        largest_bytes: A larger file is refused.
        must_be_ours: Refuse a file that belongs neither to the effective user nor to root.
        owner: Refuse a file that does not belong to this uid.

    Raises:
        OSError: It cannot be opened or read, or is a symbolic link.
        ValueError: It is not a regular file, too large, or somebody else's.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), "rb") as file:  # noqa: PTH123 -- of a descriptor
        # Of the open file, not of the name: it cannot be swapped in between.
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            msg = "not a regular file"
            raise ValueError(msg)
        if (must_be_ours and not _is_ours(status)) or owner not in (None, status.st_uid):
            msg = f"belongs to uid {status.st_uid}, who may have put it there"
            raise ValueError(msg)
        content = file.read(largest_bytes + 1)
    if len(content) > largest_bytes:
        msg = f"larger than {largest_bytes} bytes"
        raise ValueError(msg)
    return content


def make_run_dir(path: Path, *, check_base: bool) -> None:
    """Make a run directory, mode 0700, or take the one that is there if it is ours.

    One of ours that others can write to, as earlier versions left them, is closed to them.

    Args:
        check_base: The directory above it must be trusted as well, because only run directories
            lie there. One of ours by its name is closed to other writers, too.

    Raises:
        OSError: It cannot be made.
        ValueError: Others could put things there; the message says what to do.
    """
    base = path.parent
    # Parents above it get the user's own umask.
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    if check_base:
        _check_owner(base)
        mode = stat.S_IMODE(base.stat().st_mode)
        if mode & _OTHERS_WRITE and not mode & stat.S_ISVTX:
            if base.name != RUNS_NAME:
                msg = f"others can write to {base} (mode {mode:04o}): chmod go-w it, or {_INSTEAD}"
                raise ValueError(msg)
            base.chmod(mode & ~_OTHERS_WRITE)
    path.mkdir(mode=0o700, exist_ok=True)
    close_to_others(path)


def close_to_others(path: Path) -> None:
    """Make sure that nobody else can put files into the directory *path*.

    Raises:
        OSError: It is not there, or its mode cannot be changed.
        ValueError: It is somebody else's; the message says what to do.
    """
    _check_owner(path)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS_WRITE:
        # A project's files keep its group.
        path.chmod(0o700 | mode & stat.S_ISGID)


def _check_owner(path: Path) -> None:
    # A link belongs to whoever can turn it to another place.
    for status in (path.lstat(), path.stat()):
        if not _is_ours(status):
            msg = f"{path} belongs to uid {status.st_uid}, who may have planted it: {_INSTEAD}"
            raise ValueError(msg)


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid in {0, os.geteuid()}


RUN_DIR_VARIABLE = "SLURM_DL_RUN_DIR"
RESTART_VARIABLE = "SLURM_DL_RESTART_COUNT"
ATTEMPT_VARIABLE = "SLURM_DL_ATTEMPT"
SIGNAL_VARIABLE = "SLURM_DL_SIGNAL"
REQUEST_FILE = "slurm_dl.request"  # Written by dlrun: save a checkpoint and stop

LISTENING_FILE = "slurm_dl.listening"
"""Written by the script: it looks for the request file, so it needs no signal."""

IMPORTED_FILE = "slurm_dl.imported"
"""Written when `slurm_dl.job` is imported: the script may yet look for the request file."""

STOPPED_FILE = "slurm_dl.stopped"
"""Written by the script: it ends now in order to be run again. A launcher such as torchrun
replaces exit status 75 by its own, this file tells it nevertheless."""

STATE_FILE = "slurm_dl.state.json"  # Written by the script: its last checkpoints
PROGRESS_FILE = "slurm_dl.progress.json"  # Written by the script: how far it is

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
