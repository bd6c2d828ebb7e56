"""What a policy that orders jobs has to say, and nothing more.

A new published system is one file beside this one and one line in `registry`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from slurm_dl.model.jobs import F64, I16, Bool
from slurm_dl.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """Every job of a snapshot put in its place.

    Jobs are served by (tier, key, first submit, job id), smaller first.

    Attributes:
        tier: ``(n,)`` int16, 0 is served first. Only a better tier may preempt a worse one.
        key: ``(n,)`` float64, order inside the tier.
        promote: ``(n,)`` bool, jobs whose service so far is to be forgiven now.
        next_change_s: When the order next changes by itself if no job comes or goes, epoch
            seconds; inf if never.
        tiers: How many tiers there are; ``tier < tiers``.
    """

    tier: I16
    key: F64
    promote: Bool
    next_change_s: float
    tiers: int


class Policy(Protocol):
    """Orders jobs. A frozen dataclass; its fields are its parameters, with units in the names."""

    name: ClassVar[str]
    source: ClassVar[str]
    """Paper and section the rule comes from."""
    interpretation: ClassVar[str]
    """Where it reads the source in its own way, in words; empty if nowhere."""

    @property
    def tiers(self) -> int:
        """How many tiers its orders have."""

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*.

        Must be pure: equal snapshots give equal orders, whatever order Slurm listed the jobs in.
        """
