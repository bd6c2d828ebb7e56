"""The section ``resizing``: sizes of jobs that can change them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slurm_dl.config.value_types import NumberUnit, Seconds, Section, Whole


class ResizingSection(Section):
    """Sizes of the jobs whose users named several (``dlsubmit --sizes``). Others never change.

    A running job changes its size by a hand-over: checkpoint signal, requeue, start in the new
    size. In native mode no job changes its size.
    """

    expand: bool = Field(
        default=True,
        description=(
            "Under a policy that chooses no sizes: each job gets its least size in the order of "
            "the policy, and free GPUs go to the jobs that save most time by them. GPUs beyond "
            "the least size are given back as soon as other jobs should have them. false: jobs "
            "have the size that they ask for."
        ),
    )
    steadiness: Annotated[float, NumberUnit("restarts")] = Field(
        default=10,
        ge=0,
        le=1000,
        description=(
            "A running job grows only if that saves it more time than this many restarts of all "
            "jobs that change size for it, and what they lose."
        ),
    )
    max_per_day: Annotated[Whole, NumberUnit("changes")] = Field(
        default=20,
        ge=0,
        le=10_000,
        description=(
            "A job whose size changed so often within a day does not grow any more; it may still "
            "become smaller. 0: no limit."
        ),
    )
    cooldown_s: Seconds = Field(
        default=900,
        ge=0,
        le=86_400,
        description="A job does not grow for this long after its size changed.",
    )
