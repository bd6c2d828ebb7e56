"""Leases on a real Slurm: a promised job gets its GPUs at the begin of one, and gives them back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox

pytestmark = pytest.mark.slurm

LEASE_S = 60
POLICY = {
    "order": "chronus",
    "parameters": {"lease_length_s": LEASE_S, "restart_s": 0, "margin": 0},
}
SHARES = {"share": 1, "account_share": 1, "lead_s": 20}


@pytest.fixture
def place(sandbox: Sandbox, short_directory: Path) -> Iterator[Schedd]:
    """A daemon with leases of a minute."""
    with schedd_in(sandbox, short_directory) as daemon:
        daemon.configure(policy=POLICY, deadlines=SHARES, ranking={"overdue_share": 0})
        daemon.start()
        yield daemon


@pytest.mark.full("waits for leases and a deadline, four minutes")
def test_leases_hand_gpus_over_and_back(place: Schedd) -> None:
    """Jobs that may be preempted hold all GPUs; one with a deadline has some leases of them."""
    toys = [place.toy(2, 5000, options=["--time=10"]) for _ in range(8)]
    for toy in toys:
        place.until_state(toy, "RUNNING")
    options = ["--by", "+240", "--time=1", "--no-preempt", "--signal=USR1@10"]
    due = place.submit(8, "sleep", "40", options=options)
    place.until("an answer", lambda: due in place.promises())
    promise = place.promises()[due]
    assert promise.says == "yes"
    assert all(
        at_s % LEASE_S == 0 for begin_s, end_s, _ in promise.plan for at_s in (begin_s, end_s)
    )
    assert place.state(due) == "PENDING"
    place.until_state(due, "RUNNING", within_s=240)
    assert promise.begin_s is not None
    assert time.time() >= promise.begin_s
    place.until_state(due, "COMPLETED", within_s=80)
    assert time.time() <= promise.due_s
    place.until("all run again", lambda: all(place.state(toy) == "RUNNING" for toy in toys), 120)
