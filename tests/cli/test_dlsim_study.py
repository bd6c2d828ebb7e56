"""dlsim study default: kept, taken up again, the workloads of dlsim compare; made names of jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from in_process import in_process

from slurm_dl.cli.dlsim.command import main
from slurm_dl.experiments import study as studies
from slurm_dl.experiments.grid import Cell, Experiment, Simulated
from slurm_dl.model.trace import Trace
from slurm_dl.policies import registry
from slurm_dl.traces import read_trace
from slurm_dl.traces.workload_generator import with_tags

TRACES = Path(__file__).parents[2] / "traces"
SIXTY = TRACES / "tiresias" / "60_job.csv"


def dlsim(*args: object) -> Result:
    """What ``dlsim ARGS`` prints and how it ends."""
    return in_process(main, *args)


def study(directory: Path, *args: object) -> Result:
    """A study of 60 jobs."""
    where = ("--dir", directory, "--traces-dir", TRACES, "--trace", "60_job")
    return dlsim("study", "default", *where, *args)


FEW = (
    *("--policies", "las,srsf,fifo_skip", "--costs", "none", "--costs", "180.0"),
    *("--resamples", 1),
)
"""Four policies, with the one that others are held against: 16 cells."""


def cells_of(path: Path) -> list[dict[str, Any]]:
    """The cells in what ``--json`` wrote."""
    cells: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cells"]
    return cells


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], dict[int, BaseException]]:
    """The cells that are run, and what to raise in place of the one with a number."""
    ran: list[str] = []
    raised: dict[int, BaseException] = {}
    real = Experiment.simulate

    def simulate(whole: Experiment, cell: Cell, progress: Callable[[float], None]) -> Simulated:
        if len(ran) in raised:
            raise raised.pop(len(ran))
        ran.append(str(cell))
        return real(whole, cell, progress)

    monkeypatch.setattr(Experiment, "simulate", simulate)
    return ran, raised


@pytest.mark.parametrize(
    ("stop", "said", "kept"),
    [(KeyboardInterrupt(), "1/2", 9), (ZeroDivisionError("a fault"), "a fault", 15)],
)
def test_a_study_that_was_stopped_is_taken_up_where_it_was(
    stop: BaseException,
    said: str,
    kept: int,
    tmp_path: Path,
    counted: tuple[list[str], dict[int, BaseException]],
) -> None:
    """What is done is kept and shown; the second call runs the rest and ends as if unstopped.

    A folder with figures of another version is refused, and says of what it is.
    """
    ran, raised = counted
    raised[9] = stop
    cut, whole = tmp_path / "cut", tmp_path / "whole"

    first = study(cut, *FEW)
    assert (first.exit_code, len(ran)) == (1, kept)
    assert said in first.stdout + first.stderr
    second = study(cut, *FEW)
    assert len(ran) == 16
    third = study(cut, *FEW, "--show")
    assert len(ran) == 16
    assert second.exit_code == third.exit_code == 0, second.stderr
    assert second.stdout == third.stdout == study(whole, *FEW).stdout
    assert len(ran) == 32
    assert study(whole, *FEW[:-2], "--seeds", 3, "-q").stdout == ""
    assert len(ran) == 40

    mark = cut / "versions.json"
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "slurm_dl": "0.0.1"}))
    result = study(cut, *FEW)
    assert (result.exit_code, "slurm_dl 0.0.1" in result.stderr) == (2, True)


@pytest.mark.parametrize("processes", [1, 2])
def test_the_workloads_are_those_of_compare(processes: int, tmp_path: Path) -> None:
    """Figure by figure and resample by resample, with made names too; and ratios are to these."""
    ours, theirs = tmp_path / "ours.json", tmp_path / "theirs.json"
    mean_s = set()
    for tags in ("none", "0.3"):
        words = ("--policies", "srsf,discrete_las,tagged", "--resamples", 2, "--tags", tags)
        words = (*words, "--costs", "none", "-q")
        compared = dlsim("compare", SIXTY, "--cluster", "4x4", *words, "--json", theirs)
        result = study(tmp_path / "dir", *words, "--json", ours, "-j", processes)
        assert (compared.exit_code, result.exit_code) == (0, 0), result.stderr
        told = {(c["policy"], c["resample"]): c for c in cells_of(ours)}
        for cell in cells_of(theirs):
            same = told[cell["policy"], cell["resample"]]
            for name in ("avg_jct_s", "p99_jct_s", "max_jct_s", "preemptions", "gpu_s_lost"):
                assert same[name] == cell[name], (cell["policy"], cell["resample"], name)
        mean_s.add(told["tagged", 0]["avg_jct_s"])
    assert len(mean_s) == 2
    rows = {row["policy"]: row for row in json.loads(ours.read_text("utf-8"))["rows"]}
    ratios = [told["tagged", k]["avg_jct_s"] / told["srsf", k]["avg_jct_s"] for k in range(3)]
    assert rows["tagged"]["jct"]["value"] == pytest.approx(ratios[0])
    assert rows["tagged"]["jct"]["mean"] == pytest.approx(np.mean(ratios[1:]))
    assert rows["tagged"]["tags"] == "0.3"
    assert rows["srsf"]["tags"] == "none"


@pytest.mark.full("simulates for a minute")
def test_only_policies_told_run_times_go_by_them(tmp_path: Path) -> None:
    """Run times that are foreseen wrongly change nothing for those that a study runs unasked."""
    names = ",".join(registry.names())
    mean_s = []
    for error in (0, 3):
        out = tmp_path / f"{error}.json"
        words = ("--policies", f"{names},gittins:whole-trace", "--estimate-error", error)
        dlsim("compare", SIXTY, "--cluster", "4x2", *words, "--json", out, "-q")
        mean_s.append({cell["policy"]: cell["avg_jct_s"] for cell in cells_of(out)})
    moved = {policy for policy, value in mean_s[0].items() if mean_s[1][policy] != value}

    assert {"srsf", "easy_backfill", "gavel_sjf"} <= moved
    assert not {policy for policy in moved if not studies.knows_run_times(policy)}
    others = {"gittins:whole-trace", "elas", "slurm"}
    assert {policy for policy in others if studies.knows_run_times(policy)} == others
    default = studies.default_policies()
    reference = {"srsf", "easy_backfill", "gittins:whole-trace", "slurm"}
    assert {policy for policy in default if studies.knows_run_times(policy)} == reference
    assert set(registry.names()) < set(studies.all_policies())


def test_what_people_look_at_first_is_run_first() -> None:
    """The main traces and policies as they are, then their resamples, then all else."""
    keys = studies.keys_of(studies.TRACES, studies.default_policies(), ("none", "slurm"), ("none",))
    order = studies.in_order(keys, 1)
    main = [
        pair
        for pair in order
        if pair[0].trace.name in studies.FIRST_TRACES and pair[0].policy in studies.FIRST_POLICIES
    ]

    assert list(order[: len(main)]) == main
    assert [k for _, k in main] == sorted(k for _, k in main)
    assert order[0][0].trace.name == "itp10"
    assert {key.costs for key in keys if key.policy == "slurm"} == {"slurm"}


def within(trace: Trace) -> float:
    """Standard deviation of the logarithm of the run time within the names of *trace*."""
    logs = np.log(trace.duration_s)
    of_names = [logs[trace.model == name] for name in range(len(trace.models))]
    squares = sum(float(((x - x.mean()) ** 2).sum()) for x in of_names)
    return (squares / sum(len(x) - 1 for x in of_names)) ** 0.5


@pytest.mark.parametrize(
    ("name", "log_sd"), [("itp06", 0.4), ("itp06", 0.7), ("itp06", 1.0), ("itp03", 0.7)]
)
def test_made_names_tell_as_much_as_was_asked_for(name: str, log_sd: float) -> None:
    """Within a name run times spread so much, and all jobs of it have one size."""
    trace = read_trace(TRACES / "tiresias-derived" / f"{name}.csv", None)

    named = with_tags(trace, log_sd=log_sd)

    assert within(named) == pytest.approx(log_sd, rel=0.1)
    sizes: Sequence[set[float]] = [
        set(named.gpus[named.model == i].tolist()) for i in range(len(named.models))
    ]
    assert {len(of_name) for of_name in sizes} == {1}
    assert max(np.bincount(named.model)) == 20
    again, other = with_tags(trace, log_sd=log_sd), with_tags(trace, log_sd=log_sd, seed=1)
    assert np.array_equal(again.model, named.model)
    assert not np.array_equal(other.model, named.model)
