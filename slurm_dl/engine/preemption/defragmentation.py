"""Moves running jobs together so that a waiting gang fits, or that nodes are free as a whole.

It is for what preemption does not reach: there are GPUs enough, but in pieces, and nobody of a
lower tier stands on them. Only jobs that agreed to preemption are moved, under all of its limits,
and only if each of them fits elsewhere at once.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.fresh_look import THERE_IS_ROOM
from slurm_dl.engine.placing.eligible_nodes import EligibleNodes, anywhere
from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.placing.place_waiting import sealed_nodes
from slurm_dl.engine.preemption.eligibility import Victims, not_beneficiary, tried_in_vain
from slurm_dl.engine.preemption.job_moves import JobMoves, MoveLimits, cheapest_moves
from slurm_dl.engine.preemption.limits_left import LimitsLeft
from slurm_dl.engine.preemption.new_handovers import next_id, victim_of
from slurm_dl.engine.preemption.stopping_cost import save_restore_s
from slurm_dl.engine.settings import Settings
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import Ask, ResourceRequest, ResourceRequests

MOST_GANGS = 8
"""Waiting jobs that moves are looked for in one decision."""


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
