"""The section ``breakers``: when nothing new is preempted for a while."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slurm_dl.config.section import Section
from slurm_dl.config.value_types import NumberUnit, Seconds, Whole


class BreakersSection(Section):
    """When to stop preempting altogether, until what has tripped re-arms or is reset.

    See 'Circuit breakers' in the admin guide.
    """

    gpus_per_hour: Annotated[float, NumberUnit("GPUs per hour")] = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description=(
            "Trips before more GPUs than this would be taken back within an hour. Above "
            "preemption.max_gpus_per_hour, which keeps within its bound and goes on. 0: no breaker."
        ),
    )
    cluster_share: Annotated[float, NumberUnit("share of the managed GPUs")] = Field(
        default=1.0,
        ge=0,
        le=100,
        description=(
            "Trips before more than this share of the GPUs of the managed partitions would be "
            "taken back within an hour; above 1 the same GPUs count several times. Many short "
            "jobs and policies with leases may need more. 0: no breaker."
        ),
    )
    failed_share: Annotated[float, NumberUnit("share of the preempted jobs")] = Field(
        default=0.5,
        ge=0,
        lt=1,
        description=(
            "Trips once more than this share of the preempted jobs failed within 300 s of their "
            "restart, or were put aside by Slurm because it could not start them. Who waits for "
            "its turn or was cancelled does not count, and of one user no more jobs than half of "
            "failed_least. 0: no breaker."
        ),
    )
    failed_least: Annotated[Whole, NumberUnit("jobs")] = Field(
        default=4,
        ge=1,
        le=10_000,
        description="Only once it is known of this many jobs whether they came back.",
    )
    failed_window_s: Seconds = Field(
        default=14_400,
        ge=600,
        le=86_400,
        description="What became known longer ago than this does not count.",
    )
    rearms: bool = Field(
        default=True,
        description=(
            "A tripped breaker re-arms by itself: gpus_per_hour and cluster_share one hour after "
            "they tripped, failed_restarts after failed_window_s. false: only 'dlctl breakers "
            "reset' ends a trip. A breaker that has tripped keeps the value it tripped with."
        ),
    )
