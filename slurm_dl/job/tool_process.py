"""A command with a time limit, in a session of its own that ends with it.

A site may wrap Slurm's tools in scripts: where only the wrapper is killed, the tool goes on and
acts later.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from slurm_dl.job.child import family

_ROUNDS = 5


def run(
    argv: Sequence[str],
    told: bytes = b"",
    *,
    timeout_s: float,
    feed: Callable[[bytes], None] | None = None,
    errors: str = "replace",
    **how: Any,  # noqa: ANN401 - as Popen's
) -> subprocess.CompletedProcess[str]:
    """Run *argv* to its end, and kill all that it runs where it is late or the caller gives up.

    Args:
        told: Its standard input.
        feed: Takes its standard output while it comes; the result has none then.
        errors: As of ``bytes.decode``, for its standard output: names may hold any bytes.

    Raises:
        subprocess.TimeoutExpired: It did not end within *timeout_s* seconds.
        OSError: It cannot be started.
    """
    with (
        os.fdopen(os.memfd_create("stderr"), "w+b") as said,
        subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if told else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # Nobody reads a pipe while standard output is fed on.
            stderr=said if feed else subprocess.PIPE,
            start_new_session=True,
            **how,
        ) as child,
    ):
        late = threading.Event()

        def end() -> None:
            late.set()
            kill(child)

        killer = threading.Timer(timeout_s, end)
        # The command of a thread that nobody waits for does not hold up the end of the program.
        killer.daemon = True
        killer.start()
        try:
            while feed and child.stdout and (chunk := child.stdout.read(2**18)):
                feed(chunk)
            # A daemon that the tool has started may hold the pipes even then.
            out, err = child.communicate(told, timeout_s + 1)
            said.seek(0)
            err = err or said.read()
        except BaseException:
            kill(child)
            raise
        finally:
            killer.cancel()
            # No thread is left when the next command is forked.
            killer.join()
    if late.is_set():
        raise subprocess.TimeoutExpired(argv, timeout_s)
    texts = out.decode("utf-8", errors), err.decode("utf-8", "replace")
    return subprocess.CompletedProcess(argv, child.returncode, *texts)


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kill the session that *child* was started as leader of, and what has left it for another."""
    if child.returncode is not None:  # Its number may be another's.
        return
    found: set[int] = set()
    # What is stopped starts nothing more, and stays the parent by which the rest is found.
    for _ in range(_ROUNDS):
        if not (new := family(child.pid) - found):
            break
        found |= new
        _signal(os.kill, new, signal.SIGSTOP)
    _signal(os.kill, found, signal.SIGKILL)
    # Some of it may be hidden in /proc.
    _signal(os.killpg, {child.pid}, signal.SIGKILL)


def _signal(send: Callable[[int, int], None], to: Iterable[int], signum: int) -> None:
    for number in to:
        # It has ended, or has become another user.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(number, signum)
