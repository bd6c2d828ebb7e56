"""One daemon for each directory: an advisory lock that dies with its holder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from slurm_dl.model.errors import ConfigError, SlurmDlError

FILE_NAME = "lock"


class LockedError(SlurmDlError):
    """Another daemon is there."""


@contextlib.contextmanager
def held(directory: Path, *, key: str = "paths.state_dir") -> Iterator[None]:
    """Hold the lock of a directory alone; the directory is made if it is missing.

    Args:
        key: What sets the directory, for the message.

    Raises:
        LockedError: Another process holds it; the message names its pid.
        ConfigError: The directory cannot be used.
    """
    with _locked(directory, key, fcntl.LOCK_EX) as fd:
        # A full disk must not keep the daemon from starting: the lock itself is what counts.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)
        yield


@contextlib.contextmanager
def shared(directory: Path) -> Iterator[None]:
    """Hold the lock of the state directory together with others that do so.

    The lease says which of them acts. This keeps out a daemon without ``takeover``, on this host,
    and on others where the file system passes locks on.

    Raises:
        LockedError: Another process holds it alone; the message names its pid.
        ConfigError: The directory cannot be used.
    """
    with _locked(directory, "paths.state_dir", fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def _locked(directory: Path, key: str, kind: int) -> Iterator[int]:
    path = directory / FILE_NAME
    try:
        if kind == fcntl.LOCK_EX:
            # One that others share is theirs, too: where it is missing it is not mounted.
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # What is not ours is not led away by a link, nor waited for.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as err:
        what = "is a symbolic link: remove it" if err.errno == errno.ELOOP else err.strerror
        msg = f"{key}: {path}: {what}"
        raise ConfigError(msg) from err
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            msg = f"{key}: {path}: is not a regular file: remove it"
            raise ConfigError(msg)
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(fd, 20).decode("ascii", "replace").strip() or "unknown"
            msg = f"another dlschedd (pid {pid}) runs on {directory}: stop it first"
            raise LockedError(msg) from None
        yield fd
    finally:
        os.close(fd)
