"""Jobs that are over, as policies learn from them (`Past`) and as reports read them (`Records`).

On a cluster both come from Slurm's accounting, in a simulation from the simulation itself; a policy
sees no difference. `Records` come out of a demo, too, and all figures of a report from these alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I32, I64, Bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Past:
    """Jobs that are over, in the order in which they ended, as columns of length k."""

    account: I32  # ``(k,)`` int32, index into `accounts`
    user: I32  # ``(k,)`` int32, index into `users`
    name: I32  # ``(k,)`` int32, index into `names`; what `JobText.name` said
    gpus: F64  # ``(k,)`` GPUs each held
    submit_s: F64  # ``(k,)`` first submission, epoch seconds
    start_s: F64  # ``(k,)`` first start, epoch seconds
    end_s: F64  # ``(k,)`` end of the last run, epoch seconds, not decreasing
    ran_s: F64  # ``(k,)`` seconds over all runs, above 0
    accounts: tuple[str, ...]  # Names of accounts
    users: tuple[str, ...]  # Names of users
    names: tuple[str, ...]  # Names of jobs
    tag: I32 = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    """``(k,)`` int32, index into `tags`; not given: no job has one."""
    tags: tuple[str, ...] = ("",)  # Tags (`Claim.tag`), empty for those without

    def __post_init__(self) -> None:
        if not len(self.tag):
            object.__setattr__(self, "tag", np.zeros(len(self.gpus), dtype=np.int32))
        columns = {
            f.name: column
            for f in dataclasses.fields(self)
            if isinstance(column := getattr(self, f.name), np.ndarray)
        }
        if len({len(column) for column in columns.values()}) > 1:
            lengths = {name: len(column) for name, column in columns.items()}
            msg = f"columns of the past differ in length: {lengths}"
            raise ValueError(msg)
        for column in columns.values():
            column.setflags(write=False)

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def size_gpu_s(self) -> F64:
        """``(k,)`` GPU-seconds of each."""
        return self.gpus * self.ran_s

    def since(self, when_s: float) -> Past:
        """Those that ended at *when_s* or later; the name tables stay as they are."""
        return self.part(slice(int(self.end_s.searchsorted(when_s)), None))

    def until(self, when_s: float) -> Past:
        """Those that had ended by *when_s*; the name tables stay as they are."""
        return self.part(slice(0, int(self.end_s.searchsorted(when_s, side="right"))))

    def then(self, later: Past) -> Past:
        """These jobs and *later* ones, of which the name tables are taken."""
        columns: dict[str, Any] = {
            f.name: np.concatenate([ours, getattr(later, f.name)])
            for f in dataclasses.fields(self)
            if isinstance(ours := getattr(self, f.name), np.ndarray)
        }
        return dataclasses.replace(later, **columns)

    def part(self, rows: slice | I64) -> Past:
        """Those at *rows*; the name tables stay as they are."""
        return dataclasses.replace(
            self,
            account=self.account[rows],
            user=self.user[rows],
            name=self.name[rows],
            gpus=self.gpus[rows],
            submit_s=self.submit_s[rows],
            start_s=self.start_s[rows],
            end_s=self.end_s[rows],
            ran_s=self.ran_s[rows],
            tag=self.tag[rows],
        )


_NOBODY = np.zeros(0, dtype=np.int32)
_NOTHING = np.zeros(0)

NO_PAST = Past(
    account=_NOBODY,
    user=_NOBODY,
    name=_NOBODY,
    gpus=_NOTHING,
    submit_s=_NOTHING,
    start_s=_NOTHING,
    end_s=_NOTHING,
    ran_s=_NOTHING,
    accounts=(),
    users=(),
    names=(),
)
"""Nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What a job's life looked like once it was over: one row of `Records`."""

    job_id: JobId
    user: str
    gpus: float  # GPUs it held while it ran
    submit_s: float  # First submission, epoch seconds
    start_s: float  # First start, epoch seconds
    end_s: float  # End of the last run, epoch seconds
    service_gpu_s: float  # GPU-seconds over all its runs
    lost_gpu_s: float = 0.0  # Of those, GPU-seconds whose work did not survive a preemption
    preemptions: int = 0  # How often it was put back into the queue
    completed: bool = True  # It ended with success

    @property
    def jct_s(self) -> float:
        """Job completion time: from first submission to the end, seconds."""
        return self.end_s - self.submit_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunNodes:
    """On which nodes runs were, h rows: one for each node of each run, by run."""

    run: I32  # ``(h,)`` int32, row in `Runs`, not decreasing; one that is missing was on no node
    node: I32  # ``(h,)`` int32, index of the node in the cluster
    gpus: F64  # ``(h,)`` GPUs held there, above 0

    def __post_init__(self) -> None:
        _sealed("nodes of runs", {f.name: getattr(self, f.name) for f in fields(self)})

    def __len__(self) -> int:
        return len(self.run)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """Every run of every job, k rows in the order in which the runs ended.

    Attributes:
        nodes: On which nodes; None where nobody noted it, or GPUs were only counted.
    """

    job: I32  # ``(k,)`` int32, row in `Records`
    start_s: F64  # ``(k,)`` seconds
    end_s: F64  # ``(k,)`` seconds
    gpus: F64  # ``(k,)`` GPUs held
    nodes: RunNodes | None = None

    def __post_init__(self) -> None:
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "nodes"}
        _sealed("runs", columns)

    @classmethod
    def empty(cls) -> Self:
        """No run at all."""
        none = np.zeros(0)
        return cls(job=np.zeros(0, dtype=np.int32), start_s=none, end_s=none, gpus=none)

    def __len__(self) -> int:
        return len(self.job)

    def stretches(self) -> tuple[I32, F64, F64]:
        """When jobs ran at all: runs of a job that overlap or follow at once are one stretch.

        The parts of a heterogeneous job have a run each.

        Returns:
            The jobs, not decreasing, and the beginnings and ends of their stretches, seconds.
        """
        job = np.concatenate([self.job, self.job])
        at_s = np.concatenate([self.start_s, self.end_s])
        change = np.repeat(np.array([1, -1]), len(self))
        # What begins as another ends goes on: beginnings come first.
        order = np.lexsort((-change, at_s, job))
        job, at_s, change = job[order], at_s[order], change[order]
        # Each job comes back to 0, so one sum counts for all.
        running = np.cumsum(change)
        begins = (running == 1) & (change > 0)
        return job[begins], at_s[begins], at_s[running == 0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Records:
    """Jobs that were submitted and what became of them, n rows in the order of submission.

    A job that did not finish has ``end_s`` NaN; one that never started has ``start_s`` NaN.

    Attributes:
        lost_gpu_s: By cause, ``(n,)`` GPU-seconds of the service that were no progress: say
            ``restart`` (start and restore), ``redone`` (work done again), ``stopping``.
    """

    job_id: tuple[str, ...]  # Ids as people know them
    user: I32  # ``(n,)`` int32, index into `users`
    users: tuple[str, ...]  # Names
    gpus: F64  # ``(n,)`` GPUs each holds while it runs
    submit_s: F64  # ``(n,)`` first submission, seconds
    start_s: F64  # ``(n,)`` first start, seconds
    end_s: F64  # ``(n,)`` end of the last run, seconds
    alone_s: F64  # ``(n,)`` how long it would take alone on the cluster, seconds; NaN if unknown
    service_gpu_s: F64  # ``(n,)`` GPU-seconds held over all runs
    lost_gpu_s: dict[str, F64] = field(default_factory=dict)
    preemptions: I32  # ``(n,)`` int32, how often it was stopped before it was done
    promotions: I32  # ``(n,)`` int32, how often its service was forgiven
    success: Bool  # ``(n,)`` bool, it finished, and with success
    runs: Runs = field(default_factory=Runs.empty)  # All runs; empty where they are not known

    def __post_init__(self) -> None:
        columns = {
            f.name: column
            for f in fields(self)
            if isinstance(column := getattr(self, f.name), np.ndarray)
        }
        lost = {f"lost_gpu_s[{cause}]": column for cause, column in self.lost_gpu_s.items()}
        _sealed("records", {"job_id": self.job_id, **columns, **lost})

    def __len__(self) -> int:
        return len(self.job_id)

    @property
    def finished(self) -> Bool:
        """``(n,)`` bool: the job came to an end, whichever."""
        return ~np.isnan(self.end_s)

    @property
    def jct_s(self) -> F64:
        """``(n,)`` job completion time, first submission to the last end, seconds; NaN if none."""
        return self.end_s - self.submit_s

    @property
    def wait_s(self) -> F64:
        """``(n,)`` from the first submission to the first start, seconds; NaN if none."""
        return self.start_s - self.submit_s

    @property
    def running_s(self) -> F64:
        """``(n,)`` seconds in which it held GPUs, all runs together; at once counts once.

        Where the runs are not known it is service / GPUs, and NaN for a job without GPUs.
        """
        if len(self.runs):
            job, begun_s, left_s = self.runs.stretches()
            running_s = np.zeros(len(self))
            np.add.at(running_s, job, left_s - begun_s)
            return running_s
        known = self.gpus > 0
        return np.where(known, self.service_gpu_s / np.where(known, self.gpus, 1.0), np.nan)

    @property
    def queue_s(self) -> F64:
        """``(n,)`` JCT less the time running: all its waiting, seconds; NaN if not finished."""
        # Times that were added up may differ from one difference in the last digit.
        return np.maximum(self.jct_s - self.running_s, 0.0)

    @property
    def slowdown(self) -> F64:
        """``(n,)`` JCT / time alone on the cluster; NaN if not finished or not known."""
        known = self.alone_s > 0
        return np.where(known, self.jct_s / np.where(known, self.alone_s, 1.0), np.nan)

    @property
    def all_lost_gpu_s(self) -> F64:
        """``(n,)`` GPU-seconds lost, all causes together."""
        lost = np.zeros(len(self))
        for column in self.lost_gpu_s.values():
            lost += column
        return lost

    @classmethod
    def of(cls, rows: Sequence[JobRecord]) -> Self:
        """Columns of *rows*, in their order; their runs and what they are alone are not known."""
        index: dict[str, int] = {}
        user = [index.setdefault(r.user, len(index)) for r in rows]

        def floats(values: list[float]) -> F64:
            return np.array(values, dtype=np.float64)

        return cls(
            job_id=tuple(str(r.job_id) for r in rows),
            user=np.array(user, dtype=np.int32),
            users=tuple(index),
            gpus=floats([r.gpus for r in rows]),
            submit_s=floats([r.submit_s for r in rows]),
            start_s=floats([r.start_s for r in rows]),
            end_s=floats([r.end_s for r in rows]),
            alone_s=np.full(len(rows), np.nan),
            service_gpu_s=floats([r.service_gpu_s for r in rows]),
            lost_gpu_s={"preemption": floats([r.lost_gpu_s for r in rows])},
            preemptions=np.array([r.preemptions for r in rows], dtype=np.int32),
            promotions=np.zeros(len(rows), dtype=np.int32),
            success=np.array([r.completed for r in rows], dtype=np.bool_),
        )


def _sealed(what: str, columns: Mapping[str, Sequence[str] | npt.NDArray[Any]]) -> None:
    """Make the columns read-only; ValueError if they differ in length."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        msg = f"columns of {what} differ in length: {lengths}"
        raise ValueError(msg)
    for column in columns.values():
        if isinstance(column, np.ndarray):
            column.setflags(write=False)
