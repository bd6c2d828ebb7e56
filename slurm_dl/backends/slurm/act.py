"""Actions on a real Slurm, each one idempotent or compared with what is before it is done.

A refusal is never understood from its words, which change between releases: where a refusal may
mean "done already", the thing itself is read again.
"""

from __future__ import annotations

import math
import pwd
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from slurm_dl.backends.slurm.arrays import doubtful_in, whole_labels
from slurm_dl.backends.slurm.command import Slurm, printable
from slurm_dl.backends.slurm.read_jobs import queue_arguments
from slurm_dl.backends.slurm.read_nodes import ReservationSeen, read_reservations
from slurm_dl.backends.slurm.records import job_records, new_nonce
from slurm_dl.backends.slurm.steered import exc_node_list
from slurm_dl.backends.slurm.trims import trim
from slurm_dl.backends.slurm.words import address, epoch_s, is_number, job_state
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
    SetSiteFactor,
    SetSteer,
    Signal,
    Trim,
    Unseal,
)

# FLEX and IGNORE_JOBS seal nodes that others still use; NO_HOLD_JOBS_AFTER keeps Slurm from
# holding the jobs that still wait when the reservation ends (all measured on 22.05.8).
_FLAGS = "IGNORE_JOBS,FLEX,NO_HOLD_JOBS_AFTER"
_NAME_OF_OURS = re.compile(re.escape(RESERVATION_PREFIX) + r"[A-Za-z0-9_]+")
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_USER_NAME = re.compile(r"[A-Za-z0-9._][^\s,=]*")
_LONGEST_ARGUMENT = 100_000  # Linux refuses 128 KiB in one argument
_LAPSE_S = 5
_MOST_SITE_FACTOR = 2**31 - 3
_TARGET_FLAG: dict[SignalTarget, tuple[str, ...]] = {
    "batch": ("--batch",),
    "steps": (),
    "full": ("--full",),
}
_NOW_FIELDS = (
    "JobID",
    "JobArrayID",
    "State",
    "StartTime",
    "RestartCnt",
    "Requeue",
    "Reservation",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNow:
    """One job as Slurm has it at this moment.

    Attributes:
        address: How the tools must name it.
        run: Its run, as Slurm tells it; of no meaning for a pending job.
        requeueable: Its Requeue flag is set; the owner may change it at any time.
        reservation: Its ReservationName; ``(null)`` if it has none.
    """

    address: str
    state: JobState
    run: Run
    requeueable: bool
    reservation: str


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

    def apply(self, action: ClusterAction) -> None:
        """Do one thing.

        Raises:
            ClusterError: Refused, silent, or no longer right.
        """
        match action:
            case SetSiteFactor():
                self._set_site_factor(action)
            case Reserve():
                self._reserve(action)
            case Attach():
                name = reservation_name(action.handover_id)
                self._update(action.job_id, f"ReservationName={name}")
            case Detach():
                self._detach(action.job_id)
            case Signal():
                self._signal(action)
            case Requeue():
                self._requeue(action)
            case Unseal():
                unseal(self._slurm, action.name)
            case Trim():
                trim(self._slurm, action)
            case SetSteer() | ClearSteer():
                self._steer(action)
            case _:
                assert_never(action)

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

    def _update(self, job_id: JobId, setting: str) -> None:
        label = self._label.get(job_id)
        if label is None:
            msg = f"job {job_id} was not in the queue when it was last read"
            raise ClusterError(msg)
        update_job(self._slurm, label, setting)

    def _reserve(self, action: Reserve) -> None:
        name = reservation_name(action.handover_id)
        for node in action.nodes:
            if _NODE_NAME.fullmatch(node) is None:
                msg = f"reservation {name}: {node!r} is no node name"
                raise ClusterError(msg)
        users = _user_names(action.uids, name)
        minutes = max(1, math.ceil(action.duration_s / 60))
        try:
            self._slurm.run(
                "scontrol",
                "create",
                "reservation",
                f"ReservationName={name}",
                f"Nodes={','.join(action.nodes)}",
                f"Users={','.join(users)}",
                "StartTime=now",
                f"Duration={minutes}",
                f"Flags={_FLAGS}",
            )
        except ClusterError:
            standing = _reservation(self._slurm, name)
            if standing is None:
                raise
            _check_standing(standing, action.nodes)

    def _detach(self, job_id: JobId) -> None:
        # Slurm would let a running job lose its reservation too: look first.
        now = job_now(self._slurm, job_id)
        if now is None or now.state is not JobState.PENDING:
            return
        if now.reservation.startswith(RESERVATION_PREFIX):
            self._slurm.run("scontrol", "update", f"JobId={now.address}", "ReservationName=")

    def _signal(self, action: Signal) -> None:
        self._may_preempt()
        if action.signal not in SIGNALS:
            msg = f"signal {action.signal!r} is not one of {', '.join(SIGNALS)}"
            raise ClusterError(msg)
        now = self._same_run(action.run)
        flags = _TARGET_FLAG[action.target]
        # Without --signal scancel would end the job: it is written here and nowhere else.
        self._slurm.run("scancel", f"--signal={action.signal}", *flags, now.address)

    def _requeue(self, action: Requeue) -> None:
        self._may_preempt()
        now = job_now(self._slurm, action.run.job_id)
        if now is not None and now.state is JobState.PENDING:
            return
        now = self._same_run(action.run, now)
        # Incomplete: a job that completes at this moment must not be run again.
        self._slurm.run("scontrol", "requeue", "Incomplete", now.address)

    def _may_preempt(self) -> None:
        if self._no_preemption:
            raise ClusterError(self._no_preemption)

    def _same_run(self, run: Run, now: JobNow | None = None) -> JobNow:
        now = now or job_now(self._slurm, run.job_id)
        if now is None:
            msg = f"job {run.job_id} is gone; nothing was done to it"
            raise ClusterError(msg)
        if now.state is not JobState.RUNNING or now.run != run:
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


def job_now(slurm: Slurm, job_id: JobId) -> JobNow | None:
    """Read one job again; None if Slurm does not list it.

    Raises:
        ClusterError: Slurm is silent, or the answer cannot be read.
    """
    nonce = new_nonce()
    try:
        text = slurm.run(
            "squeue",
            f"--jobs={int(job_id)}",
            *queue_arguments(_NOW_FIELDS, nonce),
        )
    except ClusterError:
        # An id that Slurm has forgotten is an error too. A controller that answers is not down.
        slurm.run("scontrol", "ping")
        return None
    records, _ = job_records(text, nonce, len(_NOW_FIELDS))
    labels = {JobId(int(raw_id)): label for raw_id, label, *_ in records if is_number(raw_id)}
    for raw_id, _, state, start, restarts, requeue, reservation in records:
        # An array's id is also the id of one of its records: only that one is meant.
        if raw_id == str(job_id):
            whole = labels | whole_labels(slurm, labels, doubtful_in({job_id: labels[job_id]}))
            try:
                return JobNow(
                    address=address(whole[job_id]),
                    state=job_state(state),
                    run=Run(job_id=job_id, start_s=epoch_s(start), restarts=int(restarts)),
                    requeueable=requeue == "1",
                    reservation=reservation,
                )
            except ValueError as err:
                msg = f"job {job_id} cannot be read: {printable(str(err))}"
                raise ClusterError(msg) from None
    return None


def update_job(slurm: Slurm, label: str, *settings: str) -> None:
    """Change some settings, all or none, of exactly the record *label*.

    Raises:
        ClusterError: Refused, or the label is none.
    """
    try:
        named = address(label)
    except ValueError as err:
        raise ClusterError(printable(str(err))) from None
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


def reservation_exists(slurm: Slurm, name: str) -> bool:
    """Whether Slurm has a reservation of that name.

    Raises:
        ClusterError: Slurm is silent.
    """
    return _reservation(slurm, name) is not None


def unseal(slurm: Slurm, name: str) -> str:
    """Delete a reservation of ours, or let it lapse while a job runs in it.

    Returns:
        What was done, in one word: ``deleted``, ``shortened`` or ``gone``.

    Raises:
        ClusterError: Refused, silent, or the reservation is not ours.
    """
    if _NAME_OF_OURS.fullmatch(name) is None:
        msg = f"reservation {printable(name)[:80]} is not ours; it is left alone"
        raise ClusterError(msg)
    try:
        slurm.run("scontrol", "delete", f"ReservationName={name}")
    except ClusterError:
        if not reservation_exists(slurm, name):
            return "gone"
    else:
        return "deleted"
    # In use. Measured on 22.05.8: it can be made to end while a job runs in it; its nodes are free
    # for others within a second, and the job runs on. An end that is not after the start is
    # refused, so one made in this very second gets a few more.
    update = ("scontrol", "update", f"ReservationName={name}")
    try:
        slurm.run(*update, "EndTime=now")
    except ClusterError:
        slurm.run(*update, f"EndTime=now+{_LAPSE_S}")
    return "shortened"


def _reservation(slurm: Slurm, name: str) -> ReservationSeen | None:
    seen = read_reservations(slurm.run("scontrol", "show", "reservation", "--oneliner"))
    return next((r for r in seen if r.name == name), None)


def _check_standing(standing: ReservationSeen, nodes: Sequence[str]) -> None:
    """Refuse a reservation that is not the one that was to be made."""
    extra, missing = set(standing.nodes) - set(nodes), set(nodes) - set(standing.nodes)
    wrong = [f"it also has {','.join(sorted(extra))}"] if extra else []
    if missing:
        wrong.append(f"it lacks {','.join(sorted(missing))}")
    if not standing.active:
        wrong.append("it is not active")
    if wrong:
        msg = f"reservation {standing.name} stands already and is another: {'; '.join(wrong)[:200]}"
        raise ClusterError(msg)


def _difference(now: JobNow, run: Run) -> str:
    """In what the job is no longer *run*; its state in any case."""
    words = [now.state.name.lower()]
    if now.run.restarts != run.restarts:
        words.append(f"restarts {now.run.restarts} not {run.restarts}")
    # Where a pending job has a start, it is a prediction.
    if now.run.start_s != run.start_s and now.state is not JobState.PENDING:
        words.append(f"start {now.run.start_s:.0f} not {run.start_s:.0f}")
    return ", ".join(words)


def _user_names(uids: Sequence[int], reservation: str) -> list[str]:
    """The users a reservation can be made for; one without a name must not stop the others."""
    names, without = [], []
    for uid in uids:
        try:
            name = pwd.getpwuid(uid).pw_name
        except (KeyError, OverflowError):
            without.append(f"uid {uid} has no user name here")
            continue
        if _USER_NAME.fullmatch(name) is None:
            without.append(f"user name {printable(name)!r} cannot be written into one")
            continue
        names.append(name)
    if not names:
        why = "; ".join(without)[:200] or "it has no users"
        msg = f"reservation {reservation} can be made for nobody: {why}"
        raise ClusterError(msg)
    return names
