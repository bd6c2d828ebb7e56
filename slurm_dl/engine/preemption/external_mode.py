"""The daemon takes GPUs back: hand-overs, brought on step by step and begun where they are due.

The other way is `native_mode`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_dl.engine.preemption.defragmentation import defragment
from slurm_dl.engine.preemption.eligibility import Victims, victims, waiting
from slurm_dl.engine.preemption.handover_context import HandoverContext
from slurm_dl.engine.preemption.handover_protocol import name_jobs, next_steps, strays
from slurm_dl.engine.preemption.mode import DecisionContext, PreemptionSteps
from slurm_dl.engine.preemption.new_handovers import JobRanking, new_handovers
from slurm_dl.engine.preemption.unpack_pairs import split
from slurm_dl.engine.settings import Settings
from slurm_dl.engine.site_factors import in_window, site_factor_writes, unhonoured
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import Action, OpenHandover, SetSiteFactor
from slurm_dl.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class ExternalEngine:
    """Signal, wait, requeue; see `handover_protocol` for the order of the steps."""

    settings: Settings

    def recount(self, snap: Snapshot, /) -> Snapshot:
        """*snap*: the ledger counts our own preemptions."""
        return snap

    def candidates(self, snap: Snapshot, /) -> Victims:
        """Who may be preempted; see `Engine`."""
        return victims(snap, self.settings.preemption)

    def preemption_steps(self, context: DecisionContext, /) -> PreemptionSteps:
        """Next steps of all hand-overs, new ones, and the SiteFactors; see `Engine`."""
        snap, settings, intent = context.snap, self.settings, context.intent
        jobs, order, ranked = snap.jobs, intent.order, intent.ranked
        # Who may displace nobody takes nobody's GPUs: to the search all are alike.
        tier = order.tier if context.preempts == "tier" else np.zeros_like(order.tier)
        rows = jobs.row_of()
        handover_context = HandoverContext(
            snap=snap,
            rows=rows,
            wanted=context.bands,
            tier=tier,
            candidates=context.candidates,
            limits=settings.preemption,
        )

        steps: list[Action] = [*strays(snap, rows)]
        for handover in snap.handovers:
            steps += next_steps(handover, handover_context)

        ready = waiting(snap)[ranked]
        target = frozenset(JobId(j) for j in jobs.job_id[intent.target].tolist())
        first = ranked[ready & in_window(snap, ranked, ready, settings.window)]
        drafts, notes = new_handovers(
            snap,
            first,
            context.candidates,
            JobRanking(
                tier=tier,
                rank=intent.rank(),
                target=target,
                within=context.within,
                types=context.types,
            ),
            settings.preemption,
        )
        # Who is confined to certain nodes has nobody moved for it elsewhere.
        free = np.array([context.within(row) is None for row in first.tolist()], dtype=np.bool_)
        moves, more = defragment(
            snap, first[free], context.candidates, drafts, settings, within=context.within
        )
        notes |= more
        if moves is not None:
            drafts = [*drafts, moves]
        splits, more = split(snap, [*snap.handovers, *drafts], settings)
        notes |= more
        drafts = [*drafts, *splits]
        for draft in drafts:
            steps.append(OpenHandover(handover=draft, why=_why_open(draft)))
            steps += next_steps(draft, handover_context)

        lowered = {a.job_id for a in steps if isinstance(a, SetSiteFactor)}
        writes = site_factor_writes(snap, ranked, context.bands, settings)
        return PreemptionSteps(
            steps=tuple(steps),
            writes=tuple(w for w in writes if w.job_id not in lowered),
            notes=notes,
            unhonoured=unhonoured(
                snap, ranked[jobs.state[ranked] == JobState.PENDING], settings.band_width
            ),
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
    victims_named = name_jobs([v.run.job_id for v in handover.victims])
    if handover.purpose == "split":
        models = " and ".join(handover.apart * (3 - len(handover.apart)))
        return f"{models} on one GPU are slower than taking turns: {victims_named} leaves"
    return f"room for {name_jobs(handover.beneficiaries)}, ranking above {victims_named}"
