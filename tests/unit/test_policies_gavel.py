"""Gavel's policies: their shares reach what CBC says can be reached, and nobody is forgotten."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import build
import numpy as np
import pytest
import scipy.optimize
import shares_oracle as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.model.jobs import F64, JobRow
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic import linear_programs
from slurm_dl.policies.base import Leasing
from slurm_dl.policies.gavel.hierarchy import GavelHierarchical
from slurm_dl.policies.gavel.objectives import (
    GavelCost,
    GavelCostSlo,
    GavelFinishTime,
    GavelMakespan,
    GavelMaxMin,
    GavelMaxMinAgnostic,
    GavelSum,
)
from slurm_dl.policies.gavel.pool import LEAST_LEFT_S, Sharing
from slurm_dl.policies.gavel.queues import GavelFifo, GavelIsolated, GavelProportional, GavelSjf
from slurm_dl.policies.gavel.strategy_proof import GavelStrategyProof
from slurm_dl.policies.registry import POLICIES

EVERY: tuple[Sharing, ...] = (
    GavelCost(costs=(("a", 2.0),)),
    GavelCostSlo(costs=(("a", 2.0),)),
    GavelFifo(),
    GavelFinishTime(),
    GavelHierarchical(weights=(("x", 2.0),)),
    GavelHierarchical(inside="fifo"),
    GavelIsolated(),
    GavelMakespan(),
    GavelMaxMin(weights=(("x", 2.0),)),
    GavelMaxMinAgnostic(),
    GavelProportional(),
    GavelSjf(),
    GavelStrategyProof(),
    GavelSum(),
)
EVERY_POLICY = pytest.mark.parametrize("policy", EVERY, ids=lambda p: p.name)


def cluster(
    rows: Sequence[JobRow],
    rates: F64 | None,
    capacity: Sequence[float],
    *,
    accounts: Sequence[str] = (),
    memory: dict[str, dict[int, float]] | None = None,
    **more: Any,  # noqa: ANN401
) -> Snapshot:
    """One node for each GPU type; jobs belong to *accounts* in turn."""
    account = dict(zip((r.job_id for r in rows), itertools.cycle(accounts), strict=False))
    texts = build.texts(account=account)
    seen = build.observed(rows, **build.node_of_each_type(capacity), texts=texts)
    snap = build.snapshot(seen, memory=memory)
    return dataclasses.replace(snap, rates=rates, **more)


def drawn(seed: int, k: int | None = None) -> Snapshot:
    """A few waiting jobs of three accounts on up to three types."""
    draw = np.random.default_rng(seed)
    k = int(draw.integers(2, 7)) if k is None else k
    kinds = int(draw.integers(1, 4))
    rates = draw.uniform(0.2, 4.0, (k, kinds))
    rates[draw.random((k, kinds)) < 0.1] = 0.0
    rows = [
        build.pending(
            i + 1,
            float(draw.choice([1, 2, 4])),
            submit_s=build.NOW_S - float(draw.uniform(0, 1e5)),
            gpu_type=int(draw.choice([-1, -1, -1, kinds - 1])),
        )
        for i in range(k)
    ]
    return cluster(
        rows,
        rates,
        draw.choice([2.0, 3.0, 4.0], kinds).tolist(),
        accounts=("x", "y", "z"),
        memory={"ran_s": {i + 1: float(draw.choice([0.0, 5000.0])) for i in range(k)}},
        left_s=draw.choice([0.0, 500.0, 3000.0, 20000.0, 1e5], k) * draw.uniform(0.5, 1, k),
        progress=draw.choice([math.nan, 0.2, 0.7, 1.0], k),
        due_s=build.NOW_S + draw.choice([-100.0, 0.0, 4e3, 3e4, 2e5, math.inf], k),
    )


def facts(snap: Snapshot) -> tuple[oracle.Shares, F64, F64, F64, list[int]]:
    """Worked out here once more: the shares, rates, GPUs, GPUs by type; who can run at all."""
    jobs = snap.jobs
    capacity = snap.seen.nodes.gpus
    rates = snap.rates.copy()
    for m, kind in enumerate(jobs.gpu_type.tolist()):
        for j in range(len(capacity)):
            if (kind not in {-1, j}) or jobs.gpus[m] > capacity[j]:
                rates[m, j] = 0.0
    can = rates.any(axis=1).nonzero()[0].tolist()
    return oracle.Shares(jobs.gpus, rates > 0, capacity), rates, jobs.gpus, capacity, can


def thr(rates: F64, share: F64 | None) -> F64:
    """``(n,)`` throughput of each job."""
    assert share is not None
    return np.array((rates * share).sum(axis=1))


def equal_split(gpus: F64, capacity: F64, can: list[int]) -> F64:
    """``(t,)`` what each job gets if all get the same."""
    return capacity / capacity.sum() * min(1.0, capacity.sum() / gpus[can].sum())


def test_the_published_example_comes_out_of_a_snapshot() -> None:
    """Three jobs of one GPU, one GPU of each type: 12/11 of the equal split for each."""
    rates = np.array([[4.0, 1.0], [3.0, 1.0], [2.0, 1.0]])
    snap = cluster([build.pending(i) for i in (1, 2, 3)], rates, [1, 1])

    share = GavelMaxMin().order(snap).share

    assert thr(rates, share) / (rates.sum(axis=1) / 3) == pytest.approx([12 / 11] * 3)
    assert share == pytest.approx(np.array([[5, 0], [5, 1], [1, 10]]) / 11, abs=1e-9)


@pytest.mark.parametrize("seed", range(15))
def test_max_min_is_what_cbc_says(seed: int) -> None:
    """Accounts x, y, z weigh 2, 1 and 0.5."""
    snap = drawn(seed)
    shares, rates, gpus, capacity, can = facts(snap)
    weight = np.array([(2.0, 1.0, 0.5)[m % 3] for m in range(len(gpus))])
    fair = rates @ equal_split(gpus, capacity, can)
    best = shares.largest_level(
        (m, rates[m] * gpus[m] / weight[m] / fair[m], 0.0, 1.0) for m in can
    )

    share = GavelMaxMin(weights=(("x", 2.0), ("z", 0.5))).order(snap).share

    reached = (thr(rates, share) * gpus / weight)[can] / fair[can]
    assert reached.min() == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_agnostic_max_min_is_what_cbc_says(seed: int) -> None:
    """Every type where a job may run counts the same."""
    snap = drawn(seed)
    shares, rates, gpus, _, can = facts(snap)
    best = shares.largest_level((m, (rates[m] > 0) * gpus[m], 0.0, 1.0) for m in can)

    share = GavelMaxMinAgnostic().order(snap).share

    assert (thr(rates > 0, share) * gpus)[can].min() == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_no_shorter_makespan_is_within_reach(seed: int) -> None:
    """Gavel's own test: whether all can have thr >= left / T; at the T reached they just can."""
    snap = drawn(seed)
    _, rates, *_, can = facts(snap)
    left = np.maximum(snap.left_s, LEAST_LEFT_S)

    share = GavelMakespan().order(snap).share

    reached = float((left / np.where(thr(rates, share) > 0, thr(rates, share), 1.0))[can].max())
    for makespan, possible in ((reached * (1 + 1e-6), True), (reached * (1 - 1e-5), False)):
        shares = facts(snap)[0]
        for m in can:
            shares.holds(shares.dot(m, rates[m]) >= left[m] / makespan)
        assert (shares.largest(oracle.variable("none", 0) * 0) is not None) == possible


@pytest.mark.parametrize("seed", range(12))
def test_no_fairer_finish_times_are_within_reach(seed: int) -> None:
    """The ratios, worked out job by job from the formula; CBC finds no smaller largest one."""
    snap = drawn(seed)
    _, rates, *_, can = facts(snap)

    share = GavelFinishTime().order(snap).share

    speed = thr(rates, share)
    of_each = {m: finish_facts(snap, m, len(can)) for m in can}
    worst = max((age + left / speed[m]) / whole for m, (whole, left, age) in of_each.items())
    # No throughputs do with which all ratios are smaller by a millionth.
    level = 0.0
    aim = worst * (1 - 1e-6)
    if all(aim * whole > age for whole, _, age in of_each.values()):
        needs = {m: left / (aim * whole - age) for m, (whole, left, age) in of_each.items()}
        best = facts(snap)[0].largest_level((m, rates[m], 0.0, needs[m]) for m in can)
        assert best is not None
        level = best
    assert level < 1


def finish_facts(snap: Snapshot, m: int, n: int) -> tuple[float, float, float]:
    """Time the whole of a job takes alone on the n-th part; what is left of it; its age."""
    _, rates, gpus, capacity, _ = facts(snap)
    may = rates[m] > 0
    part = capacity * may / n / gpus[m]
    alone = float(rates[m] @ (part / max(1.0, part.sum())))
    left, told = max(float(snap.left_s[m]), LEAST_LEFT_S), float(snap.progress[m])
    mean_rate = float(rates[m] @ (capacity * may)) / float((capacity * may).sum())
    done = float(snap.memory.ran_s[m]) * mean_rate
    if 0 <= told < 1:
        done = left * told / (1 - told)
    return (done + left) / alone, left, snap.now_s - float(snap.memory.first_submit_s[m])


@pytest.mark.parametrize("seed", range(8))
def test_the_sum_of_throughputs_is_what_cbc_says(seed: int) -> None:
    """And divided by the cost of each type's GPUs."""
    snap = drawn(seed)
    shares, rates, _, capacity, _ = facts(snap)
    cost = np.array([3.0, 1.0, 0.5])[: len(capacity)]

    for policy, by in (
        (GavelSum(), np.ones(len(capacity))),
        (GavelCost(costs=(("a", 3.0), ("c", 0.5))), cost),
    ):
        best = shares.largest(sum(shares.dot(m, rates[m] / by) for m in range(len(rates))))
        assert thr(rates / by, policy.order(snap).share).sum() == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_jobs_that_are_due_are_done_if_cbc_says_they_can_be(seed: int) -> None:
    """Rows of jobs that cannot make it alone do not count; if the others cannot, none does."""
    snap = drawn(seed)
    shares, rates, _, capacity, can = facts(snap)
    assert snap.due_s is not None
    free = facts(snap)[0]
    cost = np.array([3.0, 1.0, 1.0])[: len(capacity)]
    floors = {}
    for m in can:
        ahead_s = float(snap.due_s[m]) - snap.now_s
        floor = max(float(snap.left_s[m]), LEAST_LEFT_S) / ahead_s if ahead_s > 0 else 0.0
        if 0 < floor <= rates[m].max():
            floors[m] = floor
            shares.holds(shares.dot(m, rates[m]) >= floor)

    def total(s: oracle.Shares) -> float | None:
        return s.largest(sum(s.dot(m, rates[m] / cost) for m in range(len(rates))))

    best, unbound = total(shares), total(free)

    share = GavelCostSlo(costs=(("a", 3.0),)).order(snap).share

    expected = unbound if best is None else best
    assert thr(rates / cost, share).sum() == pytest.approx(expected, rel=1e-6)
    if best is not None:
        assert all(thr(rates, share)[m] >= f - 1e-6 for m, f in floors.items())


def test_a_due_job_gets_what_it_needs_before_the_cheaper_one() -> None:
    """One GPU: half of it is needed for the slow job, unless both cannot be done in time."""
    rates = np.array([[1.0], [4.0]])
    jobs = [build.pending(1), build.pending(2)]
    snap = cluster(jobs, rates, [1], left_s=np.array([500.0, 9000.0]))
    at = build.NOW_S + np.array([1000.0, math.inf])

    both = build.NOW_S + np.array([1000.0, 3000.0])

    assert GavelCostSlo().order(snap).share == pytest.approx(np.array([[0.0], [1.0]]))
    due = dataclasses.replace(snap, due_s=at)
    assert GavelCostSlo().order(due).share == pytest.approx(np.array([[0.5], [0.5]]))
    late = dataclasses.replace(snap, due_s=both)
    assert GavelCostSlo().order(late).share == pytest.approx(np.array([[0.0], [1.0]]))


@given(
    gpus=st.lists(st.sampled_from([1.0, 2.0, 4.0, 8.0]), min_size=1, max_size=9),
    kinds=st.sampled_from([1, 3]),
)
@settings(max_examples=25, deadline=None)
def test_with_equal_types_max_min_is_equal_attained_service(gpus: list[float], kinds: int) -> None:
    """Every job gets GPU-seconds at the same rate, or all the time it can use: fair LAS."""
    jobs = [build.pending(i + 1, g) for i, g in enumerate(gpus)]
    snap = cluster(jobs, None, [8.0] * kinds)

    share = GavelMaxMin().order(snap).share

    wants = np.array(gpus)
    given_gpus = share.sum(axis=1) * wants
    room = 8.0 * kinds
    if wants.sum() <= room:
        assert given_gpus == pytest.approx(wants)
    else:
        # Water filled by hand: smallest demands first.
        level = 0.0
        for done, want in enumerate(sorted(gpus)):
            level = room / (len(gpus) - done)
            if want > level:
                break
            room -= want
        assert given_gpus == pytest.approx(np.minimum(wants, level), rel=1e-5)


def test_one_type_of_gpus_is_shared_without_a_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the common case, and its answer has a closed form."""
    monkeypatch.setattr(scipy.optimize, "linprog", None)
    snap = cluster([build.pending(i, 4) for i in range(1, 7)], None, [8])

    assert GavelMaxMin().order(snap).share == pytest.approx(np.full((6, 1), 1 / 3))


def test_a_job_that_waited_longer_is_given_more_for_its_finish_time() -> None:
    """Two jobs alike but for their age."""
    jobs = [
        build.pending(1, submit_s=build.NOW_S - 50_000),
        build.pending(2, submit_s=build.NOW_S - 1_000),
    ]
    snap = cluster(jobs, None, [1], left_s=np.full(2, 1e4))

    share = GavelFinishTime().order(snap).share

    assert share[0, 0] > share[1, 0] > 0
    assert share.sum() == pytest.approx(1.0)


def test_jobs_of_unknown_length_are_judged_by_their_slowdown_in_the_long_run() -> None:
    """All unknown: the ratio is speed alone over speed, so all slow down alike."""
    rates = np.array([[4.0, 1.0], [3.0, 1.0], [2.0, 1.0]])
    snap = cluster(
        [build.pending(i) for i in (1, 2, 3)], rates, [1, 1], left_s=np.full(3, math.inf)
    )

    share = GavelFinishTime().order(snap).share

    assert thr(rates, share) / (rates.sum(axis=1) / 3) == pytest.approx([12 / 11] * 3)


def test_for_the_makespan_a_job_of_unknown_length_is_as_long_as_the_longest() -> None:
    """And all alike where no length is known."""
    jobs = [build.pending(1), build.pending(2), build.pending(3)]
    snap = cluster(jobs, None, [1], left_s=np.array([1000.0, 3000.0, math.inf]))

    assert GavelMakespan().order(snap).share == pytest.approx(np.array([[1], [3], [3]]) / 7)
    unknown = dataclasses.replace(snap, left_s=np.full(3, math.inf))
    assert GavelMakespan().order(unknown).share == pytest.approx(np.full((3, 1), 1 / 3))


def test_fifo_gives_each_in_turn_its_fastest_type_with_room_and_nobody_passes() -> None:
    """Job 3 finds its second choice, job 4 no room at all, so 5 has to wait though it would fit."""
    rates = np.array([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [2.0, 1.0]])
    jobs = [build.pending(i, g) for i, g in ((1, 2), (2, 2), (3, 3), (4, 4), (5, 1))]
    snap = cluster(jobs, rates, [4, 4])

    share = GavelFifo().order(snap).share

    assert share.tolist() == [[1, 0], [1, 0], [0, 1], [0, 0], [0, 0]]


def test_fifo_goes_by_the_first_submission() -> None:
    """A requeue overwrites Slurm's time, but not the ledger's; equal times go by job id."""
    jobs = [build.pending(3), build.pending(2), build.pending(1)]
    first = {3: 1.0, 2: 5.0, 1: 5.0}
    snap = cluster(jobs, None, [2], memory={"first_submit_s": first})

    share = GavelFifo().order(snap).share

    assert share[:, 0].tolist() == [1, 0, 1]


def test_the_job_that_would_be_over_first_is_served_first() -> None:
    """Length over best speed; unknown lengths last; who does not fit is passed."""
    rates = np.array([[1.0, 1.0], [8.0, 1.0], [1.0, 1.0], [1.0, 4.0], [1.0, 1.0]])
    gpus = (1, 1, 1, 2, 1)
    jobs = [build.pending(i + 1, g) for i, g in enumerate(gpus)]
    left = np.array([900.0, 4000.0, math.inf, 2000.0, 700.0])
    snap = cluster(jobs, rates, [2, 1], left_s=left)

    share = GavelSjf().order(snap).share

    # 500 s: job 2 on a; 700 s: job 5 on a; 900 s: job 1 on b; 2000 s: job 4 has no room.
    assert share.tolist() == [[0, 1], [1, 0], [0, 0], [0, 0], [1, 0]]


def test_the_two_plain_splits() -> None:
    """Four and two GPUs for jobs of one, two and two; then a job alone."""
    jobs = [build.pending(1, 1), build.pending(2, 2), build.pending(3, 2)]
    snap = cluster(jobs, None, [4, 2])
    alone = cluster(jobs[:1], None, [4, 2])

    isolated = GavelIsolated().order(snap).share
    proportional = GavelProportional().order(snap).share

    assert isolated == pytest.approx(np.array([[2 / 3, 1 / 3], [2 / 3, 1 / 3], [2 / 3, 1 / 3]]))
    assert proportional == pytest.approx(np.array([[2 / 3, 1 / 3]] * 3))
    tight = cluster([build.pending(i, 4) for i in (1, 2, 3)], None, [4, 4])
    assert GavelIsolated().order(tight).share == pytest.approx(np.full((3, 2), 1 / 3))
    assert GavelProportional().order(tight).share == pytest.approx(np.full((3, 2), 1 / 3))
    uneven = cluster([build.pending(1, 1), build.pending(2, 4)], None, [4])
    assert GavelIsolated().order(uneven).share == pytest.approx(np.array([[1.0], [0.5]]))
    assert GavelProportional().order(uneven).share == pytest.approx(np.full((2, 1), 0.8))
    for policy in (GavelIsolated(), GavelProportional()):
        assert policy.order(alone).share == pytest.approx(np.array([[2 / 3, 1 / 3]]))


@EVERY_POLICY
def test_beyond_the_window_nobody_has_a_share(policy: Sharing) -> None:
    """Running jobs are always in it; of the waiting ones those submitted first."""
    jobs = [build.pending(i) for i in (1, 2, 3)] + [build.running(4), build.running(5)]
    snap = cluster(jobs, None, [8], accounts=("x",))

    share = dataclasses.replace(policy, window=2).order(snap).share

    assert (share[:, 0] > 0).tolist() == [True, True, False, True, True]


@EVERY_POLICY
def test_a_job_that_fits_on_no_type_hinders_nobody(policy: Sharing) -> None:
    """Twelve GPUs where types have eight: as if it were not there."""
    jobs = [build.pending(1, 12), build.pending(2, 2), build.pending(3, 2)]
    rates = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 3.0]])
    snap = cluster(jobs, rates, [8, 8], accounts=("x",))
    without = cluster(jobs[1:], rates[1:], [8, 8], accounts=("x",))

    share = policy.order(snap).share

    assert not share[0].any()
    assert (share[1:] == policy.order(without).share).all()


@EVERY_POLICY
def test_it_is_registered_says_what_it_is_and_gives_leases(policy: Sharing) -> None:
    """What people and the engine ask of a policy."""
    assert POLICIES[policy.name] is type(policy)
    assert isinstance(policy, Leasing)
    assert policy.lease_s == 1200.0
    assert (policy.tiers, policy.preempts, policy.skips) == (1, "rank", True)
    assert policy.about.row == "A6"
    assert policy.about.level == "W3"
    assert "Gavel" in policy.source


def test_parts_and_lack_of_time_are_said() -> None:
    """What a policy found, and how, can be asked for."""
    snap = drawn(3, k=12)
    for policy, how in (
        (GavelMaxMin(), "solved"),
        (GavelMaxMin(split_above=4), "parts"),
        (GavelMaxMin(limit_s=1e-7), "proportional"),
    ):
        found = policy.solved(snap)
        assert found.how == how
        assert (found.share == policy.order(snap).share).all()
    assert isinstance(found, linear_programs.Solved)
