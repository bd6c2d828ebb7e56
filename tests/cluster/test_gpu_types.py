"""A cluster of two GPU types: who goes where is the policy's choice, unless its owner chose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MakeSandbox
from schedd import Schedd, schedd_in

from slurm_dl.sandbox.spec import SandboxNodes, SandboxSpec

pytestmark = pytest.mark.slurm

MIXED = SandboxSpec(
    groups=(
        SandboxNodes(nodes=1, gpus=4, gpu_type="k80"),
        SandboxNodes(nodes=1, gpus=4, gpu_type="v100"),
    ),
    nodes_per_leaf=0,
)
"""Slurm by itself takes n1, the slow node, first."""


@pytest.fixture
def place(make_sandbox: MakeSandbox, short_directory: Path) -> Iterator[Schedd]:
    """A daemon that knows a v100 to be four times as fast as a k80."""
    with schedd_in(make_sandbox(MIXED), short_directory) as daemon:
        daemon.configure(
            policy={"order": "gavel_fifo", "parameters": {}},
            estimates={"gpu_speed": {"v100": 4.0, "k80": 1.0}},
            placement={"scheme": "best_fit", "steer": True, "settle_s": 5},
        )
        daemon.start()
        yield daemon


def node_of(place: Schedd, job: str) -> str:
    """Where the job is."""
    place.until_state(job, "RUNNING", "COMPLETED", within_s=60)
    return place.job(job, "NodeList")[0]


def test_the_first_job_goes_to_the_fast_gpus_and_the_next_to_what_is_left(place: Schedd) -> None:
    """Gavel's FIFO: the best type for each, in the order of arrival."""
    first = place.toy(4, 1, "--until", str(place.home / "never"))
    assert node_of(place, first) == "n2"
    second = place.toy(4, 8)
    assert node_of(place, second) == "n1"


def test_who_asks_for_a_type_gets_it(place: Schedd) -> None:
    """Typed gres is the owner's word; no policy changes it."""
    slow = place.submit(4, "sleep", "5", options=["--gpu-type", "k80"])

    assert node_of(place, slow) == "n1"


def test_once_the_fast_gpus_are_free_the_job_on_the_slow_ones_moves_there(place: Schedd) -> None:
    """No job waits: it is signalled, requeued into a reservation of the fast node, and goes on."""
    place.configure(
        policy={"order": "gavel_fifo", "parameters": {"lease_s": 8.0}},
        estimates={"gpu_speed": {"v100": 4.0, "k80": 1.0}},
        placement={"scheme": "best_fit", "steer": True, "settle_s": 5},
        preemption={"checkpoint_cost_s": 1, "limit_reserve_s": 0},
    )
    place.stop()
    place.start()
    done = place.home / "done"
    first = place.toy(4, 1, "--until", str(done))
    assert node_of(place, first) == "n2"
    second = place.toy(4, 400, options=["--time", "60"])
    assert node_of(place, second) == "n1"

    done.touch()
    place.until("the move", lambda: node_of(place, second) == "n2", 60)

    assert place.job(second, "Restarts") == ["1"]
    assert len(place.audit(action="signal")) == 1
    place.until("the hand-over to be closed", lambda: not place.open_handovers(), 30)
    place.until("the reservation to go", lambda: not place.reservations(), 30)
