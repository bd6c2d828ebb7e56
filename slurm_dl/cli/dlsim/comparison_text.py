"""A comparison for people: a table for each load.

Names of presets do not fit one short column, so they wrap; with seeds each time has its interval
beside it, and the policy is held against the first one in a column of its own. On 80 columns there
is room for the times alone; on 110 restarts, fairness and what was lost stand beside them, and many
policies stand in the order of their mean JCT.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from slurm_dl.experiments.bootstrap_interval import Mean
from slurm_dl.experiments.comparison import Comparison, ComparisonRow
from slurm_dl.report.number_format import NONE, TimeUnit, number, percent, unit_of
from slurm_dl.report.terminal_table import Column, table
from slurm_dl.text import safe

NARROW: Final = 80
WIDE: Final = 120
"""Columns of a table with all figures, where nobody says how many there are."""

MANY: Final = 7
"""More policies than these are sorted by how well they did; so many have colours of their own."""

_ALL_FIT: Final = 110
_NAME: Final = 40
_HOUR_S: Final = 3600.0
_BEST: Final = "*"
_TIMES: Final = (
    ("mean\nJCT", "avg_jct_s"),
    ("median\nJCT", "median_jct_s"),
    ("p99\nJCT", "p99_jct_s"),
    ("make-\nspan", "makespan_s"),
)


def are_many(comparison: Comparison) -> bool:
    """Whether the policies are so many that they are best looked at in the order of a figure."""
    return len(comparison.sweep.wishes) > MANY


def notes(comparison: Comparison) -> Iterator[str]:
    """What should be known before the figures: rules, parameters, what was filled in."""
    sweep = comparison.sweep
    if sweep.ground.rules:
        yield f"rules {', '.join(map(str, sweep.ground.rules))}"
    for label, wish in zip(sweep.labels, sweep.wishes, strict=True):
        if wish.parameters:
            yield f"{label}: {', '.join(f'{key} {v}' for key, v in wish.parameters.items())}"
    told = dict.fromkeys(
        (cell.label, note)
        for cell, result in zip(sweep.cells, comparison.results, strict=True)
        for note in result.notes
    )
    yield from (f"{label}: {note}" for label, note in told)


def best_first(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """*rows* by their mean JCT, those with unfinished jobs last."""

    def place(row: ComparisonRow) -> tuple[bool, float]:
        mean_s = row.figures["avg_jct_s"].mean.value
        return row.unfinished > 0, mean_s if math.isfinite(mean_s) else math.inf

    return sorted(rows, key=place)


def tables(
    comparison: Comparison, *, width: int = NARROW, ranked: bool = False
) -> Iterator[RenderableType]:
    """A table for each load; `marks` says what the marks in them mean.

    Args:
        width: Columns there are.
        ranked: The policies stand in the order of their mean JCT.
    """
    sweep = comparison.sweep
    for load in sweep.loads:
        rows: Sequence[ComparisonRow] = comparison.at(load)
        whole = not any(row.unfinished for row in rows)
        if ranked:
            rows = best_first(rows)
        if len(sweep.loads) > 1:
            yield Text(f"load {load:g}: {_arrivals(load)}", style="bold")
        if width >= _ALL_FIT:
            yield _wide_table(rows)
        else:
            yield _seeds_table(rows, whole=whole) if sweep.seeds > 1 else _table(rows, whole=whole)
        if width < _ALL_FIT and ranked:
            yield ""
            yield _shares_table(rows)
        yield ""
        if any(row.lay for row in rows):
            yield _lay_table(rows)
            yield ""


def _arrivals(load: float) -> str:
    if load == 1:
        return "jobs arrive as in the trace"
    return f"jobs arrive {load:g} times as fast as in the trace"


def marks(comparison: Comparison, *, width: int = NARROW, ranked: bool = False) -> str:
    """What the marks and words in such `tables` mean."""
    first = safe(comparison.sweep.labels[0], _NAME)
    lines = [f"x: times the figure of {first}"]
    if comparison.sweep.seeds > 1:
        lines[0] += ", the mean of the ratios on the same workloads"
        lines.append(
            f"±: 95 % interval by {comparison.sweep.seeds} seeds: the trace and bootstraps of it"
        )
    if width >= _ALL_FIT or ranked:
        lines += _WORDS
    if width >= _ALL_FIT:
        lines.append(f"{_BEST}: the best of its column, of those that finished all jobs")
        return "\n".join(lines)
    lines.append(f"{_BEST}: the least of its column")
    if comparison.unfinished():
        lines.append(f"where jobs did not finish no figure is the least: {_BEST} is left out")
    return "\n".join(lines)


def _table(rows: Sequence[ComparisonRow], *, whole: bool) -> Table:
    """One workload: each time with its ratio to the first policy's."""
    columns: dict[str, list[str | Text]] = {}
    for title, name in _TIMES:
        figures = [row.figures[name] for row in rows]
        unit, best = _unit_and_best([f.mean for f in figures], whole=whole)
        cells = columns[f"{title} {unit.sign}"] = []
        for i, figure in enumerate(figures):
            text = number(figure.mean.value / unit.in_s)
            if figure.ratio is not None and math.isfinite(figure.ratio.value):
                text += f" x{figure.ratio.value:.2f}"
            cells.append(_marked(text, is_best=i == best))
    summaries = [row.results[0].summary for row in rows]
    if whole:
        columns["GPUs\nused"] = [percent(s.utilisation_frac) for s in summaries]
        columns["pre-\nempts"] = [f"{s.preemptions:,}" for s in summaries]
    else:
        columns["finished"] = [f"{s.finished}/{s.jobs}" for s in summaries]
    return _figures_table("policy", rows, columns)


def _seeds_table(rows: Sequence[ComparisonRow], *, whole: bool) -> Table:
    """Several workloads: each time with its interval, and the mean JCT against the first's."""
    columns: dict[str, Sequence[str | Text]] = {}
    for title, name in _TIMES:
        means = [row.figures[name].mean for row in rows]
        unit, best = _unit_and_best(means, whole=whole)
        columns[f"{title} {unit.sign}"] = [
            _marked(_with_half(mean, unit.in_s), is_best=i == best) for i, mean in enumerate(means)
        ]
        if name == "avg_jct_s":
            columns["of the\nfirst's"] = _ratios(rows)
    if not whole:
        columns["finished"] = [_finished(row) for row in rows]
    return _figures_table("policy", rows, columns)


_SHARES: Final[
    tuple[tuple[str, str, Callable[[float], str], Callable[[list[float]], float]], ...]
] = (
    ("GPUs\nused", "utilisation_frac", percent, max),
    ("re-\nstarts", "preemptions", lambda v: f"{v:,.0f}", min),
    ("lost\nGPU-h", "gpu_s_lost", lambda v: number(v / _HOUR_S), min),
    ("Jain", "jain", lambda v: f"{v:.3f}" if math.isfinite(v) else NONE, max),
    ("worst\nrho", "max_rho", number, min),
)
"""What is told beside the times: its title, its name, how it is written, and what is best."""

_WORDS: Final = (
    "restarts: how often a job was stopped before it was done; lost: GPU-hours without progress",
    "Jain: of users, service received / asked for while they were there; 1: all fared alike",
    "worst rho: the largest JCT / time on an equal share of the GPUs (finish-time fairness)",
)


def _wide_table(rows: Sequence[ComparisonRow]) -> Table:
    """All figures; a time's interval stands beside the mean JCT alone."""
    judged = [row for row in rows if not row.unfinished]
    seeds = len(rows[0].results)
    columns: dict[str, Sequence[str | Text]] = {}
    for title, name in (*_TIMES[:2], ("p95\nJCT", "p95_jct_s"), *_TIMES[2:]):
        unit = unit_of(row.figures[name].mean.value for row in rows)
        tells_interval = name == "avg_jct_s" and seeds > 1

        def written(mean: Mean, *, in_s: float = unit.in_s, half: bool = tells_interval) -> str:
            return _with_half(mean, in_s) if half else number(mean.value / in_s)

        columns[f"{title} {unit.sign}"] = _column(rows, judged, name, written, min)
        if name == "avg_jct_s":
            columns["of the\nfirst's"] = _ratios(rows)
    columns |= _share_columns(rows, judged)
    if len(judged) < len(rows):
        columns["finished"] = [_finished(row) for row in rows]
    return _figures_table("policy", rows, columns)


def _shares_table(rows: Sequence[ComparisonRow]) -> Table:
    """The figures for which the table of times has no room."""
    judged = [row for row in rows if not row.unfinished]
    return _figures_table("policy", rows, _share_columns(rows, judged))


def _share_columns(
    rows: Sequence[ComparisonRow], judged: Sequence[ComparisonRow]
) -> dict[str, list[Text]]:
    """The columns of `_SHARES` by their titles."""
    columns = {}
    for title, name, write, best_of in _SHARES:

        def written(mean: Mean, *, write: Callable[[float], str] = write) -> str:
            return write(mean.value)

        columns[title] = _column(rows, judged, name, written, best_of)
    return columns


def _column(
    rows: Sequence[ComparisonRow],
    judged: Sequence[ComparisonRow],
    name: str,
    write: Callable[[Mean], str],
    best_of: Callable[[list[float]], float],
) -> list[Text]:
    """One figure of all *rows*; the best of those that are *judged* is marked, ties all of them."""
    known = [row.figures[name].mean.value for row in judged]
    known = [value for value in known if math.isfinite(value)]
    best = best_of(known) if len(known) > 1 and min(known) < max(known) else None
    return [
        _marked(
            write(row.figures[name].mean),
            is_best=not row.unfinished and row.figures[name].mean.value == best,
        )
        for row in rows
    ]


def _finished(row: ComparisonRow) -> str:
    jobs = sum(result.summary.jobs for result in row.results)
    return f"{jobs - row.unfinished}/{jobs}"


def _lay_table(rows: Sequence[ComparisonRow]) -> Table:
    """Where the jobs lay, and what they waited for it."""
    queues_s = [row.figures["avg_queue_s"].mean.value for row in rows]
    unit = unit_of(queues_s)
    lays = [row.lay for row in rows]
    columns: dict[str, list[str]] = {
        f"queued {unit.sign}\nmean": [number(queue_s / unit.in_s) for queue_s in queues_s],
        "nodes\nper job": [NONE if lay is None else number(lay.mean_nodes) for lay in lays],
        "skewed\nspread": [
            NONE if lay is None else percent(lay.skewed_spread_frac) for lay in lays
        ],
        "speed\nmean": [NONE if lay is None else percent(lay.mean_speed) for lay in lays],
    }
    return _figures_table("placed", rows, columns)


def _unit_and_best(means: Sequence[Mean], *, whole: bool) -> tuple[TimeUnit, int | None]:
    """The unit of a column and the row with the least time; None if there is no such row."""
    times_s = [mean.value for mean in means]
    known = [i for i, time_s in enumerate(times_s) if math.isfinite(time_s)]
    is_judged = whole and len(known) > 1
    return unit_of(times_s), min(known, key=lambda i: times_s[i]) if is_judged else None


def _with_half(mean: Mean, in_s: float) -> str:
    text = number(mean.value / in_s)
    # As many digits behind the point as the mean itself has.
    digits = len(text.partition(".")[2])
    return f"{text} ±{mean.half / in_s:,.{digits}f}" if math.isfinite(mean.half) else text


def _ratios(rows: Sequence[ComparisonRow]) -> list[str]:
    """The mean JCT of each against the first's."""
    against = [row.figures["avg_jct_s"].ratio for row in rows]
    return ["" if ratio is None else f"x{_ratio(ratio)}" for ratio in against]


def _ratio(ratio: Mean) -> str:
    text = f"{ratio.value:.2f}" if math.isfinite(ratio.value) else "-"
    return f"{text} ±{ratio.half:.2f}" if math.isfinite(ratio.half) else text


def _marked(text: str, *, is_best: bool) -> Text:
    mark = _BEST if is_best else " "
    return Text(f"{text}{mark}", style="bold green" if is_best else "")


def _name(label: str) -> Text:
    policy, on, place = label.partition(" on ")
    name = safe(policy, _NAME).replace(":", ":\n")
    if not on:
        return Text(name)
    scheme, colon, given = safe(place, 3 * _NAME).partition(":")
    parts = [f"{name} on", f"{scheme}{colon}", *given.split(",")]
    return Text("\n  ".join(part for part in parts if part))


def _figures_table(
    name: str, rows: Sequence[ComparisonRow], columns: Mapping[str, Sequence[str | Text]]
) -> Table:
    """A line for each of *rows* with its part of the *columns*, which are named by their titles."""
    numbers = (Column(title=title, right=True) for title in columns)
    lines = zip(*columns.values(), strict=True)
    return table(
        (Column(title=name, folds=True), *numbers),
        [(_name(row.label), *line) for row, line in zip(rows, lines, strict=True)],
    )


def failures(comparison: Comparison, gpus: int) -> list[str]:
    """Where jobs did not finish and why, one line for each simulation."""
    return [
        f"{cell}: {result.unfinished} of {result.summary.jobs} jobs did not finish: "
        + (
            f"{result.too_large} want more than the {gpus} GPUs there are"
            if result.too_large
            else "the policy never served them"
            + (", or no place would do" if result.lay is not None else "")
        )
        for cell, result in comparison.unfinished()
    ]
