"""Orders by what is left, or by size."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import build
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.engine.intent import intend
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.policies.shortest import FewestGpus, Srsf, Srtf

SIZE_OF: dict[str, Callable[[float, int], float]] = {
    "srtf": lambda left_s, _: left_s,
    "srsf": lambda left_s, gpus: left_s * gpus,
    "fewest_gpus": lambda _, gpus: gpus,
}
POLICIES: tuple[Policy, ...] = (Srtf(), Srsf(), FewestGpus())
EVERY_POLICY = pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)


def snapshot_of(
    rows: list[JobRow], left_s: list[float], places: dict[int, float] | None = None
) -> Snapshot:
    """Jobs with so many seconds left; *places* by id in the last order, the others are new."""
    known = places or {}
    tier = {r.job_id: 0.0 if r.job_id in known else -1.0 for r in rows}
    memory: dict[str, dict[int, float]] = {"place": known, "tier": tier}
    snap = build.snapshot(build.observed(rows), memory=memory)
    return dataclasses.replace(snap, left_s=np.array(left_s, dtype=np.float64))


@EVERY_POLICY
@given(
    jobs=st.lists(
        st.tuples(
            st.sampled_from([0.0, 1.0, 2.0, 6.0, math.inf]),
            st.sampled_from([1, 2, 3]),
            st.sampled_from([JobState.PENDING, JobState.RUNNING]),
        ),
        min_size=1,
        max_size=10,
    ),
    data=st.data(),
)
def test_the_order_is_that_of_a_stable_sort(
    policy: Policy, jobs: list[tuple[float, int, JobState]], data: st.DataObject
) -> None:
    """Smallest first; equals keep their last order, new ones behind by submission; no tiers.

    Running or waiting makes no difference.
    """
    n = len(jobs)
    size = [SIZE_OF[policy.name](left_s, gpus) for left_s, gpus, _ in jobs]
    rows = [
        dataclasses.replace(build.pending(i + 1, gpus), state=state)
        for i, (_, gpus, state) in enumerate(jobs)
    ]
    old = data.draw(st.permutations(range(1, n + 1)))[: data.draw(st.integers(0, n))]
    snap = snapshot_of(rows, [j[0] for j in jobs], {j: float(p) for p, j in enumerate(old)})

    last = [*old, *(j for j in range(1, n + 1) if j not in old)]
    expected = sorted(last, key=lambda j: size[j - 1])
    assert snap.jobs.job_id[intend(snap, policy).ranked].tolist() == expected


@EVERY_POLICY
def test_a_smaller_job_takes_the_gpus_of_a_larger_one(policy: Policy) -> None:
    """The waiting job is smaller by every measure."""
    rows = [build.running(1, 16), build.pending(2, 8)]
    snap = snapshot_of(rows, [100.0, 50.0], {1: 0.0})

    assert snap.jobs.job_id[intend(snap, policy).target].tolist() == [2]
    assert policy.next_change_s(snap, policy.order(snap), np.array([False, True])) == math.inf


def test_the_three_measures_differ() -> None:
    """Job 1 has the least time left, job 2 the fewest GPUs, job 3 the least service left."""
    rows = [build.pending(1, 8), build.pending(2, 1), build.pending(3, 2)]
    snap = snapshot_of(rows, [10.0, 70.0, 20.0])

    first = [int(snap.jobs.job_id[intend(snap, p).ranked[0]]) for p in POLICIES]
    assert first == [1, 3, 2]


def test_without_a_limit_nothing_is_known_and_the_first_submitted_goes_first() -> None:
    """Jobs without a time limit come last, in the order of their submission."""
    rows = [build.pending(3), build.pending(1), build.pending(2, limit_s=600)]
    snap = build.snapshot(build.observed(rows))

    assert snap.jobs.job_id[intend(snap, Srtf()).ranked].tolist() == [2, 1, 3]
