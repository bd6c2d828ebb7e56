"""A history cut into days, and what a policy makes of each of its jobs.

A simulation begins with an empty cluster and ends without new jobs, and neither is so at a site.
So the jobs of the first and the last days are simulated with the others and are not counted. A
job belongs to the day, in UTC, on which it was submitted. Figures are functions of how often each
day is drawn. Shapes: d days, b resamples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

import numpy as np

from slurm_dl.experiments.grid import Simulated
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64, I64, Bool
from slurm_dl.model.trace import Trace
from slurm_dl.report.summary_metrics import UNFAIR_RHO, finish_time_fairness
from slurm_dl.simulation.cluster_shape import ClusterShape

DAY_S: Final = 86_400.0
HOUR_S: Final = 3600.0
MOST_DAYS: Final = 3660  # Ten years
ROUNDING: Final = 1e-9  # Relative; a simulation adds up times in another order under another policy
_MOST_EDGE: Final = 7
_EDGE_SHARE: Final = 10
_NO_EDGE_BELOW: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class Ratio:
    """A sum over another, such as a mean over jobs."""

    above: F64  # ``(d,)`` of each day
    below: F64  # ``(d,)`` of each day, 0 or more
    jobs: F64 | None = None  # ``(d,)`` jobs of each day; None: *below* is 0 where there is none

    def of(self, weights: F64, /) -> F64:
        """``(b,)`` the figure of each resample; NaN where it has no job.

        Args:
            weights: ``(b, d)`` how often each day is drawn.
        """
        with np.errstate(invalid="ignore"):
            ratio: F64 = (weights @ self.above) / (weights @ self.below)
        return ratio

    def has_jobs(self, _days: int, /) -> Bool:
        """``(d,)`` of each of so many days, whether jobs of it are in the figure."""
        return (self.below if self.jobs is None else self.jobs) > 0


class Percentile:
    """The smallest value that at least so many percent of the jobs do not exceed.

    The 50th of an even number of jobs is the mean of the middle two, as in all reports.
    """

    __slots__ = ("_day", "_percent", "_values")

    def __init__(self, values: F64, day: I64, percent: int) -> None:
        """Sort once for all resamples.

        Args:
            values: ``(n,)`` of each job.
            day: ``(n,)`` its day, from 0.
            percent: 1 to 100.
        """
        order = np.argsort(values, kind="stable")
        self._values, self._day, self._percent = values[order], day[order], percent

    def of(self, weights: F64, /) -> F64:
        """See `Ratio`."""
        return np.array([self._one(row) for row in weights])

    def has_jobs(self, days: int, /) -> Bool:
        """See `Ratio`."""
        return np.bincount(self._day, minlength=days) > 0

    def _one(self, weights: F64) -> float:
        upto = np.cumsum(weights[self._day].astype(np.int64))
        total = int(upto[-1]) if len(upto) else 0
        if not total:
            return math.nan
        if self._percent == 50:  # noqa: PLR2004 - the median
            ranks = [(total + 1) // 2, total // 2 + 1]
        else:
            ranks = [-(-total * self._percent // 100)]
        return float(self._values[np.searchsorted(upto, ranks)].mean())


Figure = Ratio | Percentile  # A figure of the jobs of some days


@dataclass(frozen=True, slots=True)
class FigureKind:
    """A figure that policies can be held against each other by; less is better."""

    title: str  # What tables call it
    column: str  # Of `Fate`: the value of each job
    percent: int = 0  # Which percentile of them; 0: the mean
    is_time: bool = True  # It is in seconds
    most: float = math.inf  # It can't be more, and never less than 0


KINDS: Final = {
    "mean-jct": FigureKind("mean JCT", "jct_s"),
    "p50-jct": FigureKind("median JCT", "jct_s", 50),
    "p95-jct": FigureKind("p95 JCT", "jct_s", 95),
    "p99-jct": FigureKind("p99 JCT", "jct_s", 99),
    "mean-queue": FigureKind("mean queueing", "queue_s"),
    "p95-queue": FigureKind("p95 queueing", "queue_s", 95),
    "lost": FigureKind("GPU-hours lost a day", "lost_gpu_s", is_time=False),
    "mean-rho": FigureKind("mean rho", "rho", is_time=False),
    "unfair": FigureKind("share of jobs treated unfairly", "unfair", is_time=False, most=1.0),
}
"""By the word of ``--by``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DailyHistory:
    """The jobs that are simulated, and on which day each is counted."""

    trace: Trace  # The jobs that the cluster can hold
    block: I64  # ``(n,)`` block of days of each job, from 0; -1: it is not counted
    blocks: int  # How many there are
    block_days: int  # Days in each; the last may have up to twice as many less one
    first_s: float  # Midnight of the first day that is counted, seconds
    days: int  # All days, those not counted as well
    warm_up: int  # Days at the beginning that are not counted
    cool_down: int  # Days at the end that are not counted
    too_large: int  # Jobs left out because they ask for more GPUs than there are

    @property
    def counted_days(self) -> int:
        """Days whose jobs are counted."""
        return self.days - self.warm_up - self.cool_down

    @property
    def is_counted(self) -> Bool:
        """``(n,)`` whether the job is counted."""
        return self.block >= 0

    @property
    def jobs_counted(self) -> int:
        """Number of jobs that are counted."""
        return int(self.is_counted.sum())

    def date_of(self, block: int) -> date:
        """The first day of a block."""
        return datetime.fromtimestamp(self.first_s + block * self.block_days * DAY_S, UTC).date()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fate:
    """Ends of the counted jobs under one policy, as columns of length m."""

    block: I64  # ``(m,)`` the block of days each is counted in
    jct_s: F64  # ``(m,)`` job completion time, seconds; NaN if it did not finish
    queue_s: F64  # ``(m,)`` all its waiting, seconds
    rho: F64  # ``(m,)`` finish-time fairness
    lost_gpu_s: F64  # ``(m,)`` GPU-seconds without progress
    days: F64  # ``(blocks,)`` days in each block
    costs: str  # The cost model
    notes: tuple[str, ...]  # What was filled in that nobody would guess
    preemptions: int  # How often one of the jobs was stopped

    @property
    def unfinished(self) -> int:
        """Jobs that did not come to an end."""
        return int(np.isnan(self.jct_s).sum())

    @property
    def unfair(self) -> F64:
        """``(m,)`` 1 for a job treated unfairly, else 0; NaN where rho is."""
        return np.where(np.isnan(self.rho), np.nan, self.rho > UNFAIR_RHO)

    def figure(self, word: str) -> Figure:
        """The figure that *word* of `KINDS` means; times in seconds."""
        kind = KINDS[word]
        values: F64 = getattr(self, kind.column)
        known = ~np.isnan(values)
        values, block = values[known], self.block[known]
        if kind.percent:
            return Percentile(values, block, kind.percent)
        jobs = np.bincount(block, minlength=len(self.days)).astype(np.float64)
        sums = np.bincount(block, weights=values, minlength=len(self.days)).astype(np.float64)
        if word == "lost":
            return Ratio(sums / HOUR_S, self.days, jobs)
        return Ratio(sums, jobs)

    def values(self) -> dict[str, float]:
        """Every figure of `KINDS` over all days."""
        once = np.ones((1, len(self.days)))
        return {word: float(self.figure(word).of(once)[0]) for word in KINDS}


def cut(
    trace: Trace,
    shape: ClusterShape,
    *,
    warm_up: int | None = None,
    cool_down: int | None = None,
    block_days: int = 1,
) -> DailyHistory:
    """*trace* in days.

    Args:
        warm_up: Days at the beginning that are not counted; None: a tenth, at least one and at
            most seven, and none of fewer than four days.
        cool_down: The same at the end.
        block_days: So many days are resampled together.

    Raises:
        ConfigError: No job fits the cluster, no day is left to count, or there are too many days.
    """
    fits = trace.gpus <= shape.gpus
    if not fits.any():
        msg = f"{trace.name}: no job asks for at most the {shape.gpus} GPUs of the cluster"
        raise ConfigError(msg)
    kept = trace.of_jobs(np.flatnonzero(fits))
    number = np.floor(kept.submit_s / DAY_S).astype(np.int64)
    first = int(number[0])
    days = int(number[-1]) - first + 1
    if days > MOST_DAYS:
        msg = f"{trace.name}: {days:,} days; at most {MOST_DAYS:,}, so cut the history"
        raise ConfigError(msg)
    before = edge_days(days) if warm_up is None else warm_up
    after = edge_days(days) if cool_down is None else cool_down
    counted = days - before - after
    if counted < 1:
        msg = (
            f"{trace.name}: {days} days, of which {before} at the beginning and {after} at the "
            "end are not counted: none is left; see --warm-up and --cool-down"
        )
        raise ConfigError(msg)
    day = number - first - before
    blocks = max(1, counted // block_days)
    inside = (day >= 0) & (day < counted)
    return DailyHistory(
        trace=kept,
        block=np.where(inside, np.minimum(day // block_days, blocks - 1), -1),
        blocks=blocks,
        block_days=block_days,
        first_s=(first + before) * DAY_S,
        days=days,
        warm_up=before,
        cool_down=after,
        too_large=int((~fits).sum()),
    )


def edge_days(days: int) -> int:
    """Days at either end of so many that are not counted if nobody says."""
    return 0 if days < _NO_EDGE_BELOW else min(_MOST_EDGE, max(1, days // _EDGE_SHARE))


def fate_of(history: DailyHistory, simulated: Simulated) -> Fate:
    """The fate of the counted jobs of *history*, a measure for `grid.run`."""
    result = simulated.result
    records = result.outcome.records
    counted = history.is_counted
    days = np.full(history.blocks, float(history.block_days))
    days[-1] = history.counted_days - (history.blocks - 1) * history.block_days
    return Fate(
        block=history.block[counted],
        jct_s=records.jct_s[counted],
        queue_s=records.queue_s[counted],
        rho=finish_time_fairness(records, gpus=simulated.shape.gpus)[counted],
        lost_gpu_s=records.all_lost_gpu_s[counted],
        days=days,
        costs=result.costs,
        notes=result.chosen.notes,
        preemptions=int(records.preemptions[counted].sum()),
    )
