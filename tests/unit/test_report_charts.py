"""Pictures of a report: colours, rows of a schedule, many policies, and tables."""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from report_cases import Life, life, records_of, workloads
from rich.cells import cell_len
from rich.console import Console, RenderableType

from slurm_dl.report import html, style
from slurm_dl.report.export import summary_json
from slurm_dl.report.html.row_packing import Blocks, pack
from slurm_dl.report.plots import ranking
from slurm_dl.report.summary_metrics import by_size, by_user, summarise
from slurm_dl.report.tables import run_tables, sizes_table, users_table
from slurm_dl.report.terminal_table import duration, number, percent, plain_number, unit_of
from slurm_dl.text import safe

THEME = Path(html.__file__).parents[1] / "page" / "theme.js"

VISION = {
    "of all three": np.eye(3),
    "protanopia": np.array([
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ]),
    "deuteranopia": np.array([
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]),
    "tritanopia": np.array([
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ]),
}  # fmt: skip
"""What is seen of linear RGB: Machado, Oliveira, Fernandes, IEEE TVCG 15(6), 2009, severity 1."""

LEAST = 15.0
"""CIE76; 2.3 is just noticeable, between areas that touch."""


def lab(colour: str, seen: np.ndarray) -> np.ndarray:
    """CIELAB (D65) of a colour as such an eye sees it."""
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    ) @ np.clip(seen @ linear, 0, 1)
    ratio = xyz / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eye", VISION)
@pytest.mark.parametrize("kind", ["light", "dark"])
def test_any_two_colours_are_told_apart(eye: str, kind: str) -> None:
    """Of users among themselves, from the grey of the others, and from the ground."""
    others = re.search(rf'OTHERS = .*{kind}: "(#\w+)"', THEME.read_text(encoding="utf-8"))
    css = (THEME.parent / "page.css").read_text(encoding="utf-8")
    grounds = re.findall(r"--ground: (#\w+)", css)
    ground = grounds[0] if kind == "light" else grounds[1]
    ground = ground if len(ground) == 7 else f"#{ground[1:] * 2}"
    bars = re.search(r"BARS = \[(.*?)\]", THEME.read_text(encoding="utf-8"))
    tints = re.findall(r"#\w{6}", bars[1])
    seen = [lab(colour, VISION[eye]) for colour in (*tints, others[1], ground)]

    distances = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen[:-2], 2)]
    distances += [np.linalg.norm(a - b) for a, b in itertools.product(seen[:-2], seen[-2:])]
    assert min(distances) > LEAST


Run = tuple[int, int, int, int]
"""Start, end, job, GPUs."""

RUNS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 5), st.integers(0, 9)).map(
        lambda r: (r[0], r[0] + r[1], r[2], r[3])
    ),
    max_size=40,
)
NODES = st.lists(st.integers(1, 8), min_size=1, max_size=6)


def packed(runs: list[Run], nodes: list[int]) -> Blocks:
    columns = [np.array([run[i] for run in runs], dtype=np.int64) for i in range(4)]
    return pack(columns[0], columns[1], job=columns[2], gpus=columns[3], node_gpus=nodes)


def rows_of(blocks: Blocks) -> dict[int, list[int]]:
    """The rows of each run."""
    rows: dict[int, list[int]] = {}
    for run, first, count in zip(blocks.run, blocks.first, blocks.count, strict=True):
        rows.setdefault(int(run), []).extend(range(int(first), int(first + count)))
    return rows


@given(RUNS, NODES)
def test_each_run_has_its_gpus_and_nobody_shares_a_row(runs: list[Run], nodes: list[int]) -> None:
    """At every instant each row has one run at most; a run that lasts has all it asks for."""
    blocks = packed(runs, nodes)
    rows = rows_of(blocks)

    for i, (start, end, _, gpus) in enumerate(runs):
        assert len(set(rows.get(i, []))) == (gpus if end > start else 0)
    for now in range(45):
        there = [row for i, r in enumerate(runs) if r[0] <= now < r[1] for row in rows.get(i, [])]
        assert len(there) == len(set(there))
    assert max((row for one in rows.values() for row in one), default=0) < sum(nodes) + blocks.extra


@given(RUNS, NODES)
def test_extra_rows_are_for_what_does_not_fit_alone(runs: list[Run], nodes: list[int]) -> None:
    """There are just as many as the GPUs held at once go beyond those there are."""
    most = max((sum(r[3] for r in runs if r[0] <= now < r[1]) for now in range(45)), default=0)

    assert packed(runs, nodes).extra == max(0, most - sum(nodes))


@given(RUNS, NODES)
def test_blocks_stay_within_a_node(runs: list[Run], nodes: list[int]) -> None:
    """A rectangle over the border of two nodes would say that they are one."""
    blocks = packed(runs, nodes)
    node_of = np.append(np.repeat(np.arange(len(nodes)), nodes), np.full(blocks.extra, -1))

    for first, count in zip(blocks.first, blocks.count, strict=True):
        assert len(set(node_of[first : first + count].tolist())) == 1
    assert (np.diff(blocks.run) >= 0).all()


def test_a_job_lies_on_one_node_and_fills_the_fullest() -> None:
    """Two GPUs go where two are free, not to the empty node; four go there."""
    rows = rows_of(packed([(0, 9, 0, 2), (1, 9, 1, 2), (2, 9, 2, 4)], [4, 4]))

    assert rows == {0: [0, 1], 1: [2, 3], 2: [4, 5, 6, 7]}


def test_a_job_comes_back_to_its_rows_if_they_are_free() -> None:
    """After a preemption by somebody who takes others it is where it was."""
    runs = [(0, 2, 0, 1), (0, 9, 1, 1), (0, 3, 2, 1), (4, 6, 2, 1), (5, 6, 0, 1)]

    rows = rows_of(packed(runs, [4]))

    assert rows[2] == rows[3]
    assert rows[0] == rows[4]


def test_one_larger_than_any_node_takes_the_emptiest_whole() -> None:
    """Six GPUs go to the node of four and two of another, and leave the one in use alone."""
    rows = rows_of(packed([(0, 9, 0, 1), (1, 9, 1, 6)], [4, 4, 4]))

    assert rows == {0: [0], 1: [4, 5, 6, 7, 8, 9]}


def test_who_ends_makes_room_for_who_starts_then() -> None:
    """One GPU after the other is one row."""
    blocks = packed([(t, t + 1, t, 1) for t in range(50)], [1])

    assert blocks.extra == 0
    assert blocks.first.tolist() == [0] * 50


Figures = dict[str, Any]


def summary(*lengths: float) -> Figures:
    """Jobs that took so long, all submitted at 0 on enough GPUs; alone a third of it."""
    records = records_of([life(0, (0, t), alone=t / 3) for t in lengths])
    return summary_json(summarise(records, gpus=max(1, len(lengths))))


BEST, WORST = summary(100, 200, 300), summary(200, 400, 1500)


def bars(axes: Axes) -> list[tuple[float, float]]:
    """Where each bar stands and where it ends, from the top."""
    found = [(p.get_y() + p.get_height() / 2, p.get_x() + p.get_width()) for p in axes.patches]  # type: ignore[attr-defined]
    return sorted(found)


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_bars_are_the_figures_in_the_order_given() -> None:
    """Mean, 95th percentile and worst rho; the first policy is on top."""
    figure = ranking({"none": {"srtf": BEST, "fifo": WORST}})

    mean, p95, rho = figure.axes
    assert [label.get_text() for label in mean.get_yticklabels()] == ["srtf", "fifo"]
    assert mean.get_ylim()[0] > mean.get_ylim()[1]
    assert [end for _, end in bars(mean)] == pytest.approx([200, 700])
    assert [end for _, end in bars(p95)] == pytest.approx([300, 1500])
    assert [end for _, end in bars(rho)] == pytest.approx([BEST["max_rho"], WORST["max_rho"]])
    assert texts(rho) == ["3.00", "3.00"]
    assert [round(at) for at, _ in bars(mean)] == [0, 1]


def test_a_policy_that_did_not_run_under_a_cost_model_has_a_dash_there() -> None:
    """Two bars beside each other, one for each cost model, in their colours."""
    figure = ranking({"none": {"srtf": BEST, "fifo": WORST}, "slurm": {"fifo": WORST}})

    mean = figure.axes[0]
    assert len(mean.patches) == 3
    assert texts(mean).count("-") == 1
    (above, first), (ours, second), (theirs, third) = bars(mean)
    assert (first, second, third) == pytest.approx((200, 700, 700))
    assert above < 0.5 < ours < theirs < 1.5
    (legend,) = figure.legends
    assert [t.get_text() for t in legend.get_texts()] == ["costs none", "costs slurm"]


def test_unfinished_work_is_hatched_and_far_figures_are_on_a_log_scale() -> None:
    figure = ranking({"none": {"srtf": BEST, "fifo": {**WORST, "finished": 2}}})
    assert [p.get_hatch() for p in figure.axes[0].patches] == [None, "////"]
    assert figure.legends[0].get_texts()[-1].get_text() == "jobs did not finish"
    assert (figure.axes[0].get_xscale(), figure.axes[0].get_xlim()[0]) == ("linear", 0.0)

    far = ranking({"none": {"a": BEST, "b": summary(9000, 9000, 9000)}}).axes[0]
    assert (far.get_xscale(), far.get_xlabel()) == ("log", "log scale")


def test_no_bar_or_number_of_twenty_policies_leaves_the_picture(tmp_path: Path) -> None:
    runs = {f"policy_with_quite_a_name_{i}": summary(100 + i, 200, 300 + i) for i in range(20)}
    figure = ranking({"none": runs, "slurm": dict(list(runs.items())[::2])})
    path = tmp_path / "a.png"

    style.save(figure, path)

    width, height = figure.get_size_inches() * figure.dpi
    for axes in figure.axes:
        for text in axes.texts:
            box = text.get_window_extent()
            assert box.x0 >= 0
            assert box.x1 <= width
            assert 0 <= box.y0 < box.y1 <= height
    tops = sorted(text.get_window_extent().y0 for text in figure.axes[0].texts)
    assert min(b - a for a, b in itertools.pairwise(tops)) > 0
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("runs", [{}, {"none": {}}, {"none": {"fifo": summary()}}])
def test_nothing_is_drawn_of_nothing(runs: dict[str, dict[str, Figures]], tmp_path: Path) -> None:
    style.save(ranking(runs), tmp_path / "a.svg")


HOUR = 3600.0


def plain(table: RenderableType, *, width: int = 80) -> list[str]:
    """As it is printed into a pipe."""
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_one_run_tells_its_figures_in_80_columns() -> None:
    """Numbers that can be checked by hand, each with its unit."""
    lives = [
        life(0, (0, HOUR), gpus=4, alone=HOUR, lost=(("redone", 0.36 * HOUR),)),
        life(0, (HOUR, 2 * HOUR), (3 * HOUR, 4 * HOUR), gpus=4, alone=2 * HOUR, success=False),
    ]

    lines = plain(run_tables(summarise(records_of(lives), gpus=4), title="2D-LAS on a trace"))

    assert lines[0] == "2D-LAS on a trace"
    told = {" ".join(line.split()) for line in lines}
    assert told >= {
        "jobs 2, 2 finished, 1 with success",
        "makespan 4.00 h",
        "GPUs used 75.0%, 12.0 GPU-hours",
        "GPU-hours lost 0.360 (3.0%): redone 0.360",
        "JCT 2.50 h 2.50 h 4.00 h 4.00 h 4.00 h",
        "queueing in all 60.0 min 60.0 min 2.00 h 2.00 h 2.00 h",
        "wait to first start 30.0 min 30.0 min 60.0 min 60.0 min 60.0 min",
        "slow-down 1.50 1.50 2.00 2.00 2.00",
    }


def test_users_are_those_who_used_most_and_sizes_keep_their_order() -> None:
    """Twenty are shown, the most service first, and it is told that more were left out."""
    lives = [life(0, (0, 10.0 * i), user=f"u{i:02}") for i in range(1, 26)]
    lines = plain(users_table(by_user(records_of(lives), gpus=99)))
    assert [line.split()[0] for line in lines[2:22]] == [f"u{i:02}" for i in range(25, 5, -1)]
    assert "20 with the most GPU-hours, 5 more left out" in lines[22]

    sizes = records_of([life(0, (0, 10), gpus=g) for g in (16, 1, 4, 1)])
    lines = plain(sizes_table(by_size(sizes, gpus=99)))
    assert [line.split()[:2] for line in lines[2:5]] == [["1", "2"], ["3-4", "1"], ["9-16", "1"]]


EVIL = "[red]a[/red] [link=http://x]\x1b[31m\u202eb\nc"


def test_names_are_neither_markup_nor_control() -> None:
    """Brackets stay, escapes go, on one line; in every table that shows a name."""
    records = records_of([life(0, (0, 10), user=EVIL)])
    lossy = records_of([life(0, (0, 10), lost=((EVIL, 1.0),))])

    for table in (
        run_tables(summarise(records, gpus=1), title=EVIL),
        run_tables(summarise(lossy, gpus=1), title=""),
        users_table(by_user(records, gpus=1)),
    ):
        text = "\n".join(plain(table, width=200))
        assert "[red]a[/red]" in text
        assert not {"\x1b", "\u202e"} & set(text)


@settings(max_examples=20)
@given(lives=workloads)
def test_tables_fit_into_80_columns(lives: list[Life]) -> None:
    """Whatever the figures, and where there is none."""
    records = records_of(lives)
    summary = summarise(records, gpus=24)
    users, sizes = by_user(records, gpus=24), by_size(records, gpus=24)

    for table in (run_tables(summary, title="a run"), sizes_table(sizes), users_table(users)):
        assert all(cell_len(line) <= 80 for line in plain(table))


def test_tables_of_nothing_show_dashes() -> None:
    """No job, no run: headings and no traceback."""
    empty = plain(run_tables(summarise(records_of([]), gpus=1), title=""))

    assert "JCT - - - - -" in {" ".join(line.split()) for line in empty}
    assert plain(users_table(()))[-1].startswith("slow-down")


FORMS: dict[Callable[[float], str], list[tuple[float, str]]] = {
    # In the unit that suits, from twice itself on.
    duration: [
        (0, "0 s"), (0.5, "0.500 s"), (95.24, "95.2 s"), (119.9, "120 s"), (120, "2.00 min"),
        (7200, "2.00 h"), (172_700, "48.0 h"), (172_800, "2.00 d"), (1e9, "11,574 d"),
        (math.nan, "-"), (math.inf, "-"),
    ],
    # Three digits that count; rounding adds no fourth.
    number: [
        (0, "0"), (0.04951, "0.050"), (0.9996, "1.00"), (9.996, "10.0"), (99.96, "100"),
        (12345.6, "12,346"), (-3.21, "-3.21"), (math.nan, "-"),
    ],
    # For machines: whole ones without a point, as long as each of them is a float.
    plain_number: [
        (3.0, "3"), (-0.0, "0"), (0.1, "0.1"), (1e22, "1e+22"), (2.0**53, "9007199254740992.0"),
        (math.nan, ""), (math.inf, "inf"),
    ],
    percent: [(0.123, "12.3%"), (math.nan, "-")],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_numbers_are_written_for_people_and_machines(form: Callable[[float], str]) -> None:
    assert [form(value) for value, _ in FORMS[form]] == [text for _, text in FORMS[form]]


def test_a_column_has_one_unit_and_a_long_name_an_end() -> None:
    """The unit of its geometric mean, so that no end of it looks absurd; zeros do not count."""
    columns = ([60, 3600 * 24], [0, 3600 * 4, math.nan], [])
    assert [unit_of(column).sign for column in columns] == ["min", "h", "s"]
    assert safe("a\x00b" * 9, 5) == "abab…"
