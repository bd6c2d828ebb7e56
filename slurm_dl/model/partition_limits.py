"""Limits of a partition: whether and for how long a job of so many nodes may run in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLimits:
    """What a partition asks of its jobs.

    Attributes:
        starts: It starts jobs: it is neither DOWN nor INACTIVE.
        max_time_s: Longest time limit, seconds; inf if there is none.
        min_nodes: Fewest nodes of a job.
        max_nodes: Most nodes of a job; inf if there is no limit.
        max_cpus_per_node: CPUs that its jobs may hold of a node; inf if there is no limit.
    """

    starts: bool = True
    max_time_s: float = float("inf")
    min_nodes: int = 0
    max_nodes: float = float("inf")
    max_cpus_per_node: float = float("inf")
