"""GPUs of two types on one node of a real Slurm: GPUs change hands by their type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from schedd import Schedd, schedd_in
from victims import sank

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = pytest.mark.slurm

OPTED_IN = json.dumps({"slurm_dl": {"v": 1, "sig": "USR1", "grace_s": 5, "by": "daemon"}})
LOOKS = 5
"""Where a hand-over is opened at all, the first or the second look opens it."""


@pytest.fixture(scope="module")
def mixed(module_directory: Path) -> Iterator[Sandbox]:
    """Two nodes: n1 with two types of GPUs, n2 with two whole GPUs beside four MIG slices."""
    spec = SandboxSpec(
        groups=(
            SandboxNodes(1, gpus=2, gpu_type="a100", gres=("gpu:v100:2",)),
            SandboxNodes(1, gpus=2, gpu_type="h100", gres=("gpu:h100_1g.10gb:4",)),
        ),
        cred_expire_s=10,
    )
    box = Sandbox.up(module_directory / "mixed", spec)
    try:
        yield box
    finally:
        box.down(remove=True)


@pytest.fixture
def place(mixed: Sandbox, short_directory: Path) -> Iterator[Schedd]:
    """A new daemon on the two nodes."""
    with schedd_in(mixed, short_directory) as daemon:
        daemon.configure(
            policy={"parameters": {"thresholds_gpu_s": [8, 100_000]}},
            preemption={"min_quantum_s": 1},
            service={"weights": {"h100_1g.10gb": 0.14}},
        )
        daemon.start()
        yield daemon


def submit(place: Schedd, gpus: str, *options: str) -> str:
    """A job of one node that ignores its signal; the job id."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", "--nodes=1", f"--gres=gpu:{gpus}"]
    argv += ["--requeue", f"--comment={OPTED_IN}", "--mem=1G", "--time=10", *options]
    return place.box.run([*argv, "--wrap=trap '' USR1; exec sleep 900"]).stdout.strip()


@pytest.mark.parametrize(
    ("node", "fixed", "victim", "wrong", "right"),
    [
        pytest.param("n1", "a100:2", "v100:2", "a100:2", "v100:2", id="two types"),
        pytest.param("n1", "a100:2", "2", "a100:1", "1", id="a victim that asked for any type"),
        pytest.param(
            *("n2", "h100:2", "h100_1g.10gb:4", "h100:1", "h100_1g.10gb:1"), id="MIG slices"
        ),
    ],
)
def test_gpus_change_hands_by_their_type(
    place: Schedd, *, node: str, fixed: str, victim: str, wrong: str, right: str
) -> None:
    """*fixed* is held by a job that has not opted in, *victim* by one that has."""
    keeps = submit(place, fixed, f"--nodelist={node}", "--comment=")
    place.until_state(keeps, "RUNNING")
    runs = submit(place, victim, f"--nodelist={node}")
    place.until("the victim to sink", lambda: sank(place, runs), within_s=40)
    in_vain = submit(place, wrong, f"--nodelist={node}")
    looks = place.cycles() + LOOKS
    place.until("more looks", lambda: place.cycles() >= looks)
    assert place.audit(action="open_handover") == []
    assert place.state(runs) == "RUNNING"

    first = submit(place, right, f"--nodelist={node}")
    place.until_state(first, "RUNNING")
    assert place.job(runs, "Restarts") == ["1"]
    assert place.state(in_vain) == "PENDING"


def test_a_slice_counts_as_its_weight(place: Schedd) -> None:
    """What a job on slices has had, beside one on as many whole GPUs that runs as long."""
    whole, slices = submit(place, "h100:2"), submit(place, "h100_1g.10gb:2")

    def had() -> dict[str, float]:
        rows = json.loads(place.ask("dlqueue", "--json").stdout)["jobs"]
        return {row["job"]: row["attained_gpu_h"] for row in rows}

    both = whole, slices
    place.until("both to be counted", lambda: min(had().get(j, 0) for j in both) > 0.0006)
    # The two runs began within a poll of each other.
    assert had()[slices] / had()[whole] == pytest.approx(0.14, rel=0.5)
