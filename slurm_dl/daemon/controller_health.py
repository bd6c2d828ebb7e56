"""slurmctld's clock and load, as ``sdiag`` reports them, and what follows from them.

These are the time for decisions, whether preemption stops because the clock jumped, the poll
interval, and whether SiteFactors are written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from structlog.typing import FilteringBoundLogger

from slurm_dl.config.daemon_section import DaemonSection
from slurm_dl.daemon.components import Components
from slurm_dl.daemon.published_state import ControllerHealthShown
from slurm_dl.daemon.rate_limits import SlowDown
from slurm_dl.engine.leases import lease_of
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.plan import (
    Action,
    OpenHandover,
    Requeue,
    Retry,
    SetSiteFactor,
    Shrink,
    Signal,
    handover_of,
)
from slurm_dl.slurm.cluster import SlurmCluster
from slurm_dl.slurm.controller import ControllerStatus
from slurm_dl.text import ago

DRIFT_S = 3.0
"""Two clocks that drift apart by this much between two looks are set right; by more, one jumped."""

WALL_MOVED_S = 2.0
"""If this host's clock was set by more than this, slurmctld's may have been with it."""


class SlurmClock:
    """slurmctld's clock, as far as it is known: what decisions are made in.

    A run's age is the difference between its start, told by slurmctld, and now. By a clock that is
    ahead of it, or that jumps, somebody's job would be stopped before its quantum or its grace is
    over. What slurmctld told is carried on by a clock that only goes forward, so that the clock of
    this host decides nothing; see docs/adr/0014-time.md.

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


LOOK_EVERY: Final = 10  # So many polls apart slurmctld is asked how it is, one RPC

_PREEMPTING: Final = (OpenHandover, Signal, Requeue, Retry, Shrink)


class ControllerHealth:
    """slurmctld's clock and load, from cycle to cycle; one thread.

    Args:
        log: For people.
        wall: This host's clock, epoch seconds.
        monotonic: Seconds that only go forward.
    """

    def __init__(
        self,
        log: FilteringBoundLogger,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._wall = wall
        self._monotonic = monotonic
        self._clock = SlurmClock(wall=wall, monotonic=monotonic)
        self._pace = SlowDown(monotonic)
        self._polls_left = 0
        self._decided = False
        self._checked = False
        self._silent = False
        self._because = ""
        self._trusted_from_s = monotonic()
        self._jumps = 0
        self._unread = ""
        self._jump_to_store = False

    def now(self) -> float:
        """Time at slurmctld, epoch seconds."""
        return self._clock.now()

    def begin(self, parts: Components) -> None:
        """Begin a cycle with *parts*: ask slurmctld, if it is time to."""
        parts.cluster.now = self.now
        self._checked = False
        if self._jump_to_store:
            self._store_jump(parts)
        due = self._polls_left <= 0 or self._clock.wall_moved or self._pace.is_slow
        due = due or bool(self._unread)
        # A silent slurmctld is asked once a poll, and that is for the queue.
        if due and not self._silent:
            self._look(parts)
        self._polls_left -= 1
        if not self._decided:
            # It may have been set back while no daemon ran.
            parts.ledger.clock_was_set(self.now())
            left_s = min(parts.ledger.distrust_until_s - self.now(), pause_after_jump_s(parts))
            if left_s > 0:
                self._because = "slurmctld's clock had jumped before this daemon started"
                self._trusted_from_s = self._monotonic() + left_s
        self._decided = True

    def end(self, asked_s: float) -> None:
        """End a cycle in which Slurm took *asked_s* to tell the queue, seconds."""
        if self._silent:
            # Another one may have taken over, with another clock. Nobody acts until next time.
            self._silent, self._polls_left = False, 0
        before = self._pace.slow
        self._pace.polled(asked_s)
        self._say_pace(before)

    def lost(self) -> None:
        """End a cycle in which Slurm was silent."""
        self._silent = True

    def allows(self, action: Action) -> bool:
        """Whether *action* may be tried: while time cannot be believed, no step of a hand-over.

        No step, rather than none that stops somebody: each is right only if those before it are
        done. What orders the queue goes on, the places of its victims and beneficiaries too.
        """
        orders = handover_of(action) is None or isinstance(action, SetSiteFactor)
        return orders or not (self._distrusted_for_s() or self._cannot_check)

    def why_not(self, action: Action, parts: Components) -> str:
        """The reason why the cycle has to end before *action*; empty if it need not.

        Nobody is stopped by a clock that may have jumped: it is looked at once more between the
        observation that *action* follows from and the first such action of the cycle.
        """
        if self._checked or not isinstance(action, _PREEMPTING):
            return ""
        self._checked = True
        return self._look(parts) or (self._unread if self._cannot_check else "")

    def may_write(self) -> bool:
        """Whether the order may be written now."""
        return not self._pace.writes_held

    def slowed(self, delay_s: float, daemon: DaemonSection) -> float:
        """*delay_s*, longer while slurmctld is slow; seconds."""
        return self._pace.slowed(delay_s, daemon.slow_poll_s)

    def shown(self) -> ControllerHealthShown:
        """State for status answers and metrics."""
        left_s = self._distrusted_for_s()
        clock = "slurmctld's clock" if self._clock.follows_slurmctld else "this host's clock"
        why = self._unread
        if self._cannot_check:
            why += "; no GPUs are taken back until it can be"
        return ControllerHealthShown(
            clock=f"{clock} ({why})" if why else clock,
            ahead_s=self._clock.ahead_s,
            distrust=self._because if left_s else "",
            distrust_until_s=self._wall() + left_s if left_s else 0.0,
            jumps=self._jumps,
            slow=self._pace.slow,
            slowed=self._pace.factor,
            writes_held=self._pace.writes_held,
        )

    def _look(self, parts: Components) -> str:
        """Ask slurmctld; how its clock has jumped, in words, empty if it has not."""
        self._polls_left = LOOK_EVERY
        began_s = self._monotonic()
        try:
            health = parts.cluster.health()
        except ClusterError as err:
            self._cannot(str(err), parts)
            return ""
        self._unread = ""
        followed = self._clock.follows_slurmctld
        moved_s = self._clock.learn(health.now_s, began_s=began_s, ended_s=self._monotonic())
        self._feel(health)
        # Before the first decision there was no other time to jump from.
        if not moved_s or not self._decided:
            return ""
        return self._jumped(moved_s, "slurmctld's" if followed else "this host's", parts)

    def _cannot(self, error: str, parts: Components) -> None:
        if not self._unread:
            self._log.warning("slurmctld does not tell its time", error=error)
        self._unread = f"sdiag cannot be read: {error}"
        before_s = self._clock.now()
        self._clock.look_at_wall()
        if self._clock.now() - before_s < -DRIFT_S:
            parts.ledger.clock_was_set(self.now())

    @property
    def _cannot_check(self) -> bool:
        """Whether slurmctld has told its time once and does not now: it may have moved since."""
        return bool(self._unread) and self._clock.follows_slurmctld

    def _store_jump(self, parts: Components) -> None:
        now_s = self.now()
        until_s = now_s + self._distrusted_for_s()
        parts.ledger.clock_was_set(now_s, grace_anew=True, distrust_until_s=until_s)
        self._jump_to_store = False

    def _feel(self, health: ControllerStatus) -> None:
        before, held = self._pace.slow, self._pace.writes_held
        self._pace.note_health(health)
        self._say_pace(before)
        if held != self._pace.writes_held:
            self._log.warning(
                "the order is not written" if not held else "the order is written again",
                because=self._pace.writes_held or None,
            )

    def _say_pace(self, before: str) -> None:
        if bool(before) != bool(self._pace.slow):
            self._log.warning(
                "slurmctld is slow: looking less often" if self._pace.slow else "looking as before",
                because=self._pace.slow or None,
            )

    def _jumped(self, moved_s: float, whose: str, parts: Components) -> str:
        self._jumps += 1
        way = "forward" if moved_s > 0 else "back"
        self._because = f"{whose} clock jumped {way} by {ago(abs(moved_s))}"
        for_s = pause_after_jump_s(parts)
        self._trusted_from_s = self._monotonic() + for_s
        self._log.warning(
            "the clock jumped",
            what=self._because,
            therefore="no step of a hand-over for a minimum quantum; then graces count anew",
            for_s=for_s,
        )
        # The ledger may be on a full disk: `begin` tries again.
        self._jump_to_store = True
        self._store_jump(parts)
        return self._because

    def _distrusted_for_s(self) -> float:
        """Seconds for which spans of time are still not trusted."""
        return max(0.0, self._trusted_from_s - self._monotonic())


def pause_after_jump_s(parts: Components) -> float:
    """Seconds after a jump in which no step of a hand-over is taken.

    Each run has had its minimum quantum by then, or its lease.
    """
    return max(parts.settings.preemption.min_quantum_s, lease_of(parts.policy))


def is_backfilling(cluster: SlurmCluster) -> bool:
    """Whether a backfill pass is under way, one RPC; False where slurmctld does not tell."""
    try:
        return cluster.health().backfilling
    except ClusterError:
        return False
