"""A schedule as one picture for paper: jobs on GPUs over time, and what that amounts to.

Import it where a picture is asked for: Matplotlib takes half a second. The rows are those of the
HTML page (`slurm_dl.report.html.rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from slurm_dl.model.jobs import I64
from slurm_dl.model.record import Records
from slurm_dl.report import style, timeline
from slurm_dl.report.html.columns import PREEMPTED, how_they_ended
from slurm_dl.report.html.rows import pack
from slurm_dl.report.wording import Unit, unit_of

MOST_SCHEDULES: Final = 6
"""More do not fit on one page."""

_TINTS: Final = (
    "#7db8e8", "#f4b06a", "#7fcda6", "#dd9bc3", "#e3d26a", "#a3aaf0", "#cf9f83", "#86d3d6",
)  # fmt: skip
_INK: Final = "#222222"
_TICKS: Final = 2**40
"""Of the whole time; the packing counts in whole numbers."""

_WINDOWS: Final = 160
_THIN: Final = 0.002
_MARKED: Final = 2000
"""With more preemptions their marks would hide the bars."""


def schedules(
    runs: Sequence[tuple[str, Records]], *, title: str, node_gpus: Sequence[int]
) -> Figure:
    """Jobs on GPUs under each policy, one above the other, and the jobs waiting under them.

    Bars have the colour of the job's user, in turn, or of its number of GPUs where there is one
    user; a triangle is a preemption. Which GPU a run was on is not in the records: rows are given
    by a fixed rule.

    Args:
        runs: Names and records, in the order of their lines; at most `MOST_SCHEDULES`.
        node_gpus: GPUs of each node, from the top.

    Raises:
        ValueError: There are none or too many, or the runs of the jobs are not known.
    """
    if not 1 <= len(runs) <= MOST_SCHEDULES:
        msg = f"one picture shows 1 to {MOST_SCHEDULES} schedules (got {len(runs)})"
        raise ValueError(msg)
    spans = [timeline.span(records) for _, records in runs]
    known = [span for span in spans if span[1] > span[0]]
    first_s = min((first for first, _ in known), default=0.0)
    last_s = max((last for _, last in known), default=first_s + 1.0)
    unit = unit_of([last_s - first_s])
    count = len(runs)
    with style.styled():
        figure = style.canvas(width=8.5, height=1.6 + 2.1 * count)
        ratios = [*([2.1] * count), 1.2]
        panels = figure.subplots(count + 1, 1, sharex=True, height_ratios=ratios)
        for axes, (name, records) in zip(panels, runs, strict=False):
            _bars(axes, records, node_gpus, first_s=first_s, last_s=last_s, unit=unit)
            axes.set_title(f"{style.label_of(title)}: {style.label_of(name)}")
        waiting = panels[-1]
        lines = []
        for i, (name, records) in enumerate(runs):
            edges_s = timeline.windows(records, count=_WINDOWS)
            if len(edges_s):
                at = (0.5 * (edges_s[1:] + edges_s[:-1]) - first_s) / unit.in_s
                mean = timeline.jobs_waiting(records).means(edges_s)
                lines.append((style.label_of(name), style.line(waiting, at, mean, i, width=1.3)))
        waiting.set_title("Jobs waiting")
        waiting.set_ylim(0, max(1.0, waiting.get_ylim()[1]))
        waiting.grid(visible=True, axis="y")
        waiting.set_xlabel(f"time since the first submission ({unit.sign})")
        waiting.set_xlim(0, (last_s - first_s) / unit.in_s)
        if len(lines) > 1:
            style.key_below(figure, lines)
        return figure


def _bars(
    axes: Axes,
    records: Records,
    node_gpus: Sequence[int],
    *,
    first_s: float,
    last_s: float,
    unit: Unit,
) -> None:
    runs, job = records.runs, records.runs.job.astype(np.int64)
    tick_s = (last_s - first_s) / _TICKS
    start = np.rint((runs.start_s - first_s) / tick_s).astype(np.int64)
    end = np.rint((runs.end_s - first_s) / tick_s).astype(np.int64)
    gpus = np.ceil(runs.gpus).astype(np.int64)
    blocks = pack(start, end, job=job, gpus=gpus, node_gpus=node_gpus)
    left = (runs.start_s[blocks.run] - first_s) / unit.in_s
    right = (runs.end_s[blocks.run] - first_s) / unit.in_s
    top, bottom = blocks.first.astype(np.float64), (blocks.first + blocks.count).astype(np.float64)
    corners = np.stack(
        [
            np.stack(xy, axis=1)
            for xy in ((left, top), (right, top), (right, bottom), (left, bottom))
        ],
        axis=1,
    )
    tints = np.array([to_rgba(tint) for tint in _TINTS])
    colours = tints[_kind(records)[job[blocks.run]] % len(_TINTS)]
    # An edge keeps neighbours apart, and would hide what is not wider than itself.
    edges = np.where(right - left > _THIN * (last_s - first_s) / unit.in_s, 0.3, 0.0)
    axes.add_collection(
        PolyCollection(list(corners), facecolors=colours, edgecolors="white", linewidths=edges)
    )
    how = how_they_ended(job, start, end, records.finished)
    once = np.unique(blocks.run, return_index=True)[1]
    stopped = once[how[blocks.run[once]] == PREEMPTED]
    if len(stopped) <= _MARKED:
        middle = 0.5 * (top + bottom)
        axes.plot(
            right[stopped],
            middle[stopped],
            linestyle="none",
            marker="<",
            markersize=2.5,
            color=_INK,
        )
    rows = sum(node_gpus) + blocks.extra
    axes.set_ylim(max(rows, 1), 0)
    axes.set_ylabel("GPU")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    if len(node_gpus) <= rows / 2:
        for row in np.cumsum(node_gpus).tolist():
            axes.axhline(row, color=style.GREY, linewidth=0.5)


def _kind(records: Records) -> I64:
    """``(n,)`` what each job is coloured by: its user, or its GPUs if there is one user alone."""
    if len(records.users) > 1:
        return records.user.astype(np.int64)
    return np.ceil(np.log2(np.maximum(records.gpus, 1.0))).astype(np.int64)
