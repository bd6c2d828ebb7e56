"""The sections ``preemption``, ``breakers`` and ``resizing``: running jobs that give way."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from slurm_dl.config.value_types import (
    AccountName,
    NumberUnit,
    OptionalName,
    Seconds,
    Section,
    Whole,
    distinct,
    refuse,
)
from slurm_dl.model.contract import DEFAULT_GRACE_S
from slurm_dl.text import number

_MONTH_S = 30 * 86400


class PreemptionSection(Section):
    """When and how GPUs are taken back from jobs that agreed to it, and how many."""

    enabled: bool = Field(
        default=True,
        description=(
            "Take GPUs back at all. False: no new hand-over begins, and hand-overs under way are "
            "completed. In native mode running jobs then get a SiteFactor that no waiting job "
            "exceeds."
        ),
    )
    mode: Literal["external", "native"] = Field(
        default="external",
        description=(
            "The component that takes GPUs back. external: dlschedd, by signal, wait and requeue; "
            "slurm.conf stays as it is. native: Slurm itself, inside preemption.qos and by the "
            "priorities that follow from dlschedd's SiteFactors. native needs slurmdbd and "
            "settings in slurm.conf, see docs/operate/native-preemption.md. Of the limits below "
            "only min_quantum_s, cooldown_s, max_preemptions and max_grace_s apply in native mode."
        ),
    )
    beneficiaries: Literal["opted_in", "all"] = Field(
        default="opted_in",
        description=(
            "Waiting jobs for which others are preempted or moved. opted_in: jobs that may be "
            "preempted themselves, that is, jobs with a contract that the site accepts. Other "
            "jobs then wait for free GPUs, as they would without slurm_dl. all: every job, also "
            "one that is never preempted itself. Jobs take back their guaranteed nodes in any "
            "case."
        ),
    )
    qos: OptionalName = Field(
        default="",
        description=(
            "QOS of the jobs that agreed to preemption; dlsubmit submits them to it. Native mode "
            "needs one: Slurm preempts inside it. Empty: the users' own."
        ),
    )
    min_quantum_s: Seconds = Field(
        default=900,
        ge=0,
        le=_MONTH_S,
        description=(
            "A job is not preempted before its run is this long. In native mode Slurm ensures "
            "that: PreemptExemptTime of preemption.qos must be at least this."
        ),
    )
    cooldown_s: Seconds = Field(
        default=900,
        ge=0,
        le=_MONTH_S,
        description="A job is not preempted again for this long after it was preempted.",
    )
    max_preemptions: Annotated[Whole, NumberUnit("preemptions")] = Field(
        default=5,
        ge=0,
        le=1_000_000,
        description=(
            "Most preemptions of one job in its life. 0: no job is ever preempted. Under a policy "
            "with leases any other number is no bound: its leases are. In native mode every "
            "requeue counts, also the job's own, because Slurm does not distinguish them."
        ),
    )
    max_grace_s: Seconds = Field(
        default=600,
        ge=1,
        le=_MONTH_S,
        description=(
            "A job that asks for more time than this between signal and requeue is not preempted. "
            "dlsubmit shortens a longer grace to it, also its default of 120 s. In native mode at "
            "most the GraceTime of preemption.qos."
        ),
    )
    handover_timeout_s: Seconds = Field(
        default=900,
        gt=0,
        le=_MONTH_S,
        description=(
            "A hand-over that has signalled no job after this time is given up. The reservation "
            "of any hand-over lapses by itself. More than preemption.max_grace_s."
        ),
    )
    max_handovers: Annotated[Whole, NumberUnit("hand-overs")] = Field(
        default=4, ge=1, le=1000, description="Most hand-overs under way at once."
    )
    max_victims: Annotated[Whole, NumberUnit("jobs")] = Field(
        default=64, ge=1, le=10_000, description="Most victims of one hand-over."
    )
    max_gpus_per_hour: Annotated[float, NumberUnit("GPUs per hour")] = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Most GPUs taken back in any hour. 0: no limit.",
    )
    limit_reserve_s: Seconds = Field(
        default=600,
        ge=0,
        le=_MONTH_S,
        description="A job with less than this left of its time limit is not preempted.",
    )
    start_margin_s: Seconds = Field(
        default=120,
        ge=0,
        le=3600,
        description=(
            "Time that Slurm gets to start the beneficiaries of a hand-over once all its GPUs are "
            "free."
        ),
    )
    checkpoint_cost_s: Seconds = Field(
        default=60,
        ge=0,
        le=86400,
        description=(
            "Time to save and restore one job of a model without a measured profile. It is used "
            "to choose between victims."
        ),
    )
    unsaved_share: Annotated[float, NumberUnit("share")] = Field(
        default=0.5,
        ge=0,
        le=1,
        description=(
            "Share of the work since its last checkpoint that a job without an earlier preemption "
            "is expected to lose. It is used to choose between victims. A job that acknowledged "
            "its last preemption loses none, one that did not loses all."
        ),
    )
    beneficiary_delay_s: Seconds = Field(
        default=0,
        ge=0,
        le=_MONTH_S,
        description=(
            "No job is preempted or moved for a job that has waited for less than this since it "
            "became eligible. The delay does not apply to a job that has run before, nor to one "
            "that takes back its guaranteed nodes."
        ),
    )

    commitment: Literal["counted", "ignored"] = Field(
        default="counted",
        description=(
            "GPU time that nobody can take back, under policies that order by attained service. "
            "counted: it counts as service. A job without a contract counts its GPUs times its "
            "time limit, one with `until` what that protects before the last fifth of it, and one "
            "that may be preempted at any time none. ignored: only GPU time that a job has "
            "received counts, so a user gains by not opting in. See docs/operate/incentives.md."
        ),
    )
    exempt_accounts: Annotated[tuple[AccountName, ...], Field(strict=False)] = Field(
        default=(),
        description=(
            "Accounts whose jobs count no GPU time in advance, for users whose programs cannot "
            "save."
        ),
    )
    broken_contract_s: Seconds = Field(
        default=604_800,
        ge=0,
        le=_MONTH_S,
        description=(
            "If a user forbids the requeue of a job that runs with a contract (Requeue=0), the "
            "user's jobs count as jobs without a contract until this long after that run. 0: they "
            "go on counting."
        ),
    )

    _check_distinct = field_validator("exempt_accounts")(distinct)

    @field_validator("qos")
    @classmethod
    def _check_qos(cls, qos: str, info: ValidationInfo) -> str:
        if not qos and info.data.get("mode") == "native":
            refuse(
                "must name the QOS inside which Slurm preempts (preemption.mode is native)",
                others=(("preemption", "mode"),),
            )
        return qos

    @field_validator("handover_timeout_s")
    @classmethod
    def _check_handover_timeout(cls, timeout_s: float, info: ValidationInfo) -> float:
        grace_s = info.data.get("max_grace_s")
        if grace_s is not None and timeout_s <= grace_s:
            refuse(
                f"must be greater than preemption.max_grace_s (got {number(timeout_s)}, "
                f"preemption.max_grace_s is {number(grace_s)})",
                others=(("preemption", "max_grace_s"),),
            )
        return timeout_s

    def grace_note(self) -> str:
        """That dlsubmit's default grace is above max_grace_s; empty if it is not."""
        if self.max_grace_s >= DEFAULT_GRACE_S:
            return ""
        return (
            f"preemption.max_grace_s is {number(self.max_grace_s)}, below dlsubmit's default grace "
            f"of {number(DEFAULT_GRACE_S)} s: dlsubmit cuts it where users can read slurm_dl.yaml, "
            "and a job that asks for more is not preempted"
        )

    def in_words(self) -> str:
        """Who takes GPUs back, and whether anybody may."""
        match self.mode:
            case "native":
                who = f"by Slurm, inside QOS {self.qos}"
                off = "off: no waiting job may exceed a running one"
            case "external":
                who, off = "by dlschedd", "off: nothing new is begun"
        return who if self.enabled else f"{who}; {off}"


class FailuresSection(Section):
    """Retries of failed jobs with a contract, by the class of their failure.

    dlrun reports the class; without a report it is that of Slurm's word for the end, if that says
    one. A user error is retried once, and after the next one the job is requeued held.
    """

    retry: bool = Field(
        default=False,
        description="Requeue failed jobs. false: they are left as they ended.",
    )
    infrastructure_retries: Annotated[Whole, NumberUnit("requeues")] = Field(
        default=3,
        ge=0,
        le=1000,
        description="Most requeues of one job after failures of the infrastructure.",
    )
    window_s: Seconds = Field(
        default=86_400,
        gt=0,
        le=_MONTH_S,
        description="Such failures longer ago than this do not count.",
    )


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
