"""A signal on its way to a job: one scancel, ended before it sends the signal again.

slurmctld delivers a signal to a task of an array that has pending tasks, and answers "try again
later" all the same (measured on 22.05.8, 24.11.5 and 26.05.5). scancel then sends the signal again
after pauses of 5, 6, 7 ... seconds, and ends after 95 s. So it is ended as soon as it says that it
retries.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from typing import Final

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.tool_runner import Slurm, last_line

_RETRIES: Final = b"transitional state, retrying"
"""Its answer to "try again later", and to nothing else."""


class SignalDelivery:
    """One scancel that has been started.

    Args:
        slurm: Its tools; the time-out of a command is the deadline of the signal.
        arguments: What scancel is told.

    Raises:
        ClusterError: scancel could not be started.
    """

    def __init__(self, slurm: Slurm, arguments: Sequence[str]) -> None:
        self._words = " ".join(["scancel", *arguments])
        self._timeout_s = slurm.timeout_s
        self._until_s = time.monotonic() + slurm.timeout_s
        self._said = b""
        # Only with --verbose scancel says that it retries.
        self._process = slurm.start("scancel", "--verbose", *arguments)

    def finish(self, within_s: float) -> bool:
        """Wait until slurmctld has answered, *within_s* seconds at most; False if it has not.

        Raises:
            ClusterError: slurmctld has refused it, or has not answered in time.
        """
        until_s = time.monotonic() + within_s
        while _RETRIES not in self._said:
            chunk = self._read(until_s)
            if chunk is None and time.monotonic() < self._until_s:
                return False
            if chunk is None:
                self._kill()
                msg = (
                    f"{self._words}: slurmctld did not answer in {self._timeout_s:g} s; the job "
                    "may have been signalled"
                )
                raise ClusterError(msg)
            if not chunk:
                self._ended()
                return True
            self._said += chunk
        self._kill()
        return True

    def _ended(self) -> None:
        with self._process as process:
            code = process.wait()
        if code != 0:
            msg = f"{self._words} failed (exit {code}): {last_line(self._said) or 'no message'}"
            raise ClusterError(msg)

    def _kill(self) -> None:
        with self._process as process:
            process.kill()

    def _read(self, until_s: float) -> bytes | None:
        """More of what scancel says; empty at its end, None once the time is over."""
        assert self._process.stderr is not None  # noqa: S101 - narrows the type
        ready = select.poll()
        ready.register(self._process.stderr, select.POLLIN)
        if not ready.poll(max(0.0, min(until_s, self._until_s) - time.monotonic()) * 1000):
            return None
        return os.read(self._process.stderr.fileno(), 65536)
