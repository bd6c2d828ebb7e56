"""A policy of a site's own: small jobs before large ones, and whoever is old before both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slurm_dl.model.jobs import Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import About, Order, Preempts


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFirst:
    """Old jobs first, then small ones, then the others; first eligible first inside each.

    Attributes:
        small_gpus: A job of so many GPUs or fewer is small.
        patience_s: A job is old so long after it could first start, seconds.
    """

    name: ClassVar[str] = "small_first"
    source: ClassVar[str] = "our site's terms of use, section 4"
    interpretation: ClassVar[str] = ""
    about: ClassVar[About] = About(
        row="X1",
        level="W3",
        formula="tier 0: age >= patience_s; 1: GPUs <= small_gpus; 2: all others",
        starves="a large job, where small ones have to wait for patience_s as well",
    )
    preempts: ClassVar[Preempts] = "tier"
    skips: ClassVar[bool] = True

    small_gpus: int = 2
    patience_s: float = 14_400.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.patience_s) and self.patience_s >= 0):
            msg = f"patience_s must be a finite number, 0 or more (got {self.patience_s})"
            raise ValueError(msg)

    @property
    def tiers(self) -> int:
        """Old, small, others."""
        return 3

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*."""
        first_s, small = snap.memory.queued_s, snap.jobs.gpus <= self.small_gpus
        tier = np.where(first_s + self.patience_s <= snap.now_s, 0, np.where(small, 1, 2))
        nobody = np.zeros(len(tier), dtype=np.bool_)
        return Order(tier=tier.astype(np.int16), key=first_s, promote=nobody, tiers=self.tiers)

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:  # noqa: ARG002
        """When the next job becomes old."""
        young = snap.memory.queued_s[order.tier > 0]
        return float(young.min(initial=np.inf)) + self.patience_s
