"""The section ``breakers``: when nothing new is preempted for a while."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slurm_dl.config.value_types import NumberUnit, Seconds, Section, Whole


class BreakersSection(Section):
    """Limits that stop all preemption until the tripped breaker re-arms or is reset.

    See 'Circuit breakers' in the admin guide.
    """

    gpus_per_hour: Annotated[float, NumberUnit("GPUs per hour")] = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description=(
            "Trips before more GPUs than this would be taken back within an hour. Must be above "
            "preemption.max_gpus_per_hour, which only limits preemption and does not stop it. 0: "
            "no breaker."
        ),
    )
    cluster_share: Annotated[float, NumberUnit("share of the managed GPUs")] = Field(
        default=1.0,
        ge=0,
        le=100,
        description=(
            "Trips before more than this share of the GPUs of the managed partitions would be "
            "taken back within an hour. Above 1 the same GPUs count several times. Many short "
            "jobs and policies with leases may need more. 0: no breaker."
        ),
    )
    cluster_least: Annotated[float, NumberUnit("GPUs per hour")] = Field(
        default=64,
        ge=0,
        le=1_000_000,
        description=(
            "The bound of cluster_share is never below so many GPUs within an hour: on a small "
            "cluster one or two preemptions are a large share."
        ),
    )
    failed_share: Annotated[float, NumberUnit("share of the preempted jobs")] = Field(
        default=0.5,
        ge=0,
        lt=1,
        description=(
            "Trips once more than this share of the preempted jobs failed within 300 s of their "
            "restart, or were held by Slurm because it could not start them. Jobs that wait for "
            "their turn or were cancelled do not count. Of one user at most half of failed_least "
            "jobs count. 0: no breaker."
        ),
    )
    failed_least: Annotated[Whole, NumberUnit("jobs")] = Field(
        default=4,
        ge=1,
        le=10_000,
        description=(
            "Number of preempted jobs with a known outcome from which failed_share applies."
        ),
    )
    failed_window_s: Seconds = Field(
        default=14_400,
        ge=600,
        le=86_400,
        description="Outcomes that became known longer ago than this do not count.",
    )
    rearms: bool = Field(
        default=True,
        description=(
            "A tripped breaker re-arms by itself: gpus_per_hour and cluster_share one hour after "
            "they tripped, failed_restarts after failed_window_s. false: only 'dlctl breakers "
            "reset' ends a trip. A breaker that has tripped keeps the value it tripped with."
        ),
    )
