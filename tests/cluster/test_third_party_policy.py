"""A policy that slurm_dl does not know until it is installed drives a real Slurm."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE
from schedd import Schedd, schedd_in, toy_steps
from third_party import ROOT, TUTORIAL, install

from slurm_dl.sandbox import Sandbox

pytestmark = [pytest.mark.slurm, pytest.mark.full("installs a package with pip")]


@pytest.fixture
def daemon(
    sandbox: Sandbox, short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Schedd]:
    """A running dlschedd under the policy of examples/policy."""
    site = install(short_directory / "site")
    monkeypatch.setenv("PATH", site["PATH"])
    with schedd_in(sandbox, short_directory) as place:
        place.command = [str(shutil.which("dlschedd", path=site["PATH"]))]
        place.configure(policy={"order": "small_first", "parameters": {"patience_s": 600}})
        place.start()
        yield place


def test_a_small_job_takes_the_gpus_of_a_large_one(daemon: Schedd) -> None:
    """The large one is preempted by the site's rule, and goes on where it was."""
    steps = 80
    large = daemon.toy(16, steps)
    daemon.until_state(large, "RUNNING")
    small = daemon.toy(2, 8)
    daemon.until_state(small, "RUNNING", "COMPLETED")

    why = daemon.ask("dlqueue", "why", large).stdout
    daemon.until_state(small, "COMPLETED")
    daemon.until_state(large, "COMPLETED", within_s=120)

    assert int(daemon.job(large, "Restarts")[0]) >= 1
    assert daemon.job(small, "Restarts") == ["0"]
    assert toy_steps(daemon.home, large) == list(range(1, steps + 1))
    assert "tier" in why


def test_the_page_can_be_played(short_directory: Path) -> None:
    """The commands of the tutorial's last part, one after the other, in a directory of ours."""
    part = TUTORIAL.read_text("utf-8").partition("## Run it on a sandbox")[2]
    [script] = re.findall(r"^```sh\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
    box = short_directory / "small"
    script = script.replace("/var/tmp/small", str(box))  # noqa: S108 - what the page says
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
    try:
        done = subprocess.run(
            ["/bin/bash", "-e", "-u", "-o", "pipefail", "-c", f"set -m\n{script}"],
            cwd=ROOT,
            env={**clean, **install(short_directory / "site")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300 * PATIENCE,
            check=False,
        )
    finally:
        if (box / "sandbox.json").exists():
            Sandbox.open(box).down(remove=True)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{box}/dl/dl.yaml: ok" in done.stdout
    assert re.search(r"^[1-9]\d*$", done.stdout, re.MULTILINE), done.stdout  # Requeues.
    assert not box.exists()
