"""Limits: what a partition asks of its jobs, and quotas and licences that jobs share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLimits:
    """What a partition asks of its jobs.

    Attributes:
        max_cpus_per_node: CPUs that its jobs may hold of a node; inf if there is no limit.
        tier: Its PriorityTier: Slurm serves the higher one first, whatever the jobs' priority.
    """

    starts: bool = True  # It starts jobs: it is neither DOWN nor INACTIVE
    max_time_s: float = float("inf")  # Longest time limit, seconds; inf if there is none
    min_nodes: int = 0  # Fewest nodes of a job
    max_nodes: float = float("inf")  # Most nodes of a job; inf if there is no limit
    max_cpus_per_node: float = float("inf")
    is_open: bool = True  # It shuts out no group, account or QOS
    tier: int = 1

    def takes(self, n_nodes: int, limit_s: float) -> bool:
        """Whether it starts jobs of so many nodes and that time limit, seconds."""
        short = limit_s <= self.max_time_s or limit_s == float("inf")
        return self.starts and short and self.min_nodes <= n_nodes <= self.max_nodes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Quotas:
    """The limits that waiting jobs count in.

    Attributes:
        counts: Quotas that a pending or running job counts in, as indices, and its units.
        one_at_a_time: Quotas for limits that are not known: each is one hand-over at a time. What
            Slurm starts without one does not count.
    """

    names: tuple[str, ...]  # Each in words, such as ``QOS games: MaxTRESPU gres/gpu=8``
    most: F64  # ``(q,)`` units that jobs may hold
    used: F64  # ``(q,)`` units that running jobs hold
    counts: Mapping[JobId, tuple[tuple[int, float], ...]]
    one_at_a_time: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.most.setflags(write=False)
        self.used.setflags(write=False)
