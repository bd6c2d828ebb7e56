"""dlsim as people run it: run, compare, traces, generate, policies."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from in_process import in_process
from patience import PATIENCE

from slurm_dl.cli.dlsim.command import main
from slurm_dl.cli.policy_lists import all_policies
from slurm_dl.experiments import grid
from slurm_dl.experiments.grid import Cell, Experiment, Figures, Workload
from slurm_dl.experiments.policy_words import parse_policies
from slurm_dl.experiments.process_pool import WorkFault
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies import registry
from slurm_dl.policies.base import Order
from slurm_dl.policies.las import Las
from slurm_dl.policies.registry import POLICIES
from slurm_dl.simulation.ideal.presets import PRESETS
from slurm_dl.traces import FORMATS, read_trace
from tools.fit_traces import main as fit_traces

Eventually = Callable[..., object]

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "traces"
SIXTY = TRACES / "tiresias" / "60_job.csv"
GAVEL = TRACES / "gavel" / "2869ce.trace"

INTERRUPTIBLE = """
import signal
from slurm_dl.cli.dlsim.command import main
# Tests that run in the background of a shell have it ignored, and would pass that on.
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""

SPREADS = ("jct_s", "queue_s", "wait_s", "slowdown", "bounded_slowdown", "rho")
FIGURES = {
    "jobs", "finished", "completed", "unfair_frac", "jain", "makespan_s", "utilisation_frac",
    "steady_utilisation_frac", "service_gpu_s", "preemptions", "promotions", "gpu_s_lost",
    "gpu_s_lost_by",
    *(f"{how}_{what}" for what in SPREADS for how in ("avg", "median", "p95", "p99", "max")),
}  # fmt: skip


def dlsim(*args: object) -> Result:
    """What ``dlsim ARGS`` prints and how it ends, its output piped."""
    return in_process(main, *args)


def told(path: Path) -> Any:  # noqa: ANN401 - whatever the JSON holds
    """A JSON file without NaN and its like."""

    def refuse(text: str) -> None:
        raise AssertionError(text)

    return json.loads(path.read_text("utf-8"), parse_constant=refuse)


def timeless(value: Any) -> Any:  # noqa: ANN401
    """The same without what differs from run to run."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if k not in {"wall_s", "command", "date"}}
        return {str(k): timeless(v) for k, v in kept.items()}
    return [timeless(v) for v in value] if isinstance(value, list) else value


COMMANDS = ("run", "compare", "traces", "generate", "policies", "whatif", "tune", "history")


def test_every_command_is_listed_and_has_help_with_an_example() -> None:
    """But the one that is for the tasks of an array."""
    listed = dlsim("--help").stdout
    assert "sweep-cell" not in listed
    for command in COMMANDS:
        assert f"\n  {command} " in listed
        result = dlsim(command, "--help")
        assert result.exit_code == 0
        assert f"dlsim {command} " in result.stdout
        assert "Example" in result.stdout


EXAMPLES = re.findall(
    r"^```console\n\$ dlsim (.*)\n((?:.*\n)*?)```$",
    (ROOT / "docs" / "evaluate" / "simulator.md").read_text("utf-8"),
    re.MULTILINE,
)
"""Commands of the user's page, and what they print there."""


HERE = [example for example in EXAMPLES if "--on slurm" not in example[0]]


@pytest.mark.parametrize(("command", "shown"), HERE, ids=[command for command, _ in HERE])
def test_the_page_shows_what_is_printed(
    command: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line, computing time apart; of the long list of policies the first are shown."""
    (tmp_path / "traces").symlink_to(TRACES)
    monkeypatch.chdir(tmp_path)

    result = dlsim(*command.split())

    def lines(text: str) -> list[str]:
        timeless = re.sub(r"(instants in) [\d.]+ s", r"\1 T s", text)
        return [line.rstrip() for line in timeless.strip().splitlines()]

    printed, expected = lines(result.stdout), lines(shown)
    assert printed[: len(expected)] == expected
    assert len(printed) == len(expected) or command == "policies"


# run


def test_run_tells_writes_and_draws(tmp_path: Path) -> None:
    """The table for people, JSON with its keys, a line for each job, three pictures."""
    out, jobs, plots = tmp_path / "out.json", tmp_path / "jobs.csv", tmp_path / "plots"

    result = dlsim(
        "run", SIXTY, "--cluster", "4x4", "--policy", "discrete_las", "-p", "promote_knob=8",
        "--json", out, "--jobs-csv", jobs, "--plots", plots,
    )  # fmt: skip

    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    assert result.stdout.startswith("60_job (tiresias): 60 jobs, 7.4 GPU-hours")
    assert "discrete_las on 4x4, preset none, costs none" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    figures = told(out)
    assert set(figures) == {
        "manifest", "trace", "format", "cluster", "policy", "preset", "parameters", "costs",
        "deadlines", "decisions", "events", "pairs", "seed", "wall_s", "notes", "place",
        "placement", *FIGURES,
    }  # fmt: skip
    assert (figures["jobs"], figures["finished"]) == (60, 60)
    assert figures["parameters"]["promote_knob"] == 8
    with jobs.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 60
    mean_s = sum(float(line["jct_s"]) for line in lines) / 60
    assert figures["avg_jct_s"] == pytest.approx(mean_s)
    assert {p.name for p in plots.iterdir()} >= {"jct.png", "over_time.png"}


PLACED = "run --policy fifo --place "


def profiles_in(folder: Path, text: str, names: str) -> Path:
    """A site's profiles of the models called *names*, each of this text."""
    folder.mkdir(mode=0o700)
    for name in names.split():
        (folder / f"{name}.yaml").write_text(f"name: {name}\n{text}\n", "utf-8")
        (folder / f"{name}.yaml").chmod(0o600)
    return folder


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run --policy nope", "no policy 'nope'"),
        ("run --policy fifo --preset nope", "preset 'nope' is unknown"),
        ("run --policy fifo -p x", "must be key=value"),
        ("run --policy las -p quantum_s=-1", "quantum_s"),
        ("run --policy las -p quantum=1", "did you mean quantum_s?"),
        ("run --policy fifo --costs /nonexistent", "--costs /nonexistent"),
        ("run", "--policy"),
        (f"{PLACED}nope", "--place nope: must be one of best_fit, "),
        (f"{PLACED}best_fit:x=1", "x: unknown key"),
        (f"{PLACED}best_fit:x", "must be NAME or NAME:KEY=VALUE"),
        (f"{PLACED}best_fit:x=1,x=2", "no key twice"),
        (f"{PLACED}consolidate:skew_threshold=2", "from 0 to 1 (got 2.0)"),
        (f"{PLACED}consolidate:skew_threshold=[1", "is no value"),
        (f"{PLACED}best_fit --rule nope", "--rule nope: must be one of"),
        ("run --policy fifo --rule small_apart", "--rule goes with --place"),
        ("run --policy fifo --widths fewest", "--widths goes with --place"),
        (f"{PLACED}none --contention 9", "--contention goes with"),
        *(
            (f"{PLACED}best_fit --contention {link}", "NETWORK or NETWORK:PCIE")
            for link in ("0", "nan", "5:", "inf")
        ),
        (f"{PLACED}best_fit --profiles /nonexistent", "does not exist"),
        ("run --policy fifo_skip --place best_fit --costs slurm", "--place: "),
        ("run --policy las --min-quantum 300", "needs --costs slurm"),
        ("run --policy slurm --costs slurm --min-quantum 3", "nothing to set"),
        ("run --policy las --min-quantum -1", "--min-quantum"),
        ("run --policy las --costs slurm --min-quantum nan", "nan is not a number"),
        ("whatif --min-quantum 300", "needs --costs slurm"),
        ("whatif --costs slurm --min-quantum soon", "--min-quantum 'soon'"),
        ("whatif --costs slurm --min-quantum 1e9", "at most 2592000 seconds"),
        ("compare --policies nope", "no policy 'nope'"),
        ("compare --policies fifo --place nope", "--place nope: must be one of"),
        ("compare --policies fifo --place best_fit --place best_fit", "is given twice"),
        ("compare --policies fifo --place none --rule x", "--rule goes with"),
        ("compare --policies fifo:nope", "preset 'nope' is unknown"),
        ("compare --policies fifo -p x", "must be key=value"),
        ("compare --policies las -p quantum_s=-1", "quantum_s"),
        ("compare --policies las -p quantum=1", "they have dimensions, quantum_s"),
        ("compare --policies fifo --costs /nonexistent", "--costs /nonexistent"),
        ("compare", "what is compared? give --policies"),
        ("compare --policies fifo,fifo", "fifo is given twice"),
        ("compare --policies fifo --loads 0", "--loads: 0 is"),
        ("compare --policies fifo --resamples -1", "--resamples"),
        ("compare --policies fifo --seeds 0", "--seeds"),
        ("compare --policies fifo --seeds 1 --resamples 0", "give --resamples alone"),
        ("compare --policies fifo -j 0", "-j"),
        ("compare --policies fifo --plot x.gif", "--plot x.gif"),
        ("compare --policies fifo --costs none --costs none", "none is given twice"),
        (
            "compare --policies fifo --costs none --costs slurm --loads 1,2 --plot x.png",
            "too much for one picture",
        ),
        ("compare --policies fifo --resume", "--resume is for --on slurm"),
        ("compare --policies fifo --on slurm", "needs --dir"),
        ("compare --policies fifo --on slurm --dir x -j 2", "-j is for --on local"),
        ("compare --on slurm --dir x --resume", "TRACE stands in the folder"),
        ("compare --policies fifo --on slurm --dir x --time 1\x002", "--time: "),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is read or written."""
    monkeypatch.chdir(tmp_path)
    command, *args = (word.replace("\0", "\n") for word in words.split(" "))
    result = dlsim(command, SIXTY, "--cluster", "2x4", *args)

    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""
    assert not list(tmp_path.iterdir())


def test_run_puts_jobs_on_nodes(tmp_path: Path) -> None:
    """The figures of the places are told in words and in JSON; without a scheme they are null."""
    out = tmp_path / "o.json"
    words = ["run", SIXTY, "--cluster", "4x4@2", "--policy", "discrete_las", "--json", out]

    spread = dlsim(*words, "--place", "best_fit", "--rule", "small_apart")
    figures = told(out)
    assert spread.exit_code == 0, spread.stderr
    assert "placed by best_fit, rule small_apart\n" in spread.stdout
    assert re.search(r"speeds of jobs that were spread: .*\b\d+ by skew\n", spread.stdout)
    assert max(map(len, spread.stdout.splitlines())) <= 80
    assert figures["place"] == "best_fit, rule small_apart"
    assert figures["cluster"] == "4x4@2"
    placement = figures["placement"]
    assert placement.keys() == {"mean_nodes", "skewed_spread_frac", "mean_speed", "rungs"}
    assert 1 < placement["mean_nodes"] < 4
    assert 0 < placement["skewed_spread_frac"] < 1
    assert 0.5 < placement["mean_speed"] < 1
    assert figures["gpu_s_lost_by"]["placement"] == pytest.approx(figures["gpu_s_lost"])

    dlsim(*words, "--place", "consolidate:skew_threshold=0,locality_wait_s=7200", "-q")
    together = told(out)
    assert together["placement"]["skewed_spread_frac"] == 0
    assert together["placement"]["mean_speed"] > placement["mean_speed"]
    assert together["avg_queue_s"] > figures["avg_queue_s"]

    dlsim(*words, "--place", "best_fit", "--widths", "fewest", "-q")
    assert told(out)["placement"]["skewed_spread_frac"] == 0
    for none in ([], ["--place", "none"]):
        dlsim(*words, *none, "-q")
        assert (told(out)["place"], told(out)["placement"]) == ("", None)


def test_a_sites_profiles_stand_before_the_shipped_ones(tmp_path: Path) -> None:
    """With next to no skew the models that are skewed are slowed down no more.

    Where a profile says what its jobs send, --contention limits it.
    """
    out = tmp_path / "o.json"

    def placement(*words: object) -> dict[str, Any]:
        ran = ("--cluster", "4x4", "--policy", "discrete_las", "--place", "best_fit", *words)
        result = dlsim("run", SIXTY, *ran, "--json", out, "-q")
        assert result.exit_code == 0, result.stderr
        found: dict[str, Any] = told(out)["placement"]
        return found

    even = profiles_in(tmp_path / "even", "skew: 0.01", "vgg11 vgg16 vgg19 alexnet")
    shipped, ours = placement(), placement("--profiles", even)
    assert shipped["skewed_spread_frac"] > 0
    assert ours["mean_speed"] > shipped["mean_speed"]
    assert ours["skewed_spread_frac"] is None
    busy = profiles_in(
        tmp_path / "busy", "skew: 0.05\nload: {network_mb_s: 500}",
        "resnet50 resnet101 resnet152 inception3 inception4 googlenet",
    )  # fmt: skip
    free, full = (placement("--profiles", busy, "--contention", n) for n in ("100000", "500"))
    assert full["mean_speed"] < free["mean_speed"] - 0.001


# compare


def test_compare_holds_schemes_against_each_other_under_one_policy(tmp_path: Path) -> None:
    """A row for each scheme, a second table of places, and the same figures in JSON and CSV."""
    out, lines = tmp_path / "c.json", tmp_path / "c.csv"
    words = ["compare", SIXTY, "--cluster", "4x4", "--policies", "discrete_las", "--resamples", "1"]
    schemes = ["none", "best_fit", "consolidate:skew_threshold=0,locality_wait_s=7200"]

    result = dlsim(
        *words, *(w for s in schemes for w in ("--place", s)), "--json", out, "--csv", lines
    )

    assert result.exit_code == 0, result.stderr
    printed = result.stdout.splitlines()
    assert max(map(len, printed)) <= 80
    assert "  locality_wait_s=7200" in result.stdout
    assert any(line.startswith("placed") and "queued" not in line for line in printed)
    rows = told(out)["rows"]
    assert [row["policy"] for row in rows] == [
        "discrete_las",
        "discrete_las on best_fit",
        "discrete_las on consolidate:skew_threshold=0,locality_wait_s=7200",
    ]
    assert rows[0]["placement"] is None
    places = [row["placement"] for row in rows[1:]]
    assert places[0]["mean_nodes"] > places[1]["mean_nodes"] >= 1
    assert places[0]["mean_speed"] < places[1]["mean_speed"] <= 1
    assert [p["place"] for p in told(out)["policies"]] == ["", *schemes[1:]]
    queued = [row["figures"]["avg_queue_s"]["mean"] for row in rows]
    assert queued[2] > queued[1]
    with lines.open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [float(line["mean_nodes"] or 0) for line in table[:2]] == [
        0, told(out)["cells"][1]["placement"]["mean_nodes"],
    ]  # fmt: skip
    assert dlsim(*words, "--csv", lines, "-q").exit_code == 0
    assert "mean_nodes" not in lines.read_text("utf-8")


def test_compare_has_a_row_for_each_policy(tmp_path: Path) -> None:
    """The first is the base; the best is marked; 80 columns; JSON, CSV and picture."""
    out, lines, plot = tmp_path / "c.json", tmp_path / "c.csv", tmp_path / "c.svg"

    result = dlsim(
        "compare", SIXTY, "--cluster", "2x4",
        "--policies", "fifo,srtf,discrete_las:voda,discrete_las:tiresias-artifact",
        "--json", out, "--csv", lines, "--plot", plot,
    )  # fmt: skip

    assert result.exit_code == 0, result.stderr
    printed = result.stdout.splitlines()
    assert max(map(len, printed)) <= 80
    rows = {line.split()[0]: line for line in printed if " x" in line or line.startswith("fifo")}
    assert " x" not in rows["fifo"]
    assert "voda" in printed[printed.index(rows["discrete_las:"]) - 1] + result.stdout
    figures = told(out)
    alone = tmp_path / "alone.json"
    dlsim("run", SIXTY, "--cluster", "2x4", "--policy", "srtf", "--json", alone, "-q")
    cell = next(c for c in figures["cells"] if c["policy"] == "srtf")
    assert {k: cell[k] for k in FIGURES} == {k: told(alone)[k] for k in FIGURES}
    row = next(r for r in figures["rows"] if r["policy"] == "srtf")["figures"]["avg_jct_s"]
    first = figures["cells"][0]["avg_jct_s"]
    assert row["mean"] == cell["avg_jct_s"]
    assert row["low"] is row["high"] is None
    assert row["ratio"]["mean"] == pytest.approx(cell["avg_jct_s"] / first)
    best = min(figures["cells"], key=lambda c: c["avg_jct_s"])
    words = rows[best["policy"].partition(":")[0]].split()
    assert words[1].endswith("*")
    assert words[2] == f"x{best['avg_jct_s'] / first:.2f}"
    with lines.open(encoding="utf-8") as file:
        assert [line["preset"] for line in csv.DictReader(file)] == [
            "none", "none", "voda", "tiresias-artifact",
        ]  # fmt: skip
    assert plot.read_text("utf-8").startswith("<?xml")


TINY = """\
job_id,submit_s,duration_s,gpus,user,model,ending
a,0,900,4,ada,,COMPLETED
b,10,60,1,ben,,COMPLETED
c,20,300,8,ada,,COMPLETED
d,30,45,2,ben,,COMPLETED
e,700,20,1,ada,,COMPLETED
"""


class Faulty(Las):
    """A policy with a fault."""

    def order(self, snap: Snapshot, /) -> Order:
        """Divide by zero."""
        raise ZeroDivisionError(str(len(snap.jobs)))


@pytest.mark.parametrize("processes", [1, 2])
def test_compare_of_all_has_both_costs_and_survives_a_fault(
    processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table for each; the policy that fails is told, the others are there; status 1."""
    few = {name: POLICIES[name] for name in ("fifo", "las", "srtf", "discrete_las")}
    # Processes do not see what is patched here: there the fault is one of the name.
    monkeypatch.setattr(registry, "POLICIES", {**few, "faulty": Faulty})
    trace, out, lines = tmp_path / "t.csv", tmp_path / "c.json", tmp_path / "c.csv"
    trace.write_text(TINY, "utf-8")

    result = dlsim(
        *("compare", trace, "--cluster", "1x8", "--policies", "fifo,all", "-j", processes),
        *("--costs", "none", "--costs", "slurm", "--json", out, "--csv", lines),
        *("--plot", tmp_path / "c.png"),
    )

    assert result.exit_code == 1
    assert max(map(len, result.stdout.splitlines())) <= 120
    for costs in ("none", "slurm"):
        assert f"\non 1x8, costs {costs}\n" in result.stdout
        assert f"dlsim compare: costs {costs}, faulty, load 1, resample 0: " in result.stderr
        assert f"failed: costs {costs}, faulty, load 1" in result.stdout
    wanted = ["fifo", "discrete_las", "las", "srtf"]
    figures = told(out)
    ran = [(cell["policy"], cell["costs"]) for cell in figures["cells"]]
    assert ran == [(label, costs) for costs in ("none", "slurm") for label in wanted]
    assert [(f["policy"], f["costs"]) for f in figures["failed"]] == [
        ("faulty", "none"), ("faulty", "slurm"),
    ]  # fmt: skip
    with lines.open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [(line["policy"], line["costs"]) for line in table] == ran
    for line, cell in zip(table, figures["cells"], strict=True):
        for name in ("avg_jct_s", "p95_jct_s", "max_rho", "jain", "makespan_s", "preemptions"):
            assert float(line[name]) == cell[name], name
        assert cell["finished"] == 5
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_compare_of_every_policy_there_is_runs_each_of_them(tmp_path: Path) -> None:
    """Nothing that is registered is left out, fails, or leaves a job behind."""
    trace, out = tmp_path / "t.csv", tmp_path / "c.json"
    trace.write_text(TINY, "utf-8")

    result = dlsim("compare", trace, "--cluster", "1x8", "--policies", "all", "--json", out, "-q")

    assert result.exit_code == 0, result.stderr
    rows = told(out)["rows"]
    assert sorted(row["policy"].partition(":")[0] for row in rows) == list(registry.names())
    assert told(out)["refused"] == told(out)["failed"] == []


def test_compare_over_loads_and_resamples_is_the_same_in_processes(tmp_path: Path) -> None:
    """-j changes nothing but the time; the interval is printed; a picture over the loads."""
    words = ["compare", SIXTY, "--cluster", "2x4", "--policies", "fifo,las", "--loads", "1,2"]
    words += ["--resamples", "2", "-p", "quantum_s=100"]
    plot = tmp_path / "c.png"

    one = dlsim(*words, "--json", tmp_path / "1.json", "--plot", plot)
    words[words.index("--resamples")] = "--seeds"
    words[words.index("2")] = "3"
    two = dlsim(*words, "--json", tmp_path / "2.json", "-j", "2")

    assert (one.exit_code, two.exit_code) == (0, 0), one.stderr + two.stderr
    assert one.stdout == two.stdout
    assert max(map(len, one.stdout.splitlines())) <= 80
    assert timeless(told(tmp_path / "1.json")) == timeless(told(tmp_path / "2.json"))
    assert "load 2: jobs arrive 2 times as fast" in one.stdout
    assert "ranges: 95 %, by 2 resamples of the trace: 10 blocks" in one.stdout
    assert "las: quantum_s 100" in one.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert not multiprocessing.active_children()


def test_jobs_that_did_not_finish_are_told_and_end_with_1() -> None:
    """No figure of a comparison is the best then: a mean over fewer jobs is another figure."""
    alone = dlsim("run", SIXTY, "--cluster", "1x1", "--policy", "srtf", "-q")
    assert (alone.exit_code, alone.stdout) == (1, "")
    assert "jobs did not finish: " in alone.stderr
    assert "30 ask for more than the 1 GPUs there are\n" in alone.stderr

    words = ["compare", SIXTY, "--policies", "fifo_skip,srtf", "--resamples", "1", "--cluster"]
    result, whole = dlsim(*words, "1x2"), dlsim(*words, "2x4")
    assert (result.exit_code, whole.exit_code) == (1, 0)
    lines = result.stderr.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("dlsim compare: fifo_skip, load 1, resample 0: ")
    assert all("want more than the 2 GPUs there are" in line for line in lines)
    assert "finished" in result.stdout
    best = re.compile(r"\d\* .* to ")
    assert [bool(best.search(r.stdout)) for r in (result, whole)] == [False, True]


ON_SLURM = ("compare", "--on", "slurm", "--dir")


def swept(folder: Path, tasks: int) -> Result:
    """What is gathered once the tasks of the array have run."""
    for task in range(tasks):
        assert dlsim("sweep-cell", folder, task).exit_code == 0
    gathered = dlsim(*ON_SLURM, folder, "--resume")
    assert gathered.exit_code == 0, gathered.stderr
    assert dlsim("sweep-cell", folder, tasks).exit_code == 2
    return gathered


def test_a_sweep_on_slurm_is_gathered_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks compute what is computed here; that Slurm is away is said, the folder stays."""
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = tmp_path / "sweep"
    absent = dlsim(*ON_SLURM, tmp_path, "--resume")
    assert absent.exit_code == 2
    assert f"{tmp_path}/experiment.json: No such file" in absent.stderr
    words = ["compare", SIXTY, "--cluster", "2x4", "--policies", "fifo,srtf", "--resamples", "1"]
    words += ["--seed", "7", "--estimate-error", "0.5"]
    away = dlsim(*words, "--on", "slurm", "--dir", folder)
    assert away.exit_code == 1
    assert re.search("sbatch .*not in PATH", away.stderr)
    assert "holds a sweep already" in dlsim(*words, "--on", "slurm", "--dir", folder).stderr

    assert swept(folder, 4).stdout == dlsim(*words).stdout
    for option, value in (("--place", "best_fit"), ("--seed", "7"), ("--seeds", "2")):
        again = dlsim(*ON_SLURM, folder, "--resume", option, value)
        assert again.exit_code == 2
        assert f"{option} stands in the folder" in again.stderr


# Processes

EXPERIMENT = Experiment(workloads={"": Workload(cluster="2x4", trace=read_trace(SIXTY))})
CELLS = grid.product(
    parse_policies("fifo,las,discrete_las:voda", {}), loads=(1.0, 2.0), resamples=1
)
Found = dict[Cell, Figures | WorkFault]


def ran(**more: Any) -> Found:  # noqa: ANN401 - of `grid.run`
    """The figures of all `CELLS`."""
    return dict(grid.run(EXPERIMENT, CELLS, grid.figures_of, **more))


def test_results_are_the_same_however_many_processes_make_them() -> None:
    """Figure for figure."""
    assert timeless(ran(processes=3)) == timeless(ran())
    assert not multiprocessing.active_children()


def test_what_is_done_is_kept_when_a_process_is_killed(tmp_path: Path) -> None:
    """As when memory runs out: the simulations that are left fail, each told with its cell.

    A fault in a process is told as it is here.
    """
    found: Found = {}
    for cell, value in grid.run(EXPERIMENT, CELLS, grid.figures_of, processes=2):
        found[cell] = value
        if len(found) == 2:
            for child in multiprocessing.active_children():
                child.kill()

    faults = {cell: v for cell, v in found.items() if isinstance(v, WorkFault)}
    assert {"killed (out of memory?)" in fault.why for fault in faults.values()} == {True}
    assert all(fault.why.startswith(f"{cell}: ") for cell, fault in faults.items())
    assert 2 <= len(found) - len(faults) < len(CELLS)
    whole = ran()
    for cell in set(found) - set(faults):
        assert timeless(found[cell]) == timeless(whole[cell])
    assert not multiprocessing.active_children()
    gone = grid.product(parse_policies("fifo,las", {}), costs=(str(tmp_path / "gone.json"),))
    for processes in (1, 2):
        for cell, fault in grid.run(EXPERIMENT, gone, grid.figures_of, processes=processes):
            assert fault.why.startswith(f"{cell}: --costs {tmp_path / 'gone.json'}")


@pytest.mark.parametrize("name", ["compare", "whatif"])
def test_an_interrupt_ends_the_processes(eventually: Eventually, name: str) -> None:
    """Ctrl-C, which the terminal sends to all of them: one line, status 1, nobody left."""
    philly = TRACES / "philly" / "philly.csv.gz"
    words = [name, philly, "--cluster", "64x8", "--policies", "las,srtf", "-j", "2"]
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def workers() -> set[int]:
        """Processes of its session that have read the trace and are at work, and itself."""
        return {pid for pid in session(process.pid) if "spawn_main" in command_line(pid)}

    try:
        eventually(lambda: len(workers()) == 2, 60.0, what="two processes")
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30 * PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    assert (process.returncode, out, err.split()) == (1, "", ["dlsim:", "stopped"])
    eventually(lambda: not session(process.pid), 10.0, what="all processes to be gone")


def session(leader: int) -> set[int]:
    """The processes of a session, from /proc."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(after_name[3]) == leader and after_name[0] != "Z":
            found.add(int(stat.parent.name))
    return found


def command_line(pid: int) -> str:
    """What a process was started as; empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


# traces


def test_traces_tells_what_is_in_a_trace_and_what_was_left_out() -> None:
    """In words, and in JSON with its keys."""
    result = dlsim("traces", GAVEL)
    summary = json.loads(dlsim("traces", GAVEL, "--json").stdout)

    assert result.exit_code == 0
    assert "jobs       354" in result.stdout
    assert "  179: no measured speed for this model" in result.stdout
    assert f"{GAVEL}:2: the speed of" in result.stdout
    assert set(summary) == {
        "name", "format", "jobs", "gpu_hours", "span_s", "mean_gpus", "users", "models",
        "duration_s", "jobs_by_gpus", "endings", "lines_left_out", "left_out",
    }  # fmt: skip
    trace = read_trace(GAVEL)
    assert summary["jobs"] == len(trace) == 354
    assert summary["gpu_hours"] == pytest.approx(trace.gpu_s / 3600)
    assert summary["mean_gpus"] == pytest.approx(trace.gpu_s / summary["span_s"])
    assert summary["lines_left_out"] == 179
    assert len(summary["left_out"][0]["examples"]) == 3
    assert summary["duration_s"]["0.5"] == pytest.approx(float(np.median(trace.duration_s)))


def test_run_counts_what_is_left_out_and_reads_tables_by_their_columns(tmp_path: Path) -> None:
    """The jobs of a file are those that ran and those that are counted as left out."""
    mine, out, at = tmp_path / "mine.csv", tmp_path / "out.json", ("--cluster", "8x8", "-q")
    mine.write_text("#GPU;Submit;Run\n1;2026-01-01;60\n1;2026-01-02;no\n")
    columns = ("--columns", "gpus=#gpu,submit_s=Submit,duration_s=Run")

    ran = dlsim("run", GAVEL, *at, "--policy", "fifo", "--json", out)
    left_out = told(out)["manifest"]["workloads"][0]["left_out"]
    both = dlsim("run", mine, *at, "--policy", "fifo", "--format", "itp", *columns)

    assert (ran.exit_code, both.exit_code) == (0, 2)
    assert told(out)["jobs"] + left_out["lines"] == len(GAVEL.read_text().splitlines()) == 533
    assert list(left_out["by_reason"].values()) == [179]
    assert len(left_out["examples"]) == 3
    assert dlsim("run", mine, *at, "--policy", "fifo", "--json", out, *columns).exit_code == 0
    (workload,) = told(out)["manifest"]["workloads"]
    assert workload["left_out"]["by_reason"] == {"not a number": 1}
    made = ("--jobs", "9", "--load", "0.5", "--cluster", "2x2", "--out", tmp_path / "made.csv")
    assert dlsim("generate", "--like", mine, *columns, *made).exit_code == 0
    form = json.loads(dlsim("traces", mine, "--json", *columns).stdout)["format"]
    assert form == f"columns:{columns[1]}"


def test_traces_lists_the_formats_and_refuses_what_is_none() -> None:
    """Jobs that all come at once have no demand: no division by 0, no Infinity in JSON."""
    words = dlsim("traces", "--formats").stdout
    known = json.loads(dlsim("traces", "--formats", "--json").stdout)["formats"]
    assert [line.split()[0] for line in words.splitlines()] == list(FORMATS)
    assert {k["name"]: k["about"] for k in known} == {f.name: f.about for f in FORMATS.values()}

    path = TRACES / "muri" / "trace1_pr.csv"
    assert "all jobs come at once" in dlsim("traces", path).stdout
    assert json.loads(dlsim("traces", path, "--json").stdout)["mean_gpus"] is None

    refused: list[tuple[list[object], str]] = [
        ([], "give a TRACE, or --formats alone"),
        ([SIXTY, "--formats"], "give a TRACE, or --formats alone"),
        (["/nonexistent"], "does not exist"),
        ([SIXTY, "--format", "nope"], "trace format 'nope' is unknown"),
        ([ROOT / "LICENSE"], "begins like no format that is known"),
    ]
    for args, said in refused:
        result = dlsim("traces", *args)
        assert result.exit_code == 2
        assert said in result.stderr


# generate


def test_generate_writes_a_trace_that_can_be_run(tmp_path: Path) -> None:
    """As many jobs, at that load, the same for the same seed; and how well the fit fits."""
    words = ["generate", "--like", "philly", "--jobs", "500", "--load", "0.5", "--cluster", "8x8"]
    first, second, third = (tmp_path / f"{name}.csv" for name in "abc")

    result = dlsim(*words, "--arrivals", "diurnal", "--seed", "3", "--out", first)
    dlsim(*words, "--arrivals", "diurnal", "--seed", "3", "--out", second)
    other = json.loads(
        dlsim(*words, "--arrivals", "diurnal", "--seed", "4", "--out", third, "--json").stdout
    )

    assert result.exit_code == 0, result.stderr
    assert "fit of Philly (82,247 jobs)" in result.stdout
    assert "  1            76,627   0.015" in result.stdout
    assert first.read_bytes() == second.read_bytes() != third.read_bytes()
    trace = read_trace(first)
    assert (trace.format, len(trace)) == ("slurm_dl", 500)
    assert set(other) == {"out", "offered_load", "fit", "trace"}
    assert other["trace"]["jobs"] == 500
    made = read_trace(third)
    span_s = float(made.submit_s[-1] - made.submit_s[0])
    assert other["offered_load"] == pytest.approx(made.gpu_s / span_s / 64)
    assert [c["ks"] < 0.05 for c in other["fit"]["classes"]] == [True] * 4
    assert dlsim("run", first, "--cluster", "8x8", "--policy", "srtf", "-q").exit_code == 0


def test_generate_after_a_trace_or_a_fit_of_it(tmp_path: Path) -> None:
    """Both are the same workload; one job alone has no load."""
    words = ["generate", "--load", "1", "--cluster", "8x8", "--jobs"]
    trace, fit = TRACES / "tiresias-derived" / "itp10.csv", tmp_path / "fit.json"
    fit_traces([str(trace), "--out", str(fit)])

    one = dlsim(*words, 50, "--like", trace, "--out", tmp_path / "a.csv")
    two = dlsim(*words, 50, "--like", fit, "--out", tmp_path / "b.csv")

    assert (one.exit_code, two.exit_code) == (0, 0), one.stderr + two.stderr
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    single = dlsim(*words, 1, "--like", "itp", "--out", tmp_path / "c.csv", "--json")
    assert json.loads(single.stdout)["offered_load"] is None


def test_what_cannot_be_generated_is_refused(tmp_path: Path) -> None:
    sound = {"--like": "itp", "--jobs": "5", "--load": "1", "--cluster": "8x8"}
    sound["--out"] = str(tmp_path / "a.csv")
    for option, value, said in (
        ("--like", "nope", "--like nope: must be philly, itp or a file"),
        ("--like", str(ROOT / "LICENSE"), "begins like no format"),
        ("--load", "0", "--load"),
        ("--load", "5000", "load must be 0.001 to 1000"),
        ("--jobs", "0", "--jobs"),
        ("--cluster", "8by8", "is not NODESxGPUS"),
        ("--out", "/nonexistent/x.csv", "/nonexistent/x.csv: cannot be written"),
    ):
        words = {**sound, option: value}
        result = dlsim("generate", *(part for pair in words.items() for part in pair))
        assert result.exit_code == 2
        assert said in result.stderr
        assert not list(tmp_path.iterdir())


# policies


def test_policies_lists_all_with_parameters_and_presets() -> None:
    """Every policy and preset; where each runs, and each parameter's default, unit and meaning."""
    words = dlsim("policies")
    known = json.loads(dlsim("policies", "--json").stdout)

    assert words.exit_code == 0
    assert max(map(len, words.stdout.splitlines())) <= 80
    assert known["policies"] == all_policies()
    assert [p["name"] for p in known["presets"]] == list(PRESETS)
    assert all(f"\n{name}: " in words.stdout for name in PRESETS)
    by_name = {p["name"]: p for p in known["policies"]}
    assert all(f"{name}  (" in words.stdout for name in registry.names())
    las = by_name["discrete_las"]
    assert (las["tiers"], las["preempts"], las["on_slurm"]) == (4, "tier", True)
    assert las["parameters"][0]["default"] == [3250, 7200, 18000]
    assert las["parameters"][0]["unit"] == "GPU-seconds"
    assert las["parameters"][1]["unit"] is None
    assert by_name["las"]["parameters"][1]["unit"] == "seconds"
    lucid = next(p for p in known["presets"] if p["name"] == "lucid")
    assert lucid["readings"]["discrete_las"]["parameters"] == {"thresholds_gpu_s": [18000]}
    assert (lucid["round_s"], lucid["large_gpus"]) == (60, 8)
