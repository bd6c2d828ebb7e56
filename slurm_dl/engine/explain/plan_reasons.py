"""A plan in sentences, for the user who asks why.

Only what the cycle and the audit trail say goes in; nothing is guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.deadlines import counted_deadlines
from slurm_dl.engine.explain.commitment_cost import commitment_cost, commitment_text
from slurm_dl.engine.explain.past_reasons import (
    EVERYTHING,
    Sight,
    ended_on_request,
    how_it_gave_way,
    in_words,
    moment,
    span,
)
from slurm_dl.engine.explain.size_reasons import size_reasons
from slurm_dl.engine.placing.place_waiting import named
from slurm_dl.engine.preemption.commitment import with_commitment
from slurm_dl.engine.preemption.eligibility import NO_REQUEUE, PAST_ITS_SHARE, past_its_share
from slurm_dl.engine.preemption.start_again import could_not_start_again
from slurm_dl.engine.preemption.stopping_cost import stopping_cost
from slurm_dl.engine.settings import Deadlines, External, Native
from slurm_dl.ledger.job_past import PastJob
from slurm_dl.model.contract import Claim
from slurm_dl.model.estimate_origin import Origin
from slurm_dl.model.handover import Purpose, VictimState
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, JobState
from slurm_dl.model.plan import OpenHandover
from slurm_dl.placement.resource_request import ResourceRequests
from slurm_dl.policies.base import Policy

UNREADABLE = (
    "Its comment names slurm_dl, but the contract in it is unreadable (quotes lost, cut short, or "
    "a wrong value; put the comment in single quotes, as in "
    """--comment='{"slurm_dl":{"v":1,"sig":"USR1"}}', or submit with dlsubmit). """
    "So it has not opted in to preemption"
)

MOST_NAMED = 4
"""Nodes that are named in a sentence."""


def why(
    cycle: Cycle,
    policy: Policy,
    job_id: JobId,
    history: Sequence[Mapping[str, object]] = (),
    sight: Sight = EVERYTHING,
    *,
    past: PastJob | None = None,
) -> list[str]:
    """The sentences of ``dlqueue why``: rank, jobs ahead, next tier, past actions, Slurm's reason.

    Args:
        history: Audit entries of the job, oldest first; ``time``, ``action``, ``reason`` and
            ``result`` are read.
        sight: What of other jobs may be told; the job itself always is.
        past: What the ledger knows of it beside the snapshot.

    Returns:
        Sentences; one that says so if Slurm does not list the job.
    """
    snap = cycle.snapshot
    row = snap.jobs.row_of().get(job_id)
    if row is None:
        return [f"Slurm does not list job {job_id} any more.", *audit_sentences(history, sight)]
    text = snap.seen.texts.get(job_id)
    label = text.label if text else str(job_id)
    sentences = [_state(cycle, row, label), *_progress(cycle, row, job_id)]
    if cycle.plan.rank[row] >= 0:
        sentences += [_standing(cycle, row), *_ahead(cycle, row, sight)]
        sentences += [
            *_kept(cycle, policy, row),
            *_next_tier(cycle, policy, row),
            *_due(cycle, policy, row, job_id),
        ]
    elif snap.jobs.state[row] not in (JobState.COMPLETED, JobState.FAILED):
        sentences.append("It is not in a partition that slurm_dl manages: only Slurm orders it.")
    sentences += _handover(cycle, job_id, sight)
    note = cycle.plan.notes.get(job_id)
    if note:
        sentences.append(f"At the last look: {sight.text(note)}.")
    sentences += _steered(cycle, row, job_id, sight)
    sentences += _opted(cycle, row, job_id)
    sentences += size_reasons(cycle, policy, row)
    if past:
        sentences += how_it_gave_way(past, sight)
        if snap.jobs.state[row] == JobState.COMPLETED:
            sentences += ended_on_request(past, float(snap.jobs.end_s[row]))
    sentences += _not_before(cycle, row, job_id)
    if text and text.reason and text.reason != "None":
        sentences.append(f"Slurm's own reason: {text.reason}.")
    return [*sentences, *audit_sentences(history, sight)]


def _state(cycle: Cycle, row: int, label: str) -> str:
    snap = cycle.snapshot
    jobs, now_s = snap.jobs, snap.now_s
    state = JobState(int(jobs.state[row]))
    gpus = f"{jobs.gpus[row]:g} GPU" + ("" if jobs.gpus[row] == 1 else "s")
    if state is JobState.RUNNING:
        ran = span(now_s - jobs.start_s[row])
        return f"Job {label} has been running on {gpus} for {ran}."
    if state is JobState.PENDING:
        waited = span(now_s - snap.memory.waiting_since_s[row])
        again = " (it has run before)" if snap.memory.ran_s[row] > 0 else ""
        return f"Job {label} has been waiting for {gpus} for {waited}{again}."
    return f"Job {label} is {state.name.lower()}."


def _progress(cycle: Cycle, row: int, job_id: JobId) -> list[str]:
    """The job's own report: share of its work, rate, and the time left by that."""
    snap = cycle.snapshot
    claim = snap.seen.claim(job_id)
    if snap.jobs.state[row] >= COMPLETING or (claim.progress is None and claim.rate is None):
        return []
    # Rounded down: all is done only when it says so.
    share = None if claim.progress is None else f"{math.floor(claim.progress * 100 + 1e-6)}% done"
    rate = None if claim.rate is None else f"{claim.rate:.4g} steps/s"
    sentence = f"It reports {', '.join(word for word in (share, rate) if word)}"
    if snap.left_from is not None and snap.left_from[row] == Origin.REPORTED:
        sentence += f"; at the pace so far {span(snap.left_s[row])} of running are left"
    return [f"{sentence}."]


def _standing(cycle: Cycle, row: int) -> str:
    plan, memory = cycle.plan, cycle.snapshot.memory
    hours = memory.attained_gpu_s[row] / 3600
    live = int((plan.rank >= 0).sum())
    return (
        f"It has rank {plan.rank[row] + 1} of {live}, in tier {plan.tier[row]}, "
        f"with {hours:.2f} GPU-hours of service so far."
    )


def _kept(cycle: Cycle, policy: Policy, row: int) -> list[str]:
    """GPU time that a waiting job counts in advance, as nobody could take it back."""
    snap, settings = cycle.snapshot, cycle.settings
    if settings is None or snap.jobs.state[row] != JobState.PENDING:
        return []
    cost = commitment_cost(snap, policy, settings, row)
    return [] if cost is None else [commitment_text(snap, cost, row, settings.preemption)]


def _ahead(cycle: Cycle, row: int, sight: Sight) -> list[str]:
    plan, jobs, snap = cycle.plan, cycle.snapshot.jobs, cycle.snapshot
    if jobs.state[row] != JobState.PENDING:
        return []
    before = np.flatnonzero((plan.rank >= 0) & (plan.rank < plan.rank[row]))
    if not len(before):
        return ["No job is ahead of it."]
    running = before[jobs.state[before] == JobState.RUNNING]
    waiting = before[jobs.state[before] == JobState.PENDING]
    first = waiting[np.argsort(plan.rank[waiting])][:5]
    first = first[[sight.knows(job_id) for job_id in jobs.job_id[first].tolist()]]
    names = ", ".join(_label(snap.seen.texts, int(jobs.job_id[r])) for r in first)
    sentence = f"Ahead of it are {len(running)} running and {len(waiting)} waiting jobs"
    return [sentence + (f", first {names}." if names else ".")]


def _label(texts: Mapping[JobId, object], job_id: int) -> str:
    text = texts.get(JobId(job_id))
    return str(getattr(text, "label", job_id))


def _next_tier(cycle: Cycle, policy: Policy, row: int) -> list[str]:
    # Under a finer order service alone does not move a job to another tier.
    edges = getattr(policy, "thresholds_gpu_s", ()) if policy.preempts == "tier" else ()
    tier = int(cycle.plan.tier[row])
    if tier >= len(edges):
        return ["It is in the last tier."] if edges else []
    snap, memory = cycle.snapshot, cycle.snapshot.memory
    if cycle.settings is not None:
        snap = with_commitment(snap, policy, cycle.settings.preemption)
    if getattr(policy, "dimensions", 2) == 1:
        left_s = edges[tier] - (snap.service(1)[row] - memory.forgiven_ran_s[row])
        return [f"It moves to tier {tier + 1} after {span(left_s)} of running."]
    left_gpu_s = edges[tier] - (snap.service()[row] - memory.forgiven_gpu_s[row])
    gpus = float(cycle.snapshot.jobs.gpus[row])
    if not (gpus > 0 and math.isfinite(left_gpu_s)):
        return []
    more = f"{left_gpu_s / 3600:.2f} more GPU-hours, {span(left_gpu_s / gpus)} of running"
    return [f"It moves to tier {tier + 1} after {more}."]


def _due(cycle: Cycle, policy: Policy, row: int, job_id: JobId) -> list[str]:
    """The deadline of a job, with the time to spare if its remaining time is known."""
    snap = cycle.snapshot
    at_s = snap.seen.claim(job_id).due_s
    if at_s is None:
        return []
    due = f"Due {moment(at_s)}"
    if "due_s" not in policy.about.needs:
        return [f"{due}, but policy {policy.name} does not go by deadlines."]
    rules = Deadlines() if cycle.settings is None else cycle.settings.deadlines
    refused = counted_deadlines(snap, rules).refused.get(job_id)
    if refused:
        return [f"{due}; its deadline is not counted: {refused}."]
    spare_s = at_s - snap.now_s - float(snap.left_s[row])
    if not math.isfinite(spare_s):
        return [f"{due}."]
    # A time limit is an upper bound.
    limit = snap.left_from is None or snap.left_from[row] == Origin.DECLARED
    if spare_s >= 0:
        return [f"{due}, {'at least ' if limit else ''}{span(spare_s)} to spare."]
    return [f"{due}, {'up to ' if limit else ''}{span(-spare_s)} too late if it ran from now on."]


def _handover(cycle: Cycle, job_id: JobId, sight: Sight) -> list[str]:
    sentences = []
    for handover in cycle.snapshot.handovers:
        ids = [v.run.job_id for v in handover.victims]
        if job_id in handover.beneficiaries:
            # Where they run is theirs too.
            on = f" on {_some(handover.nodes)}" if all(map(sight.knows, ids)) else ""
            sentences.append(
                f"Hand-over {handover.handover_id} is freeing GPUs for it: "
                f"{sight.jobs(ids)} give way{on}."
            )
        for victim in handover.victims:
            if victim.run.job_id != job_id:
                continue
            gives_way = _GIVES_WAY[handover.purpose]
            if victim.then is not None:
                gives_way = f"to save and go on with {in_words(victim.then)}"
            done = {
                VictimState.CHOSEN: f"it has been chosen {gives_way}",
                VictimState.SIGNALLING: f"it is being sent {victim.contract.signal}",
                VictimState.SIGNALLED: (
                    f"it was sent {victim.contract.signal} and has "
                    f"{victim.contract.grace_s:.0f} s to save its work"
                ),
                VictimState.REQUEUING: "it is being requeued",
                VictimState.GONE: f"it has given way ({victim.outcome})",
            }[victim.state]
            best = sight.jobs(handover.beneficiaries[:3])
            for_whom = f" for {best}" if best else ""
            sentences.append(f"Hand-over {handover.handover_id}{for_whom}: {done}.")
    return [*sentences, *_would_be(cycle, job_id, sight)]


def _would_be(cycle: Cycle, job_id: JobId, sight: Sight) -> list[str]:
    """Hand-overs about it that are not begun because the daemon only looks."""
    if cycle.acting:
        return []
    planned = [a for a in cycle.plan.actions if isinstance(a, OpenHandover)]
    return [
        f"If the daemon acted, it would begin a hand-over now: {sight.text(action.why)}."
        for action in planned
        if job_id in action.handover.beneficiaries
        or job_id in [victim.run.job_id for victim in action.handover.victims]
    ]


_GIVES_WAY: Mapping[Purpose, str] = {
    "preempt": "to give way",
    "defragment": "to move to other nodes, where there is room for it",
    "reshape": "to move to faster GPUs that are free",
    "split": "to leave the GPU that it shares: both jobs there are slower than one after the other",
}


def _steered(cycle: Cycle, row: int, job_id: JobId, sight: Sight) -> list[str]:
    """Nodes that a waiting job is kept from, and the time."""
    snap, now_s = cycle.snapshot, cycle.snapshot.now_s
    steer = snap.steers.get(job_id)
    if steer is None or snap.jobs.state[row] != JobState.PENDING:
        return []
    if steer.kind == "over":
        return ["It was to go elsewhere than Slurm would have it, and may start anywhere now."]
    sentences, because = [], sight.text(steer.why)
    if steer.avoid:
        nodes = snap.seen.nodes
        left = ResourceRequests(snap).of(row).allowed & ~named(nodes, steer.avoid)
        names = [nodes.name[n] for n in np.flatnonzero(left).tolist()]
        where = f"left to it are {_some(names)}" if names else "no node that is up is left to it"
        until = f" for {span(steer.until_s - now_s)}" if math.isfinite(steer.until_s) else ""
        kept = f"{len(steer.avoid)} node" + ("" if len(steer.avoid) == 1 else "s")
        sentences.append(f"It is kept from {kept}{until}: {where} ({because}).")
    if steer.not_before_s > now_s:
        sentences.append(
            f"It is put off for {span(steer.not_before_s - now_s)}, and at each look anew "
            f"({because})."
        )
    return sentences


def _some(names: Sequence[str]) -> str:
    """The first few of *names*."""
    return ", ".join(names[:MOST_NAMED]) + (" ..." if len(names) > MOST_NAMED else "")


def _opted(cycle: Cycle, row: int, job_id: JobId) -> list[str]:
    snap = cycle.snapshot
    claim = snap.seen.claim(job_id)
    times = int(snap.memory.preemptions[row])
    often = f"{times} time{'' if times == 1 else 's'}"
    match cycle.mode:
        case External():
            count = f"It has been preempted {often}." if times else ""
        case Native(qos=qos):
            # Slurm does not tell a job that it preempted from one that put itself back.
            count = f"It has been put back into the queue {often}." if times else ""
            text = snap.seen.texts.get(job_id)
            if text is None or text.qos != qos:
                return [f"It is not in QOS {qos}, inside which Slurm preempts: it keeps its GPUs."]
    if claim.contract is None:
        what = UNREADABLE if claim.unreadable else "It has not opted in to preemption"
        return [f"{what} and is never signalled or requeued."]
    grace_s = claim.contract.grace_s
    if not snap.jobs.requeueable[row]:
        agreed = f"It is not preempted: {NO_REQUEUE}."
    elif grace_s > cycle.max_grace_s:
        agreed = (
            f"It is not preempted: its grace of {grace_s:g} s is above the site's limit of "
            f"{cycle.max_grace_s:g} s (preemption.max_grace_s)."
        )
    elif snap.jobs.state[row] == JobState.RUNNING and past_its_share(snap, np.array([row]))[0]:
        agreed = f"It is not preempted: {PAST_ITS_SHARE}."
    elif lost := _could_not_start_again(cycle, row):
        agreed = f"It is not preempted: {lost}."
    else:
        agreed = (
            f"If it is preempted it gets {claim.contract.signal} and up to "
            f"{grace_s:.0f} s to save its work."
        )
    may = bool(snap.jobs.requeueable[row]) and grace_s <= cycle.max_grace_s
    cost = _stopping(cycle, row) if may else []
    return [agreed, *cost, *([count] if count else []), *_unhandled(claim)]


def _could_not_start_again(cycle: Cycle, row: int) -> str:
    """The reason why Slurm would not start the running job at *row* again; empty if it would."""
    if cycle.snapshot.jobs.state[row] != JobState.RUNNING:
        return ""
    rules = could_not_start_again(cycle.snapshot, np.array([row], dtype=np.int64))
    return next((reason for _, reason, _ in rules), "")


def _stopping(cycle: Cycle, row: int) -> list[str]:
    """Cost of stopping a running job now."""
    snap, settings = cycle.snapshot, cycle.settings
    if settings is None or isinstance(cycle.mode, Native):
        return []
    if snap.jobs.state[row] != JobState.RUNNING:
        return []
    cost = stopping_cost(snap, np.array([row]), settings)
    return [f"Stopping it now would cost {cost.in_words()}."]


def _unhandled(claim: Claim) -> list[str]:
    run, acked = claim.unhandled_run, claim.acked_run
    if run is None or claim.contract is None or (acked is not None and acked >= run):
        return []
    name = claim.contract.signal
    told = (
        f"In its run {run} nothing took {name}: the command under dlrun has no handler for it (a "
        "shell or torchrun passes none on), and the script does not call "
        "job.should_checkpoint(). So it loses the work since its last checkpoint when it gives "
        "way, and it gives way some seconds after the signal. Its log says more; 'dlctl "
        "test-signal' tries it out."
    )
    return [told]


def _not_before(cycle: Cycle, row: int, job_id: JobId) -> list[str]:
    """Time before which Slurm does not start a waiting job; it delays every job after a requeue."""
    snap = cycle.snapshot
    at_s = snap.seen.begins.get(job_id, 0.0)
    if snap.jobs.state[row] != JobState.PENDING or not snap.now_s < at_s < math.inf:
        return []
    return [f"Slurm does not start it before {moment(at_s)}, in {span(at_s - snap.now_s)}."]


def audit_sentences(history: Sequence[Mapping[str, object]], sight: Sight) -> list[str]:
    """The lines of the audit log, as sentences."""
    return [
        f"{str(entry.get('time', '?'))[:19]}: {entry.get('action', '?')}: "
        f"{sight.text(str(entry.get('reason', '')))} ({sight.text(str(entry.get('result', '?')))})"
        for entry in history
    ]
