"""Finished jobs, as reports read them: metrics come from these alone.

The same columns come out of a simulation, of a site's accounting and of a demo.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I32, Bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What a job's life looked like once it was over: one row of `Records`.

    Attributes:
        gpus: GPUs it held while it ran.
        submit_s: First submission, epoch seconds.
        start_s: First start, epoch seconds.
        end_s: End of the last run, epoch seconds.
        service_gpu_s: GPU-seconds over all its runs.
        lost_gpu_s: Of those, GPU-seconds whose work did not survive a preemption.
        preemptions: How often it was put back into the queue.
        completed: It ended with success.
    """

    job_id: JobId
    user: str
    gpus: float
    submit_s: float
    start_s: float
    end_s: float
    service_gpu_s: float
    lost_gpu_s: float = 0.0
    preemptions: int = 0
    completed: bool = True

    @property
    def jct_s(self) -> float:
        """Job completion time: from first submission to the end, seconds."""
        return self.end_s - self.submit_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """Every run of every job, k rows in the order in which the runs ended.

    Attributes:
        job: ``(k,)`` int32, row in `Records`.
        start_s: ``(k,)`` seconds.
        end_s: ``(k,)`` seconds.
        gpus: ``(k,)`` GPUs held.
    """

    job: I32
    start_s: F64
    end_s: F64
    gpus: F64

    @classmethod
    def empty(cls) -> Self:
        """No run at all."""
        none = np.zeros(0)
        return cls(job=np.zeros(0, dtype=np.int32), start_s=none, end_s=none, gpus=none)

    def __len__(self) -> int:
        return len(self.job)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Records:
    """Jobs that were submitted and what became of them, n rows in the order of submission.

    A job that did not finish has ``end_s`` NaN; one that never started has ``start_s`` NaN.

    Attributes:
        job_id: Ids as people know them.
        user: ``(n,)`` int32, index into `users`.
        users: Names.
        gpus: ``(n,)`` GPUs each holds while it runs.
        submit_s: ``(n,)`` first submission, seconds.
        start_s: ``(n,)`` first start, seconds.
        end_s: ``(n,)`` end of the last run, seconds.
        alone_s: ``(n,)`` how long it would take alone on the cluster, seconds; NaN if unknown.
        service_gpu_s: ``(n,)`` GPU-seconds held over all runs.
        lost_gpu_s: By cause, ``(n,)`` GPU-seconds of the service that were no progress: say
            ``restart`` (start and restore), ``redone`` (work done again), ``stopping``.
        preemptions: ``(n,)`` int32, how often it was stopped before it was done.
        promotions: ``(n,)`` int32, how often its service was forgiven.
        success: ``(n,)`` bool, it finished, and with success.
        runs: All runs; empty where they are not known.
    """

    job_id: tuple[str, ...]
    user: I32
    users: tuple[str, ...]
    gpus: F64
    submit_s: F64
    start_s: F64
    end_s: F64
    alone_s: F64
    service_gpu_s: F64
    lost_gpu_s: dict[str, F64] = field(default_factory=dict)
    preemptions: I32
    promotions: I32
    success: Bool
    runs: Runs = field(default_factory=Runs.empty)

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
    def all_lost_gpu_s(self) -> F64:
        """``(n,)`` GPU-seconds lost, all causes together."""
        return np.sum([*self.lost_gpu_s.values(), np.zeros(len(self))], axis=0)

    @classmethod
    def of(cls, rows: Sequence[JobRecord]) -> Self:
        """Columns of *rows*, in their order; their runs and what they are alone are not known."""
        users = tuple(dict.fromkeys(r.user for r in rows))
        columns = {
            f.name: np.array([getattr(r, f.name) for r in rows], dtype=np.float64)
            for f in dataclasses.fields(JobRecord)
            if f.name in {"gpus", "submit_s", "start_s", "end_s", "service_gpu_s"}
        }
        return cls(
            job_id=tuple(str(r.job_id) for r in rows),
            user=np.array([users.index(r.user) for r in rows], dtype=np.int32),
            users=users,
            alone_s=np.full(len(rows), np.nan),
            lost_gpu_s={"preemption": np.array([r.lost_gpu_s for r in rows], dtype=np.float64)},
            preemptions=np.array([r.preemptions for r in rows], dtype=np.int32),
            promotions=np.zeros(len(rows), dtype=np.int32),
            success=np.array([r.completed for r in rows], dtype=np.bool_),
            **columns,
        )
