"""The users: they submit, change their minds, cancel and requeue, whatever else goes on.

They keep the cluster contended without flooding it, and are still while somebody holds
``Site.quiet``: Slurm itself forgets what it was told just before its controller is killed, and
that is not what is on trial.
"""

from __future__ import annotations

import heapq
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from slurm_dl.model.errors import ClusterError
from tools.chaos.site import Site
from tools.chaos.workload import NODE_GPUS, Job, Kind

JOB: Final = Path(__file__).with_name("job.py")
DLRUN: Final = Path(sys.executable).with_name("dlrun")

_ROUND_S: Final = 0.5
_BURST: Final = 4
# Waiting and running jobs together ask for this many times what there is.
_CONTENTION: Final = 2.5
_ACK_WAIT_S: Final = 45
_SHORT_S: Final = 15.0
_TRIES: Final = 8
_OVER: Final = ("Invalid job id", "already")


class Crowd:
    """Submits the jobs of a workload one after the other, in a thread of its own.

    Attributes:
        submitted: Jobs that Slurm has made of the submissions, array tasks and components too.
        cancels: Cancellations that Slurm accepted.
        requeues: Requeues by users that Slurm accepted.
        failed: Submissions that Slurm refused to the last.
    """

    def __init__(
        self, site: Site, jobs: Iterator[Job], *, allowed: Callable[[], float], nodes: int
    ) -> None:
        """Prepare it.

        Args:
            allowed: How many jobs may have been submitted by now; asked again and again.
            nodes: Of the cluster.
        """
        self.submitted = 0
        self.cancels = 0
        self.requeues = 0
        self.failed: list[str] = []
        self._site = site
        self._jobs = jobs
        self._allowed = allowed
        self._most_gpus = _CONTENTION * nodes * NODE_GPUS
        self._due: list[tuple[float, int, str]] = []
        self._last: int | None = None
        self._stop = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="crowd")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Submit and cancel nothing more, and come home."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def is_over(self) -> bool:
        """Whether every job is submitted."""
        return self._over.is_set()

    @property
    def is_idle(self) -> bool:
        """Whether nobody wants anything any more."""
        return self.is_over and not self._due

    def _run(self) -> None:
        while not self._stop.wait(_ROUND_S):
            with self._site.quiet:
                self._change_minds()
                if not self._over.is_set():
                    self._submit_some()

    def _submit_some(self) -> None:
        room = self._most_gpus - self._wanted_gpus()
        for _ in range(_BURST):
            if room <= 0 or self.submitted >= self._allowed() or self._stop.is_set():
                return
            job = next(self._jobs, None)
            if job is None:
                self._over.set()
                return
            room -= job.gpus * job.records
            self._submit(job)

    def _wanted_gpus(self) -> float:
        """GPUs of our jobs that wait or run; infinite while Slurm does not say."""
        argv = [
            "squeue",
            "-ahr",
            "--me",
            "-t",
            "PENDING,RUNNING",
            "-O",
            "NumNodes:10,tres-per-node:40",
        ]
        try:
            lines = self._site.box.run(argv, 15.0).stdout.splitlines()
        except ClusterError:
            return float("inf")
        wanted = 0
        for line in lines:
            nodes, _, gres = line.strip().partition(" ")
            count = gres.strip().rpartition(":")[2]
            wanted += int(count) * int(nodes) if count.isdecimal() and nodes.isdecimal() else 1
        return wanted

    def _submit(self, job: Job) -> None:
        argv = self._argv(job)
        script = self._script(job)
        for attempt in range(_TRIES):
            try:
                said = self._site.box.run(
                    argv, 30.0, stdin=script, cwd=self._site.directory / "runs"
                )
            except ClusterError as err:
                # It may have come through all the same: a job's name is its own.
                first = self._find(job.name)
                if first is None:
                    if attempt == _TRIES - 1 or self._stop.is_set():
                        self.failed.append(str(err))
                        return
                    continue
            else:
                first = int(said.stdout.strip())
            self._note(job, first)
            return

    def _find(self, name: str) -> int | None:
        """The job of this name, once Slurm answers again."""
        while not self._stop.is_set():
            try:
                said = self._site.box.run(["squeue", "-ah", "-t", "all", "-n", name, "-o", "%F"])
            except ClusterError:
                self._stop.wait(1.0)
                continue
            ids = sorted(int(word) for word in said.stdout.split())
            return ids[0] if ids else None
        return None

    def _note(self, job: Job, first: int) -> None:
        terms = job.terms
        self._site.submitted(
            job=first,
            tasks=[*range(job.tasks)] if job.tasks else None,
            het=[first + n for n in range(job.components)] if job.components else None,
            kind=str(job.kind),
            gpus=job.gpus,
            sizes=job.sizes,
            contract=None
            if terms is None
            else {
                "signal": terms.signal,
                "target": terms.target,
                "grace_s": terms.grace_s,
                "by": terms.by,
            },
            requeueable=job.requeueable,
            expects=job.expects,
            name=job.name,
        )
        now_s = time.monotonic()
        if job.cancel_after_s is not None:
            heapq.heappush(self._due, (now_s + job.cancel_after_s, first, "cancel"))
        if job.requeue_after_s is not None:
            heapq.heappush(self._due, (now_s + job.requeue_after_s, first, "user_requeue"))
        self.submitted += job.records
        self._last = first

    def _change_minds(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic() and not self._stop.is_set():
            _, job, what = heapq.heappop(self._due)
            if what == "cancel":
                argv = ["scancel", str(job)]
            else:
                argv = ["scontrol", "requeue", "Incomplete", str(job)]
            try:
                done = self._site.box.run(argv, 30.0, check=False)
            except ClusterError:
                ok = over = False
            else:
                ok = done.returncode == 0
                over = not ok and any(words in done.stderr for words in _OVER)
            self._site.event(what, job=job, ok=ok, by="user")
            if what == "user_requeue":
                self.requeues += ok
            elif ok:
                self.cancels += 1
            elif not over:
                # An endless job ends in no other way.
                heapq.heappush(self._due, (time.monotonic() + 3.0, job, what))
                return

    def _argv(self, job: Job) -> list[str]:
        # Short ones can be let past long ones: Slurm knows nothing but the limits.
        limit_min = 2 if job.work_s < _SHORT_S else 4
        options = [f"--job-name={job.name}", f"--time={limit_min}", "--output=%j.out"]
        if not job.requeueable:
            options.append("--no-requeue")
        if job.comment is not None:
            options.append(f"--comment={job.comment}")
        if job.tasks:
            options.append(f"--array=0-{job.tasks - 1}%2")
        if job.kind is Kind.DEPENDENT and self._last is not None:
            options.append(f"--dependency=afterany:{self._last}")
        part = [f"--nodes={job.nodes}", f"--gres=gpu:{job.gpus // job.nodes}"]
        argv = ["sbatch", "--parsable", *options, *part]
        for _ in range(1, job.components):
            argv += [":", *part]
        return argv

    def _script(self, job: Job) -> str:
        program = [
            *(sys.executable, str(JOB), f"--site={self._site.directory}", f"--mode={job.mode}"),
            *(f"--work={job.work_s:g}", f"--save={job.save_s:g}", f"--status={job.status}"),
            f"--ack-wait={_ACK_WAIT_S}",
        ]
        lines = ["#!/bin/bash", "trap '' USR1 USR2"]
        if job.kind is Kind.DLRUN and job.terms is not None:
            lines.append(f"export SLURM_DL_SIGNAL={job.terms.signal}")
            grace = f"--grace={job.terms.grace_s:g}"
            program = [str(DLRUN), grace, f"--ack-wait={_ACK_WAIT_S}", "--", *program]
        return "\n".join((*lines, f"exec {shlex.join(program)}", ""))
