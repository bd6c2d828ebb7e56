"""The user's command as a child process, and the signals that dlrun takes meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slurm_dl.job.run_files import ATTEMPT_VARIABLE, RUN_DIR_VARIABLE

LEFTOVER_GRACE_S = 5.0  # Between SIGTERM and SIGKILL for processes that outlive the command

GROUP, SESSION = 2, 3  # Fields of /proc/PID/stat after the command's name, see proc(5)

_STATE, _PARENT = 0, 1

_NEARLY_ALL = 40
"""So many of the 64 signals in a mask are no choice of the training's. Go's runtime has a handler
for each that a program may be notified of (golang/go, src/runtime/sigtab_linux_generic.go), and
vfork of the C library blocks all of them for a moment."""

OWN_USE = frozenset({"dd", "gmake", "make", "node", "screen", "tmux", "xargs"})
"""Programs for which USR1 means something else: more output, one process more, a debugger."""


class Process(NamedTuple):
    """One process of the command."""

    pid: int  # Its number
    program: str  # Name of the program that it runs; empty if that cannot be seen
    takes: bool  # It has a handler for the signal, or waits for it
    code: str  # The program and the size of its libraries, which changes while a program starts
    is_fork: bool  # Its parent runs the same command line, as that of a data loader's worker does
    parent: int = 0


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

        # Slurm's daemon hands them on to the tasks of an srun, which are no descendants. A job that
        # is submitted from inside has an id of its own.
        names = (RUN_DIR_VARIABLE, ATTEMPT_VARIABLE, "SLURM_JOB_ID")
        self._marks = {os.fsencode(f"{n}={environ[n]}") for n in names if n in environ}
        self._process = subprocess.Popen(
            list(argv),
            env=dict(environ),
            preexec_fn=own_group,  # noqa: PLW1509 -- one thread only
        )

    @property
    def pid(self) -> int:
        """Number of its process."""
        return self._process.pid

    def has_exited(self) -> bool:
        """True once it has ended. It is not reaped here: its group must keep its number."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, options) is not None

    def listens_for(self, signum: int) -> bool:
        """True if the signal would not kill it: it has a handler or waits for it.

        A Python that is still importing has none yet, and a shell around the real program may
        never get one; both would die of it.
        """
        return _takes(_status(self._process.pid), signum)

    def ignores(self, signum: int) -> bool:
        """True if it ignores the signal."""
        return _has(_status(self._process.pid), "SigIgn", signum)

    def program(self) -> str:
        """Name of the program that its process runs now; empty if that cannot be seen."""
        return _program(self._process.pid)

    def processes(self, signum: int) -> list[Process]:
        """Living processes of the command on this node, in order; *signum* is what they may take.

        Of the programs that handle nearly all signals, only the command itself counts as taking
        it, and only without children: what such a program has started is the training.
        """
        parents = {pid: int(fields[_PARENT]) for pid, fields in _living()}
        found = {
            pid for pid in parents if self._marks <= set(read_proc(pid, "environ").split(b"\0"))
        }
        found = _with_descendants(found | parents.keys() & {self.pid}, parents)
        return looked_at(found, signum, self.pid)

    def send(self, signum: int, pid: int | None = None) -> None:
        """Send a signal to it, or to one of its processes; nothing happens if that has ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid or self.pid, signum)

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


def looked_at(pids: Collection[int], signum: int, command: int) -> list[Process]:
    """The processes *pids* of the *command*, see `Child.processes`."""
    statuses = {pid: _status(pid) for pid in sorted(pids)}
    parents = {pid: int(status.get("PPid", "0")) for pid, status in statuses.items()}
    lines = {pid: read_proc(pid, "cmdline") for pid in pids}
    seen = []
    for pid, status in statuses.items():
        program, is_fork = _program(pid), lines.get(parents[pid]) == lines[pid]
        is_alone = pid == command and pid not in parents.values()
        takes = _takes(status, signum, most=64 if is_alone else _NEARLY_ALL)
        # One of sudo's is root's.
        takes = takes and status.get("Uid", "").split()[:1] == [str(os.getuid())]
        takes = takes and program not in OWN_USE
        code = f"{program} {status.get('VmLib', '').strip()}"
        seen.append(Process(pid, program, takes, code, is_fork, parents[pid]))
    return seen


def read_proc(pid: int, name: str) -> bytes:
    """A file of a process in /proc; nothing if it has ended, or is another user's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _status(pid: int) -> dict[str, str]:
    lines = read_proc(pid, "status").decode("utf-8", "replace").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _takes(status: Mapping[str, str], signum: int, most: int = 64) -> bool:
    return any(
        _has(status, name, signum) and bin(int(status[name], 16)).count("1") <= most
        for name in ("SigCgt", "SigBlk")
    )


def _has(masks: Mapping[str, str], name: str, signum: int) -> bool:
    return bool(int(masks.get(name, "0"), 16) >> (signum - 1) & 1)


def _program(pid: int) -> str:
    # Not its "comm": of a script that is the script's name, and the shell's stands here.
    try:
        # Python 3.8 has no Path.readlink.
        return Path(os.readlink(f"/proc/{pid}/exe")).name
    except OSError:
        return ""


def _signal_group(group: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signum)


def members(field: int, number: int) -> list[int]:
    """Living processes of the `GROUP` or the `SESSION` of that *number*, in order."""
    return sorted(pid for pid, fields in _living() if fields[field] == str(number))


def family(session: int) -> set[int]:
    """Living processes of that *session*, and their descendants in whatever session."""
    living = dict(_living())
    first = {pid for pid, fields in living.items() if fields[SESSION] == str(session)}
    return _with_descendants(first, {pid: int(living[pid][_PARENT]) for pid in living})


def _with_descendants(found: set[int], parents: Mapping[int, int]) -> set[int]:
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found = found | more
    return found


def _living() -> Iterator[tuple[int, list[str]]]:
    """All processes but zombies, with the fields of /proc/PID/stat after the name."""
    for entry in Path("/proc").iterdir():
        # The name is in parentheses and may hold anything, further parentheses too.
        text = read_proc(int(entry.name), "stat") if entry.name.isdigit() else b""
        fields = text.rpartition(b")")[2].decode("ascii", "replace").split()
        if fields and fields[_STATE] != "Z":
            yield int(entry.name), fields


class Signals:
    """The signals dlrun takes, blocked from construction on.

    Args:
        checkpoint: The signal that asks for a checkpoint.
    """

    def __init__(self, checkpoint: int) -> None:
        self.checkpoint = checkpoint
        # What was ignored when we started (nohup, a background job) stays ignored.
        self._ending = {
            s
            for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
            if s == signal.SIGTERM or signal.getsignal(s) != signal.SIG_IGN
        }
        self._taken = {*self._ending, checkpoint, signal.SIGCHLD}
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, self._taken)
        # The batch script may ignore the signal until dlrun is there. The command must not
        # inherit that: a shell cannot trap a signal that was ignored when it started.
        signal.signal(checkpoint, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def restore(self) -> None:
        """Give a new process its own signal mask back."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before - self._taken)

    def wait(self, timeout_s: float) -> int | None:
        """The next signal; None when *timeout_s* is over."""
        info = signal.sigtimedwait(self._taken, max(timeout_s, 0.0))
        return None if info is None else info.si_signo

    def is_ending(self, signum: int) -> bool:
        """True if the signal means: end now. TERM may be this and the checkpoint signal."""
        return signum in self._ending


def signal_name(signum: int) -> str:
    """The signal's name without ``SIG``."""
    return signal.Signals(signum).name[3:]
