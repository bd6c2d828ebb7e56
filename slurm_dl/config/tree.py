"""The configuration as one frozen tree: every key with its unit, default, bounds and sentence.

The sample file, the reference page and the JSON schema are generated from what stands here.
A check that concerns two keys hangs on the later one, so that it joins the list of all errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from slurm_dl.config.daemon_section import DaemonSection, Listen, MetricsSection, TakeoverSection
from slurm_dl.config.estimates_section import (
    DeadlinesSection,
    EstimatesSection,
    ForecastsSection,
    check_deadlines,
)
from slurm_dl.config.parameters import POLICY
from slurm_dl.config.placement_section import DefragmentSection, PlacementSection
from slurm_dl.config.preemption_section import (
    BreakersSection,
    FailuresSection,
    PreemptionSection,
    ResizingSection,
)
from slurm_dl.config.ranking_section import RankingSection
from slurm_dl.config.replicas_section import ReplicasSection
from slurm_dl.config.value_types import (
    AbsolutePath,
    Admin,
    ByGpuType,
    NumberUnit,
    OptionalName,
    Parameters,
    PartitionName,
    PathOrEmpty,
    Seconds,
    Section,
    Whole,
    distinct,
    refuse,
    refuse_key,
    short,
    wrong,
)
from slurm_dl.engine.placing.guarantees import tiers_of
from slurm_dl.engine.promise_terms import promises
from slurm_dl.engine.site_factors import HIGHEST_SITE_FACTOR, highest_site_factor, levels_of
from slurm_dl.model.errors import ConfigError
from slurm_dl.placement.scheme import Promising
from slurm_dl.policies import policy_file
from slurm_dl.policies.base import Policy
from slurm_dl.text import number, shown
from slurm_dl.yaml_places import read_text

SITE_FACTOR_END = HIGHEST_SITE_FACTOR + 1
"""What Slurm takes no more as a SiteFactor."""


class ClusterSection(Section):
    """The Slurm cluster, and how slurm_dl reaches it."""

    name: OptionalName = Field(
        default="", description="Name of the cluster. Empty: ClusterName of slurm.conf."
    )
    slurm_conf: PathOrEmpty = Field(
        default="", description="Path of slurm.conf. Empty: Slurm's own default."
    )
    bin_dir: PathOrEmpty = Field(
        default="",
        description=(
            "Directory of squeue, scontrol and the other Slurm commands. Empty: PATH is searched."
        ),
    )
    timeout_s: Seconds = Field(
        default=30,
        gt=0,
        le=600,
        description=(
            "A Slurm command that takes longer is ended and counts as failed. After a failed poll "
            "of the queue there is no cycle. For a failed write see daemon.fast_poll_s."
        ),
    )
    reader: Literal["cli", "pyslurm"] = Field(
        default="cli",
        description=(
            "Source of the queue data: squeue (cli), or pyslurm, which must be installed and "
            "belong to the controller's release."
        ),
    )


class ManageSection(Section):
    """The partitions that slurm_dl orders. Everything else is left to Slurm."""

    partitions: Annotated[tuple[PartitionName, ...], Field(strict=False)] = Field(
        min_length=1,
        description=(
            "Partitions with jobs that slurm_dl orders. A partition is managed as a whole: jobs "
            "left out would sort behind all others."
        ),
    )

    _check_distinct = field_validator("partitions")(distinct)


class PolicySection(Section):
    """Which jobs get GPUs first."""

    order: str = Field(
        default="discrete_las",
        description=(
            "Name of the policy that orders jobs, or `/PATH/FILE.py:CLASS`; file and folders "
            "must be root's or the daemon's, and nobody else's to write to."
        ),
    )
    parameters: Parameters = Field(
        default={},
        description=(
            "Parameters of that policy. Parameters that are left out have the policy's defaults."
        ),
    )

    @field_validator("order")
    @classmethod
    def _check_order(cls, order: str) -> str:
        if policy_file.is_file(order):
            # The daemon may be root, and reading the file runs it.
            try:
                path = Path(policy_file.parts(order)[0])
                if not path.is_absolute():
                    refuse(f"the path of a policy's file must be absolute (got {shown(order)})")
                read_text(path, "daemon")
            except ConfigError as err:
                raise wrong(str(err)) from err
        return POLICY.check(order)

    @field_validator("parameters")
    @classmethod
    def _check_parameters(
        cls, given: Mapping[str, object], info: ValidationInfo
    ) -> Mapping[str, object]:
        order = info.data.get("order")
        return given if order is None else POLICY.checked(order, given)

    def make(self) -> Policy:
        """The policy with its parameters, ready to order jobs."""
        return POLICY.make(self.order, self.parameters)


class WritesSection(Section):
    """Limits on writes to slurmctld. Writes beyond them are done in the next cycle."""

    rate_per_s: Annotated[float, NumberUnit("writes per second")] = Field(
        default=2.0,
        gt=0,
        le=1000,
        description=(
            "Average rate of writes to slurmctld, not counting the steps of hand-overs. Writes "
            "saved up between two polls may go out at once: rate_per_s x daemon.poll_s writes. "
            "Slurm's own limit (rl_enable in SlurmctldParameters, since 23.02) delays commands "
            "beyond 30 calls at once and 2 a second, an Operator's too. Where it is on, keep "
            "rate_per_s x daemon.poll_s and burst at 20 or less."
        ),
    )
    burst: Annotated[Whole, NumberUnit("writes")] = Field(
        default=20,
        ge=1,
        le=10_000,
        description=(
            "Writes at once after a quiet time, if rate_per_s x daemon.poll_s is less than this."
        ),
    )


class ControlSection(Section):
    """Users that may query the daemon, and users that may command it."""

    admins: Annotated[tuple[Admin, ...], Field(strict=False)] = Field(
        default=("root",),
        description="Users, by name or uid, that may pause and resume the daemon.",
    )
    socket_mode: Literal["0600", "0660", "0666"] = Field(
        default="0666",
        description=(
            "Mode of the control socket, in quotes. 0666: every user may send queries. Commands "
            "are accepted from admins only, in any mode."
        ),
    )

    listen: Listen = Field(
        default="",
        description=(
            "IP address and port on which users of other hosts ask, for instance 10.0.0.1:6822, "
            "or 0.0.0.0:6822 for all addresses. MUNGE says who they are. Empty: users of this host "
            "alone. Their client.yaml names it: see `dlctl client-config`."
        ),
    )
    munge_socket: PathOrEmpty = Field(
        default="", description="Socket of munged. Empty: MUNGE's usual one."
    )

    _check_distinct = field_validator("admins")(distinct)


class ServiceSection(Section):
    """How the service that jobs receive is counted."""

    weights: ByGpuType = Field(
        default={},
        description=(
            "What a GPU of a type counts as, by the type's name in Slurm, for example "
            "{a100_1g.10gb: 0.14}; 1 for types without an entry. It is used for attained service "
            "and thresholds, for limits and breakers on GPUs taken back, and in reports. Service "
            "that jobs have already received keeps the weights it was counted with."
        ),
    )


class PathsSection(Section):
    """Where the daemon keeps its files."""

    state_dir: AbsolutePath = Field(
        default=Path("/var/lib/slurm_dl"),
        description="Directory of the ledger of attained service.",
    )
    run_dir: Annotated[AbsolutePath, AfterValidator(short)] = Field(
        default=Path("/run/slurm_dl"), description="Directory of the lock and the control socket."
    )
    audit_log: AbsolutePath = Field(
        default=Path("/var/lib/slurm_dl/audit.jsonl"),
        description="File to which every action is written, one JSON object per line.",
    )
    template_dir: AbsolutePath = Field(
        default=Path("/etc/slurm_dl/templates"),
        description="Directory of the site's own batch script templates for dlsubmit.",
    )
    profile_dir: AbsolutePath = Field(
        default=Path("/etc/slurm_dl/profiles"),
        description=(
            "Directory of the site's own profiles of models. A profile there replaces the shipped "
            "one of the same name. The directory need not exist."
        ),
    )


class Config(Section):
    """The whole configuration."""

    cluster: ClusterSection = ClusterSection()
    manage: ManageSection
    daemon: DaemonSection = DaemonSection()
    policy: PolicySection = PolicySection()
    ranking: RankingSection = RankingSection()
    service: ServiceSection = ServiceSection()
    preemption: PreemptionSection = PreemptionSection()
    breakers: BreakersSection = BreakersSection()
    failures: FailuresSection = FailuresSection()
    placement: PlacementSection = PlacementSection()
    defragment: DefragmentSection = DefragmentSection()
    resizing: ResizingSection = ResizingSection()
    estimates: EstimatesSection = EstimatesSection()
    deadlines: DeadlinesSection = DeadlinesSection()
    forecasts: ForecastsSection = ForecastsSection()
    replicas: ReplicasSection = ReplicasSection()
    writes: WritesSection = WritesSection()
    control: ControlSection = ControlSection()
    takeover: TakeoverSection = TakeoverSection()
    metrics: MetricsSection = MetricsSection()
    paths: PathsSection = PathsSection()

    @property
    def holds(self) -> bool:
        """True if the policy may put jobs off; see ``ranking.hold``."""
        return self.ranking.hold and bool(self.policy.make().about.idles)

    @field_validator("preemption")
    @classmethod
    def _check_highest_fits(
        cls, preemption: PreemptionSection, info: ValidationInfo
    ) -> PreemptionSection:
        policy: PolicySection | None = info.data.get("policy")
        ranking: RankingSection | None = info.data.get("ranking")
        if preemption.mode != "native" or policy is None or ranking is None:
            return preemption
        tiers = levels_of(policy.make())
        highest = highest_site_factor(tiers, ranking.band_width)
        if highest >= SITE_FACTOR_END:
            text = (
                f"native: running jobs get up to {tiers} and a half times ranking.band_width "
                f"{ranking.band_width}, which must stay below {SITE_FACTOR_END}"
            )
            others = (("ranking", "band_width"), ("policy", "parameters"))
            refuse_key("mode", preemption.mode, text, others)
        return preemption

    @field_validator("breakers")
    @classmethod
    def _check_limit_comes_first(
        cls, breakers: BreakersSection, info: ValidationInfo
    ) -> BreakersSection:
        preemption: PreemptionSection | None = info.data.get("preemption")
        limit = preemption.max_gpus_per_hour if preemption is not None else 0
        if limit and 0 < breakers.gpus_per_hour <= limit:
            text = (
                "must be greater than preemption.max_gpus_per_hour, which would never be reached "
                f"(got {number(breakers.gpus_per_hour)}, the limit is {number(limit)})"
            )
            others = (("preemption", "max_gpus_per_hour"),)
            refuse_key("gpus_per_hour", breakers.gpus_per_hour, text, others)
        return breakers

    @field_validator("defragment")
    @classmethod
    def _check_who_moves(
        cls, defragment: DefragmentSection, info: ValidationInfo
    ) -> DefragmentSection:
        preemption: PreemptionSection | None = info.data.get("preemption")
        wanted = defragment.enabled or defragment.free_nodes > 0
        if wanted and preemption is not None and preemption.mode == "native":
            text = "nobody is moved where Slurm itself preempts (preemption.mode is native)"
            key = "enabled" if defragment.enabled else "free_nodes"
            refuse_key(key, getattr(defragment, key), text, (("preemption", "mode"),))
        return defragment

    @field_validator("deadlines")
    @classmethod
    def _check_bounds(cls, deadlines: DeadlinesSection, info: ValidationInfo) -> DeadlinesSection:
        policy: PolicySection | None = info.data.get("policy")
        ranking: RankingSection | None = info.data.get("ranking")
        preemption: PreemptionSection | None = info.data.get("preemption")
        if policy is None or ranking is None or preemption is None:
            return deadlines
        check_deadlines(
            deadlines,
            policy.make(),
            native=preemption.mode == "native",
            holds=ranking.hold,
            overdue_share=ranking.overdue_share + (ranking.short_share if ranking.short_s else 0),
        )
        return deadlines

    @field_validator("placement")
    @classmethod
    def _check_settle(cls, placement: PlacementSection, info: ValidationInfo) -> PlacementSection:
        daemon: DaemonSection | None = info.data.get("daemon")
        if daemon is not None and 0 < placement.settle_s <= daemon.poll_s:
            text = (
                "must be 0, or greater than daemon.poll_s so that a look falls into it (got "
                f"{number(placement.settle_s)}, daemon.poll_s is {number(daemon.poll_s)})"
            )
            refuse_key("settle_s", placement.settle_s, text, (("daemon", "poll_s"),))
        return placement

    @field_validator("placement")
    @classmethod
    def _check_promised_tiers_fit(
        cls, placement: PlacementSection, info: ValidationInfo
    ) -> PlacementSection:
        policy: PolicySection | None = info.data.get("policy")
        ranking: RankingSection | None = info.data.get("ranking")
        preemption: PreemptionSection | None = info.data.get("preemption")
        if not placement.steer or policy is None or ranking is None or preemption is None:
            return placement
        if promises(policy.make()) and isinstance(placement.make()[0], Promising):
            text = f"policy {policy.order} promises GPUs, and scheme {placement.scheme!r} nodes"
            refuse_key("scheme", placement.scheme, text, (("policy", "order"),))
        if preemption.mode != "native":
            return placement
        tiers = tiers_of(policy.make(), placement.make()[0])
        if highest_site_factor(tiers, ranking.band_width) >= SITE_FACTOR_END:
            text = (
                f"scheme {placement.scheme!r} guarantees nodes, so there are {tiers} tiers: "
                f"and a half times ranking.band_width {ranking.band_width} "
                f"they must stay below {SITE_FACTOR_END}"
            )
            others = (("ranking", "band_width"), ("policy", "parameters"))
            refuse_key("scheme", placement.scheme, text, others)
        return placement

    @field_validator("replicas")
    @classmethod
    def _check_daemon_preempts(
        cls, replicas: ReplicasSection, info: ValidationInfo
    ) -> ReplicasSection:
        preemption: PreemptionSection | None = info.data.get("preemption")
        if replicas.services and preemption is not None and preemption.mode == "native":
            text = "has no effect where Slurm itself preempts (preemption.mode is native)"
            refuse_key("services", None, text, (("preemption", "mode"),))
        return replicas


SECTIONS: Mapping[str, type[Section]] = {
    name: model
    for name, field in Config.model_fields.items()
    if isinstance(model := field.annotation, type) and issubclass(model, Section)
}
"""The sections by their names, in their order."""
