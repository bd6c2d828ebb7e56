"""Experiments: their cells, what is kept of them, and their rows against plain Python."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import json
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from slurm_dl.cli.dlsim.comparison_text import WIDE, WIDTH, marks_of, tables
from slurm_dl.experiments import array_job, bootstrap_interval, comparison, grid, simulation_run
from slurm_dl.experiments.array_job import MAX_TASKS, ArrayRequest, Folder
from slurm_dl.experiments.bootstrap_interval import TimeBlocks, resampled
from slurm_dl.experiments.cell_store import Store, manifest_of
from slurm_dl.experiments.cluster_presets import find as find_cluster
from slurm_dl.experiments.comparison import FIGURES, Compared, Comparison
from slurm_dl.experiments.grid import (
    Cell,
    Experiment,
    Figures,
    Workload,
    faster,
    figures_of,
    product,
)
from slurm_dl.experiments.oracle import Oracle
from slurm_dl.experiments.placement_choice import Named, PlacementSetup
from slurm_dl.experiments.policy_words import names_all, parse_loads, parse_policies
from slurm_dl.experiments.process_pool import WorkError, WorkFault
from slurm_dl.experiments.simulation_run import PolicySpec
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.trace import Ending, Trace
from slurm_dl.policies import registry
from slurm_dl.policies.base import Order
from slurm_dl.policies.las import Las
from slurm_dl.report import export, summary_metrics
from slurm_dl.report.export import jobs_csv
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal.placement_speed import ContentionSpeed
from slurm_dl.traces import read_trace

OWN = "discrete_las:lucid"
"""It decides every 60 s, and so not on a Slurm."""


def made(jobs: int, seed: int = 5) -> Trace:
    """Jobs that differ in everything, in bursts."""
    rng = np.random.default_rng(seed)
    return Trace(
        name="made",
        format="slurm_dl",
        job_id=tuple(f"j{i}" for i in range(jobs)),
        submit_s=1000.0 + np.sort(rng.integers(0, 40 * jobs, jobs)).astype(np.float64),
        duration_s=np.round(rng.lognormal(5, 1.5, jobs), 3) + 1,
        gpus=rng.choice([1.0, 2.0, 4.0], jobs),
        user=rng.integers(0, 3, jobs).astype(np.int32),
        model=rng.integers(-1, 2, jobs).astype(np.int32),
        ending=rng.choice([e.value for e in Ending], jobs).astype(np.int8),
        users=("ada", "ben", "cy"),
        models=("resnet50", "bert"),
    )


TRACE = made(40)
WORKLOAD = Workload(cluster="2x4", trace=TRACE)
EXPERIMENT = Experiment(workloads={"": WORKLOAD})
PROFILES = Path(__file__).parents[2] / "profiles" / "models"
SIXTY = Path(__file__).parents[2] / "traces" / "tiresias" / "60_job.csv"
POLICIES = parse_policies("fifo,las,discrete_las:voda", {"quantum_s": 100})
CELLS = product(POLICIES, loads=(1.0, 2.0), resamples=2)
Found = Mapping[Cell, Figures | WorkFault]


def ran(cells: tuple[Cell, ...], **more: object) -> dict[Cell, Figures | WorkFault]:
    """The figures of *cells*, run here."""
    return dict(grid.run(EXPERIMENT, cells, figures_of, **more))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found() -> dict[Cell, Figures]:
    """The figures of all `CELLS`."""
    return grid.all_of(ran(CELLS))


def timeless(found: Found) -> str:
    """Figures to compare, in the order of the cells; wall time is left out."""
    told = {
        str(cell): value if isinstance(value, WorkFault) else {**value, "wall_s": 0}
        for cell, value in found.items()
    }
    return repr(dict(sorted(told.items())))


def rows_of(trace: Trace) -> list[tuple[float, float, str, int, int]]:
    """What belongs to each job, in the order of submission."""
    columns = (trace.duration_s, trace.gpus, trace.user, trace.model, trace.ending)
    return [
        (d, g, trace.users[u], m, e)
        for d, g, u, m, e in zip(*(c.tolist() for c in columns), strict=True)
    ]


# Workloads and cells


DAY_S = 86_400.0


def spread_over(span_s: float, jobs: int) -> Trace:
    """`made` jobs over so much time, the first at 1,000 s."""
    trace = made(jobs)
    at_s = np.sort(np.random.default_rng(jobs).uniform(0, span_s, jobs))
    at_s[0], at_s[-1] = 0, span_s
    return dataclasses.replace(trace, submit_s=1000 + at_s)


@pytest.mark.parametrize(
    ("span_s", "jobs", "days", "unit_s", "length"),
    [
        (3000, 60, None, 150 * (1 + 1e-9), 2),
        (12.5 * DAY_S, 90, None, DAY_S, 1),
        (40.3 * DAY_S, 300, None, DAY_S, 3),
        (399.5 * DAY_S, 30, None, DAY_S, 3),
        (40.3 * DAY_S, 300, 7, DAY_S, 7),
        (3.5 * DAY_S, 60, 1, DAY_S, 1),
    ],
)
def test_a_resample_is_blocks_of_the_trace(
    span_s: float, jobs: int, days: int | None, unit_s: float, length: int
) -> None:
    """Blocks of units that follow each other, whole, at their time of the unit; as much load."""
    trace = spread_over(span_s, jobs)

    def of_units(of: Trace) -> list[list[tuple[float, tuple[object, ...]]]]:
        after_s = of.submit_s - 1000
        unit = (after_s / unit_s + 1e-10).astype(int)
        told = zip((after_s - unit * unit_s).round(3).tolist(), rows_of(of), strict=True)
        by_unit: list[list[tuple[float, tuple[object, ...]]]] = [[] for _ in range(unit_count)]
        for at, one in zip(unit.tolist(), told, strict=True):
            by_unit[at].append(one)
        return by_unit

    unit_count = math.ceil(span_s / unit_s)
    whole = of_units(trace)
    for seed in (1, 2):
        drawn = of_units(resampled(trace, seed, days))
        blocks = [drawn[i : i + length] for i in range(0, unit_count, length)]
        twice = [*whole, *whole]
        for block in blocks:
            assert any(block == twice[i : i + len(block)] for i in range(unit_count))
    loads = [len(resampled(trace, seed, days)) / jobs for seed in range(1, 200)]
    assert statistics.mean(loads) == pytest.approx(1, abs=4 * statistics.stdev(loads) / 14)
    assert len(set(resampled(trace, 1, days).job_id)) == len(resampled(trace, 1, days))
    assert resampled(trace, 0) is trace


@pytest.mark.parametrize(("span_s", "jobs"), [(0.0, 5), (0.0, 1), (1e-3, 2)])
def test_jobs_that_come_at_once_have_no_ranges(span_s: float, jobs: int) -> None:
    """One block is the trace itself, which would look like certainty."""
    trace = (
        spread_over(span_s, jobs)
        if span_s
        else dataclasses.replace(made(jobs), submit_s=np.full(jobs, 9.0))
    )
    experiment = Experiment(workloads={"": Workload(cluster="2x4", trace=trace)})
    cells = product(parse_policies("fifo,las", {}), resamples=2)

    ran = comparison.compared(experiment, dict(grid.run(experiment, cells, figures_of)), {})

    for row in ran.comparisons[0].rows:
        assert row.figures["avg_jct_s"].own.is_known == (span_s > 0)


@given(load=st.floats(0.001, 1000))
def test_a_load_divides_the_times_after_the_first_submission(load: float) -> None:
    times = faster(TRACE, load).submit_s.tolist()

    first = TRACE.submit_s[0]
    assert times == [first + (t - first) / load for t in TRACE.submit_s.tolist()]
    assert np.array_equal(faster(TRACE, load).duration_s, TRACE.duration_s)


def test_cells_are_every_policy_at_every_load_and_resample_once() -> None:
    assert len(CELLS) == len(set(map(str, CELLS))) == 18
    assert str(CELLS[-1]) == "discrete_las:voda, load 2, resample 2"
    by_costs = product(POLICIES, costs=("none", "slurm"))
    assert str(by_costs[-1]) == "costs slurm, discrete_las:voda, load 1, resample 0"


def test_a_parameter_goes_to_the_policies_that_have_it() -> None:
    """Those of what the preset runs, too: list_las has late_demotion, discrete_las has not."""
    specs = parse_policies(
        "fifo,las,discrete_las:tiresias-corrected,discrete_las",
        {"quantum_s": 5, "late_demotion": True},
    )

    expected: list[dict[str, object]] = [{}, {"quantum_s": 5}, {"late_demotion": True}, {}]
    assert [dict(spec.parameters) for spec in specs] == expected


def test_all_is_every_policy_that_is_not_named() -> None:
    """In the place of the word, sorted, as their own parameters say; the first stays first."""
    names = registry.names()

    every = parse_policies("all", {})
    some = parse_policies("fifo,las:none,all", {"quantum_s": 5})

    assert [spec.policy for spec in every] == list(names)
    assert not any(spec.preset for spec in every)
    others = [name for name in names if name not in {"fifo", "las"}]
    assert [spec.policy for spec in some] == ["fifo", "las", *others]
    assert some[1].parameters == {"quantum_s": 5}
    assert names_all("fifo, all")
    assert not names_all("fifo,fallback")


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        ("fifo,", {}, "is not NAME or NAME:PRESET"),
        ("fifo:", {}, "is not NAME or NAME:PRESET"),
        ("fifo,nope", {}, "no policy 'nope'"),
        ("discrete_las:nope", {}, "preset 'nope' is unknown"),
        ("fifo,las", {"promote_knob": 2}, "-p promote_knob: none of these policies has"),
    ],
)
def test_policies_that_cannot_be_are_refused(
    text: str, given: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_policies(text, given)


@pytest.mark.parametrize("text", ["", "1,", "x", "nan", "1,inf"])
def test_loads_are_numbers(text: str) -> None:
    with pytest.raises(ConfigError, match="--loads"):
        parse_loads(text)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"loads": (1.0, 1.0)}, "--loads: 1 is given twice"),
        ({"loads": (0.0,)}, "--loads: 0 is"),
        ({"loads": (-2.0,)}, "--loads: -2 is"),
        ({"policies": (POLICIES[0], POLICIES[0])}, "--policies: fifo is given twice"),
        ({"costs": ("none", "none")}, "--costs: none is given twice"),
        ({"resamples": 100_000}, "1 to 100,000 simulations"),
    ],
)
def test_grids_that_cannot_be_are_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        product(**{"policies": POLICIES, **given})  # type: ignore[arg-type]


def test_a_cell_is_that_simulation(found: dict[Cell, Figures]) -> None:
    """The figures are those of a run by itself of the workload of that load and resample."""
    shape = parse_shape("2x4")
    for cell, figures in found.items():
        jobs = faster(resampled(TRACE, cell.resample), cell.load)
        chosen = simulation_run.choose(cell.policy, jobs)
        alone = simulation_run.run(
            chosen, jobs, find_cluster(None, chosen.preset, jobs), shape, seed=cell.resample
        )
        expected = export.summary_json(
            summary_metrics.summarise(alone.outcome.records, gpus=shape.gpus)
        )
        assert {name: figures[name] for name in expected} == expected, cell
        assert figures["preset"] == chosen.preset


class Broken(Las):
    """A policy that fails once more than three jobs are there."""

    def order(self, snap: Snapshot, /) -> Order:
        """Fail where there are many jobs."""
        if len(snap.jobs) > 3:
            msg = "no\nmore than three"
            raise ZeroDivisionError(msg)
        return super().order(snap)


def test_what_fails_is_told_and_the_others_are_run_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On one line, with the place of the fault; a policy that failed is left out whole."""
    monkeypatch.setattr(registry, "POLICIES", {**registry.POLICIES, "broken": Broken})
    cells = product(parse_policies("fifo,broken,las", {}), loads=(1.0, 2.0), resamples=1)
    begun: list[Cell] = []

    found = ran(cells, begin=begun.append)

    assert tuple(begun) == cells
    failed = [value for value in found.values() if isinstance(value, WorkFault)]
    assert len(failed) == 4
    assert failed[0].why.startswith(
        "broken, load 1, resample 0: ZeroDivisionError: no more than three (test_grid.py:"
    )
    (one,) = comparison.compared(EXPERIMENT, found, {}).comparisons
    assert [spec.short_label for spec in one.policies] == ["fifo", "las"]
    only = ran(product(parse_policies("fifo,las", {}), loads=(1.0, 2.0), resamples=1))
    assert timeless(dict(one.cells)) == timeless(only)
    with pytest.raises(WorkError, match="no more than three"):
        grid.all_of(found)


def test_a_policy_that_fails_once_is_left_out_whole(found: dict[Cell, Figures]) -> None:
    """A mean over fewer resamples would be another figure; if all fail, that is an error."""
    fault = WorkFault("it did")
    gone: dict[Cell, Figures | WorkFault] = {**found, CELLS[7]: fault}

    whole = comparison.compared(EXPERIMENT, gone, {})

    assert [spec.policy for spec in whole.comparisons[0].policies] == ["fifo", "discrete_las"]
    assert list(whole.failed) == [CELLS[7]]
    with pytest.raises(WorkError, match="it did"):
        comparison.compared(EXPERIMENT, dict.fromkeys(CELLS, fault), {})


# Costs


def planned(
    policies: str, *costs: str | None, cluster: str = "2x4", lenient: bool = False
) -> Compared:
    """What comes of these policies under these costs, run here."""
    experiment = Experiment(workloads={"": Workload(cluster=cluster, trace=made(14))})
    cells, refused = comparison.planned(
        experiment, product(parse_policies(policies, {}), costs=costs), lenient=lenient
    )
    found = dict(grid.run(experiment, cells, figures_of))
    return comparison.compared(experiment, found, refused)


def test_a_policy_that_cannot_run_under_one_of_the_costs_is_told_there() -> None:
    """Figures of both are in one strict JSON, each held against the first of its own costs."""
    told = json.loads(
        json.dumps(
            comparison.as_json(TRACE, planned(f"fifo,{OWN}", "none", "slurm")), allow_nan=False
        )
    )

    where = [("fifo", "none"), (OWN, "none"), ("fifo", "slurm")]
    for key in ("rows", "cells"):
        assert [(row["policy"], row["costs"]) for row in told[key]] == where
    assert [(p["label"], p["costs"]) for p in told["policies"]] == where
    assert set(told["rows"][0]["figures"]) == set(FIGURES) >= {"jain", "max_rho", "p95_jct_s"}
    assert [(r["policy"], r["costs"]) for r in told["refused"]] == [(OWN, "slurm")]
    assert told["refused"][0]["why"].startswith("preset 'lucid' says itself when to decide")
    figures = told["rows"][2]["figures"]["avg_jct_s"]
    assert "ratio" not in figures
    assert figures["mean"] == told["cells"][2]["avg_jct_s"]


@pytest.mark.parametrize(
    ("policies", "costs", "more", "said"),
    [
        (f"fifo,{OWN}", ("slurm",), {}, "preset 'lucid' says itself when to decide"),
        ("fifo", ("/nonexistent",), {"lenient": True}, "--costs /nonexistent"),
        ("fifo", ("none",), {"lenient": True, "cluster": "2y4"}, "cluster '2y4'"),
        (OWN, ("slurm",), {"lenient": True}, "--costs slurm: no policy can run"),
    ],
)
def test_what_is_wrong_for_all_is_an_error(
    policies: str, costs: tuple[str, ...], more: dict[str, object], said: str
) -> None:
    """Before anything runs; a policy that was not named but meant among all is none."""
    with pytest.raises(ConfigError, match=said):
        planned(policies, *costs, **more)  # type: ignore[arg-type]
    (one,) = planned(f"fifo,{OWN}", "slurm", lenient=True).comparisons
    assert [spec.short_label for spec in one.policies] == ["fifo"]


# Intervals and rows


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (5, 2.571), (9, 2.262), (29, 2.045), (120, 1.980)],
)
def test_the_quantile_of_t_is_that_of_the_tables(freedom: int, quantile: float) -> None:
    """Two-sided 5 %, as in any table of Student's t."""
    assert bootstrap_interval.t_quantile(freedom) == pytest.approx(quantile, abs=5e-4)


@pytest.mark.parametrize(
    ("values", "most", "outside"),
    [
        ([10.0, 8.0, 12.0, 11.0], math.inf, False),
        ([1.0, 90.0, 0.01, 30.0], math.inf, False),
        ([0.0, 4.0, 0.0, 9.0], math.inf, False),
        ([0.98, 0.7, 0.99, 0.4], 1.0, False),
        ([16.7, 12.0, 11.0, 12.5, 11.5, 12.2], math.inf, True),
        ([19.6, 28.0, 31.0, 33.0, 38.0], math.inf, True),
        ([5.0, 5.0, 5.0, 5.0], math.inf, False),
    ],
)
def test_a_range_is_about_the_traces_own_value(
    values: list[float], most: float, *, outside: bool
) -> None:
    """Within what the figure can be; wide enough for its resamples, and told if it is not."""
    found = bootstrap_interval.figure(np.array(values), blocks=12, most=most)

    assert found.value == values[0]
    assert found.mean == pytest.approx(statistics.mean(values[1:]))
    assert 0 <= found.low <= found.value <= found.high <= most
    assert found.is_outside == outside
    for few in ([3.0], [3.0, math.nan]):
        assert not bootstrap_interval.figure(np.array(few), blocks=12).is_known
    assert not bootstrap_interval.figure(np.array(values), blocks=1.9).is_known


def test_a_pair_is_compared_on_its_own_workload() -> None:
    """A constant factor has nearly no range in the ratio, however much workloads differ."""
    base = np.array([100.0, 90.0, 3000.0])

    same = bootstrap_interval.ratio(base, base, 12)
    assert (same.low, same.value, same.high) == (1, 1, 1)
    ratio = bootstrap_interval.ratio(base * 2, base, 12)
    less = bootstrap_interval.difference(base * 2, base, 12)
    assert (ratio.value, less.value) == (2, 100)
    assert (ratio.low <= 1 <= ratio.high) or not less.low <= 0 <= less.high
    assert ratio.low >= 0
    assert not bootstrap_interval.ratio(base, np.array([1.0, 0.0, 1.0]), 12).is_known
    assert math.isnan(bootstrap_interval.ratio(base, np.array([0.0, 1.0, 1.0]), 12).value)


def queued(trace: Trace, speed: float) -> float:
    """Mean time in a queue before one server that does the work of all GPUs in turn."""
    work_s = trace.duration_s * trace.gpus / (8 * speed)
    free_s = np.cumsum(work_s) + np.maximum.accumulate(trace.submit_s - np.cumsum(work_s) + work_s)
    return float((free_s - trace.submit_s).mean())


def history(number: int) -> Trace:
    """120 days of three jobs each; those of one day are about as long as each other."""
    rng = np.random.default_rng((52, number))
    of_day = np.repeat(np.arange(120), rng.poisson(3 * rng.lognormal(-0.045, 0.3, 120)))
    n = len(of_day)
    return dataclasses.replace(
        made(n),
        submit_s=np.sort((of_day + rng.uniform(0, 1, n)) * DAY_S),
        duration_s=rng.lognormal(0, 0.2, n) * rng.lognormal(0, 0.6, 120)[of_day] * 110_000,
        gpus=np.ones(n),
    )


def of_jobs(trace: Trace, seed: int) -> Trace:
    """Single jobs drawn, at the same times: what resamples were before they were blocks."""
    drawn = np.random.default_rng(seed).integers(len(trace), size=len(trace))
    return trace.of_jobs(drawn, job_id=trace.job_id, submit_s=trace.submit_s)


def test_more_ranges_hold_the_true_value_than_of_single_jobs() -> None:
    """Of histories with days that are alike; of mean +- t s over single jobs fewer do."""
    speeds = (1.0, 1.1)
    true = np.mean([[queued(history(n), v) for v in speeds] for n in range(40, 240)], 0)
    held = {"blocks": np.zeros(2), "jobs": np.zeros(2)}
    for n in range(40):
        trace = history(n)
        blocks = TimeBlocks.of(trace).independent
        for name, way in (("blocks", resampled), ("jobs", of_jobs)):
            jobs = [trace, *(way(trace, seed) for seed in range(1, 10))]
            slow, fast = (np.array([queued(one, v) for one in jobs]) for v in speeds)
            ranges = [
                bootstrap_interval.figure(slow, blocks),
                bootstrap_interval.ratio(fast, slow, blocks),
            ]
            ends = [(one.low, one.high) for one in ranges]
            if name == "jobs":
                ends = [
                    (v.mean() - half, v.mean() + half)
                    for v in (slow, fast / slow)
                    for half in (2.262157 * v.std(ddof=1),)
                ]
            held[name] += [
                low <= t <= high
                for (low, high), t in zip(ends, (true[0], true[1] / true[0]), strict=True)
            ]

    assert held["blocks"].min() >= 32, held
    assert held["jobs"].min() < 32, held


def test_rows_are_the_trace_and_its_ranges(found: dict[Cell, Figures]) -> None:
    """Against plain Python on the cells."""
    (whole,) = comparison.compared(EXPERIMENT, found, {}).comparisons
    by_cell = {
        (cell.policy.short_label, cell.load, cell.resample): figures["avg_jct_s"]
        for cell, figures in found.items()
    }

    labels = [spec.short_label for spec in POLICIES]
    assert [(r.load, r.label) for r in whole.rows] == [
        (load, label) for load in (1.0, 2.0) for label in labels
    ]
    for row in whole.rows:
        figure = row.figures["avg_jct_s"]
        values = [by_cell[row.label, row.load, k] for k in range(3)]
        first = [by_cell["fifo", row.load, k] for k in range(3)]
        apart = [math.log(v / values[0]) for v in values[1:]]
        # Student's t of two resamples; of ten blocks.
        half = 4.302653 * math.sqrt(statistics.mean(a * a for a in apart) * 10 / 9)
        assert figure.own.value == row.mean_jct_s == values[0]
        assert figure.own.low == pytest.approx(values[0] * math.exp(-half), rel=1e-6)
        assert figure.own.high == pytest.approx(values[0] * math.exp(half), rel=1e-6)
        assert figure.own.mean == pytest.approx(statistics.mean(values[1:]))
        if row.label == "fifo":
            assert figure.ratio is None
            continue
        ratios = [a / b for a, b in zip(values, first, strict=True)]
        assert figure.ratio.value == ratios[0]
        assert figure.ratio.mean == pytest.approx(statistics.mean(ratios[1:]))
        assert figure.difference.value == values[0] - first[0]


def test_json_and_csv_tell_every_cell(found: dict[Cell, Figures]) -> None:
    """Strict JSON, without NaN; the same figures in both."""
    whole = comparison.compared(EXPERIMENT, found, {})

    told = json.loads(json.dumps(comparison.as_json(TRACE, whole), allow_nan=False))
    lines = list(csv.DictReader(io.StringIO(comparison.as_csv(whole))))

    assert len(told["cells"]) == len(lines) == 18
    for cell, line, figures in zip(told["cells"], lines, found.values(), strict=True):
        assert (cell["policy"], cell["resample"]) == (line["policy"], int(line["resample"]))
        for name in ("avg_jct_s", "max_rho", "jain", "jobs"):
            assert cell[name] == float(line[name]) == figures[name]
    assert [p["label"] for p in told["policies"]] == [spec.short_label for spec in POLICIES]
    assert told["policies"][1]["parameters"]["quantum_s"] == 100


# Tables


def printed(one: Comparison, width: int) -> list[str]:
    """The lines of its tables on a terminal of that width."""
    console = Console(width=width, file=io.StringIO())
    for table in tables(one, width=width):
        console.print(table)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [WIDTH, WIDE])
def test_a_table_has_the_figures_there_is_room_for(width: int) -> None:
    """The best by mean JCT on top of many; each mark is at the best; words are of what is shown."""
    many = "fifo,discrete_las,srtf,las,sjf,fifo_skip,easy_backfill,fewest_gpus"
    (one,) = planned(many, "none").comparisons

    lines = printed(one, width)

    assert max(map(len, lines)) <= width
    shown = f"{lines[0]} {lines[1]}"
    assert all(word in shown for word in ("mean", "first's", "median", "p99"))
    assert ("Jain" in shown) == ("Jain: " in marks_of(one, width=width)) == (width == WIDE)
    first = [line.split()[0] for line in lines[2:] if line[:1].strip()]
    ranked = one.best_first(1.0)
    assert first == [row.label for row in ranked]
    means = [row.mean_jct_s for row in ranked]
    assert means == sorted(means)
    assert "*" in lines[2]


def test_whose_jobs_did_not_finish_is_last_and_never_the_best() -> None:
    """Its mean is over fewer jobs: as short as the best, and no mean to be held against it."""
    (whole,) = planned(f"fifo,{OWN},srtf", "none").comparisons
    first, *others = whole.rows
    best = min(others, key=lambda row: row.mean_jct_s)
    lame = dataclasses.replace(
        first,
        of_workloads=({**first.of_workloads[0], "finished": first.jobs - 1},),
        figures=best.figures,
    )
    one = dataclasses.replace(whole, rows=(lame, *others))

    lines = printed(one, WIDE)

    assert one.best_first(1.0)[-1].label == "fifo"
    row = next(line for line in lines if line.startswith("fifo"))
    assert "*" not in row
    assert "13/14" in row
    assert "*" in next(line for line in lines if line.startswith(best.label.partition(":")[0]))


# Figures that are kept, and the folder of an array


def test_figures_that_are_there_are_not_computed_again(tmp_path: Path) -> None:
    """Those of other versions are not mixed; a damaged file is named."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="is not empty and holds no simulations"):
        Store(tmp_path / "other", EXPERIMENT).begin()
    store = Store(tmp_path / "new" / "folder", EXPERIMENT)
    store.begin()
    begun: list[Cell] = []
    first = ran(CELLS[:3], store=store)

    second = ran(CELLS[:5], store=store, begin=begun.append)

    assert begun == list(CELLS[3:5])
    assert {cell: second[cell] for cell in first} == first
    path = store.path / "cells" / f"{store.name(CELLS[0])}.json"
    jobs = gzip.decompress(path.with_suffix(".csv.gz").read_bytes()).decode()
    assert jobs == jobs_csv(EXPERIMENT.simulate(CELLS[0]).result.outcome.records)
    told = first[CELLS[0]]
    less = {name: value for name, value in told.items() if name != "max_jct_s"}
    odd = ({"avg_jct_s": "1"}, {"notes": None}, {"placement": {"mean_nodes": "2"}}, {"jobs": 1.5})
    wrong = (json.dumps(one) for one in (less, *(told | one for one in odd)))
    for content in ("{{", "null", "[]", '{"preset": 1}', *wrong):
        path.write_text(content, "utf-8")
        with pytest.raises(ConfigError, match=r"fifo.*\.json: is no result.*delete it"):
            store.get(CELLS[0])
    mark = store.path / "versions.json"
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "numpy": "1.0"}), "utf-8")
    with pytest.raises(ConfigError, match=r"numpy 1\.0"):
        store.begin()


def test_a_file_that_changes_while_a_cell_runs_has_no_figures(tmp_path: Path) -> None:
    """They would stand under the name that the file had before."""
    costs = tmp_path / "costs.yaml"
    costs.write_text("restart_s: 30\n", "utf-8")
    store = Store(tmp_path / "kept", EXPERIMENT)
    store.begin()
    cells = product(POLICIES[:1], costs=(str(costs),), loads=(1.0, 2.0))

    found = ran(cells, store=store, begin=lambda _: costs.write_text("restart_s: 31\n", "utf-8"))

    assert all("changed meanwhile" in value.why for value in found.values())  # type: ignore[union-attr]
    assert list((store.path / "cells").iterdir()) == []


def test_a_policy_that_ends_the_program_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a name, in place of no output and status 0."""

    def leave(*_: object) -> Order:
        raise SystemExit(0)

    monkeypatch.setattr(Las, "order", leave)

    (value,) = ran((Cell(policy=PolicySpec(policy="las")),)).values()

    assert "policy las ended the program" in value.why


def test_a_cell_is_named_by_all_that_determines_its_figures(tmp_path: Path) -> None:
    """By content: neither the names of files nor what a workload is called make another one."""
    for name, restart_s in (("a", 30), ("b", 30), ("c", 31)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.py").write_text(f"x = {restart_s}")
        (tmp_path / name / "costs.yaml").write_text(f"restart_s: {restart_s}\n")
        (tmp_path / name / "p.yaml").write_text(f"name: {'y' if name == 'c' else 'x'}\n")
    cell = dataclasses.replace(CELLS[0], costs=str(tmp_path / "a" / "costs.yaml"))
    las = PolicySpec(policy="las")
    ground = PlacementSetup(profiles=str(tmp_path / "a"))
    shipped = Workload(cluster="4x4", file=SIXTY)

    def name(
        cell: Cell = cell,
        workload: Workload = WORKLOAD,
        **more: Any,  # noqa: ANN401
    ) -> str:
        more = {"ground": ground, **more}
        experiment = Experiment(workloads={cell.workload: workload}, **more)
        return Store(tmp_path, experiment).name(cell)

    def ground_of(**more: object) -> str:
        return name(ground=dataclasses.replace(ground, **more))  # type: ignore[arg-type]

    def cell_of(**more: object) -> str:
        return name(dataclasses.replace(cell, **more))  # type: ignore[arg-type]

    own = {one: PolicySpec(policy=f"{tmp_path}/{one}/m.py:Mine") for one in "abc"}
    assert cell_of(policy=own["a"]) == cell_of(policy=own["b"]) != cell_of(policy=own["c"])
    same = {
        name(),
        cell_of(workload="another name"),
        cell_of(costs=str(tmp_path / "b" / "costs.yaml")),
        ground_of(profiles=str(tmp_path / "b")),
        cell_of(policy=dataclasses.replace(cell.policy, name="called so")),
        name(workload=dataclasses.replace(WORKLOAD, trace=dataclasses.replace(TRACE, name="x"))),
    }
    assert cell_of(costs=None) == cell_of(costs="none")
    assert cell_of(costs="30") == cell_of(costs=" 3e1")
    types = [{"v100": 2.0, "k80": 1.0}, {"k80": 1.0, "v100": 2.0}]
    first, second = (ground_of(foresight=Oracle(gpu_speed=one)) for one in types)
    assert first == second
    others = [
        *(cell_of(costs=word) for word in (str(tmp_path / "c" / "costs.yaml"), "30", "31", None)),
        *(cell_of(**one) for one in ({"load": 2.0}, {"resample": 1}, {"policy": las})),
        cell_of(policy=dataclasses.replace(las, parameters={"quantum_s": 9.0})),
        cell_of(policy=dataclasses.replace(las, min_quantum_s=9.0)),
        cell_of(policy=dataclasses.replace(las, place=Named(name="best_fit"))),
        name(seed=1),
        name(failures="9:9"),
        name(workload=dataclasses.replace(WORKLOAD, cluster="1x8")),
        name(workload=shipped),
        name(workload=dataclasses.replace(shipped, tags="0.7")),
        *(
            name(workload=dataclasses.replace(WORKLOAD, trace=faster(TRACE, load)))
            for load in (1.5, 2)
        ),
        ground_of(profiles=str(tmp_path / "c")),
        ground_of(widths="fewest"),
        ground_of(rules=(Named(name="small_apart"),)),
        ground_of(contention=ContentionSpeed(network_mb_s=9)),
        ground_of(foresight=Oracle(error=0.5)),
        ground_of(foresight=Oracle(gpu_speed={"v100": 2.0})),
    ]
    assert len(same) == 1
    assert len(same.union(others)) == 1 + len(others)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A new folder of the experiment."""
    return Folder.create(tmp_path / "deep" / "sweep", EXPERIMENT, CELLS, {})


def test_a_folder_gives_back_what_was_put_in_it(folder: Folder, found: dict[Cell, Figures]) -> None:
    """The trace to the bit, so the same figures; tasks share the cells, each once."""
    opened = Folder.open(folder.path)

    trace = opened.experiment.workloads[""].jobs
    for field in dataclasses.fields(Trace):
        ours, theirs = getattr(TRACE, field.name), getattr(trace, field.name)
        assert np.array_equal(ours, theirs), field.name
    assert opened.cells == CELLS
    tasks = opened.tasks_of(CELLS)
    assert [cell for task in tasks for cell in tasks[task]] == list(CELLS)
    assert [line for task in range(0, 18, 2) for line in opened.run_task(task)] == []
    assert set(opened.missing()) == set(CELLS[1::2])
    for task in range(1, 18, 2):
        opened.run_task(task)
    assert timeless(opened.gathered()) == timeless(found)
    with pytest.raises(ConfigError, match="has tasks 0 to 17"):
        opened.run_task(18)
    large = dataclasses.replace(opened, cells=product(POLICIES, resamples=99))
    assert large.tasks == MAX_TASKS
    assert [len(cells) for cells in large.tasks_of(large.cells).values()] == [2] * 44 + [1] * 212


def test_files_of_options_go_with_the_folder(tmp_path: Path) -> None:
    """Its own copies count, two of one name as well; the first ones may go, and it may be moved."""
    given = tmp_path / "given"
    contents = {"a/cost.yaml": "restart_s: 30\n", "b/cost.yaml": "restart_s: 60\n"}
    contents |= {
        "rates.json": '{"resnet50": {"v100": 4, "k80": 1}}',
        "las.py": "from slurm_dl.policies.las import Las\n",
        "profiles/resnet50.yaml": (PROFILES / "resnet50.yaml").read_text("utf-8"),
        "profiles/notes.txt": "no profile",
    }
    for name, content in contents.items():
        (given / name).parent.mkdir(parents=True, exist_ok=True)
        (given / name).write_text(content, "utf-8")
    costs = [str(given / name) for name in ("a/cost.yaml", "b/cost.yaml")]
    policies = parse_policies(f"fifo,{given}/las.py:Las", {"quantum_s": 900.5})
    cells = product(policies, costs=costs)
    foresight = Oracle(rates=str(given / "rates.json"))
    ground = PlacementSetup(profiles=str(given / "profiles"), foresight=foresight)
    workload = Workload(cluster="1x4:v100,1x4:k80", trace=read_trace(SIXTY))
    experiment = Experiment(workloads={"": workload}, ground=ground)
    here = dict(grid.run(experiment, cells, figures_of))
    manifests = [manifest_of(experiment, cells, "")]
    names = [Store(tmp_path, experiment).name(cell) for cell in cells]
    refused = {("srtf:muri", "slurm"): "it cannot", ("x", None): "nor this"}
    Folder.create(tmp_path / "sweep", experiment, cells, refused)
    given.rename(tmp_path / "gone")
    (tmp_path / "sweep").rename(tmp_path / "moved")

    opened = Folder.open(tmp_path / "moved")

    manifests.append(manifest_of(opened.experiment, cells, ""))
    assert (opened.cells, opened.refused) == (cells, refused)
    assert opened.experiment.workloads[""].jobs.format == "tiresias"
    assert timeless(dict(grid.run(opened.experiment, opened.cells, figures_of))) == timeless(here)
    assert [opened.store.name(cell) for cell in cells] == names
    for key in ("profiles", "rates", "policies"):
        assert manifests[0][key] == manifests[1][key]
    assert "jobs by --rates" in grid.all_of(here)[cells[0]]["notes"][0]
    costs = [value["costs"] for value in here.values() if not isinstance(value, WorkFault)]
    assert costs[0].startswith("restart 30 s")
    assert costs[-1].startswith("restart 60 s")


def test_a_folder_is_not_written_over_and_must_be_ours(folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--resume gathers it"):
        Folder.create(folder.path, EXPERIMENT, CELLS, {})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        Folder.create(tmp_path / "other", EXPERIMENT, CELLS, {})
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["thesis.tex"]
    folder.path.chmod(0o777)
    with pytest.raises(ConfigError, match="nobody else's to write to"):
        Folder.open(folder.path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"resample":2', '"resample":"many"', r"cells\.\d+\.resample"),
        ('"resample":2', '"resample":2,"run":"rm"', r"cells\.\d+\.run"),
        ('"submit_s":{', '"submit_s":{"is":"rm",', "submit_s"),
        ("{", "{{", "not JSON"),
        ("{", "[" * 100_000, "not JSON"),
    ],
)
def test_a_damaged_folder_is_an_error_that_names_its_file(
    folder: Folder, old: str, new: str, said: str
) -> None:
    path = folder.path / "experiment.json"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")

    with pytest.raises(ConfigError, match=rf"experiment\.json: .*{said}"):
        Folder.open(folder.path)
    (folder.path / "jobs.json").write_text(new, "utf-8")
    with pytest.raises(ConfigError, match=r"jobs\.json: "):
        folder.submitted()


def test_what_a_user_typed_is_an_argument_and_never_script(folder: Folder) -> None:
    """A folder's name with quotes and a command in it is one argument, twice; the limit is set."""
    path = folder.path.with_name("a b'c $(touch x)")
    folder.path.rename(path)
    request = ArrayRequest(partition="cpu", time="1:00:00", most_at_once=4)

    argv = array_job.arguments(Folder.open(path), [5, 0, 2, 1], request)

    assert "--array=0,1,2,5%4" in argv
    assert {"--partition=cpu", "--time=1:00:00", f"--chdir={path}"} <= set(argv)
    assert argv[-3] == f"{path}/task.sh"
    assert argv[-1] == str(path)
    assert not any(word.startswith(("--gpus", "--gres")) for word in argv)
    assert str(path).encode() not in array_job.SCRIPT
    for wrong in ({"partition": "a\nb"}, {"time": "1\n2"}):
        with pytest.raises(ConfigError):
            ArrayRequest(**wrong)  # type: ignore[arg-type]
    odd = dataclasses.replace(folder, path=Path("a\nb"))
    with pytest.raises(ConfigError, match=r"--dir: .* has a control character"):
        array_job.arguments(odd, [0], ArrayRequest())
