"""The manifest that every output of a simulation carries, and simulations kept in a folder."""

from __future__ import annotations

import csv
import gzip
import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result
from in_process import in_process
from PIL import Image

from slurm_dl.cli.dlsim.command import main
from slurm_dl.cli.dlsim.experiment_commands import compare_command, run_command
from slurm_dl.traces.formats.gavel_shockwave import TABLE

TRACE = Path(__file__).parents[2] / "traces" / "tiresias" / "60_job.csv"
RATES = str(TABLE)
POLICY = {"run": "--policy", "compare": "--policies"}
OUTPUTS = {
    "json_path", "csv_path", "plots_dir", "plot_path", "by", "quiet", "directory", "processes",
    "where", "resume", "partition", "time_limit", "array_limit", "within_s", "format_name",
}  # fmt: skip
"""Options that no figure depends on."""

INPUTS = {
    "trace": None,
    "columns": None,
    "models": None,
    "cluster": ("--cluster", "8x4"),
    "costs": ("--costs", "30"),
    "seed": ("--seed", "7"),
    "policy": ("--policy", "fifo"),
    "policies": ("--policies", "fifo"),
    "preset": ("--preset", "tiresias-corrected"),
    "parameters": ("-p", "promote_knob=8"),
    "min_quantum_s": ("--costs", "slurm", "--min-quantum", "60"),
    "tags": ("--tags", "0.7"),
    "node_failures": ("--costs", "slurm", "--node-failures", "90:4"),
    "places": ("--place", "best_fit"),
    "rules": ("--place", "best_fit", "--rule", "small_apart"),
    "profiles": ("--place", "best_fit", "--profiles", "."),
    "widths": ("--place", "best_fit", "--widths", "fewest"),
    "contention": ("--place", "best_fit", "--contention", "1250"),
    "gpu_speed": ("--cluster", "4x4:v100,4x4:k80", "--gpu-speed", "v100=4"),
    "estimate_error": ("--estimate-error", "0.5"),
    "due": ("--due", "0.3:1.5"),
    "elastic": ("--elastic", "0.4"),
    "expand": ("--elastic", "0.4", "--expand"),
    "steadiness": ("--steadiness", "2"),
    "pairs": ("--pairs", "mps"),
    "loads": ("--loads", "1,2"),
    "resamples": ("--resamples", "2"),
    "seeds": ("--seeds", "2"),
    "block_days": ("--block-days", "2"),
    "rates": ("--cluster", "4x4:v100,4x4:k80", "--rates", RATES),
}


def dlsim(*args: object) -> Result:
    done = in_process(main, *args)
    assert done.exit_code == 0, done.output
    return done


def manifest_of(path: Path) -> dict[str, Any]:
    """The manifest of an output, but for the time it was made."""
    if path.suffix == ".csv":
        return _timeless(json.loads(Path(f"{path}-metadata.json").read_text())["notes"][0])
    if path.suffix == ".png":
        with Image.open(path) as image:
            return _timeless(json.loads(image.info["Description"]))
    if path.suffix == ".html":
        data = re.search(r'id="data">(.*?)</script>', path.read_text(), re.DOTALL)
        return _timeless(json.loads(data[1])["manifest"])
    return _timeless(json.loads(path.read_text())["manifest"])


def _timeless(manifest: dict[str, Any]) -> dict[str, Any]:
    assert manifest.pop("date").startswith("20")
    return manifest


@pytest.mark.parametrize("command", [run_command, compare_command], ids=["run", "compare"])
def test_every_option_that_changes_figures_stands_in_the_manifest(
    command: click.Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {str(param.name) for param in command.params} - OUTPUTS
    given = [POLICY[str(command.name)], "discrete_las"]

    def manifest(*words: str) -> dict[str, Any]:
        dlsim(command.name, TRACE, "--cluster", "4x4", *given, "--json", "o.json", "-q", *words)
        made = manifest_of(Path("o.json"))
        assert made.pop("command").startswith(f"dlsim {command.name} ")
        return made

    base = manifest()
    assert base["workloads"][0]["sha256"].startswith("17575949a6e5")
    seen = [base]
    for name in sorted(names):
        words = INPUTS[name]
        if words is not None:
            found = manifest(*words)
            assert found not in seen, name
            seen.append(found)


def test_files_stand_in_the_manifest_by_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same names with another content: another manifest."""
    files = {
        "costs.yaml": ("restart_s: 30\n", "restart_s: 31\n"),
        "rates.yaml": ("a: {v100: 2, k80: 1}\n", "a: {v100: 3, k80: 1}\n"),
        "las.py": ("from slurm_dl.policies.las import Las\n",) * 2,
    }
    files["las.py"] = (files["las.py"][0], f"# Mine.\n{files['las.py'][0]}")
    words = ("--cluster", "4x4:v100,4x4:k80", "--policy", "./las.py:Las", "--costs", "costs.yaml")

    def manifest(changed: str = "") -> dict[str, Any]:
        folder = tmp_path / (changed or "base")
        folder.mkdir()
        monkeypatch.chdir(folder)
        for name, contents in files.items():
            Path(name).write_text(contents[name == changed], "utf-8")
        dlsim("run", TRACE, *words, "--rates", "rates.yaml", "-q", "--json", "o.json")
        return manifest_of(Path("o.json"))

    seen = [manifest(), *map(manifest, files)]
    assert len({json.dumps(one) for one in seen}) == len(seen)


def test_every_output_of_a_command_carries_the_same_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    common = (TRACE, "--cluster", "4x4", "-q")
    dlsim(
        "run", *common, "--policy", "las", "--json", "r.json", "--jobs-csv", "r.csv",
        "--plots", ".",
    )  # fmt: skip
    dlsim(
        "compare", *common, "--policies", "las,fifo", "--json", "c.json", "--csv", "c.csv",
        "--plot", "c.png",
    )  # fmt: skip
    dlsim("compare", *common, "--policies", "las", "--plot", "c.svg")
    dlsim("compare", *common, "--policies", "las", "--plot", "c.pdf")
    dlsim("report", *common, "--policies", "las", "--out", "p.html")

    for group in (("r.json", "r.csv", "jct.png", "over_time.png"), ("c.json", "c.csv", "c.png")):
        first, *others = [manifest_of(Path(name)) for name in group]
        assert all(other == first for other in others)
    assert manifest_of(Path("p.html"))["policies"][0]["label"] == "las"
    assert "17575949a6e5" in Path("c.svg").read_text()
    assert b"17575949a6e5" in Path("c.pdf").read_bytes()


def test_simulations_in_a_folder_are_run_once_and_keep_their_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One folder for run and compare; more policies and resamples are added to it."""
    monkeypatch.chdir(tmp_path)
    common = (TRACE, "--cluster", "4x4", "-q", "--dir", "kept")
    dlsim("run", *common, "--policy", "las", "--jobs-csv", "las.csv")
    (cell,) = Path("kept/cells").glob("*.json")
    marked = json.loads(cell.read_text()) | {"events": -1}
    cell.write_text(json.dumps(marked))

    dlsim("compare", *common, "--policies", "las,fifo", "--json", "c.json")
    dlsim("compare", *common, "--policies", "fifo,las,srtf", "--resamples", "1", "--json", "d.json")

    jobs = gzip.decompress(cell.with_suffix(".csv.gz").read_bytes()).decode()
    assert jobs == Path("las.csv").read_text()
    assert len(list(csv.DictReader(jobs.splitlines()))) == 60
    assert len(list(Path("kept/cells").iterdir())) == 2 * 6
    for name in ("c.json", "d.json"):
        found = json.loads(Path(name).read_text())["cells"]
        assert [c["events"] for c in found if c["policy"] == "las" and not c["resample"]] == [-1]
