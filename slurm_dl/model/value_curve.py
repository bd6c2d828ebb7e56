"""Values of a job by the time it is done: a step for each deadline, each lower than the one before.

A job with one hard deadline has none of these. Soft deadlines are told apart by their values alone:
those of other jobs are never held against them.

Source: Gao, Ye, Sun, Wen and Zhang, "Chronus: A Novel Deadline-aware Scheduler for Deep Learning
Training Jobs", SoCC 2021 (soft deadlines with values).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Self

MOST_STEPS: Final = 8


@dataclass(frozen=True, slots=True)
class ValueCurve:
    """Deadlines of one job, first due first, each of less value than the one before.

    Raises:
        ValueError: Times do not increase, values do not decrease, or they are no finite numbers
            above 0.
    """

    due_s: tuple[float, ...]  # Epoch seconds, or seconds after the submission
    value: tuple[float, ...]  # Of the job if it is done by each; past the last one it is 0

    def __post_init__(self) -> None:
        n = len(self.due_s)
        if not 1 <= n == len(self.value) <= MOST_STEPS:
            msg = f"1 to {MOST_STEPS} deadlines with a value each are needed"
            raise ValueError(msg)
        if not all(0 < number < math.inf for number in (*self.due_s, *self.value)):
            msg = "deadlines and values must be finite numbers above 0"
            raise ValueError(msg)
        later = all(a < b for a, b in zip(self.due_s, self.due_s[1:], strict=False))
        less = all(a > b for a, b in zip(self.value, self.value[1:], strict=False))
        if not (later and less):
            msg = "each deadline must be later than the one before, and of less value"
            raise ValueError(msg)

    @classmethod
    def of(cls, steps: Iterable[tuple[float, float]]) -> Self:
        """The curve of (deadline, value) in any order; steps that a better one covers are left out.

        Raises:
            ValueError: See the class.
        """
        kept: list[tuple[float, float]] = []
        for due_s, value in sorted(steps, key=lambda step: (step[0], -step[1])):
            while kept and kept[-1][1] <= value:
                kept.pop()
            kept.append((due_s, value))
        return cls(tuple(due for due, _ in kept), tuple(value for _, value in kept))

    def __iter__(self) -> Iterator[tuple[float, float]]:
        """Deadlines and values, the highest value first."""
        return iter(zip(self.due_s, self.value, strict=True))

    def at(self, end_s: float) -> float:
        """Value of the job if it is done at *end_s*."""
        return next((value for due_s, value in self if end_s <= due_s), 0.0)

    def shifted(self, by_s: float) -> Self:
        """The curve with all deadlines later by *by_s*."""
        return type(self)(tuple(due_s + by_s for due_s in self.due_s), self.value)
