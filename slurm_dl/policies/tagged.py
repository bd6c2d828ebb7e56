"""Shortest job first, as far as recurrent jobs tell: who was short is expected to be short again.

Most jobs of a site were run before: the same script with the same arguments. Such jobs carry one
tag, and what the tag's jobs took is what the next is expected to take:

    rank = median duration of the jobs with the job's tag, smallest first.

The tag is what dlsubmit writes into the job's comment; see `similar_jobs.tagged_s`.

Source: Weng et al., "MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale
Heterogeneous GPU Clusters", NSDI 2022, section 5 (recurring tasks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from slurm_dl.estimates.similar_jobs import Average, asked, tagged_s
from slurm_dl.model.parameter_bounds import Bound
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.supply_and_demand import contenders
from slurm_dl.policies.base import About, Order, PolicyDefaults, one_tier

_Average = Annotated[
    Average, Bound("median or mean", lambda a: a in {"median", "mean"}, " (got {value!r})")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged(PolicyDefaults):
    """Shortest predicted duration first.

    Attributes:
        average: The average of the durations of a tag that is the prediction.
    """

    name = "tagged"
    source = "Alibaba PAI (MLaaS in the Wild), NSDI 2022, section 5"
    about = About(
        row="A24",
        level="W3",
        formula="rank = median duration of jobs with the same tag, smallest first",
        needs=("history",),
        fallback=(
            "without a job of its tag: mean of the user; without one of the user: mean of all; "
            "without any finished job: the time limit"
        ),
        starves=(
            "a job expected to be long, or one that asks for many GPUs, while shorter or smaller "
            "ones come"
        ),
        trusts=("the job's name and tag",),
    )
    interpretation = (
        "A tag is a hash of script and arguments, as in the paper, together with user and number "
        "of GPUs. Where a job or the past has none, the job's name stands in its place. "
        "Reserved nodes and packing are left to the placement."
    )
    preempts = "never"

    average: _Average = "median"

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        rows = contenders(snap).nonzero()[0]
        key = np.full(len(snap.jobs), np.inf)
        if len(snap.past):
            key[rows] = tagged_s(snap.past, asked(snap, rows), self.average).seconds
        else:
            key[rows] = snap.jobs.limit_s[rows]
        return one_tier(key)
