"""The demo in a container, for hosts without Slurm."""

from __future__ import annotations

import json
import subprocess

import pytest
from containers import CHECKOUT

pytestmark = [
    pytest.mark.docker,
    pytest.mark.full("needs containers of three releases"),
    pytest.mark.timeout(1800),
]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("release", ["24.11"])
def test_make_demo_docker_plays_both_arms(release: str) -> None:
    """In one container all jobs of both arms end, and preempted ones go on where they saved."""
    done = subprocess.run(
        ["make", "--silent", "demo-docker", f"RELEASE={release}", "DEMO=--quick --json"],  # noqa: S607
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert result["slurm_dl"]["preemptions"] >= 1
    assert result["complete"] is True
    for arm in ("plain_slurm", "slurm_dl"):
        assert result[arm]["completed"] == result[arm]["jobs"] > 0
