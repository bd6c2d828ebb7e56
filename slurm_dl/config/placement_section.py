"""The section ``placement``: where waiting jobs should go, and whether they are made to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from slurm_dl.config.parameters import RULE, SCHEME, details_of
from slurm_dl.config.value_types import (
    ByGpuType,
    FrozenMapping,
    NumberUnit,
    Parameters,
    Rules,
    Seconds,
    Section,
    Whole,
    refuse,
    refuse_all,
)
from slurm_dl.placement.candidate_nodes import Rule
from slurm_dl.placement.scheme import Scheme

_MONTH_S = 30 * 86400
_NO_SCHEME = "placement.scheme names nothing: Slurm places all jobs"


class PlacementSection(Section):
    """How nodes are chosen for waiting jobs."""

    scheme: str = Field(
        default="",
        description="Name of the scheme that chooses nodes. Empty: Slurm places all jobs.",
    )
    parameters: Parameters = Field(
        default={},
        description=(
            "Parameters of that scheme. Parameters that are left out have the scheme's defaults."
        ),
    )
    rules: Rules = Field(
        default={},
        description=(
            "Rules that forbid nodes for a job, or make them a last resort: each rule's name with "
            "its parameters, for instance {NAME: {}}. They apply in addition to the scheme, in "
            "this order."
        ),
    )
    steer: bool = Field(
        default=False,
        description=(
            "Exclude all but the chosen nodes for pending jobs (their ExcNodeList), and defer "
            "jobs that are to start nowhere yet (their begin time). False: only report the "
            "choice, in dlqueue why."
        ),
    )
    trim: bool = Field(
        default=False,
        description=(
            "Cut the CPUs and memory of a job to the part of a node that belongs to its GPUs, if "
            "its owner allows that and it or another pending job then fits. Running jobs that may "
            "be preempted are requeued for it. It needs no scheme."
        ),
    )
    steer_for_s: Seconds = Field(
        default=600,
        ge=1,
        le=_MONTH_S,
        description=(
            "A job is constrained to its chosen nodes for this long; then it may start anywhere. "
            "A wait for the scheme or a rule has a time limit of its own."
        ),
    )
    settle_s: Seconds = Field(
        default=0,
        ge=0,
        le=_MONTH_S,
        description=(
            "Delay of the begin time that dlsubmit sets for a new job (sbatch --begin), so that "
            "the daemon places the job first. Without it Slurm starts a job that fits at once, "
            "wherever it fits. Above daemon.poll_s, better twice that. 0: new jobs are left to "
            "Slurm until the next poll. It counts where jobs are steered, with policies that "
            "leave GPUs free (ranking.hold), and for jobs of several sizes (dlsubmit --sizes)."
        ),
    )
    window: Annotated[Whole, NumberUnit("jobs")] = Field(
        default=200,
        ge=1,
        le=100_000,
        description="Waiting jobs of each partition, best first, that are placed.",
    )
    pack: bool = Field(
        default=False,
        description=(
            "Put two jobs that ask for half a GPU (gres/shard) on one GPU if their models' "
            "profiles show that they can share it, and keep all other jobs with shares apart. "
            "Works only with steer."
        ),
    )
    gpu_mem_mb: ByGpuType = Field(
        default={},
        description=(
            "Memory of one GPU in MB by its type, for instance {a100: 40960}. No jobs are packed "
            "on a type that is not named."
        ),
    )
    max_host_slowdown: Annotated[float, NumberUnit("part of its speed")] = Field(
        default=1.0,
        ge=0,
        le=1,
        description=(
            "Largest part of its speed that a job may lose to another job on the same GPU. Below "
            "1 only pairs with measured speeds are packed."
        ),
    )
    sharing_mode: Literal["slices", "mps"] = Field(
        default="slices",
        description=(
            "Mode of two jobs on one GPU: they take turns in time slices (slices), or run at once "
            "under NVIDIA MPS (mps). Speeds of pairs count in this mode. It changes nothing on "
            "the nodes."
        ),
    )
    least_pair_speed: Annotated[float, NumberUnit("sum of two relative speeds")] = Field(
        default=1.25,
        ge=1,
        le=2,
        description=(
            "Two jobs are put on one GPU if their speeds there, each relative to its speed alone, "
            "add up to this at least."
        ),
    )
    profile_slots: Annotated[Whole, NumberUnit("GPUs")] = Field(
        default=100_000,
        ge=0,
        le=100_000,
        description=(
            "Most GPUs that jobs with shares may hold whose model was not measured, while more "
            "GPUs are waited for than are free. An array or a job on several nodes may pass it "
            "if no other such job runs. The default is no limit."
        ),
    )

    @field_validator("scheme")
    @classmethod
    def _check_scheme(cls, name: str) -> str:
        return SCHEME.check(name) if name else name

    @field_validator("parameters")
    @classmethod
    def _check_parameters(
        cls, given: Mapping[str, object], info: ValidationInfo
    ) -> Mapping[str, object]:
        scheme = info.data.get("scheme")
        if scheme is None:
            return given
        if not scheme:
            _refuse_without_scheme(bool(given))
            return FrozenMapping(())
        return SCHEME.checked(scheme, given)

    @field_validator("rules")
    @classmethod
    def _check_rules(
        cls, given: Mapping[str, Mapping[str, object]], info: ValidationInfo
    ) -> Mapping[str, object]:
        _refuse_without_scheme(bool(given) and info.data.get("scheme") == "")
        checked: list[tuple[str, object]] = []
        details: list[InitErrorDetails] = []
        for name, parameters in given.items():
            try:
                RULE.check(name)
            except PydanticCustomError as err:
                details.append(InitErrorDetails(type=err, loc=(name,), input=name))
                continue
            whole, mistakes = RULE.complete(name, parameters)
            details += details_of(mistakes, name)
            checked.append((name, FrozenMapping(tuple(whole.items()))))
        if details:
            refuse_all(details)
        return FrozenMapping(tuple(checked))

    @field_validator("steer")
    @classmethod
    def _check_steer(cls, steer: bool, info: ValidationInfo) -> bool:  # noqa: FBT001 - pydantic's call
        _refuse_without_scheme(steer and info.data.get("scheme") == "")
        return steer

    @field_validator("pack")
    @classmethod
    def _check_pack(cls, pack: bool, info: ValidationInfo) -> bool:  # noqa: FBT001 - pydantic's call
        if pack and info.data.get("steer") is False:
            refuse("has no effect (placement.steer is false)", others=(("placement", "steer"),))
        return pack

    def make(self) -> tuple[Scheme | None, tuple[Rule, ...]]:
        """The scheme and the rules with their parameters, ready to work."""
        scheme = SCHEME.make(self.scheme, self.parameters) if self.scheme else None
        return scheme, tuple(RULE.make(name, given) for name, given in self.rules.items())

    def in_words(self) -> str:
        """Who places jobs, by which rules, and whether they are made to go there."""
        if not self.scheme:
            return "left to Slurm"
        rules = f" with {', '.join(self.rules)}" if self.rules else ""
        does = "jobs are steered" if self.steer else "only said, nobody is steered"
        return f"{self.scheme}{rules}; {does}"


def _refuse_without_scheme(given: bool) -> None:  # noqa: FBT001 - the condition itself
    if given:
        refuse(f"has no effect ({_NO_SCHEME})", others=(("placement", "scheme"),))


# The section ``defragment``: when running jobs are moved together.
class DefragmentSection(Section):
    """When running jobs that agreed to preemption are moved, so that larger jobs fit."""

    enabled: bool = Field(
        default=False,
        description=(
            "Move jobs so that a waiting job fits that has enough free GPUs, but scattered ones. "
            "All limits of preemption apply. With daemon.shadow the moves are only reported. Not "
            "with preemption.mode native."
        ),
    )
    after_s: Seconds = Field(
        default=300,
        ge=0,
        le=30 * 86400,
        description="Jobs are moved only for a job that has waited this long.",
    )
    max_moves: Annotated[Whole, NumberUnit("jobs")] = Field(
        default=8, ge=1, le=1000, description="Most jobs that are moved at a time."
    )
    free_nodes: Annotated[Whole, NumberUnit("nodes")] = Field(
        default=0,
        ge=0,
        le=100_000,
        description=(
            "Number of nodes to keep entirely free. While fewer are free and no job waits for "
            "resources, jobs are moved together, one node at a time. 0: no job is moved for that."
        ),
    )
