"""What a policy that orders jobs has to say, and nothing more.

A new published system is one file beside this one and one line in `registry`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np

from slurm_dl.model.jobs import F64, I16, Bool
from slurm_dl.model.snapshot import Snapshot

Preempts = Literal["never", "tier", "rank"]
"""Whom a waiting job may take GPUs from: nobody, jobs of a worse tier, any job ranking below it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """Every job of a snapshot put in its place.

    Jobs are served by (tier, key, tie, first submit, job id), smaller first.

    Attributes:
        tier: ``(n,)`` int16, 0 is served first.
        key: ``(n,)`` float64, order inside the tier.
        promote: ``(n,)`` bool, jobs whose service so far is to be forgiven now.
        tiers: How many tiers there are; ``tier < tiers``.
        tie: ``(n,)`` float64, order among equal keys; None if the first submission is to decide.
    """

    tier: I16
    key: F64
    promote: Bool
    tiers: int
    tie: F64 | None = None


def one_tier(key: F64, tie: F64 | None = None) -> Order:
    """The order of a policy whose key says it all; nobody is promoted."""
    n = len(key)
    return Order(
        tier=np.zeros(n, dtype=np.int16),
        key=key,
        promote=np.zeros(n, dtype=np.bool_),
        tiers=1,
        tie=tie,
    )


class Policy(Protocol):
    """Orders jobs. A frozen dataclass; its fields are its parameters, with units in the names."""

    name: ClassVar[str]
    source: ClassVar[str]
    """Paper and section the rule comes from."""
    interpretation: ClassVar[str]
    """Where it reads the source in its own way, in words; empty if nowhere."""
    preempts: ClassVar[Preempts]
    """Whom its waiting jobs may displace. Where they may not, running jobs keep their GPUs."""
    skips: ClassVar[bool]
    """Whether jobs behind one that does not fit are served meanwhile."""

    @property
    def tiers(self) -> int:
        """How many tiers its orders have."""

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*.

        Must be pure: equal snapshots give equal orders, whatever order Slurm listed the jobs in.
        """

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:
        """When its order of these jobs next changes by itself, if no job comes or goes.

        Args:
            order: What it has just said about *snap*.
            running: ``(n,)`` bool, the jobs that hold GPUs from now on; none without GPUs.

        Returns:
            Epoch seconds, not before now; inf if never.
        """
