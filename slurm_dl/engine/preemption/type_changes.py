"""Hand-overs that move running jobs to GPUs of a faster type: free ones, or in exchange.

No job waits for what is taken. A policy that tells GPU types apart says on which type each job had
best run. A job that runs on a slower one stays there until another job wants its GPUs, or until it
can be moved under all limits of a preemption, if what is left of its work is done sooner by more
than the restart takes.

*In exchange*: elastic jobs that should be on another type make room for it, and start again on the
type that is theirs, where there must be room for them once all have stopped. Jobs that should hold
no GPUs now make room, too, and wait.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning
Workloads" (Gavel), OSDI 2020, section 5: each round places jobs anew, whether or not others wait.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from slurm_dl.engine.placing.eligible_nodes import anywhere, narrowed
from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.preemption.growth import ReshapeWalk
from slurm_dl.engine.preemption.mode import DecisionContext
from slurm_dl.engine.preemption.new_handovers import victim_of
from slurm_dl.engine.settings import Settings
from slurm_dl.engine.sized_target import speed_on
from slurm_dl.engine.target import Rows
from slurm_dl.engine.waiting_sizes import need_in, shape_of
from slurm_dl.model.handover import Handover
from slurm_dl.model.jobs import F64, I16, I32, Bool
from slurm_dl.model.sizes import AS_ASKED, NOT_NOW
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import ResourceRequest
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
    # A site that steers no job to a type moves none there either.
    steers = settings.placement.steer and context.types is not anywhere
    if context.intent.kind is None or not steers or not settings.preemption.enabled:
        return []
    walk = _TypeChanges(context, context.intent.kind, under_way, settings)
    return walk.handovers(walk.rows)


class _TypeChanges(ReshapeWalk):
    def __init__(
        self,
        context: DecisionContext,
        kind: I16,
        under_way: Collection[Handover],
        settings: Settings,
    ) -> None:
        super().__init__(context, under_way, settings)
        snap, limits, size = context.snap, settings.preemption, context.intent.size
        self._over, self._kind, self._rates = snap, kind, rates_of(snap)
        self._held = type_held(snap.seen, snap.on_type)
        every = self._free(context.candidates.may)
        every = every[self._held[every] >= 0]
        rows = every[(kind[every] >= 0) & (self._held[every] != kind[every])]
        self._size: I32 = np.full(len(snap.jobs), AS_ASKED, np.int32) if size is None else size
        # They start again in a size of theirs, or wait if they are to hold no GPUs now.
        wants = context.intent.order.size
        waits = every[:0] if wants is None else every[wants[every] == NOT_NOW]
        self._givers = np.union1d(rows[self._size[rows] >= 0], waits)
        self._room = FreeResources.free_in(snap)
        self._weighted = snap.seen.weighted_gpus()
        rows = rows[snap.now_s >= _not_before_s(snap, rows, limits.handover_timeout_s)]
        saves_s = np.array([self._saves_s(row) for row in rows.tolist()], dtype=np.float64)
        worth = saves_s > limits.checkpoint_cost_s
        rows, saves_s = rows[worth], saves_s[worth]
        self.rows: list[int] = rows[np.lexsort((snap.jobs.job_id[rows], -saves_s))].tolist()
        """Those that gain by moving, the one first that saves most."""

    def _saves_s(self, row: int) -> float:
        """Seconds that the job saves of what is left."""
        snap, now, then = self._snap, int(self._size[row]), int(self._size[row])
        if snap.sizes is not None and now >= 0:
            now = snap.sizes.held(row, float(snap.jobs.gpus[row]), int(snap.jobs.n_nodes[row]))
        old = speed_on(snap, self._rates, row, now, int(self._held[row]))
        new = speed_on(snap, self._rates, row, then, int(self._kind[row]))
        # Of endless time, too, equal speeds save nothing.
        if old == new:
            return 0.0
        return float(snap.left_s[row]) * (1 / old - 1 / new) if old else math.inf

    def _visit(self, row: int) -> None:
        """Move the job at *row*."""
        snap, right = self._snap, self._context.types(row)
        if right is None or snap.jobs.job_id[row] in self._busy:
            return
        for i in self._down(row):
            need = narrowed(need_in(snap, row, i), self._context.within(row))
            for givers in self._ways(row, need, right):
                room = self._room.copy()
                for giver in givers:
                    room.release(snap, giver)
                nodes = room.place(need, within=right & self._open)
                gives = float(self._weighted[[row, *givers]].sum())
                if nodes is None or gives > self._gpus_left:
                    continue
                room.take(need, nodes)
                if not self._all_go_on(row, givers, room.copy()):
                    continue
                self._gpus_left -= gives
                self._room = room
                shape = None if snap.sizes is None or i < 0 else shape_of(snap.sizes, i)
                victims = [victim_of(snap, row, shape), *(victim_of(snap, g) for g in givers)]
                self._begin(victims, nodes, nodes)
                for giver in givers:  # What else they free is there only once they have stopped.
                    self._open[snap.seen.held.nodes_of(giver)] = False
                return

    def _down(self, row: int) -> range:
        """Sizes of the job on the other type, the best first."""
        size, sizes = int(self._size[row]), self._snap.sizes
        return range(AS_ASKED, NOT_NOW, -1) if sizes is None else sizes.down_from(row, size)

    def _ways(self, row: int, need: ResourceRequest, right: Bool) -> Iterator[tuple[int, ...]]:
        """Nobody, and jobs that hold the right type, should not, and together make room."""
        yield ()
        givers = self._givers[self._held[self._givers] == self._kind[row]]
        if self._size[row] >= 0 and (
            chosen := self._victims(self._room, need, givers, right & self._open)
        ):
            yield chosen

    def _all_go_on(self, row: int, givers: tuple[int, ...], room: FreeResources) -> bool:
        """True if each of *givers* has room on its type once the job at *row* has left."""
        if givers:
            room.release(self._snap, row)
        for giver in givers:
            if self._kind[giver] < 0:
                continue
            types = self._context.types(giver)
            need = narrowed(need_in(self._snap, giver, self._down(giver)[0]), types)
            nodes = room.place(narrowed(need, self._context.within(giver)), within=self._open)
            if types is None or nodes is None:
                return False
            room.take(need, nodes)
        return True


def _not_before_s(snap: Snapshot, rows: Rows, base_s: float) -> F64:
    """``(len(rows),)`` when each job may be moved again, epoch seconds, if a move was in vain.

    Not before it has been there for twice as long as when the move failed, so each pause is about
    twice as long as the one before.
    """
    failed_s = snap.memory.last_fruitless_s[rows]
    pause_s = np.maximum(base_s, failed_s - snap.memory.first_run_s[rows])
    not_before_s: F64 = np.where(failed_s > 0, failed_s + pause_s, -np.inf)
    return not_before_s
