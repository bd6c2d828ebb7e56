"""Tiresias' discretised two-dimensional least-attained service.

A job's service is GPUs x seconds over all its runs. K queues are cut by K-1 thresholds; a job sinks
when its service reaches the next one, and inside a queue the earlier submission goes first, so jobs
of one queue never preempt each other. No estimate of any run time is needed.

Source: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019,
section 3.2 (two-dimensional attained service, priority discretisation).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slurm_dl.model.jobs import Held, JobState
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Order


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteLas:
    """K queues by attained GPU-seconds, FIFO by submission inside each.

    Attributes:
        thresholds_gpu_s: Service at which a job sinks into the next queue, GPU-seconds, strictly
            increasing, above 0. K is one more than their number.
        promote_knob: A job that has run is put back into the first queue, its service so far
            forgiven, once it has waited this many times as long as it has run since the last
            promotion. 0 promotes nobody.
    """

    name: ClassVar[str] = "discrete_las"
    source: ClassVar[str] = "Tiresias, NSDI 2019, section 3.2 (2D-LAS, discretised)"
    interpretation: ClassVar[str] = (
        "inside a queue by first submission, where the paper orders by start time; "
        "waiting for promotion counts from the end of the last run, and only waiting for room; "
        "default thresholds are those of the paper's public simulator; "
        "where a job goes is not part of this policy"
    )

    thresholds_gpu_s: tuple[float, ...] = (3250.0, 7200.0, 18000.0)
    promote_knob: float = 0.0

    def __post_init__(self) -> None:
        edges = self.thresholds_gpu_s
        if not edges or not all(math.isfinite(q) and q > 0 for q in edges):
            msg = f"thresholds_gpu_s must be one or more finite numbers above 0 (got {list(edges)})"
            raise ValueError(msg)
        if any(b <= a for a, b in itertools.pairwise(edges)):
            msg = f"thresholds_gpu_s must be strictly increasing (got {list(edges)})"
            raise ValueError(msg)
        if not (math.isfinite(self.promote_knob) and self.promote_knob >= 0):
            msg = f"promote_knob must be a finite number, 0 or more (got {self.promote_knob})"
            raise ValueError(msg)

    @property
    def tiers(self) -> int:
        """K, the number of queues."""
        return len(self.thresholds_gpu_s) + 1

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        jobs, memory = snap.jobs, snap.memory
        edges = np.asarray(self.thresholds_gpu_s, dtype=np.float64)
        service = memory.attained_gpu_s - memory.forgiven_gpu_s
        executed = memory.ran_s - memory.forgiven_ran_s

        # The queue a job would be in without promotion: service >= q_k has sunk below q_k.
        tier = np.searchsorted(edges, service, side="right").astype(np.int16)

        starves_at = np.full(len(jobs), np.inf)
        if self.promote_knob > 0:
            may_starve = (jobs.state == JobState.PENDING) & (jobs.held == Held.NO) & (executed > 0)
            starves_at[may_starve] = (
                memory.waiting_since_s[may_starve] + self.promote_knob * executed[may_starve]
            )
        promote = starves_at <= snap.now_s
        tier[promote] = 0

        sinks_at = np.full(len(jobs), np.inf)
        sinking = snap.is_managed() & (jobs.state == JobState.RUNNING) & (jobs.gpus > 0)
        sinking &= tier < len(edges)
        sinks_at[sinking] = (
            snap.now_s + (edges[tier[sinking]] - service[sinking]) / jobs.gpus[sinking]
        )
        later = np.concatenate([sinks_at, starves_at[~promote]])
        return Order(
            tier=tier,
            key=memory.first_submit_s.copy(),
            promote=promote,
            next_change_s=float(later.min(initial=np.inf)),
            tiers=self.tiers,
        )
