"""Actions on a real Slurm, each one idempotent or compared with what is before it is done.

A refusal is never understood from its words, which change between releases: where a refusal may
mean "done already", the thing itself is read again.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, assert_never

from slurm_dl.job import tool_process
from slurm_dl.job.controller import MOST_BYTES, with_ack, with_preemption
from slurm_dl.job.tool_process import one_word
from slurm_dl.model.contract import SIGNALS, SignalTarget
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import RESERVATION_PREFIX, Run, reservation_name
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import (
    Attach,
    ClearSteer,
    ClusterAction,
    Detach,
    Requeue,
    Reserve,
    Reshape,
    Retry,
    SetSiteFactor,
    SetSteer,
    Shrink,
    Signal,
    Throttle,
    Trim,
    Unfinished,
    Unseal,
)
from slurm_dl.slurm.read.array_throttles import throttle_of
from slurm_dl.slurm.read.grammar import address
from slurm_dl.slurm.tool_runner import Slurm, last_line
from slurm_dl.slurm.write.current_job import JobNow, job_now, restore_dependants
from slurm_dl.slurm.write.handover_reservations import seal, unseal
from slurm_dl.slurm.write.request_changes import change_request, exc_node_list, node_list
from slurm_dl.text import escaped

_LONGEST_ARGUMENT = 100_000  # Linux refuses 128 KiB in one argument
_MOST_SITE_FACTOR = 2**31 - 3
_TARGET_FLAG: dict[SignalTarget, tuple[str, ...]] = {
    "batch": ("--batch",),
    "steps": (),
    "full": ("--full",),
}


class Actor:
    """Applies the actions that reach the cluster."""

    def __init__(
        self, slurm: Slurm, set_site_factor: Callable[[JobId, int], bool] = lambda *_: False
    ) -> None:
        """Act through *slurm*.

        Args:
            set_site_factor: A cheaper way for the SiteFactor of a job by itself; False where it
                is none for this value.
        """
        self._slurm = slurm
        self._cheaper = set_site_factor
        self._label: Mapping[JobId, str] = {}
        self._no_preemption = "the queue has not been read yet"

    def know(self, labels: Mapping[JobId, str], *, no_preemption: str) -> None:
        """Take over what the last observation said.

        Args:
            labels: Slurm's label of each record, ``6_[10-20]`` for a pending array.
            no_preemption: Why nothing may be signalled or requeued; empty if it may.
        """
        self._label = labels
        self._no_preemption = no_preemption

    def apply(self, action: ClusterAction) -> Unfinished | None:
        """Do one thing, or begin a signal.

        Raises:
            ClusterError: Refused, silent, or no longer right.
        """
        match action:
            case SetSiteFactor():
                self._set_site_factor(action)
            case Reserve():
                seal(self._slurm, action)
            case Attach():
                name = reservation_name(action.handover_id)
                self._update(action.job_id, f"ReservationName={name}")
            case Detach():
                self._detach(action.job_id)
            case Signal():
                return self._signal(action)
            case Requeue() | Shrink() | Retry():
                self._take_back(action)
            case Unseal():
                unseal(self._slurm, action.name)
            case Trim() | Reshape() | Throttle():
                self._change_request(action)
            case SetSteer() | ClearSteer():
                self._steer(action)
            case _:
                assert_never(action)
        return None

    def _set_site_factor(self, action: SetSiteFactor) -> None:
        if abs(action.value) > _MOST_SITE_FACTOR:
            msg = f"SiteFactor {action.value} of job {action.job_id} is out of Slurm's range"
            raise ClusterError(msg)
        # Only of a record by itself is the number its whole name; see `address`.
        by_itself = self._label.get(action.job_id) == str(action.job_id)
        if not (by_itself and self._cheaper(action.job_id, action.value)):
            self._update(action.job_id, f"SiteFactor={action.value}")

    def _steer(self, action: SetSteer | ClearSteer) -> None:
        # Slurm refuses both of jobs that do not wait any more, which is no error: look first.
        now = job_now(self._slurm, action.job_id)
        if now is None or now.state is not JobState.PENDING:
            return
        not_before_s = 0.0
        if isinstance(action, SetSteer):
            nodes = exc_node_list(action.steer.avoid, action.steer.own)
            not_before_s = action.steer.not_before_s
        else:
            nodes = exc_node_list((), action.own)
        settings = [f"ExcNodeList={nodes}"]
        if not_before_s > 0:
            # It becomes the job's EligibleTime (22.05.8).
            settings.append(f"StartTime=uts{math.ceil(not_before_s)}")
        elif action.lift:
            settings.append("StartTime=now")
        update_address(self._slurm, now.address, *settings)

    def _change_request(self, action: Trim | Reshape | Throttle) -> None:
        if not isinstance(action, Throttle):
            change_request(self._slurm, action)
            return
        self._update(action.job_id, f"ArrayTaskThrottle={action.tasks}")
        now = throttle_of(self._slurm, self._label[action.job_id])
        if now not in (None, action.tasks):
            msg = f"array {action.job_id} has ArrayTaskThrottle {now}, not {action.tasks}"
            raise ClusterError(msg)

    def _update(self, job_id: JobId, setting: str) -> None:
        label = self._label.get(job_id)
        if label is None:
            msg = f"job {job_id} was not in the queue when it was last read"
            raise ClusterError(msg)
        update_job(self._slurm, label, setting)

    def _detach(self, job_id: JobId) -> None:
        # Slurm would let a running job lose its reservation too: look first.
        now = job_now(self._slurm, job_id)
        if now is None or now.state is not JobState.PENDING:
            return
        if now.reservation.startswith(RESERVATION_PREFIX):
            self._slurm.run("scontrol", "update", f"JobId={now.address}", "ReservationName=")

    def _signal(self, action: Signal) -> Unfinished:
        self._may_preempt()
        if action.signal not in SIGNALS:
            msg = f"signal {action.signal!r} is not one of {', '.join(SIGNALS)}"
            raise ClusterError(msg)
        now = self._same_run(action.run)
        if action.preemptions is not None:
            self._tell(now, action.preemptions)
        flags = _TARGET_FLAG[action.target]
        # Without --signal scancel would end the job: it is written here and nowhere else.
        arguments = (f"--signal={action.signal}", *flags, now.address)
        return SignalDelivery(self._slurm, arguments).finish

    def _tell(self, now: JobNow, preemptions: int) -> None:
        """Write how often the job is preempted into its comment, if there is room."""
        if "\ufffd" in now.comment:
            return  # Its bytes were not UTF-8: written back it would be another comment.
        comment = with_preemption(now.comment, preemptions, now.run.restarts)
        if comment is None or len(one_word(comment)) > MOST_BYTES:
            return
        # A site may refuse it. The job has to give way all the same.
        with contextlib.suppress(ClusterError):
            update_address(self._slurm, now.address, f"Comment={comment}")

    def _take_back(self, action: Requeue | Retry | Shrink) -> None:
        self._may_preempt()
        if isinstance(action, Shrink):
            self._shrink(action)
        else:
            self._requeue(action)

    def _requeue(self, action: Requeue | Retry) -> None:
        now = job_now(self._slurm, action.run.job_id)
        pending = now is not None and now.state is JobState.PENDING
        if isinstance(action, Retry) or action.ended:
            # What waits for it may be left of a try before.
            if now is None or not (pending or now.run.restarts > action.run.restarts):
                now = self._same_run(action.run, now, JobState.FAILED)
                holds = isinstance(action, Retry) and action.hold
                self._slurm.run("scontrol", "requeuehold" if holds else "requeue", now.address)
            restore_dependants(self._slurm, now)
            return
        if pending:
            return
        now = self._same_run(action.run, now)
        # Incomplete: a job that completes at this moment must not be run again.
        self._slurm.run("scontrol", "requeue", "Incomplete", now.address)

    def _shrink(self, action: Shrink) -> None:
        """Slurm takes the other nodes at once, and refuses to take that of the batch script.

        Start time and restart count stay, and what runs on the nodes given up is killed. Until the
        database has the job's new record, and without one for the rest of the run, Slurm refuses
        other updates of the job ("the DB index is being set"); so the acknowledgement, which is of
        this same run, is taken out at the same time. (All of it measured on 22.05.8.)
        """
        if not action.nodes:
            msg = f"job {action.run.job_id} is to keep no node; nothing was done to it"
            raise ClusterError(msg)
        now = self._same_run(action.run)
        if now.in_all:
            # Slurm would start no step of it any more: "Invalid generic resource" (22.05.8).
            msg = f"job {action.run.job_id} asks for GPUs by --gpus, not by the node; it is kept"
            raise ClusterError(msg)
        settings = [f"NodeList={node_list(action.nodes)}"]
        comment = None if "\ufffd" in now.comment else with_ack(now.comment, None)
        if comment is not None and comment != now.comment:
            settings.append(f"Comment={comment}")
        update_address(self._slurm, now.address, *settings)

    def _may_preempt(self) -> None:
        if self._no_preemption:
            raise ClusterError(self._no_preemption)

    def _same_run(
        self, run: Run, now: JobNow | None = None, state: JobState = JobState.RUNNING
    ) -> JobNow:
        now = now or job_now(self._slurm, run.job_id)
        if now is None:
            msg = f"job {run.job_id} is gone; nothing was done to it"
            raise ClusterError(msg)
        if now.state is not state or now.run != run:
            msg = (
                f"job {run.job_id} is not in the run that was chosen any more "
                f"({_difference(now, run)}); nothing was done to it"
            )
            raise ClusterError(msg)
        if not now.requeueable:
            # A job that saves, ends and cannot be requeued would be lost: no signal either.
            msg = (
                f"job {run.job_id} may not be requeued any more (Requeue=0 was set after it "
                "started); nothing was done to it"
            )
            raise ClusterError(msg)
        return now


def update_job(slurm: Slurm, label: str, *settings: str) -> None:
    """Change some settings, all or none, of exactly the record *label*.

    Raises:
        ClusterError: Refused, or the label is none.
    """
    try:
        named = address(label)
    except ValueError as err:
        raise ClusterError(escaped(str(err))) from None
    update_address(slurm, named, *settings)


def update_address(slurm: Slurm, named: str, *settings: str) -> None:
    """Change some settings, all or none, of the record that Slurm's tools call *named*.

    Raises:
        ClusterError: Refused, or too long for a command.
    """
    if len(named) > _LONGEST_ARGUMENT:
        msg = f"job {named[:20]}...: the pending tasks of this array make too long a list to name"
        raise ClusterError(msg)
    for setting in settings:
        if len(setting) > _LONGEST_ARGUMENT:
            msg = f"job {named[:20]}: {setting[:40]}... is too long a list of nodes"
            raise ClusterError(msg)
    slurm.run("scontrol", "update", f"JobId={named}", *settings)


def _difference(now: JobNow, run: Run) -> str:
    """In what the job is no longer *run*; its state in any case."""
    words = [now.state.name.lower()]
    if now.run.restarts != run.restarts:
        words.append(f"restarts {now.run.restarts} not {run.restarts}")
    # Where a pending job has a start, it is a prediction.
    if now.run.start_s != run.start_s and now.state is not JobState.PENDING:
        words.append(f"start {now.run.start_s:.0f} not {run.start_s:.0f}")
    return ", ".join(words)


_RETRIES: Final = b"transitional state, retrying"
"""Its answer to "try again later", and to nothing else."""


class SignalDelivery:
    """One scancel that has been started.

    slurmctld delivers a signal to a task of an array that has pending tasks, and answers "try again
    later" all the same (measured on 22.05.8, 24.11.5 and 26.05.5). scancel then sends the signal
    again after pauses of 5, 6, 7 ... seconds, and ends after 95 s. So it is ended as soon as it
    says that it retries, before it sends the signal again.

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
            said = last_line(self._said.decode("utf-8", "replace")) or "no message"
            msg = f"{self._words} failed (exit {code}): {said}"
            raise ClusterError(msg)

    def _kill(self) -> None:
        with self._process as process:
            tool_process.kill(process)

    def _read(self, until_s: float) -> bytes | None:
        """More of what scancel says; empty at its end, None once the time is over."""
        assert self._process.stderr is not None  # noqa: S101 - narrows the type
        ready = select.poll()
        ready.register(self._process.stderr, select.POLLIN)
        if not ready.poll(max(0.0, min(until_s, self._until_s) - time.monotonic()) * 1000):
            return None
        return os.read(self._process.stderr.fileno(), 65536)
