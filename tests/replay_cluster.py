"""A recorded stream as a `Cluster`: what was seen once is seen again, whatever is done."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.plan import ClusterAction
from slurm_dl.model.snapshot import Observed


class ReplayOverError(ClusterError):
    """The stream has come to its end."""


class ReplayCluster:
    """Shows one recorded observation after the other and takes note of what it is told.

    Nothing is refused and nothing has an effect on what is seen next, so the daemon's loop on it
    plans what it planned before exactly if its ledger, its policy and its limits are the same,
    it acted in the same cycles, and nothing was refused then.

    Args:
        stream: Observations, oldest first; taken one at a time.

    Attributes:
        applied: What it was told, each with the instant of the observation before it.
    """

    def __init__(self, stream: Iterable[Observed]) -> None:
        self._stream = iter(stream)
        self._now_s = 0.0
        self.applied: list[tuple[float, ClusterAction]] = []

    def clock(self) -> float:
        """The instant of the last observation, epoch seconds; 0 before the first."""
        return self._now_s

    def observe(self) -> Observed:
        """The next observation.

        Raises:
            ReplayOverError: There is none.
        """
        for seen in self._stream:
            self._now_s = seen.now_s
            return seen
        msg = "the recording is over"
        raise ReplayOverError(msg)

    def apply(self, action: ClusterAction, /) -> None:
        """Take note of *action*."""
        self.applied.append((self._now_s, action))
