"""The section ``forecasts``: what it may cost to know how good they are."""

from __future__ import annotations

from typing import Final

from pydantic import Field, field_validator

from slurm_dl.config.section import Section
from slurm_dl.config.values import Seconds, refuse
from slurm_dl.config.wording import number

LEAST_EVERY_S: Final = 60


class ForecastsSection(Section):
    """When jobs start and end; answers to users need no settings."""

    sample_every_s: Seconds = Field(
        default=600,
        ge=0,
        le=7 * 86400,
        description=(
            "Ten waiting jobs are predicted so often without being asked about, so that it is "
            "known how often such ranges hold. 0, or 60 and more. 0: never; then only ranges "
            "that users were told are judged."
        ),
    )
    sample_s: Seconds = Field(
        default=20,
        gt=0,
        le=20,
        description=(
            "One core's time for that, each time, at nice 10; who asks meanwhile waits. Too little "
            "for 10 forward runs and nothing is judged."
        ),
    )

    @field_validator("sample_every_s")
    @classmethod
    def _check_seldom(cls, every_s: float) -> float:
        if 0 < every_s < LEAST_EVERY_S:
            refuse(f"must be 0 for never, or at least {LEAST_EVERY_S} (got {number(every_s)})")
        return every_s
