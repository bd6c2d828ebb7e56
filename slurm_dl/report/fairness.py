"""How evenly a cluster was shared: finish-time fairness of jobs, Jain's index over users."""

from __future__ import annotations

import numpy as np

from slurm_dl.model.job_record import Records
from slurm_dl.model.jobs import F64, I64
from slurm_dl.report.distribution import NAN
from slurm_dl.report.timeline import jobs_present

UNFAIR_RHO = 1.05
"""A job of a larger rho was treated unfairly (as in Shockwave, NSDI'23)."""


def finish_time_fairness(records: Records, *, gpus: float) -> F64:
    """Rho of each job: JCT / time it would have taken on its own equal share (Themis, NSDI'20, 3).

    Of N jobs present each is owed ``gpus / N`` GPUs, N being the mean over the job's own life,
    taken exactly (the job itself counts). On a share that is smaller than its GPUs it takes longer
    in proportion, on a larger one no less than alone::

        rho = JCT / (alone_s * max(1, job's GPUs * N / gpus))

    At most 1 means that sharing did not cost the job more than a partition of its own would have.

    Args:
        gpus: GPUs of the cluster, above 0.

    Returns:
        ``(n,)``; NaN for a job that did not finish or whose time alone is not known.
    """
    owed = gpus / mean_jobs_present(records)
    return records.slowdown / np.maximum(1.0, records.gpus / owed)


def mean_jobs_present(records: Records) -> F64:
    """Jobs between submission and end, the mean over each job's own life.

    Returns:
        ``(n,)``, at least 1 as it counts itself; NaN for a job that did not finish.
    """
    present = jobs_present(records)
    lived_s = records.jct_s
    through = present.integral_to(records.end_s) - present.integral_to(records.submit_s)
    some = lived_s > 0
    mean = np.where(some, through / np.where(some, lived_s, 1.0), 1.0)
    return np.where(records.finished, np.maximum(mean, 1.0), np.nan)


def jain(records: Records, group: I64, *, groups: int) -> F64:
    """Jain's index of the users in each group: (sum x)^2 / (users * sum x^2) (DEC-TR-301, 1984).

    x of a user is service received / service asked for, over those of the user's jobs in the group
    that finished: a job asks for its GPUs as long as it is there, so x is 1 for a user whose jobs
    never waited and needs no idea of how long they would have taken. Service that was lost counts
    as received.

    Args:
        group: ``(n,)`` from 0 to *groups* - 1.

    Returns:
        ``(groups,)`` between 1 / users (one has it all) and 1 (all alike); NaN of less than
        two users.
    """
    asked = np.where(records.finished, records.gpus * records.jct_s, 0.0)
    counted = asked > 0
    member = group[counted] * np.int64(max(1, len(records.users))) + records.user[counted]
    members, at = np.unique(member, return_inverse=True)
    received = np.bincount(at, weights=records.service_gpu_s[counted], minlength=len(members))
    x = received / np.bincount(at, weights=asked[counted], minlength=len(members))
    home = members // max(1, len(records.users))
    users = np.bincount(home, minlength=groups)
    total = np.bincount(home, weights=x, minlength=groups)
    squares = users * np.bincount(home, weights=x * x, minlength=groups)
    known = (users > 1) & (squares > 0)
    index: F64 = np.divide(total * total, squares, out=np.full(groups, NAN), where=known)
    return index
