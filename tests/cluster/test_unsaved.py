"""Jobs that are asked to save and do not play along, on a real Slurm: their owners are told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from schedd import Schedd, running_schedd

pytestmark = pytest.mark.slurm

HANDLES = "import signal,sys,time; signal.signal(10, lambda *a: sys.exit(75)); time.sleep(600)"
LOST_QUOTES = "{slurm_dl:{v:1,sig:USR1}}"


place = running_schedd(policy={"parameters": {"thresholds_gpu_s": [8, 100_000]}})
"""Whoever has had a second on twelve GPUs gives way to a new job."""


def why(place: Schedd, job: str) -> str:
    """What its owner is told of *job*."""
    return place.ask("dlqueue", "why", job, check=False).stdout


def log_of(place: Schedd, job: str) -> str:
    """The log of *job*."""
    return Path(place.job(job, "StdOut")[0]).read_text()


def test_a_job_that_ends_with_0_when_it_is_preempted_is_told_so(place: Schedd) -> None:
    """By dlrun in its log, and by the daemon: Slurm shows COMPLETED, and nothing is amiss there."""
    script = "trap 'exit 0' USR1; while :; do sleep 0.2; done"
    victim = place.submit(12, "bash", "-c", script)
    place.until_state(victim, "RUNNING")

    place.until_state(place.toy(8, 2), "COMPLETED")

    assert place.job(victim, "JobState", "Restarts") == ["COMPLETED", "0"]
    assert "does not run it again" in log_of(place, victim)
    place.until("its end to be told", lambda: "does not run it again" in why(place, victim))


def test_a_training_behind_a_shell_comes_back_and_a_contract_without_quotes_is_told(
    place: Schedd,
) -> None:
    """A shell hides the status of the training; and who lost the quotes seems to be well."""
    script = f'{sys.executable} -c "{HANDLES}"; true'
    victim = place.submit(12, "bash", "-c", script, options=["--grace=5"])
    argv = ["sbatch", "--parsable", "--output=/dev/null", "--gres=gpu:1", "--wrap=exec sleep 600"]
    copied = place.box.run([*argv, f"--comment={LOST_QUOTES}"]).stdout.strip()
    for job in (victim, copied):
        place.until_state(job, "RUNNING")

    place.until_state(place.toy(8, 2), "COMPLETED")

    assert place.job(victim, "Restarts") == ["1"]
    assert "in the script is left to the next run" in log_of(place, victim)
    assert "unreadable" in why(place, copied)
