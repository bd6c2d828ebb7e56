"""What a trial saw, as data: nothing here looks or judges."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

from slurm_dl.model.contract import Contract

Disposition = Literal["catches", "ignores", "blocks", "dies of"]
"""What a process does with a signal, in words that the signal's name can follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedProcess:
    """A process of the job shortly before the signal.

    Attributes:
        name: The program's name; the user's text.
        signal: What it does with the contract's signal.
        others: What it catches of USR1 and USR2 beside that, without ``SIG``.
        is_first: It is the batch script's own process, the only one that gets the signal.
    """

    pid: int
    name: str
    signal: Disposition
    others: tuple[str, ...] = ()
    is_first: bool = False


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
        step: Its step, if that was said.
        file: The newest file below a watched directory, if it is newer than all there before.
    """

    recorded: str | None = None
    step: int | None = None
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
        ready: By what it was seen to train; empty if it did not get so far.
        last_step: The last step it reported before it stopped; None if it reported none.
        processes: Its processes before the signal; empty where they cannot be seen.
        dlrun_took_it: dlrun has noted the request.
        script_listens: The script asks slurm_dl.job whether it should stop.
        acked_s: Seconds from the signal to the acknowledgement; None if there was none.
        ended_s: Seconds from the signal to the end of the run by itself; None if it did not end.
        end: How it ended, in words.
        killed_by: The signal that ended it, without ``SIG``; empty if none did.
        back: The next run; None if there was none.
        last_words: The end of its log, if it ended too early; the user's text.
    """

    contract: Contract
    ready: str = ""
    last_step: int | None = None
    processes: tuple[ObservedProcess, ...] = ()
    dlrun_took_it: bool = False
    script_listens: bool = False
    acked_s: float | None = None
    ended_s: float | None = None
    end: str = ""
    killed_by: str = ""
    requeued_itself: bool = False
    checkpoint: SavedCheckpoint = SavedCheckpoint()
    back: Return | None = None
    last_words: str = ""
