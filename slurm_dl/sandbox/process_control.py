"""Commands against a sandbox, each with a deadline; daemons that outlive them, and their end.

A pid alone names nothing: it may have been given to somebody else meanwhile. A process is known by
pid, start time (field 22 of /proc/PID/stat) and the boot in which it started. Signals go through
a pidfd that is opened first and compared after, so no reuse in between can be hit.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from slurm_dl.job import tool_process
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.sandbox import layout as layouts
from slurm_dl.sandbox.layout import write_file

_PROC: Final = Path("/proc")
_DAEMON_PROGRAMS: Final = ("munged", "mariadbd", "slurmctld", "slurmd", "slurmdbd", "slurmstepd")
# The starting shell (nohup, background jobs) and Python itself leave signals ignored.
_DEFAULT_SIGNALS: Final = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


@dataclass(frozen=True, slots=True)
class Process:
    """One process, named so that it can never be mistaken for a later one with the same pid."""

    name: str  # The daemon's name in the sandbox, or the program's
    pid: int  # Process id
    start_ticks: int  # Clock ticks from boot to the process's start
    boot_id: str  # The kernel's id of that boot


_PROCESS_JSON: Final = TypeAdapter(Process)


def boot_id() -> str:
    """The kernel's id of the running boot."""
    return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def find(name: str, pid: int) -> Process | None:
    """The live process with *pid*; None when there is none or it is only waiting to be reaped."""
    stat_fields = _stat_fields(pid)
    if stat_fields is None or stat_fields[0] in "ZX":
        return None
    return Process(name, pid, int(stat_fields[19]), boot_id())


def is_alive(process: Process) -> bool:
    """Whether this very process still runs."""
    return find(process.name, process.pid) == process


def send(process: Process, signum: signal.Signals) -> bool:
    """Signal this very process; False when it is gone."""
    try:
        pid_fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(pid_fd, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(pid_fd)
    return True


def wait_gone(processes: Iterable[Process], within_s: float) -> tuple[Process, ...]:
    """Wait until all *processes* are gone; those that still live at the deadline."""
    deadline_s = time.monotonic() + within_s
    left = tuple(process for process in processes if not _is_gone(process))
    while left and time.monotonic() < deadline_s:
        time.sleep(0.02)
        left = tuple(process for process in left if not _is_gone(process))
    return left


def end(processes: Iterable[Process], *, term_s: float) -> tuple[Process, ...]:
    """SIGTERM, then SIGKILL for those that are left after *term_s*; the ones that lived."""
    lived = tuple(process for process in processes if send(process, signal.SIGTERM))
    stubborn = wait_gone(lived, term_s)
    for process in stubborn:
        send(process, signal.SIGKILL)
    wait_gone(stubborn, 10.0)
    return lived


def spawn(
    name: str, argv: Sequence[str], *, env: Mapping[str, str], output: Path, record: Path
) -> Process:
    """Start a daemon in its own session and write its record.

    Args:
        name: Its name in the sandbox.
        argv: Absolute program path and arguments; the program must stay in the foreground.
        env: Its whole environment.
        output: File for what it prints, emptied first.
        record: File that :func:`read_record` reads back.
    """
    # posix_spawn cannot change the directory; env can and keeps pid and start time. A daemon that
    # stayed in the caller's directory would keep it busy.
    pid = os.posix_spawn(
        "/usr/bin/env",
        ["env", "--chdir=/", *argv],
        env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (
                os.POSIX_SPAWN_OPEN,
                1,
                str(output),
                os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND,
                0o644,
            ),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=_DEFAULT_SIGNALS,
    )
    # The child is not reaped yet, so its /proc entry is there even if it has ended already.
    stat_fields = _stat_fields(pid)
    start_ticks = int(stat_fields[19]) if stat_fields else 0
    process = Process(name, pid, start_ticks, boot_id())
    write_file(record, json.dumps(asdict(process)) + "\n")
    return process


def read_record(record: Path) -> Process | None:
    """The process written to *record*; None when there is no record."""
    try:
        return _PROCESS_JSON.validate_json(record.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as err:
        message = f"{record} cannot be read as a process record; delete it, then run 'down'"
        raise ConfigError(message) from err


def daemons_holding(paths: Sequence[Path]) -> tuple[Process, ...]:
    """Slurm's, munge's and MariaDB's processes that have one of *paths*, or a file below one, open.

    That finds what no record names: slurmstepd, slurmctld's helper, and a daemon whose starter died
    before it could write the record. slurmctld's helper and slurmstepd overwrite their own
    environment and arguments (22.05.8), so open files are the only mark that stays.
    """
    names = tuple(str(path) for path in paths)
    found: list[Process] = []
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        pid = int(entry.name)
        program = _program(pid)
        if program.startswith(_DAEMON_PROGRAMS) and _has_open(pid, names):
            process = find(program, pid)
            if process is not None:
                found.append(process)
    return tuple(found)


def descendants(ancestors: Iterable[Process]) -> tuple[Process, ...]:
    """Every live process below *ancestors*, without them."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            stat_fields = _stat_fields(int(entry.name))
            if stat_fields is not None:
                children.setdefault(int(stat_fields[1]), []).append(int(entry.name))
    waiting = [pid for ancestor in ancestors for pid in children.get(ancestor.pid, [])]
    found: dict[int, Process] = {}
    while waiting:
        pid = waiting.pop()
        process = find(_program(pid), pid)
        if process is not None and pid not in found:
            found[pid] = process
            waiting += children.get(pid, [])
    return tuple(found.values())


def _is_gone(process: Process) -> bool:
    if is_alive(process):
        return False
    stat_fields = _stat_fields(process.pid)
    if stat_fields is not None and int(stat_fields[19]) == process.start_ticks:
        # A zombie. Ours to reap when this interpreter started it, else its parent's.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
    return True


def _stat_fields(pid: int) -> list[str] | None:
    """Fields 3 (state), 4 (parent), ... of /proc/PID/stat; None when there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Field 2 is the program's name in parentheses and may hold anything, parentheses included.
    return text[text.rindex(")") + 2 :].split()


def _program(pid: int) -> str:
    """Name of the running program's file; empty when it cannot be told."""
    try:
        target = (_PROC / str(pid) / "exe").readlink()
    except OSError:
        return ""
    # Debian's slurmctld is a link to slurmctld-wlm; an upgraded program reads "... (deleted)".
    return target.name


def _has_open(pid: int, names: tuple[str, ...]) -> bool:
    try:
        entries = list((_PROC / str(pid) / "fd").iterdir())
    except OSError:
        return False
    for entry in entries:
        with contextlib.suppress(OSError):
            target = str(entry.readlink()).removesuffix(" (deleted)")
            if any(target == name or target.startswith(f"{name}/") for name in names):
                return True
    return False


PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run(
    argv: Sequence[str],
    timeout_s: float,
    *,
    check: bool,
    user: str | None,
    stdin: str,
    cwd: str | os.PathLike[str],
    env: Mapping[str, str],
) -> subprocess.CompletedProcess[str]:
    """Run *argv* to its end; :meth:`slurm_dl.sandbox.Sandbox.run` says what each argument means."""
    account = pwd.getpwnam(user) if user is not None else pwd.getpwuid(os.geteuid())
    clean = {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        # Slurm prints local times; a caller with TZ set expects its own.
        **({"TZ": os.environ["TZ"]} if "TZ" in os.environ else {}),
        **env,
    }
    program = argv[0] if "/" in argv[0] else layouts.program(argv[0])
    # Arguments can hold a job's name, and that any control character.
    words = ascii(shlex.join(argv))
    try:
        done = tool_process.run(
            [program, *argv[1:]],
            stdin.encode(),
            timeout_s=timeout_s,
            cwd=cwd,
            env=clean,
            user=None if user is None else account.pw_uid,
            group=None if user is None else account.pw_gid,
            extra_groups=(
                None if user is None else os.getgrouplist(account.pw_name, account.pw_gid)
            ),
        )
    except subprocess.TimeoutExpired as err:
        message = f"{words} did not end within {timeout_s:g} s"
        raise ClusterError(message) from err
    if check and done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        message = f"{words} ended with status {done.returncode}: {said}"
        raise ClusterError(message)
    return done


T = TypeVar("T")


class DeadlinePassedError(ClusterError):
    """What was waited for did not come in time."""


def eventually(
    predicate: Callable[[], T],
    within_s: float = 30.0,
    every_s: float = 0.2,
    *,
    what: str = "",
) -> T:
    """Call *predicate* until it returns something true, and return that.

    A predicate that fails with an ``AssertionError`` or a ``ClusterError`` is asked again.

    Args:
        predicate: Asked at least once, also when *within_s* is 0.
        within_s: Seconds until the deadline.
        every_s: Seconds between two questions.
        what: What is waited for, for the message; by default the predicate's name.

    Raises:
        DeadlinePassedError: With the last answer or the last error.
    """
    deadline_s = time.monotonic() + within_s
    while True:
        error: Exception | None = None
        answer: T | None = None
        try:
            answer = predicate()
        except (AssertionError, ClusterError) as err:
            error = err
        if error is None and answer:
            return answer
        if time.monotonic() >= deadline_s:
            break
        time.sleep(every_s)
    name = what or getattr(predicate, "__qualname__", repr(predicate))
    last = f"last error: {error}" if error is not None else f"last answer: {answer!r}"
    message = f"waited {within_s:g} s for {name}; {last}"
    raise DeadlinePassedError(message) from error
