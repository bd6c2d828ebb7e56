"""Plots, and the step functions over time that they draw."""

from __future__ import annotations

import dataclasses
import itertools
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from report_cases import Life, life, records_of, workloads

from slurm_dl.model.completed_jobs import JobRecord, Records, Runs
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.ids import JobId
from slurm_dl.report import plots, style, timeline
from slurm_dl.report.timeline import Steps

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


THREE_LIVES = [life(0, (10, 30), (40, 60), gpus=4), life(20, (30, 40), gpus=2), life(50, gpus=8)]
"""One that is preempted for another, and one that never starts."""


def values(steps: Steps) -> list[tuple[float, float]]:
    return list(zip(steps.time_s.tolist(), steps.value.tolist(), strict=True))


def test_gpus_in_use_and_jobs_waiting_step_with_each_run() -> None:
    """A hand-over is one instant; one that never starts waits to the end and beyond."""
    records = records_of(THREE_LIVES)
    used, waiting = timeline.gpus_in_use(records), timeline.jobs_waiting(records)

    assert values(used) == [(10, 4), (30, 2), (40, 4), (60, 0)]
    assert used.integral() == 4 * 40 + 2 * 10
    assert values(waiting) == [(0, 1), (10, 0), (20, 1), (30, 1), (40, 0), (50, 1), (60, 1)]
    assert waiting.integral_to(np.array([1060.0]))[0] == 10 + 20 + 10 + 1000


def test_a_heterogeneous_job_waits_while_none_of_its_parts_runs() -> None:
    """Its parts run at once, and one after the other; it is one job that waits, or none."""
    parts = life(0, (10, 30), (10, 20), (30, 40), (60, 70), (65, 80), gpus=5)
    records = records_of([parts, life(0, (5, 100))])

    jobs = timeline.jobs_waiting(records)
    changes = [(0, 2), (5, 1), (10, 0), (40, 1), (60, 0)]
    assert [step for step in values(jobs) if step[1] != 0 or step[0] in (10, 60)] == changes
    assert jobs.value.min() == 0
    assert records.queue_s.tolist() == [10 + 20, 5]


@given(
    drawn=st.lists(
        st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=5), max_size=4
    )
)
def test_waiting_equals_a_count_where_runs_of_a_job_overlap(
    drawn: list[list[tuple[int, int]]],
) -> None:
    """All times are whole: half a second past each of them everything can be counted."""
    lives = [
        life(0, *sorted(((a, a + b) for a, b in runs), key=lambda run: run[1]), gpus=1 + nth)
        for nth, runs in enumerate(drawn)
    ]
    found = timeline.jobs_waiting(records_of(lives)).means(np.arange(61.0))

    assert found.tolist() == [_count(lives, at + 0.5)[1] for at in range(60)]


def test_windows_span_first_submission_to_last_end() -> None:
    """Also where the last to end was a run of a job that did not finish; their means are exact."""
    records = records_of([life(10, (20, 50), ends=False), life(0, (0, 30))])

    assert timeline.span(records) == (0, 50)
    assert timeline.windows(records, count=5).tolist() == [0, 10, 20, 30, 40, 50]
    found = timeline.utilisation(records, timeline.windows(records, count=1), gpus=2)
    assert found.tolist() == [60 / 100]
    peak = timeline.gpus_in_use(records_of([life(0, (149, 150), gpus=50)]))
    assert peak.means(np.array([0.0, 100.0, 200.0, 300.0])).tolist() == [0, 0.5, 0]


def test_nothing_has_no_windows_and_sums_alone_are_refused() -> None:
    """No job, or none that ran; accounting that knows only sums must not look idle."""
    for records in (records_of([]), records_of([life(5)])):
        assert len(timeline.windows(records, count=3)) == 0
        assert len(timeline.gpus_in_use(records)) == 0
        assert timeline.gpus_in_use(records).integral() == 0
    assert Steps.of([]).integral_to(np.array([1.0])).tolist() == [0]
    row = JobRecord(
        job_id=JobId(1), user="ada", gpus=2, submit_s=0, start_s=10, end_s=80, service_gpu_s=60
    )
    for of in (timeline.gpus_in_use, timeline.jobs_waiting):
        with pytest.raises(ValueError, match="needs the runs"):
            of(Records.of([row]))


@settings(max_examples=50)
@given(lives=workloads)
def test_integrals_are_the_service_and_the_time_in_queue(lives: list[Life]) -> None:
    """No second appears or is lost between the two ways of counting; of finished jobs it waits."""
    records = records_of(lives)
    assert timeline.gpus_in_use(records).integral() == pytest.approx(records.service_gpu_s.sum())
    done = records_of([one for one in lives if not math.isnan(one.end)])
    assert timeline.jobs_waiting(done).integral() == pytest.approx(done.queue_s.sum())


@settings(max_examples=30)
@given(lives=workloads, seed=st.integers(0, 2**32 - 1))
def test_windows_equal_a_count_of_every_second(lives: list[Life], seed: int) -> None:
    """All times are whole: half a second past each of them everything can be counted."""
    records = records_of(lives)
    edges = np.unique(np.random.default_rng(seed).integers(-50, 700, 5)).astype(np.float64)

    used, waiting, present = (
        of(records).means(edges)
        for of in (timeline.gpus_in_use, timeline.jobs_waiting, timeline.jobs_present)
    )

    for i, (low, high) in enumerate(itertools.pairwise(edges.tolist())):
        instants = np.arange(low, high) + 0.5
        counted = np.array([_count(lives, at) for at in instants]).mean(axis=0)
        assert (used[i], waiting[i], present[i]) == pytest.approx(counted)


def _count(lives: list[Life], at: float) -> tuple[float, float, float]:
    """GPUs in use, jobs waiting and jobs present at one instant."""
    used = waiting = present = 0.0
    for one in lives:
        if one.submit <= at and not at > one.end:
            present += 1
            if any(start <= at < end for start, end in one.runs):
                used += one.gpus
            else:
                waiting += 1
    return used, waiting, present


def row(job_id: int, user: str) -> JobRecord:
    return JobRecord(
        job_id=JobId(job_id), user=user, gpus=2, submit_s=10, start_s=15, end_s=40 + job_id,
        service_gpu_s=50, lost_gpu_s=3, preemptions=job_id, completed=job_id == 1,
    )  # fmt: skip


def test_rows_become_columns() -> None:
    """Users are numbered in the order in which they appear; of no row the columns are empty."""
    found = Records.of([row(1, "zoe"), row(2, "ada"), row(3, "zoe")])

    assert found.job_id == ("1", "2", "3")
    assert [found.users[u] for u in found.user] == ["zoe", "ada", "zoe"]
    assert found.users == ("zoe", "ada")
    assert found.jct_s.tolist() == [31, 32, 33]
    assert found.wait_s.tolist() == [5, 5, 5]
    assert found.running_s.tolist() == [25, 25, 25]
    assert found.success.tolist() == [True, False, False]
    assert found.preemptions.tolist() == [1, 2, 3]
    assert found.all_lost_gpu_s.tolist() == [3, 3, 3]
    assert np.isnan(found.slowdown).all()
    assert len(found.runs) == 0
    none = Records.of([])
    assert (len(none), none.users, len(none.jct_s), len(none.all_lost_gpu_s)) == (0, (), 0, 0)


def test_columns_are_of_one_length_and_stay_as_they_are() -> None:
    """A figure of one job beside that of another would be wrong without a word."""
    records = records_of([life(0, (0, 10)), life(0, (0, 20))])

    with pytest.raises(ValueError, match="records differ in length"):
        dataclasses.replace(records, alone_s=np.zeros(3))
    with pytest.raises(ValueError, match=r"lost_gpu_s\[redone\]"):
        dataclasses.replace(records, lost_gpu_s={"redone": np.zeros(1)})
    with pytest.raises(ValueError, match="runs differ in length"):
        Runs(job=np.zeros(1, np.int32), start_s=np.zeros(2), end_s=np.zeros(2), gpus=np.zeros(2))
    for column in (records.end_s, records.runs.gpus):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 5


def test_what_did_not_happen_is_not_a_number() -> None:
    """Never started, never ended: no wait, no JCT, no queueing."""
    found = records_of([life(5, alone=10)])

    for column in (found.wait_s, found.jct_s, found.queue_s, found.slowdown):
        assert math.isnan(column[0])
    assert found.running_s.tolist() == [0]
    assert found.finished.tolist() == [False]
