"""``dlctl runtimes check`` as an admin runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from patience import PATIENCE

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]

FIELDS = "JobID|User|Account|Submit|Start|End|State|ElapsedRaw|ReqTRES|AllocTRES|JobName"
FIRST_S = 1_750_000_000


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run ``dlctl runtimes check ARGS`` where nothing else is."""

    def run(*arguments: str) -> Done:
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

    return run


def clock(when_s: float) -> str:
    """As sacct writes it."""
    return datetime.fromtimestamp(int(when_s), UTC).strftime("%Y-%m-%dT%H:%M:%S")


def dump(path: Path, *, shuffled: bool = False, jobs: int = 500) -> str:
    """A dump of ten jobs that are run again and again; *shuffled*: under others' names."""
    rng = np.random.default_rng(7)
    length_s = rng.lognormal(8, 1.5, 10)
    kinds = rng.integers(0, 10, jobs)
    named = rng.permutation(kinds) if shuffled else kinds
    lines = [FIELDS]
    for i, (kind, name) in enumerate(zip(kinds.tolist(), named.tolist(), strict=True)):
        submit_s = FIRST_S + i * 7200
        ran_s = max(1, int(length_s[kind] * rng.lognormal(0, 0.1)))
        times = [clock(submit_s + s) for s in (0, 60, 60 + ran_s)]
        tres = "billing=1,cpu=1,gres/gpu=1"
        who = [f"{1000 + i}", f"u{name % 3}", "all"]
        what = ["COMPLETED", str(ran_s), tres, tres, f"train|{name}"]
        lines.append("|".join([*who, *times, *what]))
    path.write_text("\n".join([*lines, "no record"]) + "\n", encoding="utf-8")
    return str(path)


def test_recurrent_jobs_are_predicted(run: Run, tmp_path: Path) -> None:
    """Every way but the one that looks at no job has nearly the true order."""
    done = run("--from-sacct", dump(tmp_path / "d.txt"), "--json")

    assert done.returncode == 0, done.stderr
    assert done.stderr == "1 lines could not be read and were left out\n"
    found = json.loads(done.stdout)
    assert (found["jobs"], found["tag_hits"]) == (100, 1.0)
    rank = {p["predictor"]: p["rank_correlation"] for p in found["predictors"]}
    assert rank["tag median"] > 0.9
    assert rank["rolling"] > 0.9
    assert abs(rank["mean of all"]) < 0.4
    assert found["best"] in rank


def test_without_recurrence_the_check_fails(run: Run, tmp_path: Path) -> None:
    """Names that were dealt out at random tell nothing: status 1."""
    done = run("--from-sacct", dump(tmp_path / "d.txt", shuffled=True), "--least", "0.4")

    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[0].startswith("100 later jobs predicted; ")
    rows = {line[:12].strip(): line.split() for line in done.stdout.splitlines()[2:-1]}
    assert all(abs(float(rows[n][-1])) < 0.4 for n in ("rolling", "tag median", "tag mean"))


def test_a_table_for_people(run: Run, tmp_path: Path) -> None:
    """One line for each way to predict, and the best of them."""
    done = run("--from-sacct", dump(tmp_path / "d.txt"), "--test-weeks", "1")

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "100% had a tag that was seen before" in lines[0]
    assert " ".join(lines[1].split()) == "PREDICTOR JOBS MEDIAN ERROR P90 ERROR RANK CORRELATION"
    assert lines[-1].startswith("best: ")


def test_too_few_jobs_are_no_verdict(run: Run, tmp_path: Path) -> None:
    """Status 2, with what there is."""
    done = run("--from-sacct", dump(tmp_path / "d.txt", jobs=50))

    assert done.returncode == 2
    assert "too few jobs to tell" in done.stderr
    assert "Traceback" not in done.stderr


def test_bad_input_is_refused(run: Run, tmp_path: Path) -> None:
    """No dump, no file, no Slurm, no share: status 2 and one line."""
    (tmp_path / "x.txt").write_text("hello\n", encoding="utf-8")
    for arguments in (
        ("--from-sacct", "x.txt"),
        ("--from-sacct", "nothing.txt"),
        ("--least", "2"),
        ("--test-weeks", "0"),
        (),
    ):
        done = run(*arguments)
        assert done.returncode == 2, arguments
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith("dlctl: "), done.stderr


def test_the_help_has_examples_and_says_how_a_dump_is_made(run: Run) -> None:
    """Ready to be copied."""
    done = run("--help")

    assert done.returncode == 0
    assert "dlctl runtimes check --days 90" in done.stdout
    assert FIELDS.removesuffix("|JobName").replace("|", ",") in done.stdout
