"""Labels of job arrays as squeue writes them: ``123_[0-9,12]``."""

from __future__ import annotations

import re


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
