"""A policy against which a short job has no chance: jobs that had most go on."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import About, Order, PolicyDefaults, one_tier


@dataclass(frozen=True, slots=True, kw_only=True)
class MostFirst(PolicyDefaults):
    """Attained service, the largest first."""

    name = "most_first"
    source = "a test"
    about = About(row="", level="W3", formula="attained service, largest first")

    def order(self, snap: Snapshot, /) -> Order:
        """See `Policy`."""
        return one_tier(-snap.memory.attained_gpu_s)
