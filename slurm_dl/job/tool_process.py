"""A command with a time limit, in a process group of its own that ends with it.

A site may wrap Slurm's tools in scripts: where only the wrapper is killed, the tool goes on and
acts later.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any


def run(
    argv: Sequence[str],
    told: bytes = b"",
    *,
    timeout_s: float,
    feed: Callable[[bytes], None] | None = None,
    **how: Any,  # noqa: ANN401 - as Popen's
) -> subprocess.CompletedProcess[bytes]:
    """Run *argv* to its end, and kill its whole group where it is late or the caller gives up.

    Args:
        told: Its standard input.
        feed: Takes its standard output while it comes; the result has none then.

    Raises:
        subprocess.TimeoutExpired: It did not end within *timeout_s* seconds.
        OSError: It cannot be started.
    """
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE if told else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        **how,
    ) as child:
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
        except BaseException:
            kill(child)
            raise
        finally:
            killer.cancel()
            # No thread is left when the next command is forked.
            killer.join()
    if late.is_set():
        raise subprocess.TimeoutExpired(argv, timeout_s)
    return subprocess.CompletedProcess(argv, child.returncode, out, err)


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kill the process group that *child*, which was started as its leader, is in."""
    if child.returncode is None:  # Else its number may be another's.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
