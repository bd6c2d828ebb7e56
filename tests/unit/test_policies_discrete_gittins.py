"""Discretised Gittins: the index by integrating its definition, and queues as in discrete_las."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import build
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pasts import past_columns

from slurm_dl.engine.intent import intend
from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.discrete_gittins import DiscreteGittins
from slurm_dl.policies.discrete_las import DiscreteLas

STEP = 1 / 8


def cost_by_integration(sizes: list[float], age: float, stretch: float) -> float:
    """E[min(S - a, D) | S > a] / P(S - a <= D | S > a), from the survival function of S alone.

    E[min(X, D)] is the integral of P(X > x) from 0 to D; midpoints of steps so short that the
    function is constant on them.
    """
    older = sum(s > age for s in sizes)
    if not older:
        return math.inf
    upto = min(stretch, max(sizes) - age)

    def survives(x: float) -> float:
        return sum(s > age + x for s in sizes) / older

    expected = sum(survives((i + 0.5) * STEP) * STEP for i in range(round(upto / STEP)))
    chance = 1 - survives(upto)
    return expected / chance if chance else math.inf


def of_ages(ages: list[float], **columns: dict[int, float]) -> Snapshot:
    """Waiting jobs of one GPU that have had so much service."""
    rows = [build.pending(i) for i in range(1, len(ages) + 1)]
    service = dict(enumerate(ages, start=1))
    memory = {"attained_gpu_s": service, "ran_s": service, **columns}
    return build.snapshot(build.observed(rows), memory=memory)


def past(ran_s: list[float], gpus: float = 1.0) -> Past:
    """Jobs that are over."""
    return past_columns(ran_s, gpus=gpus)


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60).map(lambda k: k / 4), min_size=1, max_size=10),
    ages=st.lists(st.integers(0, 70).map(lambda k: k / 4), min_size=1, max_size=6),
    edges=st.lists(st.integers(1, 64).map(lambda k: k / 4), min_size=1, max_size=4, unique=True),
)
def test_the_index_equals_integrating_its_definition(
    sizes: list[float], ages: list[float], edges: list[float]
) -> None:
    """D is what is left of the queue; in the last one it has no end."""
    edges = sorted(edges)
    policy = DiscreteGittins(thresholds_gpu_s=tuple(edges), sizes_gpu_s=tuple(sizes))
    order = policy.order(of_ages(ages))

    ends = [min((q for q in edges if q > age), default=math.inf) for age in ages]
    expected = [
        cost_by_integration(sizes, age, end - age) for age, end in zip(ages, ends, strict=True)
    ]
    assert order.key.tolist() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("dimensions", [1, 2])
def test_service_is_seconds_or_gpu_seconds(dimensions: Literal[1, 2]) -> None:
    """Four GPUs for 2 s, sizes 5 and 20, queues end at 10: at 2 one of two ends, at 8 none does."""
    snap = build.snapshot(
        build.observed([build.running(1, 4)]),
        memory={"attained_gpu_s": {1: 8.0}, "ran_s": {1: 2.0}},
    )
    policy = DiscreteGittins(
        thresholds_gpu_s=(10.0,), sizes_gpu_s=(5.0, 20.0), dimensions=dimensions
    )

    # 3 for the one that ends, 8 for the other.
    assert float(policy.order(snap).key[0]) == {1: 11.0, 2: math.inf}[dimensions]


def test_inside_a_queue_the_larger_index_goes_first_and_who_runs_stays() -> None:
    """Most jobs end at 10: who has had 5 is nearer to it. A worse one that runs is not stopped."""
    policy = DiscreteGittins(thresholds_gpu_s=(50.0,), sizes_gpu_s=(10.0, 10.0, 10.0, 100.0))
    snap = of_ages([0.0, 5.0, 60.0])
    assert intend(snap, policy).ranked.tolist() == [1, 0, 2]

    rows = [build.running(1, 16), build.pending(2, 16)]
    snap = build.snapshot(build.observed(rows), memory={"attained_gpu_s": {2: 5.0}})
    assert policy.order(snap).key.tolist() == [pytest.approx(80 / 3), pytest.approx(60 / 3)]
    assert intend(snap, policy).target.tolist() == [0]


def test_a_promoted_job_counts_from_then_on() -> None:
    """Its service is forgiven in the index as in the queue: it stands with those that are new."""
    policy = DiscreteGittins(
        thresholds_gpu_s=(4.0, 8.0), promote_knob=2.0, sizes_gpu_s=(3.0, 6.0, 9.0)
    )
    ages = [0.0, 5.0, 5.0, 5.0]
    since = {2: build.NOW_S - 10, 3: build.NOW_S - 9, 4: build.NOW_S}
    forgiven = {4: 4.0}
    snap = of_ages(ages, waiting_since_s=since, forgiven_gpu_s=forgiven, forgiven_ran_s=forgiven)
    order = policy.order(snap)

    assert order.promote.tolist() == [False, True, False, False]
    assert order.tier.tolist() == [0, 0, 1, 0]
    new, old = cost_by_integration([3, 6, 9], 0, 4), cost_by_integration([3, 6, 9], 5, 3)
    assert order.key.tolist() == pytest.approx([new, new, old, 8 / 1])


@given(
    ages=st.lists(st.floats(0, 30000), min_size=1, max_size=10),
    known=st.integers(0, 29),
    knob=st.sampled_from([0.0, 0.5]),
)
def test_without_sizes_it_is_discrete_las(ages: list[float], known: int, knob: float) -> None:
    """With none given and fewer than 30 finished jobs; and it changes when that one changes."""
    snap = dataclasses.replace(of_ages(ages), past=past([100.0] * known))
    las, mine = DiscreteLas(promote_knob=knob), DiscreteGittins(promote_knob=knob)
    one, other = las.order(snap), mine.order(snap)

    assert one.tier.tolist() == other.tier.tolist()
    assert one.key.tolist() == other.key.tolist()
    assert one.promote.tolist() == other.promote.tolist()
    runs = np.arange(len(ages)) % 2 == 0
    assert las.next_change_s(snap, one, runs) == mine.next_change_s(snap, other, runs)


@pytest.mark.parametrize("dimensions", [1, 2])
def test_thirty_finished_jobs_are_a_distribution(dimensions: Literal[1, 2]) -> None:
    """The same as if their sizes were given."""
    ran_s = [float(s) for s in range(10, 40)]
    snap = dataclasses.replace(of_ages([0.0, 15.0, 30.0, 200.0]), past=past(ran_s, gpus=4.0))
    learned = DiscreteGittins(thresholds_gpu_s=(12.0, 25.0), dimensions=dimensions)
    sizes = ran_s if dimensions == 1 else [4 * s for s in ran_s]
    given_them = dataclasses.replace(learned, sizes_gpu_s=tuple(sizes))

    assert learned.order(snap).key.tolist() == given_them.order(snap).key.tolist()
    assert learned.order(snap).key.tolist() != snap.memory.first_submit_s.tolist()
