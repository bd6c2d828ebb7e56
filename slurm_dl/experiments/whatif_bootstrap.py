"""How sure a figure of a history is: a bootstrap over its days, paired by day.

Days are resampled whole, as jobs of one day are not independent of each other. Two policies are
held against each other on the same resamples. An interval is BCa (Efron, "Better bootstrap
confidence intervals", Journal of the American Statistical Association 82, 1987), and never narrower
than Student's with the standard error of the resamples: of few days BCa alone is too narrow.

Differences of several policies to the first are judged with Holm's correction ("A simple
sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.experiments.bootstrap_interval import LEVEL, t_quantile
from slurm_dl.experiments.whatif_figures import ROUNDING, Figure
from slurm_dl.model.jobs import F64, I64

FEWEST_DAYS: Final = 10
"""With fewer that have jobs nothing is told."""

FEWEST_RESAMPLES: Final = 2000
_BEYOND: Final = 20
"""Resamples that are to lie beyond an interval."""

_AT_ONCE: Final = 500
_OWN, _LESS, _CHANGE = range(3)
_LEAST: Final = (0.0, -math.inf, -1.0)
"""Of a figure, a difference and a change."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure of all days, and its interval.

    Attributes:
        value: NaN if there is no job.
        low: The lower end; NaN if there are too few days.
        high: The upper end.
    """

    value: float
    low: float
    high: float

    @property
    def is_known(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.low)

    @property
    def has_zero(self) -> bool:
        """Whether 0 is inside: then the history shows no difference."""
        return not self.is_known or self.low <= 0 <= self.high


@dataclass(frozen=True, slots=True)
class PairedFigure:
    """A figure held against the first on the same days.

    Attributes:
        own: The figure, with its 95 % interval.
        difference: It less the first.
        change: The same as a share of the first, at least -1; None where that may be 0.
    """

    own: Interval
    difference: Interval
    change: Interval | None

    @property
    def judged(self) -> Interval:
        """What is judged by: the change, where there is one."""
        return self.difference if self.change is None else self.change


def resamples_for(differences: int) -> int:
    """How many resamples suffice for so many differences."""
    return max(FEWEST_RESAMPLES, round(_BEYOND * differences / (1 - LEVEL)))


def first_level(differences: int) -> float:
    """The level of the intervals at the first step of Holm's correction."""
    return 1 - (1 - LEVEL) / max(1, differences)


def held(
    figures: Sequence[Figure],
    days: int,
    *,
    resamples: int,
    seed: int,
    tick: Callable[[], None] = lambda: None,
) -> list[PairedFigure]:
    """Each of *figures* held against the first.

    At each step of Holm's correction the intervals have the level for as many differences as are
    left; those without 0 are shown to differ, and the next step is about the others.

    Args:
        days: Of which the figures are functions.
        seed: Of NumPy's default generator.
        tick: Called now and then while it works.
    """
    drawn = _Resamples(figures, days, resamples, seed, tick)
    whole = drawn.paired(LEVEL)
    made = dict(enumerate(whole))
    left = set(range(1, len(figures)))
    while left:
        step = drawn.paired(first_level(len(left)))
        shown = {number for number in left if not step[number].judged.has_zero} or left
        for number in shown:
            made[number] = dataclasses.replace(step[number], own=whole[number].own)
        left -= shown
    return [made[number] for number in range(len(figures))]


class _Resamples:
    """Resamples of days, and intervals of any level from them."""

    def __init__(
        self,
        figures: Sequence[Figure],
        days: int,
        resamples: int,
        seed: int,
        tick: Callable[[], None],
    ) -> None:
        from scipy import stats  # noqa: PLC0415 - slow to import

        has = np.stack([figure.has_jobs(days) for figure in figures])
        self._days = np.stack([has.sum(axis=1), *[(has & has[0]).sum(axis=1)] * 2])
        self._values = _values(figures, np.arange(days), days)
        self._drawn = None
        if days < FEWEST_DAYS:
            return

        def statistic(drawn: I64, axis: int) -> F64:  # noqa: ARG001 - it is the last
            tick()
            found = _values(figures, drawn, days)
            # A resample without jobs counts as the whole.
            whole = self._values.reshape(*self._values.shape, *[1] * (drawn.ndim - 1))
            return np.where(np.isnan(found), whole, found)

        self._bootstrap = functools.partial(
            stats.bootstrap, (np.arange(days),), statistic, batch=_AT_ONCE, vectorized=True
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NaN where all resamples are equal
            self._drawn = self._bootstrap(
                n_resamples=resamples, random_state=np.random.default_rng(seed), method="percentile"
            )

    def paired(self, level: float) -> list[PairedFigure]:
        """Each figure with intervals of this level; NaN for too few days with jobs."""
        low = high = np.full(self._values.shape, np.nan)
        has_share = False
        if self._drawn is not None:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                bca = self._bootstrap(
                    n_resamples=0,
                    bootstrap_result=self._drawn,
                    confidence_level=level,
                    method="BCa",
                ).confidence_interval
            has_share = bool((self._drawn.bootstrap_distribution[_OWN, 0] > 0).all())
            is_enough = self._days >= FEWEST_DAYS
            days = np.maximum(self._days, FEWEST_DAYS)
            t = np.array([[t_quantile(int(n) - 1, level) for n in row] for row in days])
            half = t * self._drawn.standard_error * np.sqrt(days / (days - 1))
            low = np.where(is_enough, np.fmin(bca.low, self._values - half), np.nan)
            high = np.where(is_enough, np.fmax(bca.high, self._values + half), np.nan)
            if has_share:
                # Ranges of a quotient alone hold too seldom.
                first = self._values[_OWN, 0]
                low[_CHANGE] = np.minimum(low[_CHANGE], low[_LESS] / first)
                high[_CHANGE] = np.maximum(high[_CHANGE], high[_LESS] / first)
            low = np.maximum(low, np.array(_LEAST)[:, None])
        own, less, change = (
            [Interval(*ends) for ends in zip(*columns, strict=True)]
            for columns in zip(self._values.tolist(), low.tolist(), high.tolist(), strict=True)
        )
        shares = change if has_share else [None] * len(own)
        return [PairedFigure(*each) for each in zip(own, less, shares, strict=True)]


def _values(figures: Sequence[Figure], drawn: I64, days: int) -> F64:
    """``(3, figures, ...)`` each figure, it less the first, and that as a share of the first.

    Args:
        drawn: ``(..., d)`` days of each resample.
    """
    rows = drawn.reshape(-1, drawn.shape[-1])
    weights = np.array([np.bincount(row, minlength=days) for row in rows], dtype=np.float64)
    own = np.stack([figure.of(weights) for figure in figures])
    less = own - own[0]
    # Written so that NaN stays.
    less[np.abs(less) <= ROUNDING * np.maximum(np.abs(own), np.abs(own[0]))] = 0.0
    change = less / np.where(own[0] > 0, own[0], np.nan)
    return np.stack([own, less, change]).reshape(3, len(figures), *drawn.shape[:-1])
