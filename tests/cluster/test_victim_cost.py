"""Who has just saved is stopped first, on a real Slurm: what dlrun reports is what is weighed."""

from __future__ import annotations

import re
import sys

import pytest
from schedd import Schedd, running_schedd

pytestmark = [pytest.mark.slurm, pytest.mark.full("three quarters of a minute")]

GPUS, SAVE_RESTORE_S = 8, 60
AGO_S = 25
"""How much longer ago one of the jobs saved than the other."""

TRAINING = """
import sys, time
from pathlib import Path
from slurm_dl import job

go, saved = Path(sys.argv[1]), Path(sys.argv[2])
while True:
    asked = job.should_checkpoint()
    if asked or (go.exists() and not saved.exists()):
        saved.write_text("x")
        job.checkpoint_saved(saved)
    if asked:
        job.exit_for_requeue()
    time.sleep(0.1)
"""


place = running_schedd(
    policy={"parameters": {"thresholds_gpu_s": [16]}},
    # So that the second victim comes after the first.
    preemption={"max_handovers": 1, "checkpoint_cost_s": SAVE_RESTORE_S},
)
"""A job of eight GPUs sinks after 2 s."""


def why(place: Schedd, job: str) -> str:
    """What dlqueue says of the job."""
    return place.ask("dlqueue", "why", job, check=False).stdout


def told(place: Schedd, job: str) -> tuple[float, float]:
    """What stopping it would cost by dlqueue, GPU-seconds, and seconds since its checkpoint."""
    said = re.search(r"about ([\d,]+) GPU-s: .*\+ 0\.5 x (\d+) s since", why(place, job))
    assert said is not None, why(place, job)
    return float(said[1].replace(",", "")), float(said[2])


def test_of_two_equal_jobs_the_one_that_has_just_saved_gives_way(place: Schedd) -> None:
    """Although it was submitted first, so that of equal cost the other would."""
    (place.home / "train.py").write_text(TRAINING, encoding="utf-8")

    def train(name: str) -> str:
        files = [str(place.home / f"{name}.{end}") for end in ("go", "saved")]
        return place.submit(GPUS, sys.executable, str(place.home / "train.py"), *files)

    first, second = train("first"), train("second")
    place.until_state(second, "RUNNING")
    place.until("a sum without a save", lambda: "no checkpoint" in why(place, first))
    (place.home / "second.go").touch()
    place.until("its save to be known", lambda: "its last checkpoint" in why(place, second))
    assert "no checkpoint" in why(place, first)
    place.until("it to be a while ago", lambda: told(place, second)[1] >= AGO_S)
    (place.home / "first.go").touch()
    place.until("its save to be known", lambda: "its last checkpoint" in why(place, first))
    for job in (first, second):
        gpu_s, since_s = told(place, job)
        by_hand = GPUS * (SAVE_RESTORE_S + 0.5 * since_s)
        assert gpu_s == pytest.approx(by_hand, abs=GPUS)
    assert told(place, second)[1] - told(place, first)[1] > AGO_S / 2

    # Both at once: while only one waits the policy still wants one of those that run.
    place.ask("dlctl", "pause")
    for _ in range(2):
        place.toy(GPUS, 4)
    place.ask("dlctl", "resume")
    place.until("a signal", lambda: place.audit(action="signal"))

    assert str(place.audit(action="signal")[0]["job"]) == first
    # It has acknowledged, so nothing is expected to be lost of it the next time.
    place.until("it to run again", lambda: "0 x " in why(place, first), within_s=120)
