"""The ledger is lost: accounting gives back what each job has had, on each Slurm release."""

from __future__ import annotations

import time

import pytest
from containers import Containers, docker

pytestmark = [
    pytest.mark.docker,
    pytest.mark.full("needs containers of three releases"),
    pytest.mark.timeout(900),
]

POLL_S = 2.0
SEEN_S = 3.0
"""From an instant to when the daemon has seen it and we have asked: a poll, and the asking."""


def test_a_lost_ledger_is_rebuilt_from_accounting(cluster: Containers) -> None:
    """One job runs for the second time, one for the first: both have had what they had."""
    again = cluster.toy("alice", 4, 1200, "--checkpoint-every=20")
    once = cluster.toy("bob", 4, 1200, "--checkpoint-every=20")
    jobs = (again, once)
    cluster.until("both to run", lambda: all(cluster.state(j) == "RUNNING" for j in jobs))
    cluster.until("both to have had something", lambda: min(had(cluster, jobs).values()) > 30, 90)
    cluster.run("slurmctld", "scontrol", "requeue", again)
    cluster.until("one to run again", lambda: cluster.restarts(again) == 1, 90)
    cluster.until("it to run", lambda: cluster.state(again) == "RUNNING", 90)
    cluster.until("accounting to know", lambda: len(cluster.runs(again)) == 2, 60)
    # What runs is counted to the last look; a look later the second run is counted, too.
    first_gpu_s = had(cluster, jobs)[again]
    cluster.until("the second run to count", lambda: had(cluster, jobs)[again] > first_gpu_s + 8)

    before, before_s = had(cluster, jobs), time.monotonic()
    docker("stop", "--time=10", cluster.container("dlschedd"))
    cluster.erase("dlschedd", "/var/lib/slurm_dl", "ledger.sqlite*")
    docker("start", cluster.container("dlschedd"))
    cluster.until("dlschedd to be back", lambda: cluster.is_healthy("dlschedd"), 60)
    cluster.until("both to be rebuilt", lambda: min(had(cluster, jobs).values()) > 30, 30)

    after, since_s = had(cluster, jobs), time.monotonic() - before_s
    for job in jobs:
        # They never stopped running meanwhile.
        expected_gpu_s = before[job] + 4 * since_s
        assert abs(after[job] - expected_gpu_s) <= 4 * (POLL_S + SEEN_S), (job, before, after)


def had(cluster: Containers, jobs: tuple[str, ...]) -> dict[str, float]:
    """Attained service of *jobs* as users see it, GPU-seconds; 0 of one that is not seen."""
    queued = cluster.queue()
    return {job: 3600 * queued.get(job, {}).get("attained_gpu_h", 0.0) for job in jobs}
