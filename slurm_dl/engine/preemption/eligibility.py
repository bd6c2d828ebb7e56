"""Jobs that may be preempted, and jobs that others may be preempted for.

Each predicate answers with the reason, not with False: the same words go to ``why``, to the audit
log and to the admin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.preemption.slurm_refusals import (
    Protection,
    could_not_start_again,
    shielded_by_deadline,
)
from slurm_dl.engine.settings import Preemption
from slurm_dl.json_types import JsonObject
from slurm_dl.ledger.run_contracts import BROKEN
from slurm_dl.model.booking import Entry, entry, of_kind
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, NOT_HELD, PENDING, RUNNING, Bool, Held, is_in
from slurm_dl.model.plan import Book
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.reservations import shut_out

_ANEW_S: Final = 86_400.0  # While such a run lasts its entry is written anew this often


@dataclass(frozen=True, slots=True)
class Broken:
    """The last run of one user that was taken out of its contract."""

    job_id: int
    at_s: float  # When it was last written down, epoch seconds


def broke_contracts(snap: Snapshot, limits: Preemption) -> dict[int, Broken]:
    """Users whose contracts do not count, by uid: they forbade the requeue of a job that had one.

    Such a run keeps its GPUs, as Slurm refuses to requeue it. So that nobody gains by that, the
    user's jobs count as jobs without a contract while it lasts and for some time after it.
    """
    return {uid: b for uid, b in _known(snap).items() if _counts(b, snap, limits)}


def note_broken(snap: Snapshot, limits: Preemption) -> list[Book]:
    """Write down the runs that were taken out of their contract; strike out what counts no more."""
    jobs, known = snap.jobs, _known(snap)
    rows = is_in(jobs.job_id, list(snap.broken)) & snap.managed_jobs & (jobs.gpus > 0)
    now = dict(zip(jobs.uid[rows].tolist(), jobs.job_id[rows].tolist(), strict=True))
    new = {
        uid: job_id
        for uid, job_id in now.items()
        if uid not in known or abs(snap.now_s - known[uid].at_s) >= _ANEW_S
    }
    old = [uid for uid, b in known.items() if uid not in now and not _counts(b, snap, limits)]
    entries: list[Entry] = [entry(BROKEN, uid, None) for uid in old]
    for uid, job_id in new.items():
        body: JsonObject = {"job_id": job_id, "at_s": snap.now_s}
        entries.append(entry(BROKEN, uid, body))
    if not entries:
        return []
    ids = ", ".join(map(str, sorted(new.values())))
    why = f"Requeue=0 was set while jobs ran with a contract: {ids}" if new else "over"
    return [Book(entries=tuple(entries), why=why)]


def _known(snap: Snapshot) -> dict[int, Broken]:
    """Entries of the book by uid; a damaged one is passed over."""
    known = {}
    for uid, body in of_kind(snap.booked, BROKEN).items():
        job_id, at_s = body.get("job_id"), body.get("at_s")
        if uid.isdecimal() and isinstance(job_id, int) and isinstance(at_s, int | float):
            known[int(uid)] = Broken(job_id, float(at_s))
    return known


def _counts(broken: Broken, snap: Snapshot, limits: Preemption) -> bool:
    return abs(snap.now_s - broken.at_s) < limits.broken_contract_s


_WAITS_FOR = {
    Held.USER_OR_ADMIN: "it is held (scontrol release lets it go)",
    Held.DEPENDENCY: "it waits for another job (dependency)",
    Held.BEGIN_TIME: "it is not eligible yet (begin time, or the interval after a requeue)",
    Held.LIMIT: "it would pass a limit of its account, QOS or partition",
    Held.RESERVATION: "it waits for a reservation",
    Held.BY_HAND: "its priority was set by hand (Priority={priority}): slurm_dl leaves it alone",
    Held.UNAVAILABLE: "what it asks for is not available (constraints, nodes, licences)",
    Held.DATA: "its data is not there yet (dlsubmit --data-ready JOB says that it is)",
}

_BY_REASON = (
    ("DependencyNeverSatisfied", "the job that it depends on has ended otherwise: it never starts"),
    ("JobHeldUser", "it is held by its user (scontrol release lets it go)"),
    ("JobHeldAdmin", "it is held by an admin"),
    ("JobHoldMaxRequeue", "Slurm holds it: it was requeued too often"),
    ("Cleaning", "Slurm still cleans up after its last run"),
    ("JobArrayTaskLimit", "its array has as many tasks running as its own %N allows"),
    ("PartitionTimeLimit", "its time limit is above that of its partition"),
    ("PartitionNodeLimit", "it asks for a number of nodes that its partition does not allow"),
    ("PartitionDown", "its partition is down"),
    ("PartitionInactive", "its partition is inactive"),
    ("Assoc", "it would pass a limit of its account or user ({reason})"),
    ("MaxPoweredUpNodes", "as many nodes are powered up as the site allows"),
    ("QOSNotAllowed", "its account or partition does not allow its QOS"),
    ("QOS", "it would pass a limit of its QOS ({reason})"),
    ("Max", "it would pass a limit of its QOS or account ({reason})"),
    ("Licenses", "the licences that it asks for are in use"),
    ("BadConstraints", "no nodes have what it asks for (constraints)"),
    ("ReservationDeleted", "the reservation that it asks for is gone"),
)
"""By the beginning of Slurm's reason (its page job_reason_codes), longer ones first."""

NO_REQUEUE = "Slurm may not requeue it (--no-requeue, not a batch job, or a het job)"
"""Why a job that has opted in may not be preempted."""

PAST_ITS_SHARE = (
    "it is past the part of its time limit in which it may be preempted (`until` in its comment; "
    "for submitit 80 %, or 10 min before the end)"
)


@dataclass(frozen=True, slots=True, eq=False)
class Victims:
    """The managed running jobs, and which of them may be preempted.

    Attributes:
        rule: ``(r,)`` which of *reasons* protects each; 0 for those that may be preempted.
        reasons: Why a job is left alone; the first is empty, the last is that it is part of a
            hand-over already.
    """

    rows: npt.NDArray[np.int64]  # ``(r,)`` their rows in `Jobs`
    rule: npt.NDArray[np.int64]
    reasons: tuple[str, ...]
    passing: tuple[bool, ...]  # Of each reason, whether it may hold no longer while the run goes on

    @property
    def may(self) -> npt.NDArray[np.int64]:
        """Rows in `Jobs` of those that may be preempted."""
        may: npt.NDArray[np.int64] = self.rows[self.rule == 0]
        return may

    def why_not(self, row: int) -> str:
        """The reason why the job at *row* may be no victim, even of its own hand-over; or empty."""
        at = int(np.searchsorted(self.rows, row))
        if at == len(self.rows) or int(self.rows[at]) != row:
            return "it is not running in a managed partition"
        rule = int(self.rule[at])
        return "" if rule == len(self.reasons) - 1 else self.reasons[rule]

    def sparing(self, these: Bool, why: str) -> Victims:
        """The same, but that nobody of *these* may be preempted.

        Args:
            these: ``(n,)`` bool by row in `Jobs`.
        """
        last = len(self.reasons) - 1
        rule = np.where(self.rule == last, last + 1, self.rule)
        rule[these[self.rows] & (rule == 0)] = last
        return Victims(
            rows=self.rows,
            rule=rule,
            reasons=(*self.reasons[:-1], why, self.reasons[-1]),
            passing=(*self.passing[:-1], True, self.passing[-1]),
        )

    @property
    def staying(self) -> npt.NDArray[np.int64]:
        """Rows in `Jobs` of those that may not, but for those that a hand-over is about."""
        last = len(self.reasons) - 1
        staying: npt.NDArray[np.int64] = self.rows[(self.rule != 0) & (self.rule != last)]
        return staying

    @property
    def lasting(self) -> npt.NDArray[np.int64]:
        """Rows in `Jobs` of those that may not be preempted as long as their run goes on."""
        lasting: npt.NDArray[np.int64] = self.rows[~np.array(self.passing)[self.rule]]
        return lasting

    @property
    def protected(self) -> npt.NDArray[np.int64]:
        """Rows in `Jobs` of those that may not."""
        protected: npt.NDArray[np.int64] = self.rows[self.rule != 0]
        return protected


def victims(snap: Snapshot, limits: Preemption) -> Victims:
    """Every managed running job with the reason why it is left alone, if it is.

    A job that has not opted in by a contract is never a victim. Of several reasons the first
    below is given.
    """
    jobs = snap.jobs
    rows = (snap.managed_jobs & (jobs.state == RUNNING)).nonzero()[0]
    own, terms, *others = protections(snap, rows, limits)
    gpus = jobs.gpus[rows]
    shares = (gpus != np.floor(gpus), "it shares a GPU with other jobs", False)
    rules = (own, terms, shares, *others)
    return Victims(
        rows=rows,
        rule=_first_true([mask for mask, *_ in rules]),
        reasons=("", *(reason for _, reason, _ in rules)),
        passing=(True, *(passing for *_, passing in rules)),
    )


def _first_true(masks: Sequence[Bool]) -> npt.NDArray[np.int64]:
    """``(r,)`` number of the first of *masks* that is True, counted from 1; 0 if none is."""
    first = np.zeros(len(masks[0]), dtype=np.int64)
    for number in range(len(masks), 0, -1):
        first[masks[number - 1]] = number
    return first


def protections(
    snap: Snapshot, rows: npt.NDArray[np.int64], limits: Preemption
) -> tuple[Protection, ...]:
    """Protections of running jobs, whatever resources they hold; one entry for each rule.

    The first says who has not opted in, the last who is part of a hand-over already.

    Args:
        rows: ``(r,)`` rows in `Jobs`.
    """
    jobs, memory, now_s = snap.jobs, snap.memory, snap.now_s
    contracts = {j: c.contract for j, c in snap.seen.claims.items() if c.contract is not None}
    impatient = [j for j, c in contracts.items() if c.grace_s > limits.max_grace_s]
    busy = [v.run.job_id for h in snap.handovers for v in h.victims]
    busy += [b for h in snap.handovers for b in h.beneficiaries]
    job_id = jobs.job_id[rows]
    return (
        (~is_in(job_id, list(contracts)), "it has not opted in to preemption", False),
        (~jobs.requeueable[rows], NO_REQUEUE, False),
        (
            is_in(job_id, impatient),
            f"its grace is above the site's limit of {limits.max_grace_s:.0f} s",
            False,
        ),
        (
            now_s - jobs.start_s[rows] < limits.min_quantum_s,
            f"it is inside its minimum quantum of {limits.min_quantum_s:.0f} s",
            True,
        ),
        (
            memory.preemptions[rows] >= limits.max_preemptions,
            f"it has been preempted {limits.max_preemptions} times or more, the most allowed",
            False,
        ),
        (
            now_s - memory.last_preempted_s[rows] < limits.cooldown_s,
            f"it was preempted less than {limits.cooldown_s:.0f} s ago",
            True,
        ),
        (
            jobs.start_s[rows] + jobs.limit_s[rows] - now_s < limits.limit_reserve_s,
            "it is near its time limit",
            False,
        ),
        (past_its_share(snap, rows), PAST_ITS_SHARE, False),
        *could_not_start_again(snap, rows),
        # Last, so that every other reason is given before it.
        (is_in(job_id, busy), "it is part of a hand-over already", True),
    )


def past_its_share(snap: Snapshot, rows: npt.NDArray[np.int64]) -> Bool:
    """``(r,)`` bool: the run has had the share of its time limit that its claim names."""
    jobs = snap.jobs
    shares = {job_id: c.until for job_id, c in snap.seen.claims.items() if c.until is not None}
    past: Bool = is_in(jobs.job_id[rows], list(shares))
    mine = rows[past]
    share = np.array([shares[JobId(j)] for j in jobs.job_id[mine].tolist()])
    past[past] = snap.now_s - jobs.start_s[mine] > share * jobs.limit_s[mine]
    return past


def waits_for(snap: Snapshot, row: int) -> str:
    """The reason why no GPUs are taken back for the pending job at *row*, whatever its rank."""
    jobs = snap.jobs
    text = snap.seen.texts.get(JobId(int(jobs.job_id[row])))
    cause, reason = Held(int(jobs.held[row])), "" if text is None else text.reason.split(",")[0]
    words = _WAITS_FOR[cause]
    if cause is not Held.BY_HAND:
        words = next((w for first, w in _BY_REASON if reason.startswith(first)), words)
    return words.format(priority=int(jobs.priority[row]), reason=reason)


def waiting(snap: Snapshot) -> Bool:
    """``(n,)`` bool: managed, pending, and kept from starting by nothing but lack of room."""
    return snap.managed_jobs & lacks_room(snap)


def lacks_room(snap: Snapshot) -> Bool:
    """``(n,)`` bool: pending in whatever partition, and kept by nothing but lack of room."""
    jobs = snap.jobs
    mask: Bool = (jobs.state == PENDING) & (jobs.held == NOT_HELD) & (jobs.priority > 0)
    return mask


def displacers(snap: Snapshot, limits: Preemption, guaranteed: Bool | None = None) -> Bool:
    """``(n,)`` bool: jobs for which others may be preempted or moved.

    Unless the site says otherwise those are the jobs that may be preempted themselves: they have a
    contract that the site accepts. A job that has never run displaces nobody until it has waited
    for `Preemption.beneficiary_delay_s`. A job takes back the nodes that it is guaranteed in any
    case.
    """
    may: Bool = beneficiary_delay_left_s(snap, limits) <= 0
    if limits.beneficiaries != "all":
        may &= accepted(snap, limits)
    return may if guaranteed is None else may | guaranteed


def beneficiary_delay_left_s(snap: Snapshot, limits: Preemption) -> F64:
    """``(n,)`` seconds until others may be preempted for each waiting job; 0 or less: now."""
    memory = snap.memory
    left_s = memory.waiting_since_s + limits.beneficiary_delay_s - snap.now_s
    delayed: F64 = np.where(memory.ran_s > 0, 0.0, left_s)
    return delayed if limits.beneficiary_delay_s else np.zeros(len(left_s))


def accepted(snap: Snapshot, limits: Preemption) -> Bool:
    """``(n,)`` bool: jobs with a contract that the site accepts, and that Slurm may requeue.

    No contract of a user is accepted for a while after one was broken.
    """
    fits = [
        job_id
        for job_id, claim in snap.seen.claims.items()
        if claim.contract is not None and claim.contract.grace_s <= limits.max_grace_s
    ]
    may: Bool = is_in(snap.jobs.job_id, fits) & snap.jobs.requeueable
    may &= ~is_in(snap.jobs.uid, list(broke_contracts(snap, limits)))
    return may & ~shielded_by_deadline(snap)


def not_beneficiary(snap: Snapshot, row: int, may_displace: Bool, limits: Preemption) -> str:
    """The reason why no job is preempted for the waiting one at *row*; empty if one may be.

    Args:
        may_displace: See `displacers`.
    """
    gpus = float(snap.jobs.gpus[row])
    if gpus <= 0:
        return "it asks for no GPU"
    if gpus != int(gpus):
        return "it asks for shares of a GPU"
    if reason := _nowhere(snap, row):
        return reason
    return "" if may_displace[row] else _displaces_nobody(snap, row, limits)


def _nowhere(snap: Snapshot, row: int) -> str:
    """The reason why Slurm would not start the job at *row* on free GPUs; empty if it would."""
    if snap.seen.blocked and shut_out(snap, np.array([row]), np.array([snap.now_s]))[0]:
        return "its time limit ends after the next reservation of the nodes it could use begins"
    job_id = JobId(int(snap.jobs.job_id[row]))
    if option := snap.seen.unmodelled.get(job_id):
        return unmodelled(option)
    choice = snap.choice(job_id)
    if choice is not None and not choice.any():
        return (
            "no node is known to have all that it asks for (--nodelist, --constraint, --tmp, "
            "--gres), or it is part of a het job"
        )
    limit_s = float(snap.jobs.limit_s[row])
    if snap.seen.deadlines.get(job_id, math.inf) < snap.now_s + limit_s:
        return "its deadline comes before it could be over (--deadline)"
    return ""


def unmodelled(option: str) -> str:
    """The reason why no job is preempted for one with an *option* whose nodes are not known."""
    return (
        f"slurm_dl does not know which nodes have {option}: no GPUs are taken back for it, and "
        "Slurm starts it once they come free"
    )


def _displaces_nobody(snap: Snapshot, row: int, limits: Preemption) -> str:
    if limits.beneficiaries == "all" or accepted(snap, limits)[row]:
        waited_s = snap.now_s - float(snap.memory.waiting_since_s[row])
        return (
            f"it has waited {waited_s:.0f} s; GPUs are taken back for it after "
            f"{limits.beneficiary_delay_s:.0f} s (preemption.beneficiary_delay_s)"
        )
    claim = snap.seen.claim(JobId(int(snap.jobs.job_id[row])))
    if claim.contract is None:
        lacks = "it has not opted in to preemption"
        if claim.unreadable:
            lacks = "the contract in its comment is unreadable, so " + lacks
        remedy = "; to opt in, submit it with dlsubmit, or with a contract in its comment"
    elif not snap.jobs.requeueable[row]:
        lacks, remedy = NO_REQUEUE, ""
    elif broke := broke_contracts(snap, limits).get(int(snap.jobs.uid[row])):
        lacks = f"its user forbade the requeue of job {broke.job_id}, which ran with a contract"
        left_s = broke.at_s + limits.broken_contract_s - snap.now_s
        remedy = f" (for {left_s:.0f} s more)"
    elif shielded_by_deadline(snap)[row]:
        lacks, remedy = "its deadline leaves no time to stop it and start it again", ""
    else:
        lacks, remedy = "its grace is above the site's limit", "; submit it with a shorter one"
    return f"{lacks}, and no job is preempted for a job that may not be preempted itself{remedy}"


def tried_in_vain(snap: Snapshot, row: int, base_s: float) -> str:
    """The reason why no GPUs are freed now for the waiting job at *row*; empty if they may be."""
    times = int(snap.memory.fruitless[row])
    if not times:
        return ""
    left_s = float(pause_after_vain_tries_s(snap, np.array([row]), base_s)[0])
    if left_s <= 0:
        return ""
    return (
        f"GPUs were freed for it {times} times and Slurm did not start it; "
        f"the next try is in {left_s:.0f} s at the earliest"
    )


def pause_after_vain_tries_s(snap: Snapshot, rows: npt.NDArray[np.int64], base_s: float) -> F64:
    """``(len(rows),)`` seconds until GPUs may be freed again for each job; 0 or less: now.

    What was freed for a job before did not make it start: what Slurm knows and we do not keeps it
    from starting. Each time the pause is twice as long.
    """
    memory = snap.memory
    times = memory.fruitless[rows]
    pause_s = base_s * 2.0 ** np.minimum(times - 1, 10)
    left_s: F64 = np.where(times > 0, memory.last_fruitless_s[rows] + pause_s - snap.now_s, 0.0)
    return left_s
