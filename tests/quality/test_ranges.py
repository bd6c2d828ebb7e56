"""Figures of scheduling stay inside their ranges; see ``make quality``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.long
FAST = ("demo", "itp10 discrete_las")


def quality(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "tools/benchmarks/quality.py", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_fastest_workloads_are_inside() -> None:
    done = quality(*FAST)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "new" not in done.stdout
