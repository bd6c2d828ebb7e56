"""The decision: a frozen snapshot and a policy in, a plan out. No clock, no I/O, no memory.

The daemon and the simulator call the same function; dry run is not applying its result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from slurm_dl.engine.array_throttles import throttling
from slurm_dl.engine.circuit_breakers import bounded, stopped, tripped, trips
from slurm_dl.engine.explain.past_reasons import span
from slurm_dl.engine.explain.promise_reasons import booked_in_words
from slurm_dl.engine.failed_jobs import retry_failed
from slurm_dl.engine.intent import Intent, ask, places, rank_jobs, serve_ranked, staying
from slurm_dl.engine.leases import LEASED, bounded_by_leases, lease_of, next_end_s, under_lease
from slurm_dl.engine.out_of_reach import out_of_reach, without_room
from slurm_dl.engine.placing.eligible_nodes import (
    EligibleNodes,
    higher_tiers,
    in_both,
    nodes_of_chosen_type,
)
from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.placing.gpu_sharing import with_shares
from slurm_dl.engine.placing.guarantees import Guarantee, guarantee
from slurm_dl.engine.placing.hold import apart, barred_rows, in_turns, with_held
from slurm_dl.engine.placing.place_waiting import Placed, place_notes, place_waiting, with_settling
from slurm_dl.engine.placing.steering import cleared_for, steering
from slurm_dl.engine.placing.trim_requests import trims
from slurm_dl.engine.preemption.commitment import with_commitment
from slurm_dl.engine.preemption.eligibility import Victims, displacers, note_broken, waits_for
from slurm_dl.engine.preemption.external_mode import ExternalEngine
from slurm_dl.engine.preemption.mode import DecisionContext, Engine, Handovers
from slurm_dl.engine.preemption.native_mode import NativeEngine
from slurm_dl.engine.preemption.surplus import (
    Surplus,
    free_and_lent,
    lenders,
    movable,
    releasing,
    with_fixed,
)
from slurm_dl.engine.promise_terms import PROMISED, with_terms
from slurm_dl.engine.replicas import WANTED, ReplicaPlaces, replicas_in
from slurm_dl.engine.settings import External, Native, Settings
from slurm_dl.engine.shape_lock import locks_of
from slurm_dl.engine.target import NOBODY, Rows
from slurm_dl.engine.waiting_line import WaitingLine
from slurm_dl.engine.waiting_sizes import (
    at_least_sizes,
    at_shapes,
    given_back,
    last_sizes,
    live_elastic,
    moved_rows,
    note_sizes,
    reshapes,
    sizes_in,
    unsized,
    waiting_shapes,
)
from slurm_dl.model.booking import changes
from slurm_dl.model.handover import jobs_of
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import BY_HAND, F64, NOT_HELD, PENDING, RUNNING, Bool, is_in
from slurm_dl.model.pair_rates import NO_RULE
from slurm_dl.model.plan import Book, Plan, Promote, Reshape, SetSiteFactor, TripBreaker
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import ResourceRequests
from slurm_dl.policies.base import Order, Policy, displaces

_UNDONE = (
    "Slurm does not count its place (SiteFactor): a backfill pass has undone it; it is written "
    "again"
)
_UNDONE_AGAIN = (
    "Slurm does not count its place (SiteFactor) although it was written again; it is written "
    "again later"
)


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
    locks = locks_of(snap)
    shown = with_commitment(locks.snap, policy, settings.preemption)
    if isinstance(settings.mode, Native):
        shown = shown.derived(sizes=None)  # Slurm itself requeues jobs there.
    snap = at_shapes(shown, moved_rows(shown))
    replicas = replicas_in(snap)
    if replicas is not None:
        snap = snap.with_jobs(tasks=replicas.tasks)
    admitted = admit(snap, policy, settings)
    wish = want(snap, policy, admitted, replicas)
    target = aim(snap, wish, admitted)
    shapes, stuck = waiting_shapes(
        snap, target.intent, target.served, settings.window, target.types
    )
    shapes = last_sizes(snap) | shapes | given_back(snap)
    snap = at_shapes(snap, shapes)
    placed = place(snap, wish, target, settings)
    change = SizeChange(stuck=stuck, unsized=unsized(shown, shapes))
    handovers = take(snap, wish, target, admitted, change)
    plan = tell(snap, wish, placed, handovers, Shown(shown, shapes))
    return replace(plan, actions=(*locks.actions, *plan.actions)) if locks.actions else plan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Admitted:
    """Jobs that may be preempted, and the limits in force."""

    settings: Settings  # The site's settings with the limits that hold now: by leases, by breakers
    tripping: tuple[TripBreaker, ...]  # Breakers that trip now
    victims: Victims  # The managed running jobs, and which of them may be preempted
    lending: Victims | None  # Likewise, which of them may become smaller; None: none may
    lease_s: float  # Length of the policy's leases, seconds; 0 if none


def admit(snap: Snapshot, policy: Policy, settings: Settings) -> Admitted:
    """Find the jobs that may be preempted, and the limits in force."""
    lease_s = lease_of(policy)
    settings = bounded_by_leases(settings) if lease_s else settings
    tripping = trips(snap, settings)
    settings = stopped(bounded(snap, settings), [*tripped(snap), *tripping])
    return Admitted(
        settings=settings,
        tripping=tripping,
        victims=engine_of(settings).candidates(snap),
        lending=lenders(snap, settings.preemption)
        if snap.sizes is not None and settings.preemption.enabled
        else None,
        lease_s=lease_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wish:
    """The policy's order, shares and guarantees, computed once for a decision."""

    policy: Policy
    soon: Snapshot  # The snapshot in which jobs that dlsubmit put off for a moment wait for room
    policy_order: Order  # The order as the policy gave it
    guarantee: Guarantee  # What is promised, and the order with guaranteed jobs first
    ranked: Rows  # Rows of the managed live jobs, best first
    need: F64 | None  # ``(n, t)`` seconds that each job is owed; None if the policy gives no shares
    lease_s: float  # Length of the policy's leases, seconds; 0 if none
    replicas: ReplicaPlaces | None = None  # Replicas of services; None: the site has none


def want(
    snap: Snapshot, policy: Policy, admitted: Admitted, replicas: ReplicaPlaces | None = None
) -> Wish:
    """The policy's order behind the replicas of services, with what jobs are guaranteed."""
    settings = admitted.settings
    holds = (settings.hold and bool(policy.about.idles)) or snap.sizes is not None
    soon = with_settling(snap, settings.placement, holds=holds)
    soon = with_terms(soon, policy, settings, admitted.victims)
    if "sizes" in policy.about.needs:
        enabled = settings.preemption.enabled
        soon = with_fixed(soon, admitted.victims, admitted.lending, preempts=enabled)
    order, need = ask(soon, policy, admitted.lease_s, settings.preemption.checkpoint_cost_s)
    preempts, ahead = displaces(policy), order
    if replicas is not None:
        order, need = replicas.within(order), replicas.owed(need)
        ahead, preempts = replicas.before_batch(order, preempts)
    guaranteed = guarantee(snap, ahead, preempts, settings)
    return Wish(
        policy=policy,
        soon=soon,
        policy_order=order,
        guarantee=guaranteed,
        ranked=rank_jobs(soon, guaranteed.order, guaranteed.preempts),
        need=need,
        lease_s=admitted.lease_s,
        replicas=replicas,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """The jobs that should hold GPUs now.

    Attributes:
        line: The waiting jobs in the order in which Slurm is to serve them; native mode has none.
    """

    intent: Intent  # The policy's order and ranks, and the jobs that should hold GPUs
    line: WaitingLine
    served: Rows  # Rows of the managed live jobs as they are served, best first
    victims: Victims  # Who may be displaced, after guarantees and leases
    may_displace: Bool  # ``(n,)`` bool, jobs for which others may be displaced
    types: EligibleNodes  # Nodes of the type of GPUs that the policy chose for a job


def aim(snap: Snapshot, wish: Wish, admitted: Admitted) -> Target:
    """Serve the jobs in their order: the jobs that should hold GPUs."""
    settings, victims = admitted.settings, wish.guarantee.shielded(admitted.victims)
    shielded, pressing = wish.policy_order.shielded, wish.policy_order.pressing
    if shielded is not None:
        victims = victims.sparing(shielded, PROMISED)
    if wish.replicas is not None:
        victims = victims.sparing(wish.replicas.first, WANTED)
    if wish.lease_s and wish.guarantee.promise is None:
        # Who is guaranteed nodes need not wait for the end of a lease.
        window_s = settings.lease_window * wish.lease_s
        victims = victims.sparing(under_lease(snap, wish.lease_s, window_s), LEASED)
    order = wish.guarantee.order
    may_displace = displacers(snap, settings.preemption, wish.guarantee.guaranteed)
    if pressing is not None:
        may_displace |= pressing
    displaces = wish.guarantee.preempts != "never" and settings.preemption.enabled
    # What finds no room in its least size finds none at all.
    least, soon = at_least_sizes(snap), at_least_sizes(wish.soon)
    lending = admitted.lending
    pinned = np.concatenate([victims.staying, np.array(sorted(moved_rows(snap)), dtype=np.int64)])
    intent = serve_ranked(
        wish.soon,
        order,
        wish.ranked,
        wish.need,
        pinned if lending is not None else _with_elastic(snap, pinned),
        skips=wish.policy.skips,
        bound=settings.overdue,
        urgent=NOBODY if pressing is None else wish.ranked[pressing[wish.ranked]],
        closed=out_of_reach(least, victims.lasting, settings.preemption.handover_timeout_s),
        roomless=without_room(
            soon, wish.ranked, may_displace, settings.window, free_and_lent(snap, lending)
        )
        if displaces
        else None,
        resizing=settings.resizing,
        movable=movable(snap, victims, lending, settings.resizing),
    )
    intent = staying(snap, intent)
    line = WaitingLine(snap, intent, settings, wish.guarantee.guaranteed)
    return Target(
        intent=intent,
        line=line,
        served=line.served() if isinstance(settings.mode, External) else intent.ranked,
        victims=victims,
        may_displace=may_displace,
        types=nodes_of_chosen_type(snap, intent),
    )


def _with_elastic(snap: Snapshot, rows: Rows) -> Rows:
    """*rows*, and the running elastic jobs: they stay as they are."""
    elastic = live_elastic(snap)
    return np.union1d(rows, elastic[snap.jobs.state[elastic] != PENDING])


def place(snap: Snapshot, wish: Wish, target: Target, settings: Settings) -> Placed:
    """Choose nodes for the waiting jobs, and those that are put off."""
    ranked, how = target.served, settings.placement
    # What is done for a job of a hand-over is settled.
    busy = jobs_of(snap.handovers)
    held = barred_rows(wish.soon, target.intent, ranked, busy, how.window if settings.hold else 0)
    ranked = ranked[~is_in(ranked, held)]
    placed = place_waiting(snap, ranked, busy, wish.guarantee.placement, target.types)
    rule = target.intent.order.pairs or NO_RULE
    placed = with_shares(snap, ranked, busy, how, placed, rule=rule)
    return with_held(snap, wish.policy, target.intent.order, held, placed)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreemptionDecision:
    """From whom GPUs are taken back for whom, and under which limits."""

    settings: Settings  # The settings after the breakers that the opened hand-overs would trip
    tripping: tuple[TripBreaker, ...]  # Breakers that trip now
    context: DecisionContext  # What the hand-overs were found from
    handovers: Handovers  # The hand-overs that are under way or begin


class SizeChange(NamedTuple):
    """Waiting jobs beside their sizes."""

    stuck: bool  # See `Surplus.of`
    unsized: Rows  # See `DecisionContext`


def take(
    snap: Snapshot, wish: Wish, target: Target, admitted: Admitted, change: SizeChange
) -> PreemptionDecision:
    """From whom GPUs are taken back for whom, and what becomes of hand-overs under way."""
    settings, tripping, surplus = admitted.settings, admitted.tripping, None
    candidates = target.victims
    if admitted.lending is not None:
        surplus = Surplus.of(snap, target.intent, stuck=change.stuck)
        shrink = np.array(sorted(surplus.then), dtype=np.int64)
        candidates = releasing(candidates, admitted.lending, snap, shrink)
    higher, within = higher_tiers(snap), wish.guarantee.within
    context = DecisionContext(
        snap=snap,
        needs=ResourceRequests(snap),
        free=FreeResources.free_in(snap),
        preempts=wish.guarantee.preempts,
        intent=target.intent,
        line=target.line,
        served=target.served,
        guaranteed=wish.guarantee.guaranteed,
        candidates=candidates,
        may_displace=target.may_displace,
        within=within if higher is None else in_both(within, higher.within),
        higher=higher,
        types=target.types,
        surplus=surplus,
        movable=target.victims.may,
        unsized=change.unsized,
    )
    handovers = engine_of(settings).handovers(context)
    if handovers.opened:
        tripping = trips(snap, settings, handovers.opened)
        if tripping:
            # Nothing is begun by the decision that would have passed a bound either.
            settings = stopped(settings, tripping)
            handovers = engine_of(settings).handovers(context)
    return PreemptionDecision(
        settings=settings, tripping=tripping, context=context, handovers=handovers
    )


class Shown(NamedTuple):
    """Sizes of waiting jobs before this decision and after it."""

    snap: Snapshot  # The snapshot with the sizes that Slurm shows
    shapes: Mapping[int, Shape]  # Sizes in which waiting jobs are to start, by row


def tell(
    snap: Snapshot, wish: Wish, placed: Placed, taken: PreemptionDecision, shown: Shown
) -> Plan:
    """The actions that bring this about, and the reasons."""
    jobs, settings, intent = snap.jobs, taken.settings, taken.context.intent
    how, order = settings.placement, intent.order
    reserved = taken.handovers.reserved
    preemption = engine_of(settings).preemption_steps(taken.context, taken.handovers)
    sized = tuple(reshapes(shown.snap, snap, shown.shapes, jobs_of(snap.handovers)))
    written = [a for a in (*sized, *preemption.steps) if isinstance(a, Reshape)]
    rank = places(taken.context.served, len(jobs))
    placed = placed.without(reserved)
    steers, holds = apart(steering(snap, placed, reserved, how), placed.held)
    told = place_notes(snap, placed)
    higher = taken.context.higher
    why_not = preemption.notes if higher is None else higher.notes(preemption.notes)
    notes = wish.guarantee.notes(snap, {**why_not, **told})
    for row in ((jobs.state == PENDING) & (jobs.held != NOT_HELD)).nonzero()[0].tolist():
        job_id = JobId(int(jobs.job_id[row]))
        if rank[row] >= 0 and job_id not in told:
            notes[job_id] = waits_for(snap, row)
    short = frozenset(jobs.job_id[intent.lane].tolist())
    for job_id in map(JobId, jobs.job_id[intent.overdue].tolist()):
        late = f"it has waited longer than {span(settings.overdue.after_s)} and comes before others"
        if job_id in short:
            late = f"it is short ({span(settings.overdue.short_s)} at most) and comes before others"
        notes[job_id] = f"{late}; {notes[job_id]}" if job_id in notes else late
    for row, first in zip(*map(np.ndarray.tolist, intent.back), strict=True):
        job_id = JobId(int(jobs.job_id[row]))
        if job_id not in placed.held:
            notes[job_id] = (
                f"job {jobs.job_id[first]} has waited longer than {span(settings.overdue.pass_s)}, "
                "and this one would move its planned start"
            )
    services = {} if wish.replicas is None else wish.replicas.notes
    throttled = throttling(snap, order.running, wish.policy.name, services)
    notes |= throttled.notes
    notes = {**services, **notes}
    unhonoured = engine_of(settings).undone(snap)
    for job_id in unhonoured:
        notes[job_id] = _UNDONE if job_id in snap.rewrite else _UNDONE_AGAIN
    running = (jobs.state == RUNNING) & (jobs.gpus > 0) & snap.managed_jobs
    by_hand = set(jobs.job_id[jobs.held == BY_HAND].tolist())
    actions = (
        *taken.tripping,
        *_bookings(snap, wish),
        *note_broken(snap, settings.preemption),
        *note_sizes(shown.snap, written),
        *retry_failed(snap, settings.retries),
        *throttled.books,
        *_promotions(snap, order),
        *cleared_for(snap, taken.handovers.sealed_for, how),
        *sized,
        *preemption.steps,
        *steers,
        *throttled.writes,
        *(trims(snap, taken.context.served, taken.handovers.live, how.window) if how.trim else ()),
        *in_turns(holds, preemption.writes),
    )
    return Plan(
        tier=np.where(rank >= 0, order.tier, np.int16(-1)).astype(np.int16),
        rank=rank,
        key=order.key,
        target=frozenset(JobId(j) for j in jobs.job_id[intent.target].tolist()),
        actions=tuple(
            a for a in actions if not (isinstance(a, SetSiteFactor) and a.job_id in by_hand)
        ),
        notes=notes,
        unhonoured=unhonoured,
        wake_at_s=min(
            next_end_s(snap.now_s, wish.lease_s),
            wish.policy.next_change_s(snap, wish.policy_order, running),
        ),
        share=None if order.share is None else order.share * (rank >= 0)[:, None],
        lease_s=wish.lease_s,
        held=placed.held,
        sizes=sizes_in(snap, intent),
    )


def _bookings(snap: Snapshot, wish: Wish) -> list[Book]:
    entries = changes(snap.booked, wish.policy_order.book)
    if not entries:
        return []
    return [Book(entries=entries, why=booked_in_words(wish.policy.name, entries))]


def _promotions(snap: Snapshot, order: Order) -> list[Promote]:
    rows = (order.promote & snap.managed_jobs).nonzero()[0]
    return [
        Promote(
            job_id=JobId(int(snap.jobs.job_id[row])),
            why="it has waited long for the service it has had (promotion)",
        )
        for row in rows.tolist()
    ]
