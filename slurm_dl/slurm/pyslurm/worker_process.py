"""The process that imports pyslurm, seen from ours: started late, asked with a deadline, ended.

An answer comes whole and in time or not at all: after silence, garbage, a crash or an answer cut
short the process is killed, and started again no sooner than a pause allows, so that a pyslurm
that cannot work costs little.
"""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.tool_runner import last_line
from slurm_dl.text import escaped

PROGRAM = Path(__file__).with_name("worker_program.py")

MOST_BYTES = 2**28
"""Longest answer, bytes; 100,000 jobs take a sixth of it."""

_PROBE_S = 20.0
_READ_BYTES = 2**18
_LENGTH_BYTES = 12
_KEPT_WORDS = 4096
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 300.0
_LAST_WORDS_S = 0.5
_GARBAGE = "its answer is garbage"

Answer = Mapping[str, Any]


def environment(slurm_conf: str) -> dict[str, str]:
    """The worker's environment; nothing of ours is inherited, SLURM_CLUSTERS and the like least.

    Args:
        slurm_conf: Path of slurm.conf; empty leaves it to Slurm's built-in place.
    """
    # A bit-string length of 0 has array specs told in full.
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "SLURM_BITSTR_LEN": "0"}
    return env | ({"SLURM_CONF": slurm_conf} if slurm_conf else {})


def _command(program: Path, argument: str) -> list[str]:
    # This interpreter and its packages; nothing from the directory of the program.
    return [sys.executable, "-P", str(program), argument]


def probe(env: Mapping[str, str], *, within_s: float = _PROBE_S) -> str:
    """The version of the pyslurm there is, found out in a process that is thrown away.

    Raises:
        ClusterError: There is none, or it cannot be imported.
    """
    try:
        done = subprocess.run(
            _command(PROGRAM, "--probe"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(env),
            cwd="/",
            timeout=within_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        msg = f"importing pyslurm takes longer than {within_s:g} s"
        raise ClusterError(msg) from None
    except OSError as err:
        msg = f"the probe for pyslurm cannot be run: {escaped(str(err))}"
        raise ClusterError(msg) from None
    if done.returncode:
        said = last_line(done.stderr) or f"it ends with {done.returncode}"
        msg = f"pyslurm cannot be imported: {said}"
        raise ClusterError(msg)
    return escaped(done.stdout.decode("ascii", errors="replace"))[:40]


class EndedError(ClusterError):
    """The worker failed and was ended; what answers next is another one."""


class PausedError(ClusterError):
    """A worker has failed, and it is too early for the next one."""


class PyslurmProcess:
    """One worker at a time. Not for use by several threads.

    Attributes:
        received: Bytes of the last answer.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        timeout_s: float,
        most_bytes: int = MOST_BYTES,
        program: Path = PROGRAM,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start nothing yet.

        Args:
            env: Its whole environment, see `environment`.
            timeout_s: Longest wait for an answer, seconds.
            most_bytes: Longest answer taken.
            program: The worker.
            clock: Seconds, for the pauses between two starts.
        """
        self.received = 0
        self._env = dict(env)
        self._timeout_s = timeout_s
        self._most_bytes = most_bytes
        self._program = program
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._words = bytearray()
        self._asked = 0
        self._failures = 0
        self._not_before_s = -math.inf

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None if there is none."""
        return None if self._process is None else self._process.pid

    def ask(self, **request: str | int) -> Answer:
        """The answer to *request*; see `worker_program`.

        Raises:
            PausedError: The last worker failed a short time ago; nothing was asked.
            EndedError: The worker failed, and was ended.
            ClusterError: Slurm refused or is silent.
        """
        try:
            answer = self._answer(request)
        except _FailedError as err:
            ended = self._end()
            self._failures += 1
            pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 16))
            self._not_before_s = self._clock() + pause_s
            said = last_line(bytes(self._words))
            msg = "; ".join(filter(None, [f"pyslurm: {err}", ended, said]))
            raise EndedError(msg) from None
        self._failures = 0
        if (error := answer.get("error")) is not None:
            msg = f"pyslurm: {escaped(str(error))[:300]}"
            raise ClusterError(msg)
        return answer

    def close(self) -> None:
        """End the worker; it may be asked again and is started again then."""
        self._end()

    def _answer(self, request: Mapping[str, str | int]) -> Answer:
        process = self._running()
        self._asked += 1
        line = json.dumps({"id": self._asked, **request}).encode("ascii") + b"\n"
        assert process.stdin is not None  # noqa: S101 - narrows the type
        assert process.stdout is not None  # noqa: S101
        assert process.stderr is not None  # noqa: S101
        # A request is far shorter than a pipe holds, and the pipe is empty. If nobody is there to
        # read it, the answer is missing too.
        with suppress(OSError):
            process.stdin.write(line)
            process.stdin.flush()
        payload = self._frame(process.stdout.fileno(), process.stderr.fileno())
        self.received = len(payload)
        return self._object(payload)

    def _object(self, payload: bytes) -> Answer:
        try:
            answer = json.loads(payload)
        except (ValueError, RecursionError):
            raise _FailedError(_GARBAGE) from None
        if not isinstance(answer, dict) or answer.get("id") != self._asked:
            raise _FailedError(_GARBAGE)
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        wait_s = self._not_before_s - self._clock()
        if wait_s > 0:
            msg = f"pyslurm has failed; it is tried again in {math.ceil(wait_s)} s"
            raise PausedError(msg)
        self._words.clear()
        try:
            self._process = subprocess.Popen(
                _command(self._program, str(os.getpid())),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._env,
                cwd="/",
                # Ctrl-C at the daemon's terminal is the daemon's alone.
                start_new_session=True,
            )
        except OSError as err:
            msg = f"it cannot be started: {escaped(str(err))}"
            raise _FailedError(msg) from None
        return self._process

    def _frame(self, out: int, err: int) -> bytes:
        """One answer; all is read that there is, within the deadline and the longest length."""
        deadline_s = time.monotonic() + self._timeout_s
        poller = select.poll()
        poller.register(out, select.POLLIN)
        poller.register(err, select.POLLIN)
        head = bytearray()
        while b"\n" not in head:
            if len(head) > _LENGTH_BYTES:
                raise _FailedError(_GARBAGE)
            head += self._chunk(poller, out, err, deadline_s)
        length, _, rest = head.partition(b"\n")
        if not (length.isdigit() and len(length) <= _LENGTH_BYTES):
            raise _FailedError(_GARBAGE)
        if int(length) > self._most_bytes:
            msg = f"its answer has {int(length)} bytes, which is too much"
            raise _FailedError(msg)
        parts = [bytes(rest)]
        missing = int(length) - len(rest)
        while missing > 0:
            parts.append(self._chunk(poller, out, err, deadline_s))
            missing -= len(parts[-1])
        if missing < 0:
            raise _FailedError(_GARBAGE)
        return b"".join(parts)

    def _chunk(self, poller: select.poll, out: int, err: int, deadline_s: float) -> bytes:
        while True:
            left_s = deadline_s - time.monotonic()
            # Whoever says something all the time has not answered in time either.
            ready = [fd for fd, _ in poller.poll(left_s * 1e3)] if left_s > 0 else []
            if not ready:
                msg = f"no answer in {self._timeout_s:g} s; is slurmctld overloaded or down?"
                raise _FailedError(msg)
            if err in ready and not self._listen(err):
                # Nothing more will be said there; the answer may still be on its way.
                poller.unregister(err)
            if out in ready:
                chunk = os.read(out, _READ_BYTES)
                if not chunk:
                    msg = "it ended in the middle of an answer"
                    raise _FailedError(msg)
                return chunk

    def _listen(self, err: int) -> bool:
        """Take what was said on standard error, the last of it; False at its end."""
        said = os.read(err, _READ_BYTES)
        self._words += said
        del self._words[:-_KEPT_WORDS]
        return bool(said)

    def _end(self) -> str:
        """End the worker if there is one; how it had ended by itself, empty if it had not."""
        process, self._process = self._process, None
        if process is None:
            return ""
        assert process.stdin is not None  # noqa: S101 - see _answer
        assert process.stdout is not None  # noqa: S101
        assert process.stderr is not None  # noqa: S101
        # The end of its input is the end of its work.
        with suppress(OSError):
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_WORDS_S)
        code = process.poll()
        process.kill()
        process.wait()
        while select.select([process.stderr], [], [], 0)[0] and self._listen(
            process.stderr.fileno()
        ):
            pass
        process.stdout.close()
        process.stderr.close()
        if code is None or code == 0:
            return ""
        return (
            f"it was ended by signal {-code}" if code < 0 else f"it ended with exit status {code}"
        )


class _FailedError(Exception):
    """The worker did not do what it is there for."""
