"""Replace a file as a whole; say who else could write to a path.

The latter goes by permission bits and owners alone: an access list that gives more shows in the
group's bits.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@contextmanager
def replace_file(path: Path, *, mode: int, durable: bool = True) -> Iterator[IO[bytes]]:
    """A file that stands at *path* once all is written, and not at all if that fails.

    Args:
        mode: Its permissions, less those that the umask takes away.
        durable: Its content is on disk before it stands at *path*.

    Raises:
        OSError: It cannot be written; what was there before is untouched.
    """
    beside = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def why_not_trusted(path: Path, owners: Collection[int]) -> str:
    """What lets others than root and *owners* write to *path* or replace it; empty: nothing does.

    All directories above it are looked at, of a link those of its target too. What does not exist
    is passed over. A directory above it may have the sticky bit, as /tmp has.

    Raises:
        OSError: A directory above it cannot be entered.
    """
    target = Path(os.path.realpath(path))
    whole = Path(os.path.abspath(path))  # noqa: PTH100 -- links stay
    trusted = {0, *owners}
    for place in dict.fromkeys([whole, *whole.parents, target, *target.parents]):
        try:
            status = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        if status.st_uid not in trusted:
            return f"{place} belongs to uid {status.st_uid}"
        mode = stat.S_IMODE(status.st_mode)
        is_open = mode & _OTHERS_WRITE and not stat.S_ISLNK(status.st_mode)
        if is_open and (place in {whole, target} or not mode & stat.S_ISVTX):
            told = f"can be written by group or others (mode {mode:04o})"
            return f"{place} {told}: chmod go-w {place}"
    return ""
