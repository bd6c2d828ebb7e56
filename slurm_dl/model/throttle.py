"""Throttles of job arrays that are ours, as they stand in the book.

Slurm's ArrayTaskThrottle bounds how many tasks of an array run at once, ``%N`` of ``--array``; 0 is
no bound. The owner's own stays in force: ours is never above it, and it is written back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from slurm_dl.json_types import JsonObject
from slurm_dl.model.booking import Entry, of_kind
from slurm_dl.model.ids import JobId

THROTTLE: Final = "throttle"  # Kind of the entries, by job id of the pending record
NO_THROTTLE: Final = 0  # Slurm's value for no bound
FREE: Final = -1  # In `Order.running`: as many as the owner lets run


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    """ArrayTaskThrottle of one array: the owner's, ours, and the one that ours replaced."""

    own: int
    ours: int
    before: int

    def owned(self, present: int) -> int:
        """The owner's throttle where Slurm shows *present*: a value not ours is the owner's."""
        return self.own if present in (self.ours, self.before) else present

    def body(self) -> JsonObject:
        """The body of its entry."""
        return {**asdict(self)}


def owned(booked: Mapping[JobId, Throttled], present: Mapping[JobId, int]) -> dict[JobId, int]:
    """The owner's throttle of each array, by what is *booked* and what Slurm shows."""
    return {j: booked[j].owned(now) if j in booked else now for j, now in present.items()}


def throttles_in(booked: Iterable[Entry]) -> dict[JobId, Throttled]:
    """The throttles of ours that stand, by job id; entries that cannot be read are left out."""
    found = {}
    for key, body in of_kind(booked, THROTTLE).items():
        own, ours, before = (body.get(name) for name in ("own", "ours", "before"))
        if isinstance(own, int) and isinstance(ours, int) and isinstance(before, int):
            found[JobId(int(key))] = Throttled(own=own, ours=ours, before=before)
    return found
