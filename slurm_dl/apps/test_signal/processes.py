"""What the processes of a session on this host do with signals, as /proc has it."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from slurm_dl.apps.test_signal.facts import Disposition, Process
from slurm_dl.job.child import SESSION, members
from slurm_dl.model.contract import SIGNALS


def seen(session: int, name: str) -> tuple[Process, ...]:
    """The processes of *session* and what each does with the signal *name*."""
    found = (_seen(pid, name, is_first=pid == session) for pid in members(SESSION, session))
    return tuple(process for process in found if process is not None)


def send(session: int, signum: int) -> None:
    """Send a signal to each process of *session*, by its number."""
    for pid in members(SESSION, session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def disposition(status: str, name: str) -> Disposition:
    """What a process with this ``/proc/PID/status`` does with the signal *name*."""
    masks = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    bit = 1 << (signal.Signals["SIG" + name] - 1)
    # dlrun and others block a signal and fetch it: that is as good as a handler.
    words: tuple[tuple[str, Disposition], ...] = (
        ("SigBlk", "blocks"),
        ("SigIgn", "ignores"),
        ("SigCgt", "catches"),
    )
    for mask, word in words:
        if int(masks.get(mask, "0"), 16) & bit:
            return word
    return "dies of"


def _seen(pid: int, name: str, *, is_first: bool) -> Process | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return Process(
        pid=pid,
        name=status.partition("\n")[0].removeprefix("Name:\t"),
        signal=disposition(status, name),
        others=tuple(
            other
            for other in SIGNALS
            if other not in {name, "CONT", "INT", "HUP"} and disposition(status, other) == "catches"
        ),
        is_first=is_first,
    )
