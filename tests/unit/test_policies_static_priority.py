"""Static priority: the site's number for a QOS, then the order of submission."""

from __future__ import annotations

import math

import build
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.engine.intent import intend
from slurm_dl.model.jobs import JobRow
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.fifo import StaticPriority

PRIORITIES = (("batch", -5.0), ("best", 20.0), ("gold", 20.0), ("normal", 10.0))


def with_qos(rows: list[JobRow], qos: dict[int, str]) -> Snapshot:
    """Jobs of these QOS, by id; the others tell nothing at all."""
    return build.snapshot(build.observed(rows, texts=build.texts(qos=qos)))


@given(
    jobs=st.lists(
        st.tuples(
            st.sampled_from(["batch", "best", "gold", "normal", "other", "", None]),
            st.booleans(),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=10,
    ),
    default=st.sampled_from([0.0, 10.0, 99.0]),
)
def test_the_order_is_by_priority_then_submission(
    jobs: list[tuple[str | None, bool, int]], default: float
) -> None:
    """Larger first; equal numbers are one; unlisted and unknown QOS have the default.

    Running jobs come before all that wait.
    """
    rows = [
        (build.running if runs else build.pending)(i, submit_s=build.NOW_S - 100 + submit)
        for i, (_, runs, submit) in enumerate(jobs, start=1)
    ]
    qos = {i: name for i, (name, _, _) in enumerate(jobs, start=1) if name is not None}
    snap = with_qos(rows, qos)
    policy = StaticPriority(priority_by_qos=PRIORITIES, default_priority=default)

    number = dict(PRIORITIES)
    expected = sorted(
        range(1, len(jobs) + 1),
        key=lambda i: (
            not jobs[i - 1][1],
            -number.get(jobs[i - 1][0] or "", default),
            jobs[i - 1][2],
            i,
        ),
    )
    assert snap.jobs.job_id[intend(snap, policy).ranked].tolist() == expected
    assert policy.order(snap).tiers == policy.tiers
    assert policy.next_change_s(snap, policy.order(snap), np.zeros(len(jobs), bool)) == math.inf


def test_nobody_is_stopped_for_a_higher_priority() -> None:
    """The job of the lowest priority keeps its GPUs; among those that wait the highest is next."""
    rows = [build.running(1, 12), build.pending(2, 4), build.pending(3, 4)]
    snap = with_qos(rows, {1: "batch", 2: "normal", 3: "gold"})

    target = intend(snap, StaticPriority(priority_by_qos=PRIORITIES)).target
    assert snap.jobs.job_id[target].tolist() == [1, 3]
