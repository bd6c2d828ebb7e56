"""The picture of a fit: cumulative shares of durations, data against fit, by size of job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64
from slurm_dl.model.trace import Trace
from slurm_dl.traces.workload_fit import Fit, SizeClass

_TICKS: Final = {
    1: "1 s",
    60: "1 min",
    600: "10 min",
    3600: "1 h",
    86400: "1 day",
    30 * 86400: "30 days",
}
_POINTS: Final = 400
_DATA: Final = "#b8c4d0"
_FIT: Final = "#c0392b"
_INK: Final = "#333333"


def draw_fit(fit: Fit, traces: Sequence[Trace], path: Path) -> None:
    """Draw *fit* over the *traces* it was made from, as PNG or SVG by the name of *path*.

    Raises:
        ConfigError: The file cannot be written.
    """
    gpus = np.concatenate([t.gpus for t in traces])
    duration_s = np.concatenate([t.duration_s for t in traces])
    columns = min(2, len(fit.classes))
    rows = -(-len(fit.classes) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.7 * rows + 0.5), dpi=110, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes, part in zip(grid.flat, fit.classes, strict=False):
        inside = (gpus >= part.low_gpus) & (gpus <= part.high_gpus)
        _panel(axes, part, np.sort(duration_s[inside]))
    for axes in grid.flat[len(fit.classes) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("share of jobs", color=_INK)
    grid[0, 0].legend(loc="upper left", frameon=False, fontsize=9)
    left, right = duration_s.min() / 2, duration_s.max() * 2
    ticks = {at_s: word for at_s, word in _TICKS.items() if left <= at_s <= right}
    grid[0, 0].set_xlim(left, right)
    grid[0, 0].set_xticks(list(ticks), labels=list(ticks.values()))
    figure.suptitle(f"{fit.origin}: durations of {fit.jobs:,} jobs", fontsize=11, color=_INK)
    figure.supxlabel("running time on its GPUs", fontsize=10, color=_INK)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as err:
        msg = f"{path}: cannot be drawn: {err}"
        raise ConfigError(msg) from err


def _panel(axes: Axes, part: SizeClass, sorted_s: F64) -> None:
    """One class: the data as a wide band, the fit as a line on it."""
    share = np.arange(1, len(sorted_s) + 1) / len(sorted_s)
    # A vector picture of every job would be megabytes; a grid of times shows the same.
    at_s = np.geomspace(sorted_s[0], sorted_s[-1], _POINTS)
    data = np.interp(
        np.searchsorted(sorted_s, at_s, side="right"),
        np.arange(len(share) + 1),
        np.concatenate([[0.0], share]),
    )
    axes.step(at_s, data, where="post", color=_DATA, linewidth=4.5, label="trace")
    axes.plot(at_s, part.durations.cdf(at_s), color=_FIT, linewidth=1.4, label="fit")
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_ylim(0, 1.02)
    axes.tick_params(labelsize=8.5, colors=_INK)
    axes.grid(visible=True, color="#eeeeee", linewidth=0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    low, high = part.low_gpus, part.high_gpus
    size = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    unit = "GPU" if size == "1" else "GPUs"
    axes.set_title(
        f"{size} {unit}: {part.jobs:,} jobs, KS {part.ks:.3f}", fontsize=9.5, color=_INK, loc="left"
    )
