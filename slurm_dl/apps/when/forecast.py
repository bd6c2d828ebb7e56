"""Starts and ends of jobs over many forward runs, as medians and ranges.

A range leaves out a tenth of the runs at each end. What has not happened by the horizon is later
than everything that has.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.apps.when.beginning import Wanted, beginning
from slurm_dl.apps.when.lives import Lives
from slurm_dl.apps.when.world import GaveUpError, Pace, World
from slurm_dl.engine.settings import Settings
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy

LOW: Final = 0.1
HIGH: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """When something happens, epoch seconds; inf is not within the horizon.

    Attributes:
        low_s: A tenth of the runs are before.
        median_s: Half of them are.
        high_s: Nine tenths are.
        share: In so many of them it happens within the horizon at all, 0 to 1.
    """

    low_s: float
    median_s: float
    high_s: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is to be expected of one job."""

    start: Range
    end: Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The outcome of some forward runs.

    Attributes:
        runs: How many came to their end.
        jobs: Of each job that was asked for.
        wanted: Of each job that nobody has submitted.
        sources: Of how many jobs the run time is known from where; see `lives`.
    """

    runs: int
    jobs: tuple[Expected, ...]
    wanted: tuple[Expected, ...]
    sources: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked about a snapshot.

    Attributes:
        jobs: Ids of jobs in it.
        wanted: Jobs that nobody has submitted; each is looked at alone.
        runs: Forward runs, at least 1.
        horizon_s: How far ahead they go, seconds.
        blur_s: How exact an instant can be at all: ranges are so much wider to each side.
        seed: Of the run times that are drawn.
    """

    jobs: tuple[JobId, ...] = ()
    wanted: tuple[Wanted, ...] = ()
    runs: int = 40
    horizon_s: float = 7 * 86400.0
    blur_s: float = 0.0
    seed: int = 0


def foresee(
    snap: Snapshot,
    question: Question,
    *,
    policy: Policy,
    settings: Settings,
    pace: Pace,
    is_late: Callable[[], bool] = lambda: False,
) -> Forecast:
    """Run *snap* forward until the jobs that are asked for are over, some times.

    Args:
        is_late: Asked at each step; True ends it with the runs that are done.
    """
    variants = [(beginning(snap), question.jobs)] if question.jobs else []
    for job in question.wanted:
        begun = beginning(snap, [job])
        variants.append((begun, (JobId(int(begun.jobs.job_id[-1])),)))
    lives = [Lives(begun) for begun, _ in variants]
    random = np.random.default_rng(question.seed)
    most = max((len(begun.jobs) for begun, _ in variants), default=0)
    found: list[list[tuple[F64, F64]]] = []
    until_s = snap.now_s + question.horizon_s
    try:
        for _ in range(question.runs):
            # The same numbers for all variants: those of a wanted job are the last.
            chance = random.random(most)
            run = []
            for (begun, ids), life in zip(variants, lives, strict=True):
                rows = np.array([begun.jobs.row_of()[j] for j in ids], dtype=np.int64)
                left_s = life.draw(chance[: len(begun.jobs)])
                world = World(begun, left_s, policy=policy, settings=settings, pace=pace)
                world.run(until_s, rows, is_late)
                run.append((world.started_s[rows], world.ended_s[rows]))
            found.append(run)
    except GaveUpError:
        pass
    expected = [
        _expected([run[at] for run in found], snap.now_s, until_s, question.blur_s)
        for at in range(len(variants))
    ]
    own = expected[0] if question.jobs else ()
    return Forecast(
        runs=len(found),
        jobs=own,
        wanted=tuple(one for many in expected[bool(question.jobs) :] for one in many),
        sources=dict(Counter(lives[0].sources)) if lives else {},
    )


def _expected(
    runs: Sequence[tuple[F64, F64]], now_s: float, until_s: float, blur_s: float
) -> tuple[Expected, ...]:
    if not runs:
        return ()
    starts, ends = (np.stack([run[i] for run in runs]) for i in (0, 1))
    return tuple(
        Expected(
            start=range_of(starts[:, i], now_s=now_s, until_s=until_s, blur_s=blur_s),
            end=range_of(ends[:, i], now_s=now_s, until_s=until_s, blur_s=blur_s),
        )
        for i in range(starts.shape[1])
    )


def range_of(at_s: F64, *, now_s: float, until_s: float, blur_s: float = 0.0) -> Range:
    """The range of instants, one of each run: the smallest ones that enough runs do not exceed.

    Args:
        at_s: ``(runs,)`` epoch seconds; inf where it did not happen.
        now_s: What is wider by *blur_s* does not begin before; what has happened before has.
        until_s: The horizon; what is later did not happen.
    """
    told = np.sort(np.where(at_s <= until_s, at_s, math.inf))

    def quantile(share: float) -> float:
        return float(told[max(0, math.ceil(share * len(told)) - 1)])

    low_s, high_s = quantile(LOW), quantile(HIGH)
    return Range(
        low_s=min(low_s, max(low_s - blur_s, now_s)),
        median_s=quantile(0.5),
        high_s=high_s + blur_s if high_s > now_s else high_s,
        share=float(np.isfinite(told).mean()),
    )
