"""First in, first out: the order every queue has when nobody thinks about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo:
    """Serve jobs in the order of their first submission; nobody is ever preempted."""

    name: ClassVar[str] = "fifo"
    source: ClassVar[str] = "baseline; what Slurm does with priority/basic"
    interpretation: ClassVar[str] = ""

    @property
    def tiers(self) -> int:
        """One: all jobs are alike."""
        return 1

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        n = len(snap.jobs)
        return Order(
            tier=np.zeros(n, dtype=np.int16),
            key=snap.memory.first_submit_s.copy(),
            promote=np.zeros(n, dtype=np.bool_),
            next_change_s=math.inf,
            tiers=self.tiers,
        )
