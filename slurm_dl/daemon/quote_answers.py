"""The answers to ``quote``: whether a deadline is promised, and how likely it is kept if not.

They name no job, user or account of others.
"""

from __future__ import annotations

import contextlib
import math
import threading
from dataclasses import replace

from slurm_dl.config.engine_settings import settings_of
from slurm_dl.daemon import forecast_answers as when
from slurm_dl.daemon.control.reception import Peer, RequestError
from slurm_dl.daemon.control.requests import QuoteRequest
from slurm_dl.daemon.control.wire_format import RefusalKind
from slurm_dl.daemon.forecast_service import Forecasts
from slurm_dl.daemon.published_state import PublishedState, text_of
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import admit, want
from slurm_dl.engine.explain.past_reasons import Sight
from slurm_dl.engine.preemption.commitment import with_commitment
from slurm_dl.engine.promise_terms import counted_deadlines, promises
from slurm_dl.engine.settings import Settings
from slurm_dl.engine.waiting_sizes import at_shapes, moved_rows
from slurm_dl.estimates.remaining_time import left_of
from slurm_dl.estimates.similar_jobs import expected_s
from slurm_dl.forecast.start_time_text import LEAST_RUNS
from slurm_dl.json_types import Json, JsonObject, as_list, number
from slurm_dl.model.booking import updated
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import Book
from slurm_dl.model.promise import Promise, promises_in
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.simulation.forward.initial_state import HypotheticalJob, submitted


def quoted(
    snap: Snapshot, policy: Policy, settings: Settings, job: HypotheticalJob
) -> Promise | None:
    """The promise of *policy* to *job* if it were submitted now; None if it promises nothing.

    Nothing is booked: two quotes may be given for one place, and the first look decides.

    A deadline that the site does not count is a no with the reason.

    Args:
        job: It has a deadline.
    """
    if not promises(policy):
        return None
    snap = _limited_like(submitted(snap, [job]))
    job_id = JobId(int(snap.jobs.job_id[-1]))
    left = left_of(snap, expected_s(snap))
    counted = counted_deadlines(snap, settings.deadlines, shared=False)
    snap = replace(snap, left_s=left.seconds, left_from=left.origin)
    snap = with_commitment(snap, policy, settings.preemption)
    snap = at_shapes(snap, moved_rows(snap))
    if why := counted.refused.get(job_id):
        return Promise(
            says="no",
            due_s=int(job.due_s),
            at_s=int(snap.now_s),
            gpus=float(job.gpus),
            needs_s=0,
            rests_on="limit",
            why=f"its deadline does not count: {why}",
        )
    book = want(snap, policy, admit(snap, policy, settings)).policy_order.book
    return promises_in(book).get(job_id)


def _limited_like(snap: Snapshot) -> Snapshot:
    """*snap*, whose last job counts in the limits of another of its user, account and QOS."""
    quotas, texts, last = snap.seen.quotas, snap.seen.texts, len(snap.jobs) - 1
    if quotas is None:
        return snap
    ids, uid, gpus = (c.tolist() for c in (snap.jobs.job_id, snap.jobs.uid, snap.jobs.gpus))
    mine = texts[ids[last]]
    for row in range(last):
        text = texts.get(ids[row])
        if text is None or uid[row] != uid[last] or ids[row] not in quotas.counts:
            continue
        if (text.account, text.qos) == (mine.account, mine.qos) and gpus[row]:
            counts = tuple(
                (q, gpus[last] if units == gpus[row] else units)
                for q, units in quotas.counts[ids[row]]
            )
            more = replace(quotas, counts={**quotas.counts, ids[last]: counts})
            return replace(snap, seen=replace(snap.seen, quotas=more))
    return snap


_ONE = threading.Lock()  # A verdict takes the decision's time, so there is one at a time


def of_shapes(
    forecasts: Forecasts, now: PublishedState, request: QuoteRequest, peer: Peer
) -> JsonObject:
    """The verdict on each shape, as if it alone were submitted now.

    Raises:
        RequestError: There is no such partition or type, or the cluster was not seen yet.
    """
    cycle, policy, settings = _seen(now)
    usual = _last_job(cycle.snapshot, peer.uid)
    job = HypotheticalJob(
        gpus=0,
        n_nodes=0,
        partition=0,
        uid=peer.uid,
        user=peer.name,
        name=request.name,
        limit_s=math.inf,
        contract=None if request.no_preempt else when.usual_contract(now),
        due_s=float(request.due_s or math.inf),
        account=request.account.lower() or usual.account,
        qos=request.qos.lower() or usual.qos,
    )
    found = when.shaped(
        now, request.shapes, job, partition=request.partition, gpu_type=request.gpu_type
    )
    limits = request.limits_s or [request.limit_s] * len(found)
    rows: list[Json] = []
    unsure: list[tuple[JsonObject, HypotheticalJob]] = []
    for (row, asked), limit_s in zip(found, limits, strict=True):
        one = asked and replace(asked, limit_s=limit_s or math.inf)
        never = row.pop("why_not")
        with _ONE:
            said = None if one is None else quoted(cycle.snapshot, policy, settings, one)
        row.update(_told(said, cycle.snapshot.now_s), odds=None)
        if one is None:
            row.update(says="no", why=never)
        elif row["says"] != "yes":
            unsure.append((row, one))
        rows.append(row)
    if request.odds and unsure:
        _add_odds(forecasts, now, unsure, request.within_s)
    return {**_common(cycle, policy), "due_s": request.due_s, "shapes": rows}


def _last_job(snap: Snapshot, uid: int) -> JobText:
    """Texts of the last job of a user that Slurm lists: its account and QOS are usual ones."""
    mine = snap.jobs.job_id[snap.jobs.uid == uid]
    return text_of(snap.seen, JobId(int(mine.max()))) if len(mine) else JobText(label="")


def of_job(now: PublishedState, name: str, sight: Sight) -> JsonObject:
    """The verdict on the job called *name*; ``says`` is null while there is none.

    Raises:
        RequestError: There is no such job, or none that may be shown.
    """
    cycle, policy, settings = _seen(now)
    snap, found = cycle.snapshot, when.job_called(now, name, sight)
    new = [e for a in cycle.plan.actions if isinstance(a, Book) for e in a.entries]
    promise = promises_in(updated(snap.booked, new if cycle.acting else ())).get(found)
    told = _told(promise, snap.now_s)
    counted = counted_deadlines(snap, settings.deadlines, shared=not promises(policy))
    if promise is None and (why := counted.refused.get(found)):
        told |= {"says": "no", "why": f"its deadline does not count: {why}"}
    return {**_common(cycle, policy), "due_s": snap.seen.claim(found).due_s, **told}


def _seen(now: PublishedState) -> tuple[Cycle, Policy, Settings]:
    if now.cycle is None or now.policy is None:
        raise RequestError(RefusalKind.NOT_READY, "dlschedd has not seen the cluster yet")
    return now.cycle, now.policy, now.cycle.settings or settings_of(now.config)


def _common(cycle: Cycle, policy: Policy) -> JsonObject:
    return {"now_s": cycle.snapshot.now_s, "policy": policy.name}


def _told(promise: Promise | None, now_s: float) -> JsonObject:
    if promise is None:
        return dict.fromkeys(_FIELDS)
    begin_s = promise.begin_s
    return {
        **{name: getattr(promise, name) for name in _FIELDS if name != "spare_s"},
        "spare_s": None if begin_s is None else round(begin_s - now_s),
    }


_FIELDS = ("says", "begin_s", "end_s", "spare_s", "nearest_s", "why", "rests_on")


def _add_odds(
    forecasts: Forecasts,
    now: PublishedState,
    unsure: list[tuple[JsonObject, HypotheticalJob]],
    within_s: float | None,
) -> None:
    """Add the share of forward runs in which each job is over by its deadline, if there is one."""
    with contextlib.suppress(RequestError):  # the verdict stands without
        wanted = tuple(job for _, job in unsure)
        answer = when.answer_of(forecasts, now, wanted=wanted, within_s=within_s)
        runs = number(answer["runs"])
        for (row, _), one in zip(unsure, as_list(answer["wanted"]), strict=False):
            share = one.get("in_time") if isinstance(one, dict) else None
            if share is not None and runs >= LEAST_RUNS:
                row["odds"] = {"share": share, "runs": runs}
