"""Build wheels and source distribution: ``python tools/packaging/dist.py`` (or ``make wheel``).

The second wheel, slurm_dl_job, has only what runs inside a job.

They hold what git tracks and nothing else. Equal sources, SOURCE_DATE_EPOCH and hatchling give
equal files, byte by byte; without SOURCE_DATE_EPOCH it is the time of the last commit.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sources import ROOT, BuildError, dated, epoch_s, export, run

JOB = "tools/packaging/job"
"""Its pyproject.toml makes the wheel slurm_dl_job of the same tree."""
_BUILD = (sys.executable, "-m", "build")


def build(out: Path) -> list[Path]:
    """Build them into *out*; where they lie.

    Raises:
        BuildError: They cannot be built here.
    """
    now_s = epoch_s()
    with tempfile.TemporaryDirectory(prefix="slurm-dl-dist-") as scratch:
        top = Path(scratch)
        tree = export(top / "tree")
        made = top / "made"
        # Each from the tree; a test sees that the source distribution gives an equal wheel.
        kinds = ("--sdist", "--wheel")
        run(*_BUILD, *kinds, "--outdir", made, tree, env=dated(now_s))
        run(*_BUILD, "--wheel", "--outdir", made, tree / JOB, env=dated(now_s))
        out.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy2(path, out)) for path in sorted(made.iterdir())]


def main(argv: Sequence[str]) -> int:
    """Build them and say where they are."""
    parser = argparse.ArgumentParser(
        prog="tools/packaging/dist.py",
        description="Build the wheels and the source distribution of what git tracks.",
        epilog="Example: python tools/packaging/dist.py --out dist",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR")
    try:
        made = build(parser.parse_args(argv).out)
    except BuildError as err:
        print(f"tools/packaging/dist.py: {err}", file=sys.stderr)
        return 1
    print(*made, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
