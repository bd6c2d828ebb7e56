"""Free units of several resources in slots of equal length, for plans of many parts.

Slot k lasts from ``k * slot_s`` to ``(k + 1) * slot_s``, epoch seconds. In each slot that is free
which is free for all of it; `calendar` has the exact times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from slurm_dl.model.jobs import F64, I64, Bool
from slurm_dl.model.promise import Piece
from slurm_dl.policies.arithmetic.calendar import SLACK, Calendar, Need, Resource

_ROUNDING_S: Final = 1e-6


def slot_at(at_s: float, slot_s: float) -> int:
    """The slot that *at_s* lies in."""
    return math.floor((at_s + _ROUNDING_S) / slot_s)


def pieces_of(slots: I64, gpus: F64, slot_s: float) -> tuple[Piece, ...]:
    """The plan of a job that has so many GPUs in each of *slots*, in pieces as long as can be."""
    if not len(slots):
        return ()
    breaks = (np.diff(slots) != 1) | (np.diff(gpus) != 0)
    first = np.concatenate([[0], breaks.nonzero()[0] + 1])
    last = np.concatenate([first[1:], [len(slots)]]) - 1
    begins, ends = slots[first].tolist(), (slots[last] + 1).tolist()
    return tuple(
        (round(begin * slot_s), round(end * slot_s), of)
        for begin, end, of in zip(begins, ends, gpus[first].tolist(), strict=True)
    )


class SlotTable:
    """Free units of each resource of a calendar, slot by slot.

    Attributes:
        first: The slot under way.
    """

    def __init__(self, calendar: Calendar, slot_s: float, end_s: float) -> None:
        """As the calendar is now, for the slots that are over by *end_s*; one at least."""
        self.first = slot_at(calendar.now_s, slot_s)
        last = max(slot_at(end_s, slot_s), self.first + 1)
        begins_s: F64 = np.arange(self.first, last + 1, dtype=np.float64) * float(slot_s)
        self._free: dict[Resource, F64] = {}
        self._relied: dict[Resource, F64] = {}
        for resource in calendar.resources():
            free, relied = calendar.extremes(resource, begins_s)
            self._free[resource], self._relied[resource] = free, relied

    def copy(self) -> SlotTable:
        """A table that changes by itself."""
        made = object.__new__(SlotTable)
        made.first = self.first
        made._free = {resource: units.copy() for resource, units in self._free.items()}
        made._relied = {resource: units.copy() for resource, units in self._relied.items()}
        return made

    def __len__(self) -> int:
        return len(next(iter(self._free.values()), np.zeros(1)))

    def free(self, resource: Resource) -> F64 | None:
        """``(slots,)`` free units, from `first` on; None: there is no bound on them."""
        return self._free.get(resource)

    def fits(self, need: Need) -> Bool:
        """``(slots,)`` bool, whether a job may hold what it needs in each slot, from `first` on."""
        fits = np.ones(len(self), dtype=np.bool_)
        for resource, units in need.units.items():
            if resource not in self._free:
                continue
            enough = self._free[resource] >= units - SLACK
            if resource in need.courteous:
                enough |= self._relied[resource] <= SLACK
            fits &= enough
        return fits

    def largest(self, needs: Sequence[Need], slots: int) -> I64:
        """``(slots,)`` index of the last of *needs* that fits in each slot, -1: none does.

        Args:
            needs: Of one job, each of no fewer units than the one before.
            slots: The first so many; at most all of them.
        """
        found = np.full(min(slots, len(self)), len(needs) - 1, dtype=np.int64)
        for resource in needs[-1].units.keys() & self._free.keys():
            units = [need.units.get(resource, 0.0) - SLACK for need in needs]
            fit = np.searchsorted(units, self._free[resource][: len(found)], side="right") - 1
            if resource in needs[-1].courteous:
                fit[self._relied[resource][: len(found)] <= SLACK] = len(needs) - 1
            np.minimum(found, fit, out=found)
        return found

    def take(self, need: Need, slots: I64, times: int = 1) -> None:
        """Hold what is needed in *slots*; with *times* -1 give it back.

        Args:
            slots: Absolute numbers; those that are over, or beyond the table, are passed over.
        """
        at = slots - self.first
        at = at[(at >= 0) & (at < len(self))]
        for resource, units in need.units.items():
            if resource in self._free:
                self._free[resource][at] -= units * times
        for resource in need.relies & self._relied.keys() & need.units.keys():
            self._relied[resource][at] += need.units[resource] * times
