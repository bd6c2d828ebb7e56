"""Nobody is stopped before a maintenance on a real Slurm who could not start again before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = pytest.mark.slurm

GPUS = 4
MAINTENANCE = (
    *("scontrol", "create", "reservation", "ReservationName=maintenance", "Users=root"),
    *("Nodes=ALL", "Flags=MAINT,IGNORE_JOBS", "StartTime=now+30minutes", "Duration=60"),
)


@pytest.fixture
def place(make_sandbox: Callable[..., Sandbox], short_directory: Path) -> Iterator[Schedd]:
    """A cluster of one node with four GPUs, whose daemon reads the nodes every two seconds."""
    spec = SandboxSpec(groups=(SandboxNodes(nodes=1, gpus=GPUS),), nodes_per_leaf=0)
    with schedd_in(make_sandbox(spec), short_directory) as daemon:
        daemon.configure(
            daemon={"nodes_every_s": 2}, policy={"parameters": {"thresholds_gpu_s": [16, 5000]}}
        )
        yield daemon


def test_a_job_that_could_not_restart_before_a_reservation_runs_on(place: Schedd) -> None:
    """It has sunk below one that waits; without the reservation it is stopped for it."""
    place.start()
    runs = place.toy(GPUS, 100_000, options=["--time", "60"])
    place.until_state(runs, "RUNNING")
    place.box.run(list(MAINTENANCE))
    seen = place.cycles()
    place.until("the job to sink", lambda: place.cycles() > seen + 6)
    waits = place.toy(GPUS, 1, options=["--time", "5"])

    place.until(
        "the reason",
        lambda: (
            "before the next reservation" in place.ask("dlqueue", "why", waits, check=False).stdout
        ),
    )
    seen = place.cycles()
    place.until("five more looks", lambda: place.cycles() >= seen + 5)
    assert place.state(runs) == "RUNNING"
    assert place.audit(action="open_handover") == []

    place.box.run(["scontrol", "delete", "ReservationName=maintenance"])
    place.until_state(waits, "RUNNING", "COMPLETED")
    assert place.job(runs, "Restarts") == ["1"]
