"""Policies in the order of one figure of a history, and how sure it is: a bootstrap over its days.

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
from typing import Final, Literal

import numpy as np

from slurm_dl.experiments.bootstrap_interval import LEVEL, t_quantile
from slurm_dl.experiments.whatif_history import KINDS, ROUNDING, Fate, Figure
from slurm_dl.model.jobs import F64, I64

FEWEST_DAYS: Final = 10  # With fewer that have jobs nothing is told
_FEWEST_RESAMPLES: Final = 2000
_BEYOND: Final = 20  # Resamples that are to lie beyond an interval
_AT_ONCE: Final = 500
_OWN, _LESS, _CHANGE = range(3)
_LEAST: Final = (0.0, -math.inf, -1.0)  # Of a figure, a difference and a change

Verdict = Literal["first", "better", "worse", "no difference shown", "too few days", "unfinished"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure of all days, and its interval."""

    value: float  # NaN if there is no job
    low: float  # The lower end; NaN if there are too few days
    high: float  # The upper end

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
    """A figure held against the first on the same days."""

    own: Interval  # The figure, with its 95 % interval
    difference: Interval  # It less the first
    change: Interval | None  # The same as a share, at least -1; None where the first may be 0

    @property
    def judged(self) -> Interval:
        """What is judged by: the change, where there is one."""
        return self.change or self.difference


def resamples_for(differences: int) -> int:
    """How many resamples suffice for so many differences."""
    return max(_FEWEST_RESAMPLES, round(_BEYOND * differences / (1 - LEVEL)))


def _level(differences: int) -> float:
    """The level of intervals at the step of Holm's correction with so many differences left."""
    return 1 - (1 - LEVEL) / max(1, differences)


def held(figures: Sequence[Figure], days: int, *, resamples: int, seed: int) -> list[PairedFigure]:
    """Each of *figures* held against the first.

    At each step of Holm's correction the intervals have the level for as many differences as are
    left; those without 0 are shown to differ, and the next step is about the others.

    Args:
        days: Of which the figures are functions.
        seed: Of NumPy's default generator.
    """
    paired = _resampled(figures, days, resamples, seed)
    made = paired(LEVEL)
    left = set(range(1, len(figures)))
    while left:
        step = paired(_level(len(left)))
        shown = {number for number in left if not step[number].judged.has_zero} or left
        for number in shown:
            made[number] = dataclasses.replace(step[number], own=made[number].own)
        left -= shown
    return made


def _resampled(
    figures: Sequence[Figure], days: int, resamples: int, seed: int
) -> Callable[[float], list[PairedFigure]]:
    """What gives each figure with intervals of a level; NaN for too few days with jobs."""
    from scipy import stats  # noqa: PLC0415 - slow to import

    values = _values(figures, np.arange(days), days)

    def statistic(drawn: I64, axis: int) -> F64:  # noqa: ARG001 - it is the last
        found = _values(figures, drawn, days)
        # A resample without jobs counts as the whole.
        whole = values.reshape(*values.shape, *[1] * (drawn.ndim - 1))
        return np.where(np.isnan(found), whole, found)

    bootstrap = functools.partial(
        stats.bootstrap, (np.arange(days),), statistic, batch=_AT_ONCE, vectorized=True
    )
    has = np.stack([figure.has_jobs(days) for figure in figures])
    busy = np.stack([has.sum(axis=1), *[(has & has[0]).sum(axis=1)] * 2])
    drawn = None
    if days >= FEWEST_DAYS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NaN where all resamples are equal
            rng = np.random.default_rng(seed)
            drawn = bootstrap(n_resamples=resamples, random_state=rng, method="percentile")

    def paired(level: float) -> list[PairedFigure]:
        low = high = np.full(values.shape, np.nan)
        has_share = False
        if drawn is not None:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                bca = bootstrap(
                    n_resamples=0, bootstrap_result=drawn, confidence_level=level, method="BCa"
                ).confidence_interval
            n = np.maximum(busy, FEWEST_DAYS)
            t = np.vectorize(t_quantile)(n - 1, level)
            half = t * drawn.standard_error * np.sqrt(n / (n - 1))
            low = np.where(busy >= FEWEST_DAYS, np.fmin(bca.low, values - half), np.nan)
            high = np.where(busy >= FEWEST_DAYS, np.fmax(bca.high, values + half), np.nan)
            has_share = bool((drawn.bootstrap_distribution[_OWN, 0] > 0).all())
            if has_share:
                # Ranges of a quotient alone hold too seldom.
                first = values[_OWN, 0]
                low[_CHANGE] = np.minimum(low[_CHANGE], low[_LESS] / first)
                high[_CHANGE] = np.maximum(high[_CHANGE], high[_LESS] / first)
            low = np.maximum(low, np.array(_LEAST)[:, None])
        ends = np.stack([values, low, high], axis=-1).tolist()
        own, less, change = ([Interval(*one) for one in row] for row in ends)
        shares = change if has_share else [None] * len(own)
        return [PairedFigure(*each) for each in zip(own, less, shares, strict=True)]

    return paired


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPolicy:
    """One policy."""

    label: str  # The policy as it was asked for
    fate: Fate  # What became of the jobs
    own: Interval  # The figure by which policies are ranked, with its 95 % interval
    difference: Interval | None  # It less the first's, by Holm's correction; None for the first
    change: Interval | None  # The same as a share; None also where the first may be 0
    by_block: tuple[float, ...]  # Of each block of days by itself; NaN without jobs
    better_on: int | None  # Blocks on which it is less by more than rounding
    compared_on: int  # Blocks on which both have the figure
    verdict: Verdict  # What the history shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """All policies, the best first; those that left jobs undone last."""

    by: str  # The figure, a word of `KINDS`
    first: str  # The policy that the others are held against
    rows: tuple[RankedPolicy, ...]
    level: float  # Of the intervals at the first step of Holm's correction, a share of 1
    resamples: int  # How many
    seed: int  # Of the resamples


def rank(fates: Sequence[tuple[str, Fate]], *, by: str, seed: int) -> Ranking:
    """Rank policies.

    Args:
        fates: By label, of the same history; the others are held against the first.
        by: A word of `KINDS`.
        seed: Of the resamples.
    """
    first, base = fates[0]
    days, resamples = len(base.days), resamples_for(len(fates) - 1)
    figures = [fate.figure(by) for _, fate in fates]
    each = [figure.of(np.eye(days)) for figure in figures]
    rows = []
    for (label, fate), found, by_block in zip(
        fates, held(figures, days, resamples=resamples, seed=seed), each, strict=True
    ):
        both = np.isfinite(by_block) & np.isfinite(each[0])
        less = int((by_block < each[0] * (1 - ROUNDING))[both].sum())
        is_first = fate is base
        rows.append(
            RankedPolicy(
                label=label,
                fate=fate,
                own=dataclasses.replace(found.own, high=min(found.own.high, KINDS[by].most)),
                difference=None if is_first else found.difference,
                change=None if is_first else found.change,
                by_block=tuple(by_block.tolist()),
                better_on=None if is_first else less,
                compared_on=int(both.sum()),
                verdict=verdict_of(fate, base, None if is_first else found.judged),
            )
        )
    rows.sort(key=lambda row: (row.fate.unfinished > 0, np.nan_to_num(row.own.value, nan=np.inf)))
    return Ranking(
        by=by,
        first=first,
        rows=tuple(rows),
        level=_level(len(fates) - 1),
        resamples=resamples,
        seed=seed,
    )


def verdict_of(fate: Fate, base: Fate, held: Interval | None) -> Verdict:
    """What the history shows of a policy.

    Args:
        held: Its figure less that of *base*, in whatever unit; None if it is *base*.
    """
    if fate.unfinished or (held is not None and base.unfinished):
        return "unfinished"
    if held is None:
        return "first"
    if not held.is_known:
        return "too few days"
    if held.has_zero:
        return "no difference shown"
    return "better" if held.high < 0 else "worse"
