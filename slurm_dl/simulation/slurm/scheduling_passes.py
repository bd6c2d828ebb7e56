"""When slurmctld's scheduling passes come: the main scheduler's and backfill's clocks.

A pass that nothing has changed for starts nothing, so only those are simulated that something has
changed for; the instants are those at which the real ones would come.

slurmctld 22.05.8 asks itself once a second whether to run the main scheduler: it does when a
submission, an end or an update has asked for it and the last pass is ``batch_sched_delay`` ago, and
every ``sched_interval`` in any case. Backfill runs every ``bf_interval``; when nothing has changed
in that time it looks every second whether something has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from slurm_dl.simulation.slurm.overheads import SlurmCosts

IDLE_LOOK_S = 1.0
"""Backfill that had nothing to do looks again after this."""

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
