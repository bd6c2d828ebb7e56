"""Observations of a trial as data, and the verdict on them. Pure.

Sentences may hold names of the user's files and programs: they are escaped where they are printed.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from slurm_dl.job.handler_watch import SHELLS
from slurm_dl.job.options import DEFAULT_NEVER_REQUEUE
from slurm_dl.model.contract import Contract

Disposition = Literal["catches", "ignores", "blocks", "dies of"]
"""What a process does with a signal, in words that the signal's name can follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedProcess:
    """A process of the job shortly before the signal.

    Attributes:
        is_first: It is the batch script's own process, the only one that gets the signal.
    """

    pid: int
    name: str  # The program's name; the user's text
    signal: Disposition  # What it does with the contract's signal
    others: tuple[str, ...] = ()  # What it catches of USR1 and USR2 beside that, without ``SIG``
    is_first: bool = False
    code: str = ""  # It changes while the program loads libraries; empty of a fork


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The job at one instant."""

    state: Literal["waiting", "running", "over"]  # Waiting is not started yet, or put back
    run: int = 0  # Its restart count
    acked: bool = False  # It has acknowledged the checkpoint of this run
    end: str = ""  # How it ended, in words; empty unless it is over
    killed_by: str = ""  # The signal that ended it, without ``SIG``; empty if none did


def ended(run: int, status: str, number: int) -> Look:
    """A job that ended with *status*, or of the signal *number* if that is above 0."""
    if not number:
        return Look(state="over", run=run, end=f"it ended with status {status}")
    try:
        name = signal.Signals(number).name.removeprefix("SIG")
    except ValueError:  # most of the real-time signals have no name
        name = str(number)
    return Look(state="over", run=run, end=f"it died of {name}", killed_by=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """What was written after the signal.

    Attributes:
        recorded: Path that the job recorded as a whole checkpoint of this run; None if none.
        file: The newest file below a watched directory, if it is newer than all there before.
    """

    recorded: str | None = None
    step: int | None = None  # Its step, if that was said
    file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """The run after the requeue."""

    trained: bool  # It trained again, as far as one could see
    first_step: int | None = None  # The first step it reported; None if it reported none
    end: str = ""  # How it ended before it trained, in words; empty if it did not


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """All that one trial saw.

    Attributes:
        last_step: The last step it reported before it stopped; None if it reported none.
        processes: Its processes before the signal; empty where they cannot be seen.
        acked_s: Seconds from the signal to the acknowledgement; None if there was none.
        ended_s: Seconds from the signal to the end of the run by itself; None if it did not end.
    """

    contract: Contract
    ready: str = ""  # By what it was seen to train; empty if it did not get so far
    is_unsent: bool = False  # Nothing but dlrun takes the signal, and it was not waited any longer
    last_step: int | None = None
    processes: tuple[ObservedProcess, ...] = ()
    dlrun_took_it: bool = False  # dlrun has noted the request
    script_listens: bool = False  # The script asks slurm_dl.job whether it should stop
    acked_s: float | None = None
    ended_s: float | None = None
    end: str = ""  # How it ended, in words
    killed_by: str = ""  # The signal that ended it, without ``SIG``; empty if none did
    requeued_itself: bool = False
    checkpoint: SavedCheckpoint = SavedCheckpoint()
    back: Return | None = None  # The next run; None if there was none
    last_words: str = ""  # The end of its log, if it ended too early; the user's text


class TrialVerdict(NamedTuple):
    """What was seen and what that means, what to do about it, and 0 if the job works."""

    sentences: tuple[str, ...]
    advice: str
    exit_status: int


def judge(facts: Observations) -> TrialVerdict:
    """Say what *facts* mean: the first row whose condition holds."""
    contract, saved, name = facts.contract, facts.checkpoint, facts.contract.signal
    back = facts.back or Return(trained=False)
    first = next((p for p in facts.processes if p.is_first), None)
    program = first.name if first else "bash"
    is_shell = program in SHELLS
    died = facts.killed_by == name
    ended = facts.ended_s is not None and not facts.requeued_itself
    is_saved = facts.acked_s is not None or bool(saved.recorded or saved.file)
    deaf = facts.ended_s is None and not is_saved
    # dlrun itself catches the signal, and does not train.
    workers = [
        p
        for p in facts.processes
        if p.name not in SHELLS and not (p.is_first and facts.dlrun_took_it)
    ]
    is_caught = any(p.signal in {"catches", "blocks"} for p in workers)
    is_deaf = bool(ended and facts.dlrun_took_it and workers) and not facts.script_listens
    is_unheard = facts.is_unsent or (is_deaf and not is_caught)
    programs = ", ".join(sorted({p.name for p in workers})) or "a shell"
    ignoring = [p.name for p in workers if p.signal == "ignores"]
    others = [(p.name, other) for p in workers for other in p.others]
    other_name, other = others[0] if others else ("", "")
    step, reached = back.first_step, facts.last_step or 0
    went_on = step is not None and (
        not step <= 1 < reached if saved.step is None else step >= saved.step
    )
    listen = f"call job.should_checkpoint() at every step, or install a handler for {name}"
    rows: tuple[tuple[object, str, str, int], ...] = (
        (
            not facts.ready,
            f"{_capital(facts.end) or 'It was not seen to train'}; no signal was sent.",
            "make it run by itself first, or wait longer with --within S",
            1,
        ),
        (
            died and is_shell,
            f"The batch shell got {name} and died of it: the signal goes to that process alone.",
            f"end the script with 'exec dlrun -- COMMAND' after \"trap '' {name}\"",
            1,
        ),
        (
            died,
            f"{program} got {name} and died of it.",
            f"install a handler for {name} in {program}, or run it under dlrun",
            1,
        ),
        (
            is_unheard and not others and not ignoring,
            f"Nothing has a handler for {name} ({programs}), so dlrun sends it to no process.",
            f"{listen}; a handler that comes later needs --start S",
            1,
        ),
        (
            ended and facts.end.endswith("status 0"),
            "Status 0 means that the job is done: nobody brings it back.",
            "end by job.exit_for_requeue() under dlrun, or give dlsubmit or dlrun --stops-with 0",
            1,
        ),
        (
            ended and facts.dlrun_took_it and facts.end.endswith(f"status {DEFAULT_NEVER_REQUEUE}"),
            f"Status {DEFAULT_NEVER_REQUEUE} is final: dlrun does not run the job again.",
            "end with 75 to be run again, or take it out of --never-requeue",
            1,
        ),
        (
            ended and facts.dlrun_took_it,
            "dlrun takes only status 75 as a stop.",
            "end by job.exit_for_requeue()",
            1,
        ),
        (
            ended,
            "Nobody puts back a job that has ended.",
            "run the command under 'exec dlrun --'",
            1,
        ),
        (
            facts.requeued_itself and contract.requeued_by == "daemon" and facts.acked_s is None,
            "It put itself back, and its contract says that the daemon does.",
            "submit it with --requeued-by job",
            1,
        ),
        (
            deaf and facts.script_listens,
            "The script listens and has not stopped in time.",
            "ask should_checkpoint() at every step, or give more with --grace S",
            1,
        ),
        (
            deaf and first and first.signal == "ignores",
            f"The batch script's process ({program}) ignored {name}.",
            f"start the training with 'exec dlrun -- ...' in place of what ignores {name}",
            1,
        ),
        (
            deaf and first and is_shell and not facts.dlrun_took_it,
            f"{program} took {name} and passed nothing on: it first waits for its command to end.",
            "write 'exec dlrun -- COMMAND', or start COMMAND with & and 'wait' for it",
            1,
        ),
        (
            deaf and is_caught,
            f"A process caught {name} and nothing acknowledged it.",
            "end with job.exit_for_requeue(), or requeue itself and have --requeued-by job",
            1,
        ),
        (
            deaf and others,
            f"{other_name} catches {other} and not {name}.",
            f"submit it with --signal {other} (submitit's default is USR2)",
            1,
        ),
        (deaf and ignoring, f"{', '.join(ignoring)} ignored {name}.", listen, 1),
        (deaf, f"Nothing was seen to listen for {name}.", listen, 1),
        (
            not is_saved,
            "No checkpoint was seen after the signal.",
            "save on the signal; record it with job.checkpoint_saved(), or --watch its directory",
            1,
        ),
        (
            not back.trained,
            f"After the requeue {back.end or 'it was not seen to train in time'}.",
            "see its log: the second run must start like the first",
            1,
        ),
        (
            step is None,
            "Whether it resumed from the checkpoint cannot be seen: it reports no steps.",
            "report steps with job.report(step), then this command sees where it goes on",
            1,
        ),
        (
            not went_on,
            "It started over.",
            "load job.resume_from() (or the framework's own last checkpoint) at the start",
            1,
        ),
        (True, "It works.", "", 0),
    )
    sentence, advice, status = next(row[1:] for row in rows if row[0])
    return TrialVerdict((*_seen(facts), sentence), advice, status)


def _seen(facts: Observations) -> Iterator[str]:
    """What was seen, in order."""
    if not facts.ready:
        return
    yield f"The job trained: {facts.ready}."
    if facts.dlrun_took_it:
        yield f"dlrun took {facts.contract.signal} and asked the script to stop."
    if facts.acked_s is not None:
        yield f"The checkpoint was acknowledged {facts.acked_s:.1f} s after the signal."
    if facts.ended_s is not None:
        how = "It put itself back" if facts.requeued_itself else _capital(facts.end)
        yield f"{how} {facts.ended_s:.1f} s after the signal."
    elif facts.acked_s is None and not facts.is_unsent:
        grace = f"{facts.contract.grace_s:g} s"
        yield f"It acknowledged nothing for the whole grace of {grace}, and was requeued by force."
    saved, back = facts.checkpoint, facts.back
    if saved.recorded is not None:
        at = f" at step {saved.step}" if saved.step is not None else ""
        yield f"A checkpoint was written and recorded{at}: {saved.recorded}."
    elif saved.file is not None:
        yield f"A file was written after the signal: {saved.file}."
    if back and back.trained:
        at = "" if back.first_step is None else f" at step {back.first_step}"
        last = "" if facts.last_step is None else f" (it had reached step {facts.last_step})"
        yield f"After the requeue it trained again{at}{last}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
