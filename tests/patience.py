"""How long tests wait: one factor on every deadline, for machines that other programs share.

``SLURM_DL_TEST_PATIENCE`` sets it; it is 3 where ``CI`` is set, else 1. It scales deadlines only,
never sleeps or lengths of jobs, so it costs nothing as long as tests pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, TypeVar

from slurm_dl.sandbox import process_control

T = TypeVar("T")

PATIENCE: Final = float(
    os.environ.get("SLURM_DL_TEST_PATIENCE") or (3 if "CI" in os.environ else 1)
)


def eventually(
    predicate: Callable[[], T], within_s: float = 30.0, every_s: float = 0.2, *, what: str = ""
) -> T:
    """``slurm_dl.sandbox.process_control.eventually`` with the deadline ``within_s * PATIENCE``."""
    return process_control.eventually(predicate, within_s * PATIENCE, every_s, what=what)
