"""Certainty of a figure of one trace: 95 % bootstrap ranges, plain and paired, and resamples.

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

from slurm_dl.model.jobs import F64, I64
from slurm_dl.model.trace import Trace

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


_DAY_S: Final = 86_400.0
_FEWEST_DAYS: Final = 10
_PARTS: Final = 20
_LONGEST: Final = 3


@dataclass(frozen=True, slots=True)
class TimeBlocks:
    """The time of a trace, cut for resampling."""

    unit_s: float  # Days; of a trace of fewer than ten, a twentieth of its time
    units: I64  # Of each job, the one in which it was submitted, from 0
    count: int  # How many units there are
    length: int  # Units that are drawn together

    @classmethod
    def of(cls, trace: Trace, block_days: int | None = None) -> TimeBlocks:
        """The blocks of *trace*, which has jobs.

        Args:
            block_days: None: a tenth of the time, at most three days.
        """
        after_s = trace.submit_s - trace.submit_s[0]
        unit_s = _DAY_S
        if block_days is None and after_s[-1] < _FEWEST_DAYS * _DAY_S:
            # The last job is inside the last part; any unit does where all jobs come at once.
            unit_s = float(after_s[-1]) / _PARTS * (1 + 1e-9) or _DAY_S
        unit = (after_s // unit_s).astype(np.int64)
        count = int(unit[-1]) + 1
        usual = min(_LONGEST, max(1, count // 10))
        return cls(unit_s, unit, count, min(count, block_days or usual))

    @property
    def independent(self) -> float:
        """The number of blocks that can have jobs, no two of which have a unit in common."""
        return min(self.count / self.length, float(len(np.unique(self.units))))


def resampled(
    trace: Trace, seed: int, block_days: int | None = None, *, wraps: bool = True
) -> Trace:
    """A bootstrap of *trace*: blocks of its time with the jobs submitted in them.

    Blocks keep how jobs that follow each other, and the queue before them, belong together. As much
    time is drawn with replacement, in blocks that begin at any unit; the last one is cut. Each job
    keeps its time of the day.

    Args:
        seed: Of NumPy's default generator; 0 gives *trace* itself, and so does a draw without jobs.
        block_days: See `TimeBlocks.of`.
        wraps: The first day follows the last, so that each day is drawn as often as any other:
            the first and the last are rarely like the others.

    Source: Kunsch, "The jackknife and the bootstrap for general stationary observations", Annals of
    Statistics 17(3), 1989; with wraps Politis and Romano, "A circular block-resampling procedure
    for stationary data", in Exploring the Limits of Bootstrap, 1992.
    """
    if not seed or not len(trace):
        return trace
    cut = TimeBlocks.of(trace, block_days)
    count, length = cut.count, cut.length
    begins = np.random.default_rng(seed).integers(
        count if wraps else count - length + 1, size=math.ceil(count / length)
    )
    drawn = ((begins[:, None] + np.arange(length)) % count).ravel()[:count]
    rows = [np.flatnonzero(cut.units == unit) for unit in drawn.tolist()]
    at = np.concatenate(rows)
    if not len(at):
        return trace
    moved_s = np.repeat((np.arange(count) - drawn) * cut.unit_s, [len(r) for r in rows])
    # Rounding may put the last of a unit behind the first of the next.
    submit_s = np.maximum.accumulate(trace.submit_s[at] + moved_s)
    return trace.of_jobs(at, job_id=tuple(map(str, range(len(at)))), submit_s=submit_s)
