"""A comparison as one picture: bars, or with several loads a line for each policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slurm_dl.experiments.comparison import Comparison
from slurm_dl.experiments.manifest import Manifest
from slurm_dl.model.errors import ConfigError
from slurm_dl.report.number_format import unit_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DRAWN: Final = 28
_BARS: Final = ("avg_jct_s", "p95_jct_s", "max_rho")


def draw(comparisons: Sequence[Comparison], path: Path, manifest: Manifest) -> None:
    """Write one picture to *path*.

    Args:
        comparisons: Under different cost models; with several loads only the first is drawn.

    Raises:
        ConfigError: The ending is no picture's, or the file cannot be written.
    """
    from slurm_dl.report import plots, style  # noqa: PLC0415 - matplotlib takes 0.5 s

    first = comparisons[0]
    if len(first.loads) > 1:
        style.save(_over_loads(first), path, manifest)
        return
    names = _drawn_names([policy.short_label for c in comparisons for policy in c.policies])
    runs = {
        one.costs_name: {
            names[row.label]: {
                "jobs": row.jobs,
                "finished": row.jobs - row.unfinished,
                **{name: row.figures[name].own.value for name in _BARS},
            }
            for row in one.best_first(one.loads[0])
        }
        for one in comparisons
    }
    style.save(plots.ranking(runs), path, manifest)


def _drawn_names(labels: Sequence[str]) -> dict[str, str]:
    """Names of policies in a picture: of a name that is cut there the preset alone."""
    presets = {label: label.partition(":")[2] for label in labels}
    drawn = list(presets.values())
    return {
        label: preset if len(label) > _DRAWN and drawn.count(preset) == 1 else label
        for label, preset in presets.items()
    }


def check_picture(path: Path) -> None:
    """Raise before the work is done if the name is no picture's.

    Raises:
        ConfigError: Its ending is none of a picture.
    """
    endings = (".png", ".svg", ".pdf")
    if path.suffix.lower() not in endings:
        msg = f"--plot {path}: name a file that ends with one of {', '.join(endings)}"
        raise ConfigError(msg)


def _over_loads(comparison: Comparison) -> Figure:
    """Mean JCT against the load, with the ranges as bands where there are resamples."""
    import numpy as np  # noqa: PLC0415 - with matplotlib, for pictures alone
    from matplotlib.ticker import (  # noqa: PLC0415
        FixedLocator,
        FuncFormatter,
        LogLocator,
        NullFormatter,
        NullLocator,
    )

    from slurm_dl.report import style  # noqa: PLC0415

    loads = np.array(sorted(comparison.loads))
    means_s = [row.mean_jct_s for row in comparison.rows]
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
        labels = [policy.short_label for policy in comparison.policies]
        names = _drawn_names(labels)
        for i, label in enumerate(labels):
            rows = sorted((r for r in comparison.rows if r.label == label), key=lambda r: r.load)
            own = [row.figures["avg_jct_s"].own for row in rows]
            low, at, high = (
                np.array([getattr(one, end) for one in own]) / unit.in_s
                for end in ("low", "value", "high")
            )
            line = style.line(axes, loads, at, i)
            line.set(marker="o", markersize=4)
            if own[0].is_known:
                axes.fill_between(loads, low, high, color=style.colour(i), alpha=0.15, lw=0)
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
