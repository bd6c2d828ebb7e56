"""The non-intrusive framework of SC 2020 ("SideCar"): GPUs that are free go to whoever gains most.

A job that comes gets its least size, and jobs that hold more give steps back for it; GPUs that a
job leaves go to those that gain most by them. Its paper names the mechanism, a process beside the
training that stops and restarts it, and not the rule. The rule here is that of `optimus`, with the
jobs served in the order of first submission.

Source: "An Efficient and Non-Intrusive GPU Scheduling Framework for Deep Learning Training
Systems", SC 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from slurm_dl.policies.arithmetic.sizing import Job, by_gain, least_sizes
from slurm_dl.policies.base import About
from slurm_dl.policies.elastic.sizing_policy import FALLBACK, ONE_POOL, SizingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCar(SizingPolicy):
    """Least sizes for all jobs, the rest by time saved; served by first submission.

    Attributes:
        quantum_s: Sizes are chosen anew this often, seconds, above 0.
    """

    name: ClassVar[str] = "sidecar"
    source: ClassVar[str] = "Efficient, non-intrusive GPU scheduling framework, SC 2020"
    about: ClassVar[About] = About(
        row="A12",
        level="W2",
        formula="least sizes by arrival; then the largest left (1/rate - 1/rate') / (GPUs' - GPUs)",
        needs=("left_s", "sizes"),
        fallback=FALLBACK,
    )
    interpretation: ClassVar[str] = (
        f"{ONE_POOL}Its rule is not published: the sizes are those that Optimus would choose. A "
        "restart costs nothing in the rule."
    )

    quantum_s: float = 60.0

    def choose(self, jobs: Sequence[Job], gpus: float, /) -> list[int]:
        """See `SizingPolicy`."""
        return by_gain(jobs, *least_sizes(jobs, range(len(jobs)), gpus))
