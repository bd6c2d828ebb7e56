"""The acceptance case: a real PyTorch training, preempted twice, loses nothing.

Needs a Python with torch: SLURM_DL_TORCH_PYTHON, or the one that runs the tests.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from schedd import schedd_in

from slurm_dl.sandbox import Sandbox

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "train_digits.py"
STEPS = 240
TRAIN = [str(SCRIPT), "--steps", str(STEPS), "--checkpoint-every", "1000"]
COMMENT = '{"slurm_dl":{"v":1,"sig":"USR1"}}'


@pytest.fixture(scope="session")
def torch_python() -> str:
    """A Python that imports torch."""
    python = os.environ.get("SLURM_DL_TORCH_PYTHON") or sys.executable
    found = subprocess.run(
        [python, "-c", "import torch"], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        reason = f"{python} cannot import torch: name one in SLURM_DL_TORCH_PYTHON"
        if os.environ.get("SLURM_DL_TORCH_PYTHON"):
            pytest.fail(reason)
        pytest.skip(reason)
    return python


def entries(path: Path) -> list[dict[str, float]]:
    return [json.loads(s) for s in path.read_text().splitlines()] if path.exists() else []


def uninterrupted(command: list[str], place: Path) -> list[dict[str, float]]:
    """The loss curve of the same training when nobody disturbs it."""
    subprocess.run(
        [*command, "--step-s", "0"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "SLURM_DL_RUN_DIR": str(place)},
        check=True,
    )
    curve = entries(place / "loss.jsonl")
    assert [e["step"] for e in curve] == list(range(1, STEPS + 1))
    return curve


def test_a_training_preempted_twice_has_the_loss_curve_of_an_uninterrupted_one(
    sandbox: Sandbox,
    eventually: Callable[..., object],
    tmp_path: Path,
    torch_python: str,
) -> None:
    """Same steps, same losses to the last bit, nothing recomputed beyond the checkpoint."""
    command = [torch_python, *TRAIN]
    expected = uninterrupted(command, tmp_path)

    dlrun = [sys.executable, "-m", "slurm_dl.job.run", "--", *command, "--step-s", "0.05"]
    script = (
        "#!/bin/bash\ntrap '' USR1\n"
        f"export PYTHONPATH={shlex.quote(str(ROOT))}\nexec {shlex.join(dlrun)}\n"
    )
    options = ["--requeue", "--open-mode=append", "--nodes=1", "--gpus-per-node=1"]
    job = sandbox.run(
        ["sbatch", "--parsable", f"--comment={COMMENT}", *options], stdin=script
    ).stdout.strip()
    place = sandbox.jobs_directory / f"slurm_dl-{job}"

    def squeue(what: str) -> str:
        return sandbox.run(["squeue", "-h", "-t", "all", "-j", job, "-o", what]).stdout.strip()

    stops: list[float] = []
    for run in (0, 1):

        def trains(run: int = run) -> bool:
            runs = [r for r in entries(place / "runs.jsonl") if r["restart"] == run]
            done = len(entries(place / "loss.jsonl"))
            return bool(runs) and done >= runs[-1]["from_step"] + 40

        def is_acked(run: int = run) -> bool:
            return bool(json.loads(squeue("%k"))["slurm_dl"].get("ack") == run)

        eventually(trains, 90, what=f"run {run} to train")
        sandbox.run(["scancel", "--batch", "--signal=USR1", job])
        eventually(is_acked, 30, what=f"the acknowledgement of run {run}")
        stops.append(entries(place / "loss.jsonl")[-1]["step"])
        sandbox.run(["scontrol", "requeue", "Incomplete", job])
    eventually(lambda: squeue("%T") == "COMPLETED", 120, what="the end of the training")

    runs = entries(place / "runs.jsonl")
    assert [r["restart"] for r in runs] == [0, 1, 2]
    assert [r["from_step"] for r in runs] == [0, *stops]
    assert 0 < stops[0] < stops[1] < STEPS
    assert entries(place / "loss.jsonl") == expected


def test_a_training_that_the_daemon_preempts_twice_loses_nothing(
    sandbox: Sandbox, short_directory: Path, tmp_path: Path, torch_python: str
) -> None:
    """Submitted with dlsubmit, stopped by dlschedd for small jobs, two times: the same curve."""
    command = [torch_python, *TRAIN]
    expected = uninterrupted(command, tmp_path)
    with schedd_in(sandbox, short_directory) as daemon:
        daemon.start()
        job = daemon.submit(
            16, "env", f"PYTHONPATH={ROOT}", *command, "--step-s", "0.1", options=["--grace", "40"]
        )
        place = short_directory / "slurm_dl_runs" / job
        for run in (0, 1):

            def trains(run: int = run) -> bool:
                starts = [r for r in entries(place / "runs.jsonl") if r["restart"] == run]
                done = len(entries(place / "loss.jsonl"))
                return bool(starts) and done >= starts[-1]["from_step"] + 60

            daemon.until(f"run {run} to train", trains, 90)
            small = daemon.toy(1, 4)
            daemon.until_state(small, "COMPLETED")
        daemon.until_state(job, "COMPLETED", within_s=120)
        signals = daemon.audit(action="signal", job=int(job), result="ok")
        restarts = int(daemon.job(job, "Restarts")[0])

    assert restarts == len(signals) >= 2
    assert entries(place / "loss.jsonl") == expected
