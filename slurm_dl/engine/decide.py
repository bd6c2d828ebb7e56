"""The decision: a frozen snapshot and a policy in, a plan out. No clock, no I/O, no memory.

The daemon and the simulator call the same function; dry run is not applying its result.
"""

from __future__ import annotations

import numpy as np

from slurm_dl.engine.guard import WAITS_FOR, victims, waiting
from slurm_dl.engine.intent import intend
from slurm_dl.engine.preempt import Standing, new_handovers
from slurm_dl.engine.protocol import Scene, name_jobs, next_steps, strays
from slurm_dl.engine.settings import Settings
from slurm_dl.engine.site_factors import (
    in_window,
    site_factor_writes,
    unhonoured,
    wanted_site_factor,
)
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import I16, Held, JobState
from slurm_dl.model.plan import Action, OpenHandover, Plan, Promote, SetSiteFactor
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Order, Policy


def decide(snap: Snapshot, policy: Policy, settings: Settings) -> Plan:
    """Everything that is to be done now, in order, with reasons.

    Equal snapshots give equal plans, whatever order the jobs are listed in.
    """
    jobs = snap.jobs
    candidates = victims(snap, settings.preemption)
    intent = intend(snap, policy, candidates.protected)
    order, ranked, rank = intent.order, intent.ranked, intent.rank()
    target = frozenset(JobId(j) for j in jobs.job_id[intent.target].tolist())
    wanted = wanted_site_factor(order, settings)
    # Who may displace nobody takes nobody's GPUs: to the search all are alike.
    tier = order.tier if policy.preempts == "tier" else np.zeros_like(order.tier)
    rows = jobs.row_of()
    scene = Scene(
        snap=snap,
        rows=rows,
        wanted=wanted,
        tier=tier,
        candidates=candidates,
        limits=settings.preemption,
    )

    steps: list[Action] = [*strays(snap, rows)]
    for handover in snap.handovers:
        steps += next_steps(handover, scene)

    ready = waiting(snap)[ranked]
    drafts, notes = new_handovers(
        snap,
        ranked[ready & in_window(snap, ranked, ready, settings.window)],
        candidates,
        Standing(tier=tier, rank=rank, target=target),
        settings.preemption,
    )
    for draft in drafts:
        steps.append(OpenHandover(handover=draft, why=_why_open(draft)))
        steps += next_steps(draft, scene)

    lowered = {a.job_id for a in steps if isinstance(a, SetSiteFactor)}
    writes = [
        w for w in site_factor_writes(snap, ranked, wanted, settings) if w.job_id not in lowered
    ]
    actions = (*_promotions(snap, order), *steps, *writes)
    for row in np.flatnonzero((jobs.state == JobState.PENDING) & (jobs.held != Held.NO)).tolist():
        if rank[row] >= 0:
            notes[JobId(int(jobs.job_id[row]))] = WAITS_FOR[Held(int(jobs.held[row]))]
    ignored = unhonoured(snap, ranked, settings.band_width)
    for job_id in ignored:
        notes[job_id] = "Slurm leaves its SiteFactor out (was its priority set by hand?)"
    return Plan(
        tier=_only(order.tier, rank >= 0),
        rank=rank,
        key=order.key,
        target=target,
        actions=actions,
        notes=notes,
        unhonoured=ignored,
        wake_at_s=policy.next_change_s(
            snap, order, (jobs.state == JobState.RUNNING) & (jobs.gpus > 0) & snap.is_managed()
        ),
    )


def _promotions(snap: Snapshot, order: Order) -> list[Promote]:
    rows = np.flatnonzero(order.promote & snap.is_managed())
    return [
        Promote(
            job_id=JobId(int(snap.jobs.job_id[row])),
            why="it has waited long for the service it has had (promotion)",
        )
        for row in rows.tolist()
    ]


def _why_open(handover: Handover) -> str:
    victims_named = name_jobs([v.run.job_id for v in handover.victims])
    return f"room for {name_jobs(handover.beneficiaries)}, ranking above {victims_named}"


def _only(tier: I16, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> I16:
    masked: I16 = np.where(mask, tier, np.int16(-1)).astype(np.int16)
    return masked
