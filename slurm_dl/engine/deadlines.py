"""Deadlines of jobs that count: those that stay within the site's shares, first submitted first.

A deadline is a claim of a user that can bring a job forward. This bound stands between the claim
and every policy, so false and greedy deadlines together move no more than a share of the GPUs. A
job that is submitted later never costs an earlier one its deadline.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slurm_dl.engine.explain.past_reasons import span
from slurm_dl.engine.settings import Deadlines
from slurm_dl.engine.target import SLACK_GPUS, pools
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, F64
from slurm_dl.model.snapshot import JobText, Snapshot

NATIVE = "Slurm itself preempts here (preemption.mode is native)"


@dataclass(frozen=True, slots=True, eq=False)
class CountedDeadlines:
    """The deadlines that policies go by, and the others.

    Attributes:
        due_s: ``(n,)`` epoch seconds, inf for jobs without one that counts; None if no job has one.
        refused: For each job with a deadline that does not count, the reason as a clause.
    """

    due_s: F64 | None
    refused: Mapping[JobId, str]


def counted_deadlines(snap: Snapshot, rules: Deadlines | None) -> CountedDeadlines:
    """The deadlines in the claims of managed jobs that are not over.

    A job counts with the GPUs of all its tasks, in each pool in which it may start.

    Args:
        rules: The site's bounds; None: no deadline counts.
    """
    jobs, claims = snap.jobs, snap.seen.claims
    asked = {job_id: c.due_s for job_id, c in claims.items() if c.due_s is not None}
    if not asked:
        return CountedDeadlines(None, {})
    live = (jobs.state < COMPLETING) & (jobs.gpus > 0) & snap.is_managed()
    rows = np.flatnonzero(live & np.isin(jobs.job_id, list(asked)))
    rows = rows[np.lexsort([jobs.job_id[rows], snap.memory.first_submit_s[rows]])]
    shares = _Shares(snap, rules) if rules else None
    due_s, refused = np.full(len(jobs), np.inf), dict[JobId, str]()
    for row in rows.tolist():
        job_id = JobId(int(jobs.job_id[row]))
        text = snap.seen.texts.get(job_id) or JobText(label=str(job_id))
        if rules is None or shares is None:
            why = NATIVE
        else:
            why = _outside(rules, asked[job_id] - snap.now_s, text.qos)
            why = why or shares.take(row, text.account)
        if why:
            refused[job_id] = why
        else:
            due_s[row] = asked[job_id]
    return CountedDeadlines(due_s if np.isfinite(due_s).any() else None, refused)


def _outside(rules: Deadlines, ahead_s: float, qos: str) -> str:
    """The rule that the job breaks by itself; empty if none."""
    if rules.qos and qos not in rules.qos:
        return f"jobs of QOS {qos} may have none" if qos else "jobs without a QOS may have none"
    if ahead_s <= 0:
        return "it has passed"
    if ahead_s > rules.longest_ahead_s:
        return f"it is more than {span(rules.longest_ahead_s)} ahead"
    return ""


class _Shares:
    """GPUs of each pool that jobs with counted deadlines ask for, in all and by account."""

    def __init__(self, snap: Snapshot, rules: Deadlines) -> None:
        self._jobs, self._rules = snap.jobs, rules
        self._pools = [(pool.jobs, pool.gpus(snap)) for pool in pools(snap)]
        self._used: defaultdict[tuple[int, str | None], float] = defaultdict(float)

    def take(self, row: int, account: str) -> str:
        """Count the job at *row*; the share that this would exceed, as a clause, if it would."""
        gpus = float(self._jobs.gpus[row] * self._jobs.tasks[row])
        own = f"account {account} has" if account else "its account has"
        bounds = (
            (account, self._rules.account_share, own),
            (None, self._rules.share, "all accounts have"),
        )
        places = [i for i, (inside, _) in enumerate(self._pools) if inside is None or inside[row]]
        for pool in places:
            there = self._pools[pool][1]
            for owner, share, has in bounds:
                used, most = self._used[pool, owner], share * there + SLACK_GPUS
                if used + gpus > most:
                    return (
                        f"{has} deadlines on {used:g} of {there:g} GPUs and may have them on "
                        f"{math.floor(most)}"
                    )
        for pool in places:
            self._used[pool, account] += gpus
            self._used[pool, None] += gpus
        return ""
