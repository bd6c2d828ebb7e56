"""``--min-quantum``: how long a run is left alone, against two jobs whose times are known."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurm_dl.cli.dlsim import tune as tune_command
from slurm_dl.cli.dlsim.command import dlsim
from slurm_dl.config.loading import load
from slurm_dl.experiments import grid, tuning
from slurm_dl.experiments.grid import Cell
from slurm_dl.experiments.tuning import Candidate, Tried
from slurm_dl.model.errors import ConfigError
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.slurm.overheads import SlurmCosts
from tests.small_traces import make_trace

LONG_S, SHORT_S, LATER_S = 10_000.0, 50.0, 100.0
LOOKS_S = 5.0
"""Some looks and passes, a second apart: from when it may be preempted until the other runs."""

SINKS = "thresholds_gpu_s=[60]"
"""The long job sinks after a minute, so nothing but its quantum keeps the other waiting."""


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    """A Slurm that looks every second, and on which nothing else takes time."""
    names = {field.name: 0.0 for field in dataclasses.fields(SlurmCosts)}
    steady = {"poll_s": 1.0, "fast_poll_s": 1.0, "sched_tick_s": 1.0, "sched_interval_s": 1.0}
    kept = {
        name: getattr(SlurmCosts(), name)
        for name in ("bf_interval_s", "bf_window_s", "bf_max_jobs")
    }
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({**names, **kept, **steady, "min_job_age_s": 300.0}), "utf-8")
    return path


@pytest.fixture
def two_jobs(tmp_path: Path) -> Path:
    """A long job on the one GPU, and a short one that comes a little later."""
    path = tmp_path / "two.csv"
    path.write_text(
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
        f"1,1,0,1000,resnet50,{LONG_S:.0f},0\n"
        f"2,1,{LATER_S:.0f},1000,resnet50,{SHORT_S:.0f},{LATER_S:.0f}\n",
        "utf-8",
    )
    return path


def run(*words: str | Path) -> Result:
    """Run ``dlsim``."""
    return CliRunner().invoke(dlsim, list(map(str, words)))


@pytest.mark.parametrize("quantum_s", [300.0, 1200.0, 3000.0])
def test_a_run_is_left_alone_for_so_long_and_no_longer(
    two_jobs: Path, costs: Path, tmp_path: Path, quantum_s: float
) -> None:
    """The short job starts when the quantum of the long one is over; the long one ends after it."""
    path = tmp_path / "jobs.csv"

    done = run(
        *("run", two_jobs, "--cluster", "1x1", "--policy", "discrete_las", "-p", SINKS),
        *("--costs", costs, "--min-quantum", f"{quantum_s:g}", "--jobs-csv", path, "-q"),
    )

    assert done.exit_code == 0, done.output
    with path.open(encoding="utf-8", newline="") as file:
        rows = {row["job_id"]: row for row in csv.DictReader(file)}
    assert float(rows["2"]["start_s"]) - quantum_s == pytest.approx(LOOKS_S / 2, abs=LOOKS_S / 2)
    whole_s = LONG_S + SHORT_S
    assert float(rows["1"]["end_s"]) - whole_s == pytest.approx(LOOKS_S, abs=LOOKS_S)


def test_what_if_holds_several_against_each_other(two_jobs: Path, costs: Path) -> None:
    """The mean JCT of both jobs follows from the quantum, where anybody is stopped."""
    done = run(
        *("whatif", two_jobs, "--cluster", "1x1", "--policies", "fifo_skip,discrete_las"),
        *("-p", SINKS),
        *("--costs", costs, "--min-quantum", "300,1200", "--json", "-"),
    )

    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["policies"]
    means_s = {row["policy"]: row["figures"]["mean-jct"] for row in rows}
    by_hand_s = {
        f"{policy} min-quantum {q}": (done_s + begun_s - LATER_S + SHORT_S) / 2
        for q in (300, 1200)
        for policy, done_s, begun_s in (
            ("fifo_skip", LONG_S, LONG_S),
            ("discrete_las", LONG_S + SHORT_S, q),
        )
    }
    assert means_s == {k: pytest.approx(v, abs=LOOKS_S) for k, v in by_hand_s.items()}


def test_a_search_finds_the_quantum_and_writes_it_down(costs: Path, tmp_path: Path) -> None:
    """On each day a short job waits for the quantum of a long one: the least of them is best."""
    days = [86_400.0 * day for day in range(26)]
    trace = make_trace(
        [at_s for day_s in days for at_s in (day_s, day_s + LATER_S)], [LONG_S, SHORT_S] * len(days)
    )
    data = tuning.halves(trace, parse_shape("1x1"), by="mean-jct", costs=str(costs), seed=0)
    current = Candidate((60.0,), min_quantum_s=3000.0)

    def figures(cells: Sequence[Cell]) -> list[Tried]:
        return list(grid.all_of(dict(grid.run(data.experiment, cells, data.measure))).values())

    found = tuning.tuned(data, current, figures, most=3, quanta=(600.0, 9000.0))

    assert found.winner.min_quantum_s == 600.0
    assert {one.min_quantum_s for one, _ in found.steps[-1]} == {600.0, 3000.0, 9000.0}
    assert {one.min_quantum_s for one, _ in found.steps[-2]} == {3000.0}
    before_s, after_s = found.later
    assert before_s - after_s == pytest.approx((3000 - 600) / 2, abs=LOOKS_S)
    assert found.is_recommended
    path = tmp_path / "tuned.yaml"
    path.write_text(
        "manage: {partitions: [gpu]}\n" + tune_command.yaml_lines(found.winner, current), "utf-8"
    )
    assert load(path).preemption.min_quantum_s == 600.0
    told = tune_command.as_json(trace, found)
    assert told["found"]["min_quantum_s"] == 600.0  # type: ignore[index]
    assert "min quantum 600 s" in "\n".join(tune_command.lines(trace, found))
    assert "preemption" not in tune_command.yaml_lines(current, current)


def test_the_configuration_in_use_says_what_is_in_use(
    two_jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the costs of a Slurm; where there is none its quantum counts for nothing."""
    config = tmp_path / "dl.yaml"
    config.write_text(
        "manage: {partitions: [gpu]}\npreemption: {min_quantum_s: 1234}\n"
        "policy: {order: discrete_las}\n",
        "utf-8",
    )
    seen: list[Candidate] = []

    def stop(_: object, current: Candidate, *__: object, **___: object) -> None:
        seen.append(current)
        msg = "seen"
        raise ConfigError(msg)

    monkeypatch.setattr(tuning, "halves", lambda *_, **__: None)
    monkeypatch.setattr(tuning, "tuned", stop)
    tune = ("tune", two_jobs, "--cluster", "1x1")
    for words in (
        ("--config", config, "--costs", "slurm"),
        ("--config", config, "--costs", "none"),
        ("--costs", "slurm", "--min-quantum", "60"),
        ("--costs", "slurm"),
    ):
        run(*tune, *words)

    assert [current.min_quantum_s for current in seen] == [1234.0, None, 900.0, None]
