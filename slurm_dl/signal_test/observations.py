"""What a trial saw, as data: nothing here looks or judges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slurm_dl.model.contract import Contract

MOST_FILES = 5000
"""So many files and directories are looked at in each place that a job writes to."""

Disposition = Literal["catches", "ignores", "blocks", "dies of"]
"""What a process does with a signal, in words that the signal's name can follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedProcess:
    """A process of the job shortly before the signal.

    Attributes:
        pid: Its number.
        name: The program's name; the user's text.
        signal: What it does with the contract's signal.
        others: Further checkpoint signals that it catches, without ``SIG``.
        is_first: It is the batch script's own process, the only one that gets the signal.
    """

    pid: int
    name: str
    signal: Disposition
    others: tuple[str, ...] = ()
    is_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The job at one instant.

    Attributes:
        state: Not started yet (or put back), running, or over.
        run: Its restart count.
        acked: It has acknowledged the checkpoint of this run.
        end: How it ended, in words; empty unless it is over.
        killed_by: The signal that ended it, without ``SIG``; empty if none did.
    """

    state: Literal["waiting", "running", "over"]
    run: int = 0
    acked: bool = False
    end: str = ""
    killed_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """What was written after the signal.

    Attributes:
        recorded: Path that the job recorded as a whole checkpoint of this run; None if none.
        step: Its step, if that was said.
        files: Files that were made or replaced, relative to where they lie.
        incomplete: There are more files than are compared; among the others nothing was seen.
    """

    recorded: str | None = None
    step: int | None = None
    files: tuple[str, ...] = ()
    incomplete: bool = False

    def __bool__(self) -> bool:
        return self.recorded is not None or bool(self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """The run after the requeue.

    Attributes:
        trained: It trained again, as far as one could see.
        first_step: The first step it reported; None if it reported none.
        read: It read the checkpoint's files; None if that cannot be seen here.
        end: How it ended before it trained, in words; empty if it did not.
    """

    trained: bool
    first_step: int | None = None
    read: bool | None = None
    end: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """All that one trial saw.

    Attributes:
        contract: What the job has agreed to.
        ready: By what it was seen to train; empty if it did not get so far.
        last_step: The last step it reported before it stopped; None if it reported none.
        processes: Its processes before the signal; empty where they cannot be seen.
        dlrun_took_it: dlrun has noted the request.
        script_listens: The script asks slurm_dl.job whether it should stop.
        acked_s: Seconds from the signal to the acknowledgement; None if there was none.
        ended_s: Seconds from the signal to the end of the run by itself; None if it did not end.
        end: How it ended, in words.
        killed_by: The signal that ended it, without ``SIG``; empty if none did.
        requeued_itself: It put itself back into the queue.
        checkpoint: What it wrote.
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
