"""A comparison for people: a table for each cost model and load.

Names of presets do not fit one short column, so they wrap; with resamples the mean JCT has its
range beside it, and is held against that of the first policy. Figures for which there is no room on
the right are left out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from slurm_dl.cli.dlsim.asked import read_lines
from slurm_dl.experiments import comparison
from slurm_dl.experiments.bootstrap_interval import Range
from slurm_dl.experiments.comparison import Compared, Comparison, Row
from slurm_dl.model.trace import Trace
from slurm_dl.report.terminal_table import (
    NONE,
    Column,
    console,
    laid_out,
    number,
    percent,
    table,
    unit_of,
)
from slurm_dl.text import safe

WIDTH: Final = 80
WIDE: Final = 120
"""Columns where nobody says how many there are: of few policies, and of many or several costs."""

MANY: Final = 7  # More policies than these are sorted by their mean JCT
_NAME: Final = 40
_HOUR_S: Final = 3600.0
_BEST: Final = "*"

_Cell = tuple[str, bool]  # Text of a figure, and whether it is the best of its column

_Figure = tuple[str, Callable[[float], str] | None, Callable[[list[float]], float], str]
_FIGURES: Final[dict[str, _Figure]] = {
    "mean\nJCT": ("avg_jct_s", None, min, ""),
    "median\nJCT": ("median_jct_s", None, min, ""),
    "p99\nJCT": ("p99_jct_s", None, min, ""),
    "make-\nspan": ("makespan_s", None, min, ""),
    "GPUs\nused": ("utilisation_frac", percent, max, ""),
    "re-\nstarts": (
        "preemptions", lambda v: f"{v:,.0f}", min,
        "restarts: how often a job was stopped before it was done",
    ),
    "lost\nGPU-h": (
        "gpu_s_lost", lambda v: number(v / _HOUR_S), min, "lost: GPU-hours without progress",
    ),
    "worst\nrho": (
        "max_rho", number, min,
        "worst rho: the largest JCT / time on an equal share of the GPUs (finish-time fairness)",
    ),
    "p95\nJCT": ("p95_jct_s", None, min, ""),
    "Jain": (
        "jain", lambda v: f"{v:.3f}" if math.isfinite(v) else NONE, max,
        "Jain: of users, service received / asked for while they were there; 1: all fared alike",
    ),
}  # fmt: skip
"""Figures by title: name, how it is written (None: as a time), which is best, and what it is."""


def show(jobs: Trace, ran: Compared) -> None:
    """Print everything about *ran*."""
    (workload,) = ran.experiment.workloads.values()
    is_wide = len(ran.comparisons) > 1 or any(len(c.policies) > MANY for c in ran.comparisons)
    out = console(WIDE if is_wide else WIDTH)

    def write(line: str, style: str | None = None) -> None:
        out.print(line, markup=False, highlight=False, style=style)

    for line in read_lines(jobs):
        write(line)
    marks = [marks_of(c, width=out.width) for c in ran.comparisons]
    for i, one in enumerate(ran.comparisons):
        write(f"on {workload.cluster}, costs {one.costs_name}")
        if rules := ", ".join(map(str, ran.experiment.ground.rules)):
            write(f"rules {rules}")
        for line in notes(one):
            write(line)
        out.print()
        for rendered in tables(one, width=out.width):
            out.print(rendered)
        if marks[i] not in marks[i + 1 :]:
            write(marks[i], "dim")
        for line in outside(one):
            write(line)
    for i, line in enumerate(comparison.left_out(ran)):
        write(f"\n{line}" if i == 0 else line)


def notes(one: Comparison) -> Iterator[str]:
    """Parameters, and what was filled in that nobody would guess."""
    for policy in one.policies:
        if policy.parameters:
            given = ", ".join(f"{key} {value}" for key, value in policy.parameters.items())
            yield f"{policy.short_label}: {given}"
    told: dict[str, dict[str, None]] = {}
    for cell, figures in one.cells:
        for note in figures["notes"]:
            told.setdefault(note, {})[cell.policy.short_label] = None
    for note, labels in told.items():
        yield from [note] if len(labels) == len(one.policies) else (f"{w}: {note}" for w in labels)


def tables(one: Comparison, *, width: int = WIDTH) -> Iterator[RenderableType]:
    """A table for each load; `marks_of` says what the marks in them mean."""
    for load in one.loads:
        rows: Sequence[Row] = one.at(load)
        if len(rows) > MANY:
            rows = one.best_first(load)
        if len(one.loads) > 1:
            pace = "" if load == 1 else f"{load:g} times as fast "
            yield Text(f"load {load:g}: jobs arrive {pace}as in the trace", style="bold")
        columns = _columns(rows)
        titles = _fitting(rows, columns, width)
        yield _table("policy", rows, {title: columns[title] for title in titles})
        yield ""
        if any(row.placement for row in rows):
            yield _table("placed", rows, _lay_columns(rows))
            yield ""


def marks_of(one: Comparison, *, width: int = WIDTH) -> str:
    """What the marks and words in such `tables` mean."""
    rows = one.at(one.loads[0])
    lines = [f"x: times the figure of {safe(rows[0].label, _NAME)}"]
    if resamples := len(rows[0].of_workloads) - 1:
        lines.append(range_words(resamples, rows[0].of_workloads[0]["blocks"]))
    shown = _fitting(rows, _columns(rows), width)
    lines += [words for title, (*_, words) in _FIGURES.items() if words and title in shown]
    lines.append(f"{_BEST}: the best of its column, of those that finished all jobs")
    return "\n".join(lines)


def range_words(resamples: int, blocks: float) -> str:
    """The source of the ranges, or why there are none."""
    if blocks < 2:  # noqa: PLR2004 - see `bootstrap_interval.figure`
        return "no ranges: all jobs were submitted within one block of time"
    return f"ranges: 95 %, by {resamples} resamples of the trace: {int(blocks)} blocks of its time"


def outside(one: Comparison) -> Iterator[str]:
    """Warnings: the mean JCT of the trace is none that its resamples have."""
    for load in one.loads:
        rows = [row for row in one.at(load) if row.figures["avg_jct_s"].own.is_outside]
        if rows:
            at = f", load {load:g}" if len(one.loads) > 1 else ""
            yield (
                f"warning: mean JCT of {', '.join(safe(row.label, _NAME) for row in rows)}{at}: "
                "resamples are not like this trace, so its ranges say little; see --block-days"
            )


def _columns(rows: Sequence[Row]) -> dict[str, list[_Cell]]:
    """Figures by their titles, those that matter most first."""
    columns: dict[str, list[_Cell]] = {}
    for title, (name, write, best_of, _) in _FIGURES.items():
        if write is not None:
            columns[title] = _best_marked(rows, name, _of_own(write), best_of)
            continue
        unit = unit_of(row.figures[name].own.value for row in rows)
        is_first = not columns
        in_unit = functools.partial(_in_unit, unit.in_s)
        columns[f"{title} {unit.sign}"] = _best_marked(rows, name, _of_own(in_unit), best_of)
        if is_first:
            ratios = [row.figures[name].ratio for row in rows]
            against = ["" if ratio is None else f"x{_two_digits(ratio.value)}" for ratio in ratios]
            owns = [range_text(row.figures[name].own, in_unit) for row in rows]
            for head, texts in (
                ("95 %\nrange", owns),
                ("of the\nfirst's", against),
                ("its\nrange", [range_text(ratio, _two_digits) for ratio in ratios]),
            ):
                if head == "of the\nfirst's" or any(texts):
                    columns[head] = [(text, False) for text in texts]
            if any(row.unfinished for row in rows):
                finished = [f"{row.jobs - row.unfinished}/{row.jobs}" for row in rows]
                columns["finished"] = [(text, False) for text in finished]
    return columns


def _in_unit(in_s: float, value_s: float) -> str:
    return number(value_s / in_s)


def _of_own(write: Callable[[float], str]) -> Callable[[Range], str]:
    return lambda own: write(own.value)


def range_text(of: Range | None, write: Callable[[float], str]) -> str:
    """Both ends of a range; nothing where there is none."""
    return f"{write(of.low)} to {write(of.high)}" if of is not None and of.is_known else ""


def _best_marked(
    rows: Sequence[Row],
    name: str,
    write: Callable[[Range], str],
    best_of: Callable[[list[float]], float],
) -> list[_Cell]:
    """One figure of all *rows*; the best of those whose jobs all finished, ties all of them."""
    values = [math.nan if row.unfinished else row.figures[name].own.value for row in rows]
    known = [value for value in values if math.isfinite(value)]
    best = best_of(known) if len(known) > 1 and min(known) < max(known) else None
    return [
        (write(row.figures[name].own), value == best)
        for row, value in zip(rows, values, strict=True)
    ]


def _lay_columns(rows: Sequence[Row]) -> dict[str, list[_Cell]]:
    """Where the jobs lay, and how long they waited for it."""
    queues_s = [row.figures["avg_queue_s"].own.value for row in rows]
    unit = unit_of(queues_s)

    def told(name: str, write: Callable[[float], str]) -> list[_Cell]:
        values = [(row.placement or {}).get(name) for row in rows]
        return [(NONE if value is None else write(value), False) for value in values]

    return {
        f"queued {unit.sign}\nmean": [(number(queue_s / unit.in_s), False) for queue_s in queues_s],
        "nodes\nper job": told("mean_nodes", number),
        "skewed\nspread": told("skewed_spread_frac", percent),
        "speed\nmean": told("mean_speed", percent),
    }


def _two_digits(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else NONE


def _name(label: str) -> str:
    policy, on, place = label.partition(" on ")
    name = safe(policy, _NAME).replace(":", ":\n")
    if not on:
        return name
    scheme, colon, given = safe(place, 3 * _NAME).partition(":")
    parts = [f"{name} on", f"{scheme}{colon}", *given.split(",")]
    return "\n  ".join(part for part in parts if part)


def _lines(rows: Sequence[Row], columns: dict[str, list[_Cell]]) -> list[list[Text]]:
    lines = [[Text(_name(row.label))] for row in rows]
    for cells in columns.values():
        is_marked = any(is_best for _, is_best in cells)
        for line, (text, is_best) in zip(lines, cells, strict=True):
            mark = (_BEST if is_best else " ") if is_marked else ""
            line.append(Text(f"{text}{mark}", style="bold green" if is_best else ""))
    return lines


def _fitting(rows: Sequence[Row], columns: dict[str, list[_Cell]], width: int) -> list[str]:
    names = [Column(title="policy", folds=True), *(Column(title=title) for title in columns)]
    widest = [[max(c.plain.split("\n"), key=len) for c in line] for line in _lines(rows, columns)]
    heads = [max(title.split("\n"), key=len) for title in ("policy", *columns)]
    needed = 2 + sum("range" in title for title in columns)
    shown, _, _ = laid_out(
        names, [heads, *widest], width, header=False, optional=len(columns) - needed
    )
    return list(columns)[: len(shown) - 1]


def _table(name: str, rows: Sequence[Row], columns: dict[str, list[_Cell]]) -> RenderableType:
    numbers = (Column(title=title, right=True) for title in columns)
    return table((Column(title=name, folds=True), *numbers), _lines(rows, columns))


def unfinished(one: Comparison, gpus: int) -> Iterator[str]:
    """Where jobs did not finish and why, one line for each simulation."""
    for cell, figures in one.cells:
        if left := figures["jobs"] - figures["finished"]:
            why = "the policy never served them"
            if figures["too_large"]:
                why = f"{figures['too_large']} want more than the {gpus} GPUs there are"
            elif figures["placement"]:
                why += ", or no place would do"
            yield f"{cell}: {left} of {figures['jobs']} jobs did not finish: {why}"
