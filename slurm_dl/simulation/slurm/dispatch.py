"""Slurm's two schedulers at work: which passes are to come, and what each of them starts.

When a pass may come is in `scheduling_passes`, whom it starts in `scheduler`; the simulated cluster
says what has changed, and lets the jobs run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from slurm_dl.simulation.slurm.events import Agenda, Event, EventKind
from slurm_dl.simulation.slurm.job_columns import JobColumns
from slurm_dl.simulation.slurm.node_pool import NodePool, SimulatedQueue
from slurm_dl.simulation.slurm.overheads import SlurmCosts
from slurm_dl.simulation.slurm.scheduler import Backfill, Reserved, Start, backfill_pass, main_pass
from slurm_dl.simulation.slurm.scheduling_passes import BackfillClock, MainClock, Phases


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
