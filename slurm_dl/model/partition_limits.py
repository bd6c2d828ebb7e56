"""What a partition asks of its jobs: whether, for how long and in which turn they run in it."""

from __future__ import annotations

from dataclasses import dataclass


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
