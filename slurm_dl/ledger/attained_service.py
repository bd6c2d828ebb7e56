"""Attained service: what each job has received over all its runs, folded out of observations.

Slurm forgets it: a requeue clears start and end times and overwrites the submit time. So each
observation is folded into columns of our own, and only what was really allocated counts: the time
between two observations with the GPUs then held, the part before the first observation from
Slurm's start time, the part after the last one from Slurm's end or requeue time.

The columns are here, sorted by job id; how an observation is booked in them is in
`apply_observation`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I32, I64, Bool, Jobs, JobState, Remembered, is_in

Column = npt.NDArray[Any]

HOLDS = (JobState.RUNNING, JobState.SUSPENDED)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttainedService:
    """The ledger's columns, k rows sorted by job id.

    Attributes:
        queued_s: ``(k,)`` see `Remembered`; 0 while something else than room keeps a job from its
            first run.
        last_answer: ``(k,)`` when we last preempted it: 1 it acknowledged, -1 it did not; 0 if we
            never did, or nobody wrote it down.
        run_terms: ``(k,)`` the `Contract.terms` that hold for the run under way; of a waiting job
            those of its comment. 0 without a contract, or if Slurm could not requeue it then.
        incomplete: ``(k,)`` bool, it ran unseen: it has had at least what is counted here. Set
            until accounting tells the rest.
    """

    job_id: I64  # ``(k,)`` ids, strictly increasing
    first_submit_s: F64  # ``(k,)`` submit time before any requeue, epoch seconds
    restarts: I32  # ``(k,)`` restart count when last seen
    run_start_s: F64  # ``(k,)`` start of the run under way, epoch seconds; 0 if none
    counted_to_s: F64  # ``(k,)`` the run under way is accounted for up to here, epoch seconds
    run_gpus: F64  # ``(k,)`` GPUs it held when last seen
    run_gpu_s: F64  # ``(k,)`` GPU-seconds of the run under way so far
    attained_gpu_s: F64  # ``(k,)`` GPU-seconds over all runs, the one under way included
    ran_s: F64  # ``(k,)`` seconds over all runs, the one under way included
    forgiven_gpu_s: F64  # ``(k,)`` see `Remembered`
    forgiven_ran_s: F64  # ``(k,)`` see `Remembered`
    first_run_s: F64  # ``(k,)`` see `Remembered`
    waiting_since_s: F64  # ``(k,)`` see `Remembered`
    queued_s: F64
    preemptions: I32  # ``(k,)`` see `Remembered`
    last_preempted_s: F64  # ``(k,)`` see `Remembered`
    last_answer: I32
    fruitless: I32  # ``(k,)`` see `Remembered`
    last_fruitless_s: F64  # ``(k,)`` see `Remembered`
    site_factor: I64  # ``(k,)`` see `Remembered`
    run_terms: I32
    run_grace_s: F64  # ``(k,)`` grace of that contract, seconds
    run_until: F64  # ``(k,)`` the `Claim.until` of that run; 0 if it has none
    last_seen_s: F64  # ``(k,)`` when Slurm last listed it, epoch seconds
    over: Bool  # ``(k,)`` bool, it has finished
    incomplete: Bool

    def __len__(self) -> int:
        return len(self.job_id)

    @classmethod
    def empty(cls) -> Self:
        """A ledger that knows no job."""
        return cls(**{name: np.zeros(0, dtype=dt) for name, dt in DTYPES.items()})

    def columns(self) -> dict[str, Column]:
        """Every column by name."""
        return {name: getattr(self, name) for name in DTYPES}

    def take(self, rows: npt.NDArray[np.int64] | Bool) -> Self:
        """The jobs at *rows*, as columns of their own."""
        return type(self)(**{name: column[rows] for name, column in self.columns().items()})

    def rows_of(self, job_id: I64) -> npt.NDArray[np.int64]:
        """Row of each id; every id must be known."""
        return np.searchsorted(self.job_id, job_id)


DTYPES: dict[str, type[np.generic]] = {
    f.name: {"I64": np.int64, "I32": np.int32, "F64": np.float64, "Bool": np.bool_}[str(f.type)]
    for f in dataclasses.fields(AttainedService)
}
"""Column names and their NumPy types."""

_REMEMBERED = tuple(f.name for f in dataclasses.fields(Remembered) if f.name in DTYPES)


def answers_of(service: AttainedService) -> dict[JobId, bool]:
    """Of the jobs that we have preempted, whether each acknowledged when we last did."""
    told = service.last_answer != 0
    ids, acked = service.job_id[told].tolist(), (service.last_answer[told] > 0).tolist()
    return dict(zip(map(JobId, ids), acked, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """One run of a job that is over, as the ledger booked it."""

    job_id: int
    start_s: float
    end_s: float
    gpu_s: float


def remembered(service: AttainedService, jobs: Jobs) -> Remembered:
    """The ledger's columns laid beside *jobs*, which may hold jobs the ledger does not know.

    Places in earlier orders are not kept.
    """
    known = is_in(jobs.job_id, service.job_id)
    at = service.rows_of(jobs.job_id[known])
    out: dict[str, Column] = {name: getattr(service, name)[at] for name in _REMEMBERED}
    if not known.all():
        for name, column in out.items():
            out[name] = np.zeros(len(jobs), dtype=DTYPES[name])
            out[name][known] = column
        for name in ("first_submit_s", "waiting_since_s", "queued_s"):
            out[name][~known] = jobs.submit_s[~known]
    out["tier"] = np.full(len(jobs), -1, dtype=np.int16)
    out["place"] = np.zeros(len(jobs))
    return Remembered(**out)
