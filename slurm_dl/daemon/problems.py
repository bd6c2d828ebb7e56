"""Present problems: errors that a check of ``dlctl doctor`` finds while the daemon runs.

The checks are made by `doctor.problem_watch`, from which nothing here may import.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WATCHED: Final = (
    *("configuration", "release", "partitions", "rights", "private data", "clock"),
    *("priority plugin", "site factor", "priority weights", "priority flags", "gpus"),
    *("preemption", "profiles", "job records", "directories", "templates"),
)
"""Names of the checks that are made: those that find errors, but for what each poll tells anyway
(``slurm``, ``reader``, ``cycles``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error that stands.

    Attributes:
        check: Name of the check, one of `WATCHED`.
        found: What was found.
        advice: What to do about it.
        since_s: When it was first found, epoch seconds.
    """

    check: str
    found: str
    advice: str
    since_s: float
