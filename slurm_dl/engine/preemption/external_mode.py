"""The daemon takes GPUs back: hand-overs, brought on step by step and begun where they are due.

The other way is `native_mode`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from slurm_dl.engine.placing.eligible_nodes import anywhere
from slurm_dl.engine.preemption.defragmentation import defragment
from slurm_dl.engine.preemption.eligibility import Victims, victims, waiting
from slurm_dl.engine.preemption.growth import growths
from slurm_dl.engine.preemption.handover_context import DisplacementRule, HandoverContext
from slurm_dl.engine.preemption.handover_protocol import name_jobs, steps_of, strays
from slurm_dl.engine.preemption.handover_verdicts import judge
from slurm_dl.engine.preemption.host_shares import give_backs
from slurm_dl.engine.preemption.mode import DecisionContext, Handovers, PreemptionSteps
from slurm_dl.engine.preemption.new_handovers import JobRanking, new_handovers
from slurm_dl.engine.preemption.type_changes import type_changes
from slurm_dl.engine.preemption.unpack_pairs import split
from slurm_dl.engine.settings import Settings
from slurm_dl.engine.site_factors import in_window, site_factor_writes, undone
from slurm_dl.model.handover import Handover, Victim
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, PENDING, is_in
from slurm_dl.model.plan import Action, OpenHandover, SetSiteFactor
from slurm_dl.model.snapshot import Snapshot


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
        drafts = [*drafts, *give_backs(context, first, [*snap.handovers, *drafts], settings)]
        splits, more = split(snap, [*snap.handovers, *drafts], settings)
        drafts = [*drafts, *splits]
        drafts += type_changes(context, [*snap.handovers, *drafts], settings)
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
            f"job {v.run.job_id} goes on in the size {v.then}"
            if v.then is not None
            else f"job {v.run.job_id} goes on on another type of GPUs"
            for v in handover.victims
        )
    if handover.purpose == "reshape":
        (mover,) = handover.victims
        return f"job {mover.run.job_id} moved to faster GPUs that are free"
    victims_named = name_jobs([v.run.job_id for v in handover.victims])
    if handover.purpose == "trim":
        return (
            f"{name_jobs(handover.beneficiaries)} fits beside {victims_named} with the CPUs and "
            "memory that go with their GPUs"
        )
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
