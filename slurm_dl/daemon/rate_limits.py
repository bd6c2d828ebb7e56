"""Rates of the daemon's polls and writes, by the time that Slurm takes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, Self

from slurm_dl.backoff import Backoff
from slurm_dl.config import Config
from slurm_dl.config.daemon_section import DaemonSection
from slurm_dl.engine.cycle import Cluster, Cycle
from slurm_dl.engine.fresh_look import LookAgain
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import ClusterAction, OpenHandover, Unfinished
from slurm_dl.model.snapshot import Observed
from slurm_dl.slurm.controller import ControllerStatus

LEAST_GAP_S = 1.0  # Two cycles are at least this far apart, whatever wants them
LONGEST_BACKOFF_S = 300.0
SLOW_DUMP_S: Final = 2.0  # A slurmctld that takes longer to list its jobs is slow

MANY_THREADS: Final = 100
"""Of the 256 threads that serve everybody's calls; more are busy on a slow slurmctld."""

LONG_AGENT_QUEUE: Final = 200  # Messages to nodes that wait; more wait where slurmctld is slow

LONG_DBD_QUEUE: Final = 200
"""Messages to slurmdbd that wait; fewer are no sign of anything, even if they were fewer before."""

STEP: Final = 2.0  # By so much the pace changes at a time

CALM_POLLS: Final = 3
"""So many polls in a row must have been quick before the pace is raised by one step."""

LONGEST_HELD_S: Final = 600.0
"""slurmdbd may be away for hours, and the order of the queue must not be: SiteFactors cost it
nothing."""


def back_off_s(failures: int, poll_s: float) -> float:
    """Time until the next poll after *failures* in a row, seconds."""
    pause_s = Backoff(poll_s, 2.0, LONGEST_BACKOFF_S).pause_s(failures)
    # Jitter: many daemons must not come back in step. Never beyond the longest.
    return pause_s * random.uniform(0.8, 1.0)  # noqa: S311 - not a secret


def delay_after(cycle: Cycle, daemon: DaemonSection) -> float:
    """Time from the beginning of *cycle* to that of the next, seconds."""
    if not cycle.acting:
        # Nothing comes of being early, and what is overdue stays overdue.
        return daemon.poll_s
    delay_s = daemon.fast_poll_s if _has_handovers(cycle) else daemon.poll_s
    wake_in_s = cycle.plan.wake_at_s - cycle.snapshot.now_s
    if wake_in_s <= 0:
        return delay_s
    # Not at once: of thousands of running jobs one changes its tier nearly every second.
    return max(daemon.fast_poll_s, min(delay_s, wake_in_s))


def may_have_reservations(cycle: Cycle | None) -> bool:
    """Whether reservations of ours may stand after *cycle*; None is the start: nobody knows."""
    return cycle is None or _has_handovers(cycle) or bool(cycle.snapshot.seen.reservations)


def _has_handovers(cycle: Cycle) -> bool:
    # The snapshot is older than its hand-overs: they may have begun in this very cycle.
    opened = any(isinstance(d.action, OpenHandover) for d in cycle.done)
    return opened or bool(cycle.snapshot.handovers)


class SlowDown:
    """Factor on the configured interval of polls while slurmctld is slow.

    Each slow poll doubles the time to the next, `CALM_POLLS` quick ones in a row halve it.

    Args:
        clock: Seconds that only go forward.

    Attributes:
        factor: By what the configured interval is multiplied; at least 1.
        slow: What was slow when it last went slower, as a clause; empty at the configured pace.
        writes_held: Why the order should not be written now, as a clause; empty if it may be.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.factor = 1.0
        self.slow = ""
        self.writes_held = ""
        self._clock = clock
        self._calm = 0
        self._latest: ControllerStatus | None = None
        self._sick = ""
        self._held_since_s: float | None = None

    @property
    def is_slow(self) -> bool:
        """Whether slurmctld should be asked how it is at each poll: it is slow, or holds writes."""
        return self.factor > 1.0 or bool(self._sick or self.writes_held)

    def note_health(self, health: ControllerStatus) -> None:
        """Take in what slurmctld says of itself; counts at the next `polled`."""
        before, self._latest = self._latest, health
        self._sick = _sickness(health, before)
        self._hold(health, before)

    def polled(self, asked_s: float) -> None:
        """Take in a poll for which slurmctld needed *asked_s* seconds to answer."""
        slow = self._sick
        if asked_s > SLOW_DUMP_S:
            slow = f"it took {asked_s:.1f} s to list its jobs"
        if slow:
            self._calm = 0
            self.factor, self.slow = min(self.factor * STEP, STEP**16), slow
            return
        self._calm += 1
        if self._calm >= CALM_POLLS:
            self._calm = 0
            self.factor = max(1.0, self.factor / STEP)
            self.slow = self.slow if self.factor > 1.0 else ""

    def slowed(self, delay_s: float, slowest_s: float) -> float:
        """*delay_s* at the present pace; no longer than *slowest_s* but where it is already."""
        wanted_s = max(delay_s, min(delay_s * self.factor, slowest_s))
        # No further than it has an effect, or it would take as many quick polls to come back.
        while self.factor > STEP and delay_s * self.factor / STEP >= slowest_s:
            self.factor /= STEP
        return wanted_s

    def _hold(self, health: ControllerStatus, before: ControllerStatus | None) -> None:
        now, then = health.dbd_queue, None if before is None else before.dbd_queue
        grows = now is not None and then is not None and now > max(then, LONG_DBD_QUEUE)
        if not grows:
            self._held_since_s, self.writes_held = None, ""
            return
        if self._held_since_s is None:
            self._held_since_s = self._clock()
        over = self._clock() - self._held_since_s > LONGEST_HELD_S
        self.writes_held = "" if over else f"{now} messages wait for slurmdbd, and they grow more"


def _sickness(health: ControllerStatus, before: ControllerStatus | None) -> str:
    """The figure of slurmctld that shows it to be slow, as a clause; empty if none does."""
    dump_s = health.dump_s_since(before)
    if dump_s is not None and dump_s > SLOW_DUMP_S:
        return f"it takes {dump_s:.1f} s to list its jobs for anybody"
    if health.threads is not None and health.threads > MANY_THREADS:
        return f"{health.threads} of its threads are busy"
    if health.agent_queue is not None and health.agent_queue > LONG_AGENT_QUEUE:
        return f"{health.agent_queue} messages to nodes wait"
    return ""


class TokenBucket:
    """Allows *rate_per_s* in the long run, and *capacity* at once after a quiet time.

    It fills at `refill` alone: what flows in while a cycle writes is for the next cycle, so that
    no cycle writes more than the capacity.
    """

    def __init__(
        self, rate_per_s: float, capacity: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate_per_s = rate_per_s
        self._capacity = capacity
        self._clock = clock
        self._tokens = capacity
        self._at_s = clock()

    def refill(self) -> None:
        """Put in what has come together since the last time; to be called as a cycle begins."""
        now_s = self._clock()
        self._tokens = min(self._capacity, self._tokens + (now_s - self._at_s) * self._rate_per_s)
        self._at_s = now_s

    def take(self) -> bool:
        """Take one if there is one."""
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    @classmethod
    def of(cls, config: Config) -> Self:
        """The bucket that *config* asks for, full.

        It holds what flows in between two polls, or the rate would not be met in the long run.
        """
        writes = config.writes
        return cls(writes.rate_per_s, max(writes.burst, writes.rate_per_s * config.daemon.poll_s))


@dataclass(slots=True)
class Stopwatch:
    """Times what a cluster does; stands in its place during one cycle."""

    cluster: Cluster
    again: LookAgain
    observe_s: float = 0.0
    apply_s: float = 0.0

    def observe(self) -> Observed:
        """Observe, timed."""
        with self._timed("observe_s"):
            return self.cluster.observe()

    def look_again(self, seen: Observed, jobs: frozenset[JobId], *, nodes: bool) -> Observed:
        """Look again, timed as a part of observing."""
        with self._timed("observe_s"):
            return self.again(seen, jobs, nodes=nodes)

    def apply(self, action: ClusterAction, /) -> Unfinished | None:
        """Apply, timed."""
        with self._timed("apply_s"):
            finish = self.cluster.apply(action)
        # What it waits in a later cycle is not of this one, whose stopwatch this is.
        return None if finish is None else self._timed("apply_s")(finish)

    @contextmanager
    def _timed(self, name: Literal["observe_s", "apply_s"]) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + time.monotonic() - began)
