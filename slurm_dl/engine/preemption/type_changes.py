"""Hand-overs that move running jobs to GPUs of a faster type: free ones, or in exchange.

No job waits for what is taken. A policy that tells GPU types apart says on which type each job had
best run. A job that runs on a slower one stays there until another job wants its GPUs, or until it
can be moved under all limits of a preemption, if what is left of its work is done sooner by more
than the restart takes.

*In exchange*: elastic jobs that should be on another type make room for it, and start again on the
type that is theirs, where there must be room for them once all have stopped.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning
Workloads" (Gavel), OSDI 2020, section 5: each round places jobs anew, whether or not others wait.
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
from slurm_dl.engine.preemption.victim_choice import choose_victims, reluctance
from slurm_dl.engine.settings import Settings
from slurm_dl.engine.sized_target import speeds_on
from slurm_dl.engine.target import Rows
from slurm_dl.engine.waiting_sizes import at_shapes, shape_of
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import HandoverId
from slurm_dl.model.jobs import F64, I16, Bool, is_in
from slurm_dl.model.shape import Shape
from slurm_dl.model.sizes import AS_ASKED
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import ResourceRequest, ResourceRequests
from slurm_dl.policies.arithmetic.supply_and_demand import rates_of, type_held


def type_changes(
    context: DecisionContext, under_way: Sequence[Handover], settings: Settings
) -> list[Handover]:
    """Hand-overs that move running jobs to another type, largest saving first.

    An elastic job goes on there in the size that it should have, or the largest smaller one that
    has room.

    Args:
        under_way: Hand-overs that are under way or begin; their nodes are spoken for.
    """
    snap, kind, limits = context.snap, context.intent.kind, settings.preemption
    # A site that steers no job to a type moves none there either.
    steers = settings.placement.steer and context.types is not anywhere
    if kind is None or not steers or not limits.enabled:
        return []
    changes = _TypeChanges(context, kind, under_way, settings)
    moves: list[Handover] = []
    for row in changes.rows:
        if len(under_way) + len(moves) >= limits.max_handovers:
            break
        handover = changes.visit(row, HandoverId(next_id(snap, under_way) + len(moves)))
        if handover is not None:
            moves.append(handover)
    return moves


class _TypeChanges:
    """One walk over the jobs that move, which fills up the room as it goes."""

    def __init__(
        self,
        context: DecisionContext,
        kind: I16,
        under_way: Collection[Handover],
        settings: Settings,
    ) -> None:
        snap, limits = context.snap, settings.preemption
        self._context, self._snap, self._kind, self._limits = context, snap, kind, limits
        self._held = type_held(snap.seen, snap.on_type)
        self._busy = {v.run.job_id for h in under_way for v in h.victims}
        rows = context.candidates.may
        rows = rows[~is_in(snap.jobs.job_id[rows], list(self._busy))]
        rows = rows[(self._held[rows] >= 0) & (kind[rows] >= 0) & (self._held[rows] != kind[rows])]
        size = context.intent.size
        self._givers = rows[:0] if size is None else rows[size[rows] >= 0]
        """Those that make room for others and start again in a size of theirs."""
        nobody = np.zeros(len(snap.jobs), dtype=np.bool_)
        self._reluctance = reluctance(snap, self._givers, nobody, settings)
        seats = named(snap.seen.nodes, {name for h in under_way for name in h.seats})
        self._open = ~(sealed_nodes(snap, under_way) | seats)
        self._room = FreeResources.free_in(snap)
        self._weighted = snap.seen.weighted_gpus()
        most = min(limits.max_gpus_per_hour or math.inf, limits.most_gpus)
        self._gpus_left = most - (
            snap.preempted_gpus_last_hour if limits.max_gpus_per_hour else 0.0
        )
        rows = rows[snap.now_s >= _not_before_s(snap, rows, limits.handover_timeout_s)]
        saves_s = self._saves_s(rows)
        worth = saves_s > limits.checkpoint_cost_s
        rows, saves_s = rows[worth], saves_s[worth]
        self.rows: list[int] = rows[np.lexsort((snap.jobs.job_id[rows], -saves_s))].tolist()
        """Those that gain by moving, the one first that saves most."""

    def _saves_s(self, rows: Rows) -> F64:
        """``(k,)`` seconds that each job saves of what is left."""
        rates, saves = rates_of(self._snap)[rows], []
        for row, rate in zip(rows.tolist(), rates, strict=True):
            old, new = self._speed(row, rate, held=True), self._speed(row, rate, held=False)
            left_s = float(self._snap.left_s[row])
            # Of endless time, too, equal speeds save nothing.
            saves.append(0.0 if old == new else left_s * (1 / old - 1 / new) if old else math.inf)
        return np.array(saves, dtype=np.float64)

    def _speed(self, row: int, rate: F64, *, held: bool) -> float:
        snap, size, sizes = self._snap, self._context.intent.size, self._snap.sizes
        jobs, kind = snap.jobs, int((self._held if held else self._kind)[row])
        at = AS_ASKED if size is None else int(size[row])
        if sizes is None or at < 0:
            return float(rate[kind])
        if held:
            at = sizes.held(row, float(jobs.gpus[row]), int(jobs.n_nodes[row]))
        return float((rate if at < 0 else speeds_on(sizes, at, rate))[kind])

    def visit(self, row: int, handover_id: HandoverId) -> Handover | None:
        """The hand-over that moves the job at *row*; None: there is no room for it."""
        right = self._context.types(row)
        if right is None or self._snap.jobs.job_id[row] in self._busy:
            return None
        for shape in self._shapes(row):
            need = narrowed(self._need(row, shape), self._context.within(row))
            for givers in ((), self._givers_for(row, need, right)):
                room = self._room.copy()
                for giver in givers:
                    room.release(self._snap, giver)
                nodes = room.place(need, within=right & self._open)
                gives = float(self._weighted[[row, *givers]].sum())
                if nodes is None or gives > self._gpus_left:
                    continue
                room.take(need, nodes)
                if not self._all_go_on(row, givers, room.copy()):
                    continue
                self._gpus_left -= gives
                self._room = room
                return self._handover(handover_id, row, shape, nodes, givers)
        return None

    def _shapes(self, row: int) -> list[Shape | None]:
        """Its sizes on the other type, the best first; None: the one it has."""
        sizes, size = self._snap.sizes, self._context.intent.size
        if sizes is None or size is None or size[row] < 0:
            return [None]
        return [shape_of(sizes, i) for i in range(int(size[row]), sizes.of(row).start - 1, -1)]

    def _need(self, row: int, shape: Shape | None) -> ResourceRequest:
        there = self._snap if shape is None else at_shapes(self._snap, {row: shape})
        return ResourceRequests(there).of(row)

    def _givers_for(self, row: int, need: ResourceRequest, right: Bool) -> tuple[int, ...]:
        """Jobs that hold the right type, should be on another, and together make room."""
        givers = self._givers[self._held[self._givers] == self._kind[row]]
        givers = givers[~is_in(self._snap.jobs.job_id[givers], list(self._busy))]
        if not len(givers) or row not in self._givers:
            return ()
        chosen = choose_victims(
            self._snap,
            self._room,
            need,
            candidates=givers,
            reluctance_gpu_s=self._reluctance,
            within=right & self._open,
            at_most=self._limits.max_victims,
        )
        return () if isinstance(chosen, str) else chosen

    def _all_go_on(self, row: int, givers: tuple[int, ...], room: FreeResources) -> bool:
        """True if each of *givers* has room on its type once the job at *row* has left."""
        if givers:
            room.release(self._snap, row)
        for giver in givers:
            types = self._context.types(giver)
            need = narrowed(self._need(giver, self._shapes(giver)[0]), types)
            nodes = room.place(narrowed(need, self._context.within(giver)), within=self._open)
            if types is None or nodes is None:
                return False
            room.take(need, nodes)
        return True

    def _handover(
        self,
        handover_id: HandoverId,
        row: int,
        shape: Shape | None,
        nodes: NodeRows,
        givers: tuple[int, ...],
    ) -> Handover:
        snap = self._snap
        self._open[nodes] = False  # Two reservations of ours never overlap.
        for giver in givers:  # What else they free is there only once they have stopped.
            self._open[snap.seen.held.nodes_of(giver)] = False
        names = tuple(snap.seen.nodes.name[n] for n in sorted(nodes.tolist()))
        victims = (victim_of(snap, row, shape), *(victim_of(snap, giver) for giver in givers))
        self._busy |= {victim.run.job_id for victim in victims}
        return Handover(
            handover_id=handover_id,
            opened_s=snap.now_s,
            beneficiaries=(),
            victims=victims,
            nodes=names,
            purpose="reshape",
            seats=names,
        )


def _not_before_s(snap: Snapshot, rows: Rows, base_s: float) -> F64:
    """``(len(rows),)`` when each job may be moved again, epoch seconds, if a move was in vain.

    Not before it has been there for twice as long as when the move failed, so each pause is about
    twice as long as the one before.
    """
    failed_s = snap.memory.last_fruitless_s[rows]
    pause_s = np.maximum(base_s, failed_s - snap.memory.first_run_s[rows])
    not_before_s: F64 = np.where(failed_s > 0, failed_s + pause_s, -np.inf)
    return not_before_s
