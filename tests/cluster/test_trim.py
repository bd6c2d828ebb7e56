"""A job that asks for more CPUs than its part, and says it can do without them, on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = pytest.mark.slurm

HUNGRY = {
    "name": "hungry",
    "source": "a made-up model that is fastest with 12 CPUs for each GPU",
    "host": [
        {"cpus_per_gpu": 4, "mem_mb_per_gpu": 1000, "rate": 0.6},
        {"cpus_per_gpu": 12, "mem_mb_per_gpu": 1000, "rate": 1.0},
    ],
}


NODE = SandboxSpec(groups=(SandboxNodes(nodes=1, gpus=4, cpus=32),), nodes_per_leaf=0)


@pytest.fixture
def place(make_sandbox: object, short_directory: Path) -> Iterator[Schedd]:
    """A daemon that may cut CPUs, on one node of four GPUs and 32 CPUs."""
    box: Sandbox = make_sandbox(NODE)  # type: ignore[operator]
    with schedd_in(box, short_directory) as daemon:
        profiles = daemon.home / "profiles"
        profiles.mkdir()
        profiles.chmod(0o755)
        path = profiles / "hungry.yaml"
        path.write_text(yaml.safe_dump(HUNGRY), encoding="utf-8")
        path.chmod(0o644)
        daemon.configure(
            placement={"scheme": "best_fit", "trim": True},
            paths={"profile_dir": str(profiles)},
            preemption={"enabled": False},
        )
        daemon.start()
        yield daemon


def cpus(place: Schedd, job: str) -> int:
    """CPUs that Slurm says the job has or asks for."""
    return int(place.job(job, "NumCPUs")[0].partition("-")[0])


def test_a_waiting_job_is_cut_to_its_part_and_starts(place: Schedd) -> None:
    """Two GPUs and 16 CPUs are free; it asks for two GPUs and 24 CPUs, and its part is 16."""
    wall = place.submit(2, "sleep", "600", options=["--cpus", "8", "--no-preempt"])
    place.until_state(wall, "RUNNING")
    assert cpus(place, wall) == 16
    script = 'echo "$SLURM_CPUS_ON_NODE" > cpus; sleep 1'
    hungry = place.submit(2, "sh", "-c", script, options=["--model", "hungry", "--no-preempt"])
    place.until_state(hungry, "RUNNING", "COMPLETED")
    assert cpus(place, hungry) == 16
    place.until_state(hungry, "COMPLETED")
    (written,) = place.home.rglob("cpus")
    assert written.read_text(encoding="utf-8").strip() == "16"
    assert len(place.audit(action="trim", result="ok")) == 1


def test_who_named_the_cpus_keeps_them(place: Schedd) -> None:
    """Its owner wants 24 CPUs and nothing less: it waits for them."""
    go_on = place.home / "go_on"
    script = f"until [ -e {go_on} ]; do sleep 0.2; done"
    wall = place.submit(2, "sh", "-c", script, options=["--cpus", "8", "--no-preempt"])
    place.until_state(wall, "RUNNING")
    firm = place.submit(
        2, "sleep", "1", options=["--model", "hungry", "--cpus", "12", "--no-preempt"]
    )
    looked = place.cycles()
    place.until("the daemon to look at it some times", lambda: place.cycles() > looked + 5)
    assert place.state(firm) == "PENDING"
    go_on.touch()
    place.until_state(firm, "COMPLETED")
    assert cpus(place, firm) == 24
    assert place.audit(action="trim") == []


def test_a_running_job_gives_cpus_back_by_one_requeue(place: Schedd) -> None:
    """It holds 24 of 32 CPUs with two GPUs of four; who waits asks for its part, 16.

    In the order of arrival it would not be stopped for a job that comes later. Afterwards both run
    side by side. With `placement.trim` off the second one waits for the end of the first.
    """
    wide = place.toy(2, 4000, options=["--model", "hungry", "--time", "60"])
    place.until_state(wide, "RUNNING")
    assert cpus(place, wide) == 24
    give_back(place, trim=False)
    part = place.toy(2, 4000, options=["--cpus", "8", "--time", "60"])
    looked = place.cycles()
    place.until("the daemon to look at it some times", lambda: place.cycles() > looked + 8)
    assert place.state(part) == "PENDING"
    assert place.audit(action="signal") == []

    give_back(place, trim=True)
    place.until_state(part, "RUNNING")
    place.until("the first to be back", lambda: place.job(wide, "Restarts") == ["1"], 120)
    place.until_state(wide, "RUNNING", within_s=150)
    assert (cpus(place, wide), cpus(place, part)) == (16, 16)
    assert place.state(part) == "RUNNING"
    place.until("the hand-over to be closed", lambda: not place.open_handovers(), 30)
    place.until("the reservation to go", lambda: not place.reservations(), 30)
    assert place.job(wide, "Restarts") == ["1"]
    assert len(place.audit(action="signal")) == len(place.audit(action="trim", result="ok")) == 1


def give_back(place: Schedd, *, trim: bool) -> None:
    """Serve jobs in the order of arrival, with or without cuts."""
    place.configure(
        policy={"order": "fifo", "parameters": {}},
        placement={"scheme": "best_fit", "trim": trim},
        paths={"profile_dir": str(place.home / "profiles")},
    )
    place.ask("dlctl", "reload")
