"""Loss per step in a file that survives being stopped: what both examples write."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


class LossLog:
    """Loss per step, one JSON object a line, over all runs of the job.

    Steps after the last checkpoint are computed again by the next run. They are not logged a
    second time, but they must come out the same: otherwise the resumed run is another training.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[int, float] = {}
        if path.exists():
            text = path.read_bytes()
            whole = text[: text.rfind(b"\n") + 1]
            if len(whole) < len(text):  # the node went down inside a write
                os.truncate(path, len(whole))
            for line in whole.splitlines():
                entry = json.loads(line)
                self._known[entry["step"]] = entry["loss"]

    def add(self, step: int, loss: float) -> None:
        """Log the step, or check it against the earlier run that got that far."""
        known = self._known.get(step)
        if known is None:
            append_line(self._path, {"step": step, "loss": loss})
        elif known != loss:
            sys.exit(f"step {step}: loss {loss!r} is not the {known!r} of the earlier run")


def append_line(path: Path, entry: dict[str, object]) -> None:
    """Append in one write, so that a kill leaves whole lines."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (json.dumps(entry) + "\n").encode())
    finally:
        os.close(descriptor)
