"""The passes of slurmctld's two schedulers: when they come, and what each of them starts.

A pass that nothing has changed for starts nothing, so only those are simulated that something has
changed for; the instants are those at which the real ones would come.

slurmctld 22.05.8 asks itself once a second whether to run the main scheduler: it does when a
submission, an end or an update has asked for it and the last pass is ``batch_sched_delay`` ago, and
every ``sched_interval`` in any case. Backfill runs every ``bf_interval``; when nothing has changed
in that time it looks every second whether something has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from slurm_dl.simulation.slurm.events import Agenda, Event, EventKind
from slurm_dl.simulation.slurm.job_columns import JobColumns
from slurm_dl.simulation.slurm.node_pool import NodePool, SimulatedQueue
from slurm_dl.simulation.slurm.overheads import SlurmCosts
from slurm_dl.simulation.slurm.scheduler import Backfill, Reserved, Start, backfill_pass, main_pass

IDLE_LOOK_S = 1.0  # Backfill that had nothing to do looks again after this
_EPSILON_S = 1e-9


def next_on_grid(at_s: float, origin_s: float, period_s: float) -> float:
    """The first ``origin_s + k * period_s`` at or after *at_s*; *at_s* itself if that is 0."""
    if period_s <= 0:
        return at_s
    steps = math.ceil((at_s - origin_s) / period_s - _EPSILON_S)
    return max(at_s, origin_s + steps * period_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Some instant of each clock of a slurmctld, seconds; it follows from when it was started."""

    tick_s: float  # It asked itself whether to run the main scheduler
    full_s: float  # A main pass came that nothing had asked for
    backfill_s: float  # A backfill pass came

    @classmethod
    def drawn(cls, from_s: float, costs: SlurmCosts, rng: np.random.Generator) -> Self:
        """A slurmctld that was started whenever."""
        tick, full, backfill = rng.random(3).tolist()
        tick_s = from_s + tick * costs.sched_tick_s
        ticks = int(full * costs.sched_interval_s / costs.sched_tick_s) if costs.sched_tick_s else 0
        return cls(
            tick_s=tick_s,
            full_s=tick_s + ticks * costs.sched_tick_s,
            backfill_s=from_s + (1.0 - backfill) * costs.bf_interval_s,
        )


@dataclass(slots=True, kw_only=True)
class MainClock:
    """When the main scheduler runs next."""

    costs: SlurmCosts
    tick_from_s: float  # Some instant at which slurmctld asks itself
    full_from_s: float  # Some instant of a pass that nothing had asked for; it is a tick as well
    last_s: float = -math.inf  # The last pass that something had asked for

    def due(self, now_s: float, *, asked: bool) -> float:
        """When the next pass is, seconds.

        Args:
            asked: Something has asked for one; otherwise it is the one that comes in any case.
        """
        tick_s = self.costs.sched_tick_s
        # An interval ends with the first tick behind it.
        every_s = next_on_grid(self.costs.sched_interval_s, 0.0, tick_s)
        full_s = next_on_grid(now_s, self.full_from_s, every_s)
        if not asked:
            return full_s
        last_s = max(self.last_s, full_s - every_s) if every_s else self.last_s
        earliest_s = max(now_s, last_s + self.costs.batch_sched_delay_s)
        return min(full_s, next_on_grid(earliest_s, self.tick_from_s, tick_s))


@dataclass(slots=True, kw_only=True)
class BackfillClock:
    """When backfill runs next.

    Attributes:
        busy: Jobs were left waiting in the last pass: it comes again without anything new.
    """

    costs: SlurmCosts
    last_s: float  # The last pass, or the last instant of its grid while there is work
    busy: bool = field(default=False)

    def due(self, now_s: float) -> float:
        """When the pass is that sees what has changed at *now_s*, seconds."""
        every_s = self.costs.bf_interval_s
        if not every_s:
            return now_s
        if self.busy:
            return next_on_grid(now_s, self.last_s + every_s, every_s)
        first_s = self.last_s + every_s
        return max(first_s, next_on_grid(now_s, first_s, min(every_s, IDLE_LOOK_S)))


class Dispatch:
    """Puts passes on the agenda, and does them.

    Args:
        jobs: The jobs, of which those that run hold something of *room*.
        queue: The jobs that may start.
        room: The nodes and who holds them.
        agenda: Gets the passes that are to come.
        start_all: Lets jobs run, and takes them out of *queue*.
        how: How backfill plans.
        phases: Where the clocks stand.
    """

    def __init__(
        self,
        jobs: JobColumns,
        queue: SimulatedQueue,
        room: NodePool,
        agenda: Agenda,
        *,
        start_all: Callable[[list[Start]], None],
        costs: SlurmCosts,
        how: Backfill,
        phases: Phases,
    ) -> None:
        self._jobs, self._queue, self._room, self._agenda = jobs, queue, room, agenda
        self._start_all, self._how = start_all, how
        self._main = MainClock(costs=costs, tick_from_s=phases.tick_s, full_from_s=phases.full_s)
        self._backfill = BackfillClock(costs=costs, last_s=phases.backfill_s - costs.bf_interval_s)
        self._main_at_s = self._backfill_at_s = math.inf

    def expect(self, now_s: float, *, asked: bool, at_once: bool = False) -> None:
        """Something has changed: see to it that the passes that could see it come.

        Args:
            asked: Slurm's main scheduler has been asked to look.
            at_once: It looks now, whatever its clock says.
        """
        main_s = now_s if at_once else self._main.due(now_s, asked=asked)
        if main_s < self._main_at_s:
            self._main_at_s = main_s
            self._agenda.add(main_s, EventKind.MAIN_PASS)
        if self._backfill_at_s == math.inf:
            self._backfill_at_s = self._backfill.due(now_s)
            self._agenda.add(self._backfill_at_s, EventKind.BACKFILL_PASS)

    def main_pass(self, event: Event, reserved: Sequence[Reserved]) -> None:
        """What the main scheduler does at *event*."""
        if event.at_s != self._main_at_s:
            return  # An earlier one has taken its place.
        self._main_at_s = math.inf
        self._main.last_s = event.at_s
        self._start_all(main_pass(self._queue, self._room.free, self._room.up, reserved))

    def backfill_pass(self, event: Event, reserved: Sequence[Reserved]) -> None:
        """What backfill does at *event*."""
        if event.at_s != self._backfill_at_s:
            return
        self._backfill_at_s = math.inf
        self._backfill.last_s = event.at_s
        if not len(self._queue):
            self._backfill.busy = False
            return
        starts = backfill_pass(
            [*itertools.islice(self._queue, self._how.max_jobs)],
            self._room.free,
            self._room.up,
            reserved,
            self._room.running(self._jobs, self._how.whole),
            now_s=self._how.whole(event.at_s),
            how=self._how,
        )
        # The pass that what starts now calls for goes by how the pass before this one ended.
        self._start_all(starts)
        self._backfill.busy = len(self._queue) > 0
