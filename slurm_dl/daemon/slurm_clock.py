"""slurmctld's time: what decisions are made in.

A run's age is the difference between its start, told by slurmctld, and now. So now has to be
slurmctld's as well: by a clock that is ahead of it, or that jumps, somebody's job would be stopped
before its quantum or its grace is over. What slurmctld told is carried on by a clock that only goes
forward, so that the clock of this host decides nothing; see docs/adr/0014-time.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable

DRIFT_S = 3.0
"""Two clocks that drift apart by this much between two looks are set right; by more, one jumped."""

WALL_MOVED_S = 2.0
"""If this host's clock was set by more than this, slurmctld's may have been with it."""


class SlurmClock:
    """slurmctld's clock, as far as it is known.

    Args:
        wall: This host's clock, epoch seconds.
        monotonic: Seconds that only go forward. It stands still while the host is suspended: to it,
            a suspension is a jump of slurmctld's clock.
    """

    def __init__(
        self,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._base_s = self._wall_base_s = wall() - monotonic()
        self._follows_slurmctld = False

    @property
    def follows_slurmctld(self) -> bool:
        """Whether slurmctld has ever told its time; if not, this host's at the start counts."""
        return self._follows_slurmctld

    @property
    def ahead_s(self) -> float:
        """Seconds by which slurmctld's clock is ahead of this host's."""
        return self.now() - self._wall()

    @property
    def wall_moved(self) -> bool:
        """Whether this host's clock was set since that was last asked about (`look_at_wall`)."""
        return abs(self._wall() - self._monotonic() - self._wall_base_s) > WALL_MOVED_S

    def now(self) -> float:
        """Time at slurmctld, epoch seconds; never much ahead of it."""
        return self._base_s + self._monotonic()

    def look_at_wall(self) -> None:
        """Take this host's clock as it stands now; to be called where slurmctld tells nothing.

        Without a word of slurmctld nothing is known but that both clocks may be one. If it was set
        back, runs that have begun since would look older than they are; if it was set forward, to
        stay behind only makes them look younger.
        """
        self._wall_base_s = self._wall() - self._monotonic()
        if not self._follows_slurmctld:
            self._base_s = min(self._base_s, self._wall_base_s)

    def learn(self, told_s: float, *, began_s: float, ended_s: float) -> float:
        """Take in what slurmctld told.

        Args:
            told_s: Its time, whole epoch seconds.
            began_s: When it was asked, by the clock that only goes forward, seconds.
            ended_s: When the answer was there.

        Returns:
            How far its clock has jumped since it was last known; above 0 is forward. 0 if it has
            not, or has drifted by no more than `DRIFT_S`. Seconds.
        """
        self._wall_base_s = self._wall() - self._monotonic()
        # It was told_s there at one instant of the asking, and up to a second later than that.
        low_s, high_s = told_s - ended_s, told_s + 1.0 - began_s
        nearest_s = min(max(self._base_s, low_s), high_s)
        moved_s = nearest_s - self._base_s
        first, self._follows_slurmctld = not self._follows_slurmctld, True
        if not first and abs(moved_s) <= DRIFT_S:
            self._base_s = nearest_s
            return 0.0
        # A host that agrees with slurmctld to the second has the fractions, too. Else: the earliest
        # that it may be, so that no run looks older than it is.
        agrees = low_s <= self._wall_base_s <= high_s and ended_s - began_s <= DRIFT_S
        self._base_s = self._wall_base_s if agrees else low_s
        return moved_s if abs(moved_s) > DRIFT_S else 0.0
