"""Hand-overs in which running jobs become larger, by free GPUs and by those of other running jobs.

No job waits for what is taken: jobs that give GPUs and the one that gets them go on in other sizes
as soon as all of them have saved. Which jobs are worth it `engine.sized_target.steady` decides.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from slurm_dl.engine.placing.eligible_nodes import anywhere, narrowed
from slurm_dl.engine.placing.free_resources import FreeResources, NodeRows
from slurm_dl.engine.placing.place_waiting import named, sealed_nodes
from slurm_dl.engine.preemption.mode import DecisionContext
from slurm_dl.engine.preemption.new_handovers import next_id, victim_of
from slurm_dl.engine.preemption.surplus import Surplus, is_growing
from slurm_dl.engine.preemption.victim_choice import choose_victims, reluctance
from slurm_dl.engine.settings import Settings
from slurm_dl.engine.waiting_sizes import at_shapes, shape_of
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import PENDING, is_in
from slurm_dl.model.shape import Shape
from slurm_dl.placement.resource_request import ResourceRequest, ResourceRequests


def growths(
    context: DecisionContext, under_way: Sequence[Handover], settings: Settings
) -> list[Handover]:
    """Hand-overs that make running jobs larger, the one that saves most first.

    Args:
        under_way: Hand-overs that are under way or begin; their nodes are spoken for.
    """
    snap, surplus, limits = context.snap, context.surplus, settings.preemption
    rows = is_growing(snap, context.intent)
    rows = rows[is_in(rows, context.movable)]
    if surplus is None or not len(rows) or not limits.enabled:
        return []
    search = _Growth(context, surplus, under_way, settings)
    found: list[Handover] = []
    for row in search.by_saving(rows):
        if len(under_way) + len(found) >= limits.max_handovers:
            break
        handover = search.visit(row, HandoverId(next_id(snap, under_way) + len(found)))
        if handover is not None:
            found.append(handover)
    return found


class _Growth:
    """One walk over the jobs that grow, which fills up the room as it goes."""

    def __init__(
        self,
        context: DecisionContext,
        surplus: Surplus,
        under_way: Collection[Handover],
        settings: Settings,
    ) -> None:
        snap, intent, candidates = context.snap, context.intent, context.candidates
        self._snap, self._intent, self._surplus = snap, intent, surplus
        self._types = context.types if settings.placement.steer else anywhere
        self._limits = settings.preemption
        seats = named(snap.seen.nodes, {name for h in under_way for name in h.seats})
        self._open = snap.seen.nodes.up & ~(sealed_nodes(snap, under_way) | seats)
        self._busy = {v.run.job_id for h in under_way for v in h.victims}
        self._room = surplus.free(snap)
        # Free GPUs that waiting jobs are about to get are not there for others.
        for row in intent.target[snap.jobs.state[intent.target] == PENDING].tolist():
            need = narrowed(context.needs.of(row), self._types(row))
            nodes = self._room.place(need, within=self._open)
            if nodes is not None:
                self._room.take(need, nodes)
        givers = surplus.wanted[is_in(surplus.wanted, list(surplus.then))]
        self._givers = givers[is_in(givers, candidates.may)]
        nobody = np.zeros(len(snap.jobs), dtype=np.bool_)
        self._reluctance = reluctance(snap, self._givers, nobody, settings)
        self._gives = surplus.given(snap)
        most = min(self._limits.max_gpus_per_hour or math.inf, self._limits.most_gpus)
        self._gpus_left = most - (
            snap.preempted_gpus_last_hour if self._limits.max_gpus_per_hour else 0.0
        )

    def by_saving(self, rows: NodeRows) -> list[int]:
        """*rows*, the job first that saves most time."""
        sizes, size, jobs = self._snap.sizes, self._intent.size, self._snap.jobs
        assert sizes is not None and size is not None  # noqa: S101, PT018 - callers ask first
        saves = {}
        for row in rows.tolist():
            held = sizes.held(row, float(jobs.gpus[row]), int(jobs.n_nodes[row]))
            before = 1 / float(sizes.rate[held]) if held >= 0 else math.inf
            saves[row] = float(self._snap.left_s[row]) * (before - 1 / float(sizes.rate[size[row]]))
        return sorted(saves, key=lambda row: (-saves[row], int(jobs.job_id[row])))

    def visit(self, row: int, handover_id: HandoverId) -> Handover | None:
        """The hand-over that makes the job at *row* larger, as far as there is room for it."""
        sizes, size, jobs = self._snap.sizes, self._intent.size, self._snap.jobs
        assert sizes is not None and size is not None  # noqa: S101, PT018 - callers ask first
        on = self._snap.seen.held.nodes_of(row)
        if JobId(int(jobs.job_id[row])) in self._busy or not self._open[on].all():
            return None
        room = self._room.copy()
        room.release(self._snap, row)
        for i in range(int(size[row]), sizes.of(row).start - 1, -1):
            if sizes.gpus[i] <= jobs.gpus[row]:
                return None
            shape = shape_of(sizes, i)
            need = ResourceRequests(at_shapes(self._snap, {row: shape})).of(row)
            need = narrowed(need, self._types(row))
            givers = self._givers_for(room, need)
            if givers is None:
                continue
            for giver in givers:
                room.release(self._surplus.over, giver)
            nodes = room.place(need, within=self._open)
            if nodes is None:
                return None
            room.take(need, nodes)
            self._room = room
            return self._handover(handover_id, row, shape, nodes, givers)
        return None

    def _givers_for(self, room: FreeResources, need: ResourceRequest) -> tuple[int, ...] | None:
        """Jobs that give what is missing; None: they cannot."""
        if room.place(need, within=self._open) is not None:
            return ()
        held, ids = self._snap.seen.held, self._snap.jobs.job_id
        on_sealed = held.job[~self._open[held.node]]
        givers = self._givers[~is_in(self._givers, on_sealed)]
        givers = givers[~is_in(ids[givers], list(self._busy))]
        if not len(givers):
            return None
        chosen = choose_victims(
            self._surplus.over,
            room,
            need,
            candidates=givers,
            reluctance_gpu_s=self._reluctance,
            within=self._open,
            at_most=self._limits.max_victims,
        )
        if isinstance(chosen, str) or self._gives[list(chosen)].sum() > self._gpus_left:
            return None
        return chosen

    def _handover(
        self,
        handover_id: HandoverId,
        row: int,
        shape: Shape,
        nodes: NodeRows,
        givers: tuple[int, ...],
    ) -> Handover:
        snap, surplus = self._snap, self._surplus
        self._gpus_left -= float(self._gives[list(givers)].sum())
        kept = [surplus.seats[giver] for giver in givers]
        seats = np.unique(np.concatenate([nodes, *kept]))
        freed = [snap.seen.held.nodes_of(giver).astype(np.int64) for giver in givers]
        sealed = np.unique(np.concatenate([seats, *freed]))
        self._open[sealed] = False
        names = snap.seen.nodes.name
        victims = [victim_of(snap, row, shape)]
        victims += [
            victim_of(snap, giver, surplus.then[giver], surplus.stays(snap, giver))
            for giver in givers
        ]
        self._busy |= {victim.run.job_id for victim in victims}
        return Handover(
            handover_id=handover_id,
            opened_s=snap.now_s,
            beneficiaries=(),
            victims=tuple(victims),
            nodes=tuple(names[n] for n in sealed.tolist()),
            purpose="reshape",
            seats=tuple(names[n] for n in seats.tolist()),
        )
