"""The decision: a frozen snapshot and a policy in, a plan out. No clock, no I/O, no memory.

The daemon and the simulator call the same function; dry run is not applying its result.
"""

from __future__ import annotations

import numpy as np

from slurm_dl.engine.circuit_breakers import bounded, stopped, tripped, trips
from slurm_dl.engine.intent import intend, staying
from slurm_dl.engine.leases import LEASED, bounded_by_leases, lease_of, next_end_s, under_lease
from slurm_dl.engine.placing.eligible_nodes import nodes_of_chosen_type
from slurm_dl.engine.placing.gpu_sharing import with_shares
from slurm_dl.engine.placing.guarantees import guarantee
from slurm_dl.engine.placing.place_waiting import place_notes, place_waiting, with_settling
from slurm_dl.engine.placing.steering import cleared_for, steering
from slurm_dl.engine.placing.trim_requests import trims
from slurm_dl.engine.preemption.eligibility import WAITS_FOR
from slurm_dl.engine.preemption.external_mode import ExternalEngine
from slurm_dl.engine.preemption.mode import DecisionContext, Engine, PreemptionSteps
from slurm_dl.engine.preemption.native_mode import NativeEngine
from slurm_dl.engine.priority_levels import at_rest, in_levels, preempts_by_levels
from slurm_dl.engine.settings import External, Native, Settings
from slurm_dl.engine.site_factors import wanted_site_factor
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import I16, Held, JobState
from slurm_dl.model.plan import CloseHandover, OpenHandover, Plan, Promote
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Order, Policy


def engine_of(settings: Settings) -> Engine:
    """The way of taking GPUs back that *settings* name."""
    match settings.mode:
        case External():
            return ExternalEngine(settings)
        case Native(qos=qos):
            return NativeEngine(settings, qos)


def decide(snap: Snapshot, policy: Policy, settings: Settings) -> Plan:
    """Everything that is to be done now, in order, with reasons.

    Equal snapshots give equal plans, whatever order the jobs are listed in.
    """
    jobs = snap.jobs
    lease_s = lease_of(policy)
    settings = bounded_by_leases(settings) if lease_s else settings
    tripping = trips(snap, settings)
    settings = stopped(bounded(snap, settings), [*tripped(snap), *tripping])
    engine = engine_of(settings)
    guaranteed = guarantee(snap, policy, settings)
    policy, placement = guaranteed.policy, guaranteed.placement
    restart_s = settings.preemption.checkpoint_cost_s
    candidates = guaranteed.shielded(engine.candidates(snap))
    if lease_s and guaranteed.promise is None:
        # Who is guaranteed nodes need not wait for the end of a lease.
        kept = under_lease(snap, lease_s, settings.lease_window * lease_s)
        candidates = candidates.sparing(kept, LEASED)
    soon = with_settling(snap, placement)
    intent = staying(
        snap, intend(soon, policy, candidates.staying, lease_s=lease_s, restart_s=restart_s)
    )
    policy_order = intent.order
    intent = in_levels(snap, policy, intent, candidates.staying)
    order, rank = intent.order, intent.rank()
    types = nodes_of_chosen_type(snap, intent)
    bands = wanted_site_factor(order, settings)
    if order is not policy_order and isinstance(settings.mode, External):
        bands = at_rest(snap, bands, order, settings.band_width)
    context = DecisionContext(
        snap=snap,
        preempts=preempts_by_levels(policy),
        intent=intent,
        bands=bands,
        candidates=candidates,
        within=guaranteed.within,
        types=types,
    )
    preemption = engine.preemption_steps(context)
    if begun := [s.handover for s in preemption.steps if isinstance(s, OpenHandover)]:
        tripping = trips(snap, settings, begun)
        if tripping:
            # Nothing is begun by the decision that would have passed a bound either.
            preemption = engine_of(stopped(settings, tripping)).preemption_steps(context)
    rows = jobs.row_of()
    open_ones = _open_after(snap, preemption)
    gaining = frozenset(job for handover in open_ones for job in handover.beneficiaries)
    reserved = gaining | frozenset(job for handover in open_ones for job in handover.moved)
    # Who moves to sealed nodes may have been kept from them for its last run.
    sealed_for = gaining | frozenset(j for h in open_ones if h.beneficiaries for j in h.moved)
    placed = place_waiting(snap, intent.ranked, reserved, placement, types)
    how = settings.placement
    placed = with_shares(snap, intent.ranked, reserved, how, placed)
    steers = steering(snap, rows, placed, reserved, how)
    places = place_notes(snap, placed)
    notes = guaranteed.notes(snap, {**preemption.notes, **places})
    for row in np.flatnonzero((jobs.state == JobState.PENDING) & (jobs.held != Held.NO)).tolist():
        job_id = JobId(int(jobs.job_id[row]))
        if rank[row] >= 0 and job_id not in places:
            notes[job_id] = WAITS_FOR[Held(int(jobs.held[row]))]
    for job_id in preemption.unhonoured:
        notes[job_id] = "Slurm leaves its SiteFactor out (was its priority set by hand?)"
    return Plan(
        tier=_only(order.tier, rank >= 0),
        rank=rank,
        key=order.key,
        target=frozenset(JobId(j) for j in jobs.job_id[intent.target].tolist()),
        actions=(
            *tripping,
            *_promotions(snap, order),
            *cleared_for(snap, rows, sealed_for, how),
            *preemption.steps,
            *steers,
            *(trims(snap, intent.ranked, reserved, how.window) if how.trim else ()),
            *preemption.writes,
        ),
        notes=notes,
        unhonoured=preemption.unhonoured,
        wake_at_s=min(
            next_end_s(snap.now_s, lease_s),
            policy.next_change_s(
                snap,
                policy_order,
                (jobs.state == JobState.RUNNING) & (jobs.gpus > 0) & snap.is_managed(),
            ),
        ),
        share=None if order.share is None else order.share * (rank >= 0)[:, None],
        lease_s=lease_s,
    )


def _open_after(snap: Snapshot, preemption: PreemptionSteps) -> list[Handover]:
    """The hand-overs that are under way once *preemption* is done."""
    opened = [step.handover for step in preemption.steps if isinstance(step, OpenHandover)]
    closed = {step.handover_id for step in preemption.steps if isinstance(step, CloseHandover)}
    return [h for h in (*snap.handovers, *opened) if h.handover_id not in closed]


def _promotions(snap: Snapshot, order: Order) -> list[Promote]:
    rows = np.flatnonzero(order.promote & snap.is_managed())
    return [
        Promote(
            job_id=JobId(int(snap.jobs.job_id[row])),
            why="it has waited long for the service it has had (promotion)",
        )
        for row in rows.tolist()
    ]


def _only(tier: I16, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> I16:
    masked: I16 = np.where(mask, tier, np.int16(-1)).astype(np.int16)
    return masked
