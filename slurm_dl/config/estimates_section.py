"""The sections of what is known beforehand: ``estimates``, ``deadlines`` and ``forecasts``."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from slurm_dl.config.value_types import (
    ByGpuType,
    NumberUnit,
    OptionalName,
    Seconds,
    Section,
    Whole,
    distinct,
    refuse,
    refuse_key,
)
from slurm_dl.engine.promise_terms import promises
from slurm_dl.policies.base import Policy
from slurm_dl.text import number


class EstimatesSection(Section):
    """Estimates of jobs before they run, from accounting and from the site's GPUs."""

    history_days: Annotated[Whole, NumberUnit("days")] = Field(
        default=0,
        ge=0,
        le=3650,
        description=(
            "Jobs that ended in the last so many days are read from Slurm's accounting, with "
            "their users and names, to predict the run times of other jobs. Policies qssf, "
            "tagged and learned_gittins use it. 0: accounting is not queried for that."
        ),
    )
    refresh_s: Seconds = Field(
        default=3600,
        ge=60,
        le=7 * 86400,
        description="Time between two queries of accounting for jobs that have ended since.",
    )
    gpu_speed: ByGpuType = Field(
        default={},
        description=(
            "Relative speed of one GPU by its type, for instance {a100: 2.4, v100: 1}. It applies "
            "to models without speeds in their profile; a type that is not named has 1."
        ),
    )
    serial_share: Annotated[float, NumberUnit("part of the work")] = Field(
        default=0.05,
        ge=0,
        le=1,
        description=(
            "Part of a training on one GPU that no further GPU shortens (Amdahl's law), for "
            "models without scaling in their profile."
        ),
    )


Share = Annotated[float, NumberUnit("share"), Field(gt=0, le=1)]


class DeadlinesSection(Section):
    """The deadlines of jobs (`dlsubmit --by TIME`) that count for policies that go by deadlines.

    The others are as if they had not been given; `dlqueue why` shows the reason.
    """

    share: Share = Field(
        default=0.5,
        description=(
            "Share of the GPUs of partitions with common nodes that jobs with deadlines may ask "
            "for together, first eligible first, and share of each GPU type there. Under a policy "
            "that promises: may be promised at any time. With ranking.overdue_share it is 1 at "
            "most."
        ),
    )
    account_share: Share = Field(
        default=0.25,
        description=(
            "Share of these GPUs that jobs of one account with deadlines may ask for. It also "
            "bounds each user, over all accounts."
        ),
    )
    qos: Annotated[tuple[OptionalName, ...], Field(strict=False)] = Field(
        default=(), description="QOS whose jobs may have deadlines. Empty: all."
    )
    longest_ahead_s: Seconds = Field(
        default=14 * 86400,
        gt=0,
        le=366 * 86400,
        description="A deadline that is further ahead does not count yet.",
    )
    lead_s: Seconds = Field(
        default=0,
        ge=0,
        le=86400,
        description=(
            "GPUs are taken back this long before a promise needs them. 0: two looks "
            "(daemon.poll_s), the longest grace and the time of a start (preemption.max_grace_s, "
            "preemption.start_margin_s)."
        ),
    )
    estimate: Literal["limit", "history"] = Field(
        default="limit",
        description=(
            "The run time that a promise rests on: the time limit, or the best that is known "
            "(what the job reports, or jobs like it took). Promises on limits hold, and are fewer."
        ),
    )

    _check_distinct = field_validator("qos")(distinct)


def check_deadlines(
    deadlines: DeadlinesSection,
    policy: Policy,
    *,
    native: bool,
    holds: bool,
    overdue_share: float,
) -> None:
    """Refuse what would break deadlines under *policy*, if it goes by them.

    Args:
        native: Slurm itself preempts.
        holds: Jobs that the policy bars are put off.
        overdue_share: ``ranking.overdue_share``, and ``ranking.short_share`` where there is a lane.
    """
    if "due_s" not in policy.about.needs:
        return
    mode = ("preemption", "mode")
    if promises(policy) and (native or not holds):
        where = mode if native else ("ranking", "hold")
        text = (
            f"policy {policy.name} promises nothing with {'.'.join(where)} as it is: others "
            "would stop or pass its jobs"
        )
        refuse_key("share", deadlines.share, text, (("policy", "order"), where))
    if native:
        for key in sorted(deadlines.model_fields_set):
            text = "no deadline counts where Slurm itself preempts (preemption.mode is native)"
            refuse_key(key, getattr(deadlines, key), text, (mode,))
    elif deadlines.share + overdue_share > 1:
        text = (
            "with ranking.overdue_share, and short_share where there is a lane, it must be 1 at "
            "most (got "
            f"{number(deadlines.share)} and {number(overdue_share)})"
        )
        refuse_key("share", deadlines.share, text, (("ranking", "overdue_share"),))


# The section ``forecasts``: what it may cost to know how good they are.
LEAST_EVERY_S: Final = 60


class ForecastsSection(Section):
    """Forecasts of when jobs start and end. Answers to users need no settings."""

    sample_every_s: Seconds = Field(
        default=600,
        ge=0,
        le=7 * 86400,
        description=(
            "Interval at which ten waiting jobs are predicted without a request, to measure how "
            "often the predicted ranges hold. 0, or 60 and more. 0: never; then only ranges that "
            "were given to users are judged."
        ),
    )
    sample_s: Seconds = Field(
        default=20,
        gt=0,
        le=20,
        description=(
            "Time of one core for each such sample; requests of users wait meanwhile. If it is "
            "too short for 10 forward runs, nothing is judged."
        ),
    )

    @field_validator("sample_every_s")
    @classmethod
    def _check_seldom(cls, every_s: float) -> float:
        if 0 < every_s < LEAST_EVERY_S:
            refuse(f"must be 0 for never, or at least {LEAST_EVERY_S} (got {number(every_s)})")
        return every_s
