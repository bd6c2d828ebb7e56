"""Which rows of a picture, one for each GPU, a run is drawn on, where its nodes are not known.

Such records say how many GPUs a run held, not which. So runs are put on rows here, by rules that do
not depend on anything but the runs: a job comes back to its old rows if they are free; else to the
fullest node that has room for all of it; else over the emptiest nodes. It costs
``O(log nodes)`` for a run that one node holds. Where the nodes are known: `page_data`.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_dl.model.jobs import I64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """Rectangles: neighbouring rows of one node that a run is drawn on, b of them.

    Attributes:
        extra: Rows below those of the nodes, for runs that find no GPU free: where jobs share GPUs.
    """

    run: I64  # ``(b,)`` index of the run, not decreasing
    first: I64  # ``(b,)`` its uppermost row
    count: I64  # ``(b,)`` rows, at least 1
    extra: int

    def __len__(self) -> int:
        return len(self.run)


def pack(start: I64, end: I64, *, job: I64, gpus: I64, node_gpus: Sequence[int]) -> Blocks:
    """Put runs on rows so that no two are on one row at the same time.

    Args:
        start: ``(k,)`` when each run starts, in any unit.
        end: ``(k,)`` when it ends; a run that ends when it starts is on no row.
        job: ``(k,)`` whose run it is.
        gpus: ``(k,)`` rows it needs.
        node_gpus: Rows of each node, from the top.
    """
    free = _Free(node_gpus)
    before: dict[int, list[int]] = {}
    held: dict[int, list[int]] = {}
    lasting = (end > start).nonzero()[0]
    # Who ends makes room for those that start then; the largest is put first.
    starts = lasting[np.lexsort((lasting, job[lasting], -gpus[lasting], start[lasting]))]
    ends = lasting[np.lexsort((lasting, end[lasting]))].tolist()
    end_of, job_of, gpus_of = end.tolist(), job.tolist(), gpus.tolist()
    over = 0
    for run, start_at in zip(starts.tolist(), start[starts].tolist(), strict=True):
        while over < len(ends) and end_of[ends[over]] <= start_at:
            free.give(held.get(ends[over], []))
            over += 1
        wanted = before.get(job_of[run], [])
        again = len(wanted) == gpus_of[run] and free.are_free(wanted)
        rows = wanted if again else free.choose(gpus_of[run])
        free.take(rows)
        held[run] = before[job_of[run]] = rows
    return rectangles(held, free.node_of, extra=free.extra)


class _Free:
    """The free rows of each node, and nodes by how many they have."""

    def __init__(self, node_gpus: Sequence[int]) -> None:
        first = np.concatenate([[0], np.cumsum(np.asarray(node_gpus, dtype=np.int64))])
        self.rows = int(first[-1])
        self._node_of = np.repeat(np.arange(len(node_gpus)), node_gpus).tolist()
        self._of_node = [set(range(*edges)) for edges in itertools.pairwise(first.tolist())]
        self._most = max(node_gpus, default=0)
        # For each number of free rows the nodes that had so many once; looked at again when taken.
        self._with: list[list[int]] = [[] for _ in range(self._most + 1)]
        for node, free in enumerate(self._of_node):
            self._with[len(free)].append(node)
        self.extra = 0
        self._extra_free: list[int] = []

    def node_of(self, row: int) -> int:
        """The node of *row*; -1 for an extra one."""
        return self._node_of[row] if row < self.rows else -1

    def are_free(self, rows: Iterable[int]) -> bool:
        """Whether nobody is on any of *rows*."""
        return all(row < self.rows and row in self._of_node[self._node_of[row]] for row in rows)

    def choose(self, gpus: int) -> list[int]:
        """The rows for a run of *gpus*, in increasing order."""
        for count in range(gpus, self._most + 1):
            node = self._lowest(count)
            if node is not None:
                return sorted(self._of_node[node])[:gpus]
        return self._spread(gpus)

    def take(self, rows: Iterable[int]) -> None:
        """Somebody is on *rows* from now on."""
        for node, some in self._by_node(rows).items():
            if node >= 0:
                self._of_node[node].difference_update(some)
                heapq.heappush(self._with[len(self._of_node[node])], node)

    def give(self, rows: Iterable[int]) -> None:
        """Nobody is on *rows* any more."""
        for node, some in self._by_node(rows).items():
            if node < 0:
                for row in some:
                    heapq.heappush(self._extra_free, row)
                continue
            self._of_node[node].update(some)
            heapq.heappush(self._with[len(self._of_node[node])], node)

    def _by_node(self, rows: Iterable[int]) -> dict[int, list[int]]:
        found = defaultdict(list)
        for row in rows:
            found[self.node_of(row)].append(row)
        return found

    def _lowest(self, count: int) -> int | None:
        """The uppermost node with just *count* free rows."""
        nodes = self._with[count]
        while nodes and len(self._of_node[nodes[0]]) != count:
            heapq.heappop(nodes)
        return nodes[0] if nodes else None

    def _spread(self, gpus: int) -> list[int]:
        chosen: list[int] = []
        used: list[int] = []
        for count in range(self._most, 0, -1):
            while len(chosen) < gpus:
                node = self._lowest(count)
                if node is None:
                    break
                # Aside, so that the next one is found; it is put back by `take`.
                heapq.heappop(self._with[count])
                if node in used:
                    continue
                used.append(node)
                chosen += sorted(self._of_node[node])[: gpus - len(chosen)]
        while len(chosen) < gpus:
            if self._extra_free:
                chosen.append(heapq.heappop(self._extra_free))
            else:
                chosen.append(self.rows + self.extra)
                self.extra += 1
        return sorted(chosen)


def rectangles(
    held: Mapping[int, Sequence[int]], node_of: Callable[[int], int], *, extra: int
) -> Blocks:
    """Neighbouring rows of one node as one.

    Args:
        held: Rows of each run, ascending.
        node_of: The node of a row; -1 for an extra one.
    """
    run_of: list[int] = []
    first: list[int] = []
    count: list[int] = []
    for run in sorted(held):
        last = last_node = None
        for row in held[run]:
            node = node_of(row)
            if last is not None and row == last + 1 and node == last_node:
                count[-1] += 1
            else:
                run_of.append(run)
                first.append(row)
                count.append(1)
            last, last_node = row, node
    return Blocks(
        run=np.array(run_of, dtype=np.int64),
        first=np.array(first, dtype=np.int64),
        count=np.array(count, dtype=np.int64),
        extra=extra,
    )
