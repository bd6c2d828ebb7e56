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


@pytest.mark.parametrize(
    "launcher",
    [
        "plain",
        *(
            pytest.param(name, marks=pytest.mark.full("as the other, seconds each"))
            for name in ("srun", "torchrun", "container", "script")
        ),
    ],
)
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


@pytest.mark.full("half a minute; units show the rule")
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


MAP = 'echo "$SLURM_PROCID $SLURMD_NODENAME $SLURM_DL_DEVICE_MAP" >> ranks'


def test_a_mixed_job_is_ordered_by_its_whole_and_starts_at_once(place: Schedd) -> None:
    """Shortest service first: 2 + 3 GPUs for 12 min are 60, between 3 for 15 and 4 for 20.

    Each component alone, 24 and 36, would come before both.
    """
    place.configure(policy={"order": "srsf", "parameters": {}}, placement={"steer": False})
    place.stop()
    place.start()
    hold = place.home / "hold"
    hold.touch()
    wait = ["sh", "-c", f"while [ -e {hold} ]; do sleep 0.2; done"]
    before = [
        place.submit(4, *wait, options=["--gpu-type", kind, "--no-preempt"])
        for kind in ("k80", "v100")
    ]
    for job in before:
        place.until_state(job, "RUNNING")
    (place.home / "map.sh").write_text(f"{MAP}\nsleep 5\n")
    options = ["--hint", "heterog=k80:2+v100:3", "--launcher", "srun", "--time", "12"]
    answer = place.ask("dlsubmit", "--parsable", *options, "--", "sh", "map.sh")
    assert "never preempted" in answer.stderr
    mixed = answer.stdout.strip()
    less, more = (
        place.submit(n, "sleep", "1", options=["--gpu-type", "v100", "--time", limit])
        for n, limit in ((3, "15"), (4, "20"))
    )

    def order() -> list[str]:
        told = place.box.run(["squeue", "-aht", "PD", "-O", "JobArrayID:20,PriorityLong:20"])
        rows = [line.split() for line in told.stdout.splitlines()]
        return [name for name, _ in sorted(rows, key=lambda row: (-int(row[1]), row[0]))]

    wanted = [less, f"{mixed}+0", f"{mixed}+1", more]
    place.until("the whole in its place", lambda: order() == wanted, 30)

    hold.unlink()
    ranks = place.home / "ranks"
    place.until("all ranks", lambda: ranks.exists() and len(ranks.read_text().split()) == 15, 60)
    nodes = ["n1", "n1", "n2", "n2", "n2"]
    told = sorted(ranks.read_text().splitlines())
    assert told == [f"{rank} {node} 0-1=k80,2-4=v100" for rank, node in enumerate(nodes)]
    starts = place.box.run(["squeue", "-ahj", mixed, "-O", "StartTime"]).stdout.split()
    assert len(starts) == 2
    assert len(set(starts)) == 1


def locks(place: Schedd) -> list[tuple[str, str]]:
    """Jobs that are locked to a type, and the type, in the ledger on disk."""
    return [(e.key, json.loads(e.body)["type"]) for e in place.book() if e.kind == "locked"]
