"""Free units of several resources, each as an exact step function of time.

A resource is whatever a job can lack: GPUs of a group of nodes, the share of an account, units of a
limit. A job needs units of several for one whole window. Times are epoch seconds.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurm_dl.model.jobs import F64

Resource = tuple[str | int, ...]  # Name of a resource

SLACK: Final = 1e-9  # Ten tenths of a GPU are one, whatever the rounding of their sum


@dataclass(frozen=True, slots=True)
class Need:
    """Units that a job holds while it runs.

    Attributes:
        units: By resource.
        courteous: Resources of which it may hold units only where nobody relies on them; it counts
            in them all the same. See `Calendar.fits`.
        relies: Resources that it relies on.
    """

    units: Mapping[Resource, float]
    courteous: frozenset[Resource] = frozenset()
    relies: frozenset[Resource] = frozenset()

    def without_shares(self) -> Need:
        """It without shares of places and owners: these are for new promises."""
        kept = {r: units for r, units in self.units.items() if r[0] not in {"share", "owner"}}
        return Need(kept, self.courteous, self.relies)


@dataclass(slots=True)
class _Steps:
    """A step function: ``value[i]`` from ``at_s[i]`` on."""

    at_s: list[float]
    value: list[float]

    def cut(self, at_s: float) -> int:
        """Number of the step that begins at *at_s*; made if there is none."""
        i = bisect.bisect_left(self.at_s, at_s)
        if i == len(self.at_s) or self.at_s[i] != at_s:
            self.at_s.insert(i, at_s)
            self.value.insert(i, self.value[i - 1])
        return i

    def add(self, units: float, begin_s: float, end_s: float) -> None:
        first = self.cut(begin_s)
        last = self.cut(end_s) if end_s < math.inf else len(self.at_s)
        for i in range(first, last):
            self.value[i] += units

    def at(self, at_s: float) -> float:
        return self.value[bisect.bisect_right(self.at_s, at_s) - 1]

    def below(self, units: float, begin_s: float, end_s: float) -> Iterable[tuple[float, float]]:
        """The steps within the window on which the value is less than *units*."""
        i = bisect.bisect_right(self.at_s, begin_s) - 1
        while i < len(self.at_s) and self.at_s[i] < end_s:
            if self.value[i] < units - SLACK:
                until_s = self.at_s[i + 1] if i + 1 < len(self.at_s) else math.inf
                yield max(self.at_s[i], begin_s), min(until_s, end_s)
            i += 1


@dataclass(slots=True)
class Calendar:
    """Units that are free from *now_s* on."""

    now_s: float
    _free: dict[Resource, _Steps] = field(default_factory=dict)
    _relied: dict[Resource, _Steps] = field(default_factory=dict)  # Units that users of it hold

    def open(self, resource: Resource, units: float) -> None:
        """*units* of *resource* are there at all times."""
        self._free[resource] = _Steps([self.now_s], [units])
        self._relied[resource] = _Steps([self.now_s], [0.0])

    def resources(self) -> Iterable[Resource]:
        """All that were opened."""
        return self._free.keys()

    def extremes(self, resource: Resource, bounds_s: F64) -> tuple[F64, F64]:
        """The fewest free units, and the most that its users hold, between each two of *bounds_s*.

        Args:
            bounds_s: ``(k + 1,)`` epoch seconds, increasing; what is before now does not count.

        Returns:
            Two times ``(k,)``.
        """
        found = []
        for steps, least in (
            (self._free[resource], np.minimum),
            (self._relied[resource], np.maximum),
        ):
            at_s, value = np.array(steps.at_s), np.array(steps.value)
            at_begin = value[np.maximum(at_s.searchsorted(bounds_s[:-1], side="right") - 1, 0)]
            inside = (at_s > bounds_s[0]) & (at_s < bounds_s[-1])
            slot = bounds_s.searchsorted(at_s[inside], side="right") - 1
            least.at(at_begin, slot, value[inside])
            found.append(at_begin)
        return found[0], found[1]

    def take(self, need: Need, begin_s: float, end_s: float, times: int = 1) -> None:
        """Hold what is needed from *begin_s* to *end_s*; with *times* -1 give it back."""
        begin_s = max(begin_s, self.now_s)
        if end_s <= begin_s:
            return
        for resource, units in need.units.items():
            if resource in self._free:
                self._free[resource].add(-units * times, begin_s, end_s)
        for resource in need.relies & self._relied.keys() & need.units.keys():
            self._relied[resource].add(need.units[resource] * times, begin_s, end_s)

    def fits(self, need: Need, begin_s: float, end_s: float) -> bool:
        """True if the job may hold what it needs for this window.

        It may pass the units of a courteous resource where no user of that holds any.
        """
        return not self._blocked(need, begin_s, end_s)

    def latest_s(self, need: Need, lasts_s: float, due_s: float) -> float | None:
        """The latest begin of a window of *lasts_s* that ends by *due_s*; None if there is none."""
        end_s = due_s
        for begin_s, until_s in reversed(_joined(self._blocked(need, self.now_s, due_s))):
            if end_s - until_s >= lasts_s:
                return end_s - lasts_s
            end_s = min(end_s, begin_s)
        return end_s - lasts_s if end_s - self.now_s >= lasts_s else None

    def earliest_s(self, need: Need, lasts_s: float) -> float | None:
        """The earliest begin of such a window, whenever it ends; None if there is none."""
        begin_s = self.now_s
        for busy_s, until_s in _joined(self._blocked(need, self.now_s, math.inf)):
            if busy_s - begin_s >= lasts_s:
                break
            begin_s = max(begin_s, until_s)
        return begin_s if begin_s < math.inf else None

    def _blocked(self, need: Need, begin_s: float, end_s: float) -> list[tuple[float, float]]:
        found = []
        for resource, units in need.units.items():
            if resource not in self._free:
                continue
            low = self._free[resource].below(units, begin_s, end_s)
            if resource in need.courteous:
                low = [part for one in low for part in self._relied_on(resource, *one)]
            found.append(low)
        return list(heapq.merge(*found))

    def _relied_on(
        self, resource: Resource, begin_s: float, end_s: float
    ) -> Iterable[tuple[float, float]]:
        steps = self._relied[resource]
        i = bisect.bisect_right(steps.at_s, begin_s) - 1
        while i < len(steps.at_s) and steps.at_s[i] < end_s:
            if steps.value[i] > SLACK:
                until_s = steps.at_s[i + 1] if i + 1 < len(steps.at_s) else math.inf
                yield max(steps.at_s[i], begin_s), min(until_s, end_s)
            i += 1


def _joined(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for begin_s, end_s in intervals:
        if found and begin_s <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end_s))
        else:
            found.append((begin_s, end_s))
    return found
