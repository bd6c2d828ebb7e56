"""Sizes of elastic jobs, as GPUs for each, from the speed of each job in each of its sizes.

A job is a `Job`; a choice of sizes is a list with an index into `Job.gpus` for each job, or `NONE`.
The remaining time of a job in its size i is ``left / rates[i]``.

Source: Peng et al., "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters",
EuroSys 2018, section 4.1; Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning",
NSDI 2021 (AFS).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from slurm_dl.model.jobs import I64, PENDING
from slurm_dl.model.sizes import AS_ASKED
from slurm_dl.model.snapshot import Snapshot

NONE: Final = -1  # The size of a job that gets no GPUs
_ROUNDING: Final = 1e-9  # Sums of GPUs are off by less


class Job(NamedTuple):
    """The sizes that one job may have: k of them, one at least, fewest GPUs first."""

    gpus: Sequence[float]  # ``(k,)`` GPUs of each
    rates: Sequence[float]  # ``(k,)`` speed in each, above 0
    left: float  # What is still to be done, seconds at speed 1
    held: int = NONE  # Index of the size that it has now


def jobs_at(snap: Snapshot, rows: I64) -> tuple[list[Job], list[list[int]]]:
    """The jobs at *rows*, and where each of their sizes is in `Snapshot.sizes`.

    Of several sizes with as many GPUs a job has the fastest. A job that is not elastic has one, at
    `AS_ASKED`. One of unknown time left counts with the mean of the others.
    """
    left_s, sizes = snap.left_s[rows], snap.sizes
    known = np.isfinite(left_s)
    mean_s = float(left_s[known].mean()) if known.any() else 1.0
    jobs, places = [], []
    for row, left in zip(rows.tolist(), np.where(known, left_s, mean_s).tolist(), strict=True):
        holds, waits = float(snap.jobs.gpus[row]), snap.jobs.state[row] == PENDING
        best = dict[float, int]()
        if sizes is not None:
            for i in sizes.of(row):
                gpus = float(sizes.gpus[i])
                if gpus not in best or sizes.rate[i] > sizes.rate[best[gpus]]:
                    best[gpus] = i
        # Of a job that holds none of its sizes, the next smaller one counts.
        held = NONE if waits else max(sum(gpus <= holds for gpus in best) - 1, 0)
        places.append(list(best.values()) or [AS_ASKED])
        if sizes is None or not best:
            jobs.append(Job([holds], [1.0], left, held))
        else:
            jobs.append(Job(list(best), sizes.rate[places[-1]].tolist(), left, held))
    return jobs, places


def least_sizes(jobs: Sequence[Job], turns: Iterable[int], free: float) -> tuple[list[int], float]:
    """The least size for each job, if it fits when the job has its turn; and the GPUs still free.

    Args:
        turns: Indices of the jobs, best first.
        free: GPUs that there are.
    """
    size = [NONE] * len(jobs)
    for j in turns:
        if jobs[j].gpus[0] <= free + _ROUNDING:
            free -= jobs[j].gpus[0]
            size[j] = 0
    return size, free


def gain(job: Job, at: int) -> float:
    """Seconds that the size after *at* saves, for each GPU that it has more.

    It has nine digits, so that equal jobs have equal gains.
    """
    saves_s = job.left * (1 / job.rates[at] - 1 / job.rates[at + 1])
    return float(f"{saves_s / (job.gpus[at + 1] - job.gpus[at]):.9g}")


def by_gain(jobs: Sequence[Job], size: Sequence[int], free: float) -> list[int]:
    """The next size to whichever job gains most by it, while any gains and it fits.

    Optimus, section 4.1, with GPUs as the only resource. Jobs without a size get none; of equal
    gains that of the first job is taken. A job whose next size does not fit, or makes it no faster,
    is done.

    Args:
        size: Where each job begins.
        free: GPUs beyond those sizes.
    """
    size, offers = list(size), list[tuple[float, int]]()

    def offer(j: int) -> None:
        if NONE < size[j] < len(jobs[j].gpus) - 1 and (gains := gain(jobs[j], size[j])) > 0:
            heapq.heappush(offers, (-gains, j))

    for j in range(len(jobs)):
        offer(j)
    while offers:
        _, j = heapq.heappop(offers)
        more = jobs[j].gpus[size[j] + 1] - jobs[j].gpus[size[j]]
        if more <= free + _ROUNDING:
            free -= more
            size[j] += 1
            offer(j)
    return size


def by_steps(jobs: Sequence[Job], free: float) -> list[int]:
    """Sizes as they are, but for one step at a time: down for a job that comes, up into free GPUs.

    A job without GPUs gets its least size. Where that does not fit, the steps down that lose least
    for each GPU are taken until it does, as `by_gain` takes steps up; a job for which not even all
    steps would make room has to wait.

    Args:
        free: GPUs that there are.
    """
    size = [job.held for job in jobs]
    held = [(j, job) for j, job in enumerate(jobs) if job.held != NONE]
    free -= sum(job.gpus[job.held] for _, job in held)
    spare = sum(job.gpus[job.held] - job.gpus[0] for _, job in held)
    steps = [(gain(job, job.held - 1), j) for j, job in held if job.held]
    heapq.heapify(steps)

    def step_down() -> float:
        _, j = heapq.heappop(steps)
        size[j] -= 1
        if size[j]:
            heapq.heappush(steps, (gain(jobs[j], size[j] - 1), j))
        return jobs[j].gpus[size[j] + 1] - jobs[j].gpus[size[j]]

    for j, job in enumerate(jobs):
        if size[j] == NONE and job.gpus[0] <= free + spare + _ROUNDING:
            while job.gpus[0] > free + _ROUNDING:
                given = step_down()
                free, spare = free + given, spare - given
            size[j], free = 0, free - job.gpus[0]
    while free < -_ROUNDING and steps:  # Nodes are gone.
        free += step_down()
    return by_gain(jobs, size, free)


def afs_prefers(short: tuple[float, float], long: tuple[float, float]) -> bool:
    """True if the job that ends later, of two that hold GPUs, is to get the next ones.

    AFS's rule. It compares two plans exactly: the job that ends first has them until it ends, and
    the other after it; or the other has them at once.

    Args:
        short: Speed now, and with the next GPUs, of the job that would end first.
        long: Those of the other.
    """
    return (long[1] - long[0]) / long[1] > (short[1] - short[0]) / short[0]


def afs(jobs: Sequence[Job], free: float) -> list[int]:
    """AFS-L: the next size to the job that a walk over all jobs prefers, pair by pair.

    A job without GPUs comes before all that hold some; of several the shortest comes first.

    Args:
        free: GPUs that there are.
    """
    shortest = sorted(range(len(jobs)), key=lambda j: jobs[j].left / jobs[j].rates[0])
    size, free = least_sizes(jobs, shortest, free)
    grows = [j for j in range(len(jobs)) if size[j] != NONE]

    def more(j: int) -> float:
        return jobs[j].gpus[size[j] + 1] - jobs[j].gpus[size[j]]

    def speeds(j: int) -> tuple[float, float]:
        return jobs[j].rates[size[j]], jobs[j].rates[size[j] + 1]

    def is_open(j: int) -> bool:
        if size[j] + 1 == len(jobs[j].gpus) or more(j) > free + _ROUNDING:
            return False
        now, then = speeds(j)
        return then > now

    # What does not fit or gain now never will: GPUs only get fewer.
    while grows := [j for j in grows if is_open(j)]:
        best = grows[0]
        for j in grows[1:]:
            ends_first = jobs[best].left / speeds(best)[0] <= jobs[j].left / speeds(j)[0]
            short, long = (best, j) if ends_first else (j, best)
            best = long if afs_prefers(speeds(short), speeds(long)) else short
        free -= more(best)
        size[best] += 1
    return size
