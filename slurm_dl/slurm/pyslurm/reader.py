"""The queue by pyslurm, which a process of its own imports; see `worker_program`.

What pyslurm 25.11.2 loses is read by squeue, once for each job. Its defects are listed in
docs/adr/0028-small-pyslurm-reader.md.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.snapshot import LeftOut
from slurm_dl.own_python import own_python
from slurm_dl.slurm.read.job_reader import JobReader
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_reader import ClusterReading
from slurm_dl.slurm.read.queue_reader import CliQueue, ReaderChoice
from slurm_dl.slurm.read.record_parser import (
    JOB_FIELDS,
    job_records,
    new_nonce,
    none_readable,
    queue_arguments,
)
from slurm_dl.slurm.releases import Release, series_of
from slurm_dl.slurm.tool_runner import Slurm, last_line
from slurm_dl.text import escaped

PROGRAM = Path(__file__).with_name("worker_program.py")
MOST_BYTES = 2**28  # Longest answer; 100,000 jobs take a sixth of it
PAUSE_S = 5.0  # Least time from the failure of a worker to the start of the next, seconds

_BY_SQUEUE = ("UserName", "tres-per-job", "tres-per-task", "tres-per-socket", "Deadline")
FIELDS = tuple(name for name in JOB_FIELDS if name not in _BY_SQUEUE)
"""What the worker tells of each job; the first is its id."""
_record_of = itemgetter(*((*FIELDS, *_BY_SQUEUE).index(name) for name in JOB_FIELDS))

Wanted = Literal["cli", "pyslurm"]


def make_queue(slurm: Slurm, wanted: Wanted) -> CliQueue:
    """The reader of the queue as configured."""
    return CliQueue(slurm) if wanted == "cli" else PyslurmQueue(slurm)


class PyslurmProcess:
    """The worker: started when it is asked, killed when it fails. Not for several threads.

    Attributes:
        child: The process; None if there is none.
        received: Bytes of the last answer.
    """

    def __init__(self, slurm: Slurm) -> None:
        """Start nothing yet; environment and longest wait will be those of *slurm*'s commands."""
        self.child: subprocess.Popen[bytes] | None = None
        self.received = 0
        self._slurm = slurm
        self._not_before_s = -math.inf

    def ask(self, **request: object) -> dict[str, Any]:
        """The answer to *request*; see `worker_program`.

        Raises:
            ClusterError: Slurm refused or is silent, the worker failed, or did a short time ago.
        """
        child = self.child = self.child or self._start()
        began_s = time.monotonic()
        killer = threading.Timer(self._slurm.timeout_s, child.kill)
        killer.start()
        try:
            line = _exchange(child, json.dumps(request).encode("ascii") + b"\n")
        finally:
            killer.cancel()
        self.received = len(line)
        answer = answer_in(line)
        if answer is None:
            late = time.monotonic() - began_s >= self._slurm.timeout_s
            raise self._failed(child, f"no answer in {self._slurm.timeout_s:g} s" if late else "")
        if "error" in answer:
            msg = f"pyslurm: {escaped(str(answer['error']))[:300]}"
            raise ClusterError(msg)
        return answer

    def close(self) -> str:
        """End the worker; what it wrote on standard error. It may be asked again."""
        child, self.child = self.child, None
        if child is None:
            return ""
        child.kill()
        return child.communicate()[1].decode("utf-8", "replace")

    def _start(self) -> subprocess.Popen[bytes]:
        wait_s = self._not_before_s - time.monotonic()
        if wait_s > 0:
            msg = f"pyslurm failed a short time ago; next try in {math.ceil(wait_s)} s"
            raise ClusterError(msg)
        return subprocess.Popen(
            own_python(str(PROGRAM)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._slurm.env,
            cwd="/",
            # Ctrl-C at the daemon's terminal is the daemon's alone.
            start_new_session=True,
        )

    def _failed(self, child: subprocess.Popen[bytes], why: str) -> ClusterError:
        said = last_line(self.close())
        self._not_before_s = time.monotonic() + PAUSE_S
        if not why:
            killed = child.returncode == -signal.SIGKILL
            why = "answered rubbish" if killed else f"ended with {child.returncode}"
        return ClusterError("; ".join(filter(None, [f"pyslurm: {why}", said])))


def _exchange(child: subprocess.Popen[bytes], request: bytes) -> bytes:
    assert child.stdin is not None  # noqa: S101 - narrows the type
    assert child.stdout is not None  # noqa: S101
    # Where nobody reads it, there is no answer either.
    with suppress(BrokenPipeError):
        child.stdin.write(request)
        child.stdin.flush()
    return child.stdout.readline(MOST_BYTES)


def answer_in(line: bytes) -> dict[str, Any] | None:
    """The answer that the worker wrote as *line*; None if it is none."""
    with suppress(ValueError, RecursionError):
        answer = json.loads(line)
        # One that was cut off at the longest length may still be JSON.
        return answer if isinstance(answer, dict) and line.endswith(b"\n") else None
    return None


def jobs_in(answer: Mapping[str, Any]) -> tuple[list[list[str]], list[int]]:
    """`FIELDS` of the jobs in an answer to ``queue``, and the ids of others.

    Raises:
        ClusterError: It holds something else, or nothing could be read.
    """
    jobs, unreadable = answer.get("jobs"), answer.get("unreadable")
    if not (
        isinstance(jobs, list)
        and isinstance(unreadable, list)
        and all(type(job_id) is int for job_id in unreadable)
        and all(isinstance(job, list) and len(job) == len(FIELDS) for job in jobs)
        and all(isinstance(word, str) for job in jobs for word in job)
    ):
        msg = "pyslurm: its answer is no queue"
        raise ClusterError(msg)
    if unreadable and not jobs:
        raise none_readable(len(unreadable))
    return jobs, unreadable


class PyslurmQueue(CliQueue):
    """The queue by pyslurm; what that cannot tell, by squeue and scontrol."""

    choice = ReaderChoice("pyslurm", "cluster.reader is pyslurm")

    def __init__(self, slurm: Slurm) -> None:
        """Read what belongs to *slurm*; nothing is read or started yet."""
        super().__init__(slurm)
        self.process = PyslurmProcess(slurm)
        self._known: dict[str, tuple[str, ...]] = {}

    def check(self, release: Release) -> str:
        """The version of pyslurm.

        Raises:
            ClusterError: It cannot be imported, or does not belong to *release*.
        """
        belongs = series_of(release).pyslurm
        if not belongs:
            msg = f"there is no pyslurm for Slurm {release}"
            raise ClusterError(msg)
        version = escaped(str(self.process.ask(do="version").get("version")))[:40]
        # Its first two numbers are Slurm's, the minor one without its 0: 25.5.0.
        if version.split(".")[:2] != belongs.split(".")[:2]:
            msg = f"pyslurm {version} does not belong to Slurm {release} (pyslurm {belongs} does)"
            raise ClusterError(msg)
        return version

    def table(self, reader: JobReader, site: ClusterReading, *, now_s: float) -> JobTable:
        """See `CliQueue.table`: one RPC, and a squeue where there are new jobs."""
        # At each reading: what answers may be a new worker, with another pyslurm.
        self.check(site.config.release)
        jobs, unreadable = jobs_in(self.process.ask(do="queue", fields=FIELDS))
        by_squeue = self._by_squeue([job[0] for job in jobs])
        records = [_record_of((*job, *more)) for job, more in zip(jobs, by_squeue, strict=True)]
        table = reader.read_records(records, site, now_s=now_s)
        table.leave_out(
            {JobId(j): LeftOut(uid=-1, label=str(j), field="record") for j in unreadable}
        )
        return table

    def set_site_factor(self, job_id: JobId, value: int) -> bool:
        """See `CliQueue.set_site_factor`: any but 0, which pyslurm does not send."""
        if value == 0:
            return False
        self.process.ask(do="site_factor", job=int(job_id), value=value)
        return True

    def forget(self) -> None:
        """See `CliQueue.forget`."""
        super().forget()
        self._known.clear()

    def close(self) -> None:
        """See `CliQueue.close`: the worker ends."""
        self.process.close()

    def _by_squeue(self, job_ids: list[str]) -> list[tuple[str, ...]]:
        known = self._known
        new = [job_id for job_id in job_ids if job_id not in known]
        if new:
            # One job is cheap to ask for.
            which = [f"--jobs={new[0]}"] if len(new) == 1 else []
            fields, nonce = ("JobID", "JobArrayID", *_BY_SQUEUE), new_nonce()
            text = self._slurm.run("squeue", *which, *queue_arguments(fields, nonce))
            records, _ = job_records(text, nonce, len(fields))
            known = known | {job_id: tuple(more) for job_id, _, *more in records}
        # What squeue does not list has ended since.
        told = [known.get(job_id, ("",) * len(_BY_SQUEUE)) for job_id in job_ids]
        self._known = dict(zip(job_ids, told, strict=True))
        return told
