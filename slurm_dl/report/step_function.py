"""Quantities that change at instants only, as exact step functions over time.

All of it is array arithmetic, ``O(n log n)`` in the number of changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from slurm_dl.model.jobs import F64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """A function that is 0 before its first instant and constant between two of them.

    Attributes:
        time_s: ``(m,)`` instants, seconds, increasing.
        value: ``(m,)`` value from that instant on; the last one holds for ever.
    """

    time_s: F64
    value: F64

    @classmethod
    def of(cls, changes: Sequence[tuple[F64, F64]]) -> Self:
        """Of what is added to the value, and when.

        Args:
            changes: Pairs of columns of one length: instants (seconds), and what is added then.
        """
        if not changes:
            return cls(time_s=np.zeros(0), value=np.zeros(0))
        at_s = np.concatenate([times for times, _ in changes])
        added = np.concatenate([amounts for _, amounts in changes])
        time_s, where = np.unique(at_s, return_inverse=True)
        at_once = np.bincount(where, weights=added, minlength=len(time_s))
        return cls(time_s=time_s, value=np.cumsum(at_once))

    def __len__(self) -> int:
        return len(self.time_s)

    def integral_to(self, until_s: F64) -> F64:
        """Integral from the beginning to each of these instants, in the shape of *until_s*."""
        if not len(self):
            return np.zeros_like(until_s)
        parts = self.value[:-1] * np.diff(self.time_s)
        integral = np.concatenate([[0.0], np.cumsum(parts)])
        last = np.searchsorted(self.time_s, until_s, side="right") - 1
        at = np.maximum(last, 0)
        reached: F64 = integral[at] + self.value[at] * (until_s - self.time_s[at])
        return np.where(last >= 0, reached, 0.0)

    def integral(self) -> float:
        """Integral from the first instant to the last."""
        return float(self.value[:-1] @ np.diff(self.time_s)) if len(self) else 0.0

    def means(self, edges_s: F64) -> F64:
        """Mean over each window between two neighbouring edges.

        Args:
            edges_s: ``(w + 1,)`` instants, seconds, increasing.

        Returns:
            ``(w,)`` exact means; no value is sampled.
        """
        means: F64 = np.diff(self.integral_to(edges_s)) / np.diff(edges_s)
        return means
