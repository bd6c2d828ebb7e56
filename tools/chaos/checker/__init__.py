"""Judges a campaign by Slurm's own records and the jobs' output.

`records` is what is known, as data; `evidence` gathers it; `explained` says what a run's end is
explained by; `invariants` is what must hold, pure, and gives `findings`; `report` tells them.
"""

from __future__ import annotations

from pathlib import Path

from slurm_dl.model.handover import RESERVATION_PREFIX
from slurm_dl.sandbox import Sandbox
from tools.chaos.checker.evidence import gather
from tools.chaos.checker.report import Report, judge

__all__ = ["Report", "check"]


def check(site: Path, box: Sandbox, *, reservations_of: str = RESERVATION_PREFIX) -> Report:
    """Judge the campaign in the directory *site*.

    Its jobs should be over, and the daemon should have looked at the queue once more after that:
    what it could not have seen yet is not in its ledger.

    Args:
        reservations_of: How the names of the daemon's reservations begin.

    Raises:
        ClusterError: Slurm does not answer, or accounting is not told of the jobs' ends in time.
    """
    return judge(gather(site, box, reservations_of=reservations_of))
