"""Jobs that change size on the ideal cluster: GPUs are counted, and speed goes by their number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.intent import Intent
from slurm_dl.model.jobs import F64
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.simulation.ideal.active_jobs import ActiveJobs
from slurm_dl.simulation.ideal.placement_model import AtSpeeds, PlacementChange, change_to

Rows = npt.NDArray[np.int64]


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
