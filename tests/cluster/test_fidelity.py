"""The simulator against a real Slurm, on something small: it must not drift away unnoticed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

BENCHMARKS = Path(__file__).parents[2] / "tools" / "benchmarks"

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.full("compares a run of minutes with the simulator"),
    pytest.mark.timeout(900),
]

TOLERANCE_FRAC = 0.25
"""Of the mean completion time of seven jobs. A single start that comes a pass or two later, as on
a busy machine, is worth a few per cent; a rule that is wrong is worth more."""


def test_the_simulator_predicts_a_small_workload(tmp_path: Path) -> None:
    """Seven jobs on a real Slurm, alone and under dlschedd, and the same simulated."""
    shutil.copytree(
        BENCHMARKS, tmp_path / "b", ignore=shutil.ignore_patterns("results", "__pycache__")
    )
    command = [sys.executable, str(tmp_path / "b" / "fidelity.py"), "--seeds", "98", "--jobs", "7"]
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=400 * PATIENCE,
    )
    assert ran.returncode == 0, ran.stderr
    text = (tmp_path / "b" / "results" / "fidelity.json").read_text(encoding="utf-8")
    runs = {run["arm"]: run for run in json.loads(text)["runs"]}

    assert set(runs) == {"plain", "discrete_las"}
    for run in runs.values():
        assert abs(run["bias_frac"]) <= TOLERANCE_FRAC, run
        assert len(run["real_jct_s"]) == 7
    assert runs["plain"]["real_preemptions"] == 0
