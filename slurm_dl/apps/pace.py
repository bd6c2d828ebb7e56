"""How fast the daemon writes to Slurm, and how long Slurm takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from slurm_dl.config import Config
from slurm_dl.engine.loop import Cluster
from slurm_dl.model.plan import ClusterAction
from slurm_dl.model.snapshot import Observed


class TokenBucket:
    """Allows *rate_per_s* in the long run and *burst* at once after a quiet time."""

    def __init__(
        self, rate_per_s: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._clock = clock
        self._tokens = burst
        self._at_s = clock()

    def take(self) -> bool:
        """Take one if there is one."""
        now_s = self._clock()
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate_per_s)
        self._at_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    @classmethod
    def of(cls, config: Config) -> Self:
        """The bucket that *config* asks for, full."""
        return cls(config.writes.rate_per_s, config.writes.burst)


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
