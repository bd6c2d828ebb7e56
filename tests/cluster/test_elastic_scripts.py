"""A job that was given another size while it waited: its script launches by what Slurm allots."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import Reshape
from slurm_dl.model.shape import Shape
from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.slurm.write.request_changes import change_request

pytestmark = pytest.mark.slurm

BIN = Path(sys.executable).parent
Eventually = Callable[..., object]

# Each process writes down what it sees, under the name of its node and its rank there.
SEEN = """#!/bin/sh
{ echo "arguments=$*"; env; } > "$SLURM_DL_RUN_DIR/%s.$SLURMD_NODENAME.${SLURM_LOCALID:-0}"
"""


class Desk:
    """A user's directory, with stand-ins for torchrun and for a training script."""

    def __init__(self, box: Sandbox, eventually: Eventually) -> None:
        self.box = box
        self.eventually = eventually
        self.path: Path = box.jobs_directory / "desk"
        (self.path / "bin").mkdir(parents=True)
        for name in ("torchrun", "task"):
            (self.path / "bin" / name).write_text(SEEN % name)
            (self.path / "bin" / name).chmod(0o755)

    def scontrol(self, *words: str) -> str:
        """Its answer."""
        return self.box.run(["scontrol", *words]).stdout

    def hold(self, *args: str) -> JobId:
        """Submit by dlsubmit with the real dlrun, held."""
        job_id = self.box.run(
            [str(BIN / "dlsubmit"), "--parsable", "--hold", f"--dlrun={BIN / 'dlrun'}", *args],
            cwd=self.path,
            env={"PATH": f"{self.path}/bin:/usr/bin:/bin"},
        ).stdout.strip()
        return JobId(int(job_id))

    def run(self, job_id: JobId) -> dict[str, dict[str, str]]:
        """Release, wait for a good end; what each process has seen, by the file's name."""
        self.scontrol("release", str(job_id))
        ended = ("JobState=COMPLETED", "JobState=FAILED", "JobState=CANCELLED")

        def end() -> str | None:
            shown = self.scontrol("show", "job", str(job_id))
            return next((word for word in ended if word in shown), None)

        assert self.eventually(end, 60.0, what=f"job {job_id} to end") == ended[0], (
            self.path / f"slurm-{job_id}.out"
        ).read_text()
        return {
            path.name: dict(line.split("=", 1) for line in path.read_text().splitlines())
            for path in (self.path / "slurm_dl_runs" / str(job_id)).glob("t*.n*.*")
        }


@pytest.fixture
def desk(make_sandbox: Callable[..., Sandbox], eventually: Eventually) -> Desk:
    spec = SandboxSpec(groups=(SandboxNodes(nodes=2, gpus=2, cpus=8),), nodes_per_leaf=0)
    return Desk(make_sandbox(spec), eventually)


def values(env: Mapping[str, str], *names: str) -> tuple[str | None, ...]:
    return tuple(env.get(f"SLURM_{name}") for name in names)


def test_each_launcher_starts_what_was_allotted(desk: Desk) -> None:
    """Asked for on one GPU, started on two nodes of two: two workers on each, four tasks, or one.

    And the other way round; and in the size that was asked for.
    """
    slurm = Slurm(slurm_conf=Path(desk.box.env["SLURM_CONF"]))
    common = ("--gpus=a100:1", "--sizes=2,2x2", "--no-check")
    jobs = [
        desk.hold(*common, f"--launcher={launcher}", "--", *command)
        for launcher, command in (
            ("torchrun", ("train.py",)),
            ("srun", ("task",)),
            ("plain", ("task",)),
        )
    ]
    for job_id in jobs:
        change_request(
            slurm, Reshape(job_id=job_id, shape=Shape(2, 2), cpus=8, mem_mb=0, why="room")
        )
    wide = desk.hold("--gpus=4", "--sizes=1", "--launcher=torchrun", "--no-check", "--", "train.py")
    change_request(
        slurm, Reshape(job_id=wide, shape=Shape(1, 1), cpus=4, mem_mb=0, why="less room")
    )
    torchrun, srun, plain, narrow = map(desk.run, (*jobs, wide))

    assert sorted(torchrun) == ["torchrun.n1.0", "torchrun.n2.0"]
    for rank, name in enumerate(sorted(torchrun)):
        words = torchrun[name]["arguments"].split()
        assert {"--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=2"} < set(words)
        assert torchrun[name]["SLURM_CPUS_PER_TASK"] == "8"

    assert not [path for path in desk.path.glob("slurm-*.out") if "srun:" in path.read_text()]
    assert sorted(srun) == ["task.n1.0", "task.n1.1", "task.n2.0", "task.n2.1"]
    assert [srun[name]["SLURM_PROCID"] for name in sorted(srun)] == ["0", "1", "2", "3"]
    for env in srun.values():
        assert values(env, "NTASKS", "NNODES", "CPUS_PER_TASK") == ("4", "2", "4")
        assert values(env, "NTASKS_PER_NODE") == ("2",)  # Lightning wants it.
        assert env["CUDA_VISIBLE_DEVICES"] == "0,1"

    (alone,) = plain.values()
    assert values(alone, "NTASKS", "NPROCS", "NNODES") == ("2", "2", "2")
    assert values(alone, "GPUS_PER_NODE", "GPUS_ON_NODE") == ("a100:2", "2")

    (one,) = narrow.values()
    words = one["arguments"].split()
    assert {"--nnodes=1", "--node-rank=0", "--nproc-per-node=1"} < set(words)

    same = desk.run(desk.hold(*common, "--launcher=srun", "--", "task"))
    (env,) = same.values()
    assert values(env, "NTASKS", "NNODES", "CPUS_PER_TASK") == ("1", "1", "4")
