"""The section ``ranking``: from the order of the jobs to Slurm's priorities."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slurm_dl.config.value_types import NumberUnit, Seconds, Section, Whole
from slurm_dl.engine.waiting_line import WIDEST_BAND

Wait = Annotated[Seconds, Field(ge=0, le=10**9)]


class RankingSection(Section):
    """How the order of the jobs becomes Slurm priorities: each job gets a SiteFactor."""

    band_width: Annotated[Whole, NumberUnit("points of priority")] = Field(
        default=10_000_000,
        ge=1,
        le=WIDEST_BAND,
        description=(
            "Difference of SiteFactor between two places of the waiting line (native mode: "
            "between two tiers). It must exceed the largest sum of the site's other priority "
            "factors (the sum of all PriorityWeight settings), or they change the order."
        ),
    )
    window: Annotated[Whole, NumberUnit("jobs")] = Field(
        default=1000,
        ge=1,
        le=100_000,
        description=(
            "Pending jobs of each partition, best first, with a SiteFactor that is kept up to "
            "date. The first 50 have places of their own, and GPUs are taken back for these; the "
            "others have SiteFactor 0. In native mode all have the band of their tier."
        ),
    )
    equals: Literal["submission", "site"] = Field(
        default="submission",
        description=(
            "Decides between jobs that the policy ranks equal: the same tier, and no difference "
            "but the time since which they could start. submission: by that time. site: they get "
            "one SiteFactor, and the site's own priority weights decide."
        ),
    )
    pass_s: Wait = Field(
        default=3600,
        description=(
            "Once the first waiting job has waited longer than this, a job behind it starts only "
            "if it does not move the planned start of the first, by limits or expected run times. "
            "It bounds how long small jobs pass a gang of their own tier. 0: they always may."
        ),
    )
    overdue_s: Wait = Field(
        default=604_800,
        description=(
            "A job that could start is served before all others once it has waited longer than "
            "this since it last became eligible or last ran. It bounds the wait of a gang that "
            "smaller jobs pass. 0: never."
        ),
    )
    overdue_share: Annotated[float, NumberUnit("share")] = Field(
        default=0.25,
        ge=0,
        le=1,
        description=(
            "Share of the GPUs of partitions with common nodes that such jobs may claim together. "
            "The job that has waited longest is served whatever its size."
        ),
    )
    short_s: Wait = Field(
        default=0,
        description=(
            "A lane for short jobs: those with a time limit up to this, that have not run for "
            "longer, are served before all others on ranking.short_share of the GPUs, the jobs "
            "of the users with the fewest there first. 0: no lane."
        ),
    )
    short_gpus: Annotated[float, NumberUnit("GPUs")] = Field(
        default=1, gt=0, le=10_000, description="Most GPUs of one job in the lane for short jobs."
    )
    short_share: Annotated[float, NumberUnit("share")] = Field(
        default=0.1,
        ge=0,
        le=1,
        description=(
            "Share of the GPUs of partitions with common nodes that the lane for short jobs has. "
            "Short jobs that run count, an array with all of its waiting tasks."
        ),
    )
    hold: bool = Field(
        default=True,
        description=(
            "A job that the policy leaves waiting although GPUs are free is put off by its begin "
            "time (reason BeginTime), anew at each poll; it lapses by itself. false: Slurm may "
            "start such a job. 'dlctl policies' says which policies leave GPUs free."
        ),
    )
