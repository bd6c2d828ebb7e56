"""Slurm's precedence above priority on a real Slurm: nobody goes round a higher PriorityTier.

Partition urgent has n1 alone and PriorityTier 2; partition gpu has both nodes and PriorityTier 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from schedd import Schedd, schedd_in
from victims import sank

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec
from slurm_dl.sandbox.spec import PartitionSpec

pytestmark = pytest.mark.slurm

OPTED_IN = json.dumps({"slurm_dl": {"v": 1, "sig": "USR1", "grace_s": 3, "by": "daemon"}})
LOOKS = 5
"""Where a hand-over is opened at all, the first or the second look opens it."""


@pytest.fixture(scope="module")
def box(module_directory: Path) -> Iterator[Sandbox]:
    """Two nodes of four GPUs."""
    urgent = PartitionSpec("urgent", "n1", ("PriorityTier=2",))
    spec = SandboxSpec(groups=(SandboxNodes(2),), partitions=(PartitionSpec("gpu"), urgent))
    made = Sandbox.up(module_directory / "box", spec)
    try:
        yield made
    finally:
        made.down(remove=True)


@pytest.fixture
def place(box: Sandbox, short_directory: Path) -> Iterator[Schedd]:
    """A daemon, not begun yet; its jobs go with it."""
    with schedd_in(box, short_directory) as daemon:
        yield daemon


def start(daemon: Schedd, *partitions: str) -> None:
    daemon.configure(
        manage={"partitions": list(partitions)},
        policy={"parameters": {"thresholds_gpu_s": [8, 100_000]}},
        preemption={"min_quantum_s": 1},
    )
    daemon.start()


def submit(place: Schedd, partition: str, *options: str) -> str:
    """A job of one whole node that ignores its signal; the job id."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", "--nodes=1", "--gres=gpu:4", "--time=10"]
    argv += ["--requeue", "--mem=1G", f"--comment={OPTED_IN}", f"--partition={partition}"]
    return place.box.run([*argv, *options, "--wrap=trap '' USR1; exec sleep 900"]).stdout.strip()


def restarts(place: Schedd, *jobs: str) -> list[int]:
    """How often each job was requeued."""
    return [int(place.job(job, "Restarts")[0]) for job in jobs]


def look(place: Schedd) -> None:
    """Wait until the daemon has looked at what is there."""
    looks = place.cycles() + LOOKS
    place.until("more looks", lambda: place.cycles() >= looks)


def test_no_node_is_taken_from_under_a_waiting_job_of_a_higher_tier(place: Schedd) -> None:
    """It waits in a partition that is not managed; elsewhere jobs give way as ever."""
    start(place, "gpu")
    on_n1, on_n2 = (submit(place, "gpu", f"--nodelist={node}") for node in ("n1", "n2"))
    for job in (on_n1, on_n2):
        place.until("the victim to sink", lambda job=job: sank(place, job))
    first = submit(place, "urgent")
    free, below = submit(place, "gpu"), submit(place, "gpu", "--nodelist=n1")
    submit(place, "gpu,urgent", "--hold")
    place.until_state(free, "RUNNING", within_s=30)
    look(place)

    assert restarts(place, on_n1, on_n2) == [0, 1]
    assert [place.state(job) for job in (first, below)] == ["PENDING", "PENDING"]
    said = place.ask("dlqueue", "why", below).stdout
    assert f"job {first} of partition urgent (PriorityTier 2)" in said
    assert "gpu,urgent" in place.ask("dlqueue").stdout


def test_a_running_job_of_a_higher_tier_gives_way_to_no_lower_one(place: Schedd) -> None:
    """Both are managed, and the lower one ranks before it by the policy; upwards they give way."""
    start(place, "gpu", "urgent")
    high, low = submit(place, "urgent"), submit(place, "gpu", "--nodelist=n2")
    for job in (high, low):
        place.until("the victim to sink", lambda job=job: sank(place, job))
    waits = submit(place, "gpu", "--nodelist=n1")
    look(place)
    assert restarts(place, high, low) == [0, 0]
    assert place.state(waits) == "PENDING"

    place.box.run(["scancel", high])
    place.until_state(waits, "RUNNING", within_s=30)
    place.until("the lower one to sink", lambda: sank(place, waits))
    higher = submit(place, "urgent")
    place.until_state(higher, "RUNNING", within_s=40)
    assert restarts(place, waits) == [1]
