"""What a check says: how things are, what was found, what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How things are."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    SKIPPED = "skipped"
    """The check could not be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check says.

    Attributes:
        found: What was found; in one line, or why nothing was.
        advice: What to do about it; empty if there is nothing to do.
    """

    level: Severity
    found: str
    advice: str = ""


class CannotTellError(Exception):
    """A check lacks what it needs; its text says what."""


def ok(found: str) -> CheckResult:
    """All is well."""
    return CheckResult(level=Severity.OK, found=found)


def warning(found: str, advice: str) -> CheckResult:
    """It works, and costs something or is not what was meant."""
    return CheckResult(level=Severity.WARNING, found=found, advice=advice)


def error(found: str, advice: str) -> CheckResult:
    """It does not work."""
    return CheckResult(level=Severity.ERROR, found=found, advice=advice)
