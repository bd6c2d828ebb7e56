"""A submitted call: its state in Slurm, and its result once there is one."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from slurm_dl.submit.pickled_call import CALL, RESULT, JobFailedError, SubmitError, load

EVERY_S = 5.0  # Least seconds between two questions to Slurm, for all jobs of this process together

LAG_S = 10.0
"""Seconds in which a result may still appear after the end: shared file systems show files late."""

_LOOK_S = 0.5
_SLURM_S = 60.0
_OVER = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "NOT_FOUND"),
    *("OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"),
)
"""Slurm's final states, and our word for a job that Slurm no longer knows."""


class JobPaths(NamedTuple):
    """The files of a job."""

    folder: Path
    stdout: Path
    stderr: Path
    submission: Path
    result: Path


class _States:
    """Slurm's word for each job that somebody here has asked about."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}
        self._queue: dict[str, str] = {}
        self._again_s = 0.0

    def of(self, job_id: str) -> str:
        with self._lock:
            self._known.setdefault(job_id, self._queue.get(job_id, "UNKNOWN"))
            if self._known[job_id] not in _OVER and time.monotonic() >= self._again_s:
                self._look()
                self._again_s = time.monotonic() + EVERY_S
            return self._known[job_id]

    def _look(self) -> None:
        asked = {job for job, state in self._known.items() if state not in _OVER}
        found = states_of(asked)
        if found is not None:
            # A job that is being requeued is FAILED for a moment.
            before, self._queue = self._queue, found
            for job in asked:
                is_new = found[job] == "FAILED" != before.get(job)
                self._known[job] = before.get(job, "UNKNOWN") if is_new else found[job]


_states = _States()


def states_of(jobs: set[str]) -> dict[str, str] | None:
    """Slurm's word for each of *jobs*, and for others; NOT_FOUND once neither tool has it.

    None if Slurm does not answer.
    """
    # All of the user's: a question for single ids fails as soon as Slurm has forgotten one.
    found = _ask("squeue", "-h", "-r", "-t", "all", "-u", str(os.getuid()), "-o", "%i|%T")
    gone = [] if found is None else sorted(jobs - found.keys())
    if found is not None and gone:
        arrays = ",".join(sorted({job.partition("_")[0] for job in gone}))
        past = _ask("sacct", "-n", "-X", "-P", "-o", "JobID,State", "-j", arrays)
        found = {**dict.fromkeys(gone, "NOT_FOUND"), **(past or {}), **found}
    return found


def _ask(*argv: str) -> dict[str, str] | None:
    """State by job, as Slurm's tool says it; None if it does not answer."""
    # A user's defaults could hide jobs.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SQUEUE_", "SACCT_"))}
    try:
        told = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, timeout=_SLURM_S, check=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    pairs = (line.partition("|") for line in told.splitlines())
    return {job: state.split()[0] for job, _, state in pairs if state}  # "CANCELLED by 1000"


class Job:
    """One call in Slurm's queue. It can be pickled, and asked again by a later script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._base = self._job_id = ""

    def submitted_as(self, base: str, job_id: str) -> None:
        """Take Slurm's id, and the beginning of the names of the job's pickles."""
        self._base, self._job_id = base, job_id

    def __repr__(self) -> str:
        return f"Job({self._job_id!r})"

    @property
    def job_id(self) -> str:
        """Slurm's id: ``123``, or ``123_4`` in an array; `SubmitError` before a batch is sent."""
        if not self._job_id:
            msg = "not submitted yet: jobs of a batch are, where its with block ends"
            raise SubmitError(msg)
        return self._job_id

    @property
    def paths(self) -> JobPaths:
        """The places of its files."""
        out, err = (self.folder / f"{self.job_id}.{end}" for end in ("out", "err"))
        call, result = (Path(self._base + end) for end in (CALL, RESULT))
        return JobPaths(self.folder, out, err, call, result)

    @property
    def state(self) -> str:
        """Slurm's word, some seconds old; NOT_FOUND once neither squeue nor sacct has it."""
        return _states.of(self.job_id)

    def done(self) -> bool:
        """True once there is a result, or Slurm says that there will be no other run."""
        return self.paths.result.exists() or self.state in _OVER

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end, at most *timeout_s* seconds; True if it has come."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.done():
            if end_s is not None and time.monotonic() >= end_s:
                return False
            time.sleep(_LOOK_S)
        return True

    def result(self) -> Any:  # noqa: ANN401
        """Wait for the end; what the function returned.

        Raises:
            Exception: What the function raised, with the traceback of its run as the cause.
            JobFailedError: The job ended without a result, or with what cannot be pickled.
            SubmitError: The file of the result is not to be trusted.
        """
        self.wait()
        path, end_s = self.paths.result, time.monotonic() + LAG_S
        while not os.path.lexists(path):
            if time.monotonic() >= end_s:
                log = self.paths.stderr
                msg = f"job {self.job_id} ended as {self.state} without a result; its log: {log}"
                raise JobFailedError(msg)
            time.sleep(_LOOK_S)
        returned, value, text = load(path)
        if returned:
            return value
        cause = JobFailedError(f"job {self.job_id}, log {self.paths.stderr}:\n{text}")
        raise cause if value is None else value from cause

    def exception(self) -> BaseException | None:
        """Wait for the end; what `result` would raise, None if it would return."""
        try:
            self.result()
        except SubmitError:
            raise
        except Exception as err:  # noqa: BLE001 -- whatever the function raised
            return err
        return None

    def cancel(self) -> None:
        """Have Slurm end it; `SubmitError` if it refuses or does not answer."""
        argv = ["scancel", self.job_id]
        try:
            subprocess.run(argv, check=True, capture_output=True, text=True, timeout=_SLURM_S)
        except (OSError, subprocess.SubprocessError) as err:
            msg = f"{' '.join(argv)}: {getattr(err, 'stderr', '') or err}"
            raise SubmitError(msg) from err

    def stdout(self) -> str | None:
        """The log so far, of all its runs; None before the first."""
        path = self.paths.stdout
        return path.read_text("utf-8", "replace") if path.exists() else None

    def stderr(self) -> str | None:
        """The log of errors, likewise."""
        path = self.paths.stderr
        return path.read_text("utf-8", "replace") if path.exists() else None
