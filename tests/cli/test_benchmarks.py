"""The benchmarks run, on something small: they must not rot between two releases."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from slurm_dl.simulation.slurm.overheads import SlurmCosts

pytestmark = [pytest.mark.full("runs the benchmarks"), pytest.mark.timeout(900)]

BENCHMARKS = Path(__file__).parents[2] / "tools" / "benchmarks"
PHILLY = BENCHMARKS.parents[1] / "traces/philly/philly.csv.gz"


def results(directory: Path, name: str, *options: object) -> dict[str, dict[str, object]]:
    """What a copy of the benchmark *name* in *directory* writes."""
    shutil.copytree(
        BENCHMARKS, directory / "b", ignore=shutil.ignore_patterns("results", "__pycache__")
    )
    ran = subprocess.run(
        [sys.executable, directory / "b" / f"{name}.py", *map(str, options)],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=540 * PATIENCE,
    )
    assert ran.returncode == 0, ran.stderr
    text = (directory / "b" / "results" / f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, object]] = json.loads(text)
    return found


def test_the_plan_benchmark_measures_the_situations_it_names(tmp_path: Path) -> None:
    """No action where nothing has changed, hand-overs where some are to be found."""
    found = results(tmp_path, "bench_plan", "--jobs", 300, "--nodes", 60, "--rounds", 1)

    actions = {name: case["actions"] for name, case in found["cases"].items()}  # type: ignore[index]
    for name in ("steady", "protected", "in_vain"):
        assert actions[name] == {}, name
    assert "SetSiteFactor" in actions["new"]
    assert actions["preempt"]["OpenHandover"] == 4


def test_the_placement_benchmark_finds_places_under_every_scheme(tmp_path: Path) -> None:
    """Most jobs find one on a cluster with room, whatever the scheme and the rule."""
    found = results(tmp_path, "bench_place", "--jobs", 20, "--nodes", 60, "--rounds", 1)

    assert len(found["cases"]) >= 7
    for name, (case,) in found["cases"].items():  # type: ignore[misc]
        assert case["spots"] > 10, name  # type: ignore[index]
        assert case["examined"] > 0, name  # type: ignore[index]


def test_the_ledger_benchmark_asks_about_jobs_that_it_wrote(tmp_path: Path) -> None:
    """Jobs of the last day are listed, and those of a week are in the file."""
    found = results(tmp_path, "bench_ledger", "--jobs", 400, "--rounds", 5)["ledgers"]

    empty, full = found["0"], found["400"]
    assert 30 < full["read"]["jobs_listed"] < 90  # type: ignore[index]
    assert full["read"]["why"]["rounds"] == 5  # type: ignore[index]
    assert full["file_mb"] > empty["file_mb"]  # type: ignore[index]


def test_the_policy_benchmark_measures_those_it_is_asked_for(tmp_path: Path) -> None:
    """Four times each, and nothing failed, on a cluster where jobs run and jobs wait."""
    options = ("--policy", "las", "--policy", "fifo", "--jobs", 40, "--past", 30, "--rounds", 1)
    found = results(tmp_path, "bench_policies", *options)

    rows: list[dict[str, object]] = found["policies"]  # type: ignore[assignment]
    assert [(row["policy"], row["jobs"]) for row in rows] == [("las", 40), ("fifo", 40)]
    for row in rows:
        times = [value for name, value in row.items() if name.endswith("_s")]
        assert len(times) == 4
        assert all(value > 0 for value in times)  # type: ignore[operator]
    assert found["failed"] == []


def test_the_forecast_benchmark_runs_forward_to_the_end(tmp_path: Path) -> None:
    """On a small cluster all runs that a forecast wants come to their end."""
    options = ("--jobs", 5, "--nodes", 4, "--policy", "las", "--seconds", 300, "--trace", PHILLY)
    found = results(tmp_path, "bench_when", *options)

    (case,) = found["cases"]
    assert (case["policy"], case["waiting"]) == ("las", 5)  # type: ignore[index]
    assert case["runs"] == 40  # type: ignore[index]
    assert case["running"] > 0  # type: ignore[index]


def test_the_benchmark_of_odds_counts_each_answer(tmp_path: Path) -> None:
    """By fifths, and in all; with limits alone, and with the jobs that are over."""
    options = ("--answers", 4, "--jobs", 60, "--trace", PHILLY)
    found = results(tmp_path, "bench_odds", *options)

    for known in ("limits alone", "jobs that are over"):
        *fifths, whole = (case for case in found["cases"] if case["known"] == known)  # type: ignore[attr-defined]
        assert sum(case["answers"] for case in fifths) == whole["answers"] == 4
        assert all(0 <= case["held"] <= 1 for case in fifths)


def test_the_benchmark_of_promises_prints_a_row_for_each_policy(tmp_path: Path) -> None:
    """Of a trace of five jobs; no job that it promised anything is late."""
    trace = Path(__file__).parents[1] / "data/traces/chronus.csv"
    name, options = "bench_promises", ("--part", "1", "--shape", "1x4", "--policies", "chronus")
    ran = subprocess.run(
        [sys.executable, BENCHMARKS / f"{name}.py", trace, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120 * PATIENCE,
    )

    assert ran.returncode == 0, ran.stderr
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in ran.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == ["chronus, margin: 0", "chronus", "chronus, 5 min"]
    for row in rows:
        assert 0 < float(row[1]) <= 1
        assert row[3] == row[4]


@pytest.mark.slurm
def test_the_poll_benchmark_keeps_to_the_budget_of_rpcs(tmp_path: Path) -> None:
    """At most 3 RPCs a poll, and no write when nothing moves."""
    options = ("--jobs", 40, "--nodes", 30, "--cycles", 4, "--daemon-cycles", 3)
    found = results(tmp_path, "bench_poll", *options)

    by_hand = found["by_hand"]
    assert by_hand["writes"]["count"] == 40  # type: ignore[index]
    assert by_hand["writes_when_idle"] == 0
    assert 0 < sum(by_hand["rpcs_per_poll"].values()) <= 3  # type: ignore[attr-defined]
    assert found["dlschedd"]["cycles"] >= 3  # type: ignore[operator]


@pytest.mark.slurm
def test_the_load_benchmark_measures_both_of_its_parts(tmp_path: Path) -> None:
    """The queue is as long as asked for, the daemon is looked at with and without, and by polls."""
    options = ("--jobs", 30, "--nodes", 10, "--polls", 2, "--writes", 5, "--pairs", 1)
    less = ("--window-s", 3, "--memory-jobs", 20, "--memory-polls", 3)
    found = results(tmp_path, "bench_load", *options, *less)

    assert found["queued"] == 30
    assert found["by_hand"]["resident_mb"] > 10  # type: ignore[operator]
    memory = found["memory"]
    assert memory["queued"] == 20
    assert memory["polls"] >= 3  # type: ignore[operator]
    assert list(memory["resident_mb_after_polls"]) == ["1", "3"]  # type: ignore[call-overload]


@pytest.mark.slurm
def test_the_measurement_of_slurms_costs_finds_each_of_them(tmp_path: Path) -> None:
    """One wave of jobs gives every field of the simulator's costs, none of which is negative."""
    found = results(tmp_path, "measure_slurm_costs", "--waves", 1)

    taken = {row["samples"] for name, row in found["seconds"].items()}  # type: ignore[index]
    assert min(taken) >= 4
    costs = found["costs"]
    free = {"stop_s"}  # A difference of two medians.
    assert {name for name, cost in costs.items() if cost <= 0} <= free  # type: ignore[operator]
    known = {f.name for f in dataclasses.fields(SlurmCosts)}
    assert set(costs) <= known
    assert {"launch_s", "epilog_s", "signal_s", "ack_s", "rpc_s", "sched_tick_s"} <= set(costs)
