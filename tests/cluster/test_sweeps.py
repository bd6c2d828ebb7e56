"""A sweep on a real Slurm, of which one task is put back; and the same submission again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_dl.sandbox import Sandbox

pytestmark = pytest.mark.slurm

BIN = Path(sys.executable).parent

TRAIN = """
import os, sys, time
from slurm_dl import job
loss = float(sys.argv[1]) * int(os.environ["SLURM_DL_SWEEP_SEED"]) + job.restart_count() * 100
job.report(1, 2, loss=loss)
while not os.path.exists("until"):
    time.sleep(0.1)
job.report(2, 2, loss=loss)
"""


def test_a_sweep_is_followed_and_submitted_again(
    sandbox: Sandbox, short_directory: Path, eventually: Callable[..., object]
) -> None:
    """Each task has its values, over a requeue, too; the table shows states and numbers."""
    (short_directory / "train.py").write_text(TRAIN)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(short_directory)}

    def ours(*args: str) -> str:
        return sandbox.run([str(BIN / args[0]), *args[1:]], cwd=short_directory, env=env).stdout

    def table(job: str) -> list[Any]:
        told: list[Any] = json.loads(ours("dlqueue", "sweep", job, "--json"))["tasks"]
        return told

    job = ours(
        *("dlsubmit", "--parsable", "--gpus=1", "--time=10", "--sweep=lr=0.5,2"),
        *("--sweep=seed=3,5", "--array=%4", "--", sys.executable, "train.py", "{lr}"),
    ).strip()  # fmt: skip
    losses = [1.5, 2.5, 6.0, 10.0]

    def reported() -> list[float | None]:
        return [task["numbers"].get("loss") for task in table(job)]

    eventually(lambda: reported() == losses, 60, what="four tasks to report")
    assert {task["state"] for task in table(job)} == {"RUNNING"}

    sandbox.run(["scontrol", "requeue", f"{job}_2"])
    losses[2] += 100
    eventually(lambda: reported() == losses, 300, what="the third to report in its second run")
    (short_directory / "until").touch()
    eventually(
        lambda: {(task["state"], task["step"]) for task in table(job)} == {("COMPLETED", 2)},
        60,
        what="the end of all",
    )
    lines = ours("dlqueue", "sweep", job, "--sort=-loss").splitlines()
    assert [line.split()[0] for line in lines] == ["TASK", "2", "3", "1", "0"]

    other = ours(
        "dlsubmit", "--parsable", "--again", job, "--sweep=lr=7", "--sweep=seed=0..1"
    ).strip()
    eventually(
        lambda: (
            [(t["state"], t["numbers"].get("loss")) for t in table(other)]
            == [("COMPLETED", 0.0), ("COMPLETED", 7.0)]
        ),
        90,
        what="the second sweep to end",
    )
