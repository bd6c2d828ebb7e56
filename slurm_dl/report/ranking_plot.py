"""Many policies in one picture: bars in the order of the mean JCT, one for each cost model.

Import it where a plot is asked for, as `plots`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter, NullLocator

from slurm_dl.report import style
from slurm_dl.report.number_format import NONE, TimeUnit, number, unit_of

_WIDTH: Final = 10.0
_BAR: Final = 0.19
"""Inches of one bar."""

_BETWEEN: Final = 0.09
"""Inches between policies."""

_AROUND: Final = 1.15
"""Inches for titles and key."""

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
