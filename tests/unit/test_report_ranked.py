"""The picture of many policies: who stands where, what is drawn of whom, and what is left out."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from report_cases import life, records_of

from slurm_dl.report import style
from slurm_dl.report.export import summary_json
from slurm_dl.report.plots import ranking
from slurm_dl.report.summary_metrics import summarise

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
