"""One daemon for each state directory: an advisory lock that dies with its holder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from slurm_dl.model.errors import ConfigError, SlurmDlError

FILE_NAME = "lock"


class LockedError(SlurmDlError):
    """Another daemon is there."""


@contextlib.contextmanager
def held(state_dir: Path) -> Iterator[None]:
    """Hold the lock; the directory is made if it is missing.

    Raises:
        LockedError: Another process holds it; the message names its pid.
        ConfigError: The directory cannot be used.
    """
    path = state_dir / FILE_NAME
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as err:
        msg = f"paths.state_dir: {path}: {err.strerror}"
        raise ConfigError(msg) from err
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(fd, 20).decode("ascii", "replace").strip() or "unknown"
            msg = f"another dlschedd (pid {pid}) runs on {state_dir}: stop it first"
            raise LockedError(msg) from None
        # A full disk must not keep the daemon from starting: the lock itself is what counts.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)
        yield
    finally:
        os.close(fd)
