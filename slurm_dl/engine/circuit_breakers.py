"""Circuit breakers: when nothing new is taken back from anybody for a while.

Whether a breaker trips is a function of the snapshot and of what the decision would begin, so the
bound on GPUs is never passed: what would pass it is not begun. A trip is an action that only
changes the ledger; from then on the snapshot carries it, and every decision is made as with
preemption switched off. What has signalled by then is brought to its end.

A breaker re-arms by itself once its window has passed since the trip, unless the site wants to
reset it by hand. After either only what happens from then on counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Sequence

from slurm_dl.engine.explain.past_reasons import moment
from slurm_dl.engine.settings import External, Native, Settings
from slurm_dl.ledger.restarts import SOON_S
from slurm_dl.ledger.store_protocol import HOUR_S
from slurm_dl.model.breaker import OWNER_UNKNOWN, Breaker, BreakerName, Restart
from slurm_dl.model.handover import Handover, VictimState
from slurm_dl.model.plan import TripBreaker
from slurm_dl.model.snapshot import Snapshot


def tripped(snap: Snapshot) -> tuple[Breaker, ...]:
    """The breakers that have tripped and were neither reset nor re-armed since."""
    return tuple(breaker for breaker in standing(snap) if breaker.tripped_s > 0)


def standing(snap: Snapshot) -> tuple[Breaker, ...]:
    """The breakers that have tripped or were reset, as they stand now."""
    return tuple(breaker.at(snap.now_s) for breaker in snap.breakers)


def trips(
    snap: Snapshot, settings: Settings, begins: Collection[Handover] = ()
) -> tuple[TripBreaker, ...]:
    """The breakers that trip now, each with the reason in numbers.

    Args:
        begins: Hand-overs that this decision would begin.
    """
    already = {breaker.name for breaker in tripped(snap)}
    found = (
        _gpus_per_hour(snap, settings, begins),
        _cluster_share(snap, settings, begins),
        _failed_restarts(snap, settings),
    )
    return tuple(
        dataclasses.replace(trip, rearm_s=_rearm_s(trip.breaker, settings))
        for trip in found
        if trip is not None and trip.breaker not in already
    )


def bounded(snap: Snapshot, settings: Settings) -> Settings:
    """*settings* with what breakers that have not tripped allow.

    What would pass a bound all by itself is left alone rather than begun, and trips nothing: one
    large job must not stop preemption for all others.
    """
    limits = settings.breakers
    most_gpus = min(limits.gpus_per_hour or math.inf, _share_gpus(snap, settings))
    return dataclasses.replace(
        settings, preemption=dataclasses.replace(settings.preemption, most_gpus=most_gpus)
    )


def stopped(settings: Settings, by: Sequence[Breaker | TripBreaker]) -> Settings:
    """*settings* under which nothing new is begun because of *by*; unchanged if that is empty."""
    if not by or not settings.preemption.enabled:
        return settings
    preemption = dataclasses.replace(settings.preemption, enabled=False, because=_in_words(by[0]))
    return dataclasses.replace(settings, preemption=preemption)


def gpus_taken(snap: Snapshot, settings: Settings, name: BreakerName) -> float:
    """GPUs taken back in the last hour, or being taken back, that count for the breaker *name*."""
    breaker = _of(snap, name)
    since_s = max(snap.now_s - HOUR_S, breaker.reset_s)
    match settings.mode:
        case External():
            first = breaker.counts_from
            taken = [t.gpus for t in snap.taken if t.at_s > since_s and t.handover_id >= first]
            going = [
                v.gives_gpus
                for h in snap.handovers
                for v in h.victims
                if h.handover_id >= first and v.state is not VictimState.GONE
            ]
            return math.fsum([*taken, *going])
        case Native():
            # Slurm does not tell whom it put back itself; see `NativeEngine.recount`.
            # Each job once: whoever requeues their own job time and again must not trip it.
            gpus_of = {r.job_id: r.gpus for r in snap.restarts if r.requeued_s > since_s}
            return math.fsum(gpus_of.values())


def restarts_judged(snap: Snapshot, settings: Settings) -> tuple[Restart, ...]:
    """The restarts of which it is known whether they went well, and that still count.

    Of each user the newest alone, half as many as are needed to trip, and one at least: jobs of one
    user that fail by themselves must not stop preemption for everybody.
    """
    breaker = _of(snap, "failed_restarts")
    since_s = max(snap.now_s - settings.breakers.failed_window_s, breaker.reset_s)
    # Where Slurm preempts, whoever put the job back had it restarted.
    ours = isinstance(settings.mode, External)
    known = [
        r
        for r in snap.restarts
        if r.fate in ("well", "failed", "stuck")
        and r.settled_s > since_s
        and (r.handover_id or not ours)
    ]
    each = max(1, settings.breakers.failed_least // 2)
    counted: Counter[int] = Counter()
    judged = []
    for restart in sorted(known, key=lambda r: (-r.settled_s, r.job_id, r.restarts)):
        counted[restart.uid] += 1
        if restart.uid == OWNER_UNKNOWN or counted[restart.uid] <= each:
            judged.append(restart)
    return tuple(judged)


def _gpus_per_hour(
    snap: Snapshot, settings: Settings, begins: Collection[Handover]
) -> TripBreaker | None:
    bound = settings.breakers.gpus_per_hour
    if not bound:
        return None
    gpus, more = gpus_taken(snap, settings, "gpus_per_hour"), _gpus_of(begins)
    if gpus + more <= bound:
        return None
    why = f"{gpus:g} GPUs were taken back within an hour{_and(more)}: above the bound of {bound:g}"
    return TripBreaker(breaker="gpus_per_hour", at_s=snap.now_s, why=why)


def _cluster_share(
    snap: Snapshot, settings: Settings, begins: Collection[Handover]
) -> TripBreaker | None:
    limits, managed = settings.breakers, managed_gpus(snap)
    gpus, more = gpus_taken(snap, settings, "cluster_share"), _gpus_of(begins)
    if gpus + more <= _share_gpus(snap, settings):
        return None
    by_share = limits.cluster_share * managed >= limits.cluster_least
    bound = f"{limits.cluster_share:.0%}" if by_share else f"{limits.cluster_least:g} GPUs"
    why = (
        f"{gpus:g} of {managed:g} managed GPUs were taken back within an hour{_and(more)}: "
        f"above the bound of {bound}"
    )
    return TripBreaker(breaker="cluster_share", at_s=snap.now_s, why=why)


def _share_gpus(snap: Snapshot, settings: Settings) -> float:
    """The bound of ``cluster_share``, GPUs within an hour; inf if there is none."""
    limits = settings.breakers
    bound = limits.cluster_share * managed_gpus(snap)
    return max(bound, limits.cluster_least) if bound else math.inf


def _and(more_gpus: float) -> str:
    return f", and {more_gpus:g} more were to be" if more_gpus else ""


def _failed_restarts(snap: Snapshot, settings: Settings) -> TripBreaker | None:
    limits = settings.breakers
    if not limits.failed_share:
        return None
    judged = restarts_judged(snap, settings)
    bad = [r for r in judged if r.fate != "well"]
    if len(judged) < limits.failed_least or len(bad) <= limits.failed_share * len(judged):
        return None
    stuck = sum(r.fate == "stuck" for r in bad)
    how = [f"failed within {SOON_S:.0f} s of their restart"] if len(bad) > stuck else []
    how += ["were put aside by Slurm, which could not start them"] if stuck else []
    why = (
        f"{len(bad)} of {len(judged)} preempted jobs {' or '.join(how)}: "
        f"above the bound of {limits.failed_share:.0%}"
    )
    jobs = tuple(sorted({r.job_id for r in bad}))
    return TripBreaker(breaker="failed_restarts", at_s=snap.now_s, why=why, jobs=jobs)


def _of(snap: Snapshot, name: BreakerName) -> Breaker:
    return next((b for b in standing(snap) if b.name == name), Breaker(name=name))


def _rearm_s(name: BreakerName, settings: Settings) -> float:
    """Time from a trip until the breaker re-arms, seconds; 0: only a reset ends it."""
    limits = settings.breakers
    if not limits.rearms:
        return 0.0
    return limits.failed_window_s if name == "failed_restarts" else HOUR_S


def _gpus_of(handovers: Collection[Handover]) -> float:
    return math.fsum(v.gives_gpus for h in handovers for v in h.victims)


def managed_gpus(snap: Snapshot) -> float:
    """GPUs of the managed partitions, those of nodes that are down as well."""
    seen = snap.seen
    managed = seen.node_in[snap.managed].any(axis=0)
    return float(seen.weight_of_node()[managed].sum())


def _in_words(by: Breaker | TripBreaker) -> str:
    if isinstance(by, TripBreaker):
        by = by.of(Breaker(name=by.breaker))
    text = f"preemption is stopped by the breaker {by.name}: {by.why}"
    at_s = by.rearms_at_s
    return text if math.isinf(at_s) else f"{text}; it re-arms at {moment(at_s)}"
