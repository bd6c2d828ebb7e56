"""How long jobs are still to run: the ladder, rung by rung."""

from __future__ import annotations

import dataclasses
import math

import build
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.estimates.remaining_time import LEAST_PROGRESS, LEAST_RUN_S, left_of
from slurm_dl.model.jobs import JobRow, Origin
from slurm_dl.model.snapshot import Snapshot

NAN, INF = math.nan, math.inf


def snap_of(ran_s: list[float], limit_s: list[float], **more: object) -> Snapshot:
    """Jobs that ran for so long under these limits."""
    rows = [build.pending(i + 1, limit_s=limit) for i, limit in enumerate(limit_s)]
    snap = build.snapshot(
        build.observed(rows), memory={"ran_s": {i + 1: ran for i, ran in enumerate(ran_s)}}
    )
    return dataclasses.replace(snap, **more)  # type: ignore[arg-type] # names are fields


def test_each_rung_is_taken_where_those_above_say_nothing() -> None:
    """Known, reported, history, time limit, nothing."""
    snap = snap_of(
        [1000.0] * 5,
        [9000.0, 9000.0, 9000.0, 9000.0, INF],
        progress=np.array([0.5, 0.25, NAN, NAN, NAN]),
        left_from=np.array([Origin.KNOWN, 5, 5, 5, 5], dtype=np.int8),
        left_s=np.array([7.0, 0, 0, 0, 0]),
    )
    left = left_of(snap, np.array([4000.0, 4000.0, 4000.0, NAN, NAN]))

    assert left.seconds.tolist() == [7.0, 3000.0, 3000.0, 8000.0, INF]
    assert left.origin.tolist() == [
        Origin.KNOWN,
        Origin.REPORTED,
        Origin.HISTORY,
        Origin.DECLARED,
        Origin.PRIOR,
    ]


@pytest.mark.parametrize(
    ("row", "ran_s", "preemptions", "expected_s", "left_s", "origin"),
    [
        # Preempted by us: the limit less all that it ran, as long as that is something.
        (build.pending(1, restarts=1, limit_s=3600), 3000, 1, NAN, 600, Origin.DECLARED),
        (build.pending(1, restarts=1, limit_s=3600), 3600, 1, NAN, 3600, Origin.DECLARED),
        (build.running(1, restarts=1, limit_s=3600, ran_s=9), 3700, 1, NAN, 3591, Origin.DECLARED),
        # It never was, and Slurm ends it now.
        (build.running(1, limit_s=3600, ran_s=3601), 3601, 0, NAN, 0, Origin.DECLARED),
        # It has begun anew by itself.
        (build.pending(1, restarts=1, limit_s=3600), 3000, 0, NAN, INF, Origin.PRIOR),
        (build.pending(1, restarts=2, limit_s=3600), 3000, 1, NAN, INF, Origin.PRIOR),
        (build.pending(1, restarts=1, limit_s=3600), 3000, 0, 9000, 6000, Origin.HISTORY),
        (build.pending(1, restarts=1, limit_s=3600), 3000, 0, 2000, INF, Origin.PRIOR),
    ],
)
def test_a_time_limit_counts_until_a_job_begins_anew_by_itself(  # noqa: PLR0917
    row: JobRow, ran_s: float, preemptions: int, expected_s: float, left_s: float, origin: Origin
) -> None:
    """It is the limit of one run, and nothing is never left of a job that waits."""
    memory = {"ran_s": {1: ran_s}, "preemptions": {1: preemptions}}
    snap = build.snapshot(build.observed([row]), memory=memory)
    left = left_of(snap, np.array([float(expected_s)]))

    assert (left.seconds.tolist(), left.origin.tolist()) == ([left_s], [origin])


@pytest.mark.parametrize(
    ("progress", "ran_s", "left_s", "origin"),
    [
        (LEAST_PROGRESS, 1000.0, 1000.0 * (1 - LEAST_PROGRESS) / LEAST_PROGRESS, Origin.REPORTED),
        (LEAST_PROGRESS * 0.99, 1000.0, 9000.0, Origin.DECLARED),
        (0.5, LEAST_RUN_S, LEAST_RUN_S, Origin.REPORTED),
        (0.5, LEAST_RUN_S - 1, 10_000.0 - LEAST_RUN_S + 1, Origin.DECLARED),
        (1.0, 1000.0, 0.0, Origin.REPORTED),
        (7.0, 1000.0, 0.0, Origin.REPORTED),
        (-3.0, 1000.0, 9000.0, Origin.DECLARED),
        (INF, 1000.0, 0.0, Origin.REPORTED),
        (0.0, 1000.0, 9000.0, Origin.DECLARED),
    ],
)
def test_reports_count_once_they_can_tell(
    progress: float, ran_s: float, left_s: float, origin: Origin
) -> None:
    """Not before so much is done in so long a time; beyond all of the work nothing is left."""
    left = left_of(snap_of([ran_s], [10_000.0], progress=np.array([progress])))

    assert left.seconds[0] == pytest.approx(left_s)
    assert left.origin[0] == origin


@pytest.mark.parametrize(
    ("expected_s", "limit_s", "left_s", "origin"),
    [
        (1500.0, INF, 500.0, Origin.HISTORY),
        (1000.0, 9000.0, 8000.0, Origin.DECLARED),
        (900.0, INF, INF, Origin.PRIOR),
        (5000.0, 2000.0, 1000.0, Origin.DECLARED),
        (INF, INF, INF, Origin.PRIOR),
        (INF, 2000.0, 1000.0, Origin.DECLARED),
        (1500.0, 500.0, 0.0, Origin.DECLARED),
    ],
)
def test_history_counts_until_a_job_outlives_it(
    expected_s: float, limit_s: float, left_s: float, origin: Origin
) -> None:
    """And never beyond the time limit, at which Slurm ends the job."""
    left = left_of(snap_of([1000.0], [limit_s]), np.array([expected_s]))

    assert left.seconds.tolist() == [left_s]
    assert left.origin.tolist() == [origin]


ANY = st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.lists(
        st.tuples(st.floats(0, 1e7), st.one_of(st.just(INF), st.floats(0, 1e7)), ANY, ANY),
        max_size=8,
    )
)
def test_whatever_is_said_what_is_left_is_no_less_than_nothing(
    jobs: list[tuple[float, float, float, float]],
) -> None:
    """Nor is it NaN; each job's answer depends on the job alone."""
    ran_s, limit_s, progress, expected_s = (
        np.array([job[i] for job in jobs], dtype=np.float64) for i in range(4)
    )
    snap = snap_of(ran_s.tolist(), limit_s.tolist(), progress=progress)
    left = left_of(snap, expected_s)

    assert (left.seconds >= 0).all()
    for i in range(len(jobs)):
        one = snap_of([ran_s[i]], [limit_s[i]], progress=progress[i : i + 1])
        alone = left_of(one, expected_s[i : i + 1])
        assert alone.seconds[0] == left.seconds[i]
        assert alone.origin[0] == left.origin[i]
