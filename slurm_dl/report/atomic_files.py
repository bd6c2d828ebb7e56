"""Result files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from slurm_dl.model.errors import ConfigError


def write_whole(path: Path, content: bytes) -> None:
    """Put *content* at *path*, in place of what was there; a reader never sees half of it.

    A device or a pipe is written to as it is.

    Raises:
        ConfigError: It cannot be written; what was there before is untouched.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            # What a link points to is replaced, not the link.
            _replace(path.resolve(), content)
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}; name a file in a directory you may write to"
        raise ConfigError(msg) from error


def _replace(path: Path, content: bytes) -> None:
    # Not tempfile: it makes files that nobody else may read.
    with replacing(path, mode=0o666) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path, *, mode: int) -> Iterator[IO[bytes]]:
    """A file that stands at *path* once all is written, and not at all if that fails.

    Args:
        mode: Its permissions, less those that the umask takes away.

    Raises:
        OSError: It cannot be written; what was there before is untouched.
    """
    beside = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
