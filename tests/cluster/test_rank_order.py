"""The order of ranks on a real Slurm: switches first, whatever order Slurm counts nodes in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = pytest.mark.slurm

BIN = Path(sys.executable).parent
DLSUBMIT = str(BIN / "dlsubmit")
Eventually = Callable[..., object]

ODD_AND_EVEN = """\
SwitchName=odd Nodes=n[1,3,5,7]
SwitchName=even Nodes=n[2,4,6,8]
SwitchName=core Switches=odd,even
"""

TASK = """#!/bin/sh
echo "$SLURMD_NODENAME $SLURM_LOCALID $SLURM_GPUS_ON_NODE" > "$SLURM_DL_RUN_DIR/rank.$SLURM_PROCID"
"""

TORCHRUN = """#!/bin/sh
rank=none
for word; do
    case $word in --node-rank=*) rank=${word#*=} ;; esac
done
printf '%s %s\\n' "$SLURMD_NODENAME" "$*" > "$SLURM_DL_RUN_DIR/torchrun.$rank"
"""


class Cluster:
    """Eight nodes of two GPUs; odd ones under one leaf switch, even ones under another."""

    def __init__(self, box: Sandbox, eventually: Eventually) -> None:
        self.box = box
        self.eventually = eventually
        self.desk: Path = box.jobs_directory / "desk"
        (self.desk / "bin").mkdir(parents=True)
        for name, text in (("task", TASK), ("torchrun", TORCHRUN)):
            (self.desk / "bin" / name).write_text(text)
            (self.desk / "bin" / name).chmod(0o755)
        (box.directory / "topology.conf").write_text(ODD_AND_EVEN)
        box.run(["scontrol", "reconfigure"])
        eventually(lambda: "SwitchName=odd" in self.said("show", "topology"), what="the switches")

    def said(self, *words: str) -> str:
        """The answer of scontrol."""
        return self.box.run(["scontrol", *words]).stdout

    def occupy(self, **gpus: int) -> None:
        """Take GPUs of nodes, by name."""
        for name, count in gpus.items():
            self.box.run(
                ["sbatch", "-o", "/dev/null", "-w", name, f"--gpus-per-node={count}",
                 "--wrap", "exec sleep 600"],
                cwd=self.desk,
            )  # fmt: skip
        self.eventually(
            lambda: (
                len(self.box.run(["squeue", "-ht", "R", "-o", "%A"]).stdout.split()) == len(gpus)
            ),
            what="the nodes to be taken",
        )

    def run(self, *args: str, **env: str) -> Path:
        """Submit by dlsubmit, wait for a good end; the run directory."""
        job_id = self.box.run(
            [DLSUBMIT, "--parsable", f"--dlrun={BIN / 'dlrun'}", *args],
            cwd=self.desk,
            env={"PATH": f"{self.desk}/bin:/usr/bin:/bin"} | env,
        ).stdout.strip()
        log = self.desk / f"slurm-{job_id}.out"
        self.eventually(
            lambda: (
                "JobState=COMPLETED" in self.said("show", "job", job_id)
                or "JobState=FAILED" in self.said("show", "job", job_id)
            ),
            90.0,
            what=f"job {job_id} to end",
        )
        assert "JobState=COMPLETED" in self.said("show", "job", job_id), log.read_text()
        return self.desk / "slurm_dl_runs" / job_id


@pytest.fixture
def cluster(make_sandbox: Callable[..., Sandbox], eventually: Eventually) -> Cluster:
    spec = SandboxSpec(groups=(SandboxNodes(nodes=8, gpus=2),), nodes_per_leaf=4)
    return Cluster(make_sandbox(spec), eventually)


def ranks(run_dir: Path) -> list[str]:
    """The node of each rank, as its task saw it; in a node they are counted on."""
    files = sorted(run_dir.glob("rank.*"), key=lambda path: int(path.suffix[1:]))
    assert [path.name for path in files] == [f"rank.{n}" for n in range(len(files))]
    seen = [path.read_text().split() for path in files]
    for rank, (node, local, _) in enumerate(seen):
        assert int(local) == sum(other[0] == node for other in seen[:rank])
    return [node for node, _, _ in seen]


def test_ranks_follow_the_switches(cluster: Cluster) -> None:
    """A job on n1 to n8: the file, srun's ranks and torchrun's nodes go n1 n3 n5 n7, n2 n4 n6 n8.

    And with a distribution of the user's own, Slurm's order.
    """
    by_switch = ["n1", "n3", "n5", "n7", "n2", "n4", "n6", "n8"]

    run_dir = cluster.run("--gpus=16", "--launcher=srun", "--", "task")
    assert (run_dir / "slurm_dl.ranks").read_text().split() == [n for n in by_switch for _ in "12"]
    assert ranks(run_dir) == [n for n in by_switch for _ in "12"]

    run_dir = cluster.run(
        "--gpus=8", "--nodes=8", "--launcher=torchrun", "--no-check", "--", "train.py"
    )
    lines = [(run_dir / f"torchrun.{n}").read_text().split() for n in range(8)]
    assert [line[0] for line in lines] == by_switch
    assert {word for line in lines for word in line if word.startswith("--nnodes")} == {
        "--nnodes=8"
    }

    run_dir = cluster.run("--gpus=16", "--launcher=srun", "-m", "block", "--", "task")
    assert ranks(run_dir) == [f"n{i}" for i in range(1, 9) for _ in "12"]


def test_uneven_left_overs_are_counted_by_switch_too(cluster: Cluster) -> None:
    """A range of nodes on what is left: one rank for each GPU, each launcher in its way."""
    cluster.occupy(n1=1, n2=1, n5=2, n6=2, n7=2, n8=2)

    run_dir = cluster.run("--gpus=6", "--nodes=1-8", "--launcher=srun", "--", "task")
    assert ranks(run_dir) == ["n1", "n3", "n3", "n2", "n4", "n4"]

    run_dir = cluster.run(
        "--gpus=6", "--nodes=1-8", "--launcher=torchrun", "--no-check", "--", "train.py"
    )
    lines = [(run_dir / f"torchrun.{n}").read_text().split() for n in range(4)]
    assert [line[0] for line in lines] == ["n1", "n3", "n2", "n4"]
    assert [w for line in lines for w in line if w.startswith("--nproc")] == [
        f"--nproc-per-node={n}" for n in (1, 2, 1, 2)
    ]
    assert {w for line in lines for w in line if w.startswith("--nnodes")} == {"--nnodes=4"}

    show = 'cat "$SLURM_DL_RANK_FILE" > "$SLURM_DL_RUN_DIR/seen"; [ -z "$SLURM_HOSTFILE" ]'
    run_dir = cluster.run("--gpus=6", "--nodes=1-8", "--", "sh", "-c", show)
    assert (run_dir / "seen").read_text().split() == ["n1", "n3", "n3", "n2", "n4", "n4"]


ALL_REDUCE = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * dist.get_rank()
dist.all_reduce(total)
with open(os.environ["SLURM_DL_RUN_DIR"] + f"/rank.{dist.get_rank()}", "w") as out:
    print(os.environ["SLURMD_NODENAME"], os.environ["LOCAL_RANK"], int(total), file=out)
dist.destroy_process_group()
"""


@pytest.fixture(scope="session")
def torch_bin() -> str:
    """The directory of a Python that imports torch, with torchrun in it."""
    python = os.environ.get("SLURM_DL_TORCH_PYTHON") or sys.executable
    found = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
    if found.returncode != 0:
        reason = f"{python} cannot import torch: name one in SLURM_DL_TORCH_PYTHON"
        if os.environ.get("SLURM_DL_TORCH_PYTHON"):
            pytest.fail(reason)
        pytest.skip(reason)
    return str(Path(python).parent)


@pytest.mark.torch
def test_torchs_own_ranks_follow_the_switches(cluster: Cluster, torch_bin: str) -> None:
    """A real torchrun on uneven left-overs of three nodes: its workers meet, in that order."""
    cluster.occupy(n1=1, n4=2, n5=2, n6=2, n7=2, n8=2)
    (cluster.desk / "reduce.py").write_text(ALL_REDUCE)

    run_dir = cluster.run(
        "--gpus=5", "--nodes=1-4", "--launcher=torchrun", "--", "reduce.py",
        PATH=f"{torch_bin}:/usr/bin:/bin",
    )  # fmt: skip

    assert ranks(run_dir) == ["n1", "n3", "n3", "n2", "n2"]
    assert {path.read_text().split()[2] for path in run_dir.glob("rank.*")} == {"10"}
