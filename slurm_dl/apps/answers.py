"""What the daemon answers to each request on its control socket.

Who may ask what is checked here and nowhere else; the form of the requests is `requests`' affair.
Answers come from the `Board`, the audit log and the pause switch, never from the cluster.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import slurm_dl
from slurm_dl.apps import privacy, published, snapshot_file
from slurm_dl.apps.audit import AuditLine, AuditLog
from slurm_dl.apps.breakers import NotResetError, breakers_of, not_here
from slurm_dl.apps.commandline import ago, safe
from slurm_dl.apps.control import Peer, RequestError
from slurm_dl.apps.page import Order, page
from slurm_dl.apps.past import Pasts, past_object
from slurm_dl.apps.pause import PauseSwitch
from slurm_dl.apps.privacy import Own
from slurm_dl.apps.published import LETTERS, LIVE, Board, Filter, Published, Reloaded
from slurm_dl.apps.requests import (
    FOR_ADMINS,
    ConfigRequest,
    PauseRequest,
    QueueRequest,
    ReloadRequest,
    ResetBreakerRequest,
    ResumeRequest,
    SnapshotRequest,
    StatusRequest,
    WhenRequest,
    WhyRequest,
    parse,
)
from slurm_dl.apps.room import misfit, stranded_gpus
from slurm_dl.apps.when import service as when
from slurm_dl.apps.wire import PROTOCOL, Json, JsonObject, Kind
from slurm_dl.config.origins import FILE_KEY, Plain
from slurm_dl.engine.explain import Sight, why
from slurm_dl.engine.loop import Cycle
from slurm_dl.engine.settings import Breakers
from slurm_dl.model.breaker import Breaker, BreakerName
from slurm_dl.model.handover import Handover
from slurm_dl.model.jobs import JobState
from slurm_dl.policies.base import Policy

_STATES = {
    **{letters: (state,) for state, letters in LETTERS.items()},
    **{state.name: (state,) for state in JobState},
    "ALL": tuple(JobState),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Levers:
    """The parts of the daemon that a request may read or move.

    Attributes:
        reload: Read the configuration again on behalf of an actor; waits for the outcome.
        wake: Begin the next cycle now.
        past: What became of jobs.
        reset_breaker: Let a breaker go on behalf of an actor; gives the breaker as it was, or
            raises `NotResetError`.
    """

    board: Board
    audit: AuditLog
    pause: PauseSwitch
    reload: Callable[[str], Reloaded]
    wake: Callable[[], None]
    reset_breaker: Callable[[BreakerName, str], Breaker] = not_here
    past: Pasts = field(default_factory=Pasts)


class Answers:
    """Answers requests; may be called from many threads at once."""

    def __init__(self, levers: Levers) -> None:
        self._levers = levers
        # Rows and snapshots are built by Python code; two at a time leave the loop its share.
        self._heavy = threading.Semaphore(2)
        # Who waits for a forecast; one user must not keep it from the others.
        self._asking: set[int] = set()
        self._asking_lock = threading.Lock()

    def __call__(  # noqa: C901, PLR0911 - one return for each request
        self, request: JsonObject, peer: Peer
    ) -> JsonObject:
        """The answer to *request*.

        Raises:
            RequestError: Malformed, not allowed, or there is no answer.
        """
        parsed = parse(request)
        if isinstance(parsed, FOR_ADMINS) and not peer.is_admin:
            msg = (
                f"{parsed.request} is for root, the daemon's account and control.admins; "
                f"you are {peer.name} ({peer.uid})"
            )
            raise RequestError(Kind.DENIED, msg)
        now = self._levers.board.current
        sight = privacy.sight_of(peer, now)
        match parsed:
            case StatusRequest():
                return privacy.status_for(status(self._levers), sight)
            case QueueRequest():
                return self._queue(parsed, sight)
            case WhyRequest():
                return self._why(parsed, sight)
            case WhenRequest():
                return self._when(parsed, sight, peer)
            case ConfigRequest():
                privacy.check_config(peer, now)
                return config(now)
            case PauseRequest():
                return self._pause(parsed, peer)
            case ResumeRequest():
                return self._resume(peer)
            case ReloadRequest():
                return self._reload(peer)
            case ResetBreakerRequest():
                return self._reset_breaker(parsed, peer)
            case SnapshotRequest():
                with self._heavy:
                    return {"snapshot": snapshot_file.encode(self._seen(sight)[0].snapshot)}

    def _seen(self, sight: Sight) -> tuple[Cycle, Policy]:
        now = self._levers.board.current
        if now.cycle is None or now.policy is None:
            last = now.trouble and privacy.trouble_for(now.trouble.message, sight)
            msg = f"dlschedd has not seen the cluster yet{f': {last}' if last else ''}"
            raise RequestError(Kind.NOT_READY, msg if last else f"{msg}; it has just started")
        return now.cycle, now.policy

    def _queue(self, request: QueueRequest, sight: Sight) -> JsonObject:
        cycle, _ = self._seen(sight)
        states = [s for word in request.state for s in _states(word)] or list(LIVE)
        wanted = Filter(
            users=request.user,
            partitions=request.partition,
            states=states,
            nodes=request.node,
            accounts=request.account,
            qos=request.qos,
            names=request.name,
            jobs=request.job,
            owner=_owner(sight),
        )
        order = Order(
            by=request.sort,
            search=request.search,
            offset=request.offset,
            limit=request.limit,
            locate=request.locate,
        )
        with self._heavy:
            found = page(cycle, wanted, order)
            jobs: list[Json] = [privacy.row_for(r, sight) for r in found.jobs]
        return {
            "now_s": cycle.snapshot.now_s,
            "jobs": jobs,
            "total": found.total,
            "offset": request.offset,
            "at": found.at,
            **privacy.standing_for(_standing(self._levers), sight),
        }

    def _why(self, request: WhyRequest, sight: Sight) -> JsonObject:
        cycle, policy = self._seen(sight)
        seen = cycle.snapshot.seen
        try:
            found = published.find_job(seen, request.job, _owner(sight))
        except ValueError as err:
            raise RequestError(Kind.BAD_REQUEST, str(err)) from None
        if isinstance(found, list):
            with self._heavy:
                gone = self._levers.past.gone(request.job, sight, self._levers.audit)
            if gone is not None:
                standing = privacy.standing_for(_standing(self._levers), sight)
                return {"now_s": cycle.snapshot.now_s, **gone, **standing}
            hint = (
                f"; did you mean {' or '.join(found)}?" if found else ": Slurm no longer lists it"
            )
            msg = f"no job {request.job} in the last snapshot{hint}"
            raise RequestError(Kind.NOT_FOUND, msg)
        row = seen.jobs.row_of()[found]
        with self._heavy:
            history = self._levers.audit.history(found)
            past = self._levers.past.of(found)
        sentences = why(cycle, policy, found, history, sight, past=past)
        return {
            "now_s": cycle.snapshot.now_s,
            "job": privacy.row_for(published.row(cycle, row), sight),
            "past": None if past is None else past_object(past, sight),
            "sentences": [safe(s, 1000) for s in sentences],
            "history": list(privacy.history_for(history, sight)),
            **privacy.standing_for(_standing(self._levers), sight),
        }

    def _when(self, request: WhenRequest, sight: Sight, peer: Peer) -> JsonObject:
        with self._asking_lock:
            if peer.uid in self._asking:
                msg = "you are waiting for a forecast already: one at a time"
                raise RequestError(Kind.FAILED, msg)
            self._asking.add(peer.uid)
        try:
            return self._foreseen(request, sight, peer)
        finally:
            with self._asking_lock:
                self._asking.discard(peer.uid)

    def _foreseen(self, request: WhenRequest, sight: Sight, peer: Peer) -> JsonObject:
        now = self._levers.board.current
        forecasts = when.forecasts_of(now.config.paths.state_dir)
        if request.job:
            told = when.of_job(forecasts, now, request.job, sight)
        else:
            told = when.of_shapes(
                forecasts,
                now,
                request.shapes,
                partition=request.partition,
                gpu_type=request.gpu_type,
                limit_s=request.limit_s,
                name=request.name,
                uid=peer.uid,
                user=peer.name,
            )
        return {**told, **privacy.standing_for(_standing(self._levers), sight)}

    def _pause(self, request: PauseRequest, peer: Peer) -> JsonObject:
        reason = safe(request.reason, 500)
        warning = self._levers.pause.on(by=str(peer), reason=reason, now_s=time.time())
        self._levers.audit.write(AuditLine(actor=str(peer), action="pause", reason=reason))
        return {"paused": _paused(self._levers.pause), "warning": warning}

    def _resume(self, peer: Peer) -> JsonObject:
        was = self._levers.pause.pause
        warning = self._levers.pause.off()
        reason = f"paused by {was.by}" if was else "it was not paused"
        self._levers.audit.write(AuditLine(actor=str(peer), action="resume", reason=reason))
        self._levers.wake()
        return {"was_paused": was is not None, "warning": warning}

    def _reload(self, peer: Peer) -> JsonObject:
        outcome = self._levers.reload(str(peer))
        if not outcome.ok:
            raise RequestError(Kind.FAILED, outcome.message)
        return {"message": outcome.message}

    def _reset_breaker(self, request: ResetBreakerRequest, peer: Peer) -> JsonObject:
        try:
            was = self._levers.reset_breaker(request.breaker, str(peer))
        except NotResetError as err:
            raise RequestError(Kind.FAILED, str(err)) from None
        self._levers.wake()
        return {"breaker": was.name, "was_tripped": was.tripped_s > 0, "why": was.why or None}


def status(levers: Levers) -> JsonObject:
    """How the daemon is, in numbers and in one sentence."""
    now = levers.board.current
    answer: JsonObject = {
        "protocol": PROTOCOL,
        "version": slurm_dl.__version__,
        "pid": os.getpid(),
        "started_s": now.started_s,
        "now_s": time.time(),
        "live": now.live,
        "policy": now.config.policy.order,
        "preemption": now.config.preemption.in_words(),
        "placement": now.config.placement.in_words(),
        "config_file": next((row.text for row in now.config_rows if row.key == FILE_KEY), None),
        "cycles": now.cycles,
        "seen_s": now.seen_s or None,
        "next_poll_s": now.next_poll_s or None,
        "failures": now.failures,
        "bugs": now.bugs,
        "trouble": _trouble(now),
        "reloaded": _reloaded(now),
        "reader": None
        if now.reader is None
        else {"name": now.reader.reader, "reason": now.reader.reason},
        "audit": {"path": str(levers.audit.path), "error": levers.audit.error or None},
        "actions": {"done": now.done, "failed": now.failed},
        "steers_ended": {
            "honoured": now.steers_ended.get("honoured", 0),
            "not_honoured": now.steers_ended.get("not honoured", 0),
        },
        "durations_ms": {
            "observe": round(now.durations.observe_ms, 1),
            "decide": round(now.durations.decide_ms, 1),
            "apply": round(now.durations.apply_ms, 1),
        },
        "slurmctld": _slurmctld(now),
        **_standing(levers),
    }
    if now.cycle is not None:
        answer |= _numbers(now.cycle)
        answer["breakers"] = breakers_of(now.cycle, Breakers(**now.config.breakers.model_dump()))
        answer["forecasts"] = when.score_of(when.forecasts_of(now.config.paths.state_dir))
        answer["misfit"] = misfit(now.config.placement, now.cycle.snapshot) or None
    return answer


def config(now: Published) -> JsonObject:
    """The configuration in force: each value with where it comes from."""
    values: list[Json] = [
        {"key": row.key, "value": _plain(row.value), "origin": row.origin}
        for row in now.config_rows
    ]
    return {"values": values}


def _plain(value: Plain) -> Json:
    return [_plain(item) for item in value] if isinstance(value, list) else value


def doing(levers: Levers) -> str:
    """What the daemon does at present, as a claim about its next cycle."""
    now = levers.board.current
    idle = "plans and touches nothing"
    if now.config.preemption.mode == "native":
        idle += "; Slurm goes on preempting by the last SiteFactors"
    first = (
        (not levers.audit.healthy, "only looking: the audit log cannot be written"),
        (now.bugs_in_a_row, "nothing: a bug ended the last cycle; see the log, and report it"),
        (now.failures, f"waiting: {now.failures} polls in a row failed"),
        (not now.live, f"shadow mode: {idle}"),
        (levers.pause.pause is not None, f"paused: {idle}"),
        (now.idle, f"only looking: {now.idle}"),
        (now.looks_left, f"only looking for {now.looks_left} more cycles"),
    )
    return next((text for holds, text in first if holds), "") or _acting(now)


def _acting(now: Published) -> str:
    left_s = now.vitals.distrust_until_s - time.time()
    if now.vitals.distrust and left_s > 0:
        return f"acting, but no GPUs are taken back for {ago(left_s)}: {now.vitals.distrust}"
    return "acting"


def _slurmctld(now: Published) -> JsonObject:
    """Its clock, and why it is asked less often, or told less, than configured."""
    vitals, daemon = now.vitals, now.config.daemon
    slowed_s = min(daemon.poll_s * vitals.slowed, daemon.slow_poll_s)
    return {
        "clock": vitals.clock,
        "ahead_s": round(vitals.ahead_s, 1),
        "jumps": vitals.jumps,
        "distrust": vitals.distrust or None,
        "distrust_until_s": vitals.distrust_until_s or None,
        "slow": vitals.slow or None,
        "poll_s": max(daemon.poll_s, slowed_s),
        "writes_held": vitals.writes_held or None,
    }


def _standing(levers: Levers) -> JsonObject:
    """What every reader of an answer should know about its worth."""
    now = levers.board.current
    return {
        "doing": doing(levers),
        "paused": _paused(levers.pause),
        "age_s": round(time.time() - now.seen_s, 1) if now.seen_s else None,
    }


def _numbers(cycle: Cycle) -> JsonObject:
    snap, plan = cycle.snapshot, cycle.plan
    states = Counter(snap.jobs.state.tolist())
    live = snap.jobs.state < JobState.COMPLETED
    tiers: list[Json] = [
        {"tier": tier, "pending": pending, "running": running}
        for tier, pending, running in tiers_of(cycle)
    ]
    nodes = snap.seen.nodes
    return {
        "jobs": {LETTERS[s]: states.get(int(s), 0) for s in JobState},
        "managed_jobs": int((snap.is_managed() & live).sum()),
        "unreadable": snap.seen.unreadable,
        "tiers": tiers,
        "gpus": {
            "all": float(nodes.gpus.sum()),
            "up": float(nodes.gpus[nodes.up].sum()),
            "held": float(snap.seen.held.gpus.sum()),
            "stranded": stranded_gpus(snap),
        },
        "planned": len(plan.actions),
        "left": len(cycle.left),
        "handovers": [_handover(h) for h in snap.handovers],
        "steers": steers_of(cycle),
    }


def steers_of(cycle: Cycle) -> JsonObject:
    """Jobs that are steered while they wait, by what for."""
    kinds = Counter(steer.kind for steer in cycle.snapshot.steers.values())
    return {kind: kinds[kind] for kind in ("spot", "wait", "over")}


def tiers_of(cycle: Cycle) -> list[tuple[int, int, int]]:
    """Each tier with its pending jobs and those that hold GPUs."""
    tier, state = cycle.plan.tier, cycle.snapshot.jobs.state
    pending = state == JobState.PENDING
    holds = (state > JobState.PENDING) & (state < JobState.COMPLETED)
    return [
        (t, int(((tier == t) & pending).sum()), int(((tier == t) & holds).sum()))
        for t in range(int(tier.max(initial=-1)) + 1)
    ]


def _handover(handover: Handover) -> JsonObject:
    victims: list[Json] = [
        {
            "job": v.run.job_id,
            "state": str(v.state),
            "signalled_s": v.signalled_s or None,
            "outcome": v.outcome or None,
        }
        for v in handover.victims
    ]
    return {
        "handover": handover.handover_id,
        "opened_s": handover.opened_s,
        "purpose": handover.purpose,
        "beneficiaries": list(handover.beneficiaries),
        "victims": victims,
        "nodes": list(handover.nodes),
        "seal": str(handover.seal),
    }


def _paused(switch: PauseSwitch) -> JsonObject | None:
    return switch.pause.as_json() if switch.pause else None


def _trouble(now: Published) -> JsonObject | None:
    return {"at_s": now.trouble.at_s, "message": now.trouble.message} if now.trouble else None


def _reloaded(now: Published) -> JsonObject | None:
    last = now.reloaded
    return {"at_s": last.at_s, "ok": last.ok, "message": last.message} if last else None


def _owner(sight: Sight) -> int | None:
    """Whose jobs alone may be shown; None: everybody's."""
    return sight.uid if isinstance(sight, Own) else None


def _states(word: str) -> tuple[JobState, ...]:
    states = _STATES.get(word.upper())
    if states is None:
        known = ", ".join(sorted(LETTERS.values()))
        msg = f"no job state {safe(word, 40)!r}: use {known}, their long names, or all"
        raise RequestError(Kind.BAD_REQUEST, msg)
    return states
