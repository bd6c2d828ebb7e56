"""Draw benefit.svg: completion times under plain Slurm and under slurm_dl, and the price.

Both are simulated on one trace with the costs of a real Slurm (`dlsim run --costs slurm`). With the
defaults: 2,396 jobs of a Microsoft cluster on 96 GPUs, a minute and a half.

    .venv/bin/python docs/img/benefit.py [--trace FILE] [--cluster NODESxGPUS] [--out FILE]
"""

from __future__ import annotations

import argparse
import csv
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from svg_page import write_svg

ROOT = Path(__file__).parents[2]
HOUR_S = 3600.0
TEN = 10.0
CLASSES = (
    ("under 15 min", 0.0, 0.25),
    ("15 min to 1 h", 0.25, 1.0),
    ("1 to 4 h", 1.0, 4.0),
    ("4 h to 1 day", 4.0, 24.0),
    ("over 1 day", 24.0, math.inf),
    ("all jobs", 0.0, math.inf),
)
"""Rows: jobs by their run time alone, in hours."""
TICKS = {0.1: "6 min", 1.0: "1 h", 10.0: "10 h", 100.0: "100 h"}
LEFT, RIGHT, TOP, ROW, HEIGHT = 230, 630, 96, 40, 400


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a simulation; hours, and GPU-hours that made no progress."""

    alone_h: float
    jct_h: float
    gpu_h: float
    lost_gpu_h: float
    preemptions: int


def simulate(trace: Path, cluster: str, policy: str) -> list[Job]:
    """The jobs of *trace* under *policy*, in the order of the trace."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "jobs.csv"
        argv = [Path(sys.executable).with_name("dlsim"), "run", trace, "--cluster", cluster]
        argv += ["--policy", policy, "--costs", "slurm", "--jobs-csv", file]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        with file.open(encoding="utf-8") as lines:
            return [
                Job(
                    alone_h=float(row["alone_s"]) / HOUR_S,
                    jct_h=float(row["jct_s"]) / HOUR_S,
                    gpu_h=float(row["service_gpu_s"]) / HOUR_S,
                    lost_gpu_h=float(row["lost_gpu_s"]) / HOUR_S,
                    preemptions=int(row["preemptions"]),
                )
                for row in csv.DictReader(lines)
            ]


def mean_h(jobs: Sequence[Job], low_h: float, high_h: float) -> float | None:
    """Mean completion time of the jobs of a class."""
    times = [job.jct_h for job in jobs if low_h <= job.alone_h < high_h]
    return sum(times) / len(times) if times else None


def words(hours: float) -> str:
    """A time with two figures."""
    if hours < 1:
        return f"{hours * 60:.0f} min"
    return f"{hours:.2g} h" if hours < TEN else f"{hours:.0f} h"


def across(hours: float) -> float:
    """Where a time lies on the logarithmic axis from 6 minutes to 316 hours."""
    return LEFT + (RIGHT - LEFT) * (math.log10(min(max(hours, 0.1), 316.0)) + 1) / 3.5


def chart(slurm: Sequence[Job], ours: Sequence[Job]) -> list[str]:
    """Two dots for each class of jobs."""
    bottom = TOP + ROW * len(CLASSES)
    parts = [
        '<text class="head left" x="20" y="32">Mean completion time, by run time of the job</text>',
        f'<circle class="dot-slurm" cx="{LEFT + 6}" cy="58" r="6"/>',
        f'<text class="small left" x="{LEFT + 18}" y="62">plain Slurm (backfill)</text>',
        f'<circle class="dot-ours" cx="{LEFT + 186}" cy="58" r="6"/>',
        f'<text class="small left" x="{LEFT + 198}" y="62">slurm_dl (discrete_las)</text>',
    ]
    for hours, text in TICKS.items():
        x = f"{across(hours):.1f}"
        parts.append(f'<path class="grid" d="M{x} {TOP - 12} V{bottom - 8}"/>')
        parts.append(f'<text class="small" x="{x}" y="{bottom + 12}">{text}</text>')
    for row, (name, low_h, high_h) in enumerate(CLASSES):
        y = TOP + ROW * row + 10
        count = sum(low_h <= job.alone_h < high_h for job in slurm)
        parts.append(
            f'<text class="right" x="{LEFT - 32}" y="{y + 5}">{name} '
            f'<tspan class="small">({count:,})</tspan></text>'
        )
        before, after = mean_h(slurm, low_h, high_h), mean_h(ours, low_h, high_h)
        if before is None or after is None:
            continue
        a, b = across(before), across(after)
        parts.append(f'<path class="link" d="M{a:.1f} {y} H{b:.1f}"/>')
        for x, kind, hours, is_left in (
            (a, "slurm", before, before < after),
            (b, "ours", after, after <= before),
        ):
            side, shift = ("right", -11) if is_left else ("left", 11)
            parts.append(
                f'<circle class="dot-{kind}" cx="{x:.1f}" cy="{y}" r="6"/>'
                f'<text class="small {side}" x="{x + shift:.1f}" y="{y + 5}">{words(hours)}</text>'
            )
    return parts


def price(slurm: Sequence[Job], ours: Sequence[Job]) -> list[str]:
    """A table of what it costs."""

    def lost(jobs: Sequence[Job]) -> str:
        return f"{sum(j.lost_gpu_h for j in jobs) / sum(j.gpu_h for j in jobs):.1%}"

    def longest(jobs: Sequence[Job]) -> str:
        return f"{max(job.jct_h for job in jobs) / 24:.0f} d"

    slower = sum(b.jct_h > 1.05 * a.jct_h for a, b in zip(slurm, ours, strict=True))
    rows = (
        ("preemptions", "0", f"{sum(job.preemptions for job in ours):,}"),
        ("lost GPU time", lost(slurm), lost(ours)),
        ("longest completion time", longest(slurm), longest(ours)),
        ("jobs over 5 % later", "", f"{slower / len(ours):.0%}"),
    )
    x = RIGHT + 35
    parts = [
        f'<text class="head left" x="{x}" y="32">Price</text>',
        f'<text class="small right" x="{x + 205}" y="62">Slurm</text>',
        f'<text class="small right" x="{x + 270}" y="62">slurm_dl</text>',
    ]
    for row, (name, before, after) in enumerate(rows):
        y = TOP + ROW * row + 15
        parts.append(
            f'<text class="small left" x="{x}" y="{y}">{name}</text>'
            f'<text class="right" x="{x + 205}" y="{y}">{before}</text>'
            f'<text class="right" x="{x + 270}" y="{y}">{after}</text>'
        )
    return parts


def main() -> None:
    """Simulate twice and draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    trace = ROOT / "traces" / "tiresias-derived" / "itp06.csv"
    parser.add_argument("--trace", type=Path, default=trace)
    parser.add_argument("--cluster", default="12x8", metavar="NODESxGPUS")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".svg"))
    given = parser.parse_args()
    slurm, ours = (
        simulate(given.trace, given.cluster, policy) for policy in ("slurm", "discrete_las")
    )
    foot = (
        f"{len(slurm):,} jobs of {given.trace.name} on {given.cluster} GPUs, simulated with the "
        "measured costs of a real Slurm. Logarithmic axis; number of jobs in brackets."
    )
    write_svg(
        given.out,
        960,
        HEIGHT,
        "Mean completion times under plain Slurm and under slurm_dl, and the price",
        *chart(slurm, ours),
        *price(slurm, ours),
        f'<text class="small left" x="20" y="{HEIGHT - 18}">{foot}</text>',
    )


if __name__ == "__main__":
    main()
