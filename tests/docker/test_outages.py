"""Parts of the cluster go away and come back: jobs survive, and the ledger stays right."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from containers import Containers, docker

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


def agrees(cluster: Containers, job: str, gpus: int) -> bool:
    """The ledger of a job that has ended is what Slurm's accounting says, to a poll."""
    return abs(cluster.attained_gpu_s(job) - cluster.accounted_gpu_s(job)) <= gpus * POLL_S


def test_a_job_outlives_controller_and_accounting(cluster: Containers) -> None:
    """The controller restarts under a job; then it is preempted while slurmdbd stands still."""
    big = cluster.toy("alice", 8, 700, "--checkpoint-every=10000")
    cluster.until("it to run", lambda: cluster.state(big) == "RUNNING")
    started = cluster.job(big)["StartTime"]

    docker("restart", cluster.container("slurmctld"))
    cluster.until("slurmctld to be back", lambda: cluster.is_healthy("slurmctld"), 120)
    assert cluster.job(big)["StartTime"] == started
    # The daemon, too, finds the controller again by itself.
    cluster.until("the job to sink", lambda: cluster.queue().get(big, {}).get("tier", 0) > 0, 120)
    # A job that comes while slurmdbd is silent takes no update before that is back (22.05.8).
    small = cluster.toy("bob", 4, 20)
    with paused(cluster, "slurmdbd") as since:
        cluster.until("the job to give way", lambda: cluster.job(big)["Restarts"] == "1", 90)
        cluster.until("the small job to run", lambda: cluster.state(small) != "PENDING", 60)
        cluster.until("a minute to pass", lambda: time.monotonic() > since + PAUSE_S, PAUSE_S + 5)

    for job in (small, big):
        cluster.until(f"job {job} to end", lambda job=job: cluster.state(job) == "COMPLETED", 180)
    assert cluster.steps("alice", big) == list(range(1, 701))
    for job, gpus in ((small, 4), (big, 8)):
        cluster.until(
            f"accounting of job {job} to catch up",
            lambda job=job, gpus=gpus: agrees(cluster, job, gpus),
            60,
        )


def test_a_node_goes_and_comes_back(cluster: Containers) -> None:
    """Its job is put back by Slurm and runs again from its checkpoint; a neighbour runs on."""
    moved = cluster.toy("alice", 4, 300, "--checkpoint-every=20")
    cluster.until("it to run", lambda: cluster.state(moved) == "RUNNING")
    node = cluster.job(moved)["NodeList"]
    neighbour = cluster.toy("bob", 4, 300)
    cluster.until("both to run", lambda: cluster.state(neighbour) == "RUNNING")
    assert cluster.job(neighbour)["NodeList"] != node
    cluster.until("it to be seen", lambda: moved in cluster.queue())

    docker("stop", "--time=1", cluster.container(node))
    try:
        # Slurm waits for SlurmdTimeout before it gives the node up.
        cluster.until("Slurm to miss the node", lambda: cluster.job(moved)["Restarts"] == "1", 120)
    finally:
        docker("start", cluster.container(node))
    cluster.until("the node to be back", lambda: cluster.is_healthy(node), 90)

    for job in (moved, neighbour):
        cluster.until(f"job {job} to end", lambda job=job: cluster.state(job) == "COMPLETED", 180)
    assert cluster.job(neighbour)["Restarts"] == "0"
    steps = cluster.steps("alice", moved)
    assert steps[-1] == 300
    assert set(steps) == set(range(1, 301))
    assert not cluster.audit(moved) or "signal" not in {e["action"] for e in cluster.audit(moved)}
    cluster.until("the ledger to agree with sacct", lambda: agrees(cluster, moved, 4), 30)
    cluster.until("that of the neighbour too", lambda: agrees(cluster, neighbour, 4), 30)
