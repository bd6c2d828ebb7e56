"""Two jobs on the same GPUs: their speeds, and a policy's rule on who may share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np

from slurm_dl.model.jobs import F64, I32, I64, Bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRule:
    """A policy's own conditions on a pair, beyond those of the site.

    Attributes:
        by_labels: The labels of both models must add up to 2 at most; the sum of speeds does not
            count.
        most_ratio: Most that the expected GPU-seconds of the guest may be of those that the host
            has left; None: no such bound.
        first_host: Of several hosts the one that started first is taken, not the best sum.
        left_gpu_s: ``(n,)`` GPU-seconds that each job is expected to run on; None: by
            `Snapshot.left_s`.
    """

    by_labels: bool = False
    most_ratio: float | None = None
    first_host: bool = False
    left_gpu_s: F64 | None = field(default=None, compare=False)


NO_RULE = PairRule()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairRates:
    """Speeds of pairs by the kinds of their jobs.

    Attributes:
        kind: ``(n,)`` int32 kind of each job; -1: it never shares.
        rate: ``(c, c, t)`` ``rate[a, b, j]``: speed of a job of kind a beside one of kind b on GPUs
            of type j, relative to its speed alone there; 0 where the two do not fit.
    """

    kind: I32
    rate: F64

    def at(self, rows: I64) -> PairRates:
        """Those of the jobs at *rows*."""
        return dataclasses.replace(self, kind=self.kind[rows])

    def beside(self, one: I64, other: I64) -> F64:
        """``(2, k, t)`` relative speeds of the jobs *one* and *other*; 0 where they do not fit."""
        a, b = self.kind[one], self.kind[other]
        both = np.stack([self.rate[a, b], self.rate[b, a]])
        fit: Bool = ((a >= 0) & (b >= 0))[:, None] & (both > 0).all(axis=0)
        return np.where(fit, both, 0.0)

    def sums(self) -> F64:
        """``(c, c, t)`` sum of both relative speeds; 0 where the two do not fit."""
        other = self.rate.transpose(1, 0, 2)
        total: F64 = np.where((self.rate > 0) & (other > 0), self.rate + other, 0.0)
        return total
