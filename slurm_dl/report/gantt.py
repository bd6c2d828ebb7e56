"""A schedule as one picture for paper: jobs on GPUs over time, and what that amounts to.

Import it where a picture is asked for: Matplotlib takes half a second. The rows are those of the
HTML page (`slurm_dl.report.html.row_packing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from slurm_dl.model.job_record import Records
from slurm_dl.model.jobs import I64
from slurm_dl.report import style, timeline
from slurm_dl.report.html.gpu_rows import number
from slurm_dl.report.html.page_data import PREEMPTED, how_they_ended
from slurm_dl.report.html.row_packing import pack
from slurm_dl.report.number_format import TimeUnit, unit_of

MOST_SCHEDULES: Final = 6
"""More do not fit on one page."""

TINTS: Final = (
    "#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00", "#663311",
)  # fmt: skip
"""Of the bars, as on the HTML page: Okabe and Ito (2008) and a brown."""

_INK: Final = "#222222"
_TICKS: Final = 2**40
"""Of the whole time; the packing counts in whole numbers."""

_MARK: Final[Any] = {
    "linestyle": "none",
    "marker": "<",
    "markersize": 4.0,
    "color": _INK,
    "markeredgecolor": "white",
    "markeredgewidth": 0.5,
}
"""Of a preemption; its edge is seen on dark bars."""

_OTHERS: Final = "#c3c8ce"
_GPU_CLASSES: Final = (1, 2, 4, 8, 16, 32, 64)
_NAMED_NODES: Final = 12
_ACROSS: Final = 110
"""Characters of a key that the picture has room for side by side."""

_WINDOWS: Final = 160
_THIN: Final = 0.002
_MARKED: Final = 2000
"""With more preemptions their marks would hide the bars."""


def schedules(
    runs: Sequence[tuple[str, Records]], *, title: str, node_gpus: Sequence[int]
) -> Figure:
    """Jobs on GPUs under each policy, one above the other, and the jobs waiting under them.

    Bars have the colour of the job's user, of those with most jobs, or of its number of GPUs where
    there is one user; a triangle is a preemption. Rows are GPUs of nodes where the records have the
    nodes; else they are given by a fixed rule, and the axis says so.

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
        kinds = _kinds(runs[0][1])
        for axes, (name, records) in zip(panels, runs, strict=False):
            _bars(axes, records, kinds, node_gpus, first_s=first_s, last_s=last_s, unit=unit)
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
        _key_of_bars(figure, kinds, preempted=any(r.preemptions.any() for _, r in runs))
        return figure


@dataclass(frozen=True, slots=True)
class _Kinds:
    """What jobs are coloured by.

    Attributes:
        of: ``(n,)`` the kind of each job.
        names: Of each kind.
        colours: The same.
    """

    of: I64
    names: tuple[str, ...]
    colours: tuple[str, ...]


def _kinds(records: Records) -> _Kinds:
    if len(records.users) < 2:  # noqa: PLR2004 - one user is all
        of = np.searchsorted(_GPU_CLASSES, records.gpus).astype(np.int64)
        limits = [f"{most}" for most in _GPU_CLASSES]
        names = (*(f"up to {most} GPUs" for most in limits), f"more than {limits[-1]}")
        there = np.unique(of)
        place = np.searchsorted(there, of)
        shown = there.tolist()
        return _Kinds(place, tuple(names[i] for i in shown), tuple(TINTS[i] for i in shown))
    jobs = np.bincount(records.user, minlength=len(records.users))
    ranked = np.argsort(-jobs, kind="stable")
    ranked = ranked[: np.count_nonzero(jobs)]
    own = len(ranked) if len(ranked) <= len(TINTS) else len(TINTS) - 1
    place = np.full(len(records.users), own, dtype=np.int64)
    place[ranked[:own]] = np.arange(own)
    names = tuple(style.label_of(records.users[user]) for user in ranked[:own].tolist())
    colours = TINTS[:own]
    if own < len(ranked):
        names, colours = (*names, f"{len(ranked) - own} others"), (*colours, _OTHERS)
    return _Kinds(place[records.user], names, colours)


def _key_of_bars(figure: Figure, kinds: _Kinds, *, preempted: bool) -> None:
    handles: list[Artist] = [
        Patch(facecolor=colour, label=name)
        for name, colour in zip(kinds.names, kinds.colours, strict=True)
    ]
    if preempted:
        handles.append(Line2D([], [], label="preempted", **_MARK))
    if not handles:
        return
    longest = max(len(str(handle.get_label())) for handle in handles)
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=max(1, min(len(handles), _ACROSS // (longest + 5))),
        frameon=False,
        handlelength=1.2,
        fontsize=8,
    )


def _bars(
    axes: Axes,
    records: Records,
    kinds: _Kinds,
    node_gpus: Sequence[int],
    *,
    first_s: float,
    last_s: float,
    unit: TimeUnit,
) -> None:
    runs, job = records.runs, records.runs.job.astype(np.int64)
    tick_s = (last_s - first_s) / _TICKS
    start = np.rint((runs.start_s - first_s) / tick_s).astype(np.int64)
    end = np.rint((runs.end_s - first_s) / tick_s).astype(np.int64)
    gpus = np.ceil(runs.gpus).astype(np.int64)
    if runs.nodes is None:
        blocks = pack(start, end, job=job, gpus=gpus, node_gpus=node_gpus)
    else:
        blocks = number(start, end, runs.nodes, node_gpus)
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
    tints = np.array([to_rgba(tint) for tint in kinds.colours]).reshape(-1, 4)
    colours = tints[kinds.of[job[blocks.run]]]
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
        axes.plot(right[stopped], middle[stopped], **_MARK)
    rows = sum(node_gpus) + blocks.extra
    axes.set_ylim(max(rows, 1), 0)
    axes.set_ylabel("GPU" if runs.nodes is not None else "GPU (nodes not recorded)")
    if len(node_gpus) <= _NAMED_NODES:
        below = np.cumsum(node_gpus)
        names = [f"n{i + 1}" for i in range(len(node_gpus))]
        axes.set_yticks((below - 0.5 * np.asarray(node_gpus)).tolist(), names)
        axes.tick_params(axis="y", length=0)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    if len(node_gpus) <= rows / 2:
        for row in np.cumsum(node_gpus).tolist():
            axes.axhline(row, color=style.GREY, linewidth=0.5)
