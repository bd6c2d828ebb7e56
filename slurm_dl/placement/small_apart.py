"""Small jobs go to nodes of their own, so that they are not in the way of larger ones.

A small job goes where only small jobs are, or, if it fits nowhere there, to an empty node, before
it joins a larger job; a larger one avoids the nodes of small ones.

Source: Gandiva, OSDI 2018, Algorithm 1 (nodes have an affinity to jobs of one size); Jeon et al.
(Philly), ATC 2019, section 5 (small jobs are kept off the servers of larger ones).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from slurm_dl.model.jobs import Bool
from slurm_dl.model.parameter_bounds import Bounded, Positive
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.pending_job import PendingJob
from slurm_dl.placement.resource_request import Ask


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallApart(Bounded):
    """Jobs of few GPUs and larger ones are kept apart, as long as both fit.

    Attributes:
        small_gpus: A job of this many GPUs in all, or fewer, is small.
    """

    name: ClassVar[str] = "small_apart"
    source: ClassVar[str] = "Gandiva, OSDI 2018, Algorithm 1; Philly, ATC 2019, section 5"
    interpretation: ClassVar[str] = (
        "There are two classes of jobs, small and larger; Gandiva has one for each number of "
        "GPUs. Jobs without GPUs do not count."
    )
    strict: ClassVar[bool] = False

    small_gpus: Positive = 1.0

    def allows(self, want: PendingJob, ask: Ask, stock: FreeNodes, /) -> Bool:
        """See `Rule`."""
        if want.gpus > self.small_gpus:
            apart: Bool = stock.least_gpus > self.small_gpus
            return apart
        most = stock.most_gpus
        among: Bool = (most > 0) & (most <= self.small_gpus)
        fits, count = stock.room(want.need, ask)
        if int(count[fits & among].sum()) >= ask.n_nodes:
            return among
        either: Bool = most <= self.small_gpus
        return either
