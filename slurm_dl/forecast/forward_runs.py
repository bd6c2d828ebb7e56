"""Starts and ends of jobs over many forward runs, as medians and ranges.

A range leaves out a tenth of the runs at each end. What has not happened by the horizon is later
than everything that has.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np

from slurm_dl.engine.promise_terms import counted_deadlines, promises
from slurm_dl.engine.settings import Settings
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I64
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.simulation.forward.continued_cluster import (
    ContinuedCluster,
    ForwardTiming,
    GaveUpError,
)
from slurm_dl.simulation.forward.initial_state import HypotheticalJob, beginning
from slurm_dl.simulation.forward.runtime_distribution import RuntimeDistribution

LOW: Final = 0.1
HIGH: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """When something happens, epoch seconds; inf is not within the horizon."""

    low_s: float  # A tenth of the runs are before
    median_s: float  # Half of them are
    high_s: float  # Nine tenths are
    share: float  # In so many of them it happens within the horizon at all, 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is to be expected of one job.

    Attributes:
        until_s: So far, epoch seconds, it was looked ahead. Before the horizon if no run got there,
            and then less the blur: nothing that is later can come sooner than this.
        in_time: Share of the runs in which it is over by its deadline, 0 to 1; None if it has none
            that was looked at, or one after *until_s*.
    """

    start: TimeRange
    end: TimeRange
    until_s: float
    in_time: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The outcome of some forward runs."""

    runs: int  # How many came to their end. Of none: what is said is of the one that was begun.
    jobs: tuple[Expected, ...]  # Of each job that was asked for
    wanted: tuple[Expected, ...]  # Of each job that nobody has submitted, as far as time allowed
    sources: dict[str, int]  # Of how many jobs the run time is known from where; see `lives`


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastQuestion:
    """What is asked about a snapshot.

    Attributes:
        wanted: Jobs that nobody has submitted; each is looked at alone.
    """

    jobs: tuple[JobId, ...] = ()  # Ids of jobs in it
    wanted: tuple[HypotheticalJob, ...] = ()
    runs: int = 40  # Forward runs, at least 1
    horizon_s: float = 7 * 86400.0  # How far ahead they go, seconds
    blur_s: float = 0.0  # How exact an instant can be at all: ranges are so much wider to each side
    seed: int = 0  # Of the run times that are drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """All that forward runs in another process depend on."""

    snapshot: Snapshot
    order: str  # Name of the policy
    parameters: dict[str, Any]  # Its parameters as plain values
    settings: Settings
    question: ForecastQuestion
    pace: ForwardTiming
    deadline_s: float  # After so many seconds there is an answer of the runs so far


def foresee(
    snap: Snapshot,
    question: ForecastQuestion,
    *,
    policy: Policy,
    settings: Settings,
    pace: ForwardTiming,
    is_late: Callable[[], bool] = lambda: False,
) -> Forecast:
    """Run *snap* forward until the jobs that are asked for are over, some times.

    Args:
        is_late: Asked at each step; True ends it with the runs that are done. Where none is, the
            first one counts as far as it got: what has not happened is later than that.
    """

    def unless_late() -> None:
        if is_late():
            raise GaveUpError

    until_s = snap.now_s + question.horizon_s
    asked: list[tuple[HypotheticalJob, ...]] = [(), *((job,) for job in question.wanted)]
    asked = asked if question.jobs else asked[1:]
    random = np.random.default_rng(question.seed)
    variants: list[_Variant] = []
    found: list[list[_Outcome]] = []
    try:
        for _ in range(question.runs):
            found.append([])
            chance = np.zeros(0)
            for at, wanted in enumerate(asked):
                unless_late()
                if at == len(variants):
                    variants.append(_Variant.of(snap, wanted, question.jobs, policy, settings))
                variant = variants[at]
                if not len(chance):
                    # The same numbers for all variants: those of a wanted job are the last.
                    chance = random.random(len(variant.begun.jobs) + 1)
                world = ContinuedCluster(
                    variant.begun,
                    variant.lives.draw(chance[: len(variant.begun.jobs)]),
                    policy=policy,
                    settings=settings,
                    pace=pace,
                )
                try:
                    world.run(until_s, variant.rows, is_late)
                except GaveUpError:
                    if len(found) == 1 and world.through_s > snap.now_s:
                        found[0].append(_Outcome.of(world, variant.rows, world.through_s))
                    raise
                found[-1].append(_Outcome.of(world, variant.rows, until_s))
        runs = len(found)
    except GaveUpError:
        runs = len(found) - 1
    done = found[: max(runs, 1)]
    expected = [
        _expected([run[at] for run in done], snap.now_s, until_s, question.blur_s, asked[at])
        for at in range(min(map(len, done), default=0))
    ]
    own = expected.pop(0) if question.jobs and expected else ()
    return Forecast(
        runs=runs,
        jobs=own,
        wanted=tuple(one for many in expected for one in many),
        sources=dict(Counter(variants[0].lives.sources)) if variants else {},
    )


@dataclass(frozen=True, slots=True)
class _Variant:
    """One world to run forward, and the rows of the jobs that are asked for in it."""

    begun: Snapshot
    lives: RuntimeDistribution
    rows: I64

    @classmethod
    def of(
        cls,
        snap: Snapshot,
        wanted: tuple[HypotheticalJob, ...],
        jobs: tuple[JobId, ...],
        policy: Policy,
        settings: Settings,
    ) -> Self:
        """With the job that is *wanted*, or as it is for *jobs*."""
        begun = beginning(snap, wanted)
        if any(math.isfinite(job.due_s) for job in wanted):
            shared = not promises(policy)
            counted = counted_deadlines(begun, settings.deadlines, shared=shared)
            begun = replace(begun, due_s=counted.due_s, curves=counted.curves)
        row_of, last = begun.jobs.rows, len(begun.jobs) - 1
        rows = [last] if wanted else [row_of[job] for job in jobs]
        return cls(begun, RuntimeDistribution(begun), np.array(rows, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of the jobs that are asked for by *until_s*: ``(k,)`` starts and ends."""

    started_s: F64
    ended_s: F64
    until_s: float

    @classmethod
    def of(cls, world: ContinuedCluster, rows: I64, until_s: float) -> Self:
        """As *world* stands."""
        return cls(world.started_s[rows], world.ended_s[rows], until_s)


def _expected(
    runs: Sequence[_Outcome],
    now_s: float,
    last_s: float,
    blur_s: float,
    wanted: tuple[HypotheticalJob, ...],
) -> tuple[Expected, ...]:
    until_s = min(run.until_s for run in runs)
    surely_s = until_s if until_s >= last_s else max(now_s, until_s - blur_s)
    starts = np.stack([run.started_s for run in runs])
    ends = np.stack([run.ended_s for run in runs])
    due_s = wanted[0].due_s if wanted else math.inf
    return tuple(
        Expected(
            start=range_of(starts[:, i], now_s=now_s, until_s=until_s, blur_s=blur_s),
            end=range_of(ends[:, i], now_s=now_s, until_s=until_s, blur_s=blur_s),
            until_s=surely_s,
            in_time=float((ends[:, i] <= due_s).mean()) if due_s <= surely_s else None,
        )
        for i in range(starts.shape[1])
    )


def range_of(at_s: F64, *, now_s: float, until_s: float, blur_s: float = 0.0) -> TimeRange:
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
    return TimeRange(
        low_s=min(low_s, max(low_s - blur_s, now_s)),
        median_s=quantile(0.5),
        high_s=high_s + blur_s if high_s > now_s else high_s,
        share=float(np.isfinite(told).mean()),
    )
