"""Input and results of both modes of preemption, `external_mode` and `native_mode`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from slurm_dl.engine.intent import Intent
from slurm_dl.engine.placing.eligible_nodes import EligibleNodes, HigherTiers, anywhere
from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.preemption.eligibility import Victims
from slurm_dl.engine.preemption.handover_context import HandoverContext
from slurm_dl.engine.preemption.handover_verdicts import Verdict
from slurm_dl.engine.preemption.surplus import Surplus
from slurm_dl.engine.target import NOBODY, Rows
from slurm_dl.engine.waiting_line import WaitingLine
from slurm_dl.model.handover import Handover, jobs_of
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Bool
from slurm_dl.model.plan import Action, SetSiteFactor
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import ResourceRequests
from slurm_dl.policies.base import Preempts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecisionContext:
    """The facts of one decision.

    Attributes:
        line: The waiting jobs in the order in which Slurm is to serve them; native mode has none.
        guaranteed: ``(n,)`` bool, jobs that are guaranteed nodes; None: nothing is guaranteed.
        within: Nodes on which room may be made for a job, or is looked for at all.
        surplus: The running jobs that should be smaller; None: no job changes its size.
        movable: Rows of the jobs that may be preempted even if nobody wants back what they were
            lent.
        unsized: Rows of the waiting jobs to which this decision writes a size. GPUs are taken back
            for one once Slurm shows that: it may take a write and do nothing.
    """

    snap: Snapshot
    needs: ResourceRequests  # What the waiting jobs ask for
    free: FreeResources  # Free resources; nobody may change them
    preempts: Preempts  # Whom a waiting job may displace in the order of *intent*
    intent: Intent  # What the policy wants
    line: WaitingLine
    served: Rows  # Rows of the managed live jobs as they are served, best first
    candidates: Victims  # The running jobs, and which of them may be preempted
    may_displace: Bool  # ``(n,)`` bool, jobs for which others may be preempted
    guaranteed: Bool | None = None
    within: EligibleNodes = anywhere
    higher: HigherTiers | None = None  # Where jobs of a higher PriorityTier wait; None: nowhere
    types: EligibleNodes = anywhere  # Nodes of the type of GPUs that the policy chose for a job
    surplus: Surplus | None = None
    movable: Rows = field(default_factory=lambda: NOBODY)
    unsized: Rows = field(default_factory=lambda: NOBODY)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handovers:
    """From whom GPUs are taken back and for whom.

    Attributes:
        verdicts: What becomes of each hand-over that is under way or opened.
        notes: Why nothing is taken back for a waiting job.
    """

    judged: HandoverContext  # What the verdicts were found from
    verdicts: Mapping[HandoverId, Verdict]
    opened: tuple[Handover, ...] = ()  # Hand-overs that this decision begins
    notes: Mapping[JobId, str] = field(default_factory=dict)

    @property
    def live(self) -> tuple[Handover, ...]:
        """The hand-overs that are under way once this decision is done."""
        every = (*self.judged.snap.handovers, *self.opened)
        return tuple(h for h in every if self.verdicts[h.handover_id].kind != "wind up")

    @property
    def reserved(self) -> frozenset[JobId]:
        """Jobs that a hand-over makes room for: nothing else places or trims them."""
        return jobs_of(self.live)

    @property
    def sealed_for(self) -> frozenset[JobId]:
        """Jobs for which nodes are sealed; some were kept from these nodes for their last run."""
        return jobs_of(h for h in self.live if h.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionSteps:
    """Actions to take now, in this order.

    Attributes:
        writes: SiteFactors that stand alone; what is left over of them is derived again.
        notes: Why nothing is taken back for a waiting job.
    """

    steps: tuple[Action, ...] = ()  # Steps of hand-overs, and what clears up after them
    writes: tuple[SetSiteFactor, ...] = ()
    notes: Mapping[JobId, str] = field(default_factory=dict)


class Engine(Protocol):
    """One way of taking GPUs back."""

    def recount(self, snap: Snapshot, /) -> Snapshot:
        """*snap* with preemptions counted as this way counts them; twice is as good as once."""

    def undone(self, snap: Snapshot, /) -> tuple[JobId, ...]:
        """Jobs whose SiteFactor was written, matters, and is not in their priority."""

    def candidates(self, snap: Snapshot, /) -> Victims:
        """The managed running jobs, and which of them may be preempted."""

    def handovers(self, context: DecisionContext, /) -> Handovers:
        """Continue the hand-overs under way, and choose new ones."""

    def preemption_steps(
        self, context: DecisionContext, handovers: Handovers, /
    ) -> PreemptionSteps:
        """The actions of the hand-overs, and the SiteFactors."""
