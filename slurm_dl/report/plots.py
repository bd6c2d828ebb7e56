"""Plots of finished work: figures to be saved with `style.save`.

Import it where a plot is asked for: Matplotlib takes half a second. Each function returns a figure
of its own; nothing is global. Names are drawn as they are, whatever they hold. 100,000 jobs are
drawn through the points that can be told apart on paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator
from matplotlib.ticker import PercentFormatter as Percent

from slurm_dl.model.completed_jobs import Records
from slurm_dl.model.jobs import F64
from slurm_dl.model.value_curve import ValueCurve
from slurm_dl.report import style, timeline
from slurm_dl.report.summary_metrics import spread
from slurm_dl.report.terminal_table import NONE, TimeUnit, duration, number, unit_of

_POINTS: Final = 2000  # Most points of one line; a page is not wider
_WINDOWS: Final = 160
_LEAST_S: Final = 1e-3  # Shorter times, 0 among them, are drawn here: a logarithm has no 0

_TICKS_S: Final = (
    (1.0, 60.0, 3600.0, 86_400.0),
    (1e-3, 1e-2, 0.1, 10.0, 600.0, 36_000.0, 864_000.0, 8.64e6, 8.64e7),
    (2.0, 5.0, 20.0, 30.0, 120.0, 300.0, 1200.0, 1800.0, 7200.0, 18_000.0, 172_800.0, 432_000.0),
)
"""Ticks of a logarithmic axis of time, those first that people count in."""

_FEW_TICKS: Final = 3
_KEY_ROW: Final = 0.2  # Inches


def jct_distribution(runs: Mapping[str, Records]) -> Figure:
    """Share of the finished jobs that took at most so long, one line for each run.

    Args:
        runs: By name, in the order of their colours.
    """
    with style.styled():
        figure = style.canvas()
        axes = figure.add_subplot(
            title="Job completion time", xlabel="JCT, submission to end (log scale)",
            ylabel="share of finished jobs",
        )  # fmt: skip
        drawn: list[F64] = []
        lines: list[tuple[float, str, Line2D]] = []
        for i, (name, records) in enumerate(runs.items()):
            jct_s = np.maximum(records.jct_s[records.finished], _LEAST_S)
            if len(jct_s):
                median_s = spread(jct_s).median
                text = f"{style.label_of(name)}, {duration(median_s)}"
                lines.append((median_s, text, _share_line(axes, jct_s, i)))
                drawn.append(jct_s)
        if drawn:
            _time_axis(axes, np.concatenate(drawn))
            ranked = [(text, line) for _, text, line in sorted(lines, key=lambda entry: entry[0])]
            style.key(axes, ranked, where="lower right", heading="median")
        else:
            style.nothing(axes, "no job finished")
        _shares(axes)
        return figure


def finish_distribution(
    finish_s: Mapping[str, F64], curve: ValueCurve, due_s: float, job: str
) -> Figure:
    """Share of the times of a job's submission at which it was done so soon, one line for each run.

    Args:
        finish_s: By name, in the order of their colours: seconds after the submission; inf: never.
        curve: Its steps are drawn with their values, if it has several.
        due_s: The deadline, seconds after the submission.
        job: The job, for the title.
    """
    with style.styled():
        figure = style.canvas()
        axes = figure.add_subplot(
            title=f"When one more job is done ({job})", ylabel="share of the instants",
            xlabel="time after its submission (log scale)",
        )  # fmt: skip
        times_s = np.concatenate([np.array([due_s, *curve.due_s]), *finish_s.values()])
        _time_axis(axes, times_s[np.isfinite(times_s)])
        _shares(axes)
        marks = {at_s: f"value {value:g}" for at_s, value in curve if len(curve.due_s) > 1}
        marks[due_s] = ", ".join(["deadline", *filter(None, [marks.get(due_s)])])
        for at_s, words in marks.items():
            dashes = "solid" if at_s == due_s else (0, (2, 2))
            axes.axvline(at_s, color=style.GREY, lw=1.2, ls=dashes)
            axes.annotate(
                words, (at_s, 0.0), (-3, 3), rotation=90, ha="right", va="bottom",
                xycoords=axes.get_xaxis_transform(), textcoords="offset points",
                fontsize=7.5, color=style.GREY, path_effects=[style.HALO],
            )  # fmt: skip
        lines = []
        for i, (name, values_s) in enumerate(finish_s.items()):
            met = f"{style.label_of(name)}, {float((values_s <= due_s).mean()):.0%} in time"
            lines.append((met, _share_line(axes, np.maximum(values_s, _LEAST_S), i)))
        style.key_below(figure, lines)
        return figure


def over_time(runs: Mapping[str, Records], *, gpus: float) -> Figure:
    """GPUs in use and jobs waiting over time, one line for each run on two axes.

    Lines are means over windows of one length, exact ones: a short peak is in them with the time
    it took.

    Args:
        runs: By name, in the order of their colours; with their runs.
        gpus: GPUs of the cluster, above 0.

    Raises:
        ValueError: Jobs had service, but their runs are not known.
    """
    with style.styled():
        figure = style.canvas(height=4.8)
        used, waiting = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        spans = [timeline.span(records) for records in runs.values()]
        known = [span for span in spans if span[1] > span[0]]
        last_s = max((last - first for first, last in known), default=1.0)
        unit = unit_of([last_s])
        names: list[tuple[str, Line2D]] = []
        for i, (name, records) in enumerate(runs.items()):
            edges_s = timeline.windows(records, count=_WINDOWS)
            if not len(edges_s):
                continue
            at = (0.5 * (edges_s[1:] + edges_s[:-1]) - edges_s[0]) / unit.in_s
            share = timeline.utilisation(records, edges_s, gpus=gpus)
            style.line(used, at, share, i, width=1.3)
            queue = timeline.jobs_waiting(records).means(edges_s)
            line = style.line(waiting, at, queue, i, width=1.3)
            if len(runs) == 1:
                used.fill_between(at, share, color=style.colour(i), alpha=0.2, linewidth=0)
                waiting.fill_between(at, queue, color=style.colour(i), alpha=0.2, linewidth=0)
            names.append((style.label_of(name), line))
        used.set_title(f"GPUs in use, of {gpus:g}")
        used.set_ylim(0, 1.04)
        used.yaxis.set_major_formatter(Percent(1.0, decimals=0))
        used.grid(visible=True, axis="y")
        waiting.set_title("Jobs waiting")
        waiting.set_ylim(0, max(1.0, waiting.get_ylim()[1]))
        waiting.grid(visible=True, axis="y")
        waiting.yaxis.get_major_locator().set_params(integer=True)
        waiting.set_xlabel(f"time since the first submission ({unit.sign})")
        waiting.set_xlim(0, last_s / unit.in_s)
        if known:
            if len(names) > 1:
                rows = math.ceil(len(names) / style.key_columns(names))
                figure.set_figheight(figure.get_figheight() + _KEY_ROW * rows)
                style.key_below(figure, names)
        else:
            style.nothing(used, "no job ran")
            style.nothing(waiting, "")
        return figure


def _share_line(axes: Axes, values: F64, index: int) -> Line2D:
    """The empirical distribution function of *values*, as a line."""
    ordered = np.sort(values)
    count = len(ordered)
    rank = np.unique(np.linspace(0, count - 1, min(count, _POINTS)).round().astype(np.int64))
    x = np.concatenate([ordered[:1], ordered[rank]])
    share = np.concatenate([[0.0], (rank + 1) / count])
    line = style.line(axes, x, share, index)
    line.set_drawstyle("steps-post")
    return line


def _shares(axes: Axes) -> None:
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(Percent(1.0, decimals=0))
    axes.grid(visible=True)


def _time_axis(axes: Axes, times_s: F64) -> None:
    low, high = _log_limits(times_s, room=1.3)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    _time_ticks(axes, low, high)


def _time_ticks(axes: Axes, low: float, high: float) -> None:
    """Label round times, no two of them too close."""
    least = 0.06 * math.log(high / low)
    ticks: list[float] = []
    for times_s in _TICKS_S:
        if len(ticks) < _FEW_TICKS or times_s is not _TICKS_S[-1]:
            for t in times_s:
                if low <= t <= high and all(abs(math.log(t / u)) >= least for u in ticks):
                    ticks.append(t)
    axes.xaxis.set_major_locator(FixedLocator(sorted(ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda t, _: _brief(t)))


def _log_limits(values: F64, *, room: float) -> tuple[float, float]:
    """Limits of a logarithmic axis, with *room* (a factor) on both sides and at least a decade."""
    low, high = float(values.min()) / room, float(values.max()) * room
    widen = max(1.0, math.sqrt(10 * low / high))
    return low / widen, high * widen


def _brief(time_s: float) -> str:
    """A round time in the fewest characters: ``10 s``, ``1 h``, ``200 µs``."""
    for sign, in_s in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if time_s >= in_s * (1 - 1e-9):
            return f"{time_s / in_s:.3g} {sign}"
    return f"{time_s * 1e6:.3g} µs"


_WIDTH: Final = 10.0
_BAR: Final = 0.19  # Inches of one bar
_BETWEEN: Final = 0.09  # Inches between policies
_AROUND: Final = 1.15  # Inches for titles and key

_RHO: Final = TimeUnit("", 1.0)
_LINEAR: Final = 12.0
"""Bars of which one is longer than so many of another are drawn on a log scale."""

_PANELS: Final = (
    ("Mean JCT", True, "avg_jct_s"),
    ("95th percentile of the JCT", True, "p95_jct_s"),
    ("Worst finish-time fairness rho", False, "max_rho"),
)
"""Title, whether it is a time, and the figure, by its name in `export.summary_json`."""


def ranking(runs: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Figure:
    """Mean JCT, its 95th percentile and the worst rho of each policy, the best of the first on top.

    Policies of which jobs did not finish stand below, hatched: their figures are of fewer jobs.

    Args:
        runs: By cost model, then by policy, the best policy of the first cost model first; a
            policy may be missing under some. Figures are those of `_PANELS`, ``jobs`` and
            ``finished``.
    """
    names = list(dict.fromkeys(name for of in runs.values() for name in of))
    bars = max(1, len(runs))
    with style.styled():
        height = _AROUND + max(2, len(names)) * (bars * _BAR + _BETWEEN)
        figure = style.canvas(width=_WIDTH, height=height)
        panels = figure.subplots(1, len(_PANELS), sharey=True)
        share = bars * _BAR / (bars * _BAR + _BETWEEN)
        hatched = [
            [name in run and run[name]["finished"] < run[name]["jobs"] for name in names]
            for run in runs.values()
        ]
        for axes, (title, is_time, key) in zip(panels, _PANELS, strict=True):
            axes.set_title(title)
            columns = [
                [math.nan if (v := run.get(name, {}).get(key)) is None else v for name in names]
                for run in runs.values()
            ]
            _panel(axes, columns, hatched, share, is_time=is_time)
        panels[0].set_yticks(range(len(names)), [style.label_of(name) for name in names])
        panels[0].set_ylim(max(1, len(names)) - 0.5, -0.5)
        keys = [Patch(color=style.colour(i), label=f"costs {name}") for i, name in enumerate(runs)]
        if any(map(any, hatched)):
            partial = {"facecolor": "white", "edgecolor": style.GREY, "hatch": "////"}
            keys.append(Patch(**partial, label="jobs did not finish"))  # type: ignore[arg-type]
        figure.supxlabel(
            "shorter is better; rho: JCT / time on an equal share of the GPUs",
            fontsize=8, color=style.GREY,
        )  # fmt: skip
        figure.legend(handles=keys, loc="outside upper right", ncols=len(keys), frameon=False)
        return figure


def _panel(
    axes: Axes,
    columns: Sequence[Sequence[float]],
    hatched: Sequence[Sequence[bool]],
    share: float,
    *,
    is_time: bool,
) -> None:
    """One figure of all policies; *share* of the room of each is for its bars."""
    known = [v for column in columns for v in column if math.isfinite(v)]
    unit = unit_of(known) if is_time else _RHO
    most, lowest = max(known, default=1.0), min(known, default=1.0)
    is_log = 0 < _LINEAR * lowest < most
    least = lowest / 2 if is_log else 0.0
    # Room for a number beside the longest bar.
    limit = most * (most / least) ** 0.35 if is_log else 1.35 * most
    if is_log:
        axes.set_xscale("log")
        axes.set_xlabel("log scale", fontsize=8, color=style.GREY)
    thick = share / max(1, len(columns))
    for i, column in enumerate(columns):
        rows = np.arange(len(column)) + (i - (len(columns) - 1) / 2) * thick
        for row, value, is_partial in zip(rows.tolist(), column, hatched[i], strict=True):
            text, end = NONE, least
            if math.isfinite(value):
                text, end = f"{number(value / unit.in_s)} {unit.sign}".strip(), value
                axes.barh(
                    row, end - least, left=least, height=0.92 * thick,
                    facecolor="white" if is_partial else style.colour(i),
                    edgecolor=style.colour(i), linewidth=0.6, hatch="////" if is_partial else None,
                )  # fmt: skip
            number_beside = axes.annotate(
                text, (end, row), (3, 0), textcoords="offset points",
                va="center", fontsize=7, color="#333333",
            )  # fmt: skip
            # The limit has room for it; to lay out hundreds of texts takes seconds.
            number_beside.set_in_layout(False)
    axes.set_xlim(least, limit if limit > least else 1.0)
    axes.xaxis.set_major_locator(NullLocator())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    if not known:
        style.nothing(axes, "no job finished")
