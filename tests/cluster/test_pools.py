"""Scheme `pools` on a real Slurm: a job waits for the pool in which it will be done first.

The estimate of a pool changes with the time limit of the job that runs there. A waiting job is then
sent to the other pool once, and no sooner than a cool-down after it was last sent anywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from ClusterShell.NodeSet import NodeSet
from conftest import MakeSandbox
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import SandboxNodes, SandboxSpec

pytestmark = pytest.mark.slurm

TWO_POOLS = SandboxSpec(
    groups=(
        SandboxNodes(nodes=1, gpus=4, cpus=16, gpu_type="k80"),
        SandboxNodes(nodes=1, gpus=4, cpus=16, gpu_type="v100"),
    ),
    nodes_per_leaf=0,
)
SPEEDS = {"k80": 1.0, "v100": 4.0}
PROFILE = {
    "name": "fast",
    "source": "a made-up model",
    "speeds": [{"shape": "1x4", "steps_per_s": v, "gpu_type": t} for t, v in SPEEDS.items()],
}
COOLDOWN_S = 20


@pytest.fixture
def place(make_sandbox: MakeSandbox, short_directory: Path) -> Iterator[Schedd]:
    """A slow node n1 and a fast one n2; the order is that of arrival, and nobody is preempted."""
    with schedd_in(make_sandbox(TWO_POOLS), short_directory) as daemon:
        path = daemon.home / "profiles" / "fast.yaml"
        path.parent.mkdir(mode=0o755)
        path.write_text(yaml.safe_dump(PROFILE), encoding="utf-8")
        path.chmod(0o644)
        yield daemon


def put_in_force(place: Schedd, scheme: str, **parameters: float) -> None:
    """Let the daemon place by this scheme."""
    place.configure(
        policy={"order": "fifo", "parameters": {}},
        placement={"scheme": scheme, "parameters": parameters, "steer": True, "settle_s": 4},
        paths={"profile_dir": str(place.home / "profiles")},
        preemption={"enabled": False},
    )
    place.start()


def block(place: Schedd, node: str, minutes: int) -> str:
    """Take a whole node."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", f"--nodelist={node}", "--gres=gpu:4"]
    job = place.box.run([*argv, f"--time={minutes}", "--wrap=exec sleep 3600"]).stdout.strip()
    place.until_state(job, "RUNNING")
    return job


def an_hour(place: Schedd) -> str:
    """Four GPUs for an hour on the slow node, a quarter of one on the fast node."""
    options = ["--model=fast", "--no-preempt", "--time=60"]
    return place.submit(4, "sleep", "3600", options=options)


def kept_off(place: Schedd, job: str) -> str:
    """The nodes that the job is kept off."""
    return str(NodeSet(place.job(job, "ExcNodeList")[0]))


def sent(place: Schedd, job: str) -> list[dict[str, Any]]:
    """Each time that the job was sent to a pool."""
    return place.audit(action="set_steer", job=int(job), result="ok")


@pytest.mark.parametrize(
    ("scheme", "waits"),
    [
        ("pools", True),
        pytest.param("best_fit", False, marks=pytest.mark.full("shows that it can fail")),
    ],
)
def test_a_job_waits_for_the_fast_pool_though_the_slow_one_is_free(
    place: Schedd, scheme: str, *, waits: bool
) -> None:
    """10 minutes of waiting and 15 of running are less than an hour; by best fit it starts."""
    fast = block(place, "n2", 10)
    put_in_force(place, scheme)
    job = an_hour(place)
    if not waits:
        place.until_state(job, "RUNNING")
        assert place.job(job, "NodeList") == ["n1"]
        return
    place.until("the job to be kept off n1", lambda: kept_off(place, job) == "n1")
    looked = place.cycles()
    place.until("some looks", lambda: place.cycles() > looked + 5)
    assert place.state(job) == "PENDING"
    place.box.run(["scancel", fast])
    place.until_state(job, "RUNNING")
    assert place.job(job, "NodeList") == ["n2"]


@pytest.mark.full("waits out two cool-downs")
def test_a_job_is_sent_to_the_other_pool_once_in_a_cool_down(place: Schedd) -> None:
    """The job on the fast node gets three hours more, and loses them again as soon as it has moved.

    Both changes are clear gains. Each is followed, the second no sooner than a cool-down later.
    """
    slow, fast = block(place, "n1", 20), block(place, "n2", 10)
    put_in_force(place, "pools", cooldown_s=COOLDOWN_S)
    job = an_hour(place)
    place.until("the job to be kept off n1", lambda: kept_off(place, job) == "n1")
    assert "v100 in gpu" in place.ask("dlqueue", "why", job).stdout

    place.box.run(["scontrol", "update", f"JobId={fast}", "TimeLimit=190"])
    place.until("the job to move", lambda: kept_off(place, job) == "n2")
    assert "k80 in gpu" in place.ask("dlqueue", "why", job).stdout
    assert len(sent(place, job)) == 2

    place.box.run(["scontrol", "update", f"JobId={fast}", "TimeLimit=10"])
    place.until("it to move back", lambda: kept_off(place, job) == "n1")
    moves = sent(place, job)
    assert len(moves) == 3
    for earlier, later in itertools.pairwise(moves):
        assert later["epoch_s"] >= earlier["details"]["until_s"]
        # It counts from the look, whose time is in whole seconds.
        assert later["epoch_s"] - earlier["epoch_s"] >= COOLDOWN_S - 3

    place.box.run(["scancel", fast, slow])
    place.until_state(job, "RUNNING")
    assert place.job(job, "NodeList") == ["n2"]
    ended = partial(place.audit, action="forget_steer", job=int(job))
    place.until("the daemon to compare the start", ended)
    assert "earlier than expected" in ended()[0]["reason"]
