"""Least attained service: the continuous order and its turns, and one case of the queues."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import build
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.engine.intent import intend
from slurm_dl.model.jobs import JobState
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.las import Las

DIMENSIONS = pytest.mark.parametrize("dimensions", [1, 2])


@DIMENSIONS
@given(
    jobs=st.lists(
        st.tuples(st.sampled_from([0.0, 5.0, 10.0, 20.0]), st.sampled_from([1, 2, 4])), min_size=1
    )
)
def test_least_service_first_then_the_earlier_submission(
    dimensions: Literal[1, 2], jobs: list[tuple[float, int]]
) -> None:
    """Service is seconds, or GPUs x seconds; running or waiting makes no difference."""
    rows = [build.running(i + 1, g) if i % 2 else build.pending(i + 1, g)
            for i, (_, g) in enumerate(jobs)]  # fmt: skip
    ran = {i + 1: s for i, (s, _) in enumerate(jobs)}
    attained = {i + 1: s * g for i, (s, g) in enumerate(jobs)}
    snap = build.snapshot(build.observed(rows), memory={"ran_s": ran, "attained_gpu_s": attained})
    service = ran if dimensions == 1 else attained

    ranked = intend(snap, Las(dimensions=dimensions)).ranked
    expected = sorted(service, key=lambda j: (service[j], j))
    assert snap.jobs.job_id[ranked].tolist() == expected


def turn(
    running: list[tuple[int, float]], waiting: list[tuple[int, float]], **parameters: float
) -> float:
    """Seconds from now to the next change; jobs are (GPUs, seconds run)."""
    jobs = [*running, *waiting]
    rows = [
        build.running(i + 1, g) if i < len(running) else build.pending(i + 1, g)
        for i, (g, _) in enumerate(jobs)
    ]
    memory = {
        "ran_s": {i + 1: s for i, (_, s) in enumerate(jobs)},
        "attained_gpu_s": {i + 1: g * s for i, (g, s) in enumerate(jobs)},
    }
    snap = build.snapshot(build.observed(rows), memory=memory)
    policy = Las(**parameters)  # type: ignore[arg-type]
    holds = np.arange(len(jobs)) < len(running)
    return policy.next_change_s(snap, policy.order(snap), holds) - build.NOW_S


def test_a_turn_ends_where_a_running_job_passes_a_waiting_one() -> None:
    """2 GPUs at 200 GPU-s reach the 800 GPU-s of the job that waits in 300 s."""
    assert turn([(2, 100.0)], [(8, 100.0)], quantum_s=60) == 300
    assert turn([(2, 100.0)], [(8, 100.0)], quantum_s=360) == 360
    # In seconds both have run equally long, so they take turns of a quantum.
    assert turn([(2, 100.0)], [(8, 100.0)], quantum_s=60, dimensions=1) == 60
    assert turn([(2, 100.0)], [(8, 170.0)], quantum_s=60, dimensions=1) == 70


def test_the_first_of_several_passes_counts() -> None:
    """Each running job looks at the next waiting job ahead of it only."""
    running = [(1, 0.0), (4, 50.0)]
    waiting = [(1, 500.0), (1, 100.0), (1, 260.0), (16, 1000.0)]

    # The first is 100 GPU-s behind at 1 GPU-s a second, the second 60 GPU-s at 4.
    assert turn(running, waiting, quantum_s=1) == 15
    assert turn(running[:1], waiting, quantum_s=1) == 100


def test_nothing_changes_where_nobody_waits_or_all_who_wait_are_behind() -> None:
    """Who has had more than all who wait does not pass anybody."""
    assert turn([(1, 10.0), (2, 20.0)], []) == math.inf
    assert turn([], [(1, 10.0)]) == math.inf
    assert turn([(1, 500.0)], [(1, 10.0)]) == math.inf


def test_jobs_that_are_done_are_not_passed() -> None:
    """A finished job is still listed and does not wait."""
    rows = [build.running(1), dataclasses.replace(build.running(2), state=JobState.COMPLETED)]
    snap = build.snapshot(build.observed(rows), memory={"attained_gpu_s": {2: 900.0}})
    policy = Las()

    found = policy.next_change_s(snap, policy.order(snap), np.array([True, False]))
    assert found == math.inf


def test_a_job_that_is_promoted_and_starts_has_its_whole_first_queue_ahead() -> None:
    """What it had is forgiven with this decision: 3,250 GPU-s at 2 GPUs from now."""
    policy = DiscreteLas(promote_knob=2.0)
    snap = build.snapshot(
        build.observed([build.pending(1, 2)]),
        memory={
            "attained_gpu_s": {1: 9000.0},
            "ran_s": {1: 4500.0},
            "waiting_since_s": {1: build.NOW_S - 9000},
        },
    )
    order = policy.order(snap)

    assert order.promote.tolist() == [True]
    assert policy.next_change_s(snap, order, np.array([True])) == build.NOW_S + 1625
