"""The pictures of README and index are what their scripts draw."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import shown

IMG = shown.ROOT / "docs" / "img"


def drawn(script: str, *argv: str | Path) -> None:
    """Run one of the scripts."""
    subprocess.run([sys.executable, IMG / script, *argv], check=True, timeout=300)


def test_the_architecture_is_drawn_by_its_script(tmp_path: Path) -> None:
    """Byte by byte."""
    drawn("architecture.py", tmp_path / "drawn.svg")

    assert (tmp_path / "drawn.svg").read_bytes() == (IMG / "architecture.svg").read_bytes()


def test_the_benefit_is_simulated_by_its_script(tmp_path: Path) -> None:
    """On a small trace: one row for each class of jobs that it has, and the price."""
    trace = shown.ROOT / "traces" / "tiresias" / "60_job.csv"
    out = tmp_path / "drawn.svg"

    drawn("benefit.py", "--trace", trace, "--cluster", "2x4", "--out", out)

    text = out.read_text("utf-8")
    assert "60 jobs of 60_job.csv on 2x4 GPUs" in text
    assert "all jobs <tspan" in text
    # No job of this trace runs for an hour: two classes, and all jobs.
    assert text.count('class="dot-ours"') == 1 + 3
    assert "preemptions" in text


def test_the_readme_says_what_its_picture_shows() -> None:
    """Mean completion times, how much later long jobs end, and the longest time."""
    picture = re.sub(r"<[^>]*>", "|", (IMG / "benefit.svg").read_text("utf-8"))
    readme = " ".join((shown.ROOT / "README.md").read_text("utf-8").split())

    def pair(row: str, unit: str) -> tuple[int, int]:
        first, second = re.findall(rf"(\d+) {unit}\b", picture.partition(row)[2])[:2]
        return int(first), int(second)

    (plain, ours), (long, later) = pair("all jobs", "h"), pair("over 1 day", "h")
    assert f"falls from {plain} to {ours} hours" in readme
    longest = pair("longest completion time", "d")
    assert f"the longest takes {longest[1]} days instead of {longest[0]}" in readme
    (told,) = re.findall(r"jobs over a day take (\d+) % longer", readme)
    assert abs(int(told) - 100 * (later / long - 1)) < 1
