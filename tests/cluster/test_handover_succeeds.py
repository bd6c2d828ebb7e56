"""Nobody is preempted in vain on a real Slurm.

Before GPUs are taken: the victim can start again, and the beneficiary can start on the nodes, as
they are at that moment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from schedd import Schedd, schedd_in
from victims import sank

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec
from slurm_dl.sandbox.spec import PartitionSpec

pytestmark = pytest.mark.slurm

OPTED_IN = json.dumps({"slurm_dl": {"v": 1, "sig": "USR1", "grace_s": 5, "by": "daemon"}})
LOOKS = 5
"""Where a hand-over is opened at all, the first or the second look opens it."""
SAVES_S, GRACE_S = 10, 20
HOLD_S = 60
"""Slurm keeps a requeued job of `two_nodes` from starting for so long."""


@pytest.fixture(scope="module")
def two_nodes(module_directory: Path) -> Iterator[Sandbox]:
    """Two nodes of four GPUs, both in two partitions."""
    spec = SandboxSpec(
        groups=(SandboxNodes(nodes=2),),
        partitions=(PartitionSpec("gpu"), PartitionSpec("other")),
        cred_expire_s=HOLD_S,
    )
    box = Sandbox.up(module_directory / "two", spec)
    try:
        yield box
    finally:
        box.down(remove=True)


@pytest.fixture(scope="module")
def three_nodes(module_directory: Path) -> Iterator[Sandbox]:
    """Three nodes of four GPUs, each with something that another one lacks.

    n1 keeps two cores and 16,000 MiB for itself, n2 alone has a large disk and an nvme.
    """
    two = ("Sockets=2", "CoresPerSocket=8")
    spec = SandboxSpec(
        groups=(
            SandboxNodes(
                1, options=(*two, "CoreSpecCount=2", "MemSpecLimit=16000", "TmpDisk=1000")
            ),
            SandboxNodes(1, gres=("nvme:1",), options=(*two, "TmpDisk=100000")),
            SandboxNodes(1, options=(*two, "TmpDisk=1000")),
        ),
        slurm_conf_extra=("Licenses=matlab:1", "SelectTypeParameters=CR_Core_Memory"),
    )
    box = Sandbox.up(module_directory / "three", spec)
    try:
        yield box
    finally:
        box.down(remove=True)


def start(daemon: Schedd, *partitions: str) -> Schedd:
    """Start a daemon whose picture of the nodes is as old as on a site."""
    daemon.configure(
        manage={"partitions": list(partitions)},
        daemon={"nodes_every_s": 150},
        policy={"parameters": {"thresholds_gpu_s": [8, 100_000]}},
        preemption={"min_quantum_s": 1},
    )
    daemon.start()
    return daemon


@pytest.fixture
def place(two_nodes: Sandbox, short_directory: Path) -> Iterator[Schedd]:
    """A new daemon on two nodes; what an admin changes meanwhile is taken back."""
    with schedd_in(two_nodes, short_directory) as daemon:
        try:
            yield start(daemon, "gpu", "other")
        finally:
            two_nodes.run(
                ["scontrol", "update", "PartitionName=gpu", "State=UP", "MaxTime=INFINITE"]
            )
            # Refused for a node that is not drained.
            two_nodes.run(["scontrol", "update", "NodeName=n[1-2]", "State=RESUME"], check=False)


@pytest.fixture(scope="module")
def filled(three_nodes: Sandbox, module_directory: Path) -> Iterator[Schedd]:
    """A daemon on three nodes that are full.

    On n1 and n2 a job that has not opted in has one GPU, and the CPUs, the nvme and the licence
    that others ask for in vain; a victim has the other GPUs. On n3 a victim has all.
    """
    with schedd_in(three_nodes, module_directory) as daemon:
        start(daemon, "gpu")
        stays = "--comment=", "--time=60", "--job-name=stays"
        submit(daemon, "gpu:1", *stays, "--nodelist=n1", "--cpus-per-task=8", "--mem=16G")
        submit(daemon, "gpu:1,nvme:1", *stays, "--nodelist=n2", "--licenses=matlab:1")
        for node, gpus in (("n1", 3), ("n2", 3), ("n3", 4)):
            submit(daemon, f"gpu:{gpus}", f"--nodelist={node}", "--job-name=victim", "--time=60")
        yield daemon


def submit(place: Schedd, gres: str, *options: str) -> str:
    """A job of one node that ignores its signal; the job id."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", "--nodes=1", f"--gres={gres}"]
    argv += ["--job-name=waits", "--requeue", f"--comment={OPTED_IN}", "--mem=1G", "--time=10"]
    argv += options
    return place.box.run([*argv, "--wrap=trap '' USR1; exec sleep 900"]).stdout.strip()


def restarts(place: Schedd, *jobs: str) -> list[int]:
    """How often each job was requeued."""
    return [int(place.job(job, "Restarts")[0]) for job in jobs]


def look(place: Schedd) -> None:
    """Wait until the daemon has looked at what is there."""
    looks = place.cycles() + LOOKS
    place.until("more looks", lambda: place.cycles() >= looks)


def why(place: Schedd, job: str) -> str:
    """What a user is told of the job."""
    return place.ask("dlqueue", "why", job).stdout


def on_admin(*change: str) -> Callable[[Schedd], object]:
    """An admin's change while the victim runs."""
    return lambda place: place.box.run(["scontrol", "update", *change])


@pytest.mark.parametrize(
    ("options", "change", "fact"),
    [
        pytest.param(("--deadline=now+630",), lambda _: None, "deadline", id="past its deadline"),
        pytest.param((), on_admin("PartitionName=gpu", "State=DOWN"), "partition", id="down"),
        pytest.param(
            (), on_admin("PartitionName=gpu", "State=INACTIVE"), "partition", id="inactive"
        ),
        pytest.param((), on_admin("PartitionName=gpu", "MaxTime=5"), "partition", id="MaxTime"),
        pytest.param(
            (),
            on_admin("NodeName=n2", "State=DRAIN", "Reason=dimm"),
            "drain|nodes",
            id="one of its nodes drains",
        ),
    ],
)
def test_a_victim_that_could_not_start_again_is_left_alone(
    place: Schedd, options: tuple[str, ...], change: Callable[[Schedd], object], fact: str
) -> None:
    """A job waits in another partition of the same nodes, and could have one of them at once."""
    victim = submit(place, "gpu:4", "--nodes=2", *options)
    place.until("the victim to sink", lambda: sank(place, victim))
    change(place)
    waits = submit(place, "gpu:4", "--partition=other")
    look(place)

    assert place.audit(action="open_handover") == []
    assert restarts(place, victim) == [0]
    assert place.state(waits) == "PENDING"
    assert re.search(fact, why(place, victim), re.IGNORECASE)


def test_a_victim_that_can_start_again_gives_way(place: Schedd) -> None:
    """Its deadline is far, and its partition allows what it asks for."""
    on_admin("PartitionName=gpu", "MaxTime=10")(place)
    victim = submit(place, "gpu:4", "--nodes=2", "--deadline=now+1hour")
    place.until("the victim to sink", lambda: sank(place, victim))
    first = submit(place, "gpu:4", "--partition=other")
    place.until_state(first, "RUNNING")
    assert restarts(place, victim) == [1]


def test_nobody_is_preempted_for_a_job_that_needs_a_node_just_drained(place: Schedd) -> None:
    """The daemon has seen the node idle; users are not told that the job starts now."""
    victim = submit(place, "gpu:4", "--nodelist=n1")
    place.until("the victim to sink", lambda: sank(place, victim))
    on_admin("NodeName=n2", "State=DRAIN", "Reason=dimm")(place)
    waits = submit(place, "gpu:4", "--nodes=2")
    look(place)

    assert place.audit(action="open_handover") == []
    assert restarts(place, victim) == [0]
    told: dict[str, Any] = json.loads(place.ask("dlqueue", "when", waits, "--json").stdout)
    assert told["why_not"] or told["start"]["low_s"] > told["now_s"]


def test_a_node_drained_while_its_victim_saves_is_given_up_for_another(place: Schedd) -> None:
    """The beneficiary runs on the other node, and the first victim is not lost."""
    saves = ("--checkpoint-every", "1000000", "--save-s", str(SAVES_S))
    on = {
        place.toy(4, 10_000, *saves, options=["-w", node, "--grace", str(GRACE_S)]): node
        for node in ("n1", "n2")
    }
    for job in on:
        place.until("the victim to sink", lambda job=job: sank(place, job))
    first = submit(place, "gpu:4")
    place.until("a victim to be asked", lambda: place.audit(action="signal"))
    asked = str(place.audit(action="signal")[0]["job"])
    on_admin(f"NodeName={on[asked]}", "State=DRAIN", "Reason=dimm")(place)

    place.until_state(first, "RUNNING", within_s=GRACE_S + 15)
    assert place.job(first, "NodeList") == [node for job, node in on.items() if job != asked]
    place.until("it to be put back", lambda: restarts(place, asked) == [1], 2 * SAVES_S)
    assert place.state(asked) == "PENDING"


@pytest.fixture
def mine(filled: Schedd) -> Iterator[list[str]]:
    """The jobs that may be preempted, once all run and have sunk; who waits for them goes."""
    jobs = filled.box.run(["squeue", "-ho", "%A", "-n", "victim"]).stdout.split()
    filled.until("no hand-over to be open", lambda: not filled.open_handovers(), 90)
    for job in jobs:
        filled.until_state(job, "RUNNING", within_s=90)
        filled.until("the victim to sink", lambda job=job: sank(filled, job))
    try:
        yield jobs
    finally:
        filled.box.run(["scancel", "--name=waits"])


@pytest.mark.parametrize(
    ("gres", "options"),
    [
        pytest.param("gpu:3", ("--nodelist=n1", "--cpus-per-task=8"), id="CoreSpecCount"),
        pytest.param("gpu:3", ("--nodelist=n1", "--cpus-per-gpu=4"), id="CPUs of GPUs"),
        pytest.param("gpu:3", ("--nodelist=n1", "--mem=40G"), id="MemSpecLimit"),
        pytest.param("gpu:4", ("--tmp=50000",), id="TmpDisk"),
        pytest.param("gpu:4,nvme:1", (), id="a node without nvme"),
        pytest.param("gpu:3,nvme:1", (), id="the nvme of a job that stays"),
    ],
)
def test_nobody_is_preempted_for_what_a_node_lacks(
    filled: Schedd, mine: list[str], gres: str, options: tuple[str, ...]
) -> None:
    """GPUs alone would be enough on some node."""
    before, opened = restarts(filled, *mine), filled.audit(action="open_handover")
    submit(filled, gres, *options)
    look(filled)

    assert filled.audit(action="open_handover") == opened
    assert restarts(filled, *mine) == before


UNMODELLED = (
    "--contiguous",
    "--cores-per-socket=4",
    "--sockets-per-node=2",
    "--gres-flags=enforce-binding",
    "--licenses=matlab:1",
    "--network=ib",
    "--exclusive=user",
    "--spread-job",
    "--bb=capacity=1G",
    "--cluster-constraint=knl",
)


def test_nobody_is_preempted_for_a_condition_that_is_not_modelled(
    filled: Schedd, mine: list[str]
) -> None:
    """Users are told which one it is; a job without any is served."""
    before, opened = restarts(filled, *mine), filled.audit(action="open_handover")
    waiting = {option: submit(filled, "gpu:4", option) for option in UNMODELLED}
    look(filled)

    assert filled.audit(action="open_handover") == opened
    assert restarts(filled, *mine) == before
    unnamed = {}
    for option, job in waiting.items():
        # Slurm itself says Licenses of a job that waits for one.
        word = option.partition("=")[0].replace("--licenses", "licen")
        if word not in (said := why(filled, job)).lower():
            unnamed[option] = said
    assert unnamed == {}

    first = submit(filled, "gpu:4")
    filled.until_state(first, "RUNNING")
    assert sum(restarts(filled, *mine)) == sum(before) + 1
