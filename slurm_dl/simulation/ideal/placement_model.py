"""Ideal clusters whose jobs are anywhere, as in most papers' simulators.

`PlacementModel` is all that the simulation asks; who puts jobs on nodes is `jobs_on_nodes`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.intent import Intent
from slurm_dl.engine.target import NOBODY
from slurm_dl.model.completed_jobs import RunNodes
from slurm_dl.model.contract import Claim
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I16, Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.simulation.ideal.active_jobs import ActiveJobs
from slurm_dl.simulation.outcome import Lay

Rows = npt.NDArray[np.int64]

_NO_SPEEDS: F64 = np.zeros(0)


class PlacementChange(NamedTuple):
    """What a decision amounts to.

    Attributes:
        look_again_s: Seconds after which somebody who waits for a better place may have another.
    """

    stops: Rows  # Rows of running jobs that stop now
    starts: Rows  # Rows of jobs that start now; one that stops, too, is moved
    look_again_s: float


class PlacementModel(Protocol):
    """Where jobs lie and how fast they are there; told of everything that happens."""

    def claims(self) -> Mapping[JobId, Claim]:
        """What the jobs of the trace say of themselves, by row of the trace."""

    def show(self, jobs: ActiveJobs, now_s: float, /) -> None:
        """Put into the columns for policies and schemes what they show of the places."""

    def settle(self, jobs: ActiveJobs, snap: Snapshot, intent: Intent, /) -> PlacementChange:
        """Who stops and who starts, by what the policy wants; changes nothing yet."""

    def enter(self, jobs: ActiveJobs, rows: Rows, /) -> None:
        """These start now, where the last `settle` has put them."""

    def leave(self, jobs: ActiveJobs, rows: Rows, /) -> None:
        """These hold nothing any more; their runs are over, and are booked in this order."""

    def needs_s(self, jobs: ActiveJobs, rows: Rows, /) -> F64:
        """Seconds that what these have left takes them at their present speed."""

    def book(self, jobs: ActiveJobs, rows: Rows, worked_s: F64, /) -> F64:
        """The work, in seconds at full speed, that these have done in so many seconds."""

    def finish(self, jobs: ActiveJobs, rows: Rows, /) -> None:
        """These have done the work that they had left, and hold nothing any more."""

    def changed(self, jobs: ActiveJobs, /) -> tuple[Rows, F64]:
        """Rows of running jobs whose speed is another one by now, and that speed."""

    def losses(self) -> Mapping[str, F64]:
        """``(n,)`` GPU-seconds that the jobs of the trace have lost so, by cause."""

    def lay(self) -> Lay | None:
        """How the jobs lay; None if they were on no nodes."""

    def run_nodes(self) -> RunNodes | None:
        """Which nodes the runs that are over held; None if nobody noted it."""


class Anywhere:
    """GPUs are counted and all alike: whoever is wanted starts, and the rest stops."""

    def claims(self) -> Mapping[JobId, Claim]:
        """See `PlacementModel`: nothing."""
        return {}

    def show(self, jobs: ActiveJobs, now_s: float, /) -> None:
        """See `PlacementModel`: nobody holds nodes."""

    def settle(self, jobs: ActiveJobs, _snap: Snapshot, intent: Intent, /) -> PlacementChange:
        """See `PlacementModel`."""
        wanted = np.zeros(len(jobs), dtype=np.bool_)
        wanted[intent.target] = True
        changes = (wanted != jobs.running).nonzero()[0]
        starts = wanted[changes]
        return PlacementChange(changes[~starts], changes[starts], math.inf)

    def enter(self, jobs: ActiveJobs, rows: Rows, /) -> None:
        """See `PlacementModel`."""

    def leave(self, jobs: ActiveJobs, rows: Rows, /) -> None:
        """See `PlacementModel`."""

    def needs_s(self, jobs: ActiveJobs, rows: Rows, /) -> F64:
        """See `PlacementModel`."""
        needs_s: F64 = jobs.work_s[rows]
        return needs_s

    def book(self, _jobs: ActiveJobs, _rows: Rows, worked_s: F64, /) -> F64:
        """See `PlacementModel`."""
        return worked_s

    def finish(self, jobs: ActiveJobs, rows: Rows, /) -> None:
        """See `PlacementModel`."""

    def changed(self, _jobs: ActiveJobs, /) -> tuple[Rows, F64]:
        """See `PlacementModel`: never."""
        return NOBODY, _NO_SPEEDS

    def losses(self) -> Mapping[str, F64]:
        """See `PlacementModel`: none."""
        return {}

    def lay(self) -> Lay | None:
        """See `PlacementModel`."""
        return None

    def run_nodes(self) -> RunNodes | None:
        """See `PlacementModel`: GPUs are only counted."""
        return None


class AtSpeeds(Anywhere):
    """GPUs are counted, and a job goes on at the speed of what it holds."""

    def needs_s(self, jobs: ActiveJobs, rows: Rows, /) -> F64:
        """See `PlacementModel`."""
        needs_s: F64 = jobs.work_s[rows] / jobs.speed[rows]
        return needs_s

    def book(self, jobs: ActiveJobs, rows: Rows, worked_s: F64, /) -> F64:
        """See `PlacementModel`."""
        work_s: F64 = worked_s * jobs.speed[rows]
        return work_s


def change_to(jobs: ActiveJobs, target: Rows, differs: Bool) -> PlacementChange:
    """The change after which the jobs at *target* run.

    Args:
        differs: ``(n,)`` bool, jobs that hold something else than they are to hold: those that run
            stop, and start again.
    """
    wanted = np.zeros(len(jobs), dtype=np.bool_)
    wanted[target] = True
    moves = jobs.running & wanted & differs
    stops = (jobs.running & (~wanted | moves)).nonzero()[0]
    starts = (wanted & (~jobs.running | moves)).nonzero()[0]
    return PlacementChange(stops, starts, math.inf)


class OnTypes(AtSpeeds):
    """GPUs are counted by type.

    A job that is to run on another type than it does is stopped, and starts there.

    Args:
        rates: ``(N, t)`` speed of each job of the trace on each type; above 0 on one at least.
    """

    def __init__(self, rates: F64) -> None:
        self._rates = rates
        self._kind: I16 = np.zeros(0, dtype=np.int16)

    def settle(self, jobs: ActiveJobs, _snap: Snapshot, intent: Intent, /) -> PlacementChange:
        """See `PlacementModel`."""
        # Of a single type there is nothing to tell.
        alike = np.zeros(len(jobs), dtype=np.int16)
        self._kind = alike if intent.kind is None else intent.kind
        return change_to(jobs, intent.target, self._kind != jobs.on_type)

    def enter(self, jobs: ActiveJobs, rows: Rows, /) -> None:
        """See `PlacementModel`."""
        kind = self._kind[rows]
        jobs.on_type[rows] = kind
        jobs.speed[rows] = self._rates[jobs.job_id[rows], kind]

    def leave(self, jobs: ActiveJobs, rows: Rows, /) -> None:
        """See `PlacementModel`."""
        jobs.speed[rows] = 1.0


class OnSizes(OnTypes):
    """A job that is to have another size, or another type, is stopped, and starts again in it.

    Where the policy tells no types apart jobs are as fast as on any.
    """

    def __init__(self, rates: F64) -> None:
        super().__init__(rates)
        self._gpus: F64 = np.zeros(0)
        self._speed: F64 = np.zeros(0)

    def settle(self, jobs: ActiveJobs, snap: Snapshot, intent: Intent, /) -> PlacementChange:
        """See `PlacementModel`."""
        super().settle(jobs, snap, intent)
        self._gpus, kind, size = intent.gpus(snap).copy(), self._kind, intent.size
        self._speed = np.ones(len(jobs))
        if intent.kind is not None:
            self._speed = self._rates[jobs.job_id, kind]
        if size is not None and snap.sizes is not None:
            rows, on_type = (size >= 0).nonzero()[0], snap.sizes.on_type
            self._speed[rows] = (
                snap.sizes.rate[size[rows]]
                if intent.kind is None or on_type is None
                else on_type[size[rows], kind[rows]]
            )
        differs = (kind != jobs.on_type) | (self._gpus != jobs.gpus)
        return change_to(jobs, intent.target, differs)

    def enter(self, jobs: ActiveJobs, rows: Rows, /) -> None:
        """See `PlacementModel`."""
        super().enter(jobs, rows)
        jobs.gpus[rows], jobs.speed[rows] = self._gpus[rows], self._speed[rows]
