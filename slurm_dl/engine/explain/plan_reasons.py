"""A plan in sentences, for the user who asks why.

Only what the cycle and the audit trail say goes in; nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.explain.past_reasons import (
    EVERYTHING,
    Everything,
    Sight,
    audit_sentences,
    how_it_gave_way,
    moment,
    span,
    why_over,
)
from slurm_dl.engine.explain.promise_reasons import (
    commitment_cost,
    commitment_text,
    promise_sentences,
)
from slurm_dl.engine.explain.size_reasons import handover_reasons, size_reasons, some
from slurm_dl.engine.failed_jobs import failure_reasons
from slurm_dl.engine.fresh_look import THERE_IS_ROOM
from slurm_dl.engine.placing.place_waiting import named
from slurm_dl.engine.preemption.commitment import with_commitment
from slurm_dl.engine.preemption.eligibility import NO_REQUEUE, PAST_ITS_SHARE, past_its_share
from slurm_dl.engine.preemption.slurm_refusals import could_not_start_again
from slurm_dl.engine.preemption.stopping_cost import stopping_cost
from slurm_dl.engine.promise_terms import counted_deadlines, promises
from slurm_dl.engine.settings import Deadlines, External, Native
from slurm_dl.ledger.completions import PastJob, endings_at
from slurm_dl.model.contract import Claim
from slurm_dl.model.handover import VictimState
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import BY_HAND, COMPLETED, COMPLETING, NOT_HELD, JobState, Origin
from slurm_dl.placement.resource_request import ResourceRequests
from slurm_dl.policies.base import Policy

UNREADABLE = (
    "Its comment names slurm_dl, but the contract in it is unreadable (quotes lost, cut short, or "
    "a wrong value; put the comment in single quotes, as in "
    """--comment='{"slurm_dl":{"v":1,"sig":"USR1"}}', or submit with dlsubmit). """
    "So it has not opted in to preemption"
)

SOON_S = 10.0  # A start that Slurm plans within so many seconds is no later than its next pass


def why(
    cycle: Cycle,
    policy: Policy,
    job_id: JobId,
    history: Sequence[Mapping[str, object]] = (),
    sight: Sight = EVERYTHING,
    *,
    past: PastJob | None = None,
    at_s: float = 0.0,
    forecast: str = "",
) -> list[str]:
    """The sentences of ``dlqueue why``: rank, jobs ahead, next tier, past actions, Slurm's reason.

    Args:
        history: Audit entries of the job, oldest first; ``epoch_s``, ``action``, ``reason``
            and ``result`` are read.
        sight: What of other jobs may be told; the job itself always is.
        past: What the ledger knows of it beside the snapshot.
        at_s: When it is asked, epoch seconds by the snapshot's clock, if that is later than it.
        forecast: A clause on when it is expected to start, beside Slurm's plan.

    Returns:
        Sentences; one that says so if Slurm does not list the job.
    """
    snap = cycle.snapshot
    row = snap.jobs.rows.get(job_id)
    if row is None:
        return [f"Slurm does not list job {job_id} any more.", *audit_sentences(history, sight)]
    text = snap.seen.texts.get(job_id)
    label = text.label if text else str(job_id)
    if snap.jobs.state[row] >= COMPLETED:
        over = [*_over(cycle, row, job_id, past, sight), *_failures(cycle, job_id)]
        return [*over, *audit_sentences(history, sight)]
    at_s = max(at_s, snap.now_s)
    sentences = [_state(cycle, row, label), *_progress(cycle, row, job_id)]
    if cycle.plan.rank[row] >= 0:
        sentences += [_standing(cycle, row, sight), *_ahead(cycle, row, sight)]
        sentences += [
            *_kept(cycle, policy, row),
            *_next_tier(cycle, policy, row),
            *(
                promise_sentences(snap, cycle.plan, cycle.booked, policy, row)
                or _due(cycle, policy, row, job_id)
            ),
        ]
    else:
        sentences.append("It is not in a partition that slurm_dl manages: only Slurm orders it.")
    sentences += handover_reasons(cycle, job_id, sight, at_s)
    planned = _planned(cycle, row, job_id, forecast)
    note = cycle.plan.notes.get(job_id)
    if note:
        note = note.replace(THERE_IS_ROOM, _ROOM_LATER) if planned else note
        sentences.append(f"At the last look: {sight.text(note)}.")
    sentences += planned
    sentences += _steered(cycle, row, job_id, sight)
    if snap.jobs.state[row] < COMPLETING:
        sentences += _opted(cycle, row, job_id)
    sentences += size_reasons(cycle, policy, row)
    if past:
        sentences += how_it_gave_way(past, sight)
    sentences += [*_failures(cycle, job_id), *_not_before(cycle, row, job_id)]
    if text and text.reason and text.reason != "None":
        sentences.append(f"Slurm's own reason: {text.reason}.")
    return [*sentences, *audit_sentences(history, sight)]


def _failures(cycle: Cycle, job_id: JobId) -> list[str]:
    rules = None if cycle.settings is None else cycle.settings.retries
    return failure_reasons(cycle.snapshot, cycle.booked, job_id, rules)


def _over(cycle: Cycle, row: int, job_id: JobId, past: PastJob | None, sight: Sight) -> list[str]:
    """The story of a job that is over and that Slurm still lists."""
    snap, memory = cycle.snapshot, cycle.snapshot.memory
    known = past or PastJob(
        job_id=job_id,
        attained_gpu_s=float(memory.attained_gpu_s[row]),
        ran_s=float(memory.ran_s[row]),
        preemptions=int(memory.preemptions[row]),
    )
    (ending,) = endings_at([row], snap.seen, snap.memory)
    return why_over(
        dataclasses.replace(known, ending=ending),
        sight,
        status=snap.seen.failed_with.get(job_id),
        saved_s=snap.seen.claim(job_id).saved_s,
    )


_ROOM_LATER = "there is room for it by what slurm_dl knows, but not by Slurm's plan"


def _planned(cycle: Cycle, row: int, job_id: JobId, forecast: str) -> list[str]:
    """Slurm's own plan for a waiting job, if that is later than its next pass."""
    snap = cycle.snapshot
    start_s = snap.seen.planned.get(job_id, 0.0)
    if snap.jobs.state[row] != JobState.PENDING or start_s <= snap.now_s + SOON_S:
        return []
    ours = f"; {forecast}" if forecast else ""
    return [f"Slurm plans to start it at {moment(start_s)}, {span(start_s - snap.now_s)} on{ours}."]


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


def _standing(cycle: Cycle, row: int, sight: Sight) -> str:
    plan, memory = cycle.plan, cycle.snapshot.memory
    hours = memory.attained_gpu_s[row] / 3600
    total = f" of {(plan.rank >= 0).sum()}" if isinstance(sight, Everything) else ""
    return (
        f"It has rank {plan.rank[row] + 1}{total}, in tier {plan.tier[row]}, "
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
    running = before[jobs.state[before] == JobState.RUNNING]
    waits = before[jobs.state[before] == JobState.PENDING]
    waiting = waits[np.isin(jobs.held[waits], (NOT_HELD, BY_HAND))]
    kept = len(waits) - len(waiting)
    rest = [f"{kept} more of a better rank may not start now, whatever is free."] if kept else []
    if not (len(running) or len(waiting)):
        return ["No job is ahead of it.", *rest]
    first = waiting[np.argsort(plan.rank[waiting])][:5]
    first = first[[sight.knows(job_id) for job_id in jobs.job_id[first].tolist()]]
    names = ", ".join(_label(snap.seen.texts, int(jobs.job_id[r])) for r in first)
    sentence = f"Ahead of it are {len(running)} running and {len(waiting)} waiting jobs"
    return [sentence + (f", first {names}." if names else "."), *rest]


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
    shared = not promises(policy)
    counted = counted_deadlines(snap, rules, shared=shared)
    if refused := counted.refused.get(job_id):
        return [f"{due}; its deadline is not counted: {refused}."]
    if job_id in counted.curves and counted.due_s is not None:  # Of several another may count now.
        at_s = int(counted.due_s[row])
        due = f"Due {moment(at_s)}"
    spare_s = at_s - snap.now_s - float(snap.left_s[row])
    if not math.isfinite(spare_s):
        return [f"{due}."]
    # A time limit is an upper bound.
    limit = snap.left_from is None or snap.left_from[row] == Origin.DECLARED
    if spare_s >= 0:
        return [f"{due}, {'at least ' if limit else ''}{span(spare_s)} to spare."]
    return [f"{due}, {'up to ' if limit else ''}{span(-spare_s)} too late if it ran from now on."]


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
        where = f"left to it are {some(names)}" if names else "no node that is up is left to it"
        until = f" for {span(steer.until_s - now_s)}" if math.isfinite(steer.until_s) else ""
        kept = f"{len(steer.avoid)} node" + ("" if len(steer.avoid) == 1 else "s")
        sentences.append(f"It is kept from {kept}{until}: {where} ({because}).")
    if steer.not_before_s > now_s:
        sentences.append(
            f"It is put off for {span(steer.not_before_s - now_s)}, and at each look anew "
            f"({because})."
        )
    return sentences


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
    rest = [*([count] if count else []), *_unhandled(cycle, row, claim)]
    if _is_asked(cycle, row, job_id):
        return rest
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
    return [agreed, *cost, *rest]


def _is_asked(cycle: Cycle, row: int, job_id: JobId) -> bool:
    asked = [v for h in cycle.snapshot.handovers for v in h.victims if v.run.job_id == job_id]
    is_running = bool(cycle.snapshot.jobs.state[row] == JobState.RUNNING)
    return is_running and any(v.state is VictimState.SIGNALLED for v in asked)


def _could_not_start_again(cycle: Cycle, row: int) -> str:
    """The reason why Slurm would not start the running job at *row* again; empty if it would."""
    if cycle.snapshot.jobs.state[row] != JobState.RUNNING:
        return ""
    rules = could_not_start_again(cycle.snapshot, np.array([row], dtype=np.int64))
    return next((reason for _, reason, _ in rules), "")


def _stopping(cycle: Cycle, row: int) -> list[str]:
    snap, settings = cycle.snapshot, cycle.settings
    if settings is None or isinstance(cycle.mode, Native):
        return []
    if snap.jobs.state[row] != JobState.RUNNING:
        return []
    cost = stopping_cost(snap, np.array([row]), settings)
    return [f"Stopping it now would cost {cost.in_words()}."]


def _unhandled(cycle: Cycle, row: int, claim: Claim) -> list[str]:
    run, acked = claim.unhandled_run, claim.acked_run
    if run is None or claim.contract is None or (acked is not None and acked >= run):
        return []
    jobs = cycle.snapshot.jobs
    then = ""
    if jobs.state[row] == JobState.RUNNING and jobs.restarts[row] == run:
        then = (
            "When it gives way it loses the work since its last checkpoint, some seconds after the "
            "signal. "
        )
    told = (
        f"No process of its run {run} had a handler for {claim.contract.signal}, and the script "
        f"did not ask job.should_checkpoint(). {then}Its log says more; 'dlctl test-signal' tries "
        "it out."
    )
    return [told]


def _not_before(cycle: Cycle, row: int, job_id: JobId) -> list[str]:
    """Time before which Slurm does not start a waiting job; it delays every job after a requeue."""
    snap = cycle.snapshot
    at_s = snap.seen.begins.get(job_id, 0.0)
    if snap.jobs.state[row] != JobState.PENDING or not snap.now_s < at_s < math.inf:
        return []
    return [f"Slurm does not start it before {moment(at_s)}, in {span(at_s - snap.now_s)}."]
