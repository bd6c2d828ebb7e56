"""What a workload amounted to, computed from the records of its jobs alone.

Pure arithmetic: the same numbers come out for a real cluster, a simulation and a trace. One rule
says which jobs count: times and ratios are over all jobs that **finished**, that is, whose end is
known, whichever it was (a job that failed in a trace ran until it failed); how many of them ended
with success is told beside them. GPU-seconds and counts are over all jobs.

All of it is array arithmetic: 100,000 jobs take a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slurm_dl.model.job_record import Records
from slurm_dl.model.jobs import F64, I64, Bool
from slurm_dl.report.distribution import NAN, Spread, spreads
from slurm_dl.report.fairness import UNFAIR_RHO, finish_time_fairness, jain

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
        jobs: Jobs in all.
        finished: Of those, how many came to an end, whichever.
        completed: Of those, how many ended with success.
        jct_s: Job completion time, from first submission to the last end, seconds.
        queue_s: JCT less the time running: all its waiting, seconds.
        wait_s: From first submission to first start, seconds.
        slowdown: JCT / time alone on the cluster; of the jobs for which that is known.
        bounded_slowdown: max(1, JCT / max(time alone, 10 s)); of the same jobs.
        rho: Finish-time fairness, see `fairness.finish_time_fairness`; of the same jobs.
        unfair_frac: Share of them with a rho above 1.05.
        jain: Jain's index over users, see `fairness.jain`; NaN where there is at most one.
        makespan_s: From the first submission to the last end of a job or a run, seconds.
        utilisation_frac: GPU-seconds of service / (GPUs x makespan of the whole workload).
        steady_utilisation_frac: The same without filling and draining: of the time between the
            first and the last submission of the whole workload the first tenth is left out;
            GPU-seconds that runs held in the rest / (GPUs x the rest). NaN if no time passes
            between them, or if the runs are not known.
        service_gpu_s: GPU-seconds held, all jobs and runs.
        lost_gpu_s: Of those, GPU-seconds that were no progress.
        lost_by_cause_gpu_s: The same by cause.
        preemptions: How often a job was stopped before it was done.
        promotions: How often a job's service was forgiven.
    """

    jobs: int
    finished: int
    completed: int
    jct_s: Spread
    queue_s: Spread
    wait_s: Spread
    slowdown: Spread
    bounded_slowdown: Spread
    rho: Spread
    unfair_frac: float
    jain: float
    makespan_s: float
    utilisation_frac: float
    steady_utilisation_frac: float
    service_gpu_s: float
    lost_gpu_s: float
    lost_by_cause_gpu_s: Mapping[str, float]
    preemptions: int
    promotions: int


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
