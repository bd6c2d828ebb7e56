"""dlschedd on a host whose clock jumps, while Slurm's does not.

    python skewed.py FILE dlschedd's options ...

The daemon's clock is the true one plus the seconds in FILE, which may change at any time.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

NS: Final = 1_000_000_000


def skew(path: Path) -> None:
    """Put *path* between this process and the clock. Must come before slurm_dl is imported."""
    true_time_ns = time.time_ns

    def time_ns() -> int:
        try:
            offset_s = float(path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            offset_s = 0.0
        return true_time_ns() + int(offset_s * NS)

    time.time_ns = time_ns
    time.time = lambda: time_ns() / NS


if __name__ == "__main__":
    skew(Path(sys.argv.pop(1)))
    from slurm_dl.cli.dlschedd.command import main

    main()
