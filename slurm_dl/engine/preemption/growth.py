"""Hand-overs in which running jobs become larger, by free GPUs and by those of other running jobs.

No job waits for what is taken: jobs that give GPUs and the one that gets them go on in other sizes
as soon as all of them have saved. Which jobs are worth it `engine.sized_target.steady` decides.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from slurm_dl.engine.placing.eligible_nodes import anywhere, narrowed
from slurm_dl.engine.placing.free_resources import FreeResources, NodeRows
from slurm_dl.engine.placing.place_waiting import named, sealed_nodes
from slurm_dl.engine.preemption.mode import DecisionContext
from slurm_dl.engine.preemption.new_handovers import next_id, victim_of
from slurm_dl.engine.preemption.surplus import Surplus, is_growing
from slurm_dl.engine.preemption.victim_choice import choose_victims, reluctance
from slurm_dl.engine.settings import Settings
from slurm_dl.engine.waiting_sizes import need_in, shape_of
from slurm_dl.model.handover import Handover, Victim
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import F64, PENDING, Bool, is_in
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import ResourceRequest


class ReshapeWalk(abc.ABC):
    """One walk over jobs that change size or type, which fills up the room as it goes.

    Args:
        under_way: Hand-overs that are under way or begin; their nodes are spoken for.
    """

    _room: FreeResources
    _givers: NodeRows  # Rows of jobs that can make room for others
    _over: Snapshot  # Snapshot in which these hold what they would give

    def __init__(
        self, context: DecisionContext, under_way: Collection[Handover], settings: Settings
    ) -> None:
        snap, self._limits = context.snap, settings.preemption
        self._context, self._snap, self._settings = context, snap, settings
        self._under_way, self._found = under_way, list[Handover]()
        self._busy = {v.run.job_id for h in under_way for v in h.victims}
        seats = named(snap.seen.nodes, {name for h in under_way for name in h.seats})
        self._open = snap.seen.nodes.up & ~(sealed_nodes(snap, under_way) | seats)
        hourly = self._limits.max_gpus_per_hour
        self._gpus_left = min(hourly or math.inf, self._limits.most_gpus)
        self._gpus_left -= snap.preempted_gpus_last_hour if hourly else 0.0

    def handovers(self, rows: Iterable[int]) -> list[Handover]:
        """Hand-overs of the jobs at *rows* for which there is room, as many as may be under way."""
        for row in rows:
            if len(self._under_way) + len(self._found) >= self._limits.max_handovers:
                break
            self._visit(row)
        return self._found

    @abc.abstractmethod
    def _visit(self, row: int) -> None:
        """Open the hand-over of the job at *row*, if there is room for it."""

    @functools.cached_property
    def _reluctance(self) -> F64:
        nobody = np.zeros(len(self._snap.jobs), dtype=np.bool_)
        return reluctance(self._snap, self._givers, nobody, self._settings)

    def _free(self, rows: NodeRows) -> NodeRows:
        """Those of *rows* that are in no hand-over."""
        free: NodeRows = rows[~is_in(self._snap.jobs.job_id[rows], list(self._busy))]
        return free

    def _victims(
        self, room: FreeResources, need: ResourceRequest, givers: NodeRows, within: Bool
    ) -> tuple[int, ...]:
        """Those of *givers* that together make room for *need*; none if they cannot."""
        givers = self._free(givers)
        if not len(givers):
            return ()
        chosen = choose_victims(
            self._over,
            room,
            need,
            candidates=givers,
            reluctance_gpu_s=self._reluctance,
            within=within,
            at_most=self._limits.max_victims,
        )
        return () if isinstance(chosen, str) else chosen

    def _begin(self, victims: Sequence[Victim], nodes: NodeRows, seats: NodeRows) -> None:
        """Open a hand-over that seals *nodes*: reservations of ours never overlap."""
        snap, name = self._snap, self._snap.seen.nodes.name
        self._open[nodes] = False
        self._busy |= {victim.run.job_id for victim in victims}
        self._found.append(
            Handover(
                handover_id=HandoverId(next_id(snap, self._under_way) + len(self._found)),
                opened_s=snap.now_s,
                beneficiaries=(),
                victims=tuple(victims),
                nodes=tuple(name[n] for n in sorted(nodes.tolist())),
                purpose="reshape",
                seats=tuple(name[n] for n in sorted(seats.tolist())),
            )
        )


def growths(
    context: DecisionContext, under_way: Sequence[Handover], settings: Settings
) -> list[Handover]:
    """Hand-overs that make running jobs larger, the one that saves most first.

    Args:
        under_way: Hand-overs that are under way or begin; their nodes are spoken for.
    """
    rows = is_growing(context.snap, context.intent)
    rows = rows[is_in(rows, context.movable)]
    if context.surplus is None or not len(rows) or not settings.preemption.enabled:
        return []
    walk = _Growth(context, context.surplus, under_way, settings)
    return walk.handovers(walk.by_saving(rows))


class _Growth(ReshapeWalk):
    def __init__(
        self,
        context: DecisionContext,
        surplus: Surplus,
        under_way: Collection[Handover],
        settings: Settings,
    ) -> None:
        super().__init__(context, under_way, settings)
        snap, intent = context.snap, context.intent
        self._intent, self._surplus, self._over = intent, surplus, surplus.over
        self._types = context.types if settings.placement.steer else anywhere
        self._room = surplus.free(snap)
        # Free GPUs that waiting jobs are about to get are not there for others.
        for row in intent.target[snap.jobs.state[intent.target] == PENDING].tolist():
            need = narrowed(context.needs.of(row), self._types(row))
            nodes = self._room.place(need, within=self._open)
            if nodes is not None:
                self._room.take(need, nodes)
        givers = surplus.wanted[is_in(surplus.wanted, list(surplus.then))]
        self._givers = givers[is_in(givers, context.candidates.may)]
        self._gives = surplus.given(snap)

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

    def _visit(self, row: int) -> None:
        """Make the job at *row* larger, as far as there is room for it."""
        sizes, size, jobs = self._snap.sizes, self._intent.size, self._snap.jobs
        assert sizes is not None and size is not None  # noqa: S101, PT018 - callers ask first
        on = self._snap.seen.held.nodes_of(row)
        if JobId(int(jobs.job_id[row])) in self._busy or not self._open[on].all():
            return
        room = self._room.copy()
        room.release(self._snap, row)
        for i in sizes.down_from(row, int(size[row])):
            if sizes.gpus[i] <= jobs.gpus[row]:
                return
            need = narrowed(need_in(self._snap, row, i), self._types(row))
            givers = self._givers_for(room, need)
            if givers is None:
                continue
            for giver in givers:
                room.release(self._over, giver)
            nodes = room.place(need, within=self._open)
            if nodes is not None:
                room.take(need, nodes)
                self._room = room
                self._grow(row, shape_of(sizes, i), nodes, givers)
            return

    def _givers_for(self, room: FreeResources, need: ResourceRequest) -> tuple[int, ...] | None:
        """Jobs that give what is missing; None: they cannot."""
        if room.place(need, within=self._open) is not None:
            return ()
        held = self._snap.seen.held
        givers = self._givers[~is_in(self._givers, held.job[~self._open[held.node]])]
        chosen = self._victims(room, need, givers, self._open)
        few = self._gives[list(chosen)].sum() <= self._gpus_left
        return chosen if chosen and few else None

    def _grow(self, row: int, shape: Shape, nodes: NodeRows, givers: tuple[int, ...]) -> None:
        snap, surplus = self._snap, self._surplus
        self._gpus_left -= float(self._gives[list(givers)].sum())
        kept = [surplus.seats[giver] for giver in givers]
        seats = np.unique(np.concatenate([nodes, *kept]))
        freed = [snap.seen.held.nodes_of(giver).astype(np.int64) for giver in givers]
        victims = [
            victim_of(snap, giver, surplus.then[giver], surplus.stays(snap, giver))
            for giver in givers
        ]
        sealed = np.unique(np.concatenate([seats, *freed]))
        self._begin([victim_of(snap, row, shape), *victims], sealed, seats)
