"""The cheapest running jobs to move so that something fits, each of which fits elsewhere at once.

Unlike victims (`victim_choice`) those who move need not be of a lower tier: they lose a save and a
restore, and run on. So a set counts only if all of it fits into what is left. Jobs are moved
directly, never in chains.

Exact by branch and bound as long as the search stays small: a node's cheapest clearings are
combined in the order of a lower bound, in which a job that spans k nodes costs one k-th on each.
Beyond `MOST_TRIED` sets the best one found so far is taken.

Source: Xiao et al., "Gandiva: Introspective Cluster Scheduling for Deep Learning", OSDI 2018
(migration, defragmentation).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.placing.free_resources import FreeResources, gres_held
from slurm_dl.model.jobs import F64, Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import ResourceRequest, ResourceRequests

Rows = npt.NDArray[np.int64]

MOST_TRIED = 200
"""Sets of jobs that are looked at for one need."""

MOST_ON_A_NODE = 10
"""Jobs of one node that are considered, the cheapest ones."""

MOST_SEATINGS = 500
"""Ways in which one set is put elsewhere that are looked at."""

_MORE = 1e-9


@dataclass(frozen=True, slots=True)
class JobMoves:
    """Jobs to move, and the nodes that this frees."""

    rows: tuple[int, ...]  # Rows of the jobs to move, ascending by job id
    freed: tuple[int, ...]  # Rows of the nodes on which the need fits then, ascending
    seats: tuple[int, ...]  # Rows of the nodes that those who move fit on, ascending
    cost_gpu_s: float  # What the moves cost, GPU-seconds


@dataclass(frozen=True, slots=True, eq=False)
class MoveLimits:
    """Limits of moves."""

    onto: Bool  # ``(m,)`` bool, nodes that jobs may be moved to
    jobs: int  # Most jobs that are moved
    gpus: float  # Most GPUs of theirs together


@dataclass(frozen=True, slots=True)
class _Way:
    """Jobs whose leaving makes the need fit on one node."""

    bound: float
    rows: frozenset[int]


def cheapest_moves(
    snap: Snapshot,
    available: FreeResources,
    need: ResourceRequest,
    *,
    movable: Rows,
    cost_gpu_s: F64,
    within: Bool,
    bounds: MoveLimits,
) -> JobMoves | str:
    """The cheapest set of jobs to move so that *need* fits, or in words why there is none.

    Args:
        available: What is free now; left as it was.
        movable: Rows of the jobs that may be moved.
        cost_gpu_s: ``(n,)`` what moving each job costs.
        within: ``(m,)`` bool, nodes that may be freed.
    """
    search = _Search(snap, available, need, cost_gpu_s, bounds)
    search.look(movable, within)
    if search.best is None:
        return "no set of jobs that may be moved fits elsewhere and makes room for it"
    return search.best


class _Search:
    def __init__(
        self,
        snap: Snapshot,
        available: FreeResources,
        need: ResourceRequest,
        cost: F64,
        bounds: MoveLimits,
    ) -> None:
        self._snap, self._available, self._need = snap, available, need
        self._cost, self._bounds = cost, bounds
        self._needs = ResourceRequests(snap)
        self._tried = 0
        self._ways: list[tuple[int, list[_Way]]] = []
        self._least: list[float] = []
        self.best: JobMoves | None = None

    def look(self, movable: Rows, within: Bool) -> None:
        """Find the best."""
        held = self._snap.seen.held
        mine = np.isin(held.job, movable) & within[held.node] & self._need.allowed[held.node]
        on_node: dict[int, dict[int, int]] = {}
        for at in np.flatnonzero(mine).tolist():
            on_node.setdefault(int(held.node[at]), {})[int(held.job[at])] = at
        fits = self._available.fits_on(self._need) & within
        free = [(n, [_Way(0.0, frozenset())]) for n in np.flatnonzero(fits).tolist()]
        # The fullest first: what is empty may be worth more to others.
        free.sort(key=lambda item: (self._available.gpus[item[0]], item[0]))
        cleared = [
            (node, ways)
            for node, jobs in on_node.items()
            if not fits[node] and (ways := self._ways_to_clear(node, jobs))
        ]
        cleared.sort(key=lambda item: (item[1][0].bound, item[0]))
        self._ways = [*free[: self._need.n_nodes], *cleared]
        self._least = [ways[0].bound for _, ways in self._ways]
        self._extend(0, (), frozenset(), 0.0)

    def _ways_to_clear(self, node: int, jobs: dict[int, int]) -> list[_Way]:
        """The smallest sets of *jobs* that make room on *node*, cheapest first.

        Args:
            jobs: Rows of the jobs, with the row in `Allocations` of what each holds there.
        """
        held, job_id = self._snap.seen.held, self._snap.jobs.job_id
        bound = {j: float(self._cost[j]) / len(held.nodes_of(j)) for j in jobs}
        cheap = sorted(jobs, key=lambda j: (bound[j], job_id[j]))[:MOST_ON_A_NODE]
        ways: list[_Way] = []
        for size in range(1, min(len(cheap), self._bounds.jobs) + 1):
            for chosen in itertools.combinations(cheap, size):
                rows = frozenset(chosen)
                if any(way.rows <= rows for way in ways):
                    continue
                if self._has_room(node, [jobs[j] for j in chosen]):
                    ways.append(_Way(sum(bound[j] for j in chosen), rows))
        return sorted(ways, key=lambda w: (w.bound, len(w.rows), sorted(job_id[list(w.rows)])))

    def _has_room(self, node: int, at: list[int]) -> bool:
        held, need, available = self._snap.seen.held, self._need, self._available
        jobs_left = int(available.jobs_on[node]) - len(at)
        gres = available.gres[:, node]
        if need.gres:
            going = np.zeros(len(held), dtype=np.bool_)
            going[at] = True
            gres = gres + gres_held(self._snap, going)[:, node]
        return bool(
            available.gpus[node] + held.gpus[at].sum() >= need.gpus
            and available.cpus[node] + held.cpus[at].sum() >= need.cpus
            and available.mem_mb[node] + held.mem_mb[at].sum() >= need.mem_mb
            and (not need.exclusive or jobs_left == 0)
            and all(free >= least for free, least in zip(gres, need.gres, strict=False))
        )

    def _extend(
        self, first: int, nodes: tuple[int, ...], rows: frozenset[int], bound: float
    ) -> None:
        missing = self._need.n_nodes - len(nodes)
        if not missing:
            self._try(nodes, rows)
            return
        for i in range(first, len(self._ways) - missing + 1):
            # The further ones cost no less than this one.
            if not self._worth(bound + missing * self._least[i]):
                return
            node, ways = self._ways[i]
            for way in ways:
                after = bound + way.bound
                if not self._worth(after + (missing - 1) * self._least[i]):
                    break
                together = rows | way.rows
                if len(together) <= self._bounds.jobs:
                    self._extend(i + 1, (*nodes, node), together, after)

    def _worth(self, bound: float) -> bool:
        if self._tried >= MOST_TRIED:
            return False
        return self.best is None or bound < self.best.cost_gpu_s - _MORE

    def _try(self, nodes: tuple[int, ...], rows: frozenset[int]) -> None:
        cost = float(self._cost[list(rows)].sum())
        gpus = float(self._snap.seen.weighted_gpus()[list(rows)].sum())
        if gpus > self._bounds.gpus or not self._worth(cost):
            return
        self._tried += 1
        available, snap = self._available.copy(), self._snap
        for row in rows:
            available.release(snap, row)
        available.take(self._need, np.array(nodes, dtype=np.int64))
        # The largest first, and ties not by how Slurm happened to list them.
        order = sorted(rows, key=lambda r: (-snap.jobs.gpus[r], snap.jobs.job_id[r]))
        seats = _Seating(self._needs, self._bounds.onto).seat(available, order)
        if seats is None:
            return
        self.best = JobMoves(
            rows=tuple(sorted(rows, key=lambda r: int(snap.jobs.job_id[r]))),
            freed=tuple(sorted(nodes)),
            seats=tuple(sorted(set(seats))),
            cost_gpu_s=cost,
        )


class _Seating:
    """Puts jobs on nodes, and takes another way where the first one comes to nothing."""

    def __init__(self, needs: ResourceRequests, onto: Bool) -> None:
        self._needs, self._onto = needs, onto
        self._looked_at = 0

    def seat(self, available: FreeResources, rows: Sequence[int]) -> tuple[int, ...] | None:
        """Nodes for all of *rows* together; None if they do not fit."""
        if not rows:
            return ()
        need = self._needs.of(rows[0])
        for nodes in self._choices(available, need):
            self._looked_at += 1
            if self._looked_at > MOST_SEATINGS:
                return None
            left = available.copy()
            left.take(need, nodes)
            rest = self.seat(left, rows[1:])
            if rest is not None:
                return (*nodes.tolist(), *rest)
        return None

    def _choices(self, available: FreeResources, need: ResourceRequest) -> list[Rows]:
        if need.n_nodes > 1:
            nodes = available.place(need, within=self._onto)
            return [] if nodes is None else [nodes]
        fits = np.flatnonzero(available.fits_on(need) & self._onto)
        fullest = fits[np.argsort(available.gpus[fits], kind="stable")]
        # Nodes in the same condition are as good as each other.
        state = np.column_stack(
            [
                available.gpus[fullest],
                available.cpus[fullest],
                available.mem_mb[fullest],
                available.jobs_on[fullest],
            ]
        )
        first = np.sort(np.unique(state, axis=0, return_index=True)[1])
        return [fullest[i : i + 1] for i in first.tolist()]
