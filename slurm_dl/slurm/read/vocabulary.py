"""Slurm's words in our terms: states, reasons, times and time limits.

Words of all supported releases are listed. A state nobody knows makes the record unreadable, a
reason nobody knows makes the job one that nothing is preempted for: never a guess.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from slurm_dl.model.jobs import Held, JobState
from slurm_dl.slurm.read.grammar import is_number, span_s

_LATEST_S = 1e11

_STATES: dict[str, JobState] = {
    "PENDING": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "EXPEDITING": JobState.PENDING,
    "CONFIGURING": JobState.CONFIGURING,
    "POWER_UP_NODE": JobState.CONFIGURING,
    "RUNNING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "SUSPENDED": JobState.SUSPENDED,
    "STOPPED": JobState.SUSPENDED,
    "COMPLETING": JobState.COMPLETING,
    "STAGE_OUT": JobState.COMPLETING,
    "COMPLETED": JobState.COMPLETED,
    "BOOT_FAIL": JobState.FAILED,
    "CANCELLED": JobState.FAILED,
    "DEADLINE": JobState.FAILED,
    "FAILED": JobState.FAILED,
    "LAUNCH_FAILED": JobState.FAILED,
    "NODE_FAIL": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "PREEMPTED": JobState.FAILED,
    "RECONFIG_FAIL": JobState.FAILED,
    "REVOKED": JobState.FAILED,
    "TIMEOUT": JobState.FAILED,
}

CUT_SHORT = frozenset({"CANCELLED", "DEADLINE", "PREEMPTED", "REVOKED", "TIMEOUT"})
"""Ends that somebody or a limit brought about, and the job did not."""

_HELD: dict[str, Held] = {
    "None": Held.NO,
    "Priority": Held.NO,
    "Resources": Held.NO,
    "SchedDefer": Held.NO,
    "Prolog": Held.NO,
    # Measured on 22.05.8: with one node drained, jobs that merely wait for busy nodes say this
    # ("ReqNodeNotAvail, UnavailableNodes:n4"). Whether the job fits is decided from the nodes.
    "ReqNodeNotAvail": Held.NO,
    "BeginTime": Held.BEGIN_TIME,
    "Cleaning": Held.BEGIN_TIME,
    "Reservation": Held.RESERVATION,
    "ReservationDeleted": Held.RESERVATION,
    "PartitionNodeLimit": Held.LIMIT,
    "PartitionTimeLimit": Held.LIMIT,
    "JobArrayTaskLimit": Held.LIMIT,
    "JobHoldMaxRequeue": Held.USER_OR_ADMIN,
    "QOSNotAllowed": Held.UNAVAILABLE,
    "MaxPoweredUpNodes": Held.UNAVAILABLE,
}
_HELD_PREFIX: tuple[tuple[str, Held], ...] = (
    ("Dependency", Held.DEPENDENCY),
    ("JobHeld", Held.USER_OR_ADMIN),
    # After scontrol requeuehold; with underscores by squeue, with blanks by scontrol.
    ("job_requeued_in_held_state", Held.USER_OR_ADMIN),
    ("job requeued in held state", Held.USER_OR_ADMIN),
    ("Assoc", Held.LIMIT),
    ("QOS", Held.LIMIT),
    ("Max", Held.LIMIT),
)
# The text of a job whose nodes are down, or set aside for a higher partition for this pass.
_WAITS_FOR_NODES = (
    "Nodes required for job are DOWN, DRAINED or reserved",
    # Measured on 26.05.5: of a job that needs several nodes of one block while each has a busy one.
    # Earlier releases say Resources (Slurm's change log of 26.05.0rc1).
    "No suitable topology unit found",
    "Insufficient resources in topology unit",
)
_NODES_MISSING = _WAITS_FOR_NODES[0]
_MAINTENANCE = "ReqNodeNotAvail, Reserved for maintenance"

_UNSET = frozenset({"", "N/A", "NONE", "Unknown", "None", "(null)"})
_UNLIMITED = _UNSET | {"UNLIMITED", "NOT_SET", "Partition_Limit", "INVALID"}
_LONGEST_LIMIT_S = 365.0 * 86_400


def job_state(word: str) -> JobState:
    """Our state for Slurm's long state word; ValueError if it is not known."""
    state = _STATES.get(word)
    if state is None:
        msg = f"unknown job state {word[:40]!r}"
        raise ValueError(msg)
    return state


def held(reason: str) -> Held:
    """The cause that keeps a pending job with Slurm's *reason* from starting."""
    if reason.startswith(_WAITS_FOR_NODES):
        return Held.NO
    if reason.startswith(_MAINTENANCE):
        return Held.RESERVATION
    word = re.split(r"[ ,:(]", reason, maxsplit=1)[0]
    known = _HELD.get(word)
    if known is not None:
        return known
    return next((h for prefix, h in _HELD_PREFIX if word.startswith(prefix)), Held.UNAVAILABLE)


def nodes_missing(reason: str) -> bool:
    """Whether Slurm's *reason* says that nodes have left service, or are kept for others."""
    return reason.startswith(_NODES_MISSING)


def epoch_s(text: str) -> float:
    """A time in epoch seconds, 0 if it is not set; ValueError if it is no time.

    ``SLURM_TIME_FORMAT=%s`` gives seconds; ISO times are read as UTC, the zone we ask in.
    """
    if is_number(text):
        return float(text)
    if text in _UNSET:
        return 0.0
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()


def bounded_epoch_s(text: str) -> float:
    """`epoch_s` of what accounting says; ValueError also if it is too far off to be a time."""
    found = epoch_s(text)
    if found > _LATEST_S:
        msg = f"{text[:40]!r} is no time"
        raise ValueError(msg)
    return found


def limit_s(text: str) -> float:
    """A time limit in seconds, inf if there is none; ValueError if it is no time limit.

    A job without a limit is given a year when it starts (measured on 22.05.8), so a year is inf.
    """
    limit = float("inf") if text in _UNLIMITED else span_s(text)
    if limit is None:
        msg = f"{text[:40]!r} is no time limit"
        raise ValueError(msg)
    return limit if limit < _LONGEST_LIMIT_S else float("inf")
