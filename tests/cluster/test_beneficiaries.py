"""For whom others are preempted on a real Slurm: by default not for who may not be preempted."""

from __future__ import annotations

from typing import Any

import pytest
from schedd import Schedd, running_schedd

from slurm_dl.daemon.control.client import Client

pytestmark = pytest.mark.slurm

NODES, GPUS = 4, 4
TIERS = {"parameters": {"thresholds_gpu_s": [8, 48]}}
"""A job of one node sinks into tier 1 after 2 s and into tier 2 after 12 s."""


place = running_schedd(policy=TIERS)


def tiers(place: Schedd, *jobs: str) -> list[int]:
    """The tiers of *jobs* by the daemon's last look, of those that it has seen running."""
    rows: Any = Client(place.socket).ask("queue")["jobs"]
    return [row["tier"] for row in rows if row["job"] in jobs and row["state"] == "R"]


def restarts(place: Schedd, *jobs: str) -> list[int]:
    """How often each job was requeued."""
    return [int(place.job(job, "Restarts")[0]) for job in jobs]


def test_a_job_that_has_not_opted_in_displaces_nobody(place: Schedd) -> None:
    """A job of a week on all GPUs waits for room; one that has opted in takes a node meanwhile.

    With `beneficiaries: all` it takes them all.
    """
    endless = ["--until", str(place.home / "never")]
    longest = place.toy(GPUS, 1, *endless)
    place.until("the first job to sink twice", lambda: tiers(place, longest) == [2])
    opted = [longest, *(place.toy(GPUS, 1, *endless) for _ in range(NODES - 1))]
    place.until("the others to sink", lambda: [t > 0 for t in tiers(place, *opted)] == [True] * 4)
    argv = ["sbatch", "--parsable", "--output=/dev/null", "-N4", "--gpus-per-node=4", "-t7-0"]
    rider = place.box.run([*argv, "--wrap=exec sleep 600"]).stdout.strip()
    place.until(
        "its owner to be told what to do",
        lambda: "dlsubmit" in place.ask("dlqueue", "why", rider, check=False).stdout,
    )
    looks = place.cycles() + 5
    place.until("five more looks", lambda: place.cycles() >= looks)
    assert place.audit(action="open_handover") == []
    assert restarts(place, *opted) == [0] * NODES

    new = place.toy(GPUS, 4)
    place.until_state(new, "RUNNING", "COMPLETED")
    assert sorted(restarts(place, *opted)) == [*[0] * (NODES - 1), 1]
    place.until_state(new, "COMPLETED")
    assert place.state(rider) == "PENDING"

    place.configure(policy=TIERS, preemption={"beneficiaries": "all"})
    place.ask("dlctl", "reload")
    place.until_state(rider, "RUNNING")
    assert min(restarts(place, *opted)) == 1
