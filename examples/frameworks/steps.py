"""The loss of each step in a file, a line each: what all examples of this directory write."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from slurm_dl import job


class Steps:
    """Writes ``loss.jsonl`` in *directory*, and waits a little at each step.

    Args:
        pause_s: Pause per step, seconds: these models are too small to be interrupted otherwise.
        rank: Each rank above 0 has a file of its own, ``loss.RANK.jsonl``.
    """

    def __init__(self, directory: Path, pause_s: float, rank: int = 0) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / (f"loss.{rank}.jsonl" if rank else "loss.jsonl")
        self._pause_s = pause_s

    def done(self, step: int, loss: float) -> None:
        """Note that *step* is done."""
        entry = {"step": step, "loss": loss, "run": job.restart_count()}
        # One write: a kill leaves whole lines.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, (json.dumps(entry) + "\n").encode())
        finally:
            os.close(descriptor)
        time.sleep(self._pause_s)


def let_gloo_finish() -> None:
    """Wait after the last collective, before the process group is destroyed or the process ends.

    gloo's thread then frees the last tensors, for which it needs the interpreter's lock. PyTorch
    2.13 aborts if the interpreter ends first, and hangs if the group is destroyed meanwhile.
    """
    time.sleep(0.5)
