"""Last come, first served: a fixed order that no published policy has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Order, one_tier
from slurm_dl.policies.fifo import FifoSkip


@dataclass(frozen=True, slots=True, kw_only=True)
class LastFirst(FifoSkip):
    """The job with the highest id first: ids tell apart what came in one second."""

    name: ClassVar[str] = "last_first"

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        return one_tier(-snap.jobs.job_id.astype(float))
