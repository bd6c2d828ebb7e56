"""A user's jobs from submission to end, on each Slurm release with its own accounting."""

from __future__ import annotations

import json
from typing import Any

import pytest
from containers import Containers

pytestmark = [
    pytest.mark.docker,
    pytest.mark.full("needs containers of three releases"),
    pytest.mark.timeout(900),
]

POLL_S = 3.0


def test_is_the_release_that_was_asked_for(cluster: Containers) -> None:
    """The newest moves on by itself: then at least it is no older."""
    said = cluster.run("slurmctld", "scontrol", "--version").stdout.split()[-1]
    seen = tuple(int(part) for part in said.split(".")[:2])
    wanted = tuple(int(part) for part in cluster.release.split("."))

    assert seen == wanted or (cluster.release == "26.05" and seen > wanted), said


def test_a_large_job_gives_way_resumes_and_is_accounted_for(cluster: Containers) -> None:
    """Submit, order by attained service, signal, requeue, resume, end; ledger equals sacct."""
    steps = 260
    big = cluster.toy("alice", 8, steps, "--checkpoint-every=10000")
    cluster.until("the large job to sink", lambda: cluster.tier(big) > 0)
    small = [cluster.toy("bob", 4, 40) for _ in range(4)]
    cluster.until("it to be put back", lambda: cluster.state(big) == "PENDING", 60)
    more = cluster.toy("carol", 4, 20)

    # The order reaches Slurm: who has had less stands before who has had more.
    queued = cluster.until("both to be seen", lambda: _seen(cluster, more, big))
    assert queued[more]["rank"] < queued[big]["rank"]
    cluster.until("Slurm to know the order", lambda: _priority(cluster, more, big))
    cluster.until(
        "the small jobs to end",
        lambda: all(cluster.state(job) == "COMPLETED" for job in [*small, more]),
        120,
    )
    cluster.until("the large job to end", lambda: cluster.state(big) == "COMPLETED", 120)

    acts = [entry["action"] for entry in cluster.audit(big)]
    assert acts.index("signal") < acts.index("requeue") < acts.index("mark_gone")
    restarts = cluster.restarts(big)
    assert acts.count("requeue") == restarts >= 1
    # Nothing done twice, nothing left out: it went on where it had saved.
    assert cluster.steps("alice", big) == list(range(1, steps + 1))
    assert len(cluster.runs(big)) == restarts + 1
    for job, gpus in [(big, 8), *((job, 4) for job in [*small, more])]:
        cluster.until(
            f"the ledger of job {job} to agree with sacct",
            lambda job=job, gpus=gpus: (
                abs(cluster.attained_gpu_s(job) - cluster.accounted_gpu_s(job)) <= gpus * POLL_S
            ),
            20,
        )


def _seen(cluster: Containers, *jobs: str) -> dict[str, dict[str, Any]]:
    queued = cluster.queue()
    return queued if set(jobs) <= set(queued) else {}


def _priority(cluster: Containers, first: str, second: str) -> bool:
    priority = {job: int(cluster.job(job)["Priority"]) for job in (first, second)}
    # A job that runs already has been first.
    return cluster.state(first) != "PENDING" or priority[first] > priority[second]


COUNTS = """#!/bin/bash
trap 'echo $SLURM_ARRAY_TASK_ID ${SLURM_RESTART_COUNT:-0} >>signals' USR1
while :; do sleep 0.2; done
"""
GRACE_S = 12
"""Longer than scancel's first two pauses, 5 and 6 s, after which it sends a signal again."""


def test_tasks_of_an_array_with_pending_tasks_are_signalled_once(cluster: Containers) -> None:
    """Two that hold all GPUs of a type, at the same time, and what they make room for starts."""
    claim = f'{{"slurm_dl":{{"v":1,"sig":"USR1","to":"batch","grace_s":{GRACE_S}}}}}'
    argv = ["sbatch", "--parsable", "--array=1-6%2", "-N1", "--gpus-per-node=a100:4", "--time=30"]
    argv += ["--requeue", "--output=/dev/null", f"--comment={claim}"]
    cluster.run("login", "rm", "-f", "signals", user="alice")
    array = cluster.run("login", *argv, input=COUNTS, user="alice").stdout.strip()
    first = [f"{array}_{task}" for task in (1, 2)]
    cluster.until("two to run", lambda: {cluster.state(task) for task in first} == {"RUNNING"})
    cluster.until("two to sink", lambda: min(cluster.tier(task) for task in first) > 0)

    big = cluster.toy("bob", 8, 20)
    ids = [cluster.job(task)["JobId"] for task in first]
    cluster.until("signals", lambda: all(_times(cluster, "signal", job) for job in ids))
    cluster.until("room", lambda: cluster.state(big) != "PENDING", GRACE_S + 15)

    sent = [_times(cluster, "signal", job) for job in ids]
    assert [len(times) for times in sent] == [1, 1]
    assert abs(sent[0][0] - sent[1][0]) < GRACE_S / 2
    said = cluster.run("login", "cat", "signals", user="alice").stdout.splitlines()
    assert sorted(line for line in said if line.endswith(" 0")) == ["1 0", "2 0"]


def _times(cluster: Containers, action: str, job: str) -> list[float]:
    """When it was done to *job* with success."""
    entries = cluster.audit(job)
    return [e["epoch_s"] for e in entries if (e["action"], e["result"]) == (action, "ok")]


def test_dlschedd_is_an_operator_and_no_more(cluster: Containers) -> None:
    """Neither root nor SlurmUser, and the rights of an administrator are refused to it."""
    pid = json.loads(cluster.run("dlschedd", "dlctl", "status", "--json").stdout)["pid"]
    uid = cluster.run("dlschedd", "stat", "--format=%U", f"/proc/{pid}").stdout.strip()
    level = cluster.run(
        *("slurmctld", "sacctmgr", "-nP", "show", "user", "slurm_dl", "format=admin")
    ).stdout.strip()
    raise_itself = cluster.run(
        *("dlschedd", "sacctmgr", "--immediate", "modify", "user", "where", "name=slurm_dl"),
        *("set", "adminlevel=admin"),
        user="slurm_dl",
        check=False,
    )
    shut_down = cluster.run("dlschedd", "scontrol", "reconfigure", user="slurm_dl", check=False)

    assert uid == "slurm_dl"
    assert level == "Operator"
    assert raise_itself.returncode != 0
    assert shut_down.returncode != 0, shut_down.stdout
    again = cluster.run(
        *("slurmctld", "sacctmgr", "-nP", "show", "user", "slurm_dl", "format=admin")
    ).stdout.strip()
    assert again == "Operator"


def test_nobody_acts_on_the_jobs_of_another(cluster: Containers) -> None:
    """Whatever bob types, alice's job, its files and the daemon stay as they are."""
    job = cluster.toy("alice", 8, 600)
    cluster.until("it to run", lambda: cluster.state(job) == "RUNNING")
    cluster.until("it to be seen", lambda: job in cluster.queue())
    before = cluster.job(job)
    refused = [
        ("dlctl", "pause"),
        ("dlctl", "resume"),
        ("dlctl", "reload"),
        ("dlctl", "snapshot", "-"),
        ("dlctl", "release-all", "--yes"),
        ("dlschedd", "--live", "--once"),
        ("dlschedd", "--live", "--run-dir", "/home/bob", "--state-dir", "/home/bob", "--once"),
        ("sh", "-c", f"SLURM_JOB_ID={job} SLURM_DL_RUN_DIR=/home/alice/{job} dlrun true"),
    ]

    in_her_place = cluster.run(
        *(
            "login",
            "dlsubmit",
            "--parsable",
            "--gpus=1",
            "--no-check",
            "--run-dir=/home/alice",
            "--gpu-type=h100",
        ),
        *("--", "touch", "x"),
        user="bob",
    ).stdout.strip()
    said = {argv: cluster.run("login", *argv, user="bob", check=False) for argv in refused}

    after = cluster.job(job)
    assert {a: r.returncode for a, r in said.items() if r.returncode == 0} == {}
    for name in ("JobState", "Restarts", "StartTime", "Comment", "ReservationName"):
        assert after.get(name) == before.get(name)
    assert json.loads(cluster.run("dlschedd", "dlctl", "status", "--json").stdout)["paused"] is None
    cluster.until("his job to fail", lambda: cluster.state(in_her_place) == "FAILED")
    owners = cluster.run("login", "find", "/home/alice", "!", "-user", "alice").stdout
    assert owners == ""
