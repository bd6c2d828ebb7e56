"""The daemon takes GPUs back: hand-overs, brought on step by step and begun where they are due.

The other way is `native_mode`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from slurm_dl.engine.intent import Intent
from slurm_dl.engine.placing.eligible_nodes import EligibleNodes, anywhere, narrowed
from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.placing.place_waiting import named, sealed_nodes
from slurm_dl.engine.preemption.defragmentation import defragment
from slurm_dl.engine.preemption.eligibility import Victims, victims, waiting
from slurm_dl.engine.preemption.growth import growths
from slurm_dl.engine.preemption.handover_context import DisplacementRule, HandoverContext
from slurm_dl.engine.preemption.handover_protocol import name_jobs, steps_of, strays
from slurm_dl.engine.preemption.handover_verdicts import judge
from slurm_dl.engine.preemption.mode import DecisionContext, Handovers, PreemptionSteps
from slurm_dl.engine.preemption.new_handovers import JobRanking, new_handovers, next_id, victim_of
from slurm_dl.engine.preemption.unpack_pairs import split
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.engine.site_factors import in_window, site_factor_writes, undone
from slurm_dl.engine.target import Rows
from slurm_dl.engine.waiting_sizes import at_shapes, shape_of
from slurm_dl.model.handover import Handover, Victim
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import COMPLETING, F64, I16, PENDING, is_in
from slurm_dl.model.plan import Action, OpenHandover, SetSiteFactor
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import ResourceRequests
from slurm_dl.policies.arithmetic.supply_and_demand import type_held


@dataclass(frozen=True, slots=True)
class ExternalEngine:
    """Signal, wait, requeue; see `handover_protocol` for the order of the steps."""

    settings: Settings

    def recount(self, snap: Snapshot, /) -> Snapshot:
        """*snap*: the ledger counts our own preemptions."""
        return snap

    def undone(self, snap: Snapshot, /) -> tuple[JobId, ...]:
        """Waiting jobs; see `Engine`."""
        waits = snap.managed_jobs & (snap.jobs.state == PENDING)
        return undone(snap, waits.nonzero()[0], self.settings.band_width)

    def candidates(self, snap: Snapshot, /) -> Victims:
        """Jobs that may be preempted; see `Engine`."""
        return victims(snap, self.settings.preemption)

    def handovers(self, context: DecisionContext, /) -> Handovers:
        """Verdicts on all hand-overs, and new ones; see `Engine`."""
        settings, intent, rule = self.settings, context.intent, _rule(context)
        judged = HandoverContext(
            snap=context.snap,
            needs=context.needs,
            free=context.free,
            rule=rule,
            candidates=context.candidates,
            limits=settings.preemption,
        )
        verdicts = {h.handover_id: judge(h, judged) for h in context.snap.handovers}
        # Whose hand-over has lost its nodes is looked after anew, in this same decision.
        kept = tuple(h for h in context.snap.handovers if not verdicts[h.handover_id].lost)
        snap = dataclasses.replace(context.snap, handovers=kept)
        jobs, ranked = snap.jobs, context.served
        ready = waiting(snap)[ranked] & ~is_in(ranked, context.unsized)
        surplus, in_target = context.surplus, intent.target
        if surplus is not None:
            # Who is to give GPUs back does not come last.
            in_target = in_target[~is_in(in_target, surplus.wanted)]
        target = frozenset(JobId(j) for j in jobs.job_id[in_target].tolist())
        first = ranked[ready & in_window(snap, ranked, ready, settings.window)]
        drafts, notes = new_handovers(
            snap,
            first,
            context.candidates,
            JobRanking(
                rule=rule,
                rank=intent.rank(),
                placed=context.line.site_factors > 0,
                target=target,
                within=context.within,
                not_kept=anywhere if context.higher is None else context.higher.within,
                types=context.types,
                surplus=surplus,
            ),
            settings,
        )
        # Who is confined to certain nodes has nobody moved for it elsewhere.
        free = np.array([context.within(row) is None for row in first.tolist()], dtype=np.bool_)
        moves, more = defragment(
            snap,
            first[free],
            context.candidates,
            drafts,
            settings,
            may_displace=context.may_displace,
            within=context.within,
            idle=not len(first),
        )
        notes |= more
        if moves is not None:
            drafts = [*drafts, moves]
        splits, more = split(snap, [*snap.handovers, *drafts], settings)
        drafts = [*drafts, *splits]
        drafts += upgrades(
            snap,
            intent,
            context.candidates,
            [*snap.handovers, *drafts],
            settings.preemption,
            # A site that steers no job to a type moves none there either.
            types=context.types if settings.placement.steer else anywhere,
            within=context.within,
        )
        drafts += growths(context, [*snap.handovers, *drafts], settings)
        return Handovers(
            judged=judged,
            verdicts=verdicts | {h.handover_id: judge(h, judged) for h in drafts},
            opened=tuple(drafts),
            notes=notes | more,
        )

    def preemption_steps(
        self, context: DecisionContext, handovers: Handovers, /
    ) -> PreemptionSteps:
        """The next steps of all hand-overs, and the SiteFactors; see `Engine`."""
        snap, settings, ranked = context.snap, self.settings, context.served
        wanted = context.line.site_factors
        # A victim must not start again before its turn: its place is found once it waits.
        runs = (snap.jobs.state > PENDING) & (snap.jobs.state < COMPLETING)
        meanwhile = np.where(runs, 0, wanted)
        steps: list[Action] = [*strays(snap, context.snap.jobs.rows)]
        judged, verdicts = handovers.judged, handovers.verdicts
        for handover in snap.handovers:
            steps += steps_of(handover, verdicts[handover.handover_id], judged, meanwhile)
        for handover in handovers.opened:
            steps.append(OpenHandover(handover=handover, why=_why_open(handover)))
            steps += steps_of(handover, verdicts[handover.handover_id], judged, meanwhile)
        lowered = {a.job_id for a in steps if isinstance(a, SetSiteFactor)}
        writes = site_factor_writes(snap, ranked, wanted, settings)
        return PreemptionSteps(
            steps=tuple(steps),
            writes=tuple(w for w in writes if w.job_id not in lowered),
            notes=handovers.notes,
        )


def _rule(context: DecisionContext) -> DisplacementRule:
    target = np.zeros(len(context.snap.jobs), dtype=np.bool_)
    target[context.intent.target] = True
    lent = None
    if context.surplus is not None and len(context.surplus.rows):
        lent = np.zeros(len(context.snap.jobs), dtype=np.bool_)
        lent[context.surplus.rows] = True
    return DisplacementRule(
        lent=lent,
        target=target,
        tier=context.intent.order.tier,
        # Where nodes are guaranteed only guaranteed jobs displace others, and those are a tier.
        by_target=context.preempts != "never" and context.guaranteed is None,
        by_tier=context.preempts == "tier",
        may=context.may_displace,
        priority_tier=context.snap.priority_tiers(),
    )


def _why_open(handover: Handover) -> str:
    if handover.purpose == "defragment":
        moved = name_jobs([v.run.job_id for v in handover.victims])
        what = (
            f"{name_jobs(handover.beneficiaries)} will fit"
            if handover.beneficiaries
            else "a whole node will be free"
        )
        return f"{moved} moved elsewhere, so that {what}"
    if handover.purpose == "reshape" and handover.resizes:
        return ", ".join(
            f"job {v.run.job_id} goes on in the size {v.then}" for v in handover.victims
        )
    if handover.purpose == "reshape":
        (mover,) = handover.victims
        return f"job {mover.run.job_id} moved to faster GPUs that are free"
    victims_named = name_jobs([v.run.job_id for v in handover.victims])
    if handover.purpose == "split":
        models = " and ".join(handover.apart * (3 - len(handover.apart)))
        return f"{models} on one GPU are slower than taking turns: {victims_named} leaves"
    leave = [v.run.job_id for v in handover.victims if v.then is None]
    gives = [
        f"job {v.run.job_id} gives {_given(v)} back" for v in handover.victims if v.then is not None
    ]
    above = [f"ranking above {name_jobs(leave)}"] if leave else []
    return ", ".join([f"room for {name_jobs(handover.beneficiaries)}", *above, *gives])


def _given(victim: Victim) -> str:
    if victim.then is None or not victim.stays:
        return f"{victim.gives_gpus:g} of its {victim.gpus:g} GPUs"
    kept = len(victim.stays)
    held = round(kept * victim.gpus / (victim.gpus - victim.gives_gpus))
    return f"{held - kept} of its {held} nodes"


def upgrades(
    snap: Snapshot,
    intent: Intent,
    candidates: Victims,
    under_way: Collection[Handover],
    limits: Preemption,
    *,
    types: EligibleNodes = anywhere,
    within: EligibleNodes = anywhere,
) -> list[Handover]:
    """Hand-overs that move running jobs to free GPUs of a faster type, largest saving first.

    They lose a save and a restore, and gain. A policy that tells GPU types apart says on which type
    each job had best run. A job that runs on a slower one stays there until another job wants its
    GPUs, or until GPUs of the better type are free: then it is moved, at the end of its lease and
    under all limits of a preemption, if what is left of its work is done sooner by more than the
    restart takes. No job waits for what is taken from it. An elastic job goes on there in the size
    that it should have, or the largest smaller one that has room.

    Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning
    Workloads" (Gavel), OSDI 2020, section 5: each round places jobs anew, whether or not others
    wait.

    Args:
        intent: Types and sizes that jobs should have.
        under_way: Hand-overs that are under way or begin; their nodes are spoken for.
        types: Nodes of the type that the policy chose for a job.
        within: Nodes on which the job at a row may be.
    """
    kind = intent.kind
    if kind is None or snap.rates is None or types is anywhere or not limits.enabled:
        return []
    rows, saves_s = _worth_it(snap, kind, candidates, under_way, limits)
    if not len(rows):
        return []
    seats = named(snap.seen.nodes, {name for h in under_way for name in h.seats})
    open_ = ~(sealed_nodes(snap, under_way) | seats)
    available = FreeResources.free_in(snap)
    most_gpus = min(limits.max_gpus_per_hour or math.inf, limits.most_gpus)
    gpus = snap.preempted_gpus_last_hour if limits.max_gpus_per_hour else 0.0
    first = next_id(snap, under_way)
    moves: list[Handover] = []
    counted = snap.seen.weighted_gpus()
    for row in rows[np.lexsort((snap.jobs.job_id[rows], -saves_s))].tolist():
        if len(under_way) + len(moves) >= limits.max_handovers:
            break
        right = types(row)
        if right is None or gpus + float(counted[row]) > most_gpus:
            continue
        for shape in _sizes_there(snap, intent, row):
            there = snap if shape is None else at_shapes(snap, {row: shape})
            need = narrowed(ResourceRequests(there).of(row), within(row))
            nodes = available.place(need, within=right & open_)
            if nodes is not None:
                break
        else:
            continue
        available.take(need, nodes)
        gpus += float(counted[row])
        open_[nodes] = False  # Two reservations of ours never overlap.
        names = tuple(snap.seen.nodes.name[n] for n in sorted(nodes.tolist()))
        moves.append(
            Handover(
                handover_id=HandoverId(first + len(moves)),
                opened_s=snap.now_s,
                beneficiaries=(),
                victims=(victim_of(snap, row, shape),),
                nodes=names,
                purpose="reshape",
                seats=names,
            )
        )
    return moves


def _sizes_there(snap: Snapshot, intent: Intent, row: int) -> list[Shape | None]:
    """Sizes for the job at *row* on another type, the best first; None: the one it has."""
    sizes, size = snap.sizes, intent.size
    if sizes is None or size is None or size[row] < 0:
        return [None]
    return [shape_of(sizes, i) for i in range(int(size[row]), sizes.of(row).start - 1, -1)]


def _worth_it(
    snap: Snapshot,
    kind: I16,
    candidates: Victims,
    under_way: Collection[Handover],
    limits: Preemption,
) -> tuple[Rows, F64]:
    """Rows of the jobs that gain by moving, and what each saves, seconds."""
    jobs, rates = snap.jobs, snap.rates
    held = type_held(snap.seen, snap.on_type)
    rows = candidates.may
    rows = rows[(held[rows] >= 0) & (kind[rows] >= 0) & (held[rows] != kind[rows])]
    busy = {v.run.job_id for h in under_way for v in h.victims}
    rows = rows[~np.isin(jobs.job_id[rows], list(busy))]
    rows = rows[snap.now_s >= _not_before_s(snap, rows, limits.handover_timeout_s)]
    if rates is None or not len(rows):
        return rows[:0], np.zeros(0)
    old, new = rates[rows, held[rows]], rates[rows, kind[rows]]
    with np.errstate(divide="ignore", invalid="ignore"):
        saves_s: F64 = snap.left_s[rows] * (1 / old - 1 / new)
    worth = saves_s > limits.checkpoint_cost_s
    return rows[worth], saves_s[worth]


def _not_before_s(snap: Snapshot, rows: Rows, base_s: float) -> F64:
    """``(len(rows),)`` when each job may be moved again, epoch seconds, if a move was in vain.

    Not before it has been there for twice as long as when the move failed, so each pause is about
    twice as long as the one before.
    """
    failed_s = snap.memory.last_fruitless_s[rows]
    pause_s = np.maximum(base_s, failed_s - snap.memory.first_run_s[rows])
    not_before_s: F64 = np.where(failed_s > 0, failed_s + pause_s, -np.inf)
    return not_before_s
