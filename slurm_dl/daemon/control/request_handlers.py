"""The daemon's answer to each request on its control socket.

Who may ask what is checked here and nowhere else; the form of the requests is `requests`' affair.
Answers come from the `Board`, the audit log and the pause switch, never from the cluster.
"""

from __future__ import annotations

import dataclasses
import threading
import time

from slurm_dl.config.loading import Plain
from slurm_dl.daemon import forecast_answers as when
from slurm_dl.daemon import forecast_service, published_state, quote_answers
from slurm_dl.daemon.audit_log import AuditLine
from slurm_dl.daemon.breaker_resets import NotResetError
from slurm_dl.daemon.control import privacy
from slurm_dl.daemon.control.job_history import OVER, past_object, users_shown
from slurm_dl.daemon.control.privacy import Own
from slurm_dl.daemon.control.queue_query import page
from slurm_dl.daemon.control.reception import Peer, RequestError, Stream
from slurm_dl.daemon.control.requests import (
    FOR_ADMINS,
    ConfigRequest,
    PauseRequest,
    PromisesRequest,
    QuoteRequest,
    ReloadRequest,
    ResetBreakerRequest,
    ResumeRequest,
    SnapshotRequest,
    StatusRequest,
    WhenRequest,
    WhyRequest,
    parse,
)
from slurm_dl.daemon.control.status_answer import ControlContext, paused_of, standing_of, status
from slurm_dl.daemon.control.wire_format import QueueRequest, RefusalKind
from slurm_dl.daemon.published_state import LETTERS, LIVE, PublishedState, text_of
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.explain.past_reasons import Sight, why_left_out
from slurm_dl.engine.explain.plan_reasons import why
from slurm_dl.engine.explain.promise_reasons import spare_s, state_of
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.ledger.sqlite.rows import Only
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.promise import Promise, promises_in, totals_in
from slurm_dl.policies.base import Policy
from slurm_dl.recording import snapshot_file
from slurm_dl.text import safe

_STATES = {
    **{letters: (state,) for state, letters in LETTERS.items()},
    **{state.name: (state,) for state in JobState},
    "ALL": tuple(JobState),
}


class RequestHandlers:
    """Answers requests; may be called from many threads at once. `LoadLimits` bounds how many."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        # Who waits for a forecast; one user must not keep it from the others.
        self._asking: set[int] = set()
        self._asking_lock = threading.Lock()

    def __call__(  # noqa: C901, PLR0911, PLR0912 - one return for each request
        self, request: JsonObject, peer: Peer
    ) -> JsonObject | Stream:
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
            raise RequestError(RefusalKind.DENIED, msg)
        now = self._context.board.current
        sight = privacy.sight_of(peer, now)
        match parsed:
            case StatusRequest():
                return privacy.status_for(status(self._context), sight)
            case QueueRequest():
                return self._queue(parsed, sight)
            case WhyRequest():
                return self._why(parsed, sight)
            case WhenRequest() | QuoteRequest():
                return self._when(parsed, sight, peer)
            case PromisesRequest():
                return self._promises(sight)
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
            case SnapshotRequest(request="record"):
                return self._context.recordings.begin(str(peer))
            case SnapshotRequest():
                return {"snapshot": snapshot_file.encode(self._seen(sight)[0].snapshot)}

    def _seen(self, sight: Sight) -> tuple[Cycle, Policy]:
        now = self._context.board.current
        if now.cycle is None or now.policy is None:
            last = now.trouble and privacy.trouble_for(now.trouble.message, sight)
            msg = f"dlschedd has not seen the cluster yet{f': {last}' if last else ''}"
            raise RequestError(
                RefusalKind.NOT_READY, msg if last else f"{msg}; it has just started"
            )
        return now.cycle, now.policy

    def _queue(self, request: QueueRequest, sight: Sight) -> JsonObject:
        cycle, _ = self._seen(sight)
        states = [s for word in request.state for s in _states(word)] or list(LIVE)
        ended = OVER.intersection(states)
        only = Only(
            users=users_shown(sight, request.user),
            accounts=request.account,
            qos=request.qos,
            partitions=request.partition,
            names=request.name,
            jobs=request.job,
            states=() if ended == OVER else tuple(state.name for state in ended),
        )
        shown = self._context.past.listed(cycle, only) if ended else cycle
        found = page(shown, request, states, _owner(sight))
        jobs: list[Json] = [privacy.row_for(r, sight) for r in found.jobs]
        return {
            "now_s": cycle.snapshot.now_s,
            "jobs": jobs,
            "total": found.total,
            "offset": request.offset,
            "at": found.at,
            **privacy.standing_for(standing_of(self._context), sight),
        }

    def _why(self, request: WhyRequest, sight: Sight) -> JsonObject:
        cycle, policy = self._seen(sight)
        seen = cycle.snapshot.seen
        try:
            found = published_state.find_job(seen, request.job, _owner(sight))
        except ValueError as err:
            raise RequestError(RefusalKind.BAD_REQUEST, str(err)) from None
        if isinstance(found, list):
            now_s = cycle.snapshot.now_s
            gone = self._context.past.gone(request.job, sight, self._context.audit, now_s)
            if gone is not None:
                standing = privacy.standing_for(standing_of(self._context), sight)
                return {"now_s": cycle.snapshot.now_s, **gone, **standing}
            msg = published_state.not_listed(
                self._context.board.current, request.job, found, _owner(sight)
            )
            raise RequestError(RefusalKind.NOT_FOUND, msg)
        history = self._context.audit.history(found)
        past = self._context.past.of(found)
        job: Json = None
        if left_out := seen.left_out.get(found):
            sentences = why_left_out(left_out)
        else:
            row = seen.jobs.rows[found]
            job = privacy.row_for(published_state.row(cycle, row), sight)
            now = self._context.board.current
            forecasts = forecast_service.forecasts_of_daemon()
            beside = when.expected_start(forecasts, now, found)
            at_s = time.time() + now.controller_health.ahead_s
            sentences = why(
                cycle, policy, found, history, sight, past=past, at_s=at_s, forecast=beside
            )
        return {
            "now_s": cycle.snapshot.now_s,
            "job": job,
            "past": None if past is None else past_object(past, sight),
            "sentences": [safe(s, 1000) for s in sentences],
            "history": list(privacy.history_for(history, sight)),
            **privacy.standing_for(standing_of(self._context), sight),
        }

    def _when(self, request: WhenRequest | QuoteRequest, sight: Sight, peer: Peer) -> JsonObject:
        with self._asking_lock:
            if peer.uid in self._asking:
                msg = "you are waiting for a forecast already: one at a time"
                raise RequestError(RefusalKind.FAILED, msg)
            self._asking.add(peer.uid)
        try:
            return self._foreseen(request, sight, peer)
        finally:
            with self._asking_lock:
                self._asking.discard(peer.uid)

    def _foreseen(
        self, request: WhenRequest | QuoteRequest, sight: Sight, peer: Peer
    ) -> JsonObject:
        now = self._context.board.current
        forecasts = forecast_service.forecasts_of_daemon()
        if isinstance(request, QuoteRequest):
            answer = (
                quote_answers.of_job(now, request.job, sight)
                if request.job
                else quote_answers.of_shapes(forecasts, now, request, peer)
            )
        elif request.job:
            answer = when.of_job(forecasts, now, request.job, sight)
        elif request.jobs:
            answer = when.of_jobs(forecasts, now, request.jobs, sight)
        else:
            answer = when.of_shapes(
                forecasts,
                now,
                request.shapes,
                partition=request.partition,
                gpu_type=request.gpu_type,
                limit_s=request.limit_s,
                name=request.name,
                within_s=request.within_s,
                uid=peer.uid,
                user=peer.name,
            )
        return {**answer, **privacy.standing_for(standing_of(self._context), sight)}

    def _promises(self, sight: Sight) -> JsonObject:
        standing = privacy.standing_for(standing_of(self._context), sight)
        return {**promises_of(self._seen(sight)[0], sight), **standing}

    def _pause(self, request: PauseRequest, peer: Peer) -> JsonObject:
        reason = safe(request.reason, 500)
        warning = self._context.pause.on(by=str(peer), reason=reason, now_s=time.time())
        self._context.audit.write(AuditLine(actor=str(peer), action="pause", reason=reason))
        return {"paused": paused_of(self._context.pause), "warning": warning}

    def _resume(self, peer: Peer) -> JsonObject:
        was = self._context.pause.pause
        warning = self._context.pause.off()
        reason = f"paused by {was.by}" if was else "it was not paused"
        self._context.audit.write(AuditLine(actor=str(peer), action="resume", reason=reason))
        self._context.wake()
        return {"was_paused": was is not None, "warning": warning}

    def _reload(self, peer: Peer) -> JsonObject:
        outcome = self._context.reload(str(peer))
        if not outcome.ok:
            raise RequestError(RefusalKind.FAILED, outcome.message)
        return {"message": outcome.message}

    def _reset_breaker(self, request: ResetBreakerRequest, peer: Peer) -> JsonObject:
        try:
            was = self._context.reset_breaker(request.breaker, str(peer))
        except NotResetError as err:
            raise RequestError(RefusalKind.FAILED, str(err)) from None
        self._context.wake()
        return {"breaker": was.name, "was_tripped": was.tripped_s > 0, "why": was.why or None}


def config(now: PublishedState) -> JsonObject:
    """The configuration in force: each value with where it comes from."""
    values: list[Json] = [
        {"key": row.key, "value": _plain(row.value), "origin": row.origin}
        for row in now.config_rows
    ]
    return {"values": values}


def _plain(value: Plain) -> Json:
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _owner(sight: Sight) -> int | None:
    """User whose jobs alone may be shown; None: all users."""
    return sight.uid if isinstance(sight, Own) else None


def _states(word: str) -> tuple[JobState, ...]:
    states = _STATES.get(word.upper())
    if states is None:
        known = ", ".join(sorted(LETTERS.values()))
        msg = f"no job state {safe(word, 40)!r}: use {known}, their long names, or all"
        raise RequestError(RefusalKind.BAD_REQUEST, msg)
    return states


def promises_of(cycle: Cycle, sight: Sight) -> JsonObject:
    """Promises of the jobs that may be named, by deadline; the totals only to whom all may be."""
    booked, rows = cycle.booked, cycle.snapshot.jobs.rows
    found = sorted(promises_in(booked).items(), key=lambda one: (one[1].due_s, one[0]))
    totals: Json = None if isinstance(sight, Own) else dataclasses.asdict(totals_in(booked))
    return {
        "now_s": cycle.snapshot.now_s,
        "promises": [_object(cycle, j, rows.get(j), p) for j, p in found if sight.knows(j)],
        "totals": totals,
    }


def _object(cycle: Cycle, job_id: JobId, row: int | None, promise: Promise) -> JsonObject:
    snap, spare = cycle.snapshot, None
    state = state_of(snap, row, promise)
    if row is not None and state in {"waiting", "running"}:
        spare = round(spare_s(snap, row, promise), 1)
    return {
        "job": text_of(snap.seen, job_id).label,
        "job_id": job_id,
        "state": state,
        "spare_s": spare,
        **dataclasses.asdict(promise),
    }
