"""Moves running jobs together so that a waiting gang fits, or that nodes are free as a whole.

It is for what preemption does not reach: there are GPUs enough, but in pieces, and nobody of a
lower tier stands on them. Only jobs that agreed to preemption are moved, under all of its limits,
and only if each of them fits elsewhere at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.fresh_look import THERE_IS_ROOM
from slurm_dl.engine.placing.eligible_nodes import EligibleNodes, anywhere
from slurm_dl.engine.placing.free_resources import FreeResources, gres_held
from slurm_dl.engine.placing.place_waiting import sealed_nodes
from slurm_dl.engine.preemption.eligibility import Victims, not_beneficiary, tried_in_vain
from slurm_dl.engine.preemption.new_handovers import next_id, victim_of
from slurm_dl.engine.preemption.slurm_refusals import LimitsLeft
from slurm_dl.engine.preemption.stopping_cost import save_restore_s
from slurm_dl.engine.settings import Settings
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import Ask, ResourceRequest, ResourceRequests

Rows = npt.NDArray[np.int64]

MOST_TRIED = 200  # Sets of jobs that are looked at for one need
MOST_ON_A_NODE = 10  # Jobs of one node that are considered, the cheapest ones
MOST_SEATINGS = 500  # Ways in which one set is put elsewhere that are looked at
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

    Those who move need not be of a lower tier: they lose a save and a restore, and run on. So a set
    counts only if all of it fits into what is left. Jobs are moved directly, never in chains.

    Exact by branch and bound as long as the search stays small: a node's cheapest clearings are
    combined in the order of a lower bound, in which a job that spans k nodes costs one k-th on
    each. Beyond `MOST_TRIED` sets the best one found so far is taken. Source: Xiao et al.,
    "Gandiva: Introspective Cluster Scheduling for Deep Learning", OSDI 2018.

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


MOST_GANGS = 8  # Waiting jobs that moves are looked for in one decision


def defragment(
    snap: Snapshot,
    waiting: npt.NDArray[np.int64],
    candidates: Victims,
    drafts: Collection[Handover],
    settings: Settings,
    *,
    may_displace: Bool,
    within: EligibleNodes = anywhere,
    idle: bool = True,
) -> tuple[Handover | None, dict[JobId, str]]:
    """The moves to begin now, and for waiting jobs why none are.

    One at a time: while jobs are on their way nobody knows yet what there will be room for.

    Args:
        waiting: Rows of the jobs that could start if there were room, best first.
        drafts: Hand-overs that this decision begins.
        may_displace: ``(n,)`` bool, jobs for which others may be moved.
        within: Nodes on which the job at a row may be.
        idle: No other job waits either.
    """
    how, limits = settings.defragment, settings.preemption
    under_way = [*snap.handovers, *drafts]
    if (
        not (how.enabled or how.free_nodes)
        or not limits.enabled
        or len(under_way) >= limits.max_handovers
        or any(h.purpose == "defragment" for h in under_way)
    ):
        return None, {}
    search = _Defragmenting(snap, candidates, under_way, settings, within)
    notes: dict[JobId, str] = {}
    if how.enabled:
        for row in search.gangs(waiting):
            found = search.room_for(row, may_displace)
            if isinstance(found, Handover):
                return found, notes
            notes[JobId(int(snap.jobs.job_id[row]))] = found
    # While jobs wait a node that comes free is theirs, and the next one would have to be freed.
    idle &= not len(waiting)
    return (search.whole_node() if how.free_nodes and idle else None), notes


class _Defragmenting:
    def __init__(
        self,
        snap: Snapshot,
        candidates: Victims,
        under_way: Collection[Handover],
        settings: Settings,
        may_be: EligibleNodes,
    ) -> None:
        self._snap, self._settings = snap, settings
        self._available = FreeResources.free_in(snap)
        self._needs = ResourceRequests(snap)
        self._left = LimitsLeft(snap, under_way)
        self._spoken_for = {b for h in under_way for b in h.beneficiaries}
        self._open = ~sealed_nodes(snap, under_way)
        busy = {v.run.job_id for h in under_way for v in h.victims}
        may = candidates.may[~np.isin(snap.jobs.job_id[candidates.may], list(busy))]
        held = snap.seen.held
        touching = np.unique(held.job[~self._open[held.node]])
        self._movable = may[~np.isin(may, touching)]
        self._onto = self._open.copy()
        for row in self._movable.tolist() if may_be is not anywhere else ():
            mine = may_be(row)
            if mine is not None:  # What others have a right to is no place to be sent to.
                self._onto &= mine
        self._next_id = next_id(snap, under_way)

    def gangs(self, waiting: npt.NDArray[np.int64]) -> list[int]:
        """The waiting jobs that moves are looked for, best first."""
        snap, after_s = self._snap, self._settings.defragment.after_s
        waited = snap.now_s - snap.memory.waiting_since_s[waiting] >= after_s
        rows = waiting[waited & (snap.jobs.gpus[waiting] > 0)].tolist()
        return [r for r in rows if JobId(int(snap.jobs.job_id[r])) not in self._spoken_for][
            :MOST_GANGS
        ]

    def room_for(self, row: int, may_displace: Bool) -> Handover | str:
        """The moves that let the job at *row* start, or why there are none."""
        snap, limits = self._snap, self._settings.preemption
        need = self._needs.of(row)
        if self._available.place(need) is not None:
            return THERE_IS_ROOM
        reason = not_beneficiary(snap, row, may_displace, limits)
        reason = reason or tried_in_vain(snap, row, limits.handover_timeout_s)
        reason = reason or self._left.why_not(row)
        if reason:
            return reason
        within = self._open & need.allowed
        if float(np.maximum(self._available.gpus[within], 0).sum()) < need.gpus * need.n_nodes:
            return "there are too few free GPUs, wherever they are"
        found = self._moves(need, within, self._onto)
        if isinstance(found, str):
            return found
        job_id = JobId(int(snap.jobs.job_id[row]))
        return self._handover((job_id,), found)

    def whole_node(self) -> Handover | None:
        """The moves that free one more node, if there are too few free ones and it can be done."""
        nodes, available = self._snap.seen.nodes, self._available
        usable = nodes.up & (nodes.gpus > 0) & self._open
        free = usable & (available.jobs_on == 0)
        if int(np.count_nonzero(free)) >= self._settings.defragment.free_nodes:
            return None
        best: JobMoves | None = None
        # A node counts as free when nobody is on it, however large it is.
        for gpus in np.unique(nodes.gpus[usable & ~free]).tolist():
            alike = usable & ~free & (nodes.gpus == gpus)
            need = ResourceRequest(
                (gpus,), (Ask(1, gpus, 0, 0),), exclusive=True, place=(), allowed=alike
            )
            found = self._moves(need, alike, self._onto & usable & ~free)
            if isinstance(found, JobMoves) and (best is None or found.cost_gpu_s < best.cost_gpu_s):
                best = found
        return None if best is None else self._handover((), best)

    def _moves(self, need: ResourceRequest, within: Bool, onto: Bool) -> JobMoves | str:
        limits = self._settings.preemption
        per_hour = limits.max_gpus_per_hour or math.inf
        return cheapest_moves(
            self._snap,
            self._available,
            need,
            movable=self._movable,
            cost_gpu_s=self._cost(),
            within=within,
            bounds=MoveLimits(
                onto=onto,
                jobs=min(self._settings.defragment.max_moves, limits.max_victims),
                gpus=min(per_hour - self._snap.preempted_gpus_last_hour, limits.most_gpus),
            ),
        )

    def _cost(self) -> F64:
        """``(n,)`` GPU-seconds that a save and a restore of each job take."""
        snap, movable, profiles = self._snap, self._movable, self._settings.placement.profiles
        otherwise_s = self._settings.preemption.checkpoint_cost_s
        seconds = np.full(len(snap.jobs), otherwise_s)
        seconds[movable] = save_restore_s(snap, movable, profiles, otherwise_s)
        cost: F64 = snap.jobs.gpus * seconds
        return cost

    def _handover(self, beneficiaries: tuple[JobId, ...], moves: JobMoves) -> Handover:
        names = self._snap.seen.nodes.name
        sealed = {*moves.freed, *moves.seats} if beneficiaries else set()
        return Handover(
            handover_id=self._next_id,
            opened_s=self._snap.now_s,
            beneficiaries=beneficiaries,
            victims=tuple(victim_of(self._snap, row) for row in moves.rows),
            nodes=tuple(names[n] for n in sorted(sealed)),
            purpose="defragment",
            seats=tuple(names[n] for n in moves.seats),
        )
