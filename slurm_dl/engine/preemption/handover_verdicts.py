"""Verdicts on hand-overs: still right or not, and the next step; no action yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from slurm_dl.engine.placing.trim_requests import lean, room_beside_parts
from slurm_dl.engine.preemption.handover_context import (
    HandoverContext,
    agrees,
    failed_of_signal,
    gone,
    is_out,
    is_running,
    is_waiting,
    still_waits,
)
from slurm_dl.engine.preemption.unpack_pairs import why_not_split
from slurm_dl.engine.waiting_sizes import at_shapes
from slurm_dl.model.handover import Handover, Purpose, Seal, Victim, VictimState, reservation_name
from slurm_dl.model.jobs import JobState
from slurm_dl.model.shape import Shape
from slurm_dl.placement.resource_request import ResourceRequests

BEGIN_WITHIN_S = 60.0
"""A hand-over that has not come to its signals by then is given up: it keeps others from theirs."""

IN_VAIN = "it could not be begun in time"
NOT_STARTED = "Slurm did not start all beneficiaries in time"
NOT_MOVED = "the job that was to move did not start on the GPUs that were kept for it"
NOT_RESIZED = "a job did not start in the size that was written"
LET_GO = "nodes of it have left service"
SPLIT = "the job has left the GPU it shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on a hand-over: its next step, and the reason.

    Attributes:
        gone: Victims that this look shows to have ended, and how each ended.
        lost: Nodes of it have left service: its beneficiaries are looked after anew at once.
    """

    kind: Literal["begin", "go on", "let go", "take along", "give up", "wind up"]  # The next step
    gone: tuple[tuple[Victim, str], ...] = ()
    left: tuple[Victim, ...] = ()  # Victims that still hold their GPUs
    reason: str = ""  # Why a hand-over is wound up
    in_vain: bool = False  # A hand-over that is wound up did not make its beneficiaries start
    lost: bool = False


def judge(handover: Handover, context: HandoverContext) -> Verdict:
    """Whether *handover* is still right, and which step is next."""
    seen_gone = {v.run.job_id: how for v in handover.victims if (how := gone(v, context))}
    remaining = [v for v in handover.victims if v.state is not VictimState.GONE]
    ended = tuple((v, seen_gone[v.run.job_id]) for v in remaining if v.run.job_id in seen_gone)
    left = tuple(v for v in remaining if v.run.job_id not in seen_gone)
    lost = _lost_nodes(handover, left, context)
    if left and handover.signalled:
        return _of_signalled(handover, Verdict(kind="go on", gone=ended, left=left), lost, context)
    if lost:
        gone_too = ended if handover.signalled else ()
        return Verdict(kind="wind up", gone=gone_too, reason=lost, lost=True)
    if not handover.signalled:
        reason = _no_longer_right(handover, context)
        if reason:
            # None is marked: a victim that is gone would make the others look as if signalled.
            return Verdict(kind="wind up", reason=reason, in_vain=reason == IN_VAIN)
        return Verdict(kind="begin", left=left)
    reason = LET_GO if handover.seal is Seal.RELEASED else _served(handover, context)
    if reason:
        return Verdict(
            kind="wind up",
            gone=ended,
            reason=reason,
            in_vain=reason in (NOT_STARTED, NOT_MOVED, NOT_RESIZED),
        )
    return Verdict(kind="take along", gone=ended)


def _of_signalled(
    handover: Handover, verdict: Verdict, lost: str, context: HandoverContext
) -> Verdict:
    """*verdict*, unless the victims are late or what they are stopped for is looked for elsewhere.

    Who was signalled goes in any case.
    """
    patience_s = context.limits.handover_timeout_s
    patience_s += max(v.contract.grace_s for v in handover.victims)
    late = context.snap.now_s - handover.opened_s > patience_s
    if late and not any(failed_of_signal(victim, context) for victim in verdict.left):
        return replace(verdict, kind="give up")
    if lost or handover.seal is Seal.RELEASED:
        return replace(verdict, kind="let go", reason=lost or LET_GO, lost=True)
    return verdict


def _no_longer_right(handover: Handover, context: HandoverContext) -> str:
    """The reason to undo a hand-over that has signalled no job; empty if it is still right."""
    if not context.limits.enabled:
        return context.limits.because
    if handover.seal is Seal.RELEASED:
        return "it was being undone"
    waiting = [context.rows[b] for b in handover.beneficiaries if is_waiting(b, context)]
    if handover.beneficiaries and not waiting:
        return "no beneficiary is waiting any more"
    for victim in handover.victims:
        # Who is only to move keeps its place: it need not be worse than whom it makes room for.
        compared = waiting if handover.purpose == "preempt" else []
        reason = _no_victim(victim, compared, context, handover.purpose)
        if reason:
            return reason
    if context.snap.now_s - handover.opened_s > BEGIN_WITHIN_S:
        return IN_VAIN
    return _makes_no_room(handover, context) or _seal_is_short(handover, context)


def _makes_no_room(handover: Handover, context: HandoverContext) -> str:
    """The reason why the victims no longer make the room needed; empty if they do.

    They were chosen for the first beneficiary; the others only share what it leaves.
    """
    snap, within = context.snap, np.isin(context.snap.seen.nodes.name, handover.nodes)
    if handover.resizes:
        return _resizes_without_room(handover, context)
    if handover.purpose == "reshape":
        (mover,) = handover.moved
        need = context.needs.of(context.rows[mover])
        there = context.free.place(need, within=within)
        return "the GPUs that it was to move to are taken" if there is None else ""
    if handover.purpose not in ("preempt", "trim"):
        return ""
    first = handover.beneficiaries[0]
    if not is_waiting(first, context):
        return f"job {first}, for which the victims were chosen, does not wait any more"
    available, row = context.free.copy(), context.rows[first]
    need, victims = context.needs.of(row), [context.rows[v.run.job_id] for v in handover.victims]
    if handover.purpose == "trim":
        available = room_beside_parts(snap, context.needs, available, victims)
        need = lean(snap, row, need) or need
    else:
        for victim in victims:
            available.release(snap, victim)
    if available.place(need, within=within) is None:
        return f"job {first} could not start even then: nodes are down, or taken"
    return ""


def _resizes_without_room(handover: Handover, context: HandoverContext) -> str:
    """Likewise, where jobs go on in another size on the nodes of the hand-over."""
    snap, within = context.snap, np.isin(context.snap.seen.nodes.name, handover.nodes)
    room, then = context.free.copy(), dict[int, Shape]()
    for victim in handover.victims:
        row = context.rows[victim.run.job_id]
        room.release(snap, row)
        if victim.then is not None:
            then[row] = victim.then
    first = handover.beneficiaries[:1]
    if first and not is_waiting(first[0], context):
        return f"job {first[0]}, for which the victims were chosen, does not wait any more"
    needs = ResourceRequests(at_shapes(snap, then))
    # Who needs most of a node finds room first.
    rows = [*(context.rows[b] for b in first), *sorted(then, key=lambda r: -then[r].gpus_per_node)]
    for row in rows:
        need = needs.of(row)
        nodes = room.place(need, within=within)
        if nodes is None:
            return "its jobs would not fit any more: nodes are down, or taken"
        room.take(need, nodes)
    return ""


def _lost_nodes(handover: Handover, left: Sequence[Victim], context: HandoverContext) -> str:
    """The reason why its jobs can no longer start on its nodes; empty if they can.

    Only because of nodes that have left service: others may hold some for a moment.
    """
    snap, mine = context.snap, np.isin(context.snap.seen.nodes.name, handover.nodes)
    down = np.asarray(snap.seen.nodes.name)[mine & ~snap.seen.nodes.up].tolist()
    waiting = [b for b in handover.beneficiaries if is_waiting(b, context)]
    waiting += [v.run.job_id for v in _moved(handover) if is_out(v, context)]
    if not down or not waiting:
        return ""
    available = context.free.copy()
    for victim in left:
        if is_running(victim, context):
            available.release(snap, context.rows[victim.run.job_id])
    if any(
        available.place(context.needs.of(context.rows[job]), within=mine) is not None
        for job in waiting
    ):
        return ""
    return f"node {down[0]} has left service (down, draining or in maintenance)"


def _seal_is_short(handover: Handover, context: HandoverContext) -> str:
    """The reason why the standing seal ends too early; empty if it does not, or none stands."""
    if handover.seal is not Seal.STANDING:
        return ""
    name = reservation_name(handover.handover_id)
    ends_s = max((r.end_s for r in context.snap.seen.reservations if r.name == name), default=0.0)
    needed_s = max(v.contract.grace_s for v in handover.victims) + context.limits.start_margin_s
    return "" if ends_s >= context.snap.now_s + needed_s else "its seal would end too early"


def _no_victim(
    victim: Victim, beneficiaries: list[int], context: HandoverContext, purpose: Purpose
) -> str:
    """The reason why the victim may no longer be stopped for *beneficiaries*; empty if it may."""
    job_id = victim.run.job_id
    row = context.rows.get(job_id)
    if row is None or gone(victim, context):
        return "a victim ended by itself"
    if purpose == "split":
        protected = why_not_split(context.snap, row, context.limits)
    else:
        protected = context.candidates.why_not(row)
    if protected:
        return f"victim {job_id} may not be stopped any more: {protected}"
    if not agrees(victim, context):
        return f"victim {job_id} changed its contract"
    mine = np.array([row])
    if not all(context.rule.displaceable(b, mine).all() for b in beneficiaries):
        return f"victim {job_id} does not come after them in the order any more"
    return ""


def _served(handover: Handover, context: HandoverContext) -> str:
    """The reason to close a hand-over without remaining victims; empty while jobs may start."""
    moves = bool(handover.moved)
    left_out = context.snap.seen.left_out
    waits = any(still_waits(b, handover, context) or b in left_out for b in handover.beneficiaries)
    if not waits and not moves:
        return "no beneficiary is waiting any more" if handover.beneficiaries else SPLIT
    if any(v.state is not VictimState.GONE for v in handover.victims):
        return ""  # The last one was only now seen to be gone.
    if not waits and not any(is_out(v, context) for v in _moved(handover)):
        return _where_moved(handover, context)
    free_since_s = max(v.gone_s for v in handover.victims)
    passed_s = context.snap.now_s - free_since_s
    if waits and passed_s > context.limits.start_margin_s:
        return NOT_STARTED
    # Slurm keeps a requeued job back for a while, and nothing tells how long.
    if passed_s <= context.limits.handover_timeout_s:
        return ""
    late = "the jobs that were moved are not back in time"
    return NOT_MOVED if handover.purpose == "reshape" else late


def _moved(handover: Handover) -> list[Victim]:
    moved = handover.moved
    return [victim for victim in handover.victims if victim.run.job_id in moved]


def _where_moved(handover: Handover, context: HandoverContext) -> str:
    """Result of moves whose jobs are back."""
    snap, names = context.snap, context.snap.seen.nodes.name
    for victim in _moved(handover):
        row, then = context.rows.get(victim.run.job_id), victim.then
        if row is None or snap.jobs.state[row] != JobState.RUNNING:
            continue
        has = int(snap.jobs.n_nodes[row]), float(snap.jobs.gpus[row])
        if then is not None and has != (then.nodes, then.gpus):
            return NOT_RESIZED
        if handover.purpose == "reshape":
            on = {names[n] for n in snap.seen.held.nodes_of(row).tolist()}
            if not on <= set(handover.seats):
                return NOT_MOVED
    return "the jobs that were moved are back"
