"""What both ways of taking GPUs back start from, and what they answer.

`external_mode` and `native_mode` are the two; `decide` asks the one that the settings name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from slurm_dl.engine.intent import Intent
from slurm_dl.engine.placing.eligible_nodes import EligibleNodes, anywhere
from slurm_dl.engine.preemption.eligibility import Victims
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import I64
from slurm_dl.model.plan import Action, SetSiteFactor
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Preempts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecisionContext:
    """The facts of one decision.

    Attributes:
        preempts: Whom the policy lets a waiting job displace.
        intent: What the policy wants.
        bands: ``(n,)`` SiteFactor of each job's tier.
        candidates: The running jobs, and which of them may be preempted.
        within: Nodes on which room may be made for a job, or is looked for at all.
        types: Nodes of the type of GPUs that the policy chose for a job.
    """

    snap: Snapshot
    preempts: Preempts
    intent: Intent
    bands: I64
    candidates: Victims
    within: EligibleNodes = anywhere
    types: EligibleNodes = anywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionSteps:
    """What is to be done now, in this order.

    Attributes:
        steps: Steps of hand-overs, and what clears up after them.
        writes: SiteFactors that stand alone; what is left over of them is derived again.
        notes: Why nothing is taken back for a waiting job.
        unhonoured: Jobs whose SiteFactor was written, matters, and is not in their priority.
    """

    steps: tuple[Action, ...] = ()
    writes: tuple[SetSiteFactor, ...] = ()
    notes: Mapping[JobId, str] = field(default_factory=dict)
    unhonoured: tuple[JobId, ...] = ()


class Engine(Protocol):
    """One way of taking GPUs back."""

    def recount(self, snap: Snapshot, /) -> Snapshot:
        """*snap* with preemptions counted as this way counts them; twice is as good as once."""

    def candidates(self, snap: Snapshot, /) -> Victims:
        """The managed running jobs, and which of them may be preempted."""

    def preemption_steps(self, context: DecisionContext, /) -> PreemptionSteps:
        """What is to be done about GPUs that should change hands, and about SiteFactors."""
