"""Sizes of elastic jobs and hand-overs under way in sentences, for all who are in them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.explain.past_reasons import Sight, in_words, span
from slurm_dl.engine.preemption.surplus import growth_rest
from slurm_dl.engine.settings import External
from slurm_dl.engine.waiting_sizes import shape_of
from slurm_dl.estimates.size_speeds import elastic_rows
from slurm_dl.model.handover import Purpose, Victim, VictimState
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, PENDING, Origin
from slurm_dl.model.plan import OpenHandover, Reshape
from slurm_dl.model.shape import Shape
from slurm_dl.model.sizes import NO_HISTORY, SizeHistory, Sizes, size_histories, size_of
from slurm_dl.policies.base import Policy

UNREADABLE_SIZES = (
    "Its sizes are unreadable, so it keeps the one it was submitted with (they are written as in "
    '"sizes":"1x1,1x2,2x2", nodes by GPUs on each; or submit it with dlsubmit --sizes).'
)

_SPEEDS_FROM: Final = {
    Origin.KNOWN: "known exactly",
    Origin.MEASURED: "measured with its model",
    Origin.REPORTED: "by its own reports from the sizes it ran in",
    Origin.FITTED: "a curve through what was measured with its model",
    Origin.PRIOR: "a guess, as for any job: nothing is measured of it",
}


def size_reasons(cycle: Cycle, policy: Policy, row: int) -> list[str]:
    """Sentences on the sizes of the job at *row*; none if it names none, or is over."""
    snap, job_id = cycle.snapshot, JobId(int(cycle.snapshot.jobs.job_id[row]))
    claim = snap.seen.claim(job_id)
    if snap.jobs.state[row] >= COMPLETING:
        return []
    if not claim.sizes:
        return [UNREADABLE_SIZES] if claim.sizes_unreadable else []
    if row not in elastic_rows(snap):
        return [f"It names several sizes, but keeps the one it asks for: {_why_rigid(cycle, row)}."]
    history = size_histories(snap.booked).get(job_id, NO_HISTORY)
    sizes = snap.sizes
    own = () if sizes is None else sizes.of(row)
    shapes = [] if sizes is None else [shape_of(sizes, i) for i in own]
    others = [s for s in claim.sizes if s not in shapes and s != size_of(snap.jobs, row)]
    left_out = [*_left_out(others, history)]
    if sizes is None or not shapes:
        return ["No size but its own is left to it.", *left_out]
    asked = shape_of(sizes, int(sizes.asked[np.searchsorted(sizes.row, row)]))
    rate = ", ".join(f"{s} {sizes.rate[i]:.3g}" for s, i in zip(shapes, own, strict=True))
    origins = sorted({int(sizes.origin[i]) for i in own})
    known = "; ".join(_SPEEDS_FROM.get(Origin(o), "an estimate") for o in origins)
    return [
        f"It can run in {_listed(shapes)} (nodes x GPUs); {asked} was asked for.",
        f"Speeds counted on: {rate} ({known}).",
        *_Elastic(cycle, row, sizes, asked, history).size_now(policy),
        *left_out,
    ]


def _why_rigid(cycle: Cycle, row: int) -> str:
    snap, jobs = cycle.snapshot, cycle.snapshot.jobs
    job_id = JobId(int(jobs.job_id[row]))
    text = snap.seen.texts.get(job_id)
    label = "" if text is None else text.label
    reasons = {
        "it is part of an array": jobs.tasks[row] > 1 or "_" in label,
        "it is part of a heterogeneous job": "+" in label,
        "it asks for whole nodes (--exclusive)": jobs.exclusive[row],
        "it may lie on any number of nodes": snap.seen.claim(job_id).most_nodes is not None,
        "slurm_dl does not manage its partition": not snap.managed_jobs[row],
        "it has a share of a GPU, or none": True,
    }
    return next(reason for reason, is_so in reasons.items() if is_so)


def _left_out(shapes: Sequence[Shape], history: SizeHistory) -> Iterator[str]:
    if refused := [s for s in shapes if s in history.refused]:
        yield f"Slurm did not give it {_listed(refused)}: that is not tried again."
    if roomless := [s for s in shapes if s not in history.refused]:
        yield f"No nodes that it may use could hold {_listed(roomless)}."


def _listed(shapes: Sequence[Shape]) -> str:
    *first, last = map(str, shapes)
    return f"{', '.join(first)} or {last}" if first else last


@dataclass(frozen=True, slots=True, eq=False)
class _Elastic:
    """A job that has several sizes."""

    cycle: Cycle
    row: int
    sizes: Sizes
    asked: Shape
    history: SizeHistory

    def size_now(self, policy: Policy) -> Iterator[str]:
        """The size it holds or is to start in, the one it should have, and why."""
        snap, plan, settings = self.cycle.snapshot, self.cycle.plan, self.cycle.settings
        expand = settings is not None and settings.resizing.expand
        by_type = len(snap.seen.gpu_types) > 1 and snap.rates is not None
        has = size_of(snap.jobs, self.row)
        if "sizes" not in policy.about.needs and (by_type or plan.share is not None or not expand):
            why = "it shares out time, or GPU types" if expand else "resizing.expand is off"
            yield f"Policy {policy.name} changes no sizes ({why}), so it keeps the one it has."
        elif snap.jobs.state[self.row] == PENDING:
            yield self._waits()
        elif fixed := self._fixed():
            yield f"It keeps its size while it runs: {fixed}."
        elif has is not None:
            yield from self._runs(has)

    def _should_have(self) -> Shape | None:
        snap, plan = self.cycle.snapshot, self.cycle.plan
        job_id = JobId(int(snap.jobs.job_id[self.row]))
        then = [v.then for h in snap.handovers for v in h.victims if v.run.job_id == job_id]
        then += [a.shape for a in plan.actions if isinstance(a, Reshape) and a.job_id == job_id]
        wants = plan.sizes.get(job_id)
        # The target counts GPUs alone; what was written has room.
        then += [wants and self.history.written, wants]
        return next((shape for shape in then if shape), None)

    def _fixed(self) -> str:
        snap, settings = self.cycle.snapshot, self.cycle.settings
        if not isinstance(self.cycle.mode, External):
            return "in native mode no job changes its size"
        if settings is not None and not settings.preemption.enabled:
            return settings.preemption.because
        claim = snap.seen.claim(JobId(int(snap.jobs.job_id[self.row])))
        if claim.contract is None or claim.contract.grace_s > self.cycle.max_grace_s:
            return "it is not preempted"
        return "" if snap.jobs.requeueable[self.row] else "Slurm may not requeue it"

    def _waits(self) -> str:
        wants = self._should_have()
        if wants is None:
            return "It gets a size when its turn comes: the largest for which GPUs are free then."
        why = "as asked for"
        if wants.gpus < self.asked.gpus:
            why = "fewer than asked for: it starts on what is free"
        elif wants.gpus > self.asked.gpus:
            why = "more than asked for: nobody else should have them now"
        return f"It is to start on {in_words(wants)}, {why}."

    def _runs(self, has: Shape) -> Iterator[str]:
        wants = self._should_have() or has
        if wants.gpus == has.gpus:
            yield f"It holds {in_words(has)}, and should."
            yield from self._stays(has)
        else:
            fewer = "other jobs should have the rest"
            more = "there are GPUs for it, and that saves more than the restart costs"
            yield (
                f"It holds {in_words(has)} and should go on with {in_words(wants)}: "
                f"{fewer if wants.gpus < has.gpus else more}."
            )
        least = shape_of(self.sizes, self.sizes.of(self.row).start)
        if has.gpus > least.gpus:
            yield (
                f"Its GPUs beyond {in_words(least)} are lent: it gives them back, and goes on with "
                "fewer, as soon as another job should have them."
            )

    def _stays(self, has: Shape) -> Iterator[str]:
        """Reasons for which it does not grow."""
        snap, settings, rate = self.cycle.snapshot, self.cycle.settings, self.sizes.rate
        larger = [i for i in self.sizes.of(self.row) if self.sizes.gpus[i] > has.gpus]
        if not larger or settings is None:
            return
        rest_s, limit = growth_rest(self.history, settings.resizing, snap.now_s)
        held = self.sizes.held(self.row, has.gpus, has.nodes)
        if rest_s > 0:
            yield f"It does not grow for another {span(rest_s)} ({limit})."
        elif snap.setup_s is not None and held >= 0 and math.isfinite(snap.left_s[self.row]):
            saves = {float(1 / rate[held] - 1 / rate[i]): i for i in larger}
            yield (
                "It grows only if GPUs are free and that saves more than "
                f"{settings.resizing.steadiness:g} restarts of {span(snap.setup_s[self.row])} each "
                f"(resizing.steadiness); {in_words(shape_of(self.sizes, saves[max(saves)]))} would "
                f"save it {span(snap.left_s[self.row] * max(saves))}."
            )


MOST_NAMED = 4  # Nodes that are named in a sentence


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
            what = "CPUs or memory" if handover.purpose == "trim" else "GPUs"
            sentences.append(
                f"Hand-over {handover.handover_id} is freeing {what} for it: "
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
                VictimState.SHRINKING: "it is giving nodes back while it runs",
                VictimState.REQUEUING: "it is being requeued",
                VictimState.GONE: f"it has given way ({victim.outcome})",
            }[victim.state]
            best = sight.jobs(handover.beneficiaries[:3])
            for_whom = f" for {best}" if best else ""
            sentences.append(f"Hand-over {handover.handover_id}{for_whom}: {done}.")
    return [*sentences, *_would_be(cycle, job_id, sight)]


def _left(cycle: Cycle, victim: Victim, at_s: float) -> str:
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
    "trim": "to go on with the CPUs and memory that go with its GPUs",
    "split": "to leave the GPU that it shares: both jobs there are slower than one after the other",
}
