"""What can happen to a simulated Slurm, and in which order at one instant."""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import NamedTuple


class EventKind(IntEnum):
    """Kinds of events; of simultaneous ones the lower number comes first.

    What frees GPUs comes before what wants them, so that nothing waits for a pass too many.
    """

    NODE_DIES = 0
    NODE_LOST = 1
    NODE_BACK = 2
    WORK_DONE = 3
    SIGNALLED = 4
    SAVED = 5
    ACKNOWLEDGED = 6
    REQUEUES_ITSELF = 7
    LIMIT = 8
    COMPLETE = 9
    FREE = 10
    LAPSE = 11
    ELIGIBLE = 12
    SUBMIT = 13
    MAIN_PASS = 14
    BACKFILL_PASS = 15
    FORGET = 16
    LEAVES = 17


class Event(NamedTuple):
    """One thing that is to happen; events sort by time, kind and the order they were made in."""

    at_s: float
    kind: EventKind
    sequence: int
    subject: int  # Row of a job or a node; -1 if it is about neither
    turn: int  # For a job: which of its runs it belongs to. In any other run it means nothing.
    name: str  # Of a reservation


class Agenda:
    """What is to happen, earliest first."""

    def __init__(self) -> None:
        self._heap: list[Event] = []
        self._made = 0

    def add(
        self, at_s: float, kind: EventKind, *, subject: int = -1, turn: int = 0, name: str = ""
    ) -> None:
        """Let something happen at *at_s*."""
        heapq.heappush(self._heap, Event(at_s, kind, self._made, subject, turn, name))
        self._made += 1

    def next_s(self) -> float:
        """When the next event is, seconds; inf if there is none."""
        return self._heap[0].at_s if self._heap else float("inf")

    def pop(self) -> Event:
        """The next event; there must be one."""
        return heapq.heappop(self._heap)
