"""The registry of checks, and what a check says: how things are, what was found, what to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from slurm_dl.doctor.site import Site


class Severity(StrEnum):
    """How things are."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    SKIPPED = "skipped"
    """The check could not be made."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check says."""

    level: Severity
    found: str  # What was found; in one line, or why nothing was
    advice: str = ""  # What to do about it; empty if there is nothing to do


ok = partial(CheckResult, Severity.OK)
warning = partial(CheckResult, Severity.WARNING)
"""It works, and costs something or is not what was meant."""
error = partial(CheckResult, Severity.ERROR)
"""It does not work."""
skipped = partial(CheckResult, Severity.SKIPPED)

CheckFunction = Callable[[Site], CheckResult]

REGISTERED: defaultdict[str, dict[str, CheckFunction]] = defaultdict(dict)
"""The checks of each module by their names, which are stable for programs, in their order.

A check may raise a `SlurmDlError` or an `OSError`: it could not be made.
"""


def check(name: str) -> Callable[[CheckFunction], CheckFunction]:
    """Register the decorated function as the next check of its module."""

    def register(run: CheckFunction) -> CheckFunction:
        REGISTERED[run.__module__][name] = run
        return run

    return register
