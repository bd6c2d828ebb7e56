"""The benchmark of the page runs, on something small."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full("needs Chromium")

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("browser")
def test_the_report_benchmark_measures_a_page(tmp_path: Path) -> None:
    """Every time is there, and what was drawn is the schedule of that many jobs."""
    shutil.copytree(
        ROOT / "tools" / "benchmarks",
        tmp_path / "tools" / "b",
        ignore=shutil.ignore_patterns("results", "__pycache__"),
    )
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    ran = subprocess.run(
        [
            sys.executable,
            tmp_path / "tools" / "b" / "bench_report.py",
            "--jobs",
            "300",
            "--rounds",
            "1",
        ],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert ran.returncode == 0, ran.stderr
    found = json.loads(
        (tmp_path / "tools" / "b" / "results" / "bench_report.json").read_text("utf-8")
    )
    case = found["cases"]["300"]
    assert case["jobs"] == 300
    assert case["runs"] >= 300
    assert case["marks"] > 0
    for name in ("ready_s", "draw_s", "zoomed_s"):
        assert case[name] > 0
