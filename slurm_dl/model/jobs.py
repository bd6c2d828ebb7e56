"""Jobs as parallel read-only columns: the form in which everything is decided.

A daemon plans for 100,000 queued jobs and the simulator decides a million times, so there is
no object per job here. Row *i* of every column is the same job. A `JobRow` is one job on its
way in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Annotated, Any, Final, Self

import numpy as np
import numpy.typing as npt

from slurm_dl.model.ids import JobId
from slurm_dl.model.json_marks import Column

I8 = Annotated[npt.NDArray[np.int8], Column("i")]


class Origin(IntEnum):
    """Sources of an estimate, the most trustworthy first. Unknown is not zero."""

    KNOWN = 0  # Exactly so: a simulation's own figure
    MEASURED = 1  # Runs of this job, or of this model in this shape
    REPORTED = 2  # The job says so while it runs
    FITTED = 3  # A curve through what was measured in other shapes
    HISTORY = 4  # Earlier jobs like this one
    DECLARED = 5  # What was asked for at submission: the time limit
    PRIOR = 6  # Nothing is known of this job: the site's word, or a law that holds for jobs as such


I16 = Annotated[npt.NDArray[np.int16], Column("i")]
I32 = Annotated[npt.NDArray[np.int32], Column("i")]
I64 = Annotated[npt.NDArray[np.int64], Column("i")]
F64 = Annotated[npt.NDArray[np.float64], Column("f")]
Bool = Annotated[npt.NDArray[np.bool_], Column("b")]


class JobState(IntEnum):
    """What a job is doing, as far as a scheduler cares."""

    PENDING = 0
    CONFIGURING = 1
    RUNNING = 2
    SUSPENDED = 3
    COMPLETING = 4  # Its processes are being ended; its GPUs are not free yet
    COMPLETED = 5
    FAILED = 6
    """Any end that is not success: failed, cancelled, timed out, out of memory, node failure."""


PENDING: Final = int(JobState.PENDING)
RUNNING: Final = int(JobState.RUNNING)
COMPLETING: Final = int(JobState.COMPLETING)
COMPLETED: Final = int(JobState.COMPLETED)
"""Plain numbers for comparisons with columns: NumPy takes microseconds to see through an enum."""


class Held(IntEnum):
    """Why a pending job could not start now even on an empty cluster (Slurm's reason, grouped)."""

    NO = 0  # It waits for resources or for its turn: it may be started or preempted for
    USER_OR_ADMIN = 1
    DEPENDENCY = 2
    BEGIN_TIME = 3  # Not yet eligible, for instance in the safety interval after a requeue
    LIMIT = 4  # An association, QOS or partition limit
    RESERVATION = 5  # It waits for a reservation, its own or somebody's maintenance
    UNAVAILABLE = 6
    """Bad constraints, nodes that are down, licences: nothing a preemption could mend."""
    BY_HAND = 7
    """An operator has set its priority: Slurm may start it, and it is left alone until then."""
    DATA = 8  # Its data is not there yet, says its owner: Slurm may start it unless it is put off


NOT_HELD: Final = int(Held.NO)
BY_HAND: Final = int(Held.BY_HAND)
NO_DATA: Final = int(Held.DATA)


def _column(values: npt.ArrayLike, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    column = np.array(values, dtype=dtype)
    column.setflags(write=False)
    return column


@dataclass(frozen=True, eq=False)
class Jobs:
    """Every job Slurm reports, as columns of length n.

    Attributes:
        partition: ``(n,)`` int16, index into `Observed.partitions`; -1 if it names an unknown one.
            Of several the first, see `Observed.also_in`.
        mem_mb: ``(n,)`` int64, memory held or asked for in all, MB; 0 when Slurm does not track it.
    """

    job_id: I64  # ``(n,)`` int64, Slurm's id of the record
    state: I8  # ``(n,)`` int8, a `JobState`
    held: I8  # ``(n,)`` int8, a `Held`; of a job that is not pending only ``BY_HAND`` says anything
    partition: I16
    uid: I64  # ``(n,)`` int64, the owner
    tasks: I32  # ``(n,)`` int32, jobs in this record: 1, or the pending tasks of an array
    n_nodes: I32  # ``(n,)`` int32, nodes held or asked for, at least 1
    gpus: F64  # ``(n,)`` float64, GPUs held or asked for in all; shards count as their fraction
    gpu_type: I16  # ``(n,)`` int16, index into `Observed.gpu_types`; -1 for any
    cpus: I32  # ``(n,)`` int32, CPUs held or asked for in all
    mem_mb: I64
    submit_s: F64  # ``(n,)`` float64, Slurm's submit time, epoch seconds; a requeue overwrites it
    start_s: F64  # ``(n,)`` float64, start of the present run, epoch seconds; 0 if not started
    end_s: F64  # ``(n,)`` float64, end of a finished run; for a running one its limit; 0 if unknown
    limit_s: F64  # ``(n,)`` float64, time limit, seconds; inf if none
    restarts: I32  # ``(n,)`` int32, Slurm's restart count
    priority: I64  # ``(n,)`` int64, Slurm's job priority; 0 is held
    requeueable: Bool  # ``(n,)`` bool, batch job whose Requeue flag is set and no het job
    exclusive: Bool  # ``(n,)`` bool, it wants its nodes for itself (``--exclusive``)

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in _DTYPES}
        if len(set(lengths.values())) > 1:
            msg = f"job columns differ in length: {lengths}"
            raise ValueError(msg)
        for name in lengths:
            getattr(self, name).setflags(write=False)

    def __len__(self) -> int:
        return len(self.job_id)

    @classmethod
    def of(cls, rows: Sequence[JobRow]) -> Self:
        """Columns of *rows*, in their order."""
        return cls.of_columns({name: [getattr(r, name) for r in rows] for name in _DTYPES})

    @classmethod
    def of_columns(cls, columns: Mapping[str, npt.ArrayLike]) -> Self:
        """Columns of these values; one entry for each column, whatever its sequence type."""
        return cls(**{name: _column(columns[name], dtype) for name, dtype in _DTYPES.items()})

    def row_of(self) -> dict[JobId, int]:
        """Map from job id to row; built anew at each call, O(n)."""
        return dict(zip(self.job_id.tolist(), range(len(self)), strict=True))

    @cached_property
    def rows(self) -> Mapping[JobId, int]:
        """`row_of`, computed once; nobody may change it."""
        return self.row_of()

    def with_columns(self, **columns: npt.NDArray[Any]) -> Self:
        """The same jobs with other values in some columns; `rows` is kept."""
        changed = dataclasses.replace(self, **columns)
        if "rows" in self.__dict__ and changed.job_id is self.job_id:
            changed.__dict__["rows"] = self.rows
        return changed

    def take(self, rows: npt.NDArray[Any]) -> Self:
        """The jobs at *rows* (indices or a mask), as columns of their own."""
        return type(self)(**{name: getattr(self, name)[rows] for name in _DTYPES})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job on its way into the columns; the fields are those of `Jobs`."""

    job_id: int
    state: JobState
    held: Held = Held.NO
    partition: int = 0
    uid: int = 0
    tasks: int = 1
    n_nodes: int = 1
    gpus: float = 1.0
    gpu_type: int = -1
    cpus: int = 1
    mem_mb: int = 0
    submit_s: float = 0.0
    start_s: float = 0.0
    end_s: float = 0.0
    limit_s: float = float("inf")
    restarts: int = 0
    priority: int = 1
    requeueable: bool = True
    exclusive: bool = False


_DTYPES: dict[str, npt.DTypeLike] = {
    "job_id": np.int64,
    "state": np.int8,
    "held": np.int8,
    "partition": np.int16,
    "uid": np.int64,
    "tasks": np.int32,
    "n_nodes": np.int32,
    "gpus": np.float64,
    "gpu_type": np.int16,
    "cpus": np.int32,
    "mem_mb": np.int64,
    "submit_s": np.float64,
    "start_s": np.float64,
    "end_s": np.float64,
    "limit_s": np.float64,
    "restarts": np.int32,
    "priority": np.int64,
    "requeueable": np.bool_,
    "exclusive": np.bool_,
}


_MANY = 4096  # From here on NumPy's choice pays


def is_in(values: npt.NDArray[Any], among: npt.NDArray[Any] | Collection[Any]) -> Bool:
    """``(len(values),)`` bool: the value is one of *among*, in whatever order those are.

    For the few hundred ids of a look `numpy.isin` spends several times longer on choosing a method
    than this takes altogether.

    Args:
        among: An array, or a sequence of numbers or of strings.
    """
    if not len(among):
        return np.zeros(len(values), dtype=np.bool_)
    if len(values) + len(among) > _MANY:
        return np.isin(values, np.asarray(among))
    ordered = np.array(among)
    ordered.sort()
    at = ordered.searchsorted(values)
    at[at == len(ordered)] = 0
    found: Bool = ordered[at] == values
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Remembered:
    """What the ledger adds to each job, as columns beside `Jobs` (n rows, same order).

    Attributes:
        waiting_since_s: ``(n,)`` end of the last run, or the first submit, epoch seconds; for a job
            that is held, or waits for something else than room, about now.
        queued_s: ``(n,)`` its place in the queue: when it could last have started for the first
            time, not held by anybody, without a dependency or a begin time ahead, epoch seconds; of
            a job that may not yet, now. Empty: *first_submit_s*, as in older recordings.
        preemptions: ``(n,)`` int32, how often we have requeued it; where Slurm itself preempts,
            how often it was requeued by anybody.
        last_preempted_s: ``(n,)`` when we last did, epoch seconds; 0 if never. Where Slurm itself
            preempts, for a job that was requeued, the start of its run.
        fruitless: ``(n,)`` int32, hand-overs for it since it last ran after which it did not start.
        first_run_s: ``(n,)`` start of its first run, or of the first after its service was last
            forgiven, epoch seconds; 0 before any.
    """

    attained_gpu_s: F64  # ``(n,)`` GPU-seconds received so far over all runs
    ran_s: F64  # ``(n,)`` wall seconds run so far over all runs
    forgiven_gpu_s: F64  # ``(n,)`` attained service that a promotion took out of the ranking
    forgiven_ran_s: F64  # ``(n,)`` run time that a promotion took out of the ranking
    first_run_s: F64
    first_submit_s: F64  # ``(n,)`` submit time before any requeue, epoch seconds
    waiting_since_s: F64
    preemptions: I32
    last_preempted_s: F64
    fruitless: I32
    last_fruitless_s: F64  # ``(n,)`` end of the last of those, epoch seconds; 0 if none
    site_factor: I64  # ``(n,)`` int64, the SiteFactor last written; 0 if none
    tier: I16  # ``(n,)`` int16, its tier in the last order; -1 if it is new or that is not kept
    place: F64  # ``(n,)`` its place in the last order; 0 if it is new or that is not kept
    queued_s: F64 = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if not len(self.queued_s):
            object.__setattr__(self, "queued_s", self.first_submit_s)
        lengths = {f.name: len(getattr(self, f.name)) for f in dataclasses.fields(self)}
        if len(set(lengths.values())) > 1:
            msg = f"ledger columns differ in length: {lengths}"
            raise ValueError(msg)
        for name in lengths:
            getattr(self, name).setflags(write=False)
