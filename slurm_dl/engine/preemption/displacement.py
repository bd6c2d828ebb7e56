"""Running jobs that a waiting job may displace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import I16, I64, Bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DisplacementRule:
    """The rule by which a waiting job displaces running jobs.

    By target, a waiting job that should hold GPUs displaces running ones that should not. By tier,
    it displaces those of a worse tier; where both hold, only if it should itself hold GPUs. Tiers
    are needed beside the target because the target counts GPUs, not nodes: a gang whose GPUs lie
    in pieces is in the target, and so may be all jobs that run on its nodes.

    Nobody displaces a job that runs in a partition of a higher PriorityTier.

    GPUs that a job was lent it gives back for any job that should hold GPUs, see `surplus`.
    """

    target: Bool  # ``(n,)`` bool, jobs that should hold GPUs
    tier: I16  # ``(n,)`` tier of each job
    by_target: bool  # Whether the target decides
    by_tier: bool  # Whether tiers decide
    may: Bool  # ``(n,)`` bool, jobs that displace others at all, see `eligibility.displacers`
    priority_tier: I64 | None = None  # ``(n,)`` PriorityTier of each job; None: all have the same
    lent: Bool | None = None  # ``(n,)`` bool, jobs that should be smaller; None: nobody

    def displaceable(self, row: int, rows: npt.NDArray[np.int64]) -> Bool:
        """``(len(rows),)`` bool: which of the jobs at *rows* the waiting job at *row* displaces."""
        below: Bool = np.zeros(len(rows), dtype=np.bool_)
        lent = None if self.lent is None or not self.target[row] else self.lent[rows]
        if not self.may[row]:
            return below if lent is None else lent
        if self.by_target and self.target[row]:
            below |= ~self.target[rows]
        if self.by_tier and (self.target[row] or not self.by_target):
            below |= self.tier[rows] > self.tier[row]
        if self.priority_tier is not None:
            below &= self.priority_tier[rows] <= self.priority_tier[row]
        return below if lent is None else below | lent

    def kinds(self) -> I64:
        """``(n,)`` a number for each job; jobs of one number displace the same jobs."""
        tier = self.tier.astype(np.int64) if self.by_tier else np.zeros(len(self.tier), np.int64)
        if self.priority_tier is not None:
            tier += self.priority_tier << 16
        kinds: I64 = tier * 4 + self.target * 2 + self.may
        return kinds
