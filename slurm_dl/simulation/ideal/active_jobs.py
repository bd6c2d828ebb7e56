"""The jobs that have arrived and are not done, as columns that a snapshot can look at.

A decision costs what these jobs cost: those that are done are dropped now and then, those to come
are not here yet. Rows stand in the order of submission.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from slurm_dl.model.booking import Entry
from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.contract import Claim
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, F64, Bool, Jobs, Remembered
from slurm_dl.model.nodes import Allocations
from slurm_dl.model.snapshot import JobText, Observed, Snapshot
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.cluster_shape import ClusterShape
from slurm_dl.simulation.job_knowledge import NOTHING, TraceKnowledge, TraceTexts

Rows = npt.NDArray[np.int64]
T = TypeVar("T", Jobs, Remembered)

_LIVE: dict[str, npt.DTypeLike] = {
    # What policies see: columns of Jobs, Remembered and Snapshot.
    "job_id": np.int64,
    "state": np.int8,
    "uid": np.int64,
    "gpus": np.float64,
    "submit_s": np.float64,
    "start_s": np.float64,
    "restarts": np.int32,
    "attained_gpu_s": np.float64,
    "ran_s": np.float64,
    "forgiven_gpu_s": np.float64,
    "forgiven_ran_s": np.float64,
    "first_run_s": np.float64,
    "waiting_since_s": np.float64,
    "tier": np.int16,
    "place": np.float64,
    "left_s": np.float64,
    "progress": np.float64,
    "on_type": np.int16,
    # What only the simulation knows.
    "done_s": np.float64,
    "running": np.bool_,
    "ran_before_s": np.float64,
    "had_before_gpu_s": np.float64,
    "work_s": np.float64,
    "lag_s": np.float64,
    "since_s": np.float64,
    "speed": np.float64,
}

_BY_TYPE = ("credit_s", "share", "rates")
"""Columns with a value for each GPU type; *share* is what the last decision gave."""

_SAME: dict[str, tuple[npt.DTypeLike, float]] = {
    "held": (np.int8, 0),
    "partition": (np.int16, 0),
    "tasks": (np.int32, 1),
    "n_nodes": (np.int32, 1),
    "gpu_type": (np.int16, -1),
    "cpus": (np.int32, 1),
    "mem_mb": (np.int64, 0),
    "end_s": (np.float64, 0),
    "limit_s": (np.float64, np.inf),
    "priority": (np.int64, 1),
    "requeueable": (np.bool_, 1),
    "exclusive": (np.bool_, 0),
    "last_preempted_s": (np.float64, 0),
    "fruitless": (np.int32, 0),
    "last_fruitless_s": (np.float64, 0),
    "site_factor": (np.int64, 0),
}
"""Columns in which all jobs are alike here."""

_ELSEWHERE = {"first_submit_s": "submit_s", "queued_s": "submit_s", "preemptions": "restarts"}
"""Columns that are others by another name here: a stop is a preemption and a restart."""


class ActiveJobs:
    """Columns of the live jobs; see the module.

    Attributes are the columns of `_LIVE`, each ``(n,)`` and writable here; a snapshot's are not.

    Attributes:
        work_s: Seconds of work, at full speed, it had left when its present stretch began.
        since_s: When the stretch began: its start, or the last event that cost it something or
            changed its speed.
    """

    job_id: npt.NDArray[np.int64]
    state: npt.NDArray[np.int8]
    gpus: npt.NDArray[np.float64]  # GPUs it holds, or asks for
    submit_s: npt.NDArray[np.float64]
    start_s: npt.NDArray[np.float64]
    restarts: npt.NDArray[np.int32]
    attained_gpu_s: npt.NDArray[np.float64]
    ran_s: npt.NDArray[np.float64]
    forgiven_gpu_s: npt.NDArray[np.float64]
    forgiven_ran_s: npt.NDArray[np.float64]
    first_run_s: npt.NDArray[np.float64]
    waiting_since_s: npt.NDArray[np.float64]
    tier: npt.NDArray[np.int16]
    place: npt.NDArray[np.float64]
    left_s: npt.NDArray[np.float64]
    progress: npt.NDArray[np.float64]
    on_type: npt.NDArray[np.int16]
    credit_s: npt.NDArray[np.float64]
    share: npt.NDArray[np.float64]
    rates: npt.NDArray[np.float64]
    done_s: npt.NDArray[np.float64]  # When a running job will be done, seconds; inf for others
    running: Bool
    ran_before_s: npt.NDArray[np.float64]  # Seconds it ran before the run under way
    had_before_gpu_s: npt.NDArray[np.float64]  # GPU-seconds it had before that run
    work_s: npt.NDArray[np.float64]
    lag_s: npt.NDArray[np.float64]  # Seconds of that stretch that make no progress
    since_s: npt.NDArray[np.float64]
    speed: npt.NDArray[np.float64]  # Seconds of work it does in a second

    def __init__(
        self,
        trace: Trace,
        shape: ClusterShape,
        submit_s: F64,
        work_s: F64,
        claims: Mapping[JobId, Claim],
        *,
        restart_s: F64,
        known: TraceKnowledge = NOTHING,
    ) -> None:
        self._trace = trace
        self._restart_s = restart_s
        self._known = known
        self._texts: Mapping[JobId, JobText] = TraceTexts(trace) if known.texts else {}
        self._zero_s = -float(trace.submit_s[0]) if len(trace) else 0.0
        self._curves = known.curves_from(self._zero_s)
        self._submit_s = submit_s
        self._trace_work_s = work_s
        self._claims = claims
        self._nodes = shape.nodes()
        self._gpu_types = shape.gpu_types
        self._node_in = np.ones((1, len(self._nodes)), dtype=np.bool_)
        self._managed = np.ones(1, dtype=np.bool_)
        self._held = Allocations(
            job=np.zeros(0, dtype=np.int32),
            node=np.zeros(0, dtype=np.int32),
            gpus=np.zeros(0),
            cpus=np.zeros(0, dtype=np.int32),
            mem_mb=np.zeros(0, dtype=np.int64),
        )
        self._whole: dict[str, npt.NDArray[Any]] = {}
        self._same: dict[str, npt.NDArray[Any]] = {}
        self._locked: dict[str, npt.NDArray[Any]] = {}
        self._past = NO_PAST
        self._booked: tuple[Entry, ...] = ()
        self._n = 0
        self._gone = 0
        self._reserve(64)

    def __len__(self) -> int:
        return self._n

    @property
    def alive(self) -> int:
        """Jobs that are not done."""
        return self._n - self._gone

    def admit(self, first: int, last: int) -> None:
        """Let the jobs at rows *first* to *last* (excluded) of the trace in, waiting."""
        at, n = self._n, self._n + last - first
        if n > len(self._whole["job_id"]):
            self._reserve(2 * n)
        self._n = n
        trace, new = self._trace, slice(at, n)
        whole = self._whole
        whole["job_id"][new] = np.arange(first, last)
        whole["uid"][new] = trace.user[first:last]
        whole["gpus"][new] = trace.gpus[first:last]
        for name in ("submit_s", "waiting_since_s"):
            whole[name][new] = self._submit_s[first:last]
        for name in ("left_s", "work_s"):
            whole[name][new] = self._trace_work_s[first:last]
        whole["speed"][new] = 1.0
        whole["tier"][new] = -1
        whole["done_s"][new] = np.inf
        whole["on_type"][new] = -1
        if self._known.rates is not None:
            whole["rates"][new] = self._known.rates[first:last]
        self._look()

    def remove(self, rows: Rows) -> None:
        """Let go of jobs that are done; their rows are given up later."""
        self.state[rows] = COMPLETED
        self.running[rows] = False
        self.done_s[rows] = np.inf
        self._gone += len(rows)
        if self._gone > max(32, self._n // 4):
            self._drop_gone()
            self._look()

    def snapshot(self, now_s: float) -> Snapshot:
        """The live jobs at *now_s*, without copies: it is good until the next change or call."""
        object.__setattr__(self._snapshot.seen, "now_s", now_s)
        return self._snapshot

    def tell(self, past: Past) -> None:
        """Let the snapshot say what is over, from now on."""
        if past is not self._past:
            self._past = past
            object.__setattr__(self._snapshot, "past", past)

    def remember(self, booked: tuple[Entry, ...]) -> None:
        """Show *booked* in the snapshot from now on."""
        self._booked = booked
        object.__setattr__(self._snapshot, "booked", booked)

    def hold(self, held: Allocations) -> None:
        """Let the snapshot say who holds what, from now on."""
        self._held = held
        object.__setattr__(self._snapshot.seen, "held", held)

    def _reserve(self, size: int) -> None:
        for name, dtype in _LIVE.items():
            column = np.zeros(size, dtype=dtype)
            if name in self._whole:
                column[: self._n] = self._whole[name][: self._n]
            self._whole[name] = column
        for name in _BY_TYPE:
            matrix = np.zeros((size, len(self._gpu_types)))
            if name in self._whole:
                matrix[: self._n] = self._whole[name][: self._n]
            self._whole[name] = matrix
        for name, (dtype, value) in _SAME.items():
            self._same[name] = np.full(size, value, dtype=dtype)
        for name, column in {**self._whole, **self._same}.items():
            self._locked[name] = column.view()
            self._locked[name].setflags(write=False)
        self._look()

    def _drop_gone(self) -> None:
        stay = self.state != COMPLETED
        n = int(stay.sum())
        for column in self._whole.values():
            column[:n] = column[: self._n][stay]
            column[n:] = 0
        self._n, self._gone = n, 0

    def _look(self) -> None:
        """Lay views over the columns as long as there are jobs now."""
        n = self._n
        seen = {}
        for name, column in self._whole.items():
            setattr(self, name, column[:n])
        for name, column in self._locked.items():
            seen[name] = column[:n]
        for name, source in _ELSEWHERE.items():
            seen[name] = seen[source]
        self._snapshot = Snapshot(
            seen=Observed(
                now_s=0.0,
                jobs=_view(Jobs, seen),
                nodes=self._nodes,
                held=self._held,
                partitions=("gpu",),
                gpu_types=self._gpu_types,
                node_in=self._node_in,
                claims=self._claims,
                texts=self._texts,
            ),
            memory=_view(Remembered, seen),
            managed=self._managed,
            left_s=seen["left_s"],
            **self._known.inputs(self.job_id, self._zero_s),
            curves=self._curves,
            progress=seen["progress"],
            on_type=seen["on_type"],
            credit_s=seen["credit_s"],
            past=self._past,
            booked=self._booked,
            setup_s=self._restart_s[self.job_id],
        )


def _view(kind: type[T], columns: dict[str, npt.NDArray[Any]]) -> T:
    """*kind* over *columns* as they are; its own checks would cost more than a decision."""
    view: T = object.__new__(kind)
    for name in kind.__dataclass_fields__:
        object.__setattr__(view, name, columns[name])
    return view
