"""A training in a real Apptainer container is asked to save, and comes back."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_dl.sandbox import Sandbox

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(not shutil.which("apptainer"), reason="apptainer is not on PATH"),
]

BIN = Path(sys.executable).parent
TRAIN = """import os, pathlib, signal, sys, time
run = os.environ["SLURM_RESTART_COUNT"]
place = pathlib.Path(os.environ["SLURM_DL_RUN_DIR"])
inside = pathlib.Path("/in_image").exists() and os.getcwd() == sys.argv[1]
def save(*_):
    with (place / "saved").open("a") as out:
        out.write(f"{run} {inside}\\n")
    sys.exit(75)
signal.signal(signal.SIGUSR1, save)
(place / f"up-{run}").touch()
while run == "0":
    time.sleep(0.1)
"""


@pytest.mark.parametrize(("launcher", "pid_namespace"), [("plain", True), ("srun", False)])
def test_the_signal_reaches_a_training_in_a_container(
    sandbox: Sandbox, eventually: Callable[..., object], launcher: str, *, pid_namespace: bool
) -> None:
    """It saves once, outside lies what it wrote, and its second run ends well."""
    desk = sandbox.jobs_directory / f"box {launcher}{pid_namespace}"
    python = Path(sys.base_prefix, "bin", "python3")
    outside = ["/usr", "/bin", "/lib", "/lib64", *{sys.base_prefix} - {"/usr"}]
    for name in (*outside, *("etc", "proc", "sys", "dev", "tmp", "var/tmp", "root", "in_image")):
        (desk / "image" / name.lstrip("/")).mkdir(parents=True, exist_ok=True)
    (desk / "train.py").write_text(TRAIN)
    env = {
        "PATH": f"{Path(shutil.which('apptainer') or '').parent}:/usr/bin:/bin",
        "APPTAINER_USERNS": "1",
        "APPTAINER_NO_MOUNT": "tmp,cwd,home",
        "APPTAINER_BINDPATH": ",".join(outside),
        **({"APPTAINER_PID": "1"} if pid_namespace else {}),
    }
    options = ["--gpus=1", f"--launcher={launcher}", "--container=image", "--run-dir=../its runs"]

    job = sandbox.run(
        [str(BIN / "dlsubmit"), "--parsable", *options, "--", str(python), "train.py", str(desk)],
        cwd=desk,
        env=env,
    ).stdout.strip()
    run_dir = sandbox.jobs_directory / "its runs" / job

    def shown() -> str:
        return sandbox.run(["scontrol", "show", "job", job]).stdout

    eventually((run_dir / "up-0").exists, 60.0, what=f"the training of {job}")
    sandbox.run(["scancel", "--batch", "--signal=USR1", job])
    eventually((run_dir / "saved").exists, 30.0, what="the checkpoint")
    eventually(lambda: '"ack":0' in shown(), 30.0, what="the acknowledgement")
    sandbox.run(["scontrol", "requeue", job])

    eventually((run_dir / "up-1").exists, 120.0, what="the second run")
    eventually(lambda: "JobState=COMPLETED" in shown(), 60.0, what="a good end")
    assert (run_dir / "saved").read_text() == "0 True\n", (desk / f"slurm-{job}.out").read_text()
