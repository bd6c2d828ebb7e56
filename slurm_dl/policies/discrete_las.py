"""Tiresias' discretised two-dimensional least-attained service.

A job's service is GPUs x seconds over all its runs. K queues are cut by K-1 thresholds; a job sinks
when its service reaches the next one, and inside a queue the first eligible goes first, so jobs
of one queue never preempt each other. No estimate of any run time is needed.

Source: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019,
section 3.2 (two-dimensional attained service, priority discretisation).
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import F64, NOT_HELD, PENDING, Bool
from slurm_dl.model.parameter_bounds import Bound, NotNegative, above_0
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import About, Order, PolicyDefaults, Preempts

Rows = npt.NDArray[np.int64]


Thresholds = Annotated[
    tuple[float, ...],
    Bound("one or more finite numbers above 0", lambda edges: edges and all(map(above_0, edges))),
    Bound("strictly increasing", lambda edges: all(a < b for a, b in itertools.pairwise(edges))),
]
"""Service that cuts jobs into queues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteLas(PolicyDefaults):
    """K queues by attained GPU-seconds, first eligible first inside each.

    Attributes:
        thresholds_gpu_s: Service at which a job moves to the next queue, GPU-seconds, strictly
            increasing, above 0. K is one more than their number.
        promote_knob: A job that has run returns to the first queue, with its service so far reset,
            once it has waited this many times its run time since the last promotion. 0: no
            promotion.
        dimensions: 2: service is GPUs x seconds. 1: service and thresholds are in seconds.
    """

    name = "discrete_las"
    source = "Tiresias, NSDI 2019, section 3.2 (2D-LAS, discretised)"
    about = About(
        row="A1",
        level="W4",
        formula="queue k: q_k <= attained GPU-seconds < q_(k+1); first eligible first inside it",
        starves=(
            "jobs of the last queue while new ones come, unless promote_knob is above 0; a job "
            "that asks for many GPUs, while smaller ones come"
        ),
    )
    interpretation = (
        "Inside a queue the first eligible comes first; the paper orders by start time. "
        "Waiting for promotion counts from the end of the last run, and only waiting for free "
        "resources counts. The default thresholds are those of the paper's public simulator. Node "
        "selection is not part of this policy."
    )
    preempts: ClassVar[Preempts] = "tier"
    counts_commitment = True

    thresholds_gpu_s: Thresholds = (3250.0, 7200.0, 18000.0)
    promote_knob: NotNegative = 0.0
    dimensions: Literal[1, 2] = 2

    @property
    def tiers(self) -> int:
        """K, the number of queues."""
        return len(self.thresholds_gpu_s) + 1

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        # The queue a job would be in without promotion: service at an edge has sunk below it.
        edges = edges_of(self.thresholds_gpu_s)
        tier = edges.searchsorted(self.service(snap), side="right").astype(np.int16)
        promote = np.zeros(len(tier), dtype=np.bool_)
        if self.promote_knob > 0:
            promote = self._starves_at(snap) <= snap.now_s
            tier[promote] = 0
        return Order(tier=tier, key=snap.memory.queued_s, promote=promote, tiers=self.tiers)

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:
        """The next demotion, or promotion; see `Policy`."""
        rows = running.nonzero()[0]
        change_s = first_to_sink(
            snap,
            left=self.left_in_queue(snap, order, rows),
            rate=self.rate(snap)[rows],
        )
        return min(change_s, self._next_to_starve_s(snap, order, running))

    def service(self, snap: Snapshot) -> F64:
        """``(n,)`` service since the last promotion: GPU-seconds, or seconds in one dimension."""
        memory = snap.memory
        forgiven = memory.forgiven_ran_s if self.dimensions == 1 else memory.forgiven_gpu_s
        return snap.service(self.dimensions) - forgiven

    def left_in_queue(self, snap: Snapshot, order: Order, rows: Rows) -> F64:
        """``(len(rows),)`` service until the jobs at *rows* sink; inf in the last queue."""
        had = self.service(snap)[rows]
        if self.promote_knob > 0:
            had[order.promote[rows]] = 0
        left: F64 = edges_of(self.thresholds_gpu_s)[order.tier[rows]] - had
        return left

    def rate(self, snap: Snapshot) -> F64:
        """``(n,)`` service that a second of running adds."""
        return np.ones(len(snap.jobs)) if self.dimensions == 1 else snap.seen.weighted_gpus()

    def _next_to_starve_s(self, snap: Snapshot, order: Order, running: Bool) -> float:
        """When the next job is promoted, epoch seconds; inf if none is."""
        if self.promote_knob == 0:
            return math.inf
        return float(self._starves_at(snap)[~order.promote & ~running].min(initial=np.inf))

    def _starves_at(self, snap: Snapshot) -> F64:
        """``(n,)`` when each job will have waited too long, epoch seconds; inf if never."""
        jobs, memory = snap.jobs, snap.memory
        executed_s = memory.ran_s - memory.forgiven_ran_s
        may = (jobs.state == PENDING) & (jobs.held == NOT_HELD) & (executed_s > 0)
        may &= snap.managed_jobs
        starves_s: F64 = np.where(
            may, memory.waiting_since_s + self.promote_knob * executed_s, np.inf
        )
        return starves_s


@functools.lru_cache(maxsize=64)
def edges_of(thresholds: tuple[float, ...]) -> F64:
    """``(K,)`` the service at which each queue ends; the last one has no end."""
    edges = np.array([*thresholds, np.inf])
    edges.setflags(write=False)
    return edges


def first_to_sink(snap: Snapshot, *, left: F64, rate: F64) -> float:
    """When the first of some running jobs has received what is *left* of its queue.

    Args:
        rate: Service a second, above 0.
    """
    ahead_s = (left / rate)[left > 0]
    return snap.now_s + float(ahead_s.min(initial=np.inf))
