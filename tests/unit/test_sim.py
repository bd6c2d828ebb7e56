"""`slurm_dl.sim`: the figures of the commands, in a script; and docs/evaluate/python.md."""

from __future__ import annotations

import csv
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from in_process import in_process
from patience import PATIENCE
from third_party import EXAMPLE, ROOT

from slurm_dl import sim
from slurm_dl.cli.dlsim.command import main
from slurm_dl.policies import registry
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.las import Las

SIXTY = ROOT / "traces" / "tiresias" / "60_job.csv"
SMALL = f"{EXAMPLE}/small_first.py:SmallFirst"


def without_wall(told: Mapping[str, Any]) -> dict[str, Any]:
    """*told* without what differs from run to run."""
    cells = [{k: v for k, v in cell.items() if k != "wall_s"} for cell in told.get("cells", ())]
    kept = {k: v for k, v in told.items() if k not in {"wall_s", "manifest"}}
    return kept | ({"cells": cells} if cells else {})


@pytest.mark.parametrize(
    ("policy", "more", "options"),
    [
        ("fifo", {}, ()),
        ("discrete_las:tiresias-artifact", {}, ("--preset", "tiresias-artifact")),
        (SMALL, {"parameters": {"small_gpus": 1}}, ("-p", "small_gpus=1")),
        ("slurm", {"costs": "slurm", "seed": 3}, ("--costs", "slurm", "--seed", 3)),
        ("las", {"place": "consolidate"}, ("--place", "consolidate")),
    ],
)
def test_simulate_has_the_figures_of_run(
    policy: str, more: dict[str, Any], options: tuple[object, ...], tmp_path: Path
) -> None:
    """Value by value; and the jobs, as they stand in the CSV."""
    out, jobs = tmp_path / "out.json", tmp_path / "jobs.csv"
    name = policy.partition(":")[0] if "--preset" in options else policy
    given = ("run", SIXTY, "--cluster", "4x4", "--policy", name, "-q", *options)
    done = in_process(main, *map(str, (*given, "--json", out, "--jobs-csv", jobs)))
    assert done.exit_code == 0, done.output

    result = sim.simulate(SIXTY, policy, "4x4", **more)

    assert without_wall(result.figures) == without_wall(json.loads(out.read_text("utf-8")))
    rows = [*csv.DictReader(jobs.read_text("utf-8").splitlines())]
    assert [*rows[0]] == [*result.jobs]
    assert [float(row["jct_s"]) for row in rows] == pytest.approx(result.jobs["jct_s"])
    assert result.label.partition(":")[0] in repr(result)


def test_compare_has_the_figures_of_compare(tmp_path: Path) -> None:
    """Also with processes; a class or an instance has the figures of its name."""
    out = tmp_path / "out.json"
    words = ("compare", SIXTY, "--cluster", "4x4", "--policies", f"discrete_las,{SMALL}", "-q")
    done = in_process(main, *map(str, (*words, "--loads", "1,2", "--resamples", 1, "--json", out)))
    assert done.exit_code == 0, done.output
    told = without_wall(json.loads(out.read_text("utf-8")))
    trace = sim.read(SIXTY)
    varied = {"loads": [1, 2], "resamples": 1}

    by_name = sim.compare(trace, ["discrete_las", SMALL], "4x4", processes=2, **varied)
    objects = [DiscreteLas, registry.find(SMALL)()]
    by_object = sim.compare(trace, objects, "4x4", **varied)

    assert without_wall(by_name.data) == told
    assert by_name.figures == told["rows"]
    values = [[row["figures"] for row in one.figures] for one in (by_name, by_object)]
    assert values[0] == values[1]
    assert [row["policy"] for row in by_object.figures[:2]] == ["discrete_las", "small_first"]
    assert repr(by_name).count("\n") == 4


def test_the_seed_of_compare_is_that_of_simulate() -> None:
    """Its rows are shown by the trace's own figures, whatever the resamples."""
    drawn = sim.compare(SIXTY, "fifo", "4x4", costs="slurm", resamples=1, seed=3)
    alone = sim.simulate(SIXTY, "fifo", "4x4", costs="slurm", seed=3)
    other = sim.simulate(SIXTY, "fifo", "4x4", costs="slurm", seed=4)

    assert drawn.data["resamples"] == 1
    assert [cell["resample"] for cell in drawn.cells] == [0, 1]
    own = drawn.cells[0]["avg_jct_s"]
    assert own == alone.figures["avg_jct_s"] != other.figures["avg_jct_s"]
    assert f"avg_jct_s {own:.4g}" in repr(drawn)


def test_a_class_and_its_name_have_the_same_notes() -> None:
    """Which speeds of GPU types were used stands there."""
    types = "2x8:v100,2x8:k80"
    notes = [sim.simulate(SIXTY, one, types).figures["notes"] for one in ("las", Las)]

    assert notes[0] == notes[1] != []


@pytest.mark.parametrize(
    ("call", "given", "kind"),
    [
        (sim.read, {"path": 3}, TypeError),
        (sim.simulate, {"trace": 5}, TypeError),
        (sim.simulate, {"cluster": 44}, TypeError),
        (sim.simulate, {"costs": 180}, TypeError),
        (sim.simulate, {"parameters": {1: 2}}, TypeError),
        (sim.simulate, {"seed": -1}, ValueError),
        (sim.compare, {"policies": 5}, TypeError),
        (sim.compare, {"costs": ["none", 5]}, TypeError),
        (sim.compare, {"loads": "1"}, TypeError),
        (sim.compare, {"loads": 1}, TypeError),
        (sim.compare, {"resamples": 1.5}, TypeError),
        (sim.compare, {"processes": 0}, ValueError),
        (sim.to_dataframe, {"result": 5}, TypeError),
    ],
)
def test_an_odd_argument_is_named(
    call: Callable[..., object], given: dict[str, object], kind: type[Exception]
) -> None:
    usual = {"trace": SIXTY, "cluster": "4x4", "policy": "fifo", "policies": "fifo"}
    names = inspect.signature(call).parameters
    with pytest.raises(kind, match=rf"{next(iter(given))}: must be "):
        call(**{name: value for name, value in usual.items() if name in names} | given)


SCRIPT = """
from slurm_dl import sim
from slurm_dl.policies.fifo import FifoSkip
class Mine(FifoSkip):
    pass
def work():
    print("begun")
    policies = ["fifo", {policy}]
    print(len(sim.compare({trace!r}, policies, "4x4", resamples=1, processes=2).cells))
{guard}
    work()
"""


@pytest.mark.parametrize(
    ("guard", "policy", "end"),
    [
        ("if __name__ == '__main__':", "FifoSkip", "begun\n4\n"),
        ("if True:", "Mine", "put it into a file and name it 'FILE.py:CLASS', or use one process"),
    ],
)
def test_a_plain_script_may_use_processes(
    guard: str, policy: str, end: str, tmp_path: Path
) -> None:
    """Guarded or, as the page's, not; of its own classes none can go there."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(guard=guard, policy=policy, trace=str(SIXTY)), "utf-8")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60 * PATIENCE, check=False
    )

    assert end in done.stdout + done.stderr
    assert done.stdout.count("begun") == 1


@pytest.mark.parametrize(
    ("installed", "library", "found"),
    [
        ((), None, "pip install pandas"),
        (("pandas",), "polars", "pip install polars"),
        (("polars",), None, "polars"),
        (("pandas", "polars"), None, "pandas"),
        (("pandas", "polars"), "polars", "polars"),
    ],
)
def test_a_table_is_of_the_library_that_is_there(
    installed: tuple[str, ...],
    library: Any,  # noqa: ANN401
    found: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row for each job, or for each cell; without one it is said what to install."""
    for name in ("pandas", "polars"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(ROOT)])
    for name in installed:
        code = f"class DataFrame(dict):\n    library = {name!r}\n"
        (tmp_path / f"{name}.py").write_text(code, "utf-8")
    one = sim.simulate(SIXTY, "fifo", "4x4")
    both = sim.compare(SIXTY, "fifo,las", "4x4")

    if "pip" in found:
        with pytest.raises(ImportError, match=found):
            sim.to_dataframe(one, library)
        return
    tables = [sim.to_dataframe(result, library) for result in (one, both)]

    for name in installed:
        sys.modules.pop(name, None)
    assert {table.library for table in tables} == {found}
    assert len(tables[0]["jct_s"]) == 60
    assert tables[1]["policy"] == ["fifo", "las"]


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    """Block after block, as a script without a guard, in a checkout, with a stand-in for pandas."""
    page = (ROOT / "docs" / "evaluate" / "python.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "pandas.py").write_text("DataFrame = dict\n", "utf-8")
    (tmp_path / "script.py").write_text("".join(blocks), "utf-8")

    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120 * PATIENCE,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert len(blocks) == 3
    assert done.stdout.count("<Simulation discrete_las: avg_jct_s ") == 1
    assert "small_first.py:SmallFirst 1.5 " in done.stdout
