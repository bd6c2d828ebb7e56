"""The figures of a workload: against numbers worked out by hand and against plain Python."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_cases import Life, life, records_of, workloads

from slurm_dl.model.ids import JobId
from slurm_dl.model.job_record import JobRecord, Records
from slurm_dl.report.distribution import Spread, spread, spreads
from slurm_dl.report.summary_metrics import (
    SIZE_CLASSES,
    Group,
    Summary,
    by_size,
    by_user,
    summarise,
)

GPUS = 24.0


Grouped = Callable[..., tuple[Group, ...]]


def near(expected: float) -> object:
    """Equal but for rounding; NaN is equal to itself."""
    return pytest.approx(expected, rel=1e-9, abs=1e-12, nan_ok=True)


# By hand.


def test_jct_is_counted_from_submission_and_makespan_from_the_first_one() -> None:
    """Two jobs on 4 GPUs: JCTs 30 and 50, busy 4 x 20 + 2 x 30 of 4 x 60 GPU-seconds."""
    found = summarise(
        records_of([life(100, (110, 130), gpus=4), life(110, (130, 160), gpus=2)]), gpus=4
    )

    assert (found.jct_s.mean, found.jct_s.median) == (40, 40)
    assert found.makespan_s == 60
    assert found.service_gpu_s == 140
    assert found.utilisation_frac == pytest.approx(140 / 240)


def test_queueing_is_all_waiting_and_the_first_wait_only_the_first() -> None:
    """Submitted at 0, ran from 10 to 30 and from 70 to 80: it waited 10 s, then 40 s more."""
    found = summarise(records_of([life(0, (10, 30), (70, 80), gpus=2)]), gpus=2)

    assert found.jct_s.max == 80
    assert found.queue_s.max == 50
    assert found.wait_s.max == 10
    assert found.preemptions == 1
    assert found.service_gpu_s == 60


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


def test_slowdown_is_against_the_time_alone_and_bounded_below_ten_seconds() -> None:
    """A 1 s job that took 20 s is 20 times slower, but only 2 times by the bounded measure."""
    lives = [life(0, (19, 20), alone=1), life(0, (0, 40), alone=40), life(0, (0, 5))]

    found = summarise(records_of(lives), gpus=8)

    assert (found.slowdown.count, found.slowdown.mean, found.slowdown.max) == (2, 10.5, 20)
    assert (found.bounded_slowdown.count, found.bounded_slowdown.mean) == (2, 1.5)
    assert found.jct_s.count == 3


def test_a_job_faster_than_alone_has_a_bounded_slowdown_of_one() -> None:
    """A job that grew beyond its first GPUs may beat the figure it is compared with."""
    found = summarise(records_of([life(0, (0, 20), alone=40)]), gpus=8)

    assert (found.slowdown.max, found.bounded_slowdown.max) == (0.5, 1)


def test_figures_are_over_finished_jobs_whatever_their_end() -> None:
    """A failed job has a JCT like any other; one that never ended only used GPUs."""
    lives = [
        life(0, (0, 10)),
        life(0, (0, 100), success=False),
        life(0, (0, 50), ends=False),
    ]

    found = summarise(records_of(lives), gpus=2)

    assert (found.jobs, found.finished, found.completed) == (3, 2, 1)
    assert (found.jct_s.mean, found.jct_s.p95) == (55, 100)
    assert found.makespan_s == 100
    assert found.utilisation_frac == pytest.approx(160 / 200)
    assert found.preemptions == 1


def test_losses_and_counts_add_up_by_cause() -> None:
    """Sums over all jobs, those included that did not finish."""
    lives = [
        life(0, (0, 5), (9, 12), lost=(("restart", 7.5), ("redone", 1)), promotions=2),
        life(0, (0, 5), ends=False, lost=(("restart", 2.5),), promotions=1),
    ]

    found = summarise(records_of(lives), gpus=1)

    assert (found.preemptions, found.promotions, found.lost_gpu_s) == (2, 3, 11.0)
    assert found.lost_by_cause_gpu_s == {"redone": 1.0, "restart": 10.0}


def test_figures_over_nothing_are_not_a_number() -> None:
    """No job, or none that finished, must not look like a mean of 0."""
    empty = summarise(records_of([]), gpus=4)
    waiting = summarise(records_of([life(5)]), gpus=4)

    for found in (empty, waiting):
        for value in (
            found.jct_s.mean,
            found.wait_s.p95,
            found.rho.max,
            found.unfair_frac,
            found.jain,
            found.makespan_s,
            found.utilisation_frac,
        ):
            assert math.isnan(value)
    assert (empty.jobs, waiting.jobs, waiting.finished, waiting.service_gpu_s) == (0, 1, 0, 0)


@pytest.mark.parametrize("gpus", [0.0, -1.0, math.nan, math.inf])
def test_a_cluster_without_gpus_is_refused(gpus: float) -> None:
    """Utilisation of nothing would be a division by zero somewhere else."""
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


def test_the_median_of_an_odd_number_is_the_middle_one() -> None:
    """Values 1, 2 and 9: the median is 2, whatever the mean is."""
    found = spread(np.array([9.0, 1.0, 2.0]))

    assert (found.median, found.mean) == (2, 4)


def test_sizes_are_classes_and_only_those_that_occur() -> None:
    """The limits belong to the class below; a share of a GPU is in the first."""
    sizes = [0.5, 1, 2, 3, 4, 5, 8, 9, 16, 17, 64]

    found = by_size(records_of([life(0, (0, 10), gpus=g) for g in sizes]), gpus=64)

    assert [(group.label, group.summary.jobs) for group in found] == list(
        zip(SIZE_CLASSES, [2, 1, 2, 2, 2, 2], strict=True)
    )
    alone = by_size(records_of([life(0, (0, 10), gpus=8)]), gpus=64)
    assert [group.label for group in alone] == ["5-8"]


def test_users_are_listed_with_their_own_figures() -> None:
    """Each user's mean is over that user's jobs."""
    lives = [life(0, (0, 10), user="ada"), life(0, (0, 30), user="bob"), life(0, (0, 20))]

    found = by_user(records_of(lives), gpus=8)

    assert [(g.label, g.summary.jct_s.mean) for g in found] == [("ada", 15), ("bob", 30)]


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
    return sum(xs) ** 2 / (len(xs) * sum(x * x for x in xs)) if xs else math.nan


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


@given(lives=workloads)
def test_every_figure_equals_plain_python(lives: list[Life]) -> None:
    """The whole workload, figure by figure."""
    check(summarise(records_of(lives), gpus=GPUS), lives, lives)


@settings(max_examples=30)
@given(lives=workloads)
def test_every_figure_of_a_group_equals_plain_python(lives: list[Life]) -> None:
    """The same for the jobs of each user; contention is that of the whole cluster."""
    for group in by_user(records_of(lives), gpus=GPUS):
        check(group.summary, [one for one in lives if one.user == group.label], lives)


@settings(max_examples=30)
@given(lives=workloads, seed=st.randoms(use_true_random=False))
def test_the_order_of_the_jobs_does_not_matter(lives: list[Life], seed: random.Random) -> None:
    """Neither listing nor numbering of the jobs is part of the result."""
    shuffled = list(lives)
    seed.shuffle(shuffled)

    assert flat(summarise(records_of(shuffled), gpus=GPUS)) == near_all(
        flat(summarise(records_of(lives), gpus=GPUS))
    )


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


def near_all(expected: dict[str, float]) -> object:
    return pytest.approx(expected, rel=1e-9, abs=1e-12, nan_ok=True)


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
        assert 1 / 3 - 1e-9 <= found.jain <= 1 + 1e-9
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
