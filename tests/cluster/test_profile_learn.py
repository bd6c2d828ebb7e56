"""A model's speed in two shapes, learned from jobs of a real Slurm."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_dl.cli.dlctl.command import dlctl
from slurm_dl.model.shape import Shape
from slurm_dl.profiles import load_profiles
from slurm_dl.sandbox import Sandbox

pytestmark = [pytest.mark.slurm, pytest.mark.full("profiles several trainings one after the other")]

ROOT = Path(__file__).parents[2]
PYTHON = "/usr/bin/python3"
STEPS = 120
TRAIN = f"""\
import time
from pathlib import Path
from slurm_dl import job

for step in range(1, {STEPS} + 1):
    time.sleep(0.05)
    job.report(step, {STEPS})
saved = Path(job.run_dir(), "ck")
saved.write_bytes(b"x" * 2**20)
job.checkpoint_saved(saved, {STEPS}, save_s=0.5)
"""


@pytest.fixture
def library(sandbox: Sandbox) -> Path:
    """What a compute node needs: the job's package and a training script."""
    library = sandbox.jobs_directory / "learning"
    shutil.copytree(ROOT / "slurm_dl" / "job", library / "slurm_dl" / "job")
    shutil.copy(ROOT / "slurm_dl" / "__init__.py", library / "slurm_dl")
    (library / "train.py").write_text(TRAIN)
    for path in (library, *library.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return library


def test_learn_writes_both_shapes(
    sandbox: Sandbox, library: Path, tmp_path: Path, eventually: Callable[..., object]
) -> None:
    """One node with two GPUs, two nodes with one: each run knows what it lay on."""
    command = shlex.join(
        [PYTHON, "-m", "slurm_dl.job.run", "--", PYTHON, str(library / "train.py")]
    )
    script = f"#!/bin/bash\nexport PYTHONPATH={shlex.quote(str(library))}\nexec {command}\n"
    shapes = [("--nodes=1", "--gpus-per-node=a100:2"), ("--nodes=2", "--gpus-per-node=a100:1")]
    jobs = [
        sandbox.run(
            ["sbatch", "--parsable", "--requeue", "--output=%j.out", *options],
            stdin=script,
            user="nobody",
        ).stdout.strip()
        for options in shapes
    ]

    def over(job: str) -> bool:
        return "JobState=COMPLETED" in sandbox.run(["scontrol", "-o", "show", "job", job]).stdout

    eventually(lambda: all(map(over, jobs)), 90, what="both jobs to end")
    site = tmp_path / "profiles"
    places = [str(sandbox.jobs_directory / f"slurm_dl-{job}") for job in jobs]
    arguments = ["profile", "learn", "--model", "tiny", "--unnamed", "--dir", str(site), *places]

    tried = CliRunner().invoke(dlctl, [*arguments, "--dry-run"], catch_exceptions=False)
    assert tried.exit_code == 0, tried.output
    assert "speed 1x2 a100: unknown -> " in tried.output
    assert not site.exists()
    done = CliRunner().invoke(dlctl, [*arguments, "--json"], catch_exceptions=False)

    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["runs"] == 2
    profile = load_profiles(site)["tiny"]
    assert {s.shape for s in profile.speeds} == {Shape(1, 2), Shape(2, 1)}
    for speed in profile.speeds:
        assert (speed.gpu_type, speed.origin, speed.observations) == ("a100", "measured", 1)
        # A step cannot be shorter than it sleeps.
        assert 0 < speed.steps_per_s < 20
    assert profile.checkpoint.size_mb == 1.0
    assert profile.checkpoint.observations == 2
    assert profile.checkpoint.save_s is not None
    assert profile.checkpoint.save_s >= 0.5
