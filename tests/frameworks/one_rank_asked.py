"""Runs an example in which one rank alone is asked to stop; run by a test under torchrun.

    torchrun ... one_rank_asked.py RANK STEP SCRIPT [ARG ...]

On a cluster the ranks see a request some steps apart. Here one of them sends itself the signal
within that step of the first run, and nothing tells the others.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys

import steps


class Asked(steps.Steps):
    """Notes steps as the example does, and asks."""

    def done(self, step: int, loss: float) -> None:
        """Note the step; ask if it is the one."""
        super().done(step, loss)
        if (os.environ["RANK"], step, os.environ["SLURM_DL_ATTEMPT"]) == (RANK, STEP, "0"):
            signal.raise_signal(signal.SIGUSR1)


if __name__ == "__main__":
    RANK, STEP = sys.argv[1], int(sys.argv[2])
    steps.Steps = Asked  # type: ignore[misc]
    sys.argv = sys.argv[3:]
    runpy.run_path(sys.argv[0], run_name="__main__")
