"""A short fault campaign: every kind of job, every fault, and the checker's word."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from schedd import ROOT

from tools.chaos.faults import KINDS
from tools.chaos.workload import Kind, crowd

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.full("two fault campaigns, of five minutes and of up to four"),
    pytest.mark.timeout(900),
]

JOBS = 60


def play(keep: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """One campaign as a process: status, result, what it said meanwhile."""
    argv = [sys.executable, "-m", "tools.chaos", "--keep", str(keep), "--json", *options]
    with subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, err = process.communicate(timeout=400 * PATIENCE)
        except BaseException:
            # It ends what it has started.
            process.send_signal(signal.SIGTERM)
            process.wait(60 * PATIENCE)
            raise
    assert out, err
    return process.returncode, json.loads(out), err


def test_everything_holds_in_a_short_campaign(short_directory: Path) -> None:
    """Every fault at least once, preemptions in between, and nobody lost, doubled or held."""
    site = short_directory / "s"
    faults = len(KINDS)
    status, result, said = play(
        site, "--jobs", str(JOBS), "--faults", str(faults), "--minutes", "5", "--seed", "7"
    )

    campaign = result["campaign"]
    words = f"{said}\n{json.dumps(result, indent=1)}"
    assert (status, result["ok"], campaign["problems"]) == (0, True, []), words
    assert set(campaign["faults"]) == set(KINDS), words
    assert sum(campaign["faults"].values()) >= faults
    assert sum(campaign["jobs"].values()) >= JOBS
    assert set(campaign["jobs"]) == {str(kind) for kind in Kind}
    assert campaign["preemptions"] > 0, words
    assert campaign["attacks"] > 10, words
    # What was mounted and started is gone, although the files are kept.
    assert not (site / "state").is_mount()
    assert (site / "state" / "ledger.sqlite").exists()
    assert _alive_below(site) == []


def test_a_stopped_campaign_leaves_nothing(short_directory: Path) -> None:
    """SIGTERM in the middle ends cluster, daemon and mount, and removes the directory's tree."""
    site = short_directory / "s"
    argv = [
        sys.executable,
        "-m",
        "tools.chaos",
        "--jobs",
        "60",
        "--minutes",
        "4",
        "--keep",
        str(site),
    ]
    with subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            # The first fault is over.
            assert any("faults  " in line for line in process.stdout)
            process.send_signal(signal.SIGTERM)
            rest = process.stdout.read()
        finally:
            process.terminate()
            process.wait(60 * PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM, rest
    assert "stopped" in rest
    assert not (site / "state").is_mount()
    assert _alive_below(site) == []


def test_a_workload_is_a_function_of_its_seed() -> None:
    """The same seed gives the same jobs, another one others, and the first are of every kind."""
    jobs = [*crowd(3, 200)]

    assert jobs == [*crowd(3, 200)]
    assert jobs != [*crowd(4, 200)]
    assert {job.kind for job in jobs[: len(Kind)]} == set(Kind)
    assert sum(job.records for job in jobs) >= 200
    assert len({job.name for job in jobs}) == len(jobs)


def _alive_below(site: Path) -> list[str]:
    """Processes that were started with a path below *site*."""
    mark = os.fsencode(f"{site}/")
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
        except OSError:
            continue
        if mark in command:
            found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found
