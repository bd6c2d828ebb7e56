"""The figures of a workload: against numbers worked out by hand and against plain Python."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_cases import Life, life, records_of, workloads

from slurm_dl.model.completed_jobs import JobRecord, Records, Runs
from slurm_dl.model.ids import JobId
from slurm_dl.report.summary_metrics import (
    SIZE_CLASSES,
    Group,
    Spread,
    Summary,
    by_size,
    by_user,
    spread,
    spreads,
    summarise,
)

GPUS = 24.0


Grouped = Callable[..., tuple[Group, ...]]


def near(expected: float) -> object:
    """Equal but for rounding; NaN is equal to itself."""
    return pytest.approx(expected, rel=1e-9, abs=1e-12, nan_ok=True)


# By hand.


REQUEUED = (("restart", 7.5), ("redone", 1))
BY_HAND: dict[str, tuple[list[Life], float, dict[str, object]]] = {
    "JCT is counted from submission, makespan from the first one": (
        [life(100, (110, 130), gpus=4), life(110, (130, 160), gpus=2)], 4,
        {
            "jct_s.mean": 40, "jct_s.median": 40, "makespan_s": 60, "service_gpu_s": 140,
            "utilisation_frac": 140 / 240,
        },
    ),
    "it waited 10 s, then 40 s more": (
        [life(0, (10, 30), (70, 80), gpus=2)], 2,
        {
            "jct_s.max": 80, "queue_s.max": 50, "wait_s.max": 10, "preemptions": 1,
            "service_gpu_s": 60,
        },
    ),
    "a job of 1 s that took 20 s is 20 times slower, but only 2 times by the bounded measure": (
        [life(0, (19, 20), alone=1), life(0, (0, 40), alone=40), life(0, (0, 5))], 8,
        {
            "slowdown.count": 2, "slowdown.mean": 10.5, "slowdown.max": 20, "jct_s.count": 3,
            "bounded_slowdown.count": 2, "bounded_slowdown.mean": 1.5,
        },
    ),
    "a job that grew may be faster than alone": (
        [life(0, (0, 20), alone=40)], 8, {"slowdown.max": 0.5, "bounded_slowdown.max": 1},
    ),
    "a failed job has a JCT like any other; one that never ended only used GPUs": (
        [life(0, (0, 10)), life(0, (0, 100), success=False), life(0, (0, 50), ends=False)], 2,
        {
            "jobs": 3, "finished": 2, "completed": 1, "jct_s.mean": 55, "jct_s.p95": 100,
            "makespan_s": 100, "utilisation_frac": 160 / 200, "preemptions": 1,
        },
    ),
    "losses add up by cause, those of jobs that did not finish too": (
        [
            life(0, (0, 5), (9, 12), lost=REQUEUED, promotions=2),
            life(0, (0, 5), ends=False, lost=(("restart", 2.5),), promotions=1),
        ], 1,
        {
            "preemptions": 2, "promotions": 3, "lost_gpu_s": 11.0,
            "lost_by_cause_gpu_s.redone": 1.0, "lost_by_cause_gpu_s.restart": 10.0,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize(("lives", "gpus", "told"), BY_HAND.values(), ids=BY_HAND)
def test_figures_by_hand(lives: list[Life], gpus: float, told: dict[str, object]) -> None:
    found = flat(summarise(records_of(lives), gpus=gpus))
    assert {name: found[name] for name in told} == pytest.approx(told)


def test_a_job_without_known_runs_ran_for_its_service_over_its_gpus() -> None:
    """Accounting knows 60 GPU-seconds on 2 GPUs, not when: 30 s of the 80 s were running."""
    row = JobRecord(
        job_id=JobId(1), user="ada", gpus=2, submit_s=0, start_s=10, end_s=80, service_gpu_s=60
    )
    cpu_only = JobRecord(
        job_id=JobId(2), user="ada", gpus=0, submit_s=0, start_s=10, end_s=80, service_gpu_s=0
    )

    found = summarise(Records.of([row, cpu_only]), gpus=2)

    assert (found.queue_s.count, found.queue_s.max) == (1, 50)


def test_figures_over_nothing_are_not_a_number() -> None:
    """No job, or none that finished, must not look like a mean of 0; nor a cluster of nothing."""
    empty = summarise(records_of([]), gpus=4)
    waiting = summarise(records_of([life(5)]), gpus=4)
    names = ("jct_s.mean", "wait_s.p95", "rho.max", "unfair_frac", "jain", "makespan_s")

    for found in map(flat, (empty, waiting)):
        assert all(math.isnan(found[name]) for name in (*names, "utilisation_frac"))
    assert (empty.jobs, waiting.jobs, waiting.finished, waiting.service_gpu_s) == (0, 1, 0, 0)
    for gpus in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="gpus must be above 0"):
            summarise(records_of([]), gpus=gpus)


@pytest.mark.parametrize(
    ("count", "p95", "p99"),
    [(1, 1, 1), (19, 19, 19), (20, 19, 20), (21, 20, 21), (100, 95, 99), (101, 96, 100)],
)
def test_percentiles_are_by_nearest_rank(count: int, p95: float, p99: float) -> None:
    """Of 1..n the p-th percentile is ceil(n x p / 100): no value is made up between two."""
    found = spread(np.arange(count, 0, -1.0))

    assert (found.p95, found.p99, found.max) == (p95, p99, count)
    assert found.median == (count + 1) / 2


def test_groups_are_those_that_occur() -> None:
    """Limits of sizes belong to the class below; each user's mean is over that user's jobs."""
    sizes = [0.5, 1, 2, 3, 4, 5, 8, 9, 16, 17, 64]

    found = by_size(records_of([life(0, (0, 10), gpus=g) for g in sizes]), gpus=64)

    assert [(group.label, group.summary.jobs) for group in found] == list(
        zip(SIZE_CLASSES, [2, 1, 2, 2, 2, 2], strict=True)
    )
    alone = by_size(records_of([life(0, (0, 10), gpus=8)]), gpus=64)
    assert [group.label for group in alone] == ["5-8"]
    lives = [life(0, (0, 10), user="ada"), life(0, (0, 30), user="bob"), life(0, (0, 20))]
    users = by_user(records_of(lives), gpus=8)
    assert [(g.label, g.summary.jct_s.mean) for g in users] == [("ada", 15), ("bob", 30)]


# Against plain Python.


def plain_spread(values: Sequence[float]) -> Spread:
    """The definitions, one value at a time."""
    known = sorted(v for v in values if not math.isnan(v))
    if not known:
        return Spread(
            count=0, mean=math.nan, median=math.nan, p95=math.nan, p99=math.nan, max=math.nan
        )

    def nearest(percent: int) -> float:
        """The smallest value that at least so many percent do not exceed."""
        return next(v for v in known if 100 * sum(u <= v for u in known) >= percent * len(known))

    return Spread(
        count=len(known),
        mean=math.fsum(known) / len(known),
        median=statistics.median(known),
        p95=nearest(95),
        p99=nearest(99),
        max=known[-1],
    )


def plain_contention(one: Life, lives: Sequence[Life]) -> float:
    """Jobs present during the life of *one*, the mean: the time it shared with each, added up."""
    shared = 0.0
    for other in lives:
        last = math.inf if math.isnan(other.end) else other.end
        shared += max(0.0, min(one.end, last) - max(one.submit, other.submit))
    return shared / one.jct


def plain_rho(one: Life, lives: Sequence[Life], gpus: float) -> float:
    """JCT / time on an equal share of the cluster, in words of the definition."""
    if math.isnan(one.end) or math.isnan(one.alone):
        return math.nan
    share = gpus / plain_contention(one, lives)
    return one.jct / (one.alone * one.gpus / min(share, one.gpus))


def plain_jain(lives: Sequence[Life]) -> float:
    xs = []
    for user in {one.user for one in lives}:
        own = [one for one in lives if one.user == user and not math.isnan(one.end)]
        if own:
            xs.append(sum(o.gpus * o.running for o in own) / sum(o.gpus * o.jct for o in own))
    # Of one user there is nothing to compare.
    return sum(xs) ** 2 / (len(xs) * sum(x * x for x in xs)) if len(xs) > 1 else math.nan


def check(found: Summary, group: Sequence[Life], lives: Sequence[Life]) -> None:
    """Every figure of *group*, a part of *lives*."""
    done = [one for one in group if not math.isnan(one.end)]
    rho = [plain_rho(one, lives, GPUS) for one in done]
    known = [r for r in rho if not math.isnan(r)]
    expected: dict[str, list[float]] = {
        "jct_s": [one.jct for one in done],
        "queue_s": [one.jct - one.running for one in done],
        "wait_s": [one.runs[0][0] - one.submit for one in done],
        "slowdown": [one.jct / one.alone for one in done],
        "bounded_slowdown": [
            max(1.0, one.jct / max(one.alone, 10)) if one.alone > 0 else math.nan for one in done
        ],
        "rho": rho,
    }
    for name, values in expected.items():
        plain, seen = plain_spread(values), getattr(found, name)
        assert seen.count == plain.count, name
        for figure in ("mean", "median", "p95", "p99", "max"):
            assert getattr(seen, figure) == near(getattr(plain, figure)), (name, figure)
    assert (found.jobs, found.finished) == (len(group), len(done))
    assert found.completed == sum(one.success for one in done)
    assert found.jain == near(plain_jain(group))
    if not any(abs(r - 1.05) < 1e-9 for r in known):
        unfair = sum(r > 1.05 for r in known) / len(known) if known else math.nan
        assert found.unfair_frac == near(unfair)
    ends = [run[1] for one in group for run in one.runs]
    makespan = max(ends) - min(one.submit for one in group) if ends else math.nan
    assert found.makespan_s == near(makespan)
    service = sum(one.gpus * one.running for one in group)
    assert found.service_gpu_s == near(service)
    every = [run[1] for one in lives for run in one.runs]
    whole = max(every) - min(one.submit for one in lives) if every else math.nan
    assert found.utilisation_frac == near(service / (GPUS * whole))
    lost = [dict(one.lost) for one in group]
    assert found.lost_gpu_s == near(sum(sum(causes.values()) for causes in lost))
    assert found.preemptions == sum(max(0, len(one.runs) - one.ends) for one in group)
    assert found.promotions == sum(one.promotions for one in group)


@settings(max_examples=60)
@given(lives=workloads)
def test_every_figure_equals_plain_python(lives: list[Life]) -> None:
    """Of the whole workload, and of each user's jobs; contention is that of the whole cluster."""
    records = records_of(lives)
    check(summarise(records, gpus=GPUS), lives, lives)
    for group in by_user(records, gpus=GPUS):
        check(group.summary, [one for one in lives if one.user == group.label], lives)


@settings(max_examples=30)
@given(lives=workloads, seed=st.randoms(use_true_random=False))
def test_the_order_of_the_jobs_does_not_matter(lives: list[Life], seed: random.Random) -> None:
    """Neither listing nor numbering of the jobs is part of the result."""
    shuffled = list(lives)
    seed.shuffle(shuffled)
    one, other = (flat(summarise(records_of(of), gpus=GPUS)) for of in (lives, shuffled))

    assert other == pytest.approx(one, rel=1e-9, abs=1e-12, nan_ok=True)


def test_steady_utilisation_counts_second_by_second() -> None:
    """From a tenth of the time of submissions to the last one, of each user and of all."""
    rng = random.Random(7)  # noqa: S311
    lives = [life(0, (0, 300), gpus=2), life(100, (150, 160)), life(50, ends=False, user="bo")]
    for _ in range(40):
        submit = rng.randrange(100)
        start = submit + rng.randrange(30)
        again = start + rng.randrange(1, 40)
        runs = ((start, again), (again + 3, again + 9))
        lives.append(life(submit, *runs, gpus=rng.choice([0.5, 1, 8]), user=rng.choice("ab")))
    records = records_of(lives)

    def by_second(some: Sequence[Life]) -> float:
        held = sum(
            one.gpus for one in some for s in range(10, 100) for a, b in one.runs if a <= s < b
        )
        return held / (GPUS * 90)

    whole = summarise(records, gpus=GPUS)
    assert whole.steady_utilisation_frac == near(by_second(lives))
    for group in by_user(records, gpus=GPUS):
        own = [one for one in lives if one.user == group.label]
        assert group.summary.steady_utilisation_frac == near(by_second(own))
    at_once = summarise(records_of([life(5, (5, 9)), life(5, (5, 7))]), gpus=1)
    unknown = summarise(dataclasses.replace(records, runs=Runs.empty()), gpus=GPUS)
    assert all(math.isnan(s.steady_utilisation_frac) for s in (at_once, unknown))


def flat(summary: Summary) -> dict[str, float]:
    """All figures of a summary by name."""
    found: dict[str, float] = {}
    for name in Summary.__dataclass_fields__:
        value = getattr(summary, name)
        if isinstance(value, Spread):
            found |= {f"{name}.{f}": getattr(value, f) for f in Spread.__dataclass_fields__}
        elif isinstance(value, dict):
            found |= {f"{name}.{cause}": lost for cause, lost in value.items()}
        else:
            found[name] = value
    return found


@settings(max_examples=30)
@given(lives=workloads, grouped=st.sampled_from([by_size, by_user]))
def test_groups_add_up_to_the_whole(lives: list[Life], grouped: Grouped) -> None:
    """Counts, GPU-seconds, utilisation, and means weighted by their counts."""
    records = records_of(lives)
    whole = summarise(records, gpus=GPUS)
    groups = [group.summary for group in grouped(records, gpus=GPUS)]

    for name in (
        "jobs", "finished", "completed", "preemptions", "promotions", "service_gpu_s", "lost_gpu_s",
    ):  # fmt: skip
        assert sum(getattr(s, name) for s in groups) == near(getattr(whole, name)), name
    if lives and not math.isnan(whole.utilisation_frac):
        assert sum(s.utilisation_frac for s in groups) == near(whole.utilisation_frac)
    for name in ("jct_s", "slowdown", "rho"):
        parts = [getattr(s, name) for s in groups if getattr(s, name).count]
        if parts:
            weighted = sum(p.count * p.mean for p in parts) / sum(p.count for p in parts)
            assert weighted == near(getattr(whole, name).mean)
            assert max(p.max for p in parts) == getattr(whole, name).max


@settings(max_examples=30)
@given(lives=workloads)
def test_figures_stay_within_their_bounds(lives: list[Life]) -> None:
    """Waiting is part of the JCT, Jain's index between 1 / users and 1, percentiles in order."""
    found = summarise(records_of(lives), gpus=GPUS)

    if found.finished:
        for s in (found.jct_s, found.queue_s, found.wait_s):
            assert 0 <= s.median <= s.p95 <= s.p99 <= s.max
            assert s.mean <= s.max
        assert found.wait_s.mean <= found.queue_s.mean <= found.jct_s.mean
        assert math.isnan(found.jain) or 1 / 3 - 1e-9 <= found.jain <= 1 + 1e-9
    if found.slowdown.count:
        assert found.rho.max <= found.slowdown.max
        assert found.bounded_slowdown.median >= 1


@settings(max_examples=30)
@given(
    values=st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan)), max_size=60),
    groups=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_grouped_spreads_are_those_of_each_group_alone(
    values: list[float], groups: int, seed: int
) -> None:
    """Groups without a value, ties and missing values included."""
    group = np.random.default_rng(seed).integers(0, groups, len(values))

    found = spreads(np.array(values, dtype=np.float64), group, groups=groups)

    assert len(found) == groups
    for i, seen in enumerate(found):
        plain = plain_spread([v for v, g in zip(values, group, strict=True) if g == i])
        assert (seen.count, seen.median) == (plain.count, near(plain.median))
        assert (seen.p95, seen.p99, seen.max) == (
            near(plain.p95), near(plain.p99), near(plain.max),
        )  # fmt: skip
        assert seen.mean == pytest.approx(plain.mean, rel=1e-9, abs=1e-6, nan_ok=True)
