"""How sure a figure of one trace is: 95 % bootstrap intervals, plain and paired.

The values are one figure on a trace and on bootstraps of it (Efron, "Bootstrap methods: another
look at the jackknife", Annals of Statistics 7(1), 1979). Their standard deviation s estimates the
standard error of the figure itself, so the interval is ``mean +- t(n - 1) s``. More seeds make it
surer, not narrower: only a longer trace could. The quantile of t comes from the finite series for
whole degrees of freedom (Abramowitz and Stegun, "Handbook of Mathematical Functions", 1964, 26.7.3
and 26.7.4).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.model.jobs import F64

LEVEL: Final = 0.95
_BISECTIONS: Final = 80
_WIDEST: Final = 64.0
"""Above the quantile for one degree of freedom, 12.7."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and how far its interval reaches on both sides.

    Attributes:
        value: The mean; NaN if one of the values is.
        half: Half of the interval; NaN for fewer than two values.
    """

    value: float
    half: float

    @property
    def low(self) -> float:
        """The lower end."""
        return self.value - self.half

    @property
    def high(self) -> float:
        """The upper end."""
        return self.value + self.half


def mean(values: F64) -> Mean:
    """The mean of *values*, ``(n,)`` with n at least 1, and its interval."""
    n = len(values)
    if n < 2:  # noqa: PLR2004 - one value says nothing of how values differ
        return Mean(float(values[0]), math.nan)
    spread = float(np.std(values, ddof=1))
    return Mean(float(np.mean(values)), t_quantile(n - 1) * spread)


def paired_difference(values: F64, base: F64) -> Mean:
    """Mean of the differences to *base* on the same workloads, both ``(n,)``."""
    return mean(values - base)


def paired_ratio(values: F64, base: F64) -> Mean:
    """Mean of the ratios to *base* on the same workloads, both ``(n,)``; NaN if a base is 0."""
    safe = np.where(base > 0, base, np.nan)
    return mean(values / safe)


@functools.lru_cache(maxsize=1024)
def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """The t that Student's variable stays within, on both sides of 0, in *level* of all cases.

    Args:
        freedom: Degrees of freedom, at least 1.
        level: A share of 1, such that t is below 64.
    """
    low, high = 0.0, _WIDEST
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if _within(middle, freedom) < level:
            low = middle
        else:
            high = middle
    return high


def _within(t: float, freedom: int) -> float:
    """P(abs(T) <= t) for Student's T with *freedom* degrees of freedom."""
    angle = math.atan(t / math.sqrt(freedom))
    squared = math.cos(angle) ** 2
    is_odd = freedom % 2 == 1
    term = math.cos(angle) if is_odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if is_odd else 2, freedom - 1, 2):
        term *= squared * (k - 1) / k
        total += term
    if is_odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
