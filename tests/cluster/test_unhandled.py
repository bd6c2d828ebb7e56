"""Jobs that will not answer give their GPUs back soon, and no others, on a real Slurm."""

from __future__ import annotations

import sys
from datetime import datetime

import pytest
from schedd import Schedd, running_schedd

pytestmark = pytest.mark.slurm

SAVES = "import signal,sys,time; signal.signal(10, lambda *a: sys.exit(75)); time.sleep(600)"
LATE = """
import pathlib, signal, sys, time
def save(*_):
    time.sleep(10)
    pathlib.Path('saved').write_text('')
    sys.exit(75)
time.sleep(20)
signal.signal(signal.SIGUSR1, save)
time.sleep(600)
"""


place = running_schedd(policy={"parameters": {"thresholds_gpu_s": [4, 100_000]}})
"""Whoever has had a second on four GPUs gives way to a new job."""


def test_the_wait_ends_for_a_job_that_takes_no_signal_and_for_no_other(place: Schedd) -> None:
    """One has no handler, one has it behind a shell; one has it late and then saves for long."""
    options = ["--grace=60"]
    deaf = place.submit(4, "sleep", "600", options=options)
    behind = f'{sys.executable} -c "{SAVES}"; exit $?'
    shell = place.submit(4, "bash", "-c", behind, options=options)
    late = place.submit(4, sys.executable, "-c", LATE, options=options)
    for job in (deaf, shell, late):
        place.until_state(job, "RUNNING")
    place.submit(16, "true")

    place.until(
        "two to give way",
        lambda: all(place.job(j, "Restarts") == ["1"] for j in (deaf, shell)),
        30,
    )
    assert place.job(late, "Restarts") == ["0"]
    place.until("it to save and give way", lambda: place.job(late, "Restarts") == ["1"])

    for job in (deaf, shell):
        asked, requeued = (_when(place, job, action) for action in ("signal", "requeue"))
        assert (requeued - asked).total_seconds() < 15
    assert (place.home / "saved").exists()
    assert "unhandled" not in place.box.run(["squeue", "-ho", "%k", "-j", late]).stdout
    for job in (shell, late):
        [requeue] = place.audit(action="requeue", job=int(job))
        assert "acknowledged" in requeue["reason"]


def _when(place: Schedd, job: str, action: str) -> datetime:
    [entry] = place.audit(action=action, job=int(job))
    return datetime.fromisoformat(entry["time"])
