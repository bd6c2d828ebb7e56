"""A ranking for people and for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from rich.console import RenderableType

from slurm_dl.experiments.results import read_lines
from slurm_dl.experiments.whatif_bootstrap import FEWEST_DAYS, Interval
from slurm_dl.experiments.whatif_history import KINDS, DailyHistory
from slurm_dl.experiments.whatif_ranking import RankedPolicy, Ranking
from slurm_dl.model.trace import Trace
from slurm_dl.report.number_format import NONE, TimeUnit, number, percent, unit_of
from slurm_dl.report.terminal_table import Column, table
from slurm_dl.simulation.cluster_shape import ClusterShape
from slurm_dl.text import safe

METHOD: Final = "BCa bootstrap over days (Efron 1987), at least Student's"

_NAME: Final = 26
_ONE: Final = TimeUnit("", 1.0)


def head_lines(
    trace: Trace, history: DailyHistory, shape: ClusterShape, ranking: Ranking
) -> Iterator[str]:
    """The history, what is left out of it, and which days count."""
    costs = "; ".join(dict.fromkeys(row.fate.costs for row in ranking.rows))
    yield from read_lines(trace)
    if history.too_large:
        yield (
            f"left out {history.too_large:,} jobs that ask for more than the {shape.gpus} GPUs "
            "of the cluster"
        )
    yield f"on {shape}, costs {costs}"
    counted = int(history.is_counted.sum())
    yield (
        f"{counted:,} jobs of {history.counted_days} days count; those of the first "
        f"{history.warm_up} and the last {history.cool_down} are simulated beside them"
    )
    if costs == "none":
        yield (
            "starting and stopping costs nothing here, which favours policies that preempt: "
            "see --costs"
        )
    notes = ((row.label, note) for row in ranking.rows for note in row.fate.notes)
    yield from (f"{safe(label, 40)}: {note}" for label, note in dict.fromkeys(notes))
    yield ""


def unit_for(ranking: Ranking) -> TimeUnit:
    """The unit of the figure in tables."""
    if not KINDS[ranking.by].is_time:
        return _ONE
    return unit_of(row.own.value for row in ranking.rows)


def ranked_table(ranking: Ranking) -> RenderableType:
    """Policies in their order, 80 columns wide."""
    unit = unit_for(ranking)
    titles = (
        f"{KINDS[ranking.by].title} {unit.sign}".rstrip(),
        "95 % range",
        "to the\nfirst",
        "range of the\ndifference",
        "less\non",
    )
    columns = (Column(title=title, right=True, folds=True) for title in titles)
    rows = [
        (
            safe(row.label, 2 * _NAME),
            number(row.own.value / unit.in_s),
            _ends(row.own, unit),
            signed(row.change),
            signed_ends(row.change),
            NONE if row.better_on is None else f"{row.better_on}/{row.compared_on}",
        )
        for row in ranking.rows
    ]
    return table((Column(title="policy", folds=True), *columns), rows)


def verdict_lines(ranking: Ranking, history: DailyHistory) -> Iterator[str]:
    """What the history shows, a sentence for each policy, and what the ranges are."""
    title = KINDS[ranking.by].title
    first = safe(ranking.first, _NAME)
    for row in ranking.rows:
        yield f"{safe(row.label, 2 * _NAME)}: {_sentence(row, title, first)}"
    days = "days" if history.block_days == 1 else f"blocks of {history.block_days} days"
    yield ""
    yield f"ranges: {METHOD},"
    yield (
        f"{ranking.resamples:,} resamples of {history.blocks} {days}, seed {ranking.seed}; those "
        "of the differences are paired by day"
    )
    if len(ranking.rows) > 2:  # noqa: PLR2004 - the first, and several others
        yield "and judged with Holm's correction (1979): by chance one is shown in 5 % at most"
    if history.blocks < FEWEST_DAYS:
        yield f"fewer than {FEWEST_DAYS} {days} can show nothing"


def _sentence(row: RankedPolicy, title: str, first: str) -> str:
    match row.verdict:
        case "first":
            return "what the others are held against"
        case "unfinished":
            own = f"{row.fate.unfinished:,} jobs never finished" if row.fate.unfinished else ""
            return f"not compared: {own or f'jobs never finished under {first}'}"
        case "too few days":
            return "too few days with jobs to tell it from the first"
        case "no difference shown":
            return f"no difference to {first} that this history can show"
        case _:
            word = "less" if row.verdict == "better" else "more"
            if row.change is None:
                by = NONE if row.difference is None else number(abs(row.difference.value))
                return f"{row.verdict}: {title} {by} {word} than {first}"
            low, high = sorted((abs(row.change.low), abs(row.change.high)))
            return (
                f"{row.verdict}: {title} {percent(abs(row.change.value))} {word} than {first} "
                f"({percent(low)} to {percent(high)})"
            )


def _ends(found: Interval, unit: TimeUnit) -> str:
    if not found.is_known:
        return NONE
    return f"{number(found.low / unit.in_s)} to {number(found.high / unit.in_s)}"


def signed(change: Interval | None) -> str:
    """A change as a percentage with its sign."""
    return NONE if change is None or math.isnan(change.value) else f"{100 * change.value:+.1f}%"


def signed_ends(change: Interval | None) -> str:
    """The range of a change."""
    if change is None or not change.is_known:
        return NONE
    return f"{100 * change.low:+.1f}% to {100 * change.high:+.1f}%"


def as_json(
    trace: Trace, history: DailyHistory, shape: ClusterShape, ranking: Ranking
) -> dict[str, object]:
    """All of it as plain values; the keys are those of `docs/evaluate/what-if.md`."""
    return {
        "trace": trace.name,
        "format": trace.format,
        "cluster": str(shape),
        **days_json(history),
        "by": ranking.by,
        "first": ranking.first,
        "method": METHOD,
        "resamples": ranking.resamples,
        "seed": ranking.seed,
        "level_of_differences": ranking.level,
        "policies": [_row_json(row) for row in ranking.rows],
        "block_from": [str(history.date_of(block)) for block in range(history.blocks)],
    }


def days_json(history: DailyHistory) -> dict[str, object]:
    """The days and jobs of a history."""
    return {
        "jobs": len(history.trace),
        "jobs_counted": int(history.is_counted.sum()),
        "jobs_too_large": history.too_large,
        "days": history.days,
        "warm_up_days": history.warm_up,
        "cool_down_days": history.cool_down,
        "blocks": history.blocks,
        "block_days": history.block_days,
    }


def range_json(found: Interval | None) -> dict[str, float | None] | None:
    """A figure and its interval."""
    if found is None:
        return None
    return {"value": finite(found.value), "low": finite(found.low), "high": finite(found.high)}


def finite(value: float) -> float | None:
    """*value*, or None for what JSON has no word for."""
    return value if math.isfinite(value) else None


def _row_json(row: RankedPolicy) -> dict[str, object]:
    return {
        "policy": row.label,
        "costs": row.fate.costs,
        "notes": list(row.fate.notes),
        "verdict": row.verdict,
        "figure": range_json(row.own),
        "difference": range_json(row.difference),
        "change": range_json(row.change),
        "better_on": row.better_on,
        "compared_on": row.compared_on,
        "unfinished": row.fate.unfinished,
        "preemptions": row.fate.preemptions,
        "figures": {name: finite(value) for name, value in row.values.items()},
        "by_block": [finite(value) for value in row.by_block],
    }
