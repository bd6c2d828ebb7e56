"""How often the daemon asks Slurm, how fast it writes to it, and how long Slurm takes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from slurm_dl.config import Config
from slurm_dl.config.tree import DaemonSection
from slurm_dl.engine.loop import Cluster, Cycle
from slurm_dl.model.plan import ClusterAction, OpenHandover
from slurm_dl.model.snapshot import Observed

LEAST_GAP_S = 1.0
"""Two cycles are at least this far apart, whatever wants them."""

LONGEST_BACKOFF_S = 300.0


def back_off_s(failures: int, poll_s: float) -> float:
    """Time until the next poll after *failures* in a row, seconds."""
    doubled_s = min(LONGEST_BACKOFF_S, poll_s * 2.0 ** min(failures - 1, 16))
    # Jitter: many daemons must not come back in step. Never beyond the longest.
    return doubled_s * random.uniform(0.8, 1.0)  # noqa: S311 - not a secret


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
    observe_s: float = 0.0
    apply_s: float = 0.0

    def observe(self) -> Observed:
        """Observe, timed."""
        began = time.monotonic()
        try:
            return self.cluster.observe()
        finally:
            self.observe_s += time.monotonic() - began

    def apply(self, action: ClusterAction, /) -> None:
        """Apply, timed."""
        began = time.monotonic()
        try:
            self.cluster.apply(action)
        finally:
            self.apply_s += time.monotonic() - began
