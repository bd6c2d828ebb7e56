"""Files and directories that somebody else may have put there.

The one way to open a file that users or jobs can plant. It serves the job itself, and commands of
admins that look into run directories.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

LARGEST_BYTES = 1_000_000
"""Our own files in a run directory are far smaller."""

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
