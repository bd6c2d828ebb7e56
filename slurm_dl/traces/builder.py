"""From lines to a `Trace`: what every format has in common once a line's words are known.

Checks that hold for all formats stand here and nowhere else: ids are unique, times and sizes are
finite and in bounds, jobs are sorted by submission.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import I32
from slurm_dl.model.trace import BadLine, Ending, Trace
from slurm_dl.model.value_curve import ValueCurve
from slurm_dl.traces.file_lines import file_sha256

SHOWN_PER_REASON: Final = 20  # Broken lines told one by one, of each kind


class Reason(StrEnum):
    """Why a line is no job of the trace; the values are what summaries print."""

    FIELDS = "wrong number of fields"
    TOO_LONG = "line too long"
    BROKEN = "broken record"
    NAME = "unusable name"
    NUMBER = "not a number"
    TIME = "not a time"
    NEGATIVE = "negative"
    OUT_OF_RANGE = "out of range"
    GPUS = "GPUs not above 0"
    DURATION = "duration not above 0"
    DUPLICATE = "job id seen before"
    STATE = "unknown state"
    NO_RATE = "no measured speed for this model and number of GPUs"
    NO_GPU = "job without GPUs"
    NOT_ENDED = "job that had not ended"
    NEVER_RAN = "job that never ran"
    STEP = "job step"


BY_RULE: Final = frozenset({Reason.NO_GPU, Reason.NOT_ENDED, Reason.NEVER_RAN, Reason.STEP})
"""Sound lines that are not what is simulated: told by their number alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutLine(BadLine):
    """A line that was left out, or all further ones of the same kind together."""

    reason: Reason  # The kind
    lines: int = 1  # How many lines this stands for; `line` is the first of them


@dataclass(slots=True)
class _Kind:
    shown: list[LeftOutLine]
    more: int = 0
    first_more: int = 0


class LeftOutLines:
    """Counts lines that are left out; memory is bounded, however many there are.

    Some lines are left out by rule (jobs without GPUs, jobs that had not ended): there may be
    millions of them, and they are told by their number. Others are broken: the first of each kind
    are told one by one, the rest by their number.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self._kinds: dict[Reason, _Kind] = {}

    def add(self, line: int, reason: Reason, why: str) -> None:
        """Leave out *line*, for *why* in words."""
        kind = self._kinds.setdefault(reason, _Kind([]))
        if reason not in BY_RULE and len(kind.shown) < SHOWN_PER_REASON:
            kind.shown.append(LeftOutLine(file=self.file, line=line, why=why, reason=reason))
            return
        kind.first_more = kind.first_more or line
        kind.more += 1

    def all(self) -> tuple[LeftOutLine, ...]:
        """Everything left out, in the order of lines."""
        told = [entry for kind in self._kinds.values() for entry in kind.shown]
        for reason, kind in self._kinds.items():
            if kind.more:
                further = "further " if kind.shown else ""
                told.append(
                    LeftOutLine(
                        file=self.file,
                        line=kind.first_more,
                        why=f"{reason}: {kind.more:,} {further}times, here first",
                        reason=reason,
                        lines=kind.more,
                    )
                )
        return tuple(sorted(told, key=lambda entry: entry.line))


MAX_JOBS: Final = 2_000_000
"""Half a gigabyte; the largest public trace has 1.6 million jobs with GPUs."""
MAX_SUBMIT_S: Final = 1e11
MAX_DURATION_S: Final = 1e10  # Three centuries
MAX_GPUS: Final = 1e6


class BadValue(Exception):  # noqa: N818 - it is caught, never shown as an error
    """A line cannot be a job.

    Attributes:
        reason: The kind of fault.
        why: The fault in words.
    """

    def __init__(self, reason: Reason, why: str) -> None:
        super().__init__(why)
        self.reason = reason
        self.why = why


class TimeForm(StrEnum):
    """The forms of a time in a file."""

    SECONDS = "a number of seconds"
    LOCAL = "a time without an offset"
    OFFSET = "a time with an offset"


class Moment(float):
    """Seconds, and how the file writes them."""

    __slots__ = ("form",)
    form: TimeForm

    def __new__(cls, value_s: float, form: TimeForm) -> Self:
        """*value_s* in *form*."""
        made = super().__new__(cls, value_s)
        made.form = form
        return made

    def __getnewargs__(self) -> tuple[float, TimeForm]:  # type: ignore[override]
        """For copies."""
        return float(self), self.form

    def __sub__(self, other: float, /) -> float:
        """Seconds from *other* to this.

        Raises:
            BadValue: One has an offset, or is a number, and the other is not: it may be hours off.
        """
        if isinstance(other, Moment) and other.form is not self.form:
            why = f"one time is {self.form}, another {other.form}"
            raise BadValue(Reason.TIME, why)
        return float(self) - float(other)


class JobLine(NamedTuple):
    """One job as a line tells it."""

    job_id: str
    submit_s: float  # Submission, seconds from the trace's own zero
    duration_s: float  # Seconds it runs on its GPUs
    gpus: float  # GPUs it holds while it runs
    user: str = ""  # Who submitted it; empty if the trace does not say
    account: str = ""  # Its account or virtual cluster; empty if the trace does not say
    model: str = ""  # What it trains; empty if the trace does not say
    ending: Ending = Ending.COMPLETED  # How it ended
    due_s: float = math.inf  # Its deadline on the clock of `submit_s`; inf if it has none
    curve: ValueCurve | None = None  # Of several deadlines, seconds after *submit_s*
    batch: int = 0  # Samples of a step of all its GPUs; 0 if the trace does not say


class Gathering:
    """The jobs of a trace as they are read.

    Attributes:
        file: The trace.
        measured: See `Trace`; a reader sets it.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.measured = ""
        self._left_out = LeftOutLines(file)
        self._ids: dict[str, None] = {}
        self._jobs: list[JobLine] = []
        self._forms: dict[str, tuple[TimeForm, int]] = {}

    def add(self, line: int, job: JobLine) -> None:
        """Take *job*, or leave its line out if it cannot be one.

        Raises:
            ConfigError: There are more jobs than a simulation can hold, or its times are written
                in another form than those before: by hours apart, or decades.
        """
        self._check_form(line, "submission", job.submit_s)
        self._check_form(line, "deadline", job.due_s)
        try:
            _check(job)
        except BadValue as bad:
            self.leave_out(line, bad)
            return
        if job.job_id in self._ids:
            self.leave_out(line, BadValue(Reason.DUPLICATE, f"job id {job.job_id} was seen before"))
            return
        if len(self._jobs) == MAX_JOBS:
            msg = f"{self.file}:{line}: more than {MAX_JOBS:,} jobs; cut the trace into parts"
            raise ConfigError(msg)
        self._ids[job.job_id] = None
        self._jobs.append(job)

    def _check_form(self, line: int, what: str, time_s: float) -> None:
        if isinstance(time_s, Moment):
            form, first = self._forms.setdefault(what, (time_s.form, line))
            if form is not time_s.form:
                msg = (
                    f"{self.file}:{line}: the {what} is {time_s.form}, in line {first} {form}; "
                    "write all of them in one form"
                )
                raise ConfigError(msg)

    def leave_out(self, line: int, bad: BadValue) -> None:
        """Do without *line*, 1 is the first."""
        self._left_out.add(line, bad.reason, bad.why)

    @property
    def left_out(self) -> tuple[LeftOutLine, ...]:
        """Everything left out so far, in the order of lines."""
        return self._left_out.all()

    def trace(self, *, name: str, format_name: str) -> Trace:
        """The jobs gathered, by submission; equal times keep the order of the file.

        Raises:
            ConfigError: There are none.
        """
        left_out = self.left_out
        if not self._jobs:
            first = f"; the first line left out: {left_out[0]}" if left_out else ""
            msg = (
                f"{self.file}: no job could be read as format {format_name!r}{first}. "
                "Is the format right?"
            )
            raise ConfigError(msg)
        submit_s = np.array([job.submit_s for job in self._jobs])
        order = np.argsort(submit_s, kind="stable")
        jobs = [self._jobs[i] for i in order.tolist()]
        users, user = _numbered([job.user for job in jobs])
        models, model = _numbered([job.model for job in jobs], nothing="")
        accounts, account = _numbered([job.account for job in jobs], nothing="")
        due_s = np.array([job.due_s for job in jobs])
        curves = tuple(job.curve for job in jobs)
        batch = np.array([job.batch for job in jobs], dtype=np.int32)
        return Trace(
            name=name,
            format=format_name,
            job_id=tuple(job.job_id for job in jobs),
            submit_s=submit_s[order],
            duration_s=np.array([job.duration_s for job in jobs]),
            gpus=np.array([job.gpus for job in jobs]),
            user=user,
            model=model,
            ending=np.array([job.ending for job in jobs], dtype=np.int8),
            account=account if accounts else None,
            batch=batch if batch.any() else None,
            due_s=due_s if np.isfinite(due_s).any() else None,
            curves=curves if any(curves) else None,
            users=users,
            models=models,
            accounts=accounts,
            measured=self.measured,
            bad=left_out,
            sha256=file_sha256(Path(self.file)),
        )


def _check(job: JobLine) -> None:
    """Refuse what no job can be, whatever the format."""
    # Written so that nan fails each of them.
    if not 0 < job.duration_s <= MAX_DURATION_S:
        kind = Reason.OUT_OF_RANGE if job.duration_s > 0 else Reason.DURATION
        msg = f"duration of {job.duration_s:g} s"
        raise BadValue(kind, msg)
    if not 0 < job.gpus <= MAX_GPUS:
        kind = Reason.OUT_OF_RANGE if job.gpus > 0 else Reason.GPUS
        msg = f"{job.gpus:g} GPUs"
        raise BadValue(kind, msg)
    if not 0 <= job.submit_s <= MAX_SUBMIT_S:
        kind = Reason.OUT_OF_RANGE if job.submit_s > 0 else Reason.NEGATIVE
        msg = f"submitted at {job.submit_s:g} s"
        raise BadValue(kind, msg)
    if not (abs(job.due_s) <= MAX_SUBMIT_S or job.due_s == math.inf):
        msg = f"due at {job.due_s:g} s"
        raise BadValue(Reason.OUT_OF_RANGE, msg)


def _numbered(names: list[str], nothing: str | None = None) -> tuple[tuple[str, ...], I32]:
    """The different names in the order they first appear, and the place of each; -1: *nothing*."""
    places: dict[str, int] = {}
    column = [-1 if name == nothing else places.setdefault(name, len(places)) for name in names]
    return tuple(places), np.array(column, dtype=np.int32)
