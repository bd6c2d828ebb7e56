"""A comparison for people: a table for each load, 80 columns wide, and one picture.

Names of presets do not fit one short column, so they wrap; with seeds each time has its interval
beside it, and the policy is held against the first one in a column of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from slurm_dl.apps.sim.comparison import Comparison, Row
from slurm_dl.apps.sim.interval import Mean
from slurm_dl.model.errors import ConfigError
from slurm_dl.report.wording import NONE, Unit, number, percent, printable, unit_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAME: Final = 40
_DRAWN: Final = 28
_BEST: Final = "*"
_TIMES: Final = (
    ("mean\nJCT", "avg_jct_s"),
    ("median\nJCT", "median_jct_s"),
    ("p99\nJCT", "p99_jct_s"),
    ("make-\nspan", "makespan_s"),
)


def tables(comparison: Comparison) -> Iterator[RenderableType]:
    """A table for each load, and what its marks mean."""
    sweep = comparison.sweep
    for load in sweep.loads:
        rows = comparison.at(load)
        whole = not any(row.unfinished for row in rows)
        if len(sweep.loads) > 1:
            yield Text(f"load {load:g}: {_arrivals(load)}", style="bold")
        yield _seeds_table(rows, whole=whole) if sweep.seeds > 1 else _table(rows, whole=whole)
        yield ""
        if any(row.lay for row in rows):
            yield _lay_table(rows)
            yield ""
    yield Text(_marks(comparison), style="dim")


def _arrivals(load: float) -> str:
    if load == 1:
        return "jobs arrive as in the trace"
    return f"jobs arrive {load:g} times as fast as in the trace"


def _marks(comparison: Comparison) -> str:
    first = printable(comparison.sweep.labels[0], _NAME)
    lines = [f"x: times the figure of {first}"]
    if comparison.sweep.seeds > 1:
        lines[0] += ", the mean of the ratios on the same workloads"
        lines.append(
            f"±: 95 % interval by {comparison.sweep.seeds} seeds: the trace and bootstraps of it"
        )
    lines.append(f"{_BEST}: the least of its column")
    if comparison.unfinished():
        lines.append(f"where jobs did not finish no figure is the least: {_BEST} is left out")
    return "\n".join(lines)


def _table(rows: Sequence[Row], *, whole: bool) -> Table:
    """One workload: each time with its ratio to the first policy's."""
    columns: list[list[Text]] = []
    titles = []
    for title, name in _TIMES:
        figures = [row.figures[name] for row in rows]
        unit, best = _unit_and_best([f.mean for f in figures], whole=whole)
        titles.append(f"{title} {unit.sign}")
        cells = []
        for i, figure in enumerate(figures):
            text = number(figure.mean.value / unit.in_s)
            if figure.ratio is not None and math.isfinite(figure.ratio.value):
                text += f" x{figure.ratio.value:.2f}"
            cells.append(_marked(text, is_best=i == best))
        columns.append(cells)
    others = ["GPUs\nused", "pre-\nempts"] if whole else ["finished"]
    table = _empty("policy", *titles, *others)
    for i, row in enumerate(rows):
        summary = row.results[0].summary
        told = [percent(summary.utilisation_frac), f"{summary.preemptions:,}"]
        if not whole:
            told = [f"{summary.finished}/{summary.jobs}"]
        table.add_row(_name(row.label), *(column[i] for column in columns), *told)
    return table


def _seeds_table(rows: Sequence[Row], *, whole: bool) -> Table:
    """Several workloads: each time with its interval, and the mean JCT against the first's."""
    columns: list[list[Text]] = []
    titles = []
    for title, name in _TIMES:
        means = [row.figures[name].mean for row in rows]
        unit, best = _unit_and_best(means, whole=whole)
        titles.append(f"{title} {unit.sign}")
        columns.append(
            [
                _marked(_with_half(mean, unit.in_s), is_best=i == best)
                for i, mean in enumerate(means)
            ]
        )
    against = [row.figures["avg_jct_s"].ratio for row in rows]
    columns.insert(1, [Text("" if ratio is None else f"x{_ratio(ratio)}") for ratio in against])
    titles.insert(1, "of the\nfirst's")
    others = [] if whole else ["finished"]
    table = _empty("policy", *titles, *others)
    for i, row in enumerate(rows):
        jobs = sum(result.summary.jobs for result in row.results)
        told = [] if whole else [f"{jobs - row.unfinished}/{jobs}"]
        table.add_row(_name(row.label), *(column[i] for column in columns), *told)
    return table


def _lay_table(rows: Sequence[Row]) -> Table:
    """Where the jobs lay, and what they waited for it."""
    queues_s = [row.figures["avg_queue_s"].mean.value for row in rows]
    unit = unit_of(queues_s)
    table = _empty(
        "placed", f"queued {unit.sign}\nmean", "nodes\nper job", "skewed\nspread", "speed\nmean"
    )
    for row, queue_s in zip(rows, queues_s, strict=True):
        lay = row.lay
        told = [NONE] * 3
        if lay is not None:
            told = [
                number(lay.mean_nodes),
                percent(lay.skewed_spread_frac),
                percent(lay.mean_speed),
            ]
        table.add_row(_name(row.label), number(queue_s / unit.in_s), *told)
    return table


def _unit_and_best(means: Sequence[Mean], *, whole: bool) -> tuple[Unit, int | None]:
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


def _ratio(ratio: Mean) -> str:
    text = f"{ratio.value:.2f}" if math.isfinite(ratio.value) else "-"
    return f"{text} ±{ratio.half:.2f}" if math.isfinite(ratio.half) else text


def _marked(text: str, *, is_best: bool) -> Text:
    mark = _BEST if is_best else " "
    return Text(f"{text}{mark}", style="bold green" if is_best else "")


def _name(label: str) -> Text:
    policy, on, place = label.partition(" on ")
    name = printable(policy, _NAME).replace(":", ":\n")
    if not on:
        return Text(name)
    scheme, colon, given = printable(place, 3 * _NAME).partition(":")
    parts = [f"{name} on", f"{scheme}{colon}", *given.split(",")]
    return Text("\n  ".join(part for part in parts if part))


def _empty(name: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(Text(name), overflow="fold")
    for title in numbers:
        table.add_column(Text(title), justify="right", no_wrap=True)
    return table


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


def draw(comparison: Comparison, path: Path) -> None:
    """Write one picture to *path*: bars, or with several loads a line for each policy.

    Raises:
        ConfigError: The ending is no picture's, or the file cannot be written.
    """
    from slurm_dl.report import plots, style  # noqa: PLC0415 - matplotlib takes half a second

    if len(comparison.sweep.loads) == 1:
        names = _drawn_names(comparison.sweep.labels)
        figure = plots.comparison({names[row.label]: row.summary for row in comparison.rows})
    else:
        figure = _over_loads(comparison)
    style.save(figure, path)


def _drawn_names(labels: Sequence[str]) -> dict[str, str]:
    """What a picture calls the policies: of a name that is cut there the preset alone."""
    presets = [label.partition(":")[2] for label in labels]
    return {
        label: preset if len(label) > _DRAWN and presets.count(preset) == 1 else label
        for label, preset in zip(labels, presets, strict=True)
    }


def check_picture(path: Path) -> None:
    """Raise what is wrong with the name of a picture, before the work is done.

    Raises:
        ConfigError: The ending is no picture's.
    """
    endings = (".png", ".svg", ".pdf")
    if path.suffix.lower() not in endings:
        msg = f"--plot {path}: name a file that ends with one of {', '.join(endings)}"
        raise ConfigError(msg)


def _over_loads(comparison: Comparison) -> Figure:
    """Mean JCT against the load, with the intervals as bands where there are seeds."""
    import numpy as np  # noqa: PLC0415 - with matplotlib, for pictures alone
    from matplotlib.ticker import (  # noqa: PLC0415
        FixedLocator,
        FuncFormatter,
        LogLocator,
        NullFormatter,
        NullLocator,
    )

    from slurm_dl.report import style  # noqa: PLC0415

    loads = np.array(sorted(comparison.sweep.loads))
    means_s = [row.figures["avg_jct_s"].mean.value for row in comparison.rows]
    unit = unit_of(means_s)
    with style.styled():
        figure = style.canvas(height=4.2)
        axes = figure.add_subplot()
        axes.set_title("Mean job completion time")
        axes.set_xlabel("load, times the trace's arrival rate (log scale)")
        axes.set_ylabel(f"mean JCT ({unit.sign}, log scale)")
        if not any(math.isfinite(m) for m in means_s):
            style.nothing(axes, "no job finished")
            return figure
        axes.set_xscale("log")
        axes.set_yscale("log")
        lines = []
        names = _drawn_names(comparison.sweep.labels)
        for i, label in enumerate(comparison.sweep.labels):
            rows = sorted((r for r in comparison.rows if r.label == label), key=lambda r: r.load)
            means = [row.figures["avg_jct_s"].mean for row in rows]
            at = np.array([mean.value for mean in means]) / unit.in_s
            line = style.line(axes, loads, at, i)
            line.set(marker="o", markersize=4)
            half = np.array([mean.half for mean in means]) / unit.in_s
            if comparison.sweep.seeds > 1:
                # On a logarithmic axis nothing can be drawn down to 0 or below.
                low = np.maximum(at - half, at / 100)
                axes.fill_between(loads, low, at + half, color=style.colour(i), alpha=0.15, lw=0)
            lines.append((style.label_of(names[label]), line))
        axes.xaxis.set_major_locator(FixedLocator(loads.tolist()))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(visible=True, axis="y")
        style.key_below(figure, lines)
        return figure
