"""Plots: what is drawn and said on them, that they are files, and the same files each time."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from report_cases import life, records_of

from slurm_dl.model.completed_jobs import Records
from slurm_dl.model.errors import ConfigError
from slurm_dl.report import plots, style

EVIL = r"$\frac{1}{0$ _x & <b> % 漢字"

LIVES = [life(0, (0, 10)), life(0, (10, 40)), life(0, (40, 60), (80, 100))]
RECORDS = records_of(LIVES)


def texts(axes: Axes) -> list[str]:
    """Texts and key of the axes."""
    legend = axes.get_legend()
    keyed = [] if legend is None else [text.get_text() for text in legend.get_texts()]
    return [text.get_text() for text in axes.texts] + keyed


def test_the_distribution_rises_to_one_at_the_longest_job() -> None:
    """Steps of a third at 10, 40 and 100 s, with the median in the key.

    Colours go by the order of the runs, the key by their medians.
    """
    (axes,) = plots.jct_distribution({"las": RECORDS}).axes

    (line,) = axes.get_lines()
    assert line.get_xydata().tolist() == [
        [10, 0], [10, pytest.approx(1 / 3)], [40, pytest.approx(2 / 3)], [100, 1],
    ]  # fmt: skip
    assert line.get_drawstyle() == "steps-post"
    assert axes.get_xscale() == "log"
    assert "log scale" in axes.get_xlabel()
    assert axes.get_ylabel() == "share of finished jobs"
    assert texts(axes) == ["las, 40.0 s"]
    assert {"10 s", "1 min"} <= {t.get_text() for t in axes.get_xticklabels()}
    fast = records_of([life(0, (0, 5))])
    (axes,) = plots.jct_distribution({"slow": RECORDS, "fast": fast}).axes
    assert texts(axes) == ["fast, 5.00 s", "slow, 40.0 s"]
    legend = axes.get_legend()
    assert [text.get_color() for text in legend.get_texts()] == [style.COLOURS[1], style.COLOURS[0]]


def test_over_time_shows_shares_in_use_and_jobs_waiting() -> None:
    """Means over windows: their sum is the service, and at the beginning two of three wait."""
    figure = plots.over_time({"las": RECORDS}, gpus=2)
    used, waiting = figure.axes

    (line,) = used.get_lines()
    share = np.asarray(line.get_ydata(), dtype=float)
    assert share.mean() * 2 * 100 == pytest.approx(RECORDS.service_gpu_s.sum())
    assert np.asarray(waiting.get_lines()[0].get_ydata(), dtype=float)[0] == 2
    assert used.get_title(loc="left") == "GPUs in use, of 2"
    assert waiting.get_title(loc="left") == "Jobs waiting"
    assert waiting.get_xlabel() == "time since the first submission (s)"
    assert figure.legends == []
    (legend,) = plots.over_time({"las": RECORDS, "fifo": RECORDS}, gpus=2).legends
    assert [text.get_text() for text in legend.get_texts()] == ["las", "fifo"]


def test_lines_can_be_told_apart() -> None:
    """No pair of colour and dashes twice among 28."""
    with style.styled():
        axes = style.canvas().add_subplot()
        drawn = [style.line(axes, np.zeros(2), np.zeros(2), i) for i in range(28)]

    assert len({(line.get_color(), str(line._dash_pattern)) for line in drawn}) == 28


NOTHING = Records.of([])
ALL_PLOTS: dict[str, Callable[[], Figure]] = {
    "jct": lambda: plots.jct_distribution({"las": RECORDS, "fifo": RECORDS}),
    "over-time": lambda: plots.over_time({"las": RECORDS, "fifo": RECORDS}, gpus=2),
}
MAGIC = {"png": b"\x89PNG", "PDF": b"%PDF", "svg": b"<?xml"}
EDGES: dict[str, Callable[[], Figure]] = {
    "jct of nothing": lambda: plots.jct_distribution({"las": NOTHING}),
    "jct of no run": lambda: plots.jct_distribution({}),
    "jct of 0 s": lambda: plots.jct_distribution({"las": records_of([life(0, (0, 0))])}),
    "jct all equal": lambda: plots.jct_distribution({"las": records_of([life(0, (0, 9))] * 5)}),
    "jct evil": lambda: plots.jct_distribution({EVIL: RECORDS}),
    "over time of nothing": lambda: plots.over_time({"las": NOTHING}, gpus=8),
    "over time of one job": lambda: plots.over_time({"las": records_of(LIVES[:1])}, gpus=8),
    "over time evil": lambda: plots.over_time({EVIL: RECORDS, "b": RECORDS}, gpus=8),
    "over time of many runs": lambda: plots.over_time({f"{i}": RECORDS for i in range(13)}, gpus=8),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges_are_drawn_without_a_warning(name: str, tmp_path: Path) -> None:
    """Nothing, one job, equal values, names that are formulas to Matplotlib or have no glyph."""
    path = tmp_path / "plot.svg"

    style.save(EDGES[name](), path)

    assert path.stat().st_size > 2000


def test_a_name_is_drawn_as_it_is() -> None:
    """Not as mathematics; what the font lacks is a mark, a long name is cut, nothing is said."""
    (axes,) = plots.jct_distribution({EVIL: RECORDS}).axes

    (label,) = texts(axes)
    assert label.startswith(r"$\frac{1}{0$ _x & <b> % " + "\N{REPLACEMENT CHARACTER}" * 2)
    legend = axes.get_legend()
    assert not legend.get_texts()[0].get_parse_math()
    assert style.label_of("x" * 99) == "x" * 27 + "…"
    assert style.label_of("\x00") == "-"
    assert texts(plots.jct_distribution({}).axes[0]) == ["no job finished"]
    assert texts(plots.over_time({"a": NOTHING}, gpus=1).axes[0]) == ["no job ran"]


def test_ten_thousand_jobs_are_few_points() -> None:
    """The ends of the distribution are exact, and a line has no more points than a page."""
    ends = np.cumsum(np.random.default_rng(1).lognormal(6, 2, 10_000)).tolist()
    records = records_of([life(0, run) for run in itertools.pairwise([0.0, *ends])])
    (axes,) = plots.jct_distribution({"las": records}).axes

    points = axes.get_lines()[0].get_xydata()
    assert len(points) <= 2001
    assert points[0].tolist() == [records.jct_s.min(), 0]
    assert points[-1].tolist() == [records.jct_s.max(), 1]
    used, _ = plots.over_time({"las": records}, gpus=1).axes
    assert np.asarray(used.get_lines()[0].get_ydata(), dtype=float) == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "ending"), [("over-time", "svg"), *(("jct", ending) for ending in MAGIC)]
)
def test_the_ending_chooses_the_format(name: str, ending: str, tmp_path: Path) -> None:
    """Byte for byte the same again, so that a plot changes with its data only."""
    for path in (tmp_path / f"a.{ending}", tmp_path / f"b.{ending}"):
        style.save(ALL_PLOTS[name](), path)

    first = (tmp_path / f"a.{ending}").read_bytes()
    assert first.startswith(MAGIC[ending])
    assert first == (tmp_path / f"b.{ending}").read_bytes()
    assert not any(word in first for word in (b"CreationDate", b"<dc:date>"))
    for other in ("plot.jpg", "plot"):
        with pytest.raises(ConfigError, match=r"ends with one of \.png, \.svg, \.pdf"):
            style.save(ALL_PLOTS[name](), tmp_path / other)
        assert not (tmp_path / other).exists()


def test_settings_of_others_stay(tmp_path: Path) -> None:
    """A notebook that draws our plots keeps its own style, and we do not take over its."""
    with mpl.rc_context({"axes.facecolor": "red", "font.size": 30.0}):
        before = dict(mpl.rcParams)
        figure = plots.jct_distribution({"las": RECORDS})
        style.save(figure, tmp_path / "plot.png")

        assert dict(mpl.rcParams) == before
        assert to_hex(figure.axes[0].get_facecolor()) == "#ffffff"
        assert figure.axes[0].title.get_fontsize() == 10.0


def test_tables_and_figures_do_not_pay_for_matplotlib() -> None:
    """Half a second at each prompt; and pyplot's global state is never touched."""
    code = (
        "import sys, slurm_dl.report.tables, slurm_dl.report.export\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import slurm_dl.report.plots\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
