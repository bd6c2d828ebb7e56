"""Promises of deadlines in words, and the cost of GPU time that nobody can take back.

They are for the user who asks why, and promises for the audit log too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_dl.engine.explain.past_reasons import moment, span
from slurm_dl.engine.intent import places, rank_jobs
from slurm_dl.engine.preemption.commitment import with_commitment
from slurm_dl.engine.preemption.eligibility import broke_contracts
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.model.booking import Entry, updated
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, PENDING
from slurm_dl.model.plan import Book, Plan
from slurm_dl.model.promise import KIND, Promise, promises_in
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy

_CAUSES: Final[Mapping[str, str]] = {
    "": "it was not done by then",
    "estimate": "the job runs longer than was expected",
    "node": "too few nodes are up",
    "preemption_off": "other jobs hold its GPUs, and no GPUs are taken back now",
    "room": "other jobs hold its GPUs, and these cannot be taken back",
}
_MOST_NAMED = 20  # Jobs that one reason names; the details of the audit log's line have them all


def promise_sentences(
    snap: Snapshot, plan: Plan, booked: Sequence[Entry], policy: Policy, row: int
) -> list[str]:
    """The answer to a job's deadline, and where it stands; none if it has no answer.

    Args:
        booked: The book after the cycle. Where it differs from the plan's, nothing was written.
    """
    job_id = JobId(int(snap.jobs.job_id[row]))
    stands = promises_in(booked).get(job_id)
    wanted = (e for a in plan.actions if isinstance(a, Book) for e in a.entries)
    promise = promises_in(updated(snap.booked, wanted)).get(job_id, stands)
    if promise is None:
        return []
    would = promise != stands
    told = [f"{_verdict('It', promise, would=would)}{_standing(snap, row, promise)}."]
    if would:
        told.append("Promises are not written down while dlschedd does not act.")
    elif not keeps_promises(policy):
        told.append(f"Policy {policy.name} does not keep promises.")
    return told


def _verdict(who: str, promise: Promise, *, would: bool = False) -> str:
    no = "not " if promise.says == "no" else ""
    verb = f"would {no}be" if would else f"is {no}".strip()
    told = f"{who} {verb} promised to be done by {moment(promise.due_s)}"
    if no:
        nearest = promise.nearest_s
        later = f"; {moment(nearest)} could be promised when it was asked" if nearest else ""
        return f"{told}: {promise.why}{later}"
    if not promise.is_kept:
        return f"{told}, but that is broken: {_CAUSES[promise.broken]}"
    window = f"from {moment(promise.begin_s or 0)} to {moment(promise.end_s or 0)}"
    if len(promise.plan) > 1:
        window = f"in {len(promise.plan)} parts {window}"
    rests = "time limit" if promise.rests_on == "limit" else "estimated run time"
    return f"{told}: {promise.gpus:g} GPUs are kept {window}, by its {rests}"


def _standing(snap: Snapshot, row: int, promise: Promise) -> str:
    if not promise.is_kept:
        return ""
    where = "it runs under its promise"
    if snap.jobs.state[row] == PENDING:
        begun = (promise.begin_s or 0) <= snap.now_s
        where = "its window has begun, and it comes first" if begun else "it waits"
    left_s = spare_s(snap, row, promise)
    return f"; {where}, {span(abs(left_s))} {'to spare' if left_s >= 0 else 'too late by now'}"


def spare_s(snap: Snapshot, row: int, promise: Promise) -> float:
    """Seconds until the window begins; later those from the expected end to the deadline."""
    if snap.jobs.state[row] == PENDING and promise.begin_s and promise.begin_s > snap.now_s:
        return promise.begin_s - snap.now_s
    left_s = float(snap.left_s[row])
    return promise.due_s - snap.now_s - (left_s if math.isfinite(left_s) else promise.needs_s)


def state_of(snap: Snapshot, row: int | None, promise: Promise) -> str:
    """State of a promise in a word; *row* is of its job, None if Slurm does not list it."""
    if promise.says == "no":
        return "refused"
    if not promise.is_kept:
        return "broken"
    if row is None or snap.jobs.state[row] >= COMPLETED:
        return "over"
    return "waiting" if snap.jobs.state[row] == PENDING else "running"


def keeps_promises(policy: Policy) -> bool:
    """True if promises can be given and kept under *policy*."""
    return bool(getattr(policy, "promises", False))


def booked_in_words(policy: str, entries: Sequence[Entry]) -> str:
    """The reason of a `Book`: each job's verdict, and the kinds of other entries."""
    told = [_verdict(f"job {job_id}", p) for job_id, p in promises_in(entries).items()]
    gone = [e.key for e in entries if e.kind == KIND and not e.body]
    kinds = sorted({e.kind for e in entries} - {KIND})
    rest = [f"jobs with a settled deadline: {', '.join(gone[:_MOST_NAMED])}"] if gone else []
    rest += [f"{policy} writes down {', '.join(kinds)}"] if kinds else []
    more = ["..."] if len(told) > _MOST_NAMED else []
    return "; ".join([*told[:_MOST_NAMED], *more, *rest])


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentCost:
    """GPU time that one waiting job counts in advance."""

    gpu_s: float  # GPU-seconds of its next run that nobody can take back
    place: int  # Its place in the policy's order, from 1
    place_without: int  # Its place if it counted none


def commitment_cost(
    snap: Snapshot, policy: Policy, settings: Settings, row: int
) -> CommitmentCost | None:
    """Cost for the waiting job at *row*; None if it counts none, or the policy goes by other."""
    counted = with_commitment(snap, policy, settings.preemption)
    if counted.committed_s is None or not counted.kept()[row] > 0:
        return None
    none = counted.committed_s.copy()
    none[row] = 0.0
    orders = []
    for asked in (counted, dataclasses.replace(counted, committed_s=none)):
        order = policy.order(asked)
        ranks = places(rank_jobs(asked, order, policy.preempts), len(snap.jobs))
        orders.append((order, int(ranks[row]) + 1))
    (one, place), (other, place_without) = orders
    if (one.tier[row], one.key[row]) == (other.tier[row], other.key[row]):
        return None
    return CommitmentCost(
        gpu_s=float(counted.kept()[row]), place=place, place_without=place_without
    )


def commitment_text(snap: Snapshot, cost: CommitmentCost, row: int, limits: Preemption) -> str:
    """*cost* as a sentence for ``dlqueue why``, with what would spare it."""
    claim = snap.seen.claim(JobId(int(snap.jobs.job_id[row])))
    if not snap.jobs.requeueable[row]:
        remedy = "If Slurm could requeue it (--requeue), and with a contract,"
    elif int(snap.jobs.uid[row]) in broke_contracts(snap, limits):
        remedy = "If its user had not forbidden the requeue of a job with a contract,"
    elif claim.contract is None:
        remedy = "With a contract"
    elif claim.contract.grace_s > limits.max_grace_s:
        remedy = "With a grace that the site accepts"
    else:
        remedy = "Without `until`"
    place = ""
    if cost.place != cost.place_without:
        place = f": place {cost.place_without} in place of {cost.place} in the policy's order"
    return (
        f"It counts {cost.gpu_s / 3600:.2f} GPU-hours that nobody can take back from it. "
        f"{remedy} it would count none{place}."
    )
