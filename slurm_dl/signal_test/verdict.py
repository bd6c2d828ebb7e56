"""What a trial's facts mean: does it work, and if not, what is wrong. Pure.

Sentences may hold names of the user's files and programs: they are escaped where they are printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slurm_dl.job.options import DEFAULT_NEVER_REQUEUE
from slurm_dl.signal_test.observations import (
    MOST_FILES,
    Observations,
    ObservedProcess,
    SavedCheckpoint,
)

_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
_FILES_SHOWN = 3
_DONE = "0"
_FINAL = DEFAULT_NEVER_REQUEUE
_RESUME = "load job.resume_from() (or the framework's own last checkpoint) at the start"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialVerdict:
    """What is said of a trial.

    Attributes:
        works: The job can be preempted: the signal was taken, a checkpoint written and read.
        sentences: What was seen, in order.
        advice: What to do about what is wrong; empty if nothing is.
    """

    works: bool
    sentences: tuple[str, ...]
    advice: tuple[str, ...]


def judge(facts: Observations) -> TrialVerdict:
    """Say what *facts* mean."""
    if not facts.ready:
        return _never_trained(facts)
    sentences, advice = [f"The job trained: {facts.ready}."], []
    for part in (_taken(facts), _stopped(facts), _saved(facts), _came_back(facts)):
        for sentence, remedy in part:
            sentences.append(sentence)
            if remedy:
                advice.append(remedy)
    return TrialVerdict(works=not advice, sentences=tuple(sentences), advice=tuple(advice))


def _never_trained(facts: Observations) -> TrialVerdict:
    how = f"{facts.end[0].upper()}{facts.end[1:]} before it trained" if facts.end else ""
    return TrialVerdict(
        works=False,
        sentences=(f"{how or 'It was not seen to train in time'}; no signal was sent.",),
        advice=("make it run by itself first, or wait longer with --within S",),
    )


Part = Iterator[tuple[str, str]]
"""Sentences, each with what to do about it; empty where all is well."""


def _taken(facts: Observations) -> Part:
    name = facts.contract.signal
    first = next((p for p in facts.processes if p.is_first), None)
    if facts.dlrun_took_it:
        yield f"dlrun took {name} and asked the script to stop.", ""
    elif facts.killed_by == name:
        yield _died_of_it(name, first), _why_it_died(name, first)
    elif facts.requeued_itself:
        yield f"{name} was taken: the job put itself back.", ""
    elif first is not None and first.signal == "ignores":
        yield (
            f"The batch script's process ({first.name}) ignored {name}.",
            f"start the training with 'exec dlrun -- ...' in place of a shell that ignores {name}",
        )
    elif first is not None:
        yield f"The batch script's process ({first.name}) {first.signal} {name}.", ""


def _is_shell(process: ObservedProcess) -> bool:
    return process.name in _SHELLS


def _died_of_it(name: str, first: ObservedProcess | None) -> str:
    shell = first is not None and _is_shell(first)
    who = "The batch shell" if first is None or shell else f"{first.name}"
    return f"{who} got {name} and died of it: nothing was saved by it, and Slurm ended the job."


def _why_it_died(name: str, first: ObservedProcess | None) -> str:
    if first is None or _is_shell(first):
        return (
            f"let the script's last line be 'exec dlrun -- COMMAND' after \"trap '' {name}\" (or "
            "trap the signal in the shell): the signal goes to the batch script's process alone"
        )
    return f"install a handler for {name} in {first.name}, or run it under dlrun"


def _stopped(facts: Observations) -> Part:
    contract = facts.contract
    by_job = contract.requeued_by == "job"
    if facts.killed_by == contract.signal:
        return
    if facts.requeued_itself:
        after = f"It put itself back {facts.ended_s or 0:.1f} s after the signal."
        if by_job or facts.acked_s is not None:
            yield after, ""
        else:
            yield (
                after,
                "the contract says that the daemon requeues: submit with --requeued-by job",
            )
    elif facts.ended_s is not None:
        yield f"{_ended(facts)} {facts.ended_s:.1f} s after the signal.", _not_put_back(facts)
    elif facts.acked_s is not None and not by_job:
        yield f"The checkpoint was acknowledged {facts.acked_s:.1f} s after the signal.", ""
    else:
        grace = f"It went on for the whole grace of {contract.grace_s:g} s and was then requeued"
        if facts.checkpoint:
            yield f"{grace}: it saved and acknowledged nothing, so GPUs come free late.", ""
        else:
            yield f"{grace} by force.", _deaf(facts)


def _ended(facts: Observations) -> str:
    return f"{facts.end[0].upper()}{facts.end[1:]}" if facts.end else "It ended"


def _not_put_back(facts: Observations) -> str:
    if facts.end.endswith(f"status {_DONE}"):
        return (
            "status 0 means that the job is done, and nobody brings it back: end by "
            "job.exit_for_requeue() (status 75) under dlrun; for a trainer that always ends with 0 "
            "after it has saved, give dlsubmit or dlrun --stops-with 0"
        )
    if facts.dlrun_took_it and facts.end.endswith(f"status {_FINAL}"):
        return (
            f"status {_FINAL} is final, and dlrun does not run the job again: end with 75 to be "
            "run again, or take it out of --never-requeue"
        )
    if facts.dlrun_took_it:
        return "dlrun takes only status 75 as a stop: end by job.exit_for_requeue()"
    return "nobody puts back a job that has ended: run the command under 'exec dlrun --'"


def _deaf(facts: Observations) -> str:
    """Why nothing happened within the grace."""
    name = facts.contract.signal
    first = next((p for p in facts.processes if p.is_first), None)
    workers = [p for p in facts.processes if not p.is_first and not _is_shell(p)]
    if facts.script_listens:
        return (
            "the script listens and has not stopped in time: ask should_checkpoint() at every "
            "step, or give more with --grace S"
        )
    if first is not None and _is_shell(first) and not facts.dlrun_took_it:
        return (
            f"{first.name} took {name} and passed nothing on: a shell runs its trap only when the "
            "command before it has ended; write 'exec dlrun -- COMMAND', or start COMMAND with & "
            "and 'wait' for it"
        )
    if any(p.signal in {"catches", "blocks"} for p in workers):
        return (
            f"a process caught {name} and nothing acknowledged it: end with "
            "job.exit_for_requeue(), or let it requeue itself and submit with --requeued-by job"
        )
    for process in workers:
        for other in process.others:
            if other.startswith("USR"):
                return (
                    f"{process.name} catches {other} and not {name}: submit it with "
                    f"--signal {other} (submitit's default is USR2)"
                )
    deaf = next((p for p in workers if p.signal == "ignores"), None)
    who = f"{deaf.name} ignored {name}" if deaf else f"nothing under dlrun listens for {name}"
    return f"{who}: call job.should_checkpoint() at every step, or install a handler for {name}"


def _saved(facts: Observations) -> Part:
    saved = facts.checkpoint
    if saved.recorded is not None:
        at = f" at step {saved.step}" if saved.step is not None else ""
        yield f"A checkpoint was written and recorded{at}: {saved.recorded}.", ""
    elif saved.files:
        yield f"Files were written after the signal: {_files(saved)}.", ""
    elif saved.incomplete:
        yield (
            f"No checkpoint was seen: only the first {MOST_FILES} files there were compared.",
            "name the directory that it saves to with --watch DIR, one with fewer files",
        )
    elif facts.killed_by != facts.contract.signal:
        yield (
            "No checkpoint was written after the signal.",
            "save on the signal; if it saves elsewhere, name that directory with --watch DIR",
        )


def _files(saved: SavedCheckpoint) -> str:
    shown = ", ".join(saved.files[:_FILES_SHOWN])
    left = len(saved.files) - _FILES_SHOWN
    return f"{shown} and {left} more" if left > 0 else shown


def _came_back(facts: Observations) -> Part:
    back = facts.back
    if back is None:
        return
    if not back.trained:
        how = back.end or "it was not seen to train in time"
        yield f"After the requeue {how}.", "see its log: the second run must start like the first"
        return
    step = back.first_step
    if step is not None:
        yield from _by_steps(facts, step, read=back.read)
    elif back.read:
        yield "After the requeue it read the checkpoint and trained again.", ""
    elif not facts.checkpoint:
        yield "After the requeue it trained again, from nothing that was saved.", ""
    elif back.read is None:
        yield (
            "After the requeue it trained again; whether from the checkpoint cannot be seen here.",
            "report steps with job.report(step), then this command sees where it goes on",
        )
    else:
        yield "After the requeue it trained again and read no checkpoint: it started over.", _RESUME


def _by_steps(facts: Observations, step: int, *, read: bool | None) -> Part:
    saved_at = facts.checkpoint.step
    reached = facts.last_step
    if step < saved_at if saved_at is not None else step <= 1 < (reached or 0):
        unread = " and read no checkpoint" if read is False else ""
        yield f"After the requeue it started over at step {step}{unread}.", _RESUME
        return
    lost = "" if reached is None else f" (it had reached step {reached})"
    yield f"After the requeue it went on at step {step}{lost}.", ""
