"""GPU time that a job takes for good once it starts: nobody can take it back.

It counts as service: under policies that order by attained service a job is ranked by what it has
had and what it is going to keep. A job that may be preempted at any time keeps nothing.
"""

from __future__ import annotations

import numpy as np

from slurm_dl.engine.preemption.eligibility import accepted
from slurm_dl.engine.settings import Preemption
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, is_in
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy

UNLIMITED_S = 365 * 86_400.0  # A longer time limit, or none, counts as this

FREE_UNTIL = 0.8
"""Protection after this share of the time limit does not count: submitit's jobs have it, and their
users do not choose it."""


def with_commitment(snap: Snapshot, policy: Policy, limits: Preemption) -> Snapshot:
    """*snap* with `Snapshot.committed_s`; without it where the site or the policy does not count.

    Without preemption no job can be taken back, so all are alike and nothing is counted.
    """
    counts = getattr(policy, "counts_commitment", False)
    if limits.commitment == "ignored" or not (limits.enabled and counts):
        return snap
    return snap.derived(committed_s=committed_s(snap, limits))


def committed_s(snap: Snapshot, limits: Preemption) -> F64:
    """``(n,)`` seconds of each run in which its job cannot be preempted.

    The time limit for a job without a contract that the site accepts, or that Slurm may not
    requeue. With `Claim.until` the part of the limit between that share and `FREE_UNTIL`, less the
    reserve that every job has. Else, for jobs of exempt accounts, and after a promotion, 0.
    """
    jobs = snap.jobs
    limit_s = np.minimum(jobs.limit_s, UNLIMITED_S)
    kept_s = np.where(accepted(snap, limits), 0.0, limit_s)
    shares = {job_id: c.until for job_id, c in snap.seen.claims.items() if c.until is not None}
    # Of a run without a limit no share is ever over.
    late = is_in(jobs.job_id, list(shares)) & (kept_s == 0) & np.isfinite(jobs.limit_s)
    share = np.array([shares[JobId(j)] for j in jobs.job_id[late].tolist()])
    kept_s[late] = np.maximum((FREE_UNTIL - share) * limit_s[late] - limits.limit_reserve_s, 0.0)
    kept_s[snap.memory.forgiven_ran_s > 0] = 0.0
    if exempt := frozenset(limits.exempt_accounts):
        free = [job_id for job_id, text in snap.seen.texts.items() if text.account in exempt]
        kept_s[is_in(jobs.job_id, free)] = 0.0
    return kept_s
