"""The simulator against published simulators: every job, to the second.

`tests/data/oracles` holds what runs of the Tiresias simulator gave for each job. The same trace,
cluster and policy here must give the same start, end, preemptions and promotions for all of them.
"""

from __future__ import annotations

import csv
import functools
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from trace_parts import first_jobs

from slurm_dl.experiments import cluster_presets, simulation_run
from slurm_dl.model.completed_jobs import Records
from slurm_dl.report.summary_metrics import summarise
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal.start_costs import MuriCosts
from slurm_dl.traces.format_registry import read_trace

ROOT = Path(__file__).parents[2]
ORACLES = ROOT / "tests/data/oracles"
TRACES = {
    "60_job": ROOT / "traces/tiresias/60_job.csv",
    "itp10": ROOT / "traces/tiresias-derived/itp10.csv",
    "muri3_480": ROOT / "traces/tiresias-derived/muri3_480.csv",
}
PLAIN = {
    "fifo": "fifo",
    "fjf": "fifo_skip",
    "sjf": "fewest_gpus",
    "shortest": "srtf",
    "shortest-gpu": "srsf",
}
NOT_OURS = {"gandiva", "lpjf", "shortest-expected", "multi-dlas-gpu", "gittins"}
"""Schedules of that simulator that are no policy here; `gittins` crashes there."""


@dataclass(frozen=True)
class Case:
    """One published run."""

    code: str
    cluster: str
    trace: str
    schedule: str
    path: Path = field(compare=False)

    @property
    def wish(self) -> simulation_run.PolicySpec | None:
        """What to run for it; None where it has no counterpart."""
        if self.schedule in PLAIN:
            return simulation_run.PolicySpec(policy=PLAIN[self.schedule])
        match = re.fullmatch(r"dlas(-gpu)?(-gittins)?(?:-(\d+|pack))?", self.schedule)
        if self.schedule in NOT_OURS or match is None:
            return None
        two, gittins, knob = match[1], match[2], match[3]
        if gittins and (knob is None or self.code == "corrected"):
            # Published with a number, it runs without any index; corrected, it does use it.
            return simulation_run.PolicySpec(policy="gittins", preset="gittins-artifact")
        preset = "tiresias-artifact" if self.code == "as-published" else "tiresias-corrected"
        if not two:
            preset = "tiresias-artifact-1d"
        # The packing variants and Gittins with a number are plain 2D-LAS in the published code.
        promotes = knob is not None and knob.isdigit()
        parameters = {"promote_knob": float(knob)} if promotes else {}
        return simulation_run.PolicySpec(
            policy="discrete_las", preset=preset, parameters=parameters
        )


def cases() -> list[Case]:
    found = []
    for path in sorted((ORACLES / "tiresias_jobs").glob("*__count.csv")):
        code, cluster, trace, schedule, _ = path.stem.split("__")
        case = Case(code, cluster[1:].replace("g", "x"), trace, schedule, path)
        if case.wish is not None:
            found.append(case)
    return found


@functools.cache
def simulated(case: Case) -> Records:
    """Its jobs, simulated once however many tests look at them."""
    trace = read_trace(TRACES[case.trace])
    wish = case.wish
    assert wish is not None
    chosen = simulation_run.choose(wish, trace)
    cluster = cluster_presets.find("none", chosen.preset, trace)
    return simulation_run.run(chosen, trace, cluster, parse_shape(case.cluster)).outcome.records


def published(path: Path) -> dict[str, tuple[float, ...]]:
    names = ("start_time", "end_time", "preempt", "promote")
    with path.open(encoding="utf-8") as file:
        return {row["job_id"]: tuple(float(row[n]) for n in names) for row in csv.DictReader(file)}


def test_the_cases_named_by_name_are_there() -> None:
    """No gate is lost because a file's name changed."""
    named = {(c.code, c.cluster, c.trace, c.schedule) for c in cases()}
    schedules = {*PLAIN, "dlas", "dlas-gpu", "dlas-gpu-8", "dlas-gpu-gittins"}
    for cluster, trace in (("2x4", "60_job"), ("4x4", "60_job"), ("2x8", "itp10")):
        assert schedules <= {s for _, c, t, s in named if (c, t) == (cluster, trace)}
    # Its 1D run has only a mean, see below.
    assert schedules - {"dlas"} <= {s for _, c, _, s in named if c == "15x4"}
    assert ("corrected", "2x8", "itp10", "dlas-gpu-8") in named
    assert ("corrected", "15x4", "muri3_480", "dlas-gpu") in named


@pytest.mark.parametrize(
    "case", cases(), ids=lambda c: f"{c.code}-{c.cluster}-{c.trace}-{c.schedule}"
)
def test_every_job_starts_and_ends_when_it_was_published_to(case: Case) -> None:
    """Exact: start, end, preemptions and promotions of each job."""
    records = simulated(case)
    columns = zip(
        records.start_s.tolist(),
        records.end_s.tolist(),
        records.preemptions.tolist(),
        records.promotions.tolist(),
        strict=True,
    )
    ours = dict(zip(records.job_id, columns, strict=True))

    assert ours == published(case.path)


def runs() -> list[dict[str, object]]:
    listed: list[dict[str, object]] = json.loads((ORACLES / "tiresias_runs.json").read_text())[
        "runs"
    ]
    return listed


@pytest.mark.full("simulates for a quarter of a minute")
def test_summaries_of_complete_runs_without_job_lists() -> None:
    """Where only the summary was published it is met as well, to all printed digits."""
    checked = 0
    for run in runs():
        names = [str(run[n]) for n in ("code", "cluster", "trace", "schedule")]
        known = (
            run["scheme"] == "count"
            and run["complete"]
            and names[2] in TRACES
            and re.fullmatch(r"n\d+g\d+", names[1])
        )
        if not known:
            continue
        case = Case(names[0], names[1][1:].replace("g", "x"), names[2], names[3], Path())
        # The long promotion runs are checked job by job above.
        if case.wish is None or "promote_knob" in case.wish.parameters:
            continue
        records = simulated(case)
        assert float(np.mean(records.jct_s)) == pytest.approx(run["avg_jct"], rel=1e-9), names
        assert float(np.max(records.end_s)) == run["makespan"], names
        assert int(records.preemptions.sum()) == run["preempts"], names
        checked += 1
    assert checked > 20


def test_the_late_demotion_is_an_error_that_flatters() -> None:
    """Corrected, 2D-LAS is slower by 3.6 to 4.6 % on the traces where both were run."""
    for trace, cluster, published_s, corrected_s in (
        ("itp10", "2x8", 56975.1500, 59542.5115),
        ("muri3_480", "15x4", 422528.3458, 439597.2771),
    ):
        for code, mean_s in (("as-published", published_s), ("corrected", corrected_s)):
            records = simulated(Case(code, cluster, trace, "dlas-gpu", Path()))
            assert float(np.mean(records.jct_s)) == pytest.approx(mean_s, abs=5e-5)


def test_one_dimension_on_the_trace_that_has_only_a_mean() -> None:
    """1D-LAS on muri3_480: the mean JCT of a re-implementation that equals the published code."""
    records = simulated(Case("as-published", "15x4", "muri3_480", "dlas", Path()))

    assert float(np.mean(records.jct_s)) == pytest.approx(399553.3583, abs=5e-5)


MURI = json.loads((ORACLES / "muri_published_n8g8.json").read_text())
MURI_POLICIES = {"srtf": "SRTF", "srsf": "SRSF", "discrete_las": "Tiresias_L"}


@pytest.mark.parametrize("policy", MURI_POLICIES)
@pytest.mark.parametrize("name", MURI["trace_order"])
def test_muri_as_published(name: str, policy: str) -> None:
    """Mean and 99th percentile of JCT and makespan, to 1e-9 (all digits that are printed)."""
    trace = read_trace(ROOT / f"traces/muri/{name}.csv")
    chosen = simulation_run.choose(simulation_run.PolicySpec(policy=policy, preset="muri"), trace)
    cluster = cluster_presets.find(None, "muri", trace)
    records = simulation_run.run(chosen, trace, cluster, parse_shape("8x8")).outcome.records

    figures = summarise(records, gpus=64)
    at = MURI["trace_order"].index(name)
    published = {
        what: MURI["values"][f"{MURI_POLICIES[policy]}_{what}_raw"][at]
        for what in ("JCT", "99JCT", "Makespan")
    }
    ours = {
        "JCT": figures.jct_s.mean,
        "99JCT": figures.jct_s.p99,
        "Makespan": float(records.end_s.max()),
    }
    assert figures.finished == len(trace)
    assert ours == pytest.approx(published, rel=1e-9)


def test_without_the_slowdown_muri_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate can fail: 1.5 % of speed is 5 % of the mean."""
    trace = read_trace(ROOT / "traces/muri/trace3.csv")
    monkeypatch.setattr(MuriCosts, "slowdown", 1.0)
    chosen = simulation_run.choose(simulation_run.PolicySpec(policy="srtf", preset="muri"), trace)
    cluster = cluster_presets.find(None, "muri", trace)
    records = simulation_run.run(chosen, trace, cluster, parse_shape("8x8")).outcome.records

    assert summarise(records, gpus=64).jct_s.mean < 0.96 * 193081.796


OTHERS = [
    path
    for path in sorted((ROOT / "traces").rglob("*"))
    if path.name.removesuffix(".gz").endswith((".csv", ".trace", ".log", ".0"))
    and not {"philly", "models"}.intersection(path.parts)
]


@pytest.mark.parametrize("path", OTHERS, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_every_other_trace_runs_to_its_end(path: Path) -> None:
    """The first jobs of each trace, on a cluster that is crowded and takes its largest job."""
    trace = first_jobs(read_trace(path), 200)
    gpus = max(int(trace.gpus.max()), 8)
    for policy in ("discrete_las", "srtf", "fifo_skip"):
        chosen = simulation_run.choose(simulation_run.PolicySpec(policy=policy), trace)
        cluster = cluster_presets.find("none", chosen.preset, trace)
        records = simulation_run.run(
            chosen, trace, cluster, parse_shape(f"1x{gpus}")
        ).outcome.records
        assert records.finished.all()
        assert np.allclose(records.service_gpu_s, trace.duration_s * trace.gpus, rtol=1e-9)
        assert (records.jct_s >= trace.duration_s * (1 - 1e-9)).all()
