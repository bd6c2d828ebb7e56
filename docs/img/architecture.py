"""Draw architecture.svg: the programs of slurm_dl beside Slurm, and what they exchange.

python3 docs/img/architecture.py [FILE]
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

from svg_page import write_svg


def zone(x: int, y: int, width: int, height: int, name: str) -> str:
    """A host, or a group of hosts."""
    return (
        f'<rect class="zone" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
        f'<text class="zone-name" x="{x + 12}" y="{y + 20}">{escape(name)}</text>'
    )


def box(kind: str, x: int, y: int, width: int, height: int, *lines: str) -> str:
    """A program: its name, then what it does."""
    top = y + height / 2 - (len(lines) - 1) * 9 + 5
    texts = "".join(
        f'<text class="{"small" if i else "head"}" x="{x + width / 2:g}" y="{top + 18 * i:g}">'
        f"{escape(line)}</text>"
        for i, line in enumerate(lines)
    )
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>{texts}'


def wire(path: str, x: int, y: int, *lines: str) -> str:
    """An arrow, and what goes along it, from *y* down."""
    texts = "".join(
        f'<text class="small" x="{x}" y="{y + 16 * i}">{escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    return f'<path class="wire" d="{path}"/>{texts}'


PARTS = (
    zone(15, 15, 190, 380, "users and admins"),
    box("ours", 30, 59, 160, 62, "dlsubmit", "user: batch script", "from a template"),
    box("ours", 30, 230, 160, 62, "dlqueue", "user: rank, reasons,", "expected start"),
    box("ours", 30, 310, 160, 62, "dlctl", "admin: doctor, pause,", "reports"),
    zone(340, 15, 310, 380, "controller host"),
    box(
        "slurm", 360, 50, 270, 80, "slurmctld (stock Slurm)", "owns queue and nodes,", "starts jobs"
    ),
    box(
        "ours",
        360,
        245,
        270,
        112,
        "dlschedd",
        "observe, decide, apply",
        "ledger of attained service",
        "audit log, metrics",
    ),
    zone(775, 15, 170, 380, "GPU nodes"),
    box("slurm", 790, 59, 140, 62, "slurmd", "runs the batch", "script"),
    box("ours", 790, 165, 140, 62, "dlrun", "signal becomes", "a save request"),
    box("plain", 790, 271, 140, 62, "training script", "slurm_dl.job or", "a framework"),
    wire("M190 90 H354", 272, 80, "sbatch"),
    wire("M190 261 H354", 0, 0),
    wire("M190 341 H354", 272, 306, "control socket"),
    wire("M420 130 V239", 388, 180, "squeue,", "sinfo"),
    wire("M500 245 V136", 562, 164, "SiteFactor,", "reservation,", "signal, requeue"),
    wire("M630 76 H784", 712, 66, "job start, signal"),
    wire("M860 121 V159", 0, 0),
    wire("M860 227 V265", 0, 0),
    wire("M790 196 H712 V108 H636", 713, 216, "checkpoint saved"),
)


def main(path: Path) -> None:
    """Write the picture to *path*."""
    label = "dlschedd beside slurmctld, commands of users and admins, dlrun on GPU nodes"
    write_svg(path, 960, 410, label, *PARTS)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).with_suffix(".svg"))
