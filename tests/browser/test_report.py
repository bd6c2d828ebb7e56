"""The page of a schedule as people use it: silent, moving, answering, deaf to markup."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from browser.shown import Show, Shown
from patience import eventually
from playwright.sync_api import expect
from report_cases import life, records_of

from slurm_dl.model.completed_jobs import Records, RunNodes
from slurm_dl.report.html import page
from slurm_dl.report.html.page_data import Schedule, Subject, page_data

pytestmark = pytest.mark.full("needs Chromium")

WITHIN_S = 30
"""Playwright's own waiting for a condition evaluates text, which the page's policy forbids."""

HOSTILE = "</script><img src=x onerror=alert(1)><script>alert(2)</script>"


def records(rows: list[tuple[str, int, float, list[tuple[float, float]]]]) -> Records:
    """Jobs from (user, GPUs, submission, runs); a job ends with its last run."""
    lives = [
        life(submit, *runs, user=user, gpus=gpus, alone=sum(end - start for start, end in runs))
        for user, gpus, submit, runs in rows
    ]
    return replace(records_of(lives), job_id=tuple(f"job-{i}" for i in range(len(rows))))


FIRST = records(
    [
        ("ada", 2, 0, [(0, 1000)]),
        ("bob", 1, 0, [(0, 400), (1400, 2000)]),
        ("cyd", 4, 300, [(1000, 1400)]),
        ("ada", 1, 350, [(400, 1000)]),
    ]
)
"""Four GPUs in one node: job-0 on rows 0 and 1, job-1 on row 2, job-3 after it, job-2 on all."""

SECOND = records(
    [
        ("ada", 2, 0, [(0, 1000)]),
        ("bob", 1, 0, [(0, 1000)]),
        ("cyd", 4, 300, [(1000, 1400)]),
        ("ada", 1, 350, [(1500, 2100)]),
    ]
)


def html(
    *all_records: Records,
    node_gpus: tuple[int, ...] = (4,),
    accounts: tuple[str, ...] | None = None,
    **names: str,
) -> str:
    schedules = [
        Schedule(label=names.get("label", f"policy-{i}"), about=("costs none",), records=one)
        for i, one in enumerate(all_records)
    ]
    subject = Subject(
        title=names.get("title", "week"), cluster="1x4", node_gpus=node_gpus, accounts=accounts
    )
    return page(page_data(subject, schedules))


def visible(shown: Shown) -> float:
    """Seconds that the chart shows."""
    return shown.number("toS") - shown.number("fromS")


def jobs(count: int, *, gpus: int) -> Records:
    """Many short jobs, one after the other on each GPU."""
    lengths = np.random.default_rng(1).integers(1, 100, (-(-count // gpus), gpus)).astype(float)
    ends = np.cumsum(lengths, axis=0)
    starts = (ends - lengths).ravel().tolist()
    runs = sorted(zip(starts, ends.ravel().tolist(), strict=True), key=lambda run: run[0])
    lives = [life(start, (start, end), alone=end - start) for start, end in runs[:count]]
    return replace(records_of(lives), job_id=tuple(map(str, range(count))))


def test_it_loads_in_silence(show: Show) -> None:
    """Nothing is requested but the file itself, and nothing stands on the console."""
    shown = show(html(FIRST, SECOND))

    expect(shown.page.locator("h1")).to_have_text("week")
    expect(shown.page).to_have_title("week: policy-0, policy-1")
    assert shown.number("marks") == 5
    assert float(shown.page.locator("html").get_attribute("data-ready-ms") or "nan") > 0
    assert len(shown.requests) == 1
    assert shown.complaints == []


def test_the_pointer_tells_the_job_under_it(show: Show) -> None:
    """Over a run of job-1 it is named with what it has had by then; beside it nobody is."""
    shown = show(html(FIRST))
    tip = shown.page.locator("#tip")

    shown.page.mouse.move(*shown.at(1700, 2.5))
    expect(tip).to_be_visible()
    expect(tip.locator("h3")).to_have_text("Job job-1")
    text = tip.inner_text()
    assert re.search(r"run\s+2 of 2", text)
    assert re.search(r"user\s+bob", text)
    assert re.search(r"attained by then\s+(69\d|70\d) GPU-s", text)
    shown.page.mouse.move(*shown.at(500, 1.5))
    expect(tip.locator("h3")).to_have_text("Job job-0")
    shown.page.mouse.move(*shown.at(1700, 0.5))
    expect(tip).to_be_hidden()


@pytest.mark.parametrize("how", ["wheel", "button", "key", "double click"])
def test_zoom_shows_less_time(show: Show, how: str) -> None:
    """Less is visible, within what was; and all of it again at the end."""
    shown = show(html(FIRST))
    before = shown.number("fromS"), shown.number("toS")

    match how:
        case "wheel":
            shown.page.mouse.move(*shown.at(1000, 2))
            shown.page.mouse.wheel(0, -300)
        case "button":
            shown.page.get_by_role("button", name="+").click()
        case "key":
            shown.page.locator("#gantt").press("+")
        case _:
            shown.page.mouse.dblclick(*shown.at(1000, 2))
    eventually(lambda: visible(shown) < 0.9 * (before[1] - before[0]), within_s=WITHIN_S)
    assert before[0] <= shown.number("fromS") < shown.number("toS") <= before[1]
    shown.page.get_by_role("button", name="All").click()
    eventually(lambda: shown.number("toS") == before[1], within_s=WITHIN_S)
    assert shown.number("fromS") == before[0]


def test_the_wheel_keeps_the_instant_under_the_pointer(show: Show) -> None:
    """What is pointed at stays where it is."""
    shown = show(html(FIRST))
    where = shown.at(1700, 2.5)
    shown.page.mouse.move(*where)
    shown.page.mouse.wheel(0, -200)

    eventually(lambda: shown.number("toS") < 2000, within_s=WITHIN_S)
    assert shown.at(1700, 2.5) == pytest.approx(where, abs=0.5)


def test_two_fingers_zoom(show: Show) -> None:
    """Fingers that part show less time."""
    shown = show(html(FIRST), has_touch=True)
    before = visible(shown)
    touch = shown.page.context.new_cdp_session(shown.page)
    x, y = shown.at(1000, 2)
    for kind, apart in (("touchStart", 40), ("touchMove", 90), ("touchMove", 160), ("touchEnd", 0)):
        points = [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}]
        touch.send(
            "Input.dispatchTouchEvent",
            {"type": kind, "touchPoints": [] if kind == "touchEnd" else points},
        )

    eventually(lambda: visible(shown) < 0.6 * before, within_s=WITHIN_S)


def test_dragging_moves_and_marks_nobody(show: Show) -> None:
    """Zoomed in, a drag to the left shows what is later; it is not a click."""
    shown = show(html(FIRST))
    shown.page.mouse.move(*shown.at(1000, 1.5))
    shown.page.mouse.wheel(0, -400)
    eventually(lambda: shown.number("toS") < 1900, within_s=WITHIN_S)
    before = shown.number("fromS")
    x, y = shown.at(1000, 1.5)
    shown.page.mouse.down()
    shown.page.mouse.move(x - 60, y, steps=3)
    shown.page.mouse.up()

    eventually(lambda: shown.number("fromS") > before, within_s=WITHIN_S)
    assert shown.data("pinned") == ""


def test_a_click_marks_all_runs_of_the_job(show: Show) -> None:
    """Both runs are outlined and told; Esc lets go of it."""
    shown = show(html(FIRST))
    shown.page.mouse.click(*shown.at(200, 2.5))

    details = shown.page.locator("#details")
    expect(details.locator("h3")).to_have_text("Job job-1 under policy-0")
    expect(details.locator("tbody tr")).to_have_count(2)
    expect(details.locator("tbody tr").first).to_contain_text("preempted")
    assert shown.data("pinned") == "job-1"
    assert shown.number("outlined") == 2
    shown.page.locator("#gantt").press("Escape")
    expect(details).to_contain_text("None is marked")


def test_search_finds_a_job_or_says_so(show: Show) -> None:
    """The job is marked and in view; of an unknown one that there is none."""
    shown = show(html(FIRST))
    shown.page.get_by_label("Job", exact=True).fill("job-3")
    shown.page.get_by_role("button", name="Find").click()

    expect(shown.page.locator("#details h3")).to_have_text("Job job-3 under policy-0")
    eventually(lambda: shown.number("toS") < 1500, within_s=WITHIN_S)
    assert shown.number("fromS") <= 350
    shown.page.get_by_label("Job", exact=True).fill("job-9")
    shown.page.get_by_role("button", name="Find").click()
    expect(shown.page.get_by_role("status")).to_have_text("There is no such job.")


def test_another_policy_is_another_picture(show: Show) -> None:
    """By its button or its key; what is marked stays so, told as it was there."""
    shown = show(html(FIRST, SECOND))
    shown.page.mouse.click(*shown.at(200, 2.5))
    shown.page.get_by_role("radio", name="policy-1").check()

    assert shown.data("policy") == "policy-1"
    assert shown.number("marks") == 4
    expect(shown.page.locator("#details tbody tr")).to_have_count(1)
    expect(shown.page.locator("#fairness-note")).to_contain_text("Under policy-1")
    shown.page.locator("#gantt").press("1")
    assert shown.data("policy") == "policy-0"


def test_the_best_figure_is_marked_in_words_too(show: Show) -> None:
    """FIRST has the better mean JCT: it has a check mark, not a colour alone."""
    shown = show(html(FIRST, SECOND))
    row = shown.page.locator("#figures tr", has_text="Mean JCT")

    assert FIRST.jct_s.mean() < SECOND.jct_s.mean()
    expect(row.locator("td").nth(0)).to_have_class("best")
    expect(row.locator("td").nth(1)).to_have_class("other")
    assert "✓" in row.locator("td").nth(0).evaluate(
        "cell => getComputedStyle(cell, '::after').content"
    )


def test_hostile_text_is_inert(show: Show) -> None:
    """Markup in ids, users, titles and labels is shown as it was typed."""
    evil = replace(FIRST, job_id=(HOSTILE, "b", "c", "d"), users=(HOSTILE, "bob", "cyd"))
    shown = show(html(evil, evil, title=HOSTILE, label=HOSTILE))
    shown.page.mouse.move(*shown.at(500, 0.5))
    shown.page.mouse.click(*shown.at(500, 0.5))

    expect(shown.page.locator("h1")).to_have_text(HOSTILE)
    expect(shown.page.locator("#details h3")).to_contain_text(HOSTILE)
    assert shown.page.locator("img").count() == 0
    assert shown.page.locator("script").count() == 2
    assert shown.complaints == []
    assert len(shown.requests) == 1


def test_marks_are_bounded_by_pixels(show: Show) -> None:
    """10,000 jobs on 40 GPUs: at most a mark for each pixel of a row; zoomed in a few."""
    shown = show(html(jobs(10_000, gpus=40), node_gpus=(8,) * 5))

    # Of 250 jobs a row all but those under a pixel are marks of their own.
    assert 5000 < shown.number("marks") <= 10_000
    before = shown.number("marks")
    for _ in range(8):
        shown.page.locator("#gantt").press("+")
    eventually(lambda: shown.number("marks") < before / 10, within_s=WITHIN_S)
    many = show(html(jobs(40_000, gpus=4)))
    _, _, width, _ = map(float, many.data("plot").split())
    assert many.number("marks") <= 4 * (width + 1)
    many.page.mouse.move(*many.at((many.number("fromS") + many.number("toS")) / 2, 1.5))
    expect(many.page.locator("#tip h3")).to_have_text(re.compile(r"Job \d+"))


def test_more_gpus_than_lines_are_a_density(show: Show) -> None:
    """2,000 GPUs: at most a mark for each pixel, the pointer still names a job, and it is said."""
    shown = show(html(jobs(10_000, gpus=2000), node_gpus=(8,) * 250))
    _, _, width, height = map(float, shown.data("plot").split())

    assert 0 < shown.number("marks") <= np.ceil(width) * np.ceil(height)
    expect(shown.page.locator("#rows-note")).to_contain_text("more GPUs than lines")
    shown.page.mouse.move(*shown.at(20, 1000))
    expect(shown.page.locator("#tip h3")).to_have_text(re.compile(r"Job \d+"))


def ground(shown: Shown) -> list[int]:
    """The colour of a corner of the chart."""
    pixel: list[int] = shown.page.locator("#gantt").evaluate(
        "chart => Array.from(chart.getContext('2d').getImageData(2, 2, 1, 1).data)"
    )
    return pixel[:3]


def test_dark_and_light_and_paper(show: Show) -> None:
    """The chart has the page's ground, changes with it, and is white where it is printed."""
    shown = show(html(FIRST), color_scheme="dark")

    assert max(ground(shown)) < 60
    shown.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert ground(shown) == [255, 255, 255]
    shown.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert max(ground(shown)) < 60
    shown.page.emulate_media(color_scheme="light")
    eventually(lambda: min(ground(shown)) > 200, within_s=WITHIN_S)
    shown.page.emulate_media(media="print")
    expect(shown.page.locator(".bar")).to_be_hidden()


def test_the_chart_is_saved_as_a_picture(show: Show, tmp_path: Path) -> None:
    """As it is shown, on a white ground in dark mode as well, and the page stays as it was."""
    shown = show(html(FIRST, SECOND))
    shown.page.emulate_media(color_scheme="dark")
    eventually(lambda: max(ground(shown)) < 60, within_s=WITHIN_S)
    with shown.page.expect_download() as started:
        shown.page.get_by_role("button", name="Save PNG").click()

    started.value.save_as(tmp_path / "chart.png")
    assert started.value.suggested_filename == "policy-0.png"
    pixels = matplotlib.image.imread(tmp_path / "chart.png")
    chart = shown.page.locator("#gantt")
    assert [pixels.shape[1], pixels.shape[0]] == chart.evaluate("c => [c.width, c.height]")
    assert pixels[2, 2, :3].min() > 0.9
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 10
    assert max(ground(shown)) < 60


def test_the_keyboard_reaches_everything(show: Show) -> None:
    """Each control and the chart have a name and take the focus; charts tell what they show."""
    shown = show(html(FIRST, SECOND))
    names = []
    for _ in range(9):
        shown.page.keyboard.press("Tab")
        names.append(
            shown.page.evaluate(
                "() => { const e = document.activeElement; "
                "return e.id || e.getAttribute('aria-label') || e.textContent }"
            )
        )

    controls = ["zoom-in", "zoom-out", "zoom-all", "save-png", "colour", "job", "Find"]
    assert names == ["policy-0", *controls, "gantt"]
    shown.page.locator("#gantt").press("n")
    expect(shown.page.locator("#details h3")).to_have_text("Job job-0 under policy-0")
    for name in ("GPUs in use", "Jobs waiting", "Job completion times", "Waiting times"):
        chart = shown.page.get_by_role("img", name=name)
        expect(chart).to_have_accessible_name(re.compile("policy-0 .*; policy-1 "))


def test_a_run_on_two_nodes_is_shown_on_both(show: Show) -> None:
    """Its rows are those of its nodes, which the pointer and the details name."""
    runs = FIRST.runs
    # Runs stand in the order of their ends: job-1, job-0, job-3, job-2, job-1.
    on = RunNodes(
        run=np.array([0, 1, 1, 2, 3, 3], np.int32),
        node=np.array([0, 0, 1, 1, 0, 1], np.int32),
        gpus=np.array([1.0, 1, 1, 1, 2, 2]),
    )
    placed = replace(FIRST, runs=replace(runs, nodes=on))
    shown = show(html(placed, FIRST, node_gpus=(2, 2)))

    expect(shown.page.locator("#rows-note")).to_contain_text("on the nodes that it held")
    for row in (1.5, 2.5):
        shown.page.mouse.move(*shown.at(700, row))
        expect(shown.page.locator("#tip h3")).to_have_text("Job job-0")
        expect(shown.page.locator("#tip")).to_contain_text("n1: 1; n2: 0")
    shown.page.mouse.click(*shown.at(700, 1.5))
    expect(shown.page.locator("#details tbody td").last).to_have_text("n1: 1; n2: 0")
    shown.page.locator("#gantt").press("2")
    expect(shown.page.locator("#rows-note")).to_contain_text("is not recorded")
    expect(shown.page.locator("#details")).not_to_contain_text("n1:")


def test_fairness_by_account(show: Show) -> None:
    """The switch shows accounts, bars can have their colours; without accounts there is neither."""
    shown = show(html(FIRST, accounts=(HOSTILE, "vision", "vision", HOSTILE)))
    table = shown.page.locator("#fairness")

    expect(table.locator("tbody tr")).to_have_count(3)
    shown.page.get_by_label("by account").check()
    expect(table.locator("thead th").first).to_have_text("Account")
    expect(table.locator("tbody th")).to_have_text([HOSTILE, "vision"])
    expect(shown.page.locator("#fairness-note")).to_contain_text("Jain's index over accounts")
    shown.page.locator("#colour").select_option("account")
    expect(shown.page.locator("#key")).to_contain_text("vision")
    shown.page.mouse.move(*shown.at(200, 2.5))
    expect(shown.page.locator("#tip")).to_contain_text("account")
    assert shown.complaints == []
    without = show(html(FIRST))
    expect(without.page.locator("#owners")).to_be_hidden()
    expect(without.page.locator("#colour option")).to_have_count(3)


COUNTED = """
window.work = {};
const count = (of, name, key) => {
  const was = Object.getOwnPropertyDescriptor(of, name);
  const noted = (act) => function (...all) {
    work[key] = (work[key] ?? 0) + 1;
    return act.apply(this, all);
  };
  if (was.value) of[name] = noted(was.value);
  else Object.defineProperty(of, name, { get: was.get, set: noted(was.set) });
};
const pen = CanvasRenderingContext2D.prototype;
for (const name of ["fillRect", "fillText", "fillStyle", "stroke"]) count(pen, name, name);
count(HTMLCanvasElement.prototype, "width", "canvases");
"""
"""Counts what is asked of canvases."""


def test_moving_about_draws_what_is_visible_and_nothing_else(show: Show) -> None:
    """Of 10,000 jobs: a rectangle for a bar, a few changes of colour, no layout, no new canvas."""
    shown = show(html(jobs(10_000, gpus=40), node_gpus=(8,) * 5), before=COUNTED)
    chart = shown.page.locator("#gantt")
    metrics = shown.page.context.new_cdp_session(shown.page)
    metrics.send("Performance.enable")

    def layouts() -> float:
        told = metrics.send("Performance.getMetrics")["metrics"]
        return sum(one["value"] for one in told if one["name"] == "LayoutCount")

    before = shown.number("marks")
    for _ in range(8):
        chart.press("+")
    eventually(lambda: shown.number("marks") < before / 10, within_s=WITHIN_S)
    was, first = layouts(), shown.number("fromS")
    shown.page.evaluate("work = {}")
    chart.press("ArrowRight")
    eventually(lambda: shown.number("fromS") > first, within_s=WITHIN_S)
    work = shown.page.evaluate("work")

    assert layouts() == was
    # The ground, and the shade on two charts.
    assert work["fillRect"] <= shown.number("marks") + 3
    assert work["fillStyle"] < 40
    assert work.get("canvases", 0) == 0
    # Labels of bars and axes; none of the other charts is drawn anew.
    assert work["fillText"] <= shown.number("marks") + 70
    assert work["stroke"] < 30


def test_small_screens_have_no_sideways_scroll(show: Show) -> None:
    """At 400 pixels wide tables scroll by themselves, the page does not."""
    shown = show(html(FIRST, SECOND), viewport={"width": 400, "height": 800})

    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 400
    assert shown.number("marks") > 0


def test_a_single_job_with_long_names_is_told_in_a_narrow_window(show: Show) -> None:
    """A long name is cut and told by its title, so that the figures beside it stay in sight."""
    user = "u" * 100
    single = replace(records([(user, 2, 0, [(0, 500)])]), job_id=("j" * 120,))
    shown = show(html(single), viewport={"width": 800, "height": 700})

    expect(shown.page.locator("#subtitle")).to_contain_text("1 job on ")
    name = shown.page.locator("#fairness tbody th")
    expect(name).to_have_attribute("title", user)
    box = shown.page.locator("#fairness tbody td").first.bounding_box()
    assert box["x"] + box["width"] < 500
    shown.page.locator("#colour").select_option("gpus")
    expect(shown.page.locator("#key > span")).to_have_text(["1", "2"])
    assert shown.complaints == []


def test_an_empty_schedule_is_a_page(show: Show) -> None:
    """No job, no mark, no complaint."""
    shown = show(html(records([])))

    assert shown.number("marks") == 0
    assert shown.complaints == []
