"""Each scheme and rule of placement sends the same job to another node of a real Slurm.

One situation of five nodes tells five answers apart, so that no scheme passes by what another does,
or by what Slurm does alone.
"""

from __future__ import annotations

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

MIXED = SandboxSpec(
    groups=(
        SandboxNodes(nodes=4, gpus=8, cpus=64, gpu_type="k80"),
        SandboxNodes(nodes=1, gpus=8, cpus=64, gpu_type="v100"),
    ),
    nodes_per_leaf=0,
)

BLOCKERS = (("n1", 6, 48), ("n2", 4, 1), ("n3", 2, 48), *[("n4", 1, 16)] * 3, ("n5", 8, 8))
"""Node, GPUs and CPUs of each job of 10 minutes that is there before.

Free are then, of 8 GPUs and 64 CPUs: n1 2 and 16, n2 4 and 63, n3 6 and 16, n4 5 and 16. On n4 are
small jobs only, and n5 is full.
"""

SPEEDS = {"k80": 1.0, "v100": 4.0}
PROFILE = {
    "name": "fast",
    "source": "a made-up model",
    "speeds": [{"shape": "1x1", "steps_per_s": v, "gpu_type": t} for t, v in SPEEDS.items()],
}

CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    # Fewest free GPUs: 2.
    "best_fit": ("best_fit", {}, "n1"),
    # Free shares of GPUs, CPUs and memory: 4/8 + 63/64 + 1 is the largest.
    "load_balance": ("load_balance", {}, "n2"),
    # 1/8 x free GPUs' share + 1/64 x free CPUs' share: n2 0.078, n3 0.098, n4 0.082.
    "tetris": ("tetris", {}, "n3"),
    # The job is small, as are all jobs of n4, and of no other node.
    "small_apart": ("best_fit", {"small_apart": {}}, "n4"),
    # Done in 10 + 60 / 4 minutes there, in 60 anywhere else.
    "pools": ("pools", {}, "n5"),
}
"""Scheme, rules, and the node of a job of one GPU, one CPU and 60 minutes."""


@pytest.fixture
def place(make_sandbox: MakeSandbox, short_directory: Path) -> Iterator[Schedd]:
    """A place for a daemon that knows the model."""
    with schedd_in(make_sandbox(MIXED), short_directory) as daemon:
        path = daemon.home / "profiles" / "fast.yaml"
        path.parent.mkdir(mode=0o755)
        path.write_text(yaml.safe_dump(PROFILE), encoding="utf-8")
        path.chmod(0o644)
        yield daemon


def block(place: Schedd, node: str, gpus: int, cpus: int) -> str:
    """Take a part of a node."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", f"--nodelist={node}", "--mem=100"]
    argv += [f"--gres=gpu:{gpus}", f"--cpus-per-task={cpus}", "--time=10"]
    return place.box.run([*argv, "--wrap=exec sleep 3600"]).stdout.strip()


def put_in_force(place: Schedd, scheme: str, rules: dict[str, Any], **parameters: Any) -> None:  # noqa: ANN401
    """Let the daemon place by this scheme and these rules alone."""
    place.configure(
        policy={"order": "fifo", "parameters": {}},
        placement={
            "scheme": scheme,
            "parameters": parameters,
            "rules": rules,
            "steer": True,
            "settle_s": 4,
        },
        paths={"profile_dir": str(place.home / "profiles")},
        preemption={"enabled": False},
    )
    if place.process is None:
        place.start()
    else:
        place.ask("dlctl", "reload")


def waits_for_n5(place: Schedd, job: str) -> bool:
    """It has been kept off all other nodes, and does not run."""
    state, off = place.job(job, "JobState", "ExcNodeList")
    return state == "PENDING" and NodeSet(off) == NodeSet("n[1-4]")


def is_kept_off_n5(place: Schedd, job: str) -> bool:
    """It waits, and may start on any node but n5."""
    state, off = place.job(job, "JobState", "ExcNodeList")
    return state == "PENDING" and NodeSet(off) == NodeSet("n5")


def test_each_scheme_takes_another_node_than_best_fit(place: Schedd) -> None:
    """Slurm alone and best_fit are the mutants: their node is that of no other case."""
    blockers = [block(place, *of) for of in BLOCKERS]
    for job in blockers:
        place.until_state(job, "RUNNING")
    options = ["--model=fast", "--no-preempt", "--time=60", "--cpus-per-task=1", "--mem=100"]
    went = {}
    for name in ("Slurm alone", *CASES):
        if name in CASES:
            put_in_force(place, *CASES[name][:2])
        job = place.submit(1, "sleep", "3600", options=options)
        if name == "pools":  # It alone finds n5 worth the wait.
            place.until("the job to wait for n5", partial(waits_for_n5, place, job))
            place.box.run(["scancel", blockers[-1]])
        place.until_state(job, "RUNNING")
        went[name] = place.job(job, "NodeList")[0]
        place.box.run(["scancel", job])
        place.until_state(job, "CANCELLED")

    assert went == {"Slurm alone": "n1", **{name: node for name, (_, _, node) in CASES.items()}}


def test_jobs_of_any_type_leave_high_end_nodes_to_those_that_name_them(place: Schedd) -> None:
    """Only a v100 is free: best_fit gives it to whoever comes, reserve_and_pack to who names it."""
    blockers = [block(place, f"n{n}", 8, 8) for n in range(1, 5)]
    for job in blockers:
        place.until_state(job, "RUNNING")
    options = ["--no-preempt", "--time=60", "--cpus-per-task=1", "--mem=100"]
    put_in_force(place, "best_fit", {})
    job = place.submit(1, "sleep", "3600", options=options)
    place.until_state(job, "RUNNING")
    assert place.job(job, "NodeList") == ["n5"]
    place.box.run(["scancel", job])
    place.until_state(job, "CANCELLED")

    put_in_force(place, "reserve_and_pack", {}, high_end=["v100"])
    waits = place.submit(1, "sleep", "3600", options=options)
    place.until("the job to be kept off n5", partial(is_kept_off_n5, place, waits))
    named = place.submit(1, "sleep", "3600", options=[*options, "--gpu-type=v100"])
    place.until_state(named, "RUNNING")
    assert place.job(named, "NodeList") == ["n5"]
    assert place.state(waits) == "PENDING"
    place.box.run(["scancel", blockers[0]])
    place.until_state(waits, "RUNNING")
    assert place.job(waits, "NodeList") == ["n1"]
