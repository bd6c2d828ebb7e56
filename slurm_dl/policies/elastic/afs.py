"""AFS: GPUs one by one to the job that a walk over all pairs of jobs prefers.

Of two jobs a is the one that would end first and b the other, with speeds p now and p' with one GPU
more:

    b gets it iff (p'_b - p_b) / p'_b > (p'_a - p_a) / p_a

That is the exact answer to which of two plans has the smaller sum of both completion times, if no
job comes: a has the GPU until it ends and b after it, or b has it at once. The other GPUs of a are
left out of the comparison, so that b is not kept at one GPU even if speeds are linear.

Source: Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning", NSDI 2021 (AFS-L).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_dl.policies.arithmetic import sizing
from slurm_dl.policies.base import About
from slurm_dl.policies.elastic.sizing_policy import FALLBACK, ONE_POOL, SPEEDS_TOLD, SizingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Afs(SizingPolicy):
    """The next size to the job that gains more by it than another loses, short jobs first."""

    name = "afs"
    source = "AFS, NSDI 2021 (AFS-L, known lengths)"
    about = About(
        row="A9",
        level="W3",
        formula=(
            "jobs without GPUs first, shortest first; then a, which ends before b, unless "
            "(p'_b - p_b) / p'_b > (p'_a - p_a) / p_a"
        ),
        needs=("left_s", "sizes"),
        fallback=FALLBACK,
        trusts=SPEEDS_TOLD,
        starves="a long job, while shorter ones come",
    )
    interpretation = (
        f"{ONE_POOL}Where sizes differ by several GPUs the rule compares whole steps, each from "
        "one size to the next. The walk is first eligible first. A restart costs nothing in the "
        "rule."
    )

    def choose(self, jobs: Sequence[sizing.Job], gpus: float, /) -> list[int]:
        """See `SizingPolicy`."""
        return sizing.afs(jobs, gpus)
