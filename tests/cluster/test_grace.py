"""A site's longest grace on a real Slurm: dlsubmit's jobs keep to it, others are left alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox

pytestmark = pytest.mark.slurm

BY_HAND = json.dumps({"slurm_dl": {"v": 1, "sig": "USR1", "grace_s": 5000, "by": "daemon"}})


@pytest.fixture
def place(sandbox: Sandbox, short_directory: Path) -> Iterator[Schedd]:
    """A daemon whose site allows a minute; dlsubmit's default is two."""
    with schedd_in(sandbox, short_directory) as daemon:
        daemon.configure(
            preemption={"max_grace_s": 60},
            policy={"parameters": {"thresholds_gpu_s": [8, 100_000]}},
        )
        daemon.start()
        yield daemon


def test_a_job_of_dlsubmit_is_preemptible_where_the_site_allows_less(place: Schedd) -> None:
    """It is preempted for another; one submitted by hand with a longer grace is told it is not."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", "--nodes=1", "--gres=gpu:4", "--requeue"]
    by_hand = place.box.run([*argv, f"--comment={BY_HAND}", "--wrap=exec sleep 600"]).stdout.strip()
    victim = place.toy(12, 2000)
    for job in (by_hand, victim):
        place.until_state(job, "RUNNING")
    comment = place.box.run(["squeue", "-ho", "%k", "-j", victim]).stdout
    assert json.loads(comment)["slurm_dl"]["grace_s"] == 60

    first = place.toy(4, 2)
    place.until_state(first, "COMPLETED")

    assert place.job(victim, "Restarts") == ["1"]
    assert place.job(by_hand, "Restarts") == ["0"]
    said = place.ask("dlqueue", "why", by_hand).stdout
    assert "It is not preempted: its grace of 5000 s is above the site's limit of 60 s" in said
    assert "If it has to give way" not in said
    assert "up to 60 s to save its work" in place.ask("dlqueue", "why", victim).stdout
