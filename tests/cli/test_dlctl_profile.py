"""``dlctl profile`` and ``dlctl runtimes check`` as an admin runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE

from slurm_dl.cli.dlctl.profiles import DEFAULT_DIRECTORY, _site_directory
from slurm_dl.profiles import load_profiles

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The site's directory; it does not exist yet."""
    return tmp_path / "site"


@pytest.fixture
def run(site: Path, tmp_path: Path) -> Run:
    """Run ``dlctl profile ARGS`` with the site's directory."""

    def run(command: str, *arguments: str, where: bool = True) -> Done:
        program = "from slurm_dl.cli.dlctl.command import main; main()"
        line = [sys.executable, "-c", program, "profile", command, *arguments]
        return subprocess.run(
            [*line, *(["--dir", str(site)] if where else [])],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=60 * PATIENCE,
        )

    return run


def run_dir(
    path: Path,
    steps_per_s: float,
    model: str | None = "resnet50",
    *,
    save_s: float | None = None,
    owner: int = -1,
) -> str:
    """A run directory of a job on 2 x 4 a100 that made so many steps a second."""
    path.mkdir()
    entry = {
        "nodes": 2,
        "gpus_per_node": 4,
        "gpu_type": "a100",
        "model": model,
        "windows": [[1, 1.0 / steps_per_s]] * 9,
    }
    (path / "slurm_dl.speed.json").write_text(json.dumps({"v": 1, "runs": [entry]}))
    if save_s is not None:
        (path / "slurm_dl.state.json").write_text(json.dumps({"checkpoints": [{"save_s": save_s}]}))
    for each in (path, *path.iterdir()):
        os.chown(each, owner, -1)
    return str(path)


def test_list_and_show(run: Run) -> None:
    """What comes with slurm_dl, by name and by the name a trace has for it."""
    names = {row["name"]: row for row in json.loads(run("list", "--json").stdout)["profiles"]}
    assert names["vgg16"]["parameters"] == 138_357_544
    assert names["vgg16"]["from"] == "slurm_dl"
    shown = run("show", "ResNet-50 (batch size 64)")
    assert "name: resnet50" in shown.stdout
    assert "parameters: 25557032" in shown.stdout
    assert json.loads(run("show", "resnet50", "--json").stdout)["profile"]["name"] == "resnet50"

    wrong = run("show", "resnet51")
    assert wrong.returncode == 2
    assert "no profile resnet51; did you mean resnet" in wrong.stderr


def test_check_tells_everything_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    """Exit status 2 for a mistake, with its place; the good file is told too."""
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("name: m\nskew: 0.5\n")
    bad.write_text("name: n\nskew: 5\nx: 1\n")

    assert run("check", str(good), where=False).stdout == f"{good}: ok (m)\n"
    both = run("check", str(good), str(bad), where=False)
    assert both.returncode == 2
    found = [line.split(": ")[1:3] for line in both.stderr.splitlines()]
    assert found == [[f"{bad}:2", "skew"], [f"{bad}:3", "x"]]
    as_json = run("check", str(bad), "--json", where=False)
    assert as_json.returncode == 2
    assert json.loads(as_json.stdout)["ok"] is False


def test_add_installs_and_replaces(run: Run, site: Path, tmp_path: Path) -> None:
    """The site's profile counts before the shipped one; a bad one changes nothing."""
    file = tmp_path / "mine.yaml"
    file.write_text("name: resnet50\nskew: 0.5\n")
    assert run("add", str(file)).stdout == f"resnet50: added {site}/resnet50.yaml\n"
    rows = json.loads(run("list", "--json").stdout)["profiles"]
    assert [r["from"] for r in rows if r["name"] == "resnet50"] == ["site"]
    assert run("show", "ResNet-50", "--json").stdout == run("show", "resnet50", "--json").stdout

    file.write_text("name: resnet50\nskew: 5\n")
    assert run("add", str(file)).returncode == 2
    file.write_text("name: resnet50\nskew: 0.25\n")
    done = json.loads(run("add", str(file), "--json").stdout)
    assert done == {"name": "resnet50", "file": f"{site}/resnet50.yaml", "replaced": True}
    assert (site / "resnet50.yaml").stat().st_mode & 0o777 == 0o644

    site.chmod(0o777)
    refused = run("list")
    assert refused.returncode == 2
    assert f"chmod go-w {site}" in refused.stderr


def test_learn_shows_the_difference_and_then_writes_it(
    run: Run, site: Path, tmp_path: Path
) -> None:
    """Into the shipped profile's place, whose other figures stay."""
    places = [run_dir(tmp_path / "a", 3), run_dir(tmp_path / "b", 5)]
    tried = run("learn", "--model", "resnet50", "--dry-run", *places, f"{places[0]}/../a")
    assert tried.returncode == 0
    assert "speed 2x4 a100: unknown -> 4 steps/s ± 25.0% (2 runs)" in tried.stdout
    assert not site.exists()

    done = run("learn", "--model", "ResNet-50", *places)
    assert done.returncode == 0, done.stderr
    profile = json.loads(run("show", "resnet50", "--json").stdout)["profile"]
    (speed,) = [s for s in profile["speeds"] if s.get("gpu_type") == "a100"]
    assert speed["shape"] == "2x4"
    assert speed["observations"] == 2
    assert profile["parameters"] == 25_557_032

    again = run("learn", "--model", "resnet50", run_dir(tmp_path / "c", 10), "--json")
    (change,) = json.loads(again.stdout)["changes"]
    assert change.startswith("speed 2x4 a100: 4 steps/s ± 25.0% (2 runs) -> 6 steps/s")


def sampled(path: Path, model: str, rates: list[float], gpu: str) -> str:
    """A run directory of half a GPU's job: five windows alone, then some beside another job."""
    path.mkdir()
    alone = [*[True] * 5, *[False] * len(rates)]
    windows = [
        [1000.0 + 30 * at, 30.0, is_alone, 0.6, 0.2, 0.3, 5000.0, 30, 1900.0, 300.0, rate]
        for at, (is_alone, rate) in enumerate(zip(alone, [*[10.0] * 5, *rates], strict=True))
    ]
    lies = {"nodes": 1, "gpus_per_node": None, "gpu_type": None, "node": "n1", "mode": "slices"}
    of_gpu = {"devices": [gpu], "device_mb": 80_000, "memory_mb": None}
    shared = [[1150.0, 1150.0 + 30 * len(rates)]]
    run = {"restart": 0, "attempt": 0, "model": model, **lies, **of_gpu}
    content = {"v": 1, "runs": [{**run, "shared": shared, "windows": windows}]}
    (path / "slurm_dl.load.json").write_text(json.dumps(content))
    return str(path)


def test_learn_takes_load_and_speeds_beside_other_models_of_samples(
    run: Run, site: Path, tmp_path: Path
) -> None:
    """Of a script that reports nothing of its steps, too; an alias of the other is its name."""
    own = [sampled(tmp_path / f"a{n}", "mine", [7.0] * 3, f"GPU-{n}") for n in range(3)]
    other = [sampled(tmp_path / f"b{n}", "ResNet-18", [9.0] * 3, f"GPU-{n}") for n in range(3)]
    few = run("learn", "--model", "mine", *own[:2], *other[:2])
    assert few.returncode == 1
    assert "no run told enough" in few.stderr

    done = run("learn", "--model", "mine", "--gpu-type", "h200", *own, *other)
    assert done.returncode == 0, done.stderr
    for line in (
        "load gpu_util: unknown -> 0.6",
        "load gpu_mem_mb: unknown -> 5000 MB",
        "load gpu_type: any -> h200",
        "beside resnet18 slices h200: unknown -> 0.7 (3 runs)",
    ):
        assert line in done.stdout.splitlines()
    profile = load_profiles(site)["mine"]
    assert (profile.load.gpu_util, profile.load.observations) == (0.6, 3)
    assert profile.speed_beside("resnet18", "slices", "h200") == 0.7


def test_learn_refuses_samples_that_are_far_off(run: Run, site: Path, tmp_path: Path) -> None:
    """As it does with speeds: the admin's word gives way to what is near it."""
    site.mkdir()
    file = site / "mine.yaml"
    file.write_text(
        "name: mine\nload: {gpu_util: 0.1, gpu_mem_mb: 4000}\nbeside:\n"
        "- {other: resnet18, rate: 0.1}\n"
    )
    before = file.read_text()
    own = [sampled(tmp_path / f"a{n}", "mine", [7.0] * 3, f"GPU-{n}") for n in range(3)]
    other = [sampled(tmp_path / f"b{n}", "resnet18", [9.0] * 3, f"GPU-{n}") for n in range(3)]

    done = run("learn", "--model", "mine", "--json", *own, *other)

    assert done.returncode == 1
    refused = json.loads(done.stdout)["refused"]
    assert [line.partition(":")[0] for line in refused] == [
        "load gpu_util",
        "beside resnet18 slices",
    ]
    assert file.read_text() == before


def test_learn_believes_no_other_model(run: Run, site: Path, tmp_path: Path) -> None:
    """A job says what it trained; only the admin can say otherwise."""
    place = run_dir(tmp_path / "a", 3, model="vgg16")
    refused = run("learn", "--model", "resnet50", place)
    assert refused.returncode == 1
    assert "it is of model vgg16" in refused.stdout
    assert "no run told enough" in refused.stderr
    assert not site.exists()

    assert run("learn", "--model", "resnet50", "--any-model", place).returncode == 0
    assert (site / "resnet50.yaml").exists()


ONE, TWO, THREE = 12345, 12346, 12347
STRANGER = 65534
HONEST: dict[str, Any] = {"steps_per_s": 6.0, "save_s": 3.0}
FLOOD = [{"steps_per_s": 900.0, "save_s": 86_399.0, "owner": STRANGER}] * 64


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for other users' files")
@pytest.mark.parametrize(
    ("runs", "options", "status", "told"),
    [
        ([{**one, "model": None} for one in FLOOD], "", 1, "names no model"),
        ([{**one, "model": None} for one in FLOOD], "--unnamed", 1, "owners: 1, values: 64"),
        (FLOOD, "", 1, "owners: 1, values: 64"),
        ([*FLOOD, {**HONEST, "owner": ONE}], "", 1, "owners: 2, values: 65"),
        ([FLOOD[0], {**HONEST, "owner": ONE}], "--gpu-type h100", 1, "h100: unknown -> 453"),
        ([*FLOOD, {**HONEST, "owner": ONE}, {**HONEST, "owner": TWO}], "", 0, ""),
        ([{**HONEST, "owner": 0, "model": None}], "--unnamed", 0, ""),
        ([{"steps_per_s": 5.0, "save_s": 600.0, "owner": 0}], "", 1, "save_s: 2 -> 600"),
        ([{"steps_per_s": 0.1, "owner": of} for of in (ONE, TWO, THREE)], "", 1, "values: 3"),
    ],
)
def test_no_stranger_alone_moves_a_figure(
    run: Run, site: Path, runs: list[dict[str, Any]], options: str, *, status: int, told: str
) -> None:
    """One vote for each owner; a refusal says why and changes nothing, and --force takes it."""
    file = site / "resnet50.yaml"
    site.mkdir()
    file.write_text(
        "name: resnet50\ncheckpoint: {save_s: 2, observations: 1}\nspeeds:\n- {shape: 2x4, "
        "gpu_type: a100, steps_per_s: 5, observations: 1, origin: measured}\n"
    )
    before = file.read_text()
    places = [run_dir(site.with_name(f"r{i}"), **one) for i, one in enumerate(runs)]

    tried = run("learn", "--model", "resnet50", "--json", *options.split(), *places)

    assert tried.returncode == status, tried.stderr
    said = json.loads(tried.stdout)
    assert told in tried.stdout
    assert bool(said["refused"]) == ("no run told" not in tried.stderr and status == 1)
    assert all(line in tried.stderr for line in said["refused"])
    (speed,) = load_profiles(site)["resnet50"].speeds
    assert 5 <= speed.steps_per_s <= 6
    if status:
        assert file.read_text() == before
        run("learn", "--model", "resnet50", "--force", *options.split(), *places)
        assert (file.read_text() == before) == (said["refused"] == [])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for other users' files")
def test_learn_reads_nothing_that_is_not_of_the_directorys_owner(
    run: Run, site: Path, tmp_path: Path
) -> None:
    """Who can write into root's directory has no vote of root's; a loop of links is no place."""
    place, loop = run_dir(tmp_path / "a", 900.0), tmp_path / "loop"
    os.chown(f"{place}/slurm_dl.speed.json", STRANGER, -1)
    loop.symlink_to(loop)

    done = run("learn", "--model", "resnet50", place, str(loop))

    assert done.returncode == 1
    assert "no run told enough" in done.stderr
    assert not site.exists()


def test_learn_refuses_a_name_that_is_none(run: Run, tmp_path: Path) -> None:
    """It would become a file's name."""
    done = run("learn", "--model", "../x", run_dir(tmp_path / "a", 3))
    assert done.returncode == 2
    assert "must be letters, digits" in done.stderr


def test_a_directory_that_nobody_lets_us_see_has_no_profiles(run: Run) -> None:
    """Sites close /etc/slurm_dl to users; here the system refuses even to look."""
    done = run("show", "vgg16", "--dir", "/" + "x" * 300, where=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# from slurm_dl\n")


def test_a_configuration_that_users_may_not_read_keeps_nobody_from_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where users have none. To root all files are open, so it is asked of a stand-in."""
    closed = tmp_path / "slurm_dl.yaml"
    closed.write_text("not: for users")
    monkeypatch.delenv("SLURM_DL_CONFIG", raising=False)
    monkeypatch.setattr("slurm_dl.cli.dlctl.profiles.DEFAULT_PATH", closed)
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (closed, os.R_OK))

    assert _site_directory(None, None) == DEFAULT_DIRECTORY


FIELDS = "JobID|User|Account|Submit|Start|End|State|ElapsedRaw|ReqTRES|AllocTRES|JobName"
FIRST_S = 1_750_000_000


@pytest.fixture
def check(tmp_path: Path) -> Run:
    """Run ``dlctl runtimes check ARGS`` where nothing else is."""

    def check(*arguments: str) -> Done:
        program = "from slurm_dl.cli.dlctl.command import main; main()"
        return subprocess.run(
            [sys.executable, "-c", program, "runtimes", "check", *arguments],
            cwd=tmp_path,
            env={"PATH": str(tmp_path / "none"), "SLURM_DL_CONFIG": ""},
            capture_output=True,
            text=True,
            check=False,
            timeout=120 * PATIENCE,
        )

    return check


def clock(when_s: float) -> str:
    """As sacct writes it."""
    return datetime.fromtimestamp(int(when_s), UTC).strftime("%Y-%m-%dT%H:%M:%S")


def dump(path: Path, *, shuffled: bool = False, jobs: int = 500, tags: bool = False) -> str:
    """A dump of ten jobs that are run again and again.

    Args:
        shuffled: Under others' names.
        tags: With tags of script and arguments in their comments.
    """
    rng = np.random.default_rng(7)
    length_s = rng.lognormal(8, 1.5, 10)
    kinds = rng.integers(0, 10, jobs)
    named = rng.permutation(kinds) if shuffled else kinds
    lines = [FIELDS.replace("JobName", "Comment|JobName") if tags else FIELDS]
    for i, (kind, name) in enumerate(zip(kinds.tolist(), named.tolist(), strict=True)):
        submit_s = FIRST_S + i * 7200
        ran_s = max(1, int(length_s[kind] * rng.lognormal(0, 0.1)))
        times = [clock(submit_s + s) for s in (0, 60, 60 + ran_s)]
        tres = "billing=1,cpu=1,gres/gpu=1"
        who = [f"{1000 + i}", f"u{name % 3}", "all"]
        comment = [json.dumps({"slurm_dl": {"tag": f"{kind:012x}"}})] if tags else []
        what = ["COMPLETED", str(ran_s), tres, tres, *comment, f"train|{name}"]
        lines.append("|".join([*who, *times, *what]))
    path.write_text("\n".join([*lines, "no record"]) + "\n", encoding="utf-8")
    return str(path)


def test_recurrent_jobs_are_predicted(check: Run, tmp_path: Path) -> None:
    """Every way but the one that looks at no job has nearly the true order."""
    done = check("--from-sacct", dump(tmp_path / "d.txt"), "--json")

    assert done.returncode == 0, done.stderr
    assert done.stderr == "1 lines could not be read and were left out\n"
    found = json.loads(done.stdout)
    assert (found["jobs"], found["tag_hits"]) == (100, 1.0)
    rank = {p["predictor"]: p["rank_correlation"] for p in found["predictors"]}
    assert rank["tag median"] > 0.9
    assert rank["rolling"] > 0.9
    assert abs(rank["mean of all"]) < 0.4
    assert found["best"] in rank


def test_tags_of_scripts_are_compared_on_the_jobs_that_have_one(check: Run, tmp_path: Path) -> None:
    """Three users; the names were dealt out at random, so a tag is often new to its user."""
    path = dump(tmp_path / "d.txt", shuffled=True, tags=True)
    found = json.loads(check("--from-sacct", path, "--json").stdout)
    told = check("--from-sacct", path).stdout

    assert 0.9 < found["script_hits"] <= 1.0
    scores = {p["predictor"]: p for p in found["predictors_on_script_hits"]}
    assert {p["jobs"] for p in scores.values()} == {round(100 * found["script_hits"])}
    assert scores["tag median"]["rank_correlation"] > 0.9
    assert scores["tag median"]["median_error"] < 0.2
    assert abs(scores["name median"]["rank_correlation"]) < 0.4
    assert "of those with a known tag of script and arguments:" in told


def test_without_recurrence_the_check_fails(check: Run, tmp_path: Path) -> None:
    """Names that were dealt out at random tell nothing: status 1."""
    done = check("--from-sacct", dump(tmp_path / "d.txt", shuffled=True), "--least", "0.4")

    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[0].startswith("100 later jobs predicted; ")
    rows = {line[:12].strip(): line.split() for line in done.stdout.splitlines()[2:-1]}
    assert all(abs(float(rows[n][-1])) < 0.4 for n in ("rolling", "tag median", "tag mean"))


def test_a_table_for_people(check: Run, tmp_path: Path) -> None:
    """One line for each way to predict, and the best of them."""
    done = check("--from-sacct", dump(tmp_path / "d.txt"), "--test-weeks", "1")

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "100% had a tag that was seen before" in lines[0]
    assert " ".join(lines[1].split()) == "PREDICTOR JOBS MEDIAN ERROR P90 ERROR RANK CORRELATION"
    assert lines[-1].startswith("best: ")


def test_too_few_jobs_are_no_verdict(check: Run, tmp_path: Path) -> None:
    """Status 2, with what there is."""
    done = check("--from-sacct", dump(tmp_path / "d.txt", jobs=50))

    assert done.returncode == 2
    assert "too few jobs to tell" in done.stderr
    assert "Traceback" not in done.stderr


def test_bad_input_is_refused(check: Run, tmp_path: Path) -> None:
    """No dump, no file, no Slurm, no share: status 2 and one line."""
    (tmp_path / "x.txt").write_text("hello\n", encoding="utf-8")
    for arguments in (
        ("--from-sacct", "x.txt"),
        ("--from-sacct", "nothing.txt"),
        ("--least", "2"),
        ("--test-weeks", "0"),
        (),
    ):
        done = check(*arguments)
        assert done.returncode == 2, arguments
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith("dlctl: "), done.stderr


def test_the_help_has_examples_and_says_how_a_dump_is_made(check: Run) -> None:
    """Ready to be copied."""
    done = check("--help")

    assert done.returncode == 0
    assert "dlctl runtimes check --days 90" in done.stdout
    assert FIELDS.removesuffix("|JobName").replace("|", ",") in done.stdout
