"""Workloads made after a fit: any number of jobs, at any load, the same for the same seed.

The load is offered, not reached: GPU-seconds that arrive in a second over the GPUs of the
cluster. It holds for the jobs that were drawn, whose rare long ones make up much of the work; the
arrival rate follows from it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final, Literal

import numpy as np

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64, I32
from slurm_dl.model.trace import Ending, Trace
from slurm_dl.text import shown
from slurm_dl.traces.builder import MAX_GPUS, MAX_JOBS
from slurm_dl.traces.workload_fit import HOURS, Fit

Arrivals = Literal["poisson", "diurnal"]
ARRIVALS: Final[tuple[Arrivals, ...]] = ("poisson", "diurnal")

MIN_LOAD: Final = 0.001
MAX_LOAD: Final = 1000
_S_PER_HOUR: Final = 3600.0


def generate(
    fit: Fit,
    *,
    jobs: int,
    load: float,
    gpus: int,
    seed: int,
    arrivals: Arrivals = "poisson",
) -> Trace:
    """A workload like the one of *fit*.

    Sizes have the shares of the fit, without those larger than the cluster. Users, where the fit
    knows any, are drawn by their shares, each job for itself.

    Args:
        jobs: How many.
        load: GPU-seconds submitted per second and GPU; 1 is as much as the cluster can do.
        gpus: GPUs of the cluster.
        arrivals: ``poisson`` at an even rate, or ``diurnal``, where the rate follows the hours of
            the fit's day; time 0 is the beginning of a day.

    Raises:
        ConfigError: An argument is out of bounds, or no size of the fit fits the cluster.
    """
    _check(jobs=jobs, load=load, gpus=gpus, seed=seed, arrivals=arrivals)
    sizes = np.array([s.gpus for s in fit.sizes if s.gpus <= gpus])
    if not len(sizes):
        msg = f"no job of the fit {fit.origin} fits on {gpus} GPUs"
        raise ConfigError(msg)
    shares = np.array([s.share for s in fit.sizes if s.gpus <= gpus])
    rng = np.random.default_rng(seed)
    size = rng.choice(sizes, size=jobs, p=shares / shares.sum())
    duration_s = np.empty(jobs)
    size_class = fit.class_of(size)
    for place, part in enumerate(fit.classes):
        rows = np.flatnonzero(size_class == place)
        duration_s[rows] = part.durations.draw(len(rows), rng)
    rate_per_s = jobs * load * gpus / float(size @ duration_s)
    even_s = np.cumsum(rng.exponential(1 / rate_per_s, size=jobs))
    submit_s = even_s if arrivals == "poisson" else _diurnal(fit, jobs, rate_per_s, rng)
    user, users = _users(fit, jobs, rng)
    return Trace(
        name=f"{fit.origin} {arrivals} load {load:g} seed {seed}",
        format="generated",
        job_id=tuple(map(str, range(jobs))),
        submit_s=submit_s,
        duration_s=duration_s,
        gpus=size,
        user=user,
        model=np.full(jobs, -1, dtype=np.int32),
        ending=np.full(jobs, Ending.COMPLETED, dtype=np.int8),
        users=users,
    )


def _check(*, jobs: int, load: float, gpus: int, seed: int, arrivals: str) -> None:
    faults = (
        (not 1 <= jobs <= MAX_JOBS, f"jobs must be 1 to {MAX_JOBS:,} (got {jobs})"),
        (not MIN_LOAD <= load <= MAX_LOAD, f"load must be {MIN_LOAD} to {MAX_LOAD} (got {load})"),
        (
            not 1 <= gpus <= MAX_GPUS,
            f"the cluster must have 1 to {MAX_GPUS:,.0f} GPUs (got {gpus})",
        ),
        (seed < 0, f"seed must not be negative (got {seed})"),
        (arrivals not in ARRIVALS, f"arrivals must be {' or '.join(ARRIVALS)} (got {arrivals!r})"),
    )
    wrong = [why for is_wrong, why in faults if is_wrong]
    if wrong:
        raise ConfigError("; ".join(wrong))


def _diurnal(fit: Fit, jobs: int, rate_per_s: float, rng: np.random.Generator) -> F64:
    """Arrivals of a Poisson process whose rate follows the hour, by thinning (Lewis, Shedler 1979).

    Candidates come at the highest rate of the day and are kept with the probability
    rate(hour) / highest rate; *rate_per_s* is the mean over a day.
    """
    hourly = np.array(fit.hourly) / np.mean(fit.hourly)
    highest = float(hourly.max())
    kept: list[F64] = []
    found, now_s = 0, 0.0
    while found < jobs:
        batch = int((jobs - found) * highest) + 64
        candidates = now_s + np.cumsum(rng.exponential(1 / (rate_per_s * highest), size=batch))
        now_s = float(candidates[-1])
        hour = (candidates // _S_PER_HOUR % HOURS).astype(np.intp)
        accepted = candidates[rng.random(batch) * highest < hourly[hour]]
        kept.append(accepted)
        found += len(accepted)
    return np.concatenate(kept)[:jobs]


def _users(fit: Fit, jobs: int, rng: np.random.Generator) -> tuple[I32, tuple[str, ...]]:
    """A user for each job, and their names: u1 is the most active."""
    if not fit.users:
        return np.zeros(jobs, dtype=np.int32), ("",)
    shares = np.array(fit.users)
    user = rng.choice(len(shares), size=jobs, p=shares / shares.sum())
    return user.astype(np.int32), tuple(f"u{i + 1}" for i in range(len(shares)))


_LARGEST_SD = 10.0


def with_tags(trace: Trace, *, log_sd: float, jobs_per_tag: int = 20, seed: int = 0) -> Trace:
    """*trace* with names that tell of run times; users and all else stay.

    Jobs of equal GPU count are sorted by the logarithm of their run time plus normal noise, and
    cut into groups of *jobs_per_tag*; each group has one name. Let s be the standard deviation of
    the logarithm over all jobs of a GPU count. Noise of ``log_sd s / sqrt(s^2 - log_sd^2)`` leaves
    *log_sd* within a group if logarithms are normal. Where s is not above *log_sd*, the names
    tell nothing.

    Args:
        log_sd: Standard deviation of the natural logarithm of the run time within a tag, 0 to 10.
        jobs_per_tag: Jobs of one name, at least 1; the last group of a GPU count has what is left.
        seed: Of the noise.
    """
    noise = np.random.default_rng([seed, 3]).normal(size=len(trace))
    logs = np.log(trace.duration_s)
    model = np.empty(len(trace), dtype=np.int32)
    tags = 0
    for gpus in np.unique(trace.gpus):
        rows = np.flatnonzero(trace.gpus == gpus)
        left = float(logs[rows].var()) - log_sd**2
        if left > 0:
            score = logs[rows] + log_sd * logs[rows].std() / math.sqrt(left) * noise[rows]
        else:
            score = noise[rows]
        model[rows[np.argsort(score)]] = tags + np.arange(len(rows)) // jobs_per_tag
        tags += math.ceil(len(rows) / jobs_per_tag)
    names = tuple(f"tag-{number}" for number in range(tags))
    return dataclasses.replace(trace, model=model, models=names)


def parse_sd(word: str) -> float | None:
    """The ``log_sd`` of `with_tags` from its text; None for ``none``.

    Raises:
        ConfigError: It is neither.
    """
    if word == "none":
        return None
    try:
        log_sd = float(word)
    except ValueError:
        log_sd = math.nan
    if not 0 <= log_sd <= _LARGEST_SD:
        msg = f"--tags {shown(word)}: must be none or 0 to {_LARGEST_SD:g}, as 0.7"
        raise ConfigError(msg)
    return log_sd


def tagged(trace: Trace, word: str) -> Trace:
    """*trace* with the tags that ``--tags`` *word* asks for; itself for ``none``.

    A tag is what a site's recurrent jobs have in common, such as the script: jobs of one name run
    about as long. How much it tells of a run time is one number: the standard deviation of the
    logarithm of the run time within a tag.

    Raises:
        ConfigError: See `parse_sd`.
    """
    log_sd = parse_sd(word)
    return trace if log_sd is None else with_tags(trace, log_sd=log_sd)
