"""Hand-overs under way in sentences, for both sides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.explain.past_reasons import Sight, in_words
from slurm_dl.model.handover import Purpose, Victim, VictimState
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import PENDING
from slurm_dl.model.plan import OpenHandover

MOST_NAMED = 4
"""Nodes that are named in a sentence."""


def some(names: Sequence[str]) -> str:
    """The first few of *names*."""
    return ", ".join(names[:MOST_NAMED]) + (" ..." if len(names) > MOST_NAMED else "")


def handover_reasons(cycle: Cycle, job_id: JobId, sight: Sight, at_s: float) -> list[str]:
    """Sentences on the hand-overs that the job gives way in, or gets GPUs by.

    Args:
        at_s: When it is asked, epoch seconds.
    """
    sentences, jobs = [], cycle.snapshot.jobs
    row = jobs.rows.get(job_id)
    waits = row is not None and jobs.state[row] == PENDING
    for handover in cycle.snapshot.handovers:
        ids = [v.run.job_id for v in handover.victims]
        # One that was started elsewhere needs them no more.
        if waits and job_id in handover.beneficiaries:
            # Where they run is theirs too.
            on = f" on {some(handover.nodes)}" if all(map(sight.knows, ids)) else ""
            sentences.append(
                f"Hand-over {handover.handover_id} is freeing GPUs for it: "
                f"{sight.jobs(ids)} give way{on}."
            )
        for victim in handover.victims:
            if victim.run.job_id != job_id:
                continue
            gives_way, signal = _GIVES_WAY[handover.purpose], victim.contract.signal
            if victim.then is not None:
                gives_way = f"to save and go on with {in_words(victim.then)}"
            done = {
                VictimState.CHOSEN: f"it has been chosen {gives_way}",
                VictimState.SIGNALLING: f"it is being sent {signal}",
                VictimState.SIGNALLED: f"it was sent {signal} {_left(cycle, victim, at_s)}",
                VictimState.REQUEUING: "it is being requeued",
                VictimState.GONE: f"it has given way ({victim.outcome})",
            }[victim.state]
            best = sight.jobs(handover.beneficiaries[:3])
            for_whom = f" for {best}" if best else ""
            sentences.append(f"Hand-over {handover.handover_id}{for_whom}: {done}.")
    return [*sentences, *_would_be(cycle, job_id, sight)]


def _left(cycle: Cycle, victim: Victim, at_s: float) -> str:
    """The seconds left to a victim that was signalled."""
    seen = cycle.snapshot.seen
    left_s = math.floor(victim.signalled_s + victim.contract.grace_s - at_s)
    if seen.has_acknowledged(victim.run):
        return "and says that its work is saved"
    if seen.is_unhandled(victim.run):
        return "and has no handler for it, so it is not waited for"
    return f"and has {left_s} s left to save its work" if left_s > 0 else "and its grace is over"


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
