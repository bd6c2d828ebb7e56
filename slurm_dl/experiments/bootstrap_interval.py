"""Certainty of a figure of one trace: 95 % bootstrap ranges, plain and paired.

The first value is the figure of the trace itself, the others are those of resamples of it (Efron,
"Bootstrap methods: another look at the jackknife", Annals of Statistics 7(1), 1979). How far they
lie from it estimates how far the figure of such a trace lies from that of all such traces, so the
range is ``value +- t s``, where s is the root of their mean square distance. Figures above 0 are
taken by their logarithms, as queues are skewed, and so no bound is below 0. More resamples make a
range surer, not narrower: only a longer trace could.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.model.jobs import F64

LEVEL: Final = 0.95
_MOST_FREEDOM: Final = 3
"""Degrees of freedom: few long queues make most of a mean, whatever the number of days.
`tools/benchmarks/bench_ranges.py` measures how many ranges hold then."""

_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Range:
    """A figure of a trace and its range."""

    value: float  # Of the trace itself; NaN if it does not exist
    mean: float = math.nan  # Of the resamples; *value* if there are none
    low: float = math.nan  # The lower end; NaN where there is no range
    high: float = math.nan  # The upper end
    is_outside: bool = False  # The trace's value is none that its resamples have

    @property
    def is_known(self) -> bool:
        """True if there is a range."""
        return not math.isnan(self.low)

    def as_json(self) -> dict[str, object]:
        """``value``, ``mean``, ``low`` and ``high``, None where not known, and ``outside``."""
        ends = {"value": self.value, "mean": self.mean, "low": self.low, "high": self.high}
        told = {name: end if math.isfinite(end) else None for name, end in ends.items()}
        return {**told, "outside": self.is_outside}


def figure(values: F64, blocks: float, least: float = 0.0, most: float = math.inf) -> Range:
    """The range of a figure.

    Args:
        values: ``(1 + n,)`` of the trace, and of n resamples.
        blocks: How many blocks the resamples are drawn of; below 2 there is no range.
        least: It cannot be less; with 0 and no *most* it is taken by its logarithm.
        most: It cannot be more.
    """
    own, again = float(values[0]), values[1:]
    n = len(again)
    if not n:
        return Range(own, own)
    mean = float(np.mean(again))
    if blocks < 2 or not np.isfinite(values).all():  # noqa: PLR2004 - one block is the trace
        return Range(own, mean)
    is_log = least == 0 and most == math.inf and bool((values > 0).all())
    centre, points = (math.log(own), np.log(again)) if is_log else (own, again)
    # Of b blocks the variance comes out (b - 1) / b of what it is.
    spread = math.sqrt(float(np.mean((points - centre) ** 2)) * blocks / (blocks - 1))
    half = t_quantile(max(1, min(n, math.floor(blocks) - 1, _MOST_FREEDOM))) * spread
    low, high = centre - half, centre + half
    if is_log:
        low, high = own * math.exp(-half), own * math.exp(min(half, 700.0))
    return Range(own, mean, max(low, least), min(high, most), _is_outside(centre, points))


def _is_outside(value: float, points: F64) -> bool:
    n = len(points)
    if n < 2:  # noqa: PLR2004 - one says nothing of how they differ
        return False
    half = t_quantile(n - 1) * float(np.std(points, ddof=1)) * math.sqrt(1 + 1 / n)
    return abs(value - float(np.mean(points))) > half + _ROUNDING * abs(value)


def difference(values: F64, base: F64, blocks: float) -> Range:
    """The range of the difference to *base* on the same workloads, both ``(1 + n,)``."""
    return figure(values - base, blocks, least=-math.inf)


def ratio(values: F64, base: F64, blocks: float) -> Range:
    """The range of the ratio to *base* on the same workloads, both ``(1 + n,)``; NaN if one is 0.

    It reaches as far as that of the difference as a share of the first's own figure: ranges of a
    quotient alone hold too seldom. So it holds 1 wherever that holds 0.
    """
    found = figure(values / np.where(base > 0, base, np.nan), blocks)
    if not found.is_known:
        return found
    less, first = difference(values, base, blocks), float(base[0])
    low = max(0.0, min(found.low, 1 + less.low / first))
    return dataclasses.replace(found, low=low, high=max(found.high, 1 + less.high / first))


def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """The t that Student's variable stays within, on both sides of 0, in *level* of all cases.

    Args:
        freedom: Degrees of freedom, at least 1.
        level: A share of 1.
    """
    from scipy.special import stdtrit  # noqa: PLC0415 - slow to import

    return float(stdtrit(freedom, (1 + level) / 2))
