"""Optimus: one unit for each job, then each further one to the job whose end it brings most closer.

    gain = (time left in its size - time left in the next one) / GPUs that the next one has more

Every job begins with its least size, first eligible first. The next size goes to the
largest gain, until no gain is above 0 or the GPUs are used up.

Source: Peng et al., "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters",
EuroSys 2018, section 4.1; small jobs are placed first, section 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_dl.model.jobs import F64
from slurm_dl.policies.arithmetic.sizing import Job, by_gain, least_sizes
from slurm_dl.policies.base import About
from slurm_dl.policies.elastic.sizing_policy import FALLBACK, ONE_POOL, SPEEDS_TOLD, SizingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimus(SizingPolicy):
    """Least sizes for all jobs, then the next size to the job that saves most time by each GPU."""

    name = "optimus"
    source = "Optimus, EuroSys 2018, sections 4.1 and 4.2"
    about = About(
        row="A8",
        level="W3",
        formula="least sizes by arrival; then the largest left (1/rate - 1/rate') / (GPUs' - GPUs)",
        needs=("left_s", "sizes"),
        fallback=FALLBACK,
        trusts=SPEEDS_TOLD,
    )
    interpretation = (
        f"{ONE_POOL}They are the only resource. A job goes from each of its sizes to the next "
        "larger one. Its end and its speeds are given, not fitted to its loss. A restart costs "
        "nothing in the rule."
    )

    def choose(self, jobs: Sequence[Job], gpus: float, /) -> list[int]:
        """See `SizingPolicy`."""
        return by_gain(jobs, *least_sizes(jobs, range(len(jobs)), gpus))

    def key(self, gpus: F64, /) -> F64:
        """``(n,)`` the fewest GPUs first."""
        return gpus
