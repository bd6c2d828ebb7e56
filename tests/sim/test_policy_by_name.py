"""One name is one policy: in the daemon and in every command, and none that sees the future."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from small_traces import make_trace

from slurm_dl.cli.dlsim.command import dlsim
from slurm_dl.config.tree import PolicySection
from slurm_dl.experiments import cluster_presets, simulation_run
from slurm_dl.experiments.simulation_run import PolicySpec
from slurm_dl.model.trace import Trace
from slurm_dl.policies import registry
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal.simulator import simulate
from slurm_dl.traces.format_registry import read_trace

DAY_S = 86_400
COLUMNS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"

JOBS = [
    *((0, 2, 15_000), (50, 2, 9_000), (100, 1, 25_000), (100.5, 1, 3_400)),
    *((DAY_S, 1, 7_300), (DAY_S + 30, 2, 30_000), (DAY_S + 60, 2, 8_000), (DAY_S + 90, 1, 60)),
]
"""Two days of jobs on both sides of each threshold: submitted, GPUs, seconds."""


def written(path: Path, jobs: list[tuple[float, int, int]]) -> Path:
    lines = (f"{n},{g},{s},0,resnet50,{d},0\n" for n, (s, g, d) in enumerate(jobs))
    path.write_text(COLUMNS + "".join(lines), "utf-8")
    return path


@pytest.mark.parametrize("name", registry.names())
def test_a_name_means_what_the_daemon_makes_of_it(name: str) -> None:
    """For policies that run in the simulator only: what the registry has."""
    kind = registry.find(name)
    configured = PolicySection(order=name).make() if registry.runs_on_slurm(kind) else kind()
    for trace in (make_trace([0.0], [10.0], [1]), make_trace([0.0] * 50, [7.0] * 50, [2] * 50)):
        assert simulation_run.choose(PolicySpec(policy=name), trace).made == configured


def test_all_commands_simulate_the_policy_of_the_daemon(tmp_path: Path) -> None:
    """One mean JCT of discrete_las; tune simulates the first half of what it is given."""
    half = written(tmp_path / "half.csv", JOBS)
    whole = written(tmp_path / "whole.csv", JOBS + [(s + 2 * DAY_S, g, d) for s, g, d in JOBS])
    out = tmp_path / "out.json"
    edges = ("--warm-up", "0", "--cool-down", "0")

    def told(command: str, trace: Path, *more: str) -> dict[str, object]:
        args = [command, str(trace), "--cluster", "1x2", "--json", str(out), *more]
        done = CliRunner().invoke(dlsim, args)
        assert done.exit_code == 0, done.output
        return json.loads(out.read_text("utf-8"))

    trace = read_trace(half)
    daemon = simulate(trace, parse_shape("1x2"), PolicySection(order="discrete_las").make())
    ran = told("run", half, "--policy", "discrete_las")
    compared = told("compare", half, "--policies", "discrete_las")
    ranked = told("whatif", half, "--policies", "discrete_las,fifo", *edges)
    tuned = told("tune", whole, "--candidates", "3", *edges)

    means_s = {
        "run": ran["avg_jct_s"],
        "compare": compared["cells"][0]["avg_jct_s"],
        "whatif": ranked["policies"][0]["figures"]["mean-jct"],
        "tune": tuned["in_use"]["chosen_on"],
    }
    assert means_s == pytest.approx(dict.fromkeys(means_s, daemon.records.jct_s.mean()))


KNOWN_BEFOREHAND = {"left_s", "due_s", "progress", "past"}
"""What a simulation knows from a trace before the job has finished, and the policy says so."""


def begun(name: str, preset: str | None, trace: Trace) -> list[tuple[int, float]]:
    """Who started when, until the first job has finished."""
    chosen = simulation_run.choose(PolicySpec(policy=name, preset=preset), trace)
    cluster = cluster_presets.find(None, chosen.preset, trace)
    runs = simulation_run.run(chosen, trace, cluster, parse_shape("1x4")).outcome.records.runs
    early = runs.start_s < EARLIEST_END_S
    return sorted(zip(runs.job[early].tolist(), runs.start_s[early].tolist(), strict=True))


EARLIEST_END_S = 20_000.0


@pytest.fixture
def two_futures() -> tuple[Trace, Trace]:
    """The same 20 jobs, of which those of four GPUs run three times as long in the second."""
    submit_s, gpus = np.arange(20) * 100.0, np.tile([4, 4, 4, 4, 1], 4)
    short_s = np.full(20, EARLIEST_END_S + 1)
    long_s = np.where(gpus == 4, 3 * short_s, short_s)
    return make_trace(submit_s, short_s, gpus), make_trace(submit_s, long_s, gpus)


@pytest.mark.parametrize(
    "name", [n for n, k in registry.POLICIES.items() if not KNOWN_BEFOREHAND & set(k.about.needs)]
)
def test_what_is_done_before_a_job_has_finished_does_not_depend_on_sizes(
    name: str, two_futures: tuple[Trace, Trace]
) -> None:
    one, other = (begun(name, None, trace) for trace in two_futures)

    assert one
    assert one == other


def test_who_asks_for_the_sizes_of_the_trace_gets_them(two_futures: tuple[Trace, Trace]) -> None:
    """And is told; with each policy that has them."""
    one, other = (begun("gittins", "whole-trace", trace) for trace in two_futures)

    assert one != other
    for name in ("gittins", "discrete_gittins"):
        chosen = simulation_run.choose(
            PolicySpec(policy=name, preset="whole-trace"), two_futures[0]
        )
        assert chosen.notes == (simulation_run.SIZES_FROM_TRACE,)
