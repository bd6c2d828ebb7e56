"""The next steps of a hand-over: a pure function of the hand-over and the snapshot.

The order is fixed: write it down, lower the victims' SiteFactor, seal the nodes with a reservation,
let the beneficiaries use it, signal, wait for acknowledgement, exit or grace, and only then, if it
is still the same run, requeue, or take nodes from it while it runs; after that only what the next
snapshot shows counts. Until a signal may have been sent everything can be undone; from then on all
victims go.

Because each step is derived from what is written down and what is seen, a daemon that was killed
anywhere goes on from there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from slurm_dl.engine.placing.trim_requests import trim_of
from slurm_dl.engine.preemption.handover_context import (
    HandoverContext,
    agrees,
    failed_of_signal,
    how_it_failed,
    is_out,
    is_running,
    is_waiting,
    still_waits,
)
from slurm_dl.engine.preemption.handover_verdicts import Verdict
from slurm_dl.engine.waiting_sizes import reshape_of
from slurm_dl.model.handover import Handover, Seal, Victim, VictimState, reservation_name
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import I64, JobState
from slurm_dl.model.plan import (
    Action,
    Attach,
    CloseHandover,
    Detach,
    MarkGone,
    Requeue,
    Reserve,
    SetSiteFactor,
    SetSteer,
    Shrink,
    Signal,
    Trim,
    Unseal,
)
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.steer import Steer

UNHANDLED_S = 5.0
"""How long after the signal the word counts that nothing takes it: dlrun looks once more when it is
asked, and takes the word back if a handler has come."""

_KEEPS_FREE = "keeps the free GPUs for the job that is to move there"


def steps_of(
    handover: Handover, verdict: Verdict, context: HandoverContext, site_factor: I64
) -> list[Action]:
    """The actions that bring *handover* on; each is right only if those before it succeed.

    Args:
        site_factor: ``(n,)`` SiteFactor each job should have while GPUs change hands.
    """
    marks = [
        MarkGone(
            handover_id=handover.handover_id,
            job_id=victim.run.job_id,
            outcome=how,
            why=f"its run {'goes on with fewer nodes' if how == 'shrunk' else f'has ended: {how}'}",
        )
        for victim, how in verdict.gone
    ]
    left = list(verdict.left)
    match verdict.kind:
        case "begin":
            return [
                *_put_in_place(handover, context, site_factor),
                *_trims(handover, handover.beneficiaries, context),
                *_seal(handover, context),
                *_signals(handover, left, context),
            ]
        case "give up":
            return [*marks, *_give_up(handover, left)]
        case "go on":
            return [
                *marks,
                *_spare(handover, left, context),
                *_take_along(handover, context),
                *_signals(handover, left, context),
                *_requeues(handover, left, context),
                *_run_again(handover, left, context),
            ]
        case "let go":
            return [*marks, *_let_go(handover, left, context, verdict.reason)]
        case "take along":
            return [*marks, *_take_along(handover, context)]
        case "wind up":
            return [*marks, *_wind_up(handover, context, verdict)]


def _put_in_place(
    handover: Handover, context: HandoverContext, site_factor: I64
) -> Iterator[Action]:
    """The victims must not start again before their turn, nor the beneficiaries come after them."""
    for job_id in (*(v.run.job_id for v in handover.victims), *handover.beneficiaries):
        row = context.rows.get(job_id)
        if row is not None and context.snap.memory.site_factor[row] != site_factor[row]:
            yield SetSiteFactor(
                job_id=job_id,
                value=int(site_factor[row]),
                why="its place must be right before GPUs change hands",
                handover_id=handover.handover_id,
            )


def _seal(handover: Handover, context: HandoverContext) -> Iterator[Action]:
    waiting = [b for b in handover.beneficiaries if is_waiting(b, context)]
    if handover.seal is Seal.WANTED and handover.nodes:
        users = list(waiting)
        users += [job_id for job_id in handover.moved if job_id in context.rows]
        uids = sorted({int(context.snap.jobs.uid[context.rows[j]]) for j in users})
        longest_s = max(v.contract.grace_s for v in handover.victims)
        yield Reserve(
            handover_id=handover.handover_id,
            nodes=handover.nodes,
            uids=tuple(uids),
            duration_s=context.limits.handover_timeout_s
            + longest_s
            + context.limits.start_margin_s,
            why=f"keeps the freed GPUs for {name_jobs(waiting)}" if waiting else _KEEPS_FREE,
        )
    name, reserved = reservation_name(handover.handover_id), context.snap.seen.reserved
    for job_id in waiting:
        # What was attached may have been detached: undoing was begun, or its owner or Slurm did it.
        if job_id not in handover.attached or reserved.get(job_id) != name:
            yield Attach(
                handover_id=handover.handover_id,
                job_id=job_id,
                why="it is to start on the GPUs that are being freed",
            )


def _signals(handover: Handover, left: list[Victim], context: HandoverContext) -> Iterator[Action]:
    for victim in left:
        if not is_running(victim, context):
            continue
        # SIGNALLING: a daemon died between writing it down and sending. Asking twice does no harm.
        if victim.state in (VictimState.CHOSEN, VictimState.SIGNALLING) and agrees(victim, context):
            row = context.rows[victim.run.job_id]
            yield Signal(
                handover_id=handover.handover_id,
                run=victim.run,
                signal=victim.contract.signal,
                target=victim.contract.target,
                why=_why_signal(handover, victim),
                # A change of its size is no preemption.
                preemptions=int(context.snap.memory.preemptions[row]) + (victim.then is None),
            )


def _spare(handover: Handover, left: list[Victim], context: HandoverContext) -> Iterator[Action]:
    """Let those go who have changed their contract before they were told anything.

    Of one that was perhaps told (`VictimState.SIGNALLING`) only time tells: an acknowledgement may
    be older than the hand-over.
    """
    for victim in left:
        chosen = victim.state is VictimState.CHOSEN and is_running(victim, context)
        if chosen and not agrees(victim, context):
            yield MarkGone(
                handover_id=handover.handover_id,
                job_id=victim.run.job_id,
                outcome="refused",
                why="it changed its contract before it was signalled; it is left alone",
            )


def _why_signal(handover: Handover, victim: Victim) -> str:
    if victim.then is not None:
        whom = f"for {name_jobs(handover.beneficiaries)}" if handover.beneficiaries else ""
        return f"it is to go on in the size {victim.then} {whom}".rstrip()
    match handover.purpose:
        case "preempt":
            return f"it is to make room for {name_jobs(handover.beneficiaries)}"
        case "defragment":
            fits = f"{name_jobs(handover.beneficiaries)} will fit" if handover.beneficiaries else ""
            return f"it is to move, so that {fits or 'whole nodes become free'}"
        case "reshape":
            swapped = f"{name_jobs(handover.moved)} gets its GPUs, and it another type"
            return swapped if handover.resizes else "it is to move to faster GPUs that are free"
        case "trim":
            whom = name_jobs(handover.beneficiaries)
            return f"it is to go on with fewer CPUs or less memory, so that {whom} will fit beside"
        case "split":
            return "it and the job beside it on a GPU slow each other down too much"


def _take_along(handover: Handover, context: HandoverContext) -> Iterator[Action]:
    """Let jobs that were moved go where there is room for them, and nowhere else."""
    moved = handover.moved
    for victim in handover.victims:
        job_id = victim.run.job_id
        if job_id not in moved:
            continue
        if victim.state is not VictimState.GONE or not is_out(victim, context):
            continue
        if not handover.nodes:
            yield from _steer_away(handover, job_id, context)
        elif job_id not in handover.attached:
            if victim.then is not None:
                # Slurm does not always show the size with which a requeued job would start.
                yield dataclasses.replace(
                    reshape_of(context.snap, context.rows[job_id], why=_why_size(victim)),
                    handover_id=handover.handover_id,
                )
            yield from _trims(handover, [job_id], context)
            yield Attach(
                handover_id=handover.handover_id,
                job_id=job_id,
                why="room is kept for it where it is moved to",
            )


def _trims(
    handover: Handover, job_ids: Iterable[JobId], context: HandoverContext
) -> Iterator[Trim]:
    """Cut jobs that wait to their parts, if that is what the hand-over is for."""
    for job_id in job_ids if handover.purpose == "trim" else ():
        why = "room is made for it and for others with the CPUs and memory that go with their GPUs"
        for trim in trim_of(context.snap, context.needs, context.rows[job_id], why):
            yield dataclasses.replace(trim, handover_id=handover.handover_id)


def _why_size(victim: Victim) -> str:
    return f"it is to go on in the size {victim.then}"


def _steer_away(handover: Handover, job_id: JobId, context: HandoverContext) -> Iterator[Action]:
    """Keep a job that was moved from all nodes but those it is to go to."""
    snap = context.snap
    before, submit_s = snap.steers.get(job_id), float(snap.jobs.submit_s[context.rows[job_id]])
    if before is not None and submit_s <= before.since_s:
        return
    names = snap.seen.nodes.name
    # One of its last run is over, but what was written then still stands there.
    own = snap.owner_excludes(job_id)
    why = "it is to go on where other jobs are, so that whole nodes are free"
    steer = Steer(
        job_id=job_id,
        kind="spot",
        avoid=tuple(sorted(frozenset(names) - {*handover.seats, *own})),
        own=tuple(sorted(own)),
        left=() if before is None else before.avoid,
        since_s=max(snap.now_s, submit_s),
        until_s=snap.now_s + context.limits.handover_timeout_s,
        why=why,
    )
    yield SetSteer(steer=steer, why=why, handover_id=handover.handover_id)


def _requeues(handover: Handover, left: list[Victim], context: HandoverContext) -> Iterator[Action]:
    for victim in left:
        # Who is asked once more now has its grace from now on. Who is not, because it changed its
        # contract, may never have been told.
        if victim.state in (VictimState.CHOSEN, VictimState.SIGNALLING):
            continue
        if failed_of_signal(victim, context) or not is_running(victim, context):
            continue  # It is ending already, by our requeue or by itself, or is back.
        seen = context.snap.seen
        acked, waited_s = seen.has_acknowledged(victim.run), seen.now_s - victim.signalled_s
        # dlrun looks whether the comment still says so.
        in_place = victim.stays and seen.claim(victim.run.job_id).in_place
        if acked and in_place and victim.state is VictimState.SIGNALLED:
            yield Shrink(
                handover_id=handover.handover_id,
                run=victim.run,
                nodes=victim.stays,
                why=f"it acknowledged its checkpoint within {waited_s:.0f} s",
            )
            continue
        if victim.state is VictimState.SHRINKING:
            why = "it still has the nodes that it was to give back"
        elif acked and victim.contract.requeued_by == "daemon":
            why = f"it acknowledged its checkpoint within {waited_s:.0f} s"
        elif waited_s >= victim.contract.grace_s:
            why = f"its grace of {victim.contract.grace_s:.0f} s is over"
        elif not acked and waited_s >= UNHANDLED_S and _takes_nothing(victim, context):
            why = f"nothing in it takes {victim.contract.signal}, so it will not answer"
        else:
            continue
        yield Requeue(handover_id=handover.handover_id, run=victim.run, why=why)


def _run_again(
    handover: Handover, left: list[Victim], context: HandoverContext
) -> Iterator[Action]:
    """Requeue who failed of the signal: without it the job would have run on."""
    for victim in left:
        if status := failed_of_signal(victim, context):
            why = f"its run {how_it_failed(status)} after it was asked to save by "
            why += f"{victim.contract.signal}"
            yield Requeue(handover_id=handover.handover_id, run=victim.run, why=why, ended=status)


def _takes_nothing(victim: Victim, context: HandoverContext) -> bool:
    # Slurm itself signals the processes of other targets, past dlrun.
    return victim.contract.target == "batch" and context.snap.seen.is_unhandled(victim.run)


def _give_up(handover: Handover, left: list[Victim]) -> Iterator[Action]:
    for victim in left:
        yield MarkGone(
            handover_id=handover.handover_id,
            job_id=victim.run.job_id,
            outcome="refused",
            why="Slurm neither signalled nor requeued it in time; it is left alone",
        )


def _let_go(
    handover: Handover, left: list[Victim], context: HandoverContext, reason: str
) -> Iterator[Action]:
    """Open what is sealed, leave alone who was told nothing, and requeue the others."""
    if handover.seal is not Seal.RELEASED:
        yield from _detach(handover, context, reason)
        name = reservation_name(handover.handover_id)
        yield Unseal(name=name, handover_id=handover.handover_id, why=reason)
    for victim in left:
        if victim.state is VictimState.CHOSEN:
            yield MarkGone(
                handover_id=handover.handover_id,
                job_id=victim.run.job_id,
                outcome="refused",
                why=f"it was not signalled and is left alone: {reason}",
            )
    told = [v for v in left if v.state is not VictimState.CHOSEN]
    yield from _signals(handover, told, context)
    yield from _requeues(handover, told, context)
    yield from _run_again(handover, told, context)


def _detach(handover: Handover, context: HandoverContext, reason: str) -> Iterator[Action]:
    name, reserved = reservation_name(handover.handover_id), context.snap.seen.reserved
    moved = [v.run.job_id for v in handover.victims if v.run.job_id in handover.attached]
    for job_id in (*handover.beneficiaries, *moved):
        row = context.rows.get(job_id)
        # A later hand-over may have taken it over.
        attached = reserved.get(job_id, name if job_id in handover.attached else "") == name
        if attached and row is not None and context.snap.jobs.state[row] == JobState.PENDING:
            yield Detach(
                job_id=job_id,
                why=f"hand-over {handover.handover_id} is over: {reason}",
                handover_id=handover.handover_id,
            )


def _wind_up(handover: Handover, context: HandoverContext, verdict: Verdict) -> Iterator[Action]:
    reason = verdict.reason
    name = reservation_name(handover.handover_id)
    yield from _detach(handover, context, reason)
    if handover.nodes:
        # Also when it was only WANTED: a daemon may have died right after creating it.
        yield Unseal(name=name, handover_id=handover.handover_id, why=reason)
    yield CloseHandover(
        handover_id=handover.handover_id,
        outcome=reason,
        why=reason,
        fruitless=_in_vain_for(handover, context) if verdict.in_vain else (),
    )


def _in_vain_for(handover: Handover, context: HandoverContext) -> tuple[JobId, ...]:
    if handover.purpose == "reshape":
        return handover.moved
    return tuple(b for b in handover.beneficiaries if still_waits(b, handover, context))


def strays(snap: Snapshot, rows: Mapping[JobId, int]) -> Iterator[Action]:
    """Clear what a hand-over that nobody remembers has left in Slurm."""
    known = {reservation_name(h.handover_id) for h in snap.handovers}
    for job_id, name in snap.seen.reserved.items():
        if name not in known and snap.jobs.state[rows[job_id]] == JobState.PENDING:
            yield Detach(job_id=job_id, why=f"reservation {name} belongs to no open hand-over")
    for reservation in snap.seen.reservations:
        if reservation.name not in known and reservation.end_s > snap.now_s + 60:
            yield Unseal(
                name=reservation.name, handover_id=None, why="it belongs to no open hand-over"
            )


def name_jobs(job_ids: Sequence[JobId]) -> str:
    """The first few ids, for a reason in words."""
    shown = ", ".join(str(j) for j in job_ids[:3])
    more = len(job_ids) - 3
    noun = "job" if len(job_ids) == 1 else "jobs"
    return f"{noun} {shown}" + (f" and {more} more" if more > 0 else "")
