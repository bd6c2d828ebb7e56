"""How sure a figure of one trace is: 95 % bootstrap intervals, plain and paired.

The values are one figure on a trace and on bootstraps of it (Efron, "Bootstrap methods: another
look at the jackknife", Annals of Statistics 7(1), 1979). Their standard deviation s estimates the
standard error of the figure itself, so the interval is ``mean +- t(n - 1) s``. More seeds make it
surer, not narrower: only a longer trace could.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.model.jobs import F64

LEVEL: Final = 0.95


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

    def as_json(self) -> dict[str, object]:
        """``mean``, ``low`` and ``high``; None for one that is not known."""
        ends = {"mean": self.value, "low": self.low, "high": self.high}
        return {name: end if math.isfinite(end) else None for name, end in ends.items()}


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


def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """The t that Student's variable stays within, on both sides of 0, in *level* of all cases.

    Args:
        freedom: Degrees of freedom, at least 1.
        level: A share of 1.
    """
    from scipy.special import stdtrit  # noqa: PLC0415 - slow to import

    return float(stdtrit(freedom, (1 + level) / 2))
