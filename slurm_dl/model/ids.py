"""Ids, which must not be swapped, and the labels of job arrays: ``123_[0-9,12]``."""

from __future__ import annotations

import re
from typing import NewType

JobId = NewType("JobId", int)
"""Slurm's own job id of one record (``%A``); for a pending array it is the array's id."""

HandoverId = NewType("HandoverId", int)  # Number of a hand-over in the ledger; it never comes back


def has_task(label: str, task: int) -> bool:
    """Whether the pending part ``[...]`` of an array's label has *task* in it."""
    inside = re.fullmatch(r"[0-9]+_\[(?P<spec>[^\]]*)\]", label)
    if inside is None:
        return False
    spec = inside["spec"].partition("%")[0]
    for part in spec.split(","):
        span = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,18}))?)?", part)
        if span is None:
            # squeue cuts long lists off ("..."): the rest may well be there.
            return part == "..."
        low, high, step = int(span[1]), int(span[2] or span[1]), int(span[3] or 1)
        if low <= task <= high and (task - low) % max(step, 1) == 0:
            return True
    return False
