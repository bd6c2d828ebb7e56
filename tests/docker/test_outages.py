"""Parts of the cluster go away and come back: jobs survive, and the ledger stays right."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from containers import Containers, docker

pytestmark = [
    pytest.mark.docker,
    pytest.mark.full("needs containers of three releases"),
    pytest.mark.timeout(900),
]

POLL_S = 3.0
PAUSE_S = 60.0


@contextmanager
def paused(cluster: Containers, part: str) -> Iterator[float]:
    """*part* stands still; yields when that began."""
    docker("pause", cluster.container(part))
    try:
        yield time.monotonic()
    finally:
        docker("unpause", cluster.container(part))


@contextmanager
def gone(cluster: Containers, node: str) -> Iterator[None]:
    """The container of *node* is stopped, with all that runs in it; after that it is back."""
    docker("stop", "--time=1", cluster.container(node))
    try:
        yield
    finally:
        docker("start", cluster.container(node))
    cluster.until(f"{node} to be back", lambda: cluster.is_healthy(node), 90)


def test_jobs_outlive_controller_accounting_and_node(cluster: Containers) -> None:
    """Slurmctld restarts; then slurmdbd stands still while a job is preempted and a node dies."""
    big = cluster.toy("alice", 8, 700, "--checkpoint-every=10000")
    moved = cluster.toy("alice", 4, 500, "--checkpoint-every=20", gpu_type="h100")
    neighbour = cluster.toy("bob", 4, 500, gpu_type="h100")
    first = (big, moved, neighbour)
    cluster.until("all to run", lambda: all(cluster.state(j) == "RUNNING" for j in first))
    before = {job: cluster.job(job) for job in first}
    node = before[moved]["NodeList"]
    assert before[neighbour]["NodeList"] != node

    docker("restart", cluster.container("slurmctld"))
    cluster.until("slurmctld to be back", lambda: cluster.is_healthy("slurmctld"), 120)
    for job in first:
        assert cluster.job(job)["StartTime"] == before[job]["StartTime"]
    # The daemon, too, finds the controller again by itself.
    cluster.until("the large job to sink", lambda: cluster.tier(big) > 0, 120)
    small = cluster.toy("bob", 4, 20)
    # Until slurmdbd has given a job its index it takes no update (22.05.8): the daemon could not
    # put it in front, and would not stop another for it.
    cluster.until("accounting to know the small job", lambda: cluster.is_accounted(small), 60)
    with paused(cluster, "slurmdbd") as since:
        with gone(cluster, node):
            cluster.until("the large job to give way", lambda: cluster.restarts(big) == 1, 90)
            # Slurm waits for SlurmdTimeout before it gives a node up.
            cluster.until("Slurm to miss the node", lambda: cluster.restarts(moved) == 1, 120)
        cluster.until("a minute to pass", lambda: time.monotonic() > since + PAUSE_S, PAUSE_S + 5)

    for job in (small, *first):
        cluster.until(f"job {job} to end", lambda job=job: cluster.state(job) == "COMPLETED", 180)
    assert cluster.steps("alice", big) == list(range(1, 701))
    steps = cluster.steps("alice", moved)
    # What was done after the last checkpoint is done twice; nobody could save it.
    assert steps[-1] == 500
    assert set(steps) == set(range(1, 501))
    assert cluster.restarts(neighbour) == cluster.restarts(small) == 0
    assert "signal" not in {act["action"] for act in cluster.audit(moved)}
    for job, gpus in ((small, 4), (big, 8), (moved, 4), (neighbour, 4)):
        cluster.until(
            f"accounting of job {job} to catch up and agree with the ledger",
            lambda job=job, gpus=gpus: (
                cluster.attained_gpu_s(job)
                == pytest.approx(cluster.accounted_gpu_s(job), abs=gpus * POLL_S)
            ),
            60,
        )
