"""A squeue that lists no job, without an error, while jobs run and GPUs change hands."""

from __future__ import annotations

import datetime as dt
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from schedd import TOY, Schedd, schedd_in
from victims import sank

from slurm_dl.sandbox import Sandbox, SandboxSpec

pytestmark = pytest.mark.slurm

LOOKS = 2
"""So many listings in a row are empty."""

WITHIN_S = 20
"""Of the signals the beneficiary starts: 4 s to save, and some looks and passes of Slurm."""

SQUEUE = """#!/bin/sh
read -r left < {home}/empty
if [ "$left" -gt 0 ]; then
    case "$*" in *--jobs=*) ;; *) echo "$((left - 1))" > {home}/empty ;; esac
    exit 0
fi
exec {real} "$@"
"""
"""It prints nothing for as many listings as the file ``empty`` says, also about single jobs."""


PASS_S = 5
UNHURRIED = f"defer,sched_interval={PASS_S},batch_sched_delay={PASS_S},bf_interval=600"
"""No job starts less than this after a pass: the daemon has the time to steer it."""


def tools(home: Path) -> Path:
    """Slurm's tools, of which squeue does as a file in *home* says."""
    (home / "empty").write_text("0\n", encoding="ascii")
    directory = home / "bin"
    directory.mkdir()
    for name in ("sinfo", "scontrol", "scancel", "sprio", "sdiag"):
        (directory / name).symlink_to(str(shutil.which(name)))
    script = SQUEUE.format(home=home, real=shutil.which("squeue"))
    (directory / "squeue").write_text(script, encoding="utf-8")
    (directory / "squeue").chmod(0o755)
    return directory


def epoch_s(place: Schedd, job: str, field: str) -> float:
    """A time of *job* by Slurm."""
    return dt.datetime.fromisoformat(place.job(job, field)[0]).timestamp()


def excluded(place: Schedd, job: str) -> str:
    """The nodes that *job* is kept from."""
    return place.job(job, "ExcNodeList")[0]


def passes(box: Sandbox) -> int:
    """How many times Slurm's main scheduler has looked for jobs to start."""
    found = re.search(r"Total cycles:\s+(\d+)", box.run(["sdiag"]).stdout)
    assert found
    return int(found[1])


def steered(place: Schedd, toy: list[str]) -> str:
    """A job that runs where dlschedd wanted it; on a busy host Slurm may start one before that."""
    for _ in range(5):
        had = passes(place.box)
        place.until("a pass of Slurm", lambda had=had: passes(place.box) > had)
        job = place.submit(8, *toy, options=["--grace", "60"])
        place.until_state(job, "RUNNING")
        if excluded(place, job) != "(null)":
            return job
        place.box.run(["scancel", job])
        place.until_state(job, "CANCELLED")
    pytest.fail("Slurm has started five jobs before they were steered")


def test_an_empty_answer_ends_no_handover_and_forgets_no_steer(
    make_sandbox: Callable[[SandboxSpec], Sandbox], short_directory: Path
) -> None:
    """The beneficiary starts when the victims have saved; their exclusions are taken back."""
    box = make_sandbox(SandboxSpec(scheduler_parameters=UNHURRIED))
    with schedd_in(box, short_directory) as place:
        place.configure(
            cluster={"bin_dir": str(tools(place.home))},
            placement={"steer": True, "scheme": "best_fit"},
            policy={"parameters": {"thresholds_gpu_s": [8, 100_000]}},
        )
        place.start()
        toy = [*TOY, "--steps", "2000", "--step-s", "0.25", "--save-s", "4"]
        victims = [steered(place, toy), place.submit(8, *toy, options=["--grace", "60"])]
        for victim in victims:
            place.until_state(victim, "RUNNING")
            place.until("it to sink", lambda victim=victim: sank(place, victim))
        first = place.submit(16, "sleep", "30")
        place.until("the signals", lambda: len(place.audit(action="signal", result="ok")) == 2)

        (place.home / "empty").write_text(f"{LOOKS}\n", encoding="ascii")
        place.until_state(first, "RUNNING", within_s=90)

        assert (place.home / "empty").read_text(encoding="ascii") == "0\n"
        signalled = place.audit(action="signal")
        assert epoch_s(place, first, "StartTime") - signalled[0]["epoch_s"] <= WITHIN_S
        assert len(signalled) == 2
        assert [place.job(victim, "Restarts") for victim in victims] == [["1"], ["1"]]
        place.until("its release", lambda: excluded(place, victims[0]) == "(null)", 25)
        assert place.state(first) == "RUNNING"
        place.stop()
