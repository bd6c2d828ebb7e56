"""GPU time that a job takes for good once it starts: nobody can take it back.

It counts as service: under policies that order by attained service a job is ranked by what it has
had and what it is going to keep. A job that may be preempted at any time keeps nothing.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from slurm_dl.engine.preemption.eligibility import accepted
from slurm_dl.engine.settings import Preemption
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64
from slurm_dl.model.membership import is_in
from slurm_dl.model.snapshot import Snapshot

UNLIMITED_S = 365 * 86_400.0
"""A longer time limit, or none, counts as this."""


def with_commitment(snap: Snapshot, limits: Preemption) -> Snapshot:
    """*snap* with `Snapshot.committed_s`; without it where the site does not count it.

    Without preemption no job can be taken back, so all are alike and nothing is counted.
    """
    counted = limits.commitment == "counted" and limits.enabled
    return dataclasses.replace(snap, committed_s=committed_s(snap, limits) if counted else None)


def committed_s(snap: Snapshot, limits: Preemption) -> F64:
    """``(n,)`` seconds of each run in which its job cannot be preempted.

    The time limit for a job without a contract that the site accepts, or that Slurm may not
    requeue. With `Claim.until` the rest of the limit, less the reserve that every job has. Else,
    and for jobs of exempt accounts, 0.
    """
    jobs = snap.jobs
    limit_s = np.minimum(jobs.limit_s, UNLIMITED_S)
    kept_s = np.where(accepted(snap, limits), 0.0, limit_s)
    shares = {job_id: c.until for job_id, c in snap.seen.claims.items() if c.until is not None}
    rows = (is_in(jobs.job_id, list(shares)) & (kept_s == 0)).nonzero()[0]
    share = np.array([shares[JobId(j)] for j in jobs.job_id[rows].tolist()])
    kept_s[rows] = np.maximum((1 - share) * limit_s[rows] - limits.limit_reserve_s, 0.0)
    if exempt := frozenset(limits.exempt_accounts):
        free = [job_id for job_id, text in snap.seen.texts.items() if text.account in exempt]
        kept_s[is_in(jobs.job_id, free)] = 0.0
    return kept_s
