"""When a job would start on some nodes, if jobs start in their order and end when expected.

List scheduling: each job starts as soon as it fits and all before it have started. GPUs are counted
node by node; a job takes the fullest nodes it fits on.

Hot path: a job costs as many steps as jobs end before it starts.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

Release = tuple[float, int, float]
"""When GPUs come back (seconds from now), on which node, and how many."""


class Replay:
    """The nodes of one pool, as the jobs so far will have left them.

    Args:
        free: Free GPUs of each node now.
        releases: What comes back later.
    """

    def __init__(self, free: Sequence[float], releases: Iterable[Release]) -> None:
        self._free = list(free)
        self._releases = list(releases)
        heapq.heapify(self._releases)
        self._now_s = 0.0

    def start_s(self, n_nodes: int, gpus: float, may: Sequence[bool]) -> float:
        """Seconds until the next job could start; inf if it never fits.

        Args:
            gpus: GPUs on each of *n_nodes* nodes.
            may: Nodes it may use.
        """
        open_to = sum(f >= gpus and m for f, m in zip(self._free, may, strict=True))
        if open_to >= n_nodes:
            return self._now_s
        releases, free = self._releases.copy(), dict[int, float]()
        while releases:
            at_s, node, back = heapq.heappop(releases)
            before = free.get(node, self._free[node])
            free[node] = before + back
            open_to += may[node] and before < gpus <= before + back
            if open_to >= n_nodes:
                return max(self._now_s, at_s)
        return float("inf")

    def admit(self, n_nodes: int, gpus: float, may: Sequence[bool], run_s: float) -> float:
        """Let the job be the next; when it starts, as `start_s`. Nothing changes if it never does.

        Args:
            run_s: How long it runs, seconds.
        """
        at_s = self.start_s(n_nodes, gpus, may)
        if at_s == float("inf"):
            return at_s
        self._now_s = at_s
        while self._releases and self._releases[0][0] <= at_s:
            _, node, back = heapq.heappop(self._releases)
            self._free[node] += back
        fitting = [n for n, f in enumerate(self._free) if f >= gpus and may[n]]
        for node in sorted(fitting, key=lambda n: self._free[n])[:n_nodes]:
            self._free[node] -= gpus
            heapq.heappush(self._releases, (at_s + run_s, node, gpus))
        return at_s
