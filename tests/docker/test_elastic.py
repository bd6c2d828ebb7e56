"""An elastic job grows and shrinks by checkpoint and requeue, on newer releases of Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml
from containers import Containers, docker

from slurm_dl.slurm.read.grammar import expand

CONFIG = "/etc/slurm_dl/slurm_dl.yaml"
SETTINGS = {
    "resizing": {"steadiness": 0.1, "cooldown_s": 3},
    "placement": {"scheme": "best_fit", "steer": True, "settle_s": 4},
}
STEPS = 1600
RESIZE_S = 150
"""To save, to be put back, to wait until Slurm lets it start again, and to start."""
_ON_NODES = re.compile(r" Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=gpu:a100:(\d+)")

pytestmark = [
    pytest.mark.docker,
    pytest.mark.full("needs containers of two releases"),
    pytest.mark.timeout(900),
    # The sandbox has 22.05.
    pytest.mark.parametrize("cluster", ["24.11", "26.05"], indirect=True),
]


def restart(cluster: Containers, config: str) -> None:
    """Let dlschedd start with *config*, and the login node know it."""
    cluster.run("dlschedd", "tee", CONFIG, input=config)
    told = cluster.run("dlschedd", "dlctl", "client-config", "--server=dlschedd:6822").stdout
    cluster.run("login", "tee", "/etc/slurm_dl/client.yaml", input=told)
    docker("restart", "--time=10", cluster.container("dlschedd"))
    cluster.until("dlschedd to be back", lambda: cluster.is_healthy("dlschedd"), 90)


@pytest.fixture
def resizing(cluster: Containers) -> Iterator[Containers]:
    """The cluster with a daemon that resizes soon; afterwards as it was."""
    config = cluster.run("dlschedd", "cat", CONFIG).stdout
    try:
        restart(cluster, yaml.safe_dump(yaml.safe_load(config) | SETTINGS))
        yield cluster
    finally:
        restart(cluster, config)


def held(cluster: Containers, job: str) -> list[int]:
    """GPUs that a running job holds on each of its nodes by Slurm's details; none if it waits."""
    text = cluster.run("slurmctld", "scontrol", "show", "job", "-d", "-o", job).stdout
    if " JobState=RUNNING" not in text:
        return []
    return [int(gpus) for nodes, gpus in _ON_NODES.findall(text) for _ in expand(nodes)]


def test_a_job_grows_and_shrinks(resizing: Containers) -> None:
    """1, 2 and 1 GPUs of a named type under one job id, and no step is lost or done twice."""
    cluster = resizing
    flag = "/home/bob/other-ends"
    cluster.run("login", "rm", "-f", flag, user="bob")
    keep = ["--no-preempt"]
    others = [cluster.toy("bob", gpus, 10_000, options=keep) for gpus in (4, 2)]
    others.append(cluster.toy("bob", 1, 1, "--until", flag, options=keep))
    for other in others:
        cluster.until(f"job {other} to run", lambda job=other: bool(held(cluster, job)))
    job = cluster.toy("alice", 1, STEPS, "--checkpoint-every=10000", options=["--sizes=1,2"])
    cluster.until("it to run on 1 GPU", lambda: held(cluster, job) == [1])

    cluster.run("login", "touch", flag, user="bob")
    cluster.until("it to run on 2 GPUs", lambda: held(cluster, job) == [2], RESIZE_S)
    large = cluster.job(job)
    rigid = cluster.toy("carol", 1, 10_000, options=keep)
    cluster.until("it to run on 1 GPU again", lambda: held(cluster, job) == [1], RESIZE_S)
    cluster.until("the other to run", lambda: held(cluster, rigid) == [1])

    why = cluster.run("login", "dlqueue", "why", job, user="alice").stdout
    cluster.until("it to end", lambda: cluster.state(job) == "COMPLETED", 200)
    # Each GPU has the same CPUs in each size; 24.11 goes on showing TresPerTask=cpu=4.
    assert large["NumCPUs"] == "8"
    acts = [entry["action"] for entry in cluster.audit(job)]
    assert acts.count("reshape") == acts.count("requeue") == cluster.restarts(job) == 2, acts
    assert cluster.steps("alice", job) == list(range(1, STEPS + 1))
    assert [gpus for _, _, gpus in cluster.runs(job)] == [1, 2, 1]
    assert f"back to job {rigid}, to go on with 1 GPU (1x1)" in why
