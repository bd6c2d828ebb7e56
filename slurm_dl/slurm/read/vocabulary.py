"""Slurm's words in our terms: states, reasons, times, time limits and array specs.

Words of all supported releases are listed. A state nobody knows makes the record unreadable, a
reason nobody knows makes the job one that nothing is preempted for: never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from slurm_dl.model.jobs import Held, JobState
from slurm_dl.slurm.read.grammar import span_s

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
_LABEL = re.compile(
    r"([0-9]{1,18})(?:_([0-9]{1,18})|_\[([0-9,:-]+)(?:%[0-9]{1,18})?\]|\+([0-9]{1,18}))?"
)
_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_MOST_TASKS = 4_000_001


def is_number(text: str) -> bool:
    """Whether *text* is a whole number as Slurm writes them: 18 ASCII digits at most."""
    return text.isdigit() and text.isascii() and len(text) <= 18  # noqa: PLR2004


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


def _array_ranges(spec: str) -> list[range]:
    """The tasks of an array spec such as ``1-3,10-100:5``; ValueError if it is no such spec."""
    ranges = []
    for part in spec.split(","):
        span = _SPAN.fullmatch(part)
        if span is None:
            msg = f"{part[:40]!r} is no part of an array spec"
            raise ValueError(msg)
        first, last, step = span.groups()
        ranges.append(range(int(first), int(last or first) + 1, int(step or 1)))
    return ranges


def tasks_in(label: str) -> int:
    """Number of jobs in the record *label*; ValueError if it is no job label."""
    spec = _match_label(label)[3]
    tasks = 1 if spec is None else sum(map(len, _array_ranges(spec)))
    if not 0 < tasks <= _MOST_TASKS:
        msg = f"{label[:40]!r} stands for {tasks} tasks"
        raise ValueError(msg)
    return tasks


def tasks_as_one(labels: Sequence[str]) -> str | None:
    """One label for several different tasks of one array, ``6_[0-8:2]``; None if they are none."""
    found = [_LABEL.fullmatch(label) for label in labels]
    tasks = sorted({int(match[2]) for match in found if match and match[2]})
    if len(tasks) < len(labels) or len({match[1] for match in found if match}) != 1:
        return None
    if len(labels) == 1:
        return labels[0]
    return f"{labels[0].partition('_')[0]}_[{_spec(tasks)}]"


def one_spelling(label: str) -> str:
    """*label* as `tasks_as_one` spells it, however Slurm does; ValueError if it is no job label.

    ``6_[0,2,4%9]`` is ``6_[0-4:2]``, and ``6_[3]`` is ``6_3``.
    """
    found = _match_label(label)
    if found[3] is None:
        return label
    tasks = tasks_of(label)
    return f"{found[1]}_[{_spec(tasks)}]" if len(tasks) > 1 else f"{found[1]}_{tasks[0]}"


def tasks_of(label: str) -> list[int]:
    """The numbers of the tasks that *label* names, ascending; ValueError if it names none."""
    found = _match_label(label)
    tasks_in(label)
    if found[2] is not None:
        return [int(found[2])]
    if found[3] is None:
        msg = f"{label[:40]!r} names no task of an array"
        raise ValueError(msg)
    return sorted({task for tasks in _array_ranges(found[3]) for task in tasks})


def _spec(tasks: Sequence[int]) -> str:
    """Array spec of two or more *tasks*, which ascend."""
    step = tasks[1] - tasks[0]
    if tasks[-1] - tasks[0] == step * (len(tasks) - 1) and step > 1 < len(tasks) - 1:
        return f"{tasks[0]}-{tasks[-1]}:{step}"
    return ",".join(
        f"{first}-{last}" if last > first else f"{first}" for first, last in _unbroken(tasks)
    )


def _unbroken(tasks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of *tasks*, which ascend."""
    first = last = tasks[0]
    for task in tasks[1:]:
        if task != last + 1:
            yield first, last
            first = task
        last = task
    yield first, last


def address(label: str) -> str:
    """Name of exactly the record *label* for scontrol and scancel; ValueError if it is none.

    Measured on 22.05.8: the plain id of an array reaches its running tasks too, a spec with a
    step is refused, a spec that names some of the pending tasks splits them off, and one that
    names all of them changes their common record and nothing else.
    """
    found = _match_label(label)
    tasks_in(label)
    if found[3] is None:
        return label
    runs = [run for tasks in _array_ranges(found[3]) for run in _runs(tasks)]
    return f"{found[1]}_[{','.join(runs)}]"


def _match_label(label: str) -> re.Match[str]:
    found = _LABEL.fullmatch(label)
    if found is None:
        msg = f"{label[:40]!r} is no job id"
        raise ValueError(msg)
    return found


def _runs(tasks: range) -> list[str]:
    if tasks.step == 1 and len(tasks) > 1:
        return [f"{tasks[0]}-{tasks[-1]}"]
    return [str(task) for task in tasks]
