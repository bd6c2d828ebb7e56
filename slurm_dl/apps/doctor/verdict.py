"""What a check says: how things are, what was found, what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How things are."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    SKIPPED = "skipped"
    """The check could not be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one check says.

    Attributes:
        found: What was found; in one line, or why nothing was.
        advice: What to do about it; empty if there is nothing to do.
    """

    level: Level
    found: str
    advice: str = ""


class CannotTellError(Exception):
    """A check lacks what it needs; its text says what."""


def ok(found: str) -> Verdict:
    """All is well."""
    return Verdict(level=Level.OK, found=found)


def warning(found: str, advice: str) -> Verdict:
    """It works, and costs something or is not what was meant."""
    return Verdict(level=Level.WARNING, found=found, advice=advice)


def error(found: str, advice: str) -> Verdict:
    """It does not work."""
    return Verdict(level=Level.ERROR, found=found, advice=advice)
