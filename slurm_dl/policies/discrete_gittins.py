"""Tiresias' discretised two-dimensional Gittins index: queues by service, the index inside them.

The queues are those of `discrete_las`. A job may be served until it sinks, so that is the stretch
over which its chance of finishing is taken: with attained service a, sizes S, and D what is left of
its queue,

    G(a) = P(S - a <= D | S > a) / E[min(S - a, D) | S > a],

and inside a queue the largest index goes first. In the last queue D has no end: there G is one over
the mean of what is left. Beyond the largest size G is 0. What runs keeps its GPUs against others of
its own queue, so the index decides who is started, and nobody swaps because it moves.

Source: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019,
section 3.2 (two-dimensional Gittins index, priority discretisation).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from slurm_dl.model.jobs import F64
from slurm_dl.model.parameter_bounds import Sizes
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import About, Order
from slurm_dl.policies.discrete_las import DiscreteLas, edges_of
from slurm_dl.policies.gittins import past_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGittins(DiscreteLas):
    """K queues by attained GPU-seconds, the largest Gittins index first inside each.

    Attributes:
        dimensions: 2: service is GPUs x seconds. 1: service, thresholds and sizes are in seconds.
        sizes_gpu_s: Sizes of finished jobs, GPU-seconds, each above 0: the distribution. Empty: the
            sizes of the finished jobs, once there are 30 of them; until then the order inside a
            queue is that of `discrete_las`.
    """

    name = "discrete_gittins"
    source = "Tiresias, NSDI 2019, section 3.2 (2D-Gittins, discretised)"
    about = About(
        row="A1",
        level="W3",
        formula=(
            "queue k: q_k <= attained GPU-seconds < q_(k+1); inside it the largest "
            "G = P(S-a <= D | S > a) / E[min(S-a, D) | S > a] first, D = q_(k+1) - a"
        ),
        needs=("history",),
        fallback="with fewer than 30 finished jobs, and no sizes given: discrete_las",
        starves=(
            "jobs of the last queue, and in a queue those with the least index, while new ones "
            "come, unless promote_knob is above 0; a job that asks for many GPUs, while smaller "
            "ones come"
        ),
    )
    interpretation = (
        "D is the rest of the queue, without end in the last one. The age is subtracted from the "
        "sizes in the expected service. A running job is not stopped for a job of its own queue. "
        "After a promotion a counts from there. Of equal indices the first eligible is first. "
        "Of many finished jobs, evenly spaced quantiles are used. The default thresholds are those "
        "of the paper's public simulator."
    )

    sizes_gpu_s: Sizes = ()

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        order = DiscreteLas.order(self, snap)
        sizes = self.sizes_gpu_s or past_sizes(snap.past, self.dimensions)
        if not sizes:
            return order
        kept = snap.kept(self.dimensions)
        had = np.where(order.promote, 0.0, self.service(snap) - kept)
        stretch = edges_of(self.thresholds_gpu_s)[order.tier] - had
        cost = cost_within(np.sort(np.array(sizes, dtype=np.float64)), had, stretch)
        # What is kept is no age: a job could choose one at which the index is large.
        return dataclasses.replace(order, key=np.maximum(cost, kept))


def cost_within(sizes: F64, ages: F64, stretch: F64) -> F64:
    """``(n,)`` 1 / G: expected service for one job to finish within a stretch; inf if none does.

    Args:
        sizes: ``(k,)`` increasing, above 0.
        ages: ``(n,)`` attained service, finite.
        stretch: ``(n,)`` D, above 0; inf: however long it takes.
    """
    k = len(sizes)
    first = sizes.searchsorted(ages, side="right")
    last = np.maximum(sizes.searchsorted(ages + stretch, side="right"), first)
    done = last - first
    upto = np.append(0.0, sizes.cumsum())
    cut_off = np.multiply(stretch, k - last, out=np.zeros(len(ages)), where=last < k)
    spent = upto[last] - upto[first] - done * ages + cut_off
    cost: F64 = np.divide(spent, done, out=np.full(len(ages), np.inf), where=done > 0)
    return cost
