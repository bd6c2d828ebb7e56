"""Who else than root and the daemon's account could write to a path, or put something in its place.

Permission bits and owners alone: an access list that gives more shows in the group's bits.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


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
