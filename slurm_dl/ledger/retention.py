"""Up to when a week has really passed, however the clock stands.

What is over is dropped by its age, and an age is told by a clock. One that is far ahead as the
daemon starts tells that all of it is old, and nobody can say whether the daemon was down that long.
So the instant before which things are dropped goes on with the time that is really looked at, and
no faster than `FASTEST` of it. It is kept in the store: a start does not make a jump of it. Once
one daemon has looked for a week, all that was there when it started is older than that, whatever
was done to the clock.
"""

from __future__ import annotations

import numpy as np

from slurm_dl.ledger.apply_observation import FORGET_AFTER_S
from slurm_dl.ledger.attained_service import AttainedService
from slurm_dl.ledger.clock_adjustment import ClockAdjustment, Cut, Shift

FASTEST = 2.0
"""After a time in which nobody looked it is behind, and comes up within a week. Only the file is
larger until then; if the clock is wrong, somebody has days to see that."""

FIRST_S = 60.0
"""What a first look counts for, so that those of a daemon that looks but once add up, too."""


class RetentionCutoff:
    """Before when what is over is dropped.

    Args:
        before_s: As it was stored last, epoch seconds; None: it never was.
        service: What is known at the start; it tells when somebody looked last.
    """

    def __init__(self, before_s: float | None, service: AttainedService) -> None:
        if before_s is None and len(service):
            before_s = float(service.last_seen_s.max()) - FORGET_AFTER_S
        self._before_s = before_s
        self._looked_s: float | None = None
        self._looked_for_s = 0.0

    def look(self, now_s: float) -> float:
        """Before when things may be dropped in the look at *now_s*; both in epoch seconds."""
        latest_s = now_s - FORGET_AFTER_S
        passed_s = FIRST_S if self._looked_s is None else max(0.0, now_s - self._looked_s)
        self._looked_for_s += passed_s
        if self._before_s is None or self._looked_for_s >= FORGET_AFTER_S:
            self._before_s = latest_s
        self._before_s = min(latest_s, self._before_s + FASTEST * passed_s)
        self._looked_s = now_s
        return self._before_s

    def retime(self, how: ClockAdjustment) -> None:
        """The clock has been set: this goes with it, and how long it took says nothing."""
        self._looked_s = None
        if self._before_s is None:
            return
        match how:
            case Shift():
                # It may stand before 1970, where no other instant does.
                self._before_s += how.by_s
            case Cut():
                self._before_s = float(how.of(np.array([self._before_s]))[0])
