"""The user's command as a child process: starting, signalling, and leaving nobody behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

LEFTOVER_GRACE_S = 5.0
"""Between SIGTERM and SIGKILL for processes that outlive the command."""

GROUP, SESSION = 2, 3
"""Fields of /proc/PID/stat after the command's name, see proc(5)."""

_STATE = 0


class Child:
    """One start of the command, in a process group of its own.

    Signals go to the command itself, not to the group: data loader workers have no handler.

    Args:
        argv: The command.
        environ: Its environment.
        prepare: Called in the new process before the command is executed.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self, argv: Sequence[str], environ: Mapping[str, str], prepare: Callable[[], None]
    ) -> None:
        def own_group() -> None:
            os.setpgid(0, 0)
            prepare()

        self._process = subprocess.Popen(
            list(argv),
            env=dict(environ),
            preexec_fn=own_group,  # noqa: PLW1509 -- one thread only
        )

    def has_exited(self) -> bool:
        """True once it has ended. It is not reaped here: its group must keep its number."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, options) is not None

    def listens_for(self, signum: int) -> bool:
        """True if the signal would not kill it: it has a handler or waits for it.

        A Python that is still importing has none yet, and a shell around the real program may
        never get one; both would die of it.
        """
        masks = _signal_masks(self._process.pid)
        return _has(masks, "SigCgt", signum) or _has(masks, "SigBlk", signum)

    def ignores(self, signum: int) -> bool:
        """True if it ignores the signal."""
        return _has(_signal_masks(self._process.pid), "SigIgn", signum)

    def program(self) -> str:
        """Name of the program that its process runs now; empty if that cannot be seen."""
        return _program(self._process.pid)

    def other_catching(self, signum: int) -> str:
        """Another process of its group that has a handler for the signal; empty if none has."""
        for pid in members(GROUP, self._process.pid):
            if pid != self._process.pid and _has(_signal_masks(pid), "SigCgt", signum):
                return f"{_program(pid)}, process {pid}"
        return ""

    def send(self, signum: int) -> None:
        """Send it a signal; nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signum)

    def finish(self) -> int:
        """End what is left of its group and return its status as a shell would, 128+n for signals.

        Only after it has exited.
        """
        group = self._process.pid
        if members(GROUP, group):
            _signal_group(group, signal.SIGTERM)
            deadline_s = time.monotonic() + LEFTOVER_GRACE_S
            while members(GROUP, group) and time.monotonic() < deadline_s:
                time.sleep(0.05)
            if members(GROUP, group):
                _signal_group(group, signal.SIGKILL)
        code = self._process.wait()
        return code if code >= 0 else 128 - code


def _signal_masks(pid: int) -> dict[str, str]:
    """What a process does with signals, as /proc has it; nothing if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)


def _has(masks: Mapping[str, str], name: str, signum: int) -> bool:
    return bool(int(masks.get(name, "0"), 16) >> (signum - 1) & 1)


def _program(pid: int) -> str:
    # Not its "comm": of a script that is the script's name, and the shell's stands here.
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


def _signal_group(group: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signum)


def members(field: int, number: int) -> list[int]:
    """Living processes of the `GROUP` or the `SESSION` of that *number*, in order."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # The name is in parentheses and may hold anything, further parentheses too.
        fields = text.rpartition(")")[2].split()
        if fields[_STATE] != "Z" and fields[field] == str(number):
            found.append(int(entry.name))
    return sorted(found)
