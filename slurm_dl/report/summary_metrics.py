"""What a workload amounted to, computed from the records of its jobs alone.

Pure arithmetic: the same numbers come out for a real cluster, a simulation and a trace. One rule
says which jobs count: times and ratios are over all jobs that **finished**, that is, whose end is
known, whichever it was (a job that failed in a trace ran until it failed); how many of them ended
with success is told beside them. GPU-seconds and counts are over all jobs.

All of it is array arithmetic: 100,000 jobs take a fraction of a second. Grouped figures come from
one sort, ``O(n log n)`` whatever the number of groups: a trace may have as many users as jobs. NaN
says that a row has no such figure, and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slurm_dl.model.completed_jobs import Records
from slurm_dl.model.jobs import F64, I64, Bool
from slurm_dl.report.timeline import jobs_present

UNFAIR_RHO = 1.05  # A job of a larger rho was treated unfairly (as in Shockwave, NSDI'23)


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


NAN = float("nan")  # Mean of no values


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How values are spread; all but the count are NaN if there are none.

    Percentiles are by nearest rank: the smallest value that at least so many percent of all do not
    exceed, so each is the value of one of the jobs.
    """

    count: int  # Values
    mean: float  # Arithmetic mean
    median: float  # The middle one; of an even number the mean of the middle two
    p95: float  # 95th percentile
    p99: float  # 99th percentile
    max: float  # The largest


def spread(values: F64) -> Spread:
    """The spread of *values*, ``(n,)``."""
    return spreads(values, np.zeros(len(values), dtype=np.int64), groups=1)[0]


def spreads(values: F64, group: I64, *, groups: int) -> tuple[Spread, ...]:
    """The spread of each group's values.

    Args:
        values: ``(n,)``; NaN where there is none.
        group: ``(n,)`` from 0 to *groups* - 1.

    Returns:
        One for each group, in their order.
    """
    known = ~np.isnan(values)
    values, group = values[known], group[known]
    order = np.lexsort((values, group))
    ordered = values[order]
    count = np.bincount(group, minlength=groups)
    first = np.cumsum(count) - count
    full = count > 0

    def at(rank: I64) -> F64:
        """Value of this rank, 0 is the smallest, in each group."""
        return _where(full, ordered, first + rank)

    half = 0.5 * (at((count - 1) // 2) + at(count // 2))
    total = np.zeros(groups)
    if full.any():
        # In sorted order, so that the sum does not depend on how the jobs were listed.
        total[full] = np.add.reduceat(ordered, first[full])
    mean = np.divide(total, count, out=np.full(groups, NAN), where=full)
    columns = (mean, half, at(_rank(count, 95)), at(_rank(count, 99)), at(count - 1))
    return tuple(
        Spread(count=n, mean=m, median=h, p95=p, p99=q, max=top)
        for n, m, h, p, q, top in zip(
            count.tolist(), *(column.tolist() for column in columns), strict=True
        )
    )


def _rank(count: I64, percent: int) -> I64:
    """Nearest rank, 0 is the smallest; in whole numbers, as 0.95 x 20 is not quite 19."""
    rank: I64 = -(-count * percent // 100) - 1
    return rank


def _where(full: Bool, values: F64, index: I64) -> F64:
    """``values[index]`` for the groups that have any, else NaN."""
    found = np.full(len(full), NAN)
    found[full] = values[index[full]]
    return found


BOUND_S = 10.0
"""Below this a job's length does not matter to its bounded slow-down (Feitelson, JSSPP 2001)."""

WARM_UP = 0.1
"""Share of the time of submissions in which the cluster fills: no part of the steady time."""

SIZE_CLASSES = ("1", "2", "3-4", "5-8", "9-16", ">16")
_SIZE_LIMITS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One workload, or one group of its jobs, in numbers; a figure over no job is NaN.

    Attributes:
        steady_utilisation_frac: The same without filling and draining: of the time between the
            first and the last submission of the whole workload the first tenth is left out;
            GPU-seconds that runs held in the rest / (GPUs x the rest). NaN if no time passes
            between them, or if the runs are not known.
    """

    jobs: int  # Jobs in all
    finished: int  # Of those, how many came to an end, whichever
    completed: int  # Of those, how many ended with success
    jct_s: Spread  # Job completion time, from first submission to the last end, seconds
    queue_s: Spread  # JCT less the time running: all its waiting, seconds
    wait_s: Spread  # From first submission to first start, seconds
    slowdown: Spread  # JCT / time alone on the cluster; of the jobs for which that is known
    bounded_slowdown: Spread  # max(1, JCT / max(time alone, 10 s)); of the same jobs
    rho: Spread  # Finish-time fairness, see `finish_time_fairness`; of the same jobs
    unfair_frac: float  # Share of them with a rho above 1.05
    jain: float  # Jain's index over users, see `jain`; NaN where there is at most one
    makespan_s: float  # From the first submission to the last end of a job or a run, seconds
    utilisation_frac: float  # GPU-seconds of service / (GPUs x makespan of the whole workload)
    steady_utilisation_frac: float
    service_gpu_s: float  # GPU-seconds held, all jobs and runs
    lost_gpu_s: float  # Of those, GPU-seconds that were no progress
    lost_by_cause_gpu_s: Mapping[str, float]  # The same by cause
    preemptions: int  # How often a job was stopped before it was done
    promotions: int  # How often a job's service was forgiven


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Some of the jobs."""

    label: str  # What they have in common
    summary: Summary  # Their figures


def summarise(records: Records, *, gpus: float) -> Summary:
    """The whole workload in numbers.

    Args:
        gpus: GPUs of the cluster, above 0.
    """
    return _summaries(records, np.zeros(len(records), dtype=np.int64), groups=1, gpus=gpus)[0]


def by_size(records: Records, *, gpus: float) -> tuple[Group, ...]:
    """The figures for each class of `SIZE_CLASSES` that has jobs; fractions of a GPU are in 1.

    Args:
        gpus: GPUs of the cluster, above 0.
    """
    group = np.searchsorted(_SIZE_LIMITS, records.gpus, side="left").astype(np.int64)
    return _groups(records, group, SIZE_CLASSES, gpus=gpus)


def by_user(records: Records, *, gpus: float) -> tuple[Group, ...]:
    """The figures for each user who has jobs, in the order of `Records.users`.

    Args:
        gpus: GPUs of the cluster, above 0.
    """
    return _groups(records, records.user.astype(np.int64), records.users, gpus=gpus)


def _groups(
    records: Records, group: I64, labels: tuple[str, ...], *, gpus: float
) -> tuple[Group, ...]:
    summaries = _summaries(records, group, groups=len(labels), gpus=gpus)
    return tuple(
        Group(label=label, summary=summary)
        for label, summary in zip(labels, summaries, strict=True)
        if summary.jobs
    )


def _summaries(records: Records, group: I64, *, groups: int, gpus: float) -> list[Summary]:
    """One summary for each group; shares and fairness are those within the whole workload."""
    if not 0 < gpus < np.inf:
        msg = f"gpus must be above 0 (got {gpus})"
        raise ValueError(msg)

    def total(column: F64) -> list[float]:
        return list(np.bincount(group, weights=column, minlength=groups).tolist())

    def count(which: Bool) -> list[int]:
        return list(np.bincount(group[which], minlength=groups).tolist())

    def spread_of(column: F64) -> tuple[Spread, ...]:
        return spreads(np.where(finished, column, NAN), group, groups=groups)

    finished = records.finished
    rho = finish_time_fairness(records, gpus=gpus)
    judged, unfair = count(~np.isnan(rho)), count(rho > UNFAIR_RHO)
    bounded = np.maximum(1.0, records.jct_s / np.maximum(records.alone_s, BOUND_S))
    columns = {
        "jct_s": spread_of(records.jct_s),
        "queue_s": spread_of(records.queue_s),
        "wait_s": spread_of(records.wait_s),
        "slowdown": spread_of(records.slowdown),
        "bounded_slowdown": spread_of(np.where(records.alone_s > 0, bounded, NAN)),
        "rho": spread_of(rho),
    }
    makespan_s, whole_s = _makespans(records, group, groups=groups)
    steady = _steady_utilisation(records, group, groups=groups, gpus=gpus)
    evenness = jain(records, group, groups=groups).tolist()
    service, lost = total(records.service_gpu_s), total(records.all_lost_gpu_s)
    causes = {cause: total(column) for cause, column in records.lost_gpu_s.items()}
    jobs, ended = np.bincount(group, minlength=groups).tolist(), count(finished)
    completed = count(records.success & finished)
    preemptions = total(records.preemptions.astype(np.float64))
    promotions = total(records.promotions.astype(np.float64))
    return [
        Summary(
            jobs=jobs[i],
            finished=ended[i],
            completed=completed[i],
            unfair_frac=unfair[i] / judged[i] if judged[i] else NAN,
            jain=evenness[i],
            makespan_s=makespan_s[i],
            utilisation_frac=service[i] / (gpus * whole_s) if whole_s > 0 else NAN,
            steady_utilisation_frac=steady[i],
            service_gpu_s=service[i],
            lost_gpu_s=lost[i],
            lost_by_cause_gpu_s={cause: column[i] for cause, column in causes.items()},
            preemptions=int(preemptions[i]),
            promotions=int(promotions[i]),
            **{name: column[i] for name, column in columns.items()},
        )
        for i in range(groups)
    ]


def _steady_utilisation(records: Records, group: I64, *, groups: int, gpus: float) -> list[float]:
    """See `Summary.steady_utilisation_frac`."""
    runs = records.runs
    known = len(records) > 0 and (len(runs) > 0 or not records.service_gpu_s.any())
    first_s, last_s = (records.submit_s.min(), records.submit_s.max()) if known else (NAN, NAN)
    warm_s = first_s + WARM_UP * (last_s - first_s)
    if not last_s > warm_s:
        return [NAN] * groups
    held_s = np.clip(runs.end_s, warm_s, last_s) - np.clip(runs.start_s, warm_s, last_s)
    held = np.bincount(group[runs.job], weights=held_s * runs.gpus, minlength=groups)
    return list((held / (gpus * (last_s - warm_s))).tolist())


def _makespans(records: Records, group: I64, *, groups: int) -> tuple[list[float], float]:
    """Seconds from first submission to last end: of each group, and of all jobs together."""
    first_s, last_s = np.full(groups, NAN), np.full(groups, NAN)
    np.fmin.at(first_s, group, records.submit_s)
    np.fmax.at(last_s, group, records.end_s)
    np.fmax.at(last_s, group[records.runs.job], records.runs.end_s)
    if not len(records):
        return [NAN] * groups, NAN
    whole_s = float(np.fmax.reduce(last_s) - np.fmin.reduce(first_s))
    return (last_s - first_s).tolist(), whole_s
