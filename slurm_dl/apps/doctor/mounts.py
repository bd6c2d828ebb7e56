"""On which kind of file system a path is, from the kernel's table of mounts."""

from __future__ import annotations

import os
import re
from pathlib import Path

_OCTAL = re.compile(r"\\([0-7]{3})")


def filesystem_of(path: Path, mountinfo: str) -> str:
    """Type of the file system that *path* is or would be on; empty if the table does not say.

    Args:
        path: Links in it are followed.
        mountinfo: The text of ``/proc/self/mountinfo``, see proc(5).
    """
    real = Path(os.path.realpath(path))
    best, kind = -1, ""
    for line in mountinfo.split("\n"):
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(fields) < 5 or not rest:  # noqa: PLR2004 - the fifth field is the mount point
            continue
        point = Path(_OCTAL.sub(lambda m: chr(int(m[1], 8)), fields[4]))
        depth = len(point.parts)
        # Of two on one point, the later one covers the earlier.
        if depth >= best and real.is_relative_to(point):
            best, kind = depth, rest[0]
    return kind
