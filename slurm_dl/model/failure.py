"""The class of a job's failure, which decides whether it runs again.

Source: Jeon et al. (Philly), ATC 2019, section 4: a retry helps after a failure of the
infrastructure, and an error of the user's fails again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

FailureClass = Literal["user", "infrastructure"]

ENDINGS: Mapping[str, FailureClass] = {
    "OUT_OF_MEMORY": "user",
    "BOOT_FAIL": "infrastructure",
    "NODE_FAIL": "infrastructure",
}
"""Classes of ends by Slurm's word. After NODE_FAIL it requeues jobs by itself, if it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed run."""

    kind: FailureClass
    mark: str  # Equal for equal failures of the job
    run: int  # Restart count of the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """The site's bounds on retries of failed jobs."""

    infrastructure: int = 3  # Most requeues of a job after failures of the infrastructure
    window_s: float = 86_400.0  # In any span of this length, seconds
