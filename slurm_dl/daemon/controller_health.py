"""slurmctld's clock and pulse: looks at ``sdiag`` now and then, and says what follows from it.

What follows: what time it is, whether what time seems to have passed can be believed, how fast to
go on, and whether to write. Apart from the loop so that the loop has one thing to ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from structlog.typing import FilteringBoundLogger

from slurm_dl.config.daemon_section import DaemonSection
from slurm_dl.daemon.components import Components, WatchedCluster
from slurm_dl.daemon.published_state import ControllerHealthShown
from slurm_dl.daemon.rate_limits import SlowDown
from slurm_dl.daemon.slurm_clock import DRIFT_S, SlurmClock
from slurm_dl.engine.leases import lease_of
from slurm_dl.ledger.clock_adjustment import Cut, Shift
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.plan import Action, OpenHandover, Requeue, SetSiteFactor, Signal, handover_of
from slurm_dl.slurm.controller_status import ControllerStatus
from slurm_dl.text import ago

LOOK_EVERY: Final = 10
"""So many polls apart slurmctld is asked how it is, one RPC."""

_STOPS_SOMEBODY: Final = (OpenHandover, Signal, Requeue)


class ControllerHealth:
    """slurmctld's clock and pulse, from cycle to cycle; one thread.

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
        self._unbooked_s = 0.0

    def now(self) -> float:
        """What time it is at slurmctld, epoch seconds."""
        return self._clock.now()

    def begin(self, parts: Components) -> None:
        """Begin a cycle with *parts*: ask slurmctld, if it is time to."""
        parts.cluster.now = self.now
        self._checked = False
        # What the ledger could not be told of when it was seen.
        self._book(parts)
        due = self._polls_left <= 0 or self._clock.wall_moved or self._pace.is_slow
        due = due or bool(self._unread)
        # A silent slurmctld is asked once a poll, and that is for the queue.
        if due and not self._silent:
            self._look(parts)
        self._polls_left -= 1
        if not self._decided:
            # It may have been set back while no daemon looked.
            parts.ledger.retime(Cut(self.now()))
            left_s = min(parts.ledger.distrust_until_s - self.now(), longest_count_s(parts))
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
        """Why the cycle has to end before *action*; empty if it need not.

        Nobody is stopped by a clock that may have jumped: it is looked at once more between the
        observation that *action* follows from and the first such action of the cycle.
        """
        if self._checked or not isinstance(action, _STOPS_SOMEBODY):
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
        """What is to be seen from outside."""
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
        if moved_s < 0 and not followed:
            # It was this host's clock that was ahead. What an earlier daemon wrote down is right.
            parts.ledger.retime(Cut(self.now()))
            return f"this host's clock was ahead of slurmctld's by {ago(-moved_s)}"
        return self._jumped(moved_s, parts)

    def _cannot(self, error: str, parts: Components) -> None:
        if not self._unread:
            self._log.warning("slurmctld does not tell its time", error=error)
        self._unread = f"sdiag cannot be read: {error}"
        before_s = self._clock.now()
        self._clock.look_at_wall()
        if self._clock.now() - before_s < -DRIFT_S:
            # By whose clock it was written down is not known: at least none is in the future.
            parts.ledger.retime(Cut(self.now()))

    @property
    def _cannot_check(self) -> bool:
        """Whether slurmctld has told its time once and does not now: it may have moved since."""
        return bool(self._unread) and self._clock.follows_slurmctld

    def _book(self, parts: Components) -> None:
        """Move what is written down with the clock; what fails is made up for in `begin`."""
        if self._unbooked_s:
            left_s = self._distrusted_for_s()
            parts.ledger.retime(
                Shift(self._unbooked_s), distrust_until_s=self.now() + left_s if left_s else 0.0
            )
            self._unbooked_s = 0.0

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

    def _jumped(self, moved_s: float, parts: Components) -> str:
        self._jumps += 1
        way = "forward" if moved_s > 0 else "back"
        what = f"slurmctld's clock jumped {way} by {ago(abs(moved_s))}"
        self._unbooked_s += moved_s
        if moved_s < 0:
            # No run looks older than it is.
            self._log.warning("the clock jumped", what=what)
        else:
            for_s = longest_count_s(parts)
            self._because = what
            self._trusted_from_s = max(self._trusted_from_s, self._monotonic() + for_s)
            self._log.warning(
                "the clock jumped",
                what=what,
                therefore="nobody is signalled or requeued until what counts time has passed anew",
                for_s=for_s,
            )
        # Last: it may fail, and what must not be believed is known by then.
        self._book(parts)
        return what

    def _distrusted_for_s(self) -> float:
        """How much longer what time has passed cannot be believed, seconds."""
        return max(0.0, self._trusted_from_s - self._monotonic())


def longest_count_s(parts: Components) -> float:
    """The longest time that stands between a job and its being stopped, seconds.

    Once it has passed by a clock that did not jump, it has passed for every job.
    """
    limits = parts.settings.preemption
    graces = [v.contract.grace_s for h in parts.ledger.handovers for v in h.victims]
    return max(
        limits.min_quantum_s,
        limits.cooldown_s,
        limits.max_grace_s,
        lease_of(parts.policy),
        *graces,
    )


def is_backfilling(cluster: WatchedCluster) -> bool:
    """Whether a backfill pass is under way, one RPC; False where slurmctld does not tell."""
    try:
        return cluster.health().backfilling
    except ClusterError:
        return False
