"""A trial on Slurm: a job of one's own that is submitted for it, or one that runs.

Signal and requeue go the daemon's way, through `Actor`. A job is asked about once in `EVERY_S`,
which costs slurmctld as much as a user who looks at squeue.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from slurm_dl.job.untrusted_files import RUNS_NAME
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import Requeue, Signal
from slurm_dl.signal_test.observations import Look, ObservedProcess
from slurm_dl.signal_test.owner_rights import rights_of
from slurm_dl.signal_test.run_directory import RunFiles
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.slurm.read.record_parser import job_records, new_nonce
from slurm_dl.slurm.read.squeue_fields import queue_arguments
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.slurm.write.actions import Actor
from slurm_dl.slurm.write.current_job import JobNow, job_now

EVERY_S = 1.0

_FIELDS = ("JobID", "UserID", "JobArrayID", "exit_code", "WorkDir", "Comment")
_LONGEST_GRACE_S = 86400.0
_LAST_WORDS = 2000
_WAITS = (JobState.PENDING, JobState.CONFIGURING)
_OVER = (JobState.COMPLETED, JobState.FAILED)
_WHY = "dlctl test-signal"


class SeenBySlurm:
    """What Slurm says of one job beside its state.

    Attributes:
        job_id: Its number.
        uid: Its owner's.
        label: Slurm's name for it, ``12`` or ``12_3``.
        end: Exit status and signal, as Slurm writes them.
        work_dir: Where it was submitted.
        claim: What its comment says.
    """

    def __init__(self, fields: list[str]) -> None:
        number, uid, self.label, self.end, work_dir, comment = fields
        self.job_id = JobId(int(number))
        self.uid = int(uid)
        self.work_dir = Path(work_dir)
        self.claim: Claim = ClaimReader(max_grace_s=_LONGEST_GRACE_S).read(comment)


def find(slurm: Slurm, name: str) -> SeenBySlurm:
    """The job that the user calls *name*, ``12`` or ``12_3``.

    Raises:
        ClusterError: There is none, or Slurm is silent.
        ConfigError: It is a whole array.
    """
    nonce = new_nonce()
    text = slurm.run("squeue", f"--jobs={name}", *queue_arguments(_FIELDS, nonce))
    records, _ = job_records(text, nonce, len(_FIELDS))
    if len(records) > 1:
        msg = f"job {name} is an array: name one of its tasks, as in {name}_0"
        raise ConfigError(msg)
    if not records:
        msg = f"job {name} is not in Slurm's queue; squeue --me shows yours"
        raise ClusterError(msg)
    return SeenBySlurm(records[0])


class SlurmJob:
    """A job of Slurm.

    Args:
        slurm: Slurm's commands.
        job_id: Its number.
        contract: What is tried.
        files: Where it writes, as this host sees it.
        log: Its log, as this host sees it; None if that is not known.
    """

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
        self.every_s = EVERY_S
        self._slurm = slurm
        self._job_id = job_id
        self._log = log
        self._actor = Actor(slurm)
        self._actor.know({}, no_preemption="")
        self._signalled: JobNow | None = None

    def start(self) -> None:
        """Nothing: it is in the queue, and Slurm starts it."""

    def look(self) -> Look:
        """What Slurm says of it."""
        now = job_now(self._slurm, self._job_id)
        if now is None:
            return Look(state="over", end="Slurm does not list it any more")
        restarts = now.run.restarts
        if now.state in _WAITS:
            return Look(state="waiting", run=restarts)
        seen = self._seen()
        if seen is None:
            return Look(state="over", run=restarts, end="Slurm does not list it any more")
        if now.state not in _OVER:
            return Look(state="running", run=restarts, acked=seen.claim.acked_run == restarts)
        status, signal_name = exit_code(seen.end)
        how = f"it died of {signal_name}" if signal_name else f"it ended with status {status}"
        return Look(state="over", run=restarts, end=how, killed_by=signal_name)

    def processes(self) -> tuple[ObservedProcess, ...]:
        """None: they are on other hosts."""
        return ()

    def signal(self) -> None:
        """Send the signal as the daemon does.

        Raises:
            ClusterError: Refused, silent, or the job does not run.
        """
        self._signalled = now = self._now()
        finish = self._actor.apply(
            Signal(
                handover_id=HandoverId(0),
                run=now.run,
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
        now = self._now()
        if self._signalled is not None and now.run == self._signalled.run:
            self._actor.apply(Requeue(handover_id=HandoverId(0), run=now.run, why=_WHY))

    def cancel(self) -> None:
        """End it for good.

        Raises:
            ClusterError: Refused or silent.
        """
        self._slurm.run("scancel", "--quiet", self._now().address)

    def last_words(self) -> str:
        """The end of its log, if that can be read here."""
        try:
            text = self._log.read_bytes() if self._log else b""
        except OSError:
            return ""
        return text[-_LAST_WORDS:].decode("utf-8", "replace")

    def _now(self) -> JobNow:
        now = job_now(self._slurm, self._job_id)
        if now is None:
            msg = f"job {self._job_id} is gone"
            raise ClusterError(msg)
        return now

    def _seen(self) -> SeenBySlurm | None:
        nonce = new_nonce()
        text = self._slurm.run(
            "squeue", f"--jobs={int(self._job_id)}", *queue_arguments(_FIELDS, nonce)
        )
        records, _ = job_records(text, nonce, len(_FIELDS))
        return next((SeenBySlurm(r) for r in records if r[0] == str(self._job_id)), None)


def run_directory(seen: SeenBySlurm) -> Path:
    """Where the job's run directory is most likely: dlsubmit's usual place, or dlrun's.

    Raises:
        ConfigError: Neither is there, or its owner has no account here.
    """
    label = seen.label
    places = (seen.work_dir / RUNS_NAME / label, seen.work_dir / f"slurm_dl-{label}")
    with rights_of(seen.uid):
        found = next((place for place in places if os.path.isdir(place)), None)  # noqa: PTH112 -- no error
    if found is not None:
        return found
    msg = (
        f"the run directory of job {label} is not in {seen.work_dir}: name it with --run-dir "
        "(SLURM_DL_RUN_DIR in the job)"
    )
    raise ConfigError(msg)


def exit_code(text: str) -> tuple[str, str]:
    """Exit status and name of the signal in squeue's ``exit_code``; no name if there was none.

    It is the status of wait(2) as a number (22.05.8); ``status:signal`` is read as well.
    """
    status, colon, number = text.strip().partition(":")
    if not colon and status.isascii() and status.isdigit():
        status, number = str(int(status) >> 8), str(int(status) & 0x7F)
    status = status or "unknown"
    if not number.isascii() or not number.isdigit() or int(number) == 0:
        return status, ""
    try:
        return status, signal.Signals(int(number)).name.removeprefix("SIG")
    except ValueError:
        return status, number
