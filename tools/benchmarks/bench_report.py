"""How long the page of a schedule takes: to be made, and to be drawn and pointed at in Chromium.

Jobs like Philly's under 2D-LAS on 512 GPUs. Times in the browser are what the page takes of itself,
in one process of a headless Chromium without a graphics card. No Slurm is needed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import measure
from playwright.sync_api import sync_playwright

from slurm_dl.experiments import cluster_presets, simulation_run
from slurm_dl.model.completed_jobs import Records
from slurm_dl.report.html import page
from slurm_dl.report.html.page_data import Schedule, Subject, page_data
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.traces.workload_fit import read_fit
from slurm_dl.traces.workload_generator import generate

ROOT = Path(__file__).parents[2]
CHROMIUM = "/usr/bin/chromium"
AIM_S = 2.0
AIM_JOBS = 10_000
JOBS = (1_000, 10_000, 50_000)
_CLUSTER = "64x8"
_LOAD = 0.85

_DRAW = """times => {
  const chart = document.getElementById("gantt");
  const took = [];
  for (let i = 0; i < times; i++) {
    dispatchEvent(new Event("afterprint"));
    took.push(Number(chart.dataset.drawMs));
  }
  return took;
}"""
"""Draws all of the page anew; how long the chart took, milliseconds."""

_POINT = """times => {
  const chart = document.getElementById("gantt");
  const box = chart.getBoundingClientRect();
  const took = [];
  for (let i = 0; i < times; i++) {
    const at = {
      clientX: box.left + 70 + (i * 37) % (box.width - 90),
      clientY: box.top + 10 + (i * 53) % (box.height - 50),
    };
    const began = performance.now();
    chart.dispatchEvent(new PointerEvent("pointermove", at));
    took.push(performance.now() - began);
  }
  return took;
}"""
"""Moves the pointer about; milliseconds of each move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One page.

    Attributes:
        made: Making its text from the records.
        size_kb: Its size.
        ready_s: From the script's start until all was drawn first.
        draw_s: The chart alone, all of it, median.
        zoomed_s: The same, zoomed in to where every job is a bar of its own.
        point_s: One move of the pointer, 99th percentile.
        marks: Rectangles, or pixels where there are more GPUs than lines.
    """

    jobs: int
    runs: int
    made: measure.Seconds
    size_kb: float
    ready_s: float
    draw_s: float
    zoomed_s: float
    point_s: float
    marks: int


def records_of(jobs: int) -> Records:
    """What 2D-LAS makes of so many jobs."""
    shape = parse_shape(_CLUSTER)
    fit = read_fit(ROOT / "traces/fits/philly.json")
    trace = generate(fit, jobs=jobs, load=_LOAD, gpus=shape.gpus, seed=1)
    wish = simulation_run.PolicySpec(policy="discrete_las", preset="tiresias-corrected")
    chosen = simulation_run.choose(wish, trace)
    cluster = cluster_presets.find(None, chosen.preset, trace)
    return simulation_run.run(chosen, trace, cluster, shape).outcome.records


def _measure(jobs: int, rounds: int) -> Found:
    records = records_of(jobs)
    subject = Subject(title="made", cluster=_CLUSTER, node_gpus=(8,) * 64)
    schedule = Schedule(label="discrete_las", about=(), records=records)
    text = ""

    def make() -> None:
        nonlocal text
        text = page(page_data(subject, [schedule]))

    made = measure.Seconds.of([measure.timed(make) for _ in range(rounds)])
    with tempfile.TemporaryDirectory(prefix="slurm_dl-report-") as folder, sync_playwright() as p:
        path = Path(folder) / "page.html"
        path.write_text(text, encoding="utf-8")
        browser = p.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        shown = browser.new_page(viewport={"width": 1280, "height": 900})
        shown.goto(path.as_uri())
        ready_ms = float(shown.locator("html").get_attribute("data-ready-ms") or "nan")
        marks = int(shown.locator("#gantt").get_attribute("data-marks") or "0")
        draw_ms = statistics.median(shown.evaluate(_DRAW, 5 * rounds))
        point_ms = sorted(shown.evaluate(_POINT, 500))[494]
        for key in ("+", "+", "+", "+", "+", "Shift+ArrowUp", "Shift+ArrowUp", "Shift+ArrowUp"):
            shown.locator("#gantt").press(key)
        zoomed_ms = statistics.median(shown.evaluate(_DRAW, 5 * rounds))
        browser.close()
    return Found(
        jobs=len(records),
        runs=len(records.runs),
        made=made,
        size_kb=len(text) / 1e3,
        ready_s=ready_ms / 1e3,
        draw_s=draw_ms / 1e3,
        zoomed_s=zoomed_ms / 1e3,
        point_s=point_ms / 1e3,
        marks=marks,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, write a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", default=JOBS)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    found = []
    for jobs in given.jobs:
        measure.say(f"{jobs:,} jobs")
        found.append(_measure(jobs, given.rounds))
    head = ("jobs", "runs", "made", "size", "ready", "draw", "zoomed", "pointer", "aim")
    rows = [
        (
            f"{f.jobs:,}",
            f"{f.runs:,}",
            f"{f.made.median:.2f} s",
            f"{f.size_kb:,.0f} KB",
            f"{1e3 * f.ready_s:.0f} ms",
            f"{1e3 * f.draw_s:.1f} ms",
            f"{1e3 * f.zoomed_s:.1f} ms",
            f"{1e3 * f.point_s:.1f} ms",
            f"ready in {AIM_S:g} s: {measure.aim(f.ready_s, AIM_S)}" if f.jobs == AIM_JOBS else "",
        )
        for f in found
    ]
    cases = {str(f.jobs): asdict(f) for f in found}
    measure.report("bench_report", {"cases": cases}, [head, *rows])


if __name__ == "__main__":
    main()
