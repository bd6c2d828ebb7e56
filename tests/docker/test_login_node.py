"""Users on a login node that has nothing of the daemon's: over TCP, MUNGE says who they are."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from containers import Containers, docker
from patience import PATIENCE

pytestmark = [
    pytest.mark.docker,
    pytest.mark.full("needs containers of three releases"),
    pytest.mark.timeout(900),
]

CONF = "/etc/slurm/slurm.conf"
GONE_S = 6.0
"""Within so many seconds users are told that there is no daemon."""

ANSWER_S = 5.0
"""The preview waits for 3 s, in all."""


@dataclass(frozen=True)
class Asked:
    """What a command in the login container came to."""

    status: int
    said: str
    took_s: float


def ask(cluster: Containers, user: str, *argv: str) -> Asked:
    """Run a command on the login node as *user*, and print how long it took."""
    began_s = time.monotonic()
    done = cluster.run("login", *argv, user=user, check=False)
    took_s = time.monotonic() - began_s
    print(f"{cluster.release} {took_s:5.2f} s  {user}: {' '.join(argv)[:90]}")  # noqa: T201 - pytest -rP
    return Asked(done.returncode, done.stdout + done.stderr, took_s)


def test_a_user_submits_and_asks(cluster: Containers) -> None:
    """Each command that users have, on a host without files or directories of the daemon."""
    daemons = ["/etc/slurm_dl/slurm_dl.yaml", "/run/slurm_dl", "/var/lib/slurm_dl"]
    assert cluster.run("login", "ls", *daemons, check=False).stdout == ""
    options = ("--gpus=1", "--gpu-type=a100", "--time=30", "--run-dir=.")

    job = ask(cluster, "alice", "dlsubmit", *options, "--preview", "--", "sleep", "600")
    assert job.status == 0
    assert "would start" in job.said
    job_id = re.findall(r"batch job (\d+)", job.said)[-1]
    cluster.until("it to run", lambda: cluster.queue().get(job_id, {}).get("state") == "R")
    for words, says in (
        ("dlqueue --me", job_id),
        (f"dlqueue why {job_id}", "has been running on 1 GPU"),
        (f"dlqueue when {job_id}", "ends in"),
        (f"dlctl logs {job_id}", "dlrun: "),
        ("dlctl status", "acting"),
        ("dlsubmit --when --gpus 8,16", "16 GPUs on 4 nodes: starts"),
        ("dlsubmit --preview --dry-run --gpus 8 -- true", "would start"),
    ):
        asked = ask(cluster, "alice", *words.split())
        assert (asked.status, says in asked.said) == (0, True), (words, asked.said)
        assert asked.took_s < ANSWER_S * PATIENCE


def test_root_of_the_login_node_is_root_of_the_cluster_and_a_user_is_a_user(
    cluster: Containers,
) -> None:
    refused = ask(cluster, "bob", "dlctl", "pause")
    assert refused.status == 1
    assert "you are bob" in refused.said
    host = cluster.run("login", "hostname", "-i").stdout.strip()
    assert ask(cluster, "root", "dlctl", "pause", "--reason=cooling").status == 0
    try:
        told = ask(cluster, "bob", "dlqueue").said
        assert f"paused by user root (0) from {host}: cooling" in told
    finally:
        assert ask(cluster, "root", "dlctl", "resume").status == 0


CROWD = """
python3 -c 'import socket, time
silent = [socket.create_connection(("dlschedd", 6822)) for _ in range(100)]
time.sleep(60)' &
for client in $(seq 50); do dlqueue --noheader || echo refused & clients="$clients $!"; done
wait $clients
kill %1
"""
"""Fifty clients of one user at once, beside a hundred connections that say nothing."""


def test_a_crowd_is_answered(cluster: Containers) -> None:
    crowd = ask(cluster, "alice", "bash", "-c", CROWD)
    assert (crowd.status, crowd.said) == (0, "")


def test_a_user_sees_what_private_data_lets_them(cluster: Containers) -> None:
    job = cluster.toy("alice", 1, 6000)
    cluster.until("bob to see it", lambda: job in cluster.queue("bob"))
    with hidden(cluster):
        cluster.until("it to be hidden", lambda: job not in cluster.queue("bob"), 60)
        assert job in cluster.queue("alice")
        assert job in cluster.queue("root")
        why, none = (ask(cluster, "bob", "dlqueue", "why", name) for name in (job, "999999"))
        assert (why.status, why.said) == (none.status, none.said.replace("999999", job))
        assert "alice" not in ask(cluster, "bob", "dlctl", "status").said


@contextmanager
def hidden(cluster: Containers) -> Iterator[None]:
    """Slurm hides jobs from other users."""
    before = cluster.run("slurmctld", "cat", CONF).stdout
    try:
        reconfigure(cluster, f"{before}PrivateData=jobs\n")
        yield
    finally:
        reconfigure(cluster, before)


def reconfigure(cluster: Containers, slurm_conf: str) -> None:
    cluster.run("slurmctld", "tee", CONF, input=slurm_conf)
    cluster.run("slurmctld", "scontrol", "reconfigure")


SHIM = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += AHEAD_S;
    return failed;
}
time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *to, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    to->tv_sec = now.tv_sec;
    to->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""
"""The clock of a program, AHEAD_S seconds ahead."""

OTHER_KEY = "mkdir /run/keys && head -c 1024 /dev/urandom >/run/keys/munge.key"


@contextmanager
def other_login(cluster: Containers, first: str, ahead_s: int, place: Path) -> Iterator[str]:
    """Name of one more login container, in which *first* is done first, with a clock of its own."""
    name = f"sdl-login-{uuid.uuid4().hex[:12]}"
    keys = [] if first else [f"--volume={cluster.project}_keys:/run/keys:ro"]
    argv = [f"--name={name}", f"--network={cluster.project}_cluster", *keys, "--entrypoint=bash"]
    start = f"{first or ':'} && exec /opt/image/role login"
    try:
        if ahead_s:
            (place / "clock.c").write_text(SHIM, "utf-8")
            gcc = ["gcc", "-shared", "-fPIC", f"-DAHEAD_S=({ahead_s})", "-oclock.so", "clock.c"]
            subprocess.run(gcc, cwd=place, check=True)
            argv.append("--env=LD_PRELOAD=/clock.so")
        docker("create", *argv, cluster.image, "-c", start)
        if ahead_s:
            docker("cp", f"{place}/clock.so", f"{name}:/clock.so")
        docker("start", name)
        # The last that is done there before it waits for users.
        ready = ["docker", "exec", name, "test", "!", "-e", "/etc/slurm_dl/slurm_dl.yaml"]
        cluster.until("it to start", lambda: subprocess.run(ready, check=False).returncode == 0)
        yield name
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)  # noqa: S607


@pytest.mark.parametrize(
    ("first", "ahead_s", "says"),
    [
        (OTHER_KEY, 0, "refused: MUNGE: Invalid credential: the hosts have different keys"),
        ("", 600, "refused: MUNGE: Rewound credential: the clock of one of the hosts"),
        ("", -600, "refused: MUNGE: Expired credential: the clock of one of the hosts"),
    ],
    ids=["another key", "clock ahead", "clock behind"],
)
def test_a_host_that_is_not_of_the_cluster_is_told_why(
    cluster: Containers, first: str, ahead_s: int, says: str, tmp_path: Path
) -> None:
    if ahead_s and not shutil.which("gcc"):
        pytest.skip("no gcc to build a clock with")
    with other_login(cluster, first, ahead_s, tmp_path) as name:
        for words in ("dlqueue", "dlctl pause"):
            said = docker("exec", "--user=alice", name, "sh", "-c", f"{words}; echo exit $?")
            assert says in said
            assert said.endswith("exit 1\n")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("it stands still", "dlschedd:6822 did not answer in time"),
        ("it is down", "dlschedd does not listen on dlschedd:6822: "),
        ("no such address", "dlschedd does not listen on "),
    ],
)
def test_users_are_told_soon_that_the_daemons_host_is_gone(
    cluster: Containers, how: str, says: str
) -> None:
    daemon = cluster.container("dlschedd")
    undo, command = (), ("dlqueue",)
    try:
        if how == "it stands still":
            docker("pause", daemon)
            undo = ("unpause", daemon)
        elif how == "it is down":
            docker("stop", "--time=10", daemon)
            undo = ("start", daemon)
        else:
            network = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
            there = docker("inspect", f"--format={network}", daemon).strip().rpartition(".")[0]
            command = ("env", f"SLURM_DL_SERVER={there}.250:6822", "dlqueue")
        asked = ask(cluster, "alice", *command)
    finally:
        if undo:
            docker(*undo)
    assert (asked.status, says in asked.said) == (1, True), asked.said
    assert asked.took_s < GONE_S
    cluster.until("dlschedd to be back", lambda: cluster.is_healthy("dlschedd"), 60)
