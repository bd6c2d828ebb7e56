"""Throttles of arrays: the rule that writes them, and what Grouper wants."""

from __future__ import annotations

import dataclasses
import math

import build
import numpy as np
import pytest
from fake_cluster import FakeCluster

from slurm_dl.engine.array_throttles import throttling
from slurm_dl.model.booking import Entry, updated
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held
from slurm_dl.model.plan import Throttle
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.model.throttle import FREE, NO_THROTTLE
from slurm_dl.policies.grouper import Grouper

ARRAY = JobId(10)


def snapshot_of(present: int | None, booked: tuple[Entry, ...] = ()) -> Snapshot:
    """One pending array with this throttle; None: it is gone."""
    rows = [] if present is None else [build.pending(ARRAY, tasks=6)]
    throttles = {} if present is None else {ARRAY: present}
    seen = build.observed(rows, throttles=throttles)
    return dataclasses.replace(build.snapshot(seen), booked=booked)


@pytest.mark.parametrize("own", [NO_THROTTLE, 1, 3])
@pytest.mark.parametrize("wants", [(1, 2, 1), (2, 4, FREE), (1, FREE, 2)])
@pytest.mark.parametrize("fails", [(), (1,), (0, 1)])
def test_ours_is_never_above_the_owners_and_the_owners_comes_back(
    own: int, wants: tuple[int, ...], fails: tuple[int, ...]
) -> None:
    """Whatever writes fail, and whatever was wanted before."""
    present, booked = own, tuple[Entry, ...]()

    def decide(most: int, *, fail: bool = False) -> None:
        nonlocal present, booked
        told = throttling(snapshot_of(present, booked), np.array([most], dtype=np.int32), "rule")
        for book in told.books:
            booked = updated(booked, book.entries)
        for write in told.writes:
            present = present if fail else write.tasks

    for turn, most in enumerate(wants):
        decide(most, fail=turn in fails)
        bound = [n for n in (own, most) if n > 0]
        if turn not in fails:
            assert present == min(bound, default=NO_THROTTLE)
    decide(FREE)
    decide(FREE)
    assert (present, booked) == (own, ())


def test_the_owners_last_word_counts() -> None:
    """A throttle that is not ours is the owner's, and an array that is gone is forgotten."""
    ours = np.array([2], dtype=np.int32)
    booked = updated((), throttling(snapshot_of(5), ours, "rule").books[0].entries)
    changed = throttling(snapshot_of(4, booked), None, "rule")
    assert changed.writes == ()
    lower = throttling(snapshot_of(1, booked), ours, "rule")
    assert lower.writes == ()
    back = throttling(snapshot_of(2, booked), None, "rule")
    assert [(w.job_id, w.tasks) for w in back.writes] == [(ARRAY, 5)]
    gone = throttling(snapshot_of(None, booked), None, "rule")
    assert updated(booked, gone.books[0].entries) == ()


def test_the_owners_is_kept_while_slurm_does_not_tell() -> None:
    """Not all arrays are asked for at one look, and an answer may be missing."""
    booked = updated((), throttling(snapshot_of(5), np.array([2], np.int32), "x").books[0].entries)
    seen = build.observed([build.pending(ARRAY, tasks=6)], throttles={})
    untold = throttling(dataclasses.replace(build.snapshot(seen), booked=booked), None, "x")
    assert untold.books == ()
    back = throttling(snapshot_of(2, booked), None, "x")
    assert [w.tasks for w in back.writes] == [5]


@pytest.mark.parametrize(
    ("small_gpus", "small_tasks", "held", "expected"),
    [
        (3, 1, Held.NO, 5),  # 8 GPUs less 3
        (3, 2, Held.NO, 2),
        (4, 3, Held.NO, 1),  # No GPUs are left: the least that Slurm can be told
        (9, 1, Held.NO, FREE),  # No node set has them
        (3, 1, Held.DEPENDENCY, FREE),  # A later stage
        (3, 1, Held.BEGIN_TIME, 5),  # It may start soon
    ],
)
def test_a_late_array_has_what_earlier_stages_leave(
    small_gpus: int, small_tasks: int, held: Held, expected: int
) -> None:
    """By GPUs counted; the first stage is free, and so is all if it is off."""
    small = JobId(20)
    rows = [
        build.pending(ARRAY, tasks=8, gpus=1.0, held=Held.LIMIT),
        build.pending(small, tasks=small_tasks, gpus=float(small_gpus), held=held),
    ]
    booked = throttling(snapshot_of(0), np.array([1], dtype=np.int32), "x").books[0].entries
    texts = {
        ARRAY: JobText(label="10_[0-7]", reason="JobArrayTaskLimit"),
        small: JobText(label="20_[0-7]"),
    }
    begins = {small: build.NOW_S + 5.0} if held is Held.BEGIN_TIME else {}
    seen = build.observed(
        rows, texts=texts, nodes=(4, 4), throttles={ARRAY: 1, small: 0}, begins=begins
    )
    left = np.array([36000.0, 60.0])
    snap = dataclasses.replace(build.snapshot(seen), booked=booked, left_s=left)
    running = Grouper().order(snap).running
    assert running is not None
    assert running.tolist() == [expected, FREE]
    assert Grouper(bounds_arrays=False).order(snap).running is None
    assert math.isinf(Grouper().next_change_s(snap, Grouper().order(snap), seen.jobs.gpus < 0))


def test_the_fake_cluster_has_throttles() -> None:
    """As Slurm: the value written last is shown."""
    cluster = FakeCluster(nodes=1, gpus=4)
    job = cluster.submit(1, work_s=10.0)
    cluster.apply(Throttle(job_id=job, tasks=2, why="test"))
    assert cluster.observe().throttles == {job: 2}
