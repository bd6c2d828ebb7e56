"""Ideal clusters without places, whose jobs are as fast as their type or number of GPUs says."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.intent import Intent
from slurm_dl.model.jobs import F64, I16
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.simulation.ideal.active_jobs import ActiveJobs
from slurm_dl.simulation.ideal.placement_model import AtSpeeds, PlacementChange, change_to

Rows = npt.NDArray[np.int64]


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


class OnSizes(AtSpeeds):
    """A job that is to have another size is stopped, and starts again in it."""

    def __init__(self) -> None:
        self._gpus: F64 = np.zeros(0)
        self._speed: F64 = np.zeros(0)

    def settle(self, jobs: ActiveJobs, snap: Snapshot, intent: Intent, /) -> PlacementChange:
        """See `PlacementModel`."""
        self._gpus, self._speed = intent.gpus(snap).copy(), np.ones(len(jobs))
        if intent.size is not None and snap.sizes is not None:
            rows = (intent.size >= 0).nonzero()[0]
            self._speed[rows] = snap.sizes.rate[intent.size[rows]]
        return change_to(jobs, intent.target, self._gpus != jobs.gpus)

    def enter(self, jobs: ActiveJobs, rows: Rows, /) -> None:
        """See `PlacementModel`."""
        jobs.gpus[rows], jobs.speed[rows] = self._gpus[rows], self._speed[rows]
