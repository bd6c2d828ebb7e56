"""The section ``forecasts``: what it may cost to know how good they are."""

from __future__ import annotations

from pydantic import Field

from slurm_dl.config.section import Section
from slurm_dl.config.values import Seconds


class ForecastsSection(Section):
    """When jobs start and end; answers to users need no settings."""

    sample_every_s: Seconds = Field(
        default=600,
        ge=0,
        le=7 * 86400,
        description=(
            "Ten waiting jobs are predicted so often without being asked about, so that it is "
            "known how often such ranges hold. 0: never; then only ranges that users were told "
            "are judged."
        ),
    )
    sample_s: Seconds = Field(
        default=20,
        gt=0,
        le=60,
        description=(
            "One core's time for that, each time, at nice 10. Too little for 10 forward runs and "
            "nothing is judged."
        ),
    )
