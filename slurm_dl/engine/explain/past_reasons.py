"""The past of a job, in sentences: its runs, its attained service, each preemption.

It goes by the ledger, so it also answers for jobs that Slurm does not list any more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from slurm_dl.engine.preemption.handover_context import how_it_failed
from slurm_dl.ledger.completions import GaveWay, PastJob
from slurm_dl.model.jobs import JobState
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import LeftOut

_LONGEST_LABEL = 80  # Characters; an array may have hundreds of ranges
MOST_LISTED = 5  # Preemptions that are told one by one, the last ones


class Sight(Protocol):
    """Visibility of other users' jobs for the user who asks."""

    def knows(self, job_id: int) -> bool:
        """Whether the job may be named."""

    def jobs(self, job_ids: Sequence[int]) -> str:
        """These jobs in words, without the names of those that may not be named."""

    def text(self, words: str) -> str:
        """A text of the engine, a scheme or the audit log, without jobs that may not be named."""


@dataclass(frozen=True, slots=True)
class Everything:
    """The sight of somebody from whom nothing is kept."""

    def knows(self, job_id: int) -> bool:  # noqa: ARG002 - see `Sight`
        """Any job."""
        return True

    def jobs(self, job_ids: Sequence[int]) -> str:
        """Their ids."""
        return ", ".join(str(j) for j in job_ids)

    def text(self, words: str) -> str:
        """As it is."""
        return words


EVERYTHING = Everything()


def moment(at_s: float) -> str:
    """An instant for people, in UTC; the words for one that is none say so."""
    if not (math.isfinite(at_s) and 0 < at_s < _END_OF_TIME_S):
        return "a time that is not known"
    # NumPy's dates know no zone and no clock, as all that decides.
    return f"{np.datetime64(int(at_s), 's')}Z".replace("T", " ")


_END_OF_TIME_S = 253402300800.0  # The year 10,000, in which calendars end


def span(seconds: float) -> str:
    """A duration in the two largest units people think in."""
    whole = max(0, round(float(seconds)))
    for size, unit, small, lesser in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {lesser}" if rest else "")
    return f"{whole} s"


def how_it_gave_way(past: PastJob, sight: Sight) -> list[str]:
    """Each time it gave way: to whom, when, what was sent and how long it took."""
    latest = past.gave_way[-MOST_LISTED:]
    before = len(past.gave_way) - len(latest)
    often = f"{before} time{'' if before == 1 else 's'}"
    first = [f"Before that it gave way {often} more."] if before else []
    return [*first, *(_gave_way(one, sight) for one in latest)]


def _gave_way(one: GaveWay, sight: Sight) -> str:
    gpus = f"{one.gpus:g} GPU{'' if one.gpus == 1 else 's'}"
    best = sight.jobs(one.beneficiaries)
    match one.purpose:
        case _ if one.then is not None:
            done = _resized(one, one.then, best)
        case "preempt" | None:
            done = f"gave {gpus} to {_as_jobs(best)}" if best else f"gave {gpus} back"
        case "defragment":
            done = f"moved elsewhere with its {gpus}" + (f", for {_as_jobs(best)}" if best else "")
        case "reshape":
            done = f"moved with its {gpus} to faster ones"
        case "trim":
            done = f"gave CPUs or memory back, for {_as_jobs(best)}"
        case "split":
            done = f"left the {gpus} that it shared"
    sent = f"It was sent {one.signal} and" if one.signal else "It"
    took = f" {sent} was gone {span(one.notice_s)} later." if one.notice_s > 0 else ""
    return f"At {moment(one.at_s)} it {done} (hand-over {one.handover_id}).{took}{_failed(one)}"


def _resized(one: GaveWay, then: Shape, best: str) -> str:
    if then.gpus >= one.held:
        return f"stopped to go on with {in_words(then)} in place of {one.held:g}"
    back = f"gave {one.held - then.gpus:g} of its {one.held:g} GPUs back"
    return f"{back}{best and f' to {_as_jobs(best)}'}, to go on with {in_words(then)}"


def in_words(shape: Shape) -> str:
    """``4 GPUs (2x2)``."""
    return f"{shape.gpus} GPU{'' if shape.gpus == 1 else 's'} ({shape})"


def _failed(one: GaveWay) -> str:
    """That it failed of what it was sent, and how its work would have been saved."""
    if not one.ended:
        return ""
    return (
        f" That run {how_it_failed(one.ended)} after it was asked to save, so it was requeued; "
        "what it had not saved is lost. Jobs that wait for it with afterok wait again, unless "
        "Slurm has cancelled them (--kill-on-invalid-dep) or they wait for all tasks of an array. "
        "Under dlrun its work is saved by: from slurm_dl import job; if job.should_checkpoint(): "
        "save it and call job.exit_for_requeue()."
    )


def _as_jobs(names: str) -> str:
    """Ids need the word before them; words for jobs that may not be named do not."""
    ids = names.partition(" and ")[0].split(", ")
    if not all(job_id.isdecimal() for job_id in ids):
        return names  # It may begin with the number of those that may not be named.
    return f"jobs {names}" if len(ids) > 1 else f"job {names}"


def why_gone(past: PastJob, sight: Sight) -> list[str]:
    """The story of a job that Slurm does not list any more.

    Args:
        sight: What of other jobs may be told.
    """
    seen = ""
    if past.ending is None and past.last_seen_s:
        seen = f"; it was last seen at {moment(past.last_seen_s)}"
    return [f"Slurm no longer lists {_named(past)}{seen}.", *_story(past, sight)]


def why_over(
    past: PastJob, sight: Sight, *, status: int | None = None, saved_s: float | None = None
) -> list[str]:
    """The story of a job that is over and that Slurm still lists.

    Args:
        sight: What of other jobs may be told.
        status: Its exit status if it failed and Slurm has told it; 0 or None: not known.
        saved_s: When its last checkpoint was complete, epoch seconds, as it reported.
    """
    end = f", with status {status}" if status else ""
    sentences = [f"J{_named(past)[1:]} is over.", *_story(past, sight, end)]
    if saved_s:
        sentences.append(f"It last reported a checkpoint at {moment(saved_s)}.")
    return sentences


def _named(past: PastJob) -> str:
    if past.ending is None:
        return f"job {past.job_id}"
    return f"job {past.ending.label}{f' ({past.ending.name})' if past.ending.name else ''}"


def _story(past: PastJob, sight: Sight, status: str = "") -> list[str]:
    """Its end, its runs, its service, and each time it gave way."""
    ending = past.ending
    asked: list[str] = []
    sentences: list[str] = []
    if ending is not None:
        if ending.state is JobState.COMPLETED:
            asked, status = ended_on_request(past, ending.end_s), ", with status 0"
        reason = "" if ending.reason in _NO_REASON else f" ({ending.reason})"
        at_s = ending.end_s or ending.seen_s
        sentences.append(f"It ended at {moment(at_s)}: {ending.how}{reason}{status}.")
    if past.runs:
        often = "once" if len(past.runs) == 1 else f"{len(past.runs)} times"
        sentences.append(
            f"It ran {often}, from {moment(past.runs[0].start_s)} to "
            f"{moment(past.runs[-1].end_s)}, {span(past.ran_s)} in all."
        )
    elif not (past.ran_s or (ending is not None and ending.start_s)):
        sentences.append("It never ran.")
    least = "at least " if past.incomplete else ""
    sentences.append(f"It received {least}{past.attained_gpu_s / 3600:.2f} GPU-hours.")
    times = past.preemptions
    often = f"{times} time{'' if times == 1 else 's'}"
    sentences.append(f"It was preempted {often}." if times else "It was never preempted.")
    return [*sentences, *how_it_gave_way(past, sight), *asked]


def why_left_out(job: LeftOut) -> list[str]:
    """Sentences on a job that the last poll left out: the reason, and the next step."""
    if job.field:
        why = f"what Slurm says of it ({job.field}) is not understood; an admin may report that"
    else:
        why = "it changed while it was read"
    return [
        f"Job {job.label[:_LONGEST_LABEL]} was left out of the last poll: {why}.",
        "Nothing was done to it, and what is known of it is kept. The next poll looks again.",
    ]


def ended_on_request(past: PastJob, end_s: float) -> list[str]:
    """That a job which has COMPLETED was asked to give way in its last run, and what to do.

    Args:
        end_s: When it ended, epoch seconds; 0 if that is not known.
    """
    if not past.gave_way or not end_s > 0:
        return []
    last = past.gave_way[-1]
    # Its end is seen after it was; whoever was put back after giving way ends later.
    if not (last.notice_s > 0 and last.at_s >= end_s):
        return []
    told = (
        f"It was asked to save by {last.signal or 'its signal'} and ended with status 0, so Slurm "
        "counts it as finished and does not run it again. If its training was not complete, let it "
        "end under dlrun with status 75 (job.exit_for_requeue()) after it has saved, or requeue "
        "itself."
    )
    return [told]


_NO_REASON = frozenset({"", "None"})
"""What Slurm says where it has nothing to say of how a job ended."""


_ACTIONS: Final = {
    "attach": "let into the reservation",
    "clear_steer": "kept from no nodes any more",
    "close_handover": "end of the hand-over",
    "detach": "taken out of the reservation",
    "forget_steer": "end of what it was kept from",
    "mark_gone": "end of the run",
    "open_handover": "hand-over",
    "promote": "service forgiven",
    "reserve": "nodes reserved",
    "reshape": "change of size",
    "retry": "requeued after its failure",
    "set_site_factor": "priority",
    "set_steer": "kept from nodes, or put off",
    "trim": "request cut",
    "trip_breaker": "no new hand-overs",
    "unseal": "reservation released",
}
"""Actions whose names do not say what is done."""


def audit_sentences(history: Sequence[Mapping[str, object]], sight: Sight) -> list[str]:
    """The audit lines *history*: when, what, why, and the result."""
    return [
        f"{moment(float(str(entry.get('epoch_s', 0))))}: {_done(str(entry.get('action', '?')))}: "
        f"{sight.text(str(entry.get('reason', '')))} ({sight.text(str(entry.get('result', '?')))})"
        for entry in history
    ]


def _done(action: str) -> str:
    return _ACTIONS.get(action, action.replace("_", " "))
