"""How far the order of the waiting jobs is from Slurm's: of one look, and of many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_dl.model.jobs import NOT_HELD, PENDING
from slurm_dl.model.plan import Plan
from slurm_dl.model.snapshot import Snapshot

FIRST = 100
"""The jobs that are first are so many, or half of those that wait if that is less."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Looks at two orders of the same jobs, added up.

    Attributes:
        looks: Looks with at least two jobs.
        first_other: Of those, looks where another job is first.
        others: Sum over looks of the share of the first jobs that the other order does not have
            among its first.
    """

    looks: int = 0
    first_other: int = 0
    others: float = 0.0

    def plus(self, more: Compared) -> Compared:
        """Both together."""
        return Compared(
            self.looks + more.looks, self.first_other + more.first_other, self.others + more.others
        )


def compare(snap: Snapshot, plan: Plan) -> Compared:
    """The plan's order beside Slurm's: by priority, then by submission, then by number.

    Only jobs count that could start if there were room. Where Slurm's backfill would start a job
    out of turn, neither order says so.
    """
    jobs = snap.jobs
    could = (jobs.state == PENDING) & (jobs.held == NOT_HELD) & (plan.rank >= 0) & (jobs.gpus > 0)
    rows = np.flatnonzero(could)
    n = len(rows)
    if n <= 1:
        return Compared()
    k = max(1, min(FIRST, n // 2))
    ours = rows[np.argsort(plan.rank[rows], kind="stable")[:k]]
    slurms = rows[np.lexsort((jobs.job_id[rows], jobs.submit_s[rows], -jobs.priority[rows]))[:k]]
    common = len(np.intersect1d(ours, slurms))
    return Compared(1, int(ours[0] != slurms[0]), 1.0 - common / k)
