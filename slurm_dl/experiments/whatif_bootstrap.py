"""How sure a figure of a history is: a bootstrap over its days, plain and paired.

Days are resampled whole, as jobs of one day are not independent of each other: a resample is a
number of draws for each day. Two policies are held against each other on the same days.

An interval is the figure, and so many of its standard errors on both sides as the figures of 95 %
of the resamples stay within of it, each in standard errors of its own: the symmetric bootstrap-t
(Hall, "On symmetric bootstrap confidence intervals", Journal of the Royal Statistical Society B
50(1), 1988; Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 12). Its ends
are not bounded by the data, as those of percentiles and of BCa are, which are too narrow for few
days. It takes figures above 0, and ratios, as logarithms, for the reason in DiCiccio and Efron,
"Bootstrap confidence intervals", Statistical Science 11(3), 1996: it is best where the standard
error does not depend on the figure. It is never narrower than Student's interval.

Several differences hold at once (Beran, "Balanced simultaneous confidence sets", Journal of the
American Statistical Association 83, 1988): all have the level at which all of them hold in 95 % of
the resamples. So what the best of many policies gained is not chance that was picked.

Shapes: d days, b resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.experiments.bootstrap_interval import LEVEL, t_quantile
from slurm_dl.experiments.whatif_figures import ROUNDING, Figure
from slurm_dl.model.jobs import F64

FEWEST_DAYS: Final = 5
"""With fewer a bootstrap tells nothing."""

FEWEST_RESAMPLES: Final = 2000
_BEYOND: Final = 20
"""Resamples that are to lie beyond an interval."""

_AT_ONCE: Final = 500
_LARGEST_POWER: Final = 700.0
"""Of e, in a float."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A figure of all days and of resamples of them, each with its standard error.

    Attributes:
        days: How many days have jobs, of both figures where there are two.
        value: Of all days; NaN if there is no job.
        error: Its standard error.
        drawn: ``(b,)`` of the resamples; NaN where one has no job.
        errors: ``(b,)`` their standard errors.
    """

    days: int
    value: float
    error: float
    drawn: F64
    errors: F64

    @property
    def is_positive(self) -> bool:
        """Whether it is above 0 on all days, and on each resample that has it."""
        return self.value > 0 and bool(np.nanmin(self.drawn, initial=np.inf) > 0)

    def away(self) -> F64:
        """``(b,)`` how many of its standard errors each resample is away from it.

        0 where one has no job, infinite where it has no error and another figure.
        """
        same = np.isnan(self.drawn) | np.isclose(self.drawn, self.value, rtol=ROUNDING, atol=0)
        drawn = np.where(same, self.value, self.drawn)
        if self.is_positive:
            apart, error = np.abs(np.log(drawn / self.value)), self.errors / drawn
        else:
            apart, error = np.abs(drawn - self.value), self.errors
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(same, 0.0, apart / error)


@dataclass(frozen=True, slots=True, eq=False)
class PairedFigure:
    """A figure held against another on the same days.

    Attributes:
        own: The figure.
        less: It less the other.
        over: It as a multiple of the other; None where that is not above 0 everywhere.
    """

    own: Sample
    less: Sample
    over: Sample | None

    @property
    def judged(self) -> Sample:
        """What is judged by: the multiple, where there is one."""
        return self.less if self.over is None else self.over


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure of all days, and its interval.

    Attributes:
        value: NaN if there is no job.
        low: The lower end; NaN if there are too few days, infinite if they bound nothing.
        high: The upper end.
    """

    value: float
    low: float
    high: float

    @property
    def is_known(self) -> bool:
        """Whether there is an interval."""
        return not (math.isnan(self.low) or math.isnan(self.high))

    @property
    def is_bounded(self) -> bool:
        """Whether there is one with two ends."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def has_zero(self) -> bool:
        """Whether 0 is inside: then the history shows no difference."""
        return not self.is_known or self.low <= 0 <= self.high


def resamples_for(intervals: int) -> int:
    """How many resamples suffice for so many intervals that are to hold all at once."""
    return max(FEWEST_RESAMPLES, round(_BEYOND * intervals / (1 - LEVEL)))


def draws(days: int, resamples: int, seed: int) -> F64:
    """``(resamples, days)`` how often each day is drawn; *days* draws with replacement in each.

    Args:
        seed: Of NumPy's default generator.
    """
    rng = np.random.default_rng(seed)
    return rng.multinomial(days, np.full(days, 1 / days), size=resamples).astype(np.float64)


def held(
    figures: Sequence[Figure], weights: F64, tick: Callable[[], None] = lambda: None
) -> list[PairedFigure]:
    """Each of *figures* held against the first.

    Args:
        weights: ``(b, d)`` of `draws`.
        tick: Called now and then while it works.
    """
    days = weights.shape[1]
    parts = [weights[at : at + _AT_ONCE] for at in range(0, len(weights), _AT_ONCE)]
    found: list[list[tuple[F64, ...]]] = [[] for _ in figures]
    for part in (np.ones((1, days)), *parts):
        base = figures[0].linear(part)
        for columns, figure in zip(found, figures, strict=True):
            own = base if figure is figures[0] else figure.linear(part)
            each = (own, own.less(base), own.over(base))
            columns.append(tuple(column for one in each for column in (one.value, one.error(part))))
        tick()
    samples = [
        [np.concatenate(column) for column in zip(*columns, strict=True)] for columns in found
    ]
    has_share = bool(np.nanmin(samples[0][0], initial=np.inf) > 0)
    base_has = figures[0].has_jobs(days)
    made = []
    for figure, parts_of in zip(figures, samples, strict=True):
        has = figure.has_jobs(days)
        alone, both = int(np.count_nonzero(has)), int(np.count_nonzero(has & base_has))
        made.append(
            PairedFigure(
                own=_sample(alone, *parts_of[0:2]),
                less=_sample(both, *parts_of[2:4]),
                over=_sample(both, *parts_of[4:6]) if has_share else None,
            )
        )
    return made


def _sample(days: int, values: F64, errors: F64) -> Sample:
    return Sample(days, float(values[0]), float(errors[0]), values[1:], errors[1:])


def joint_level(samples: Sequence[Sample], level: float = LEVEL) -> float:
    """The level of each of several intervals such that all hold at once in *level* of all cases.

    Args:
        samples: At least one, of the same resamples.
    """
    most = np.zeros(len(samples[0].drawn))
    for sample in samples:
        away = sample.away()
        # Of those as far away as each other none is beyond: what has no end moves no other.
        nearer = np.searchsorted(np.sort(away), away, side="left") / len(away)
        most = np.maximum(most, nearer)
    return max(level, float(np.quantile(most, level, method="higher")))


def range_of(found: Sample, level: float = LEVEL) -> Interval:
    """A figure and its interval; none for fewer days with jobs than `FEWEST_DAYS`.

    Args:
        level: How often the interval holds the figure.
    """
    nothing = Interval(found.value, math.nan, math.nan)
    if found.days < FEWEST_DAYS or not math.isfinite(found.value):
        return nothing
    # Where all days may differ in one direction by chance more often than the interval may fail,
    # or no resample lies beyond it, there is none to tell.
    if 2.0 ** (1 - found.days) > 1 - level or (1 - level) * len(found.drawn) < 1:
        return nothing
    away = found.away()[~np.isnan(found.drawn)]
    most = float(np.quantile(away, level, method="higher"))
    if not most and not found.error:
        return Interval(found.value, found.value, found.value)
    errors = max(most, t_quantile(found.days - 1, level)) if found.error else math.inf
    if not found.is_positive:
        half = errors * found.error if found.error else math.inf
        return Interval(found.value, found.value - half, found.value + half)
    half = errors * found.error / found.value if found.error else math.inf
    return Interval(found.value, found.value * _exp(-half), found.value * _exp(half))


def _exp(power: float) -> float:
    return math.exp(power) if power < _LARGEST_POWER else math.inf


def amount_of(found: Sample, most: float, level: float = LEVEL) -> Interval:
    """A figure between 0 and *most*, and its interval, whose ends are in there too.

    Days that are all 0, or all *most*, do not tell how far from it others may be: then there is
    no other end.
    """
    told = range_of(found, level)
    if not told.is_known:
        return told
    if told.low == told.high == 0:
        return Interval(told.value, 0.0, math.inf)
    if told.low == told.high == most:
        return Interval(told.value, -math.inf, most)
    return Interval(
        told.value, max(told.low, 0.0), min(told.high, most) if told.is_bounded else told.high
    )


def change_of(over: Sample, level: float = LEVEL) -> Interval:
    """The interval of a multiple as that of a change: 0.9 times as much is -0.1; at least -1."""
    found = range_of(over, level)
    low = max(found.low, 0.0) if found.is_known else found.low
    return Interval(found.value - 1, low - 1, found.high - 1)
