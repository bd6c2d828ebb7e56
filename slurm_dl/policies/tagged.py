"""Shortest job first, as far as recurrent jobs tell: who was short is expected to be short again.

Most jobs of a site were run before: the same script with the same arguments. Such jobs carry one
tag, and what the tag's jobs took is what the next is expected to take:

    rank = median duration of the jobs with the job's tag, smallest first.

Source: Weng et al., "MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale
Heterogeneous GPU Clusters", NSDI 2022, section 5 (recurring tasks).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slurm_dl.estimates.similar_jobs import Average, asked, tagged_s
from slurm_dl.model.jobs import Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.demand import contenders
from slurm_dl.policies.base import About, Order, Preempts, one_tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """Shortest predicted duration first.

    Attributes:
        average: The average of the durations of a tag that is the prediction.
    """

    name: ClassVar[str] = "tagged"
    source: ClassVar[str] = "Alibaba PAI (MLaaS in the Wild), NSDI 2022, section 5"
    about: ClassVar[About] = About(
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
        trusts=("the job's name",),
    )
    interpretation: ClassVar[str] = (
        "A tag is user, job name and number of GPUs; the paper hashes script and arguments. "
        "Reserved nodes and packing are left to the placement."
    )
    preempts: ClassVar[Preempts] = "never"
    skips: ClassVar[bool] = True

    average: Average = "median"

    def __post_init__(self) -> None:
        if self.average not in ("median", "mean"):
            msg = f"average must be median or mean (got {self.average!r})"
            raise ValueError(msg)

    @property
    def tiers(self) -> int:
        """One: the rank says it all."""
        return 1

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        rows = contenders(snap).nonzero()[0]
        key = np.full(len(snap.jobs), np.inf)
        if len(snap.past):
            key[rows] = tagged_s(snap.past, asked(snap, rows), self.average).seconds
        else:
            key[rows] = snap.jobs.limit_s[rows]
        return one_tier(key)

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:  # noqa: ARG002
        """Never: predictions change when jobs end; see `Policy`."""
        return math.inf
