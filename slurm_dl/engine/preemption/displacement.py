"""Whose GPUs may be taken back for whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import I16, Bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DisplacementRule:
    """Which running jobs a waiting job may displace.

    Attributes:
        tier: ``(n,)`` tier of each job; a waiting job displaces running ones of a worse tier.
    """

    tier: I16

    def displaceable(self, row: int, rows: npt.NDArray[np.int64]) -> Bool:
        """``(len(rows),)`` bool: which of the jobs at *rows* the waiting job at *row* displaces."""
        below: Bool = self.tier[rows] > self.tier[row]
        return below

    def kinds(self) -> I16:
        """``(n,)`` a number for each job; jobs of one number displace the same jobs."""
        return self.tier
