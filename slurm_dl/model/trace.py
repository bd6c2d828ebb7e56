"""A workload as data: who submitted what, when, and how long it runs on the GPUs it asks for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Self

import numpy as np

from slurm_dl.model.jobs import F64, I8, I32, I64
from slurm_dl.model.value_curve import ValueCurve


class Ending(IntEnum):
    """How a job of a trace ended when it really ran; a simulation ends it the same way."""

    COMPLETED = 0
    FAILED = 1
    CANCELLED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A line that was left out of a trace."""

    file: str
    line: int  # Its number in the file, 1 is the first; 0 where the format has no lines
    why: str  # What is wrong with it

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """The jobs of a trace in the order of their submission, as columns of length n.

    Rows are in the order of `submit_s`; jobs submitted at the same instant stand in the order of
    the file. Times are those of the file, in seconds; their zero is whatever the file's is.

    Attributes:
        account: ``(n,)`` int32, index into `accounts`, -1 for a job without; None if the trace
            tells none of any job.
        batch: ``(n,)`` samples of a step of all its GPUs; None if the trace does not say.
        due_s: ``(n,)`` deadline, seconds, inf for a job without; None if the trace tells none of
            any job.
        curves: Values of each job with several deadlines, which count from its submission; *due_s*
            is that of the highest. None: no job has any.
        users: Names of users, or of virtual clusters where the trace knows no users.
        measured: The folder of the measured models that its durations are from; empty: they are
            those of the file.
    """

    name: str  # What reports call it: the file's name without its ending
    format: str  # The format it was read as, or ``generated``
    job_id: tuple[str, ...]  # Ids as in the file; unique
    submit_s: F64  # ``(n,)`` submission, seconds, not decreasing
    duration_s: F64  # ``(n,)`` seconds of running on its GPUs that the job needs, above 0
    gpus: F64  # ``(n,)`` GPUs it runs on, all of them or none; above 0
    user: I32  # ``(n,)`` int32, index into `users`
    model: I32  # ``(n,)`` int32, index into `models`; -1 if the trace does not say
    ending: I8  # ``(n,)`` int8, an `Ending`
    account: I32 | None = None
    batch: I32 | None = None
    due_s: F64 | None = None
    curves: tuple[ValueCurve | None, ...] | None = None
    users: tuple[str, ...] = ("",)
    models: tuple[str, ...] = ()  # Names of models
    accounts: tuple[str, ...] = ()  # Names of accounts, or of virtual clusters
    measured: str = ""
    bad: tuple[BadLine, ...] = field(default=())  # Lines that were left out
    sha256: str = ""  # Of the file that it was read from, in hexadecimal; empty if it was made

    def __post_init__(self) -> None:
        columns = {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if isinstance(getattr(self, f.name), np.ndarray)
        }
        lengths = {name: len(column) for name, column in columns.items()}
        if self.curves is not None:
            lengths["curves"] = len(self.curves)
        if set(lengths.values()) - {len(self.job_id)}:
            msg = f"trace {self.name}: {len(self.job_id)} ids, columns of lengths {lengths}"
            raise ValueError(msg)
        for column in columns.values():
            column.setflags(write=False)
        if len(self) and (
            (np.diff(self.submit_s) < 0).any()
            or not (self.duration_s > 0).all()
            or not (self.gpus > 0).all()
            or not all(np.isfinite(columns[c]).all() for c in ("submit_s", "duration_s", "gpus"))
        ):
            msg = f"trace {self.name}: unsorted, or a duration or a number of GPUs is not above 0"
            raise ValueError(msg)
        if self.due_s is not None and np.isnan(self.due_s).any():
            msg = f"trace {self.name}: a deadline is no time"
            raise ValueError(msg)
        if len(set(self.job_id)) != len(self.job_id):
            msg = f"trace {self.name}: two jobs have one id"
            raise ValueError(msg)

    def __len__(self) -> int:
        return len(self.job_id)

    def of_jobs(self, at: I64, **columns: object) -> Self:
        """This trace with what belongs to the jobs *at*, ``(k,)`` rows, in that order.

        Args:
            columns: Fields that are not theirs, such as other ids or submit times, with which their
                deadlines move.
        """
        theirs: dict[str, object] = {"job_id": tuple(self.job_id[i] for i in at.tolist())}
        for one in dataclasses.fields(self):
            column = getattr(self, one.name)
            if isinstance(column, np.ndarray):
                theirs[one.name] = column[at]
        if self.curves is not None:
            theirs["curves"] = tuple(self.curves[i] for i in at.tolist())
        changes: dict[str, Any] = theirs | columns
        if self.due_s is not None and "submit_s" in columns:
            changes["due_s"] = self.due_s[at] + (changes["submit_s"] - self.submit_s[at])
        return dataclasses.replace(self, **changes)

    def curves_by_row(self) -> dict[int, ValueCurve]:
        """*curves* in the trace's time."""
        curves = enumerate(self.curves or ())
        return {i: one.shifted(float(self.submit_s[i])) for i, one in curves if one is not None}

    @property
    def account_names(self) -> tuple[str, ...] | None:
        """The account of each job, empty for one without; None if the trace tells none."""
        if self.account is None:
            return None
        return tuple(self.accounts[a] if a >= 0 else "" for a in self.account.tolist())

    @property
    def gpu_s(self) -> float:
        """GPU-seconds of all jobs together."""
        return float(self.duration_s @ self.gpus)
