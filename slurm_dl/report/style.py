"""The look of all plots, and the files that they are written to.

Colours are those of Okabe and Ito (2008), which colour-blind people can tell apart; line styles
tell lines apart in print. Matplotlib's settings are changed only while a plot is made or written.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import NullLocator

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64
from slurm_dl.report.export import write_whole
from slurm_dl.report.terminal_table import NONE
from slurm_dl.text import safe

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito without the yellow, which is too faint for a line on white."""

DASHES: Final = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
GREY: Final = "#666666"
HALO: Final = withStroke(linewidth=2.5, foreground="white")
"""White around a text that lines cross."""
FAINT: Final = "#DDDDDD"

Corner = Literal["lower right", "upper left"]

ENDINGS: Final = ("png", "svg", "pdf")

_LONGEST: Final = 28
_DPI: Final = 150
_PAGE: Final = 85
# Any, as the type of a setting's name lists those of one version of Matplotlib.
_SETTINGS: Final[Any] = {
    "font.family": "DejaVu Sans",  # comes with Matplotlib, so a plot is the same everywhere
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": "#333333",
    "axes.edgecolor": "#888888",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "grid.linestyle": "solid",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "lines.linewidth": 1.6,
    "path.simplify": True,
    "text.parse_math": False,  # names hold whatever users typed
    "axes.unicode_minus": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "slurm_dl",
    "pdf.fonttype": 42,
    "text.usetex": False,
}


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Within it everything is drawn in the style; the settings of others are untouched."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


def canvas(*, width: float = 6.4, height: float = 4.0) -> Figure:
    """An empty figure that belongs to nobody but the caller.

    Args:
        width: Inches.
        height: Inches.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def colour(index: int) -> str:
    """Colour of the *index*-th run."""
    return COLOURS[index % len(COLOURS)]


def line(axes: Axes, x: F64, y: F64, index: int, *, width: float = 1.6) -> Line2D:
    """Draw the line of the *index*-th run; 28 can be told apart."""
    # Seven colours and four dashes: no pair comes twice within 28.
    dashes = DASHES[index % len(DASHES)]
    (drawn,) = axes.plot(x, y, color=colour(index), linestyle=dashes, linewidth=width)
    return drawn


def label_of(text: str) -> str:
    """*text* as it can be drawn: one line, not too long, in characters that the font has."""
    drawable = _drawable()
    shown = safe(text, _LONGEST)
    return "".join(c if ord(c) in drawable else "\N{REPLACEMENT CHARACTER}" for c in shown) or NONE


def key(
    axes: Axes, lines: Sequence[tuple[str, Line2D]], *, where: Corner, heading: str = ""
) -> None:
    """The name of each line, in its colour, inside the axes.

    Args:
        lines: In the order in which they are listed, with what they are called.
        where: Matplotlib's word for the place.
        heading: What the labels tell.
    """
    legend = axes.legend(
        [drawn for _, drawn in lines],
        [text for text, _ in lines],
        loc=where,
        title=heading or None,
        frameon=False,
        handlelength=2.4,
        labelspacing=0.35,
        borderaxespad=0.3,
        alignment="left",
    )
    legend.get_title().set_color(GREY)
    _in_colour(legend)


def key_below(figure: Figure, lines: Sequence[tuple[str, Line2D]]) -> None:
    """The name of each line, in its colour, under all axes.

    Args:
        lines: In the order in which they are listed, with what they are called.
    """
    legend = figure.legend(
        [drawn for _, drawn in lines],
        [text for text, _ in lines],
        loc="outside lower center",
        ncols=key_columns(lines),
        frameon=False,
        handlelength=2.4,
    )
    _in_colour(legend)


def key_columns(lines: Sequence[tuple[str, Line2D]]) -> int:
    """In how many columns the key stands under the axes: as many as a page has room for."""
    longest = max((len(text) for text, _ in lines), default=0)
    # A line of text has some 85 characters; a sample and a gap are as wide as 10 of them.
    return max(1, min(len(lines), _PAGE // (longest + 10)))


def _in_colour(legend: Legend) -> None:
    for text, drawn in zip(legend.get_texts(), legend.get_lines(), strict=True):
        text.set_color(drawn.get_color())
        text.set_path_effects([HALO])


def nothing(axes: Axes, text: str) -> None:
    """Say in the middle of empty axes why they are empty."""
    axes.grid(visible=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(NullLocator())
        axis.set_minor_locator(NullLocator())
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY)


def save(figure: Figure, path: Path, manifest: Mapping[str, object] | None = None) -> None:
    """Write *figure* as PNG, SVG or PDF, as the ending of *path* says; the same bytes each time.

    Args:
        manifest: What defines its figures, for the metadata: ``Description``, of PDF ``Subject``.

    Raises:
        ConfigError: The ending is another one, or the file cannot be written.
    """
    ending = path.suffix.lower().removeprefix(".")
    if ending not in ENDINGS:
        known = ", ".join(f".{known}" for known in ENDINGS)
        msg = f"cannot tell the format of plot {path}: name a file that ends with one of {known}"
        raise ConfigError(msg)
    # A date would make every file another one; so would the version in a comparison of two sites.
    metadata: dict[str, dict[str, str | None]] = {
        "png": {"Software": None},
        "svg": {"Date": None, "Creator": "slurm_dl"},
        "pdf": {"CreationDate": None, "Creator": "slurm_dl", "Producer": None},
    }
    if manifest is not None:
        key = "Subject" if ending == "pdf" else "Description"
        metadata[ending][key] = json.dumps(manifest)
    written = io.BytesIO()
    with styled():
        figure.savefig(written, format=ending, dpi=_DPI, metadata=metadata[ending])
    write_whole(path, written.getvalue())


@cache
def _drawable() -> frozenset[int]:
    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())
