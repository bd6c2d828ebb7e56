"""A trial on Slurm: a job of one's own that is submitted for it, or one that runs.

Signal and requeue go the daemon's way, through `Actor`. A job is asked about once in `EVERY_S`,
which costs slurmctld as much as a user who looks at squeue.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from slurm_dl.job.run_files import RUNS_NAME
from slurm_dl.model.contract import Contract
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.model.handover import Run
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import Requeue, Signal
from slurm_dl.signal_test.run_directory import RunFiles, last_words
from slurm_dl.signal_test.verdict import Look, ObservedProcess, ended
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.slurm.read.record_parser import job_records, new_nonce, queue_arguments
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.slurm.write.actions import Actor
from slurm_dl.slurm.write.current_job import JobNow, job_now
from slurm_dl.text import user_name

EVERY_S = 1.0

_CLAIMS = ClaimReader(max_grace_s=86400.0)
_WAITS = (JobState.PENDING, JobState.CONFIGURING)
_OVER = (JobState.COMPLETED, JobState.FAILED)
_WHY = "dlctl test-signal"


class OwnJob(NamedTuple):
    """A job of the user who runs the trial; *label* is Slurm's name for it, ``12`` or ``12_3``."""

    job_id: JobId
    label: str
    work_dir: Path
    contract: Contract | None


def find(slurm: Slurm, name: str) -> OwnJob:
    """The job that the user calls *name*, ``12`` or ``12_3``.

    Raises:
        ClusterError: There is none, or Slurm is silent.
        ConfigError: It is a whole array, or another user's.
    """
    records = _ask(slurm, name, "JobID", "UserID", "JobArrayID", "WorkDir", "Comment")
    if len(records) > 1:
        msg = f"job {name} is an array: name one of its tasks, as in {name}_0"
        raise ConfigError(msg)
    if not records:
        msg = f"job {name} is not in Slurm's queue; squeue --me shows yours"
        raise ClusterError(msg)
    number, uid, label, work_dir, comment = records[0]
    if int(uid) != os.geteuid():
        owner = user_name(int(uid), "#")
        msg = (
            f"job {name} belongs to {owner}, and only its owner tries it: "
            f"sudo -u {owner} dlctl test-signal --yes {name}"
        )
        raise ConfigError(msg)
    return OwnJob(JobId(int(number)), label, Path(work_dir), _CLAIMS.read(comment).contract)


class SlurmJob:
    """A job of Slurm.

    Args:
        files: Where it writes, as this host sees it.
        log: Its log, as this host sees it; None if that is not known.
    """

    every_s = EVERY_S

    def __init__(
        self,
        slurm: Slurm,
        job_id: JobId,
        contract: Contract,
        *,
        files: RunFiles,
        log: Path | None = None,
    ) -> None:
        self.contract = contract
        self.files = files
        self._slurm = slurm
        self._job_id = job_id
        self._log = log
        self._actor = Actor(slurm)
        self._actor.know({}, no_preemption="")
        self._signalled: Run | None = None

    def look(self) -> Look:
        """What Slurm says of it."""
        now = job_now(self._slurm, self._job_id)
        if now is None:
            return Look(state="over", end="Slurm does not list it any more")
        restarts = now.run.restarts
        if now.state in _WAITS:
            return Look(state="waiting", run=restarts)
        if now.state not in _OVER:
            acked = _CLAIMS.read(now.comment).acked_run == restarts
            return Look(state="running", run=restarts, acked=acked)
        records = _ask(self._slurm, str(int(self._job_id)), "JobID", "exit_code")
        ends = [end for number, end in records if number == str(self._job_id)]
        return ended(restarts, *exit_code(ends[0] if ends else ""))

    def processes(self) -> tuple[ObservedProcess, ...]:
        """None: they are on other hosts."""
        return ()

    def signal(self) -> None:
        """Send the signal as the daemon does.

        Raises:
            ClusterError: Refused, silent, or the job does not run.
        """
        self._signalled = self._now().run
        finish = self._actor.apply(
            Signal(
                handover_id=HandoverId(0),
                run=self._signalled,
                signal=self.contract.signal,
                target=self.contract.target,
                why=_WHY,
            )
        )
        if finish is not None:
            finish(self._slurm.timeout_s)

    def requeue(self) -> None:
        """Requeue it as the daemon does, unless it has been put back already.

        Raises:
            ClusterError: Refused or silent.
        """
        run = self._now().run
        if run == self._signalled:
            self._actor.apply(Requeue(handover_id=HandoverId(0), run=run, why=_WHY))

    def cancel(self) -> None:
        """End it for good.

        Raises:
            ClusterError: Refused or silent.
        """
        self._slurm.run("scancel", "--quiet", self._now().address)

    def last_words(self) -> str:
        """The end of its log, if that can be read here."""
        return last_words(self._log) if self._log else ""

    def _now(self) -> JobNow:
        now = job_now(self._slurm, self._job_id)
        if now is None:
            msg = f"job {self._job_id} is gone"
            raise ClusterError(msg)
        return now


def run_directory(job: OwnJob) -> Path:
    """Where the job's run directory is most likely: dlsubmit's usual place, or dlrun's.

    Raises:
        ConfigError: Neither is there.
    """
    places = (job.work_dir / RUNS_NAME / job.label, job.work_dir / f"slurm_dl-{job.label}")
    for place in places:
        if os.path.isdir(place):  # noqa: PTH112 -- no error
            return place
    msg = (
        f"the run directory of job {job.label} is not in {job.work_dir}: name it with --run-dir "
        "(SLURM_DL_RUN_DIR in the job)"
    )
    raise ConfigError(msg)


def exit_code(text: str) -> tuple[str, int]:
    """Exit status and number of the signal in squeue's ``exit_code``; 0 if there was none.

    It is the status of wait(2) as a number (22.05.8); ``status:signal`` is read as well.
    """
    status, colon, number = text.strip().partition(":")
    if not colon and status.isascii() and status.isdigit():
        status, number = str(int(status) >> 8), str(int(status) & 0x7F)
    is_number = number.isascii() and number.isdigit()
    return status or "unknown", int(number) if is_number else 0


def _ask(slurm: Slurm, name: str, *fields: str) -> list[list[str]]:
    nonce = new_nonce()
    text = slurm.run("squeue", f"--jobs={name}", *queue_arguments(fields, nonce))
    return job_records(text, nonce, len(fields))[0]
