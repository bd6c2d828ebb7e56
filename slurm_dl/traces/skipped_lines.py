"""What a reader leaves out of a trace, why, and how it is told without a line for each line.

Some lines are left out by rule (jobs without GPUs, jobs that had not ended): there may be millions
of them, and they are told by their number. Others are broken: the first of each kind are told one
by one, the rest by their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from slurm_dl.model.trace import BadLine

SHOWN_PER_REASON: Final = 20
"""Broken lines told one by one, of each kind."""


class Reason(StrEnum):
    """Why a line is no job of the trace; the values are what summaries print."""

    FIELDS = "wrong number of fields"
    TOO_LONG = "line too long"
    BROKEN = "broken record"
    NAME = "unusable name"
    NUMBER = "not a number"
    TIME = "not a time"
    NEGATIVE = "negative"
    OUT_OF_RANGE = "out of range"
    GPUS = "GPUs not above 0"
    DURATION = "duration not above 0"
    DUPLICATE = "job id seen before"
    STATE = "unknown state"
    NO_RATE = "no measured speed for this model and number of GPUs"
    NO_GPU = "job without GPUs"
    NOT_ENDED = "job that had not ended"
    NEVER_RAN = "job that never ran"
    STEP = "job step"


BY_RULE: Final = frozenset({Reason.NO_GPU, Reason.NOT_ENDED, Reason.NEVER_RAN, Reason.STEP})
"""Sound lines that are not what is simulated: told by their number alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutLine(BadLine):
    """A line that was left out, or all further ones of the same kind together."""

    reason: Reason  # The kind
    lines: int = 1  # How many lines this stands for; `line` is the first of them


@dataclass(slots=True)
class _Kind:
    shown: list[LeftOutLine]
    more: int = 0
    first_more: int = 0


class LeftOutLines:
    """Counts lines that are left out; memory is bounded, however many there are."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._kinds: dict[Reason, _Kind] = {}

    def add(self, line: int, reason: Reason, why: str) -> None:
        """Leave out *line*, for *why* in words."""
        kind = self._kinds.setdefault(reason, _Kind([]))
        if reason not in BY_RULE and len(kind.shown) < SHOWN_PER_REASON:
            kind.shown.append(LeftOutLine(file=self.file, line=line, why=why, reason=reason))
            return
        kind.first_more = kind.first_more or line
        kind.more += 1

    def all(self) -> tuple[LeftOutLine, ...]:
        """Everything left out, in the order of lines."""
        told = [entry for kind in self._kinds.values() for entry in kind.shown]
        for reason, kind in self._kinds.items():
            if kind.more:
                further = "further " if kind.shown else ""
                told.append(
                    LeftOutLine(
                        file=self.file,
                        line=kind.first_more,
                        why=f"{reason}: {kind.more:,} {further}times, here first",
                        reason=reason,
                        lines=kind.more,
                    )
                )
        return tuple(sorted(told, key=lambda entry: entry.line))
