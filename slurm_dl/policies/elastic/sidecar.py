"""The non-intrusive framework of SC 2020 ("SideCar"): jobs give steps back for those that come.

A job that comes gets its least size. If no GPUs are free for it, the running jobs that lose least
by it take steps down; GPUs that a job leaves go to the jobs that gain most by them. Nobody else
changes size. Its paper names the mechanism, a process beside the training that stops and restarts
it, and says that progress decides; the rule is not published.

Source: "An Efficient and Non-Intrusive GPU Scheduling Framework for Deep Learning Training
Systems", SC 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_dl.policies.arithmetic.sizing import Job, by_steps
from slurm_dl.policies.base import About
from slurm_dl.policies.elastic.sizing_policy import FALLBACK, ONE_POOL, SPEEDS_TOLD, SizingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCar(SizingPolicy):
    """Sizes change by steps: down for jobs that come, up into GPUs that are free."""

    name = "sidecar"
    source = "Efficient, non-intrusive GPU scheduling framework, SC 2020"
    about = About(
        row="A12",
        level="W3",
        formula=(
            "least size to each that comes, by steps down of least left (1/rate - 1/rate') / "
            "(GPUs' - GPUs); into free GPUs steps up of the largest"
        ),
        needs=("left_s", "sizes"),
        fallback=FALLBACK,
        trusts=SPEEDS_TOLD,
        starves="a job that asks for many GPUs, while smaller ones come",
    )
    interpretation = (
        f"{ONE_POOL}Its rule is not published: which steps are taken is by Optimus' gain. A "
        "restart costs nothing in the rule."
    )

    def choose(self, jobs: Sequence[Job], gpus: float, /) -> list[int]:
        """See `SizingPolicy`."""
        return by_steps(jobs, gpus)
