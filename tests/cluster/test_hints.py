"""Hints on a real Slurm: their variables reach the command, and a locked job stays on its type."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import MakeSandbox
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox
from slurm_dl.sandbox.spec import SandboxNodes, SandboxSpec

pytestmark = pytest.mark.slurm

BIN = Path(sys.executable).parent
SHOW = "env | grep -E '^(BYTEPS|MXNET|SLURM_DL_(HINTS|TICTAC))' | sort > seen-$SLURM_PROCID"
WANTED = """BYTEPS_PARTITION_BYTES=8000000
BYTEPS_SERVER_ENABLE_SCHEDULE=1
MXNET_KVSTORE_SLICE_THRESHOLD=40000
SLURM_DL_HINTS=byteps=8000000,p3=40000,tictac=tac
SLURM_DL_TICTAC=tac
"""
MIXED = SandboxSpec(
    groups=(
        SandboxNodes(nodes=1, gpus=4, gpu_type="k80"),
        SandboxNodes(nodes=1, gpus=4, gpu_type="v100"),
    ),
    nodes_per_leaf=0,
)
"""Slurm by itself takes n1, the slow node, first."""


@pytest.mark.parametrize("launcher", ["plain", "torchrun", "srun", "container", "script"])
def test_the_variables_of_hints_reach_every_process(
    sandbox: Sandbox, eventually: Callable[..., object], launcher: str
) -> None:
    """By each launcher, in a container and in a batch script; the comment tells of them."""
    desk = sandbox.jobs_directory / f"hints {launcher}"
    desk.mkdir()
    (desk / "bin").mkdir()
    # Each tool runs its command and nothing else: what passes the variables on is Slurm and dlrun.
    tools = {"torchrun": 'while [ "${1#--}" != "$1" ]; do shift; done', "apptainer": "shift 9"}
    for name, skip in tools.items():
        (desk / "bin" / name).write_text(f'#!/bin/sh\n{skip}\nexec "$@"\n')
        (desk / "bin" / name).chmod(0o755)
    (desk / "image").mkdir()
    (desk / "train.sbatch").write_text(f"#!/bin/bash\n#SBATCH --gpus=1\n{SHOW}\n")
    (desk / "train.sh").write_text(f"#!/bin/sh\n{SHOW}\n")
    hints = ["--hint=byteps=8000000", "--hint=p3", "--hint", "tictac=tac"]
    how = {"container": ["--container=image"], "script": []}
    how |= {name: [f"--launcher={name}"] for name in ("plain", "torchrun", "srun")}
    what = ["train.sbatch"] if launcher == "script" else ["--", "sh", "train.sh"]
    gpus = [] if launcher == "script" else ["--gpus=2"]

    job = sandbox.run(
        [str(BIN / "dlsubmit"), "--parsable", *gpus, *hints, *how[launcher], *what],
        cwd=desk,
        env={"PATH": f"{desk}/bin:/usr/bin:/bin"},
    ).stdout.strip()

    def shown() -> str:
        return sandbox.run(["scontrol", "-o", "show", "job", job]).stdout

    eventually(lambda: "JobState=COMPLETED" in shown(), 60.0, what=f"job {job} to end well")
    assert '"hints":"byteps=8000000,p3=40000,tictac=tac"' in shown()
    seen = {path.name: path.read_text() for path in desk.glob("seen-*")}
    assert seen == dict.fromkeys(["seen-0", "seen-1"][: 1 + (launcher == "srun")], WANTED)


@pytest.fixture
def place(make_sandbox: MakeSandbox, short_directory: Path) -> Iterator[Schedd]:
    """A daemon that knows a v100 to be four times as fast as a k80, and moves jobs there."""
    with schedd_in(make_sandbox(MIXED), short_directory) as daemon:
        daemon.configure(
            policy={"order": "gavel_fifo", "parameters": {"lease_s": 8.0}},
            estimates={"gpu_speed": {"v100": 4.0, "k80": 1.0}},
            placement={"scheme": "best_fit", "steer": True, "settle_s": 5},
            preemption={"checkpoint_cost_s": 1, "limit_reserve_s": 0},
        )
        daemon.start()
        yield daemon


def test_a_locked_job_stays_on_its_type_and_comes_back_to_it(place: Schedd) -> None:
    """Its neighbour moves to the faster GPUs as soon as they are free; it does not, ever."""

    def node_of(job: str) -> str:
        place.until_state(job, "RUNNING", within_s=60)
        return place.job(job, "NodeList")[0]

    done = place.home / "done"
    first = place.toy(4, 1, "--until", str(done))
    assert node_of(first) == "n2"
    locked, free = (
        place.toy(2, 800, options=["--time", "60", *more])
        for more in (["--hint", "shape_locked"], [])
    )
    assert (node_of(locked), node_of(free)) == ("n1", "n1")
    place.until("the type to be written down", lambda: (locked, "k80") in locks(place))

    done.touch()
    place.until("the move", lambda: node_of(free) == "n2", 60)
    assert place.job(locked, "Restarts", "NodeList") == ["0", "n1"]

    place.box.run(["scontrol", "requeue", locked])
    place.until("its next run", lambda: place.job(locked, "Restarts")[0] == "1", 30)
    assert node_of(locked) == "n1"
    request = place.box.run(["squeue", "-hj", locked, "-O", "tres-per-node:60"]).stdout
    assert "k80:2" in request


def locks(place: Schedd) -> list[tuple[str, str]]:
    """Jobs that are locked to a type, and the type, in the ledger on disk."""
    return [(e.key, json.loads(e.body)["type"]) for e in place.book() if e.kind == "locked"]
