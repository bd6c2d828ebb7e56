"""Policies in the order of one figure, each held against the first on the same days."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from slurm_dl.experiments.whatif_bootstrap import (
    Interval,
    first_level,
    held,
    resamples_for,
)
from slurm_dl.experiments.whatif_figures import ROUNDING
from slurm_dl.experiments.whatif_history import KINDS, Fate

Verdict = Literal["first", "better", "worse", "no difference shown", "too few days", "unfinished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPolicy:
    """One policy.

    Attributes:
        label: The policy as it was asked for.
        fate: What became of the jobs.
        values: Every figure over all days.
        own: The figure by which policies are ranked, with its 95 % interval.
        difference: It less that of the first policy, with an interval of Holm's correction; None
            for the first.
        change: The same as a share of the first's figure; None also where that may be 0.
        by_block: ``(blocks,)`` the figure of each block of days by itself; NaN without jobs.
        better_on: Blocks on which it is less than the first's by more than rounding; None for the
            first.
        compared_on: Blocks on which both have the figure.
        verdict: What the history shows.
    """

    label: str
    fate: Fate
    values: dict[str, float]
    own: Interval
    difference: Interval | None
    change: Interval | None
    by_block: tuple[float, ...]
    better_on: int | None
    compared_on: int
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """All policies, the best first; those that left jobs undone last.

    Attributes:
        by: The figure, a word of `KINDS`.
        first: The policy that the others are held against.
        level: Of the intervals at the first step of Holm's correction, a share of 1.
        resamples: How many.
        seed: Of the resamples.
    """

    by: str
    first: str
    rows: tuple[RankedPolicy, ...]
    level: float
    resamples: int
    seed: int


def rank(
    fates: Sequence[tuple[str, Fate]],
    *,
    by: str,
    seed: int,
    tick: Callable[[], None] = lambda: None,
) -> Ranking:
    """Rank policies.

    Args:
        fates: By label, of the same history; the others are held against the first.
        by: A word of `KINDS`.
        seed: Of the resamples.
        tick: Called now and then while it works.
    """
    first, base = fates[0]
    resamples = resamples_for(len(fates) - 1)
    each = np.eye(len(base.days))
    base_each = base.figure(by).of(each)
    figures = [fate.figure(by) for _, fate in fates]
    paired = held(figures, len(base.days), resamples=resamples, seed=seed, tick=tick)
    rows = []
    for (label, fate), found in zip(fates, paired, strict=True):
        by_block = fate.figure(by).of(each)
        both = np.isfinite(by_block) & np.isfinite(base_each)
        less = (by_block < base_each * (1 - ROUNDING))[both]
        is_first = fate is base
        difference = None if is_first else found.difference
        change = None if is_first else found.change
        rows.append(
            RankedPolicy(
                label=label,
                fate=fate,
                values=fate.values(),
                own=dataclasses.replace(found.own, high=min(found.own.high, KINDS[by].most)),
                difference=difference,
                change=change,
                by_block=tuple(by_block.tolist()),
                better_on=None if difference is None else int(less.sum()),
                compared_on=int(both.sum()),
                verdict=verdict_of(fate, base, change or difference),
            )
        )
    rows.sort(key=lambda row: (row.fate.unfinished > 0, np.nan_to_num(row.own.value, nan=np.inf)))
    return Ranking(
        by=by,
        first=first,
        rows=tuple(rows),
        level=first_level(len(fates) - 1),
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
