"""Limits of preemption on a real Slurm: a site's longest grace, a job's share of its time limit."""

from __future__ import annotations

import json

import pytest
from schedd import Schedd, running_schedd

pytestmark = pytest.mark.slurm

BY_HAND = json.dumps({"slurm_dl": {"v": 1, "sig": "USR1", "grace_s": 5000, "by": "daemon"}})


place = running_schedd(
    preemption={"max_grace_s": 60},
    policy={"parameters": {"thresholds_gpu_s": [8, 100_000]}},
)
"""The site allows a minute; dlsubmit's default is two."""


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
    assert "If it is preempted" not in said
    promise = "up to 60 s to save its work"
    place.until("it to wait again", lambda: promise in place.ask("dlqueue", "why", victim).stdout)


def test_a_run_past_the_share_that_it_claims_is_left_alone(place: Schedd) -> None:
    """By its comment, or by submitit's WCKey; another with the same time limit gives way."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", "--requeue", "--time=1"]
    claims = {"until": {"until": 0.1}, "wckey": {}, "neither": {}}
    jobs = {}
    for name, claim in claims.items():
        comment = json.dumps({"slurm_dl": {"v": 1, "sig": "TERM", "grace_s": 5, **claim}})
        size = "--nodes=2" if name == "neither" else "--nodes=1"
        more = ["--wckey=submitit"] if name == "wckey" else []
        command = [
            *argv,
            *more,
            size,
            "--gres=gpu:4",
            f"--comment={comment}",
            "--wrap=trap '' TERM; sleep 600",
        ]
        jobs[name] = place.box.run(command).stdout.strip()
        place.until_state(jobs[name], "RUNNING")
    for name in ("until", "wckey"):
        # 0.1 counts as a half, and so does submitit's window of a limit this short.
        place.until(
            "it to be protected",
            lambda name=name: (
                "It is not preempted: it is past the part of its time limit"
                in place.ask("dlqueue", "why", jobs[name]).stdout
            ),
            50,
        )
    first = place.toy(8, 2)

    place.until("another to give way", lambda: place.job(jobs["neither"], "Restarts") == ["1"], 20)
    place.until_state(first, "RUNNING", "COMPLETED")
    assert [place.job(jobs[name], "Restarts") for name in ("until", "wckey")] == [["0"], ["0"]]
    assert len(place.audit(action="signal")) == 1
