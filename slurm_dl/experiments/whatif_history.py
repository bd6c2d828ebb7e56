"""A history cut into days, and what a policy makes of each of its jobs.

A simulation begins with an empty cluster and ends without new jobs, and neither is so at a site.
So the jobs of the first and the last days are simulated with the others and are not counted. A
job belongs to the day, in UTC, on which it was submitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

import numpy as np

from slurm_dl.experiments.grid import Simulated
from slurm_dl.experiments.whatif_figures import Figure, Percentile, Ratio
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64, I64, Bool
from slurm_dl.model.trace import Trace
from slurm_dl.report.fairness import UNFAIR_RHO, finish_time_fairness
from slurm_dl.simulation.cluster_shape import ClusterShape

DAY_S: Final = 86_400.0
HOUR_S: Final = 3600.0
MOST_DAYS: Final = 3660
"""Ten years."""

_MOST_EDGE: Final = 7
_EDGE_SHARE: Final = 10
_NO_EDGE_BELOW: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureKind:
    """A figure that policies can be held against each other by; less is better.

    Attributes:
        title: What tables call it.
        is_time: It is in seconds.
        most: It can't be more, and never less than 0.
    """

    title: str
    is_time: bool = True
    most: float = math.inf


KINDS: Final = {
    "mean-jct": FigureKind(title="mean JCT"),
    "p50-jct": FigureKind(title="median JCT"),
    "p95-jct": FigureKind(title="p95 JCT"),
    "p99-jct": FigureKind(title="p99 JCT"),
    "mean-queue": FigureKind(title="mean queueing"),
    "p95-queue": FigureKind(title="p95 queueing"),
    "lost": FigureKind(title="GPU-hours lost a day", is_time=False),
    "mean-rho": FigureKind(title="mean rho", is_time=False),
    "unfair": FigureKind(title="share of jobs treated unfairly", is_time=False, most=1.0),
}
"""By the word of ``--by``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DailyHistory:
    """The jobs that are simulated, and on which day each is counted.

    Attributes:
        trace: The jobs that the cluster can hold.
        block: ``(n,)`` the block of days that the job is counted in, from 0; -1: it is not counted.
        blocks: How many there are.
        block_days: Days in each; the last may have up to twice as many less one.
        first_s: Midnight of the first day that is counted, seconds.
        days: All days, those not counted as well.
        warm_up: Days at the beginning that are not counted.
        cool_down: Days at the end that are not counted.
        too_large: Jobs left out because they ask for more GPUs than there are.
    """

    trace: Trace
    block: I64
    blocks: int
    block_days: int
    first_s: float
    days: int
    warm_up: int
    cool_down: int
    too_large: int

    @property
    def counted_days(self) -> int:
        """Days whose jobs are counted."""
        return self.days - self.warm_up - self.cool_down

    @property
    def is_counted(self) -> Bool:
        """``(n,)`` whether the job is counted."""
        return self.block >= 0

    def date_of(self, block: int) -> date:
        """The first day of a block."""
        return datetime.fromtimestamp(self.first_s + block * self.block_days * DAY_S, UTC).date()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fate:
    """What became of the counted jobs under one policy, as columns of length m.

    Attributes:
        block: ``(m,)`` the block of days each is counted in.
        jct_s: ``(m,)`` job completion time, seconds; NaN if it did not finish.
        queue_s: ``(m,)`` all its waiting, seconds.
        rho: ``(m,)`` finish-time fairness.
        lost_gpu_s: ``(m,)`` GPU-seconds without progress.
        days: ``(blocks,)`` days in each block.
        costs: The cost model.
        notes: What was filled in that nobody would guess.
        preemptions: How often one of the jobs was stopped.
    """

    block: I64
    jct_s: F64
    queue_s: F64
    rho: F64
    lost_gpu_s: F64
    days: F64
    costs: str
    notes: tuple[str, ...]
    preemptions: int

    @property
    def unfinished(self) -> int:
        """Jobs that did not come to an end."""
        return int(np.isnan(self.jct_s).sum())

    def figure(self, word: str) -> Figure:
        """The figure that *word* of `KINDS` means; times in seconds."""
        match word:
            case "mean-jct":
                return self._mean(self.jct_s)
            case "mean-queue":
                return self._mean(self.queue_s)
            case "mean-rho":
                return self._mean(self.rho)
            case "unfair":
                return self._mean(
                    np.where(np.isnan(self.rho), np.nan, (self.rho > UNFAIR_RHO).astype(np.float64))
                )
            case "lost":
                jobs = self._sums(np.ones(len(self.block)))
                return Ratio(self._sums(self.lost_gpu_s) / HOUR_S, self.days, jobs)
            case "p50-jct" | "p95-jct" | "p99-jct" | "p95-queue":
                percent, _, column = word.removeprefix("p").partition("-")
                values = self.jct_s if column == "jct" else self.queue_s
                known = ~np.isnan(values)
                return Percentile(values[known], self.block[known], int(percent))
            case _:
                msg = f"no figure {word!r}"
                raise ValueError(msg)

    def values(self) -> dict[str, float]:
        """Every figure of `KINDS` over all days."""
        once = np.ones((1, len(self.days)))
        return {word: float(self.figure(word).of(once)[0]) for word in KINDS}

    def _sums(self, column: F64) -> F64:
        return np.bincount(self.block, weights=column, minlength=len(self.days)).astype(np.float64)

    def _mean(self, column: F64) -> Ratio:
        known = ~np.isnan(column)
        return Ratio(self._sums(np.where(known, column, 0.0)), self._sums(known.astype(np.float64)))


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
    kept = only(trace, fits)
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


def only(trace: Trace, rows: Bool) -> Trace:
    """The jobs of *trace* at *rows*, ``(n,)`` bool."""
    if rows.all():
        return trace
    return trace.of_jobs(rows.nonzero()[0])


def fate_of(history: DailyHistory, simulated: Simulated) -> Fate:
    """What became of the counted jobs of *history*, a measure for `grid.run`."""
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
