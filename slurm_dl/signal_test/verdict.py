"""What a trial's facts mean: does it work, and if not, what is wrong. Pure.

Sentences may hold names of the user's files and programs: they are escaped where they are printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from slurm_dl.job.options import DEFAULT_NEVER_REQUEUE
from slurm_dl.signal_test.observations import Observations, Return

_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})


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
    is_shell = program in _SHELLS
    died = facts.killed_by == name
    ended = facts.ended_s is not None and not facts.requeued_itself
    is_saved = facts.acked_s is not None or bool(saved.recorded or saved.file)
    deaf = facts.ended_s is None and not is_saved
    # dlrun itself catches the signal, and does not train.
    workers = [
        p
        for p in facts.processes
        if p.name not in _SHELLS and not (p.is_first and facts.dlrun_took_it)
    ]
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
            deaf and any(p.signal in {"catches", "blocks"} for p in workers),
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
    elif facts.acked_s is None:
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
