"""Each template of dlsubmit on a real Slurm, with the real dlrun and the real torchrun.

What a template promises to the processes it starts is read from these processes: how many there
are, which GPUs they see, and where they find each other.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.torch,
    pytest.mark.full("trains with real frameworks"),
    pytest.mark.timeout(900),
]

Lab = Any
"""The class Frameworks in conftest.py, which cannot be imported."""

TEMPLATES = Path(__file__).parents[2] / "templates"
MEMBER = Path(__file__).parent / "member.py"
WORDS = ["it's", "{{ 7*7 }} $(id)", "a\nb", ""]
"""Arguments that no template may take for its own."""


@dataclass(frozen=True)
class Case:
    """A job, and the processes it must have.

    Attributes:
        nodes: Index of the node of each process, in the order of ranks.
        gpus_on_node: GPUs that each of them sees.
    """

    template: str
    asked: tuple[str, ...]
    nodes: tuple[int, ...]
    gpus_on_node: int


CASES = {
    "plain": Case("plain", ("--gpus=2",), (0,), 2),
    "srun": Case("srun", ("--gpus=2",), (0, 0), 2),
    "srun on two nodes": Case("srun", ("--gpus=4", "--nodes=2"), (0, 0, 1, 1), 2),
    "srun on a range": Case("srun", ("--gpus=2", "--nodes=1-2"), (0, 0), 2),
    "torchrun": Case("torchrun", ("--gpus=2",), (0, 0), 2),
    "torchrun on two nodes": Case("torchrun", ("--gpus=4", "--nodes=2"), (0, 0, 1, 1), 2),
    "torchrun on a range": Case("torchrun", ("--gpus=2", "--nodes=1-2"), (0, 0), 2),
}


def test_each_template_has_a_case() -> None:
    """A new one is submitted here as well."""
    bundled = {path.name.removesuffix(".sbatch.j2") for path in TEMPLATES.glob("[!_]*.j2")}

    assert {case.template for case in CASES.values()} == bundled


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_job_of_the_template_is_what_it_promises(lab: Lab, case: Case) -> None:
    """It ends well; its processes, and no others, have ranks, GPUs and the run directory."""
    lab.needs("torch")
    python = [] if case.template == "torchrun" else [lab.python]
    options = [*case.asked, f"--launcher={case.template}", "--model=mine"]
    # The last --gpus counts.
    job = lab.submit(1, *python, str(MEMBER), *WORDS, options=options)
    job.until_completed()

    found = [json.loads(path.read_text()) for path in job.place.glob("member.*.json")]
    members = sorted((m["env"] for m in found), key=_rank)
    size = len(case.nodes)
    assert [_rank(env) for env in members] == list(range(size))
    assert [m["argv"] for m in found] == [WORDS] * size
    for env, node in zip(members, case.nodes, strict=True):
        assert env["SLURM_DL_RUN_DIR"] == str(job.place)
        assert env["SLURM_RESTART_COUNT"] == env["SLURM_DL_RESTART_COUNT"] == "0"
        assert (env["SLURM_DL_SIGNAL"], env["SLURM_DL_GRACE_S"]) == ("USR1", "60")
        assert env["SLURM_DL_MODEL"] == "mine"
        assert env["SLURM_JOB_ID"] == job.job
        assert int(env["SLURM_NODEID"]) == node
        assert len(env["CUDA_VISIBLE_DEVICES"].split(",")) == case.gpus_on_node
    locals_ = [case.nodes[:rank].count(node) for rank, node in enumerate(case.nodes)]
    if case.template == "srun":
        assert {env["SLURM_NTASKS"] for env in members} == {str(size)}
        assert [int(env["SLURM_LOCALID"]) for env in members] == locals_
    if case.template == "torchrun":
        assert {env["WORLD_SIZE"] for env in members} == {str(size)}
        assert [int(env["LOCAL_RANK"]) for env in members] == locals_
        assert [int(env["GROUP_RANK"]) for env in members] == list(case.nodes)
        assert {m["met"] for m in found} == {size}
        assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in members}) == 1
    if case.template == "torchrun" and len(case.asked) > 1:
        # All nodes of a sandbox are this host.
        assert members[0]["MASTER_ADDR"] == socket.gethostname()
        assert members[0]["MASTER_PORT"] == str(15000 + int(job.job) % 15000)


def _rank(env: dict[str, str]) -> int:
    return int(env.get("RANK") or env["SLURM_PROCID"])
