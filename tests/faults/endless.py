"""A test that never ends, on a real Slurm; test_gate.py runs it by name and interrupts it."""

from __future__ import annotations

import time

import pytest

from slurm_dl.sandbox import Sandbox

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(0)]


def test_without_end(sandbox: Sandbox) -> None:
    sandbox.run(["sbatch", "--output=/dev/null", "--wrap=sleep 3600"])
    (sandbox.directory / "begun").touch()
    while True:
        time.sleep(1)
