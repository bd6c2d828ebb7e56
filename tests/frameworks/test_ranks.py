"""Trainings on two ranks: they stop at one step, and each goes on with what was its own."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Any

import pytest

from slurm_dl.job.checkpoint import recorded

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.torch,
    pytest.mark.full("trains with real frameworks"),
    pytest.mark.timeout(900),
]

Lab = Any
Job = Any
"""The classes Frameworks and Trained in conftest.py, which cannot be imported."""

HERE = Path(__file__).parent
EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
STEPS = 60
RANKS = 2
SOME = 12
"""Steps of a training that is about its stop alone."""

ASKED = 5
PORTS = range(10_000, 15_000)
"""Neither a sandbox nor torchrun under dlsubmit takes these, nor the kernel for connections."""

TORCHRUN = ("--standalone", f"--nproc-per-node={RANKS}")


@pytest.mark.parametrize(
    ("script", "modules"),
    [
        ("torchrun_train.py", ("torch",)),
        ("huggingface_train.py", ("transformers", "accelerate")),
    ],
    ids=["torchrun", "huggingface"],
)
def test_ranks_of_torchrun_stop_at_one_step(
    lab: Lab, script: str, modules: tuple[str, ...]
) -> None:
    """Each has data of its own; the file in the run directory asks them some steps apart."""
    lab.needs(*modules)
    command = [str(EXAMPLES / script), "--steps", str(STEPS)]
    expected = lab.alone_by_rank([_beside(lab, "torchrun"), *TORCHRUN, *command], RANKS)
    job = lab.submit(RANKS, *command, "--step-s", "0.1", options=["--launcher", "torchrun"])

    _preempted_once_at_one_step(job, expected)


def test_lightnings_ranks_under_srun_stop_at_one_step(lab: Lab) -> None:
    """A task for each rank, which Lightning finds by Slurm's variables, dropout and all."""
    lab.needs("lightning")
    command = [lab.python, str(EXAMPLES / "lightning_train.py"), "--devices", str(RANKS)]
    command += ["--steps", str(STEPS)]
    expected = lab.alone_by_rank(command, RANKS)
    # Names of a sandbox's nodes do not resolve, and other sandboxes have jobs of the same number.
    meeting = ["env", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={_free_port()}"]
    job = lab.submit(RANKS, *meeting, *command, "--step-s", "0.1", options=["--launcher", "srun"])

    _preempted_once_at_one_step(job, expected)


@pytest.mark.parametrize(
    ("script", "modules"),
    [("huggingface_train.py", ("transformers", "accelerate")),
     ("lightning_train.py", ("lightning",))],
    ids=["huggingface", "lightning"],
)  # fmt: skip
def test_all_ranks_stop_where_one_alone_is_asked(
    lab: Lab, script: str, modules: tuple[str, ...]
) -> None:
    """Not rank 0, which writes; without their agreement the other waits in vain for ever."""
    lab.needs(*modules)
    more = ["--devices", str(RANKS)] if script == "lightning_train.py" else []
    asked = [str(HERE / "one_rank_asked.py"), "1", str(ASKED)]
    done = lab.under_dlrun(
        *("--launcher", "torchrun", "--", _beside(lab, "torchrun"), *TORCHRUN, *asked),
        *(str(EXAMPLES / script), "--steps", str(SOME), *more),
        within_s=300,
    )
    run = lab.trained("none", lab.home / "run")

    assert done.returncode == 0, done.stdout[-3000:]
    assert "starting the command again in place" in done.stdout
    assert [(c["step"], c["attempt"]) for c in recorded(run.place)] == [(ASKED, 0)]
    assert [[e["step"] for e in entries] for entries in run.by_rank(RANKS)] == [
        list(range(1, SOME + 1))
    ] * RANKS


def _preempted_once_at_one_step(job: Job, expected: list[list[dict[str, float]]]) -> None:
    job.until_trains(0)
    job.preempt(0)
    job.until_trains(1)
    job.until_completed()
    by_rank = job.by_rank(RANKS)
    stops = [max(e["step"] for e in entries if e["run"] == 0) for entries in by_rank]

    assert job.now()[1].restarts == 1
    assert [[e["step"] for e in entries] for entries in by_rank] == [
        list(range(1, STEPS + 1))
    ] * RANKS
    assert len(set(stops)) == 1, stops
    assert [e["loss"] for e in by_rank[0]] != [e["loss"] for e in by_rank[1]]
    assert [[e["loss"] for e in entries] for entries in by_rank] == [
        [e["loss"] for e in entries] for entries in expected
    ]
    (checkpoint,) = job.checkpoints
    assert [(c["step"], c["restart"]) for c in recorded(job.place)] == [(stops[0], 0)]
    assert list(checkpoint.parent.glob("*-[0-9]*")) == [checkpoint]


def _beside(lab: Lab, name: str) -> str:
    return str(Path(lab.python).parent / name)


def _free_port() -> int:
    """One that nobody listens on."""
    for port in random.sample(PORTS, 50):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("", port))
            except OSError:
                continue
            return port
    pytest.fail("no port is free")
