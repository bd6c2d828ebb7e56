"""Throttles of arrays: the rule that writes them, and what Grouper wants."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import build
import numpy as np
import pytest
from fake_cluster import FakeCluster

from slurm_dl.engine.array_throttles import throttling
from slurm_dl.model.booking import Entry, updated
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, JobState
from slurm_dl.model.plan import Throttle
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.model.throttle import FREE, NO_THROTTLE, throttles_in
from slurm_dl.policies.grouper import Grouper
from slurm_dl.slurm.read.array_throttles import ArrayThrottles
from slurm_dl.slurm.tool_runner import Slurm

ARRAY, UNTOLD = JobId(10), -1


def snapshot_of(present: int | None, booked: tuple[Entry, ...] = ()) -> Snapshot:
    """One pending array with this throttle; None: it is gone, `UNTOLD`: Slurm does not tell."""
    rows = [] if present is None else [build.pending(ARRAY, tasks=6)]
    throttles = {} if present in (None, UNTOLD) else {ARRAY: present}
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
        told = throttling(
            snapshot_of(present, booked), np.array([most], dtype=np.int32), "rule", {}
        )
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


@pytest.mark.parametrize(
    ("seen", "ours", "writes", "own"),
    [
        ([2], FREE, [5], 5),
        ([4], FREE, [], None),  # A value that is not ours is the owner's
        ([1], 2, [], None),
        ([None], FREE, [], None),  # The array is gone
        ([UNTOLD], FREE, [], 5),  # Not all arrays are asked for at one look
        # Once 3 stands in Slurm, 2 is what the owner has written since.
        ([2, 3], 3, [], 5),
        ([2, 3, 2], 3, [], None),
    ],
)
def test_the_owners_last_word_counts(
    seen: list[int | None], ours: int, writes: list[int], own: int | None
) -> None:
    """The array had 5 and ours was 2: what is written at the last look, and the owner's then."""
    two = throttling(snapshot_of(5), np.array([2], dtype=np.int32), "rule", {})
    booked = updated((), two.books[0].entries)
    for present in seen:
        told = throttling(snapshot_of(present, booked), np.array([ours], np.int32), "rule", {})
        booked = updated(booked, [e for book in told.books for e in book.entries])
    assert [w.tasks for w in told.writes] == writes
    assert [t.own for t in throttles_in(booked).values()] == ([] if own is None else [own])


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
    booked = throttling(snapshot_of(0), np.array([1], dtype=np.int32), "x", {}).books[0].entries
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
    # Its owner has taken its GPUs out of the request since.
    rows[0] = build.pending(ARRAY, tasks=8, gpus=0.0, held=Held.LIMIT)
    none = build.observed(rows, texts=texts, nodes=(4, 4), throttles=seen.throttles, begins=begins)
    without = dataclasses.replace(build.snapshot(none), booked=booked, left_s=left)
    bounds = Grouper().order(without).running
    assert bounds is None or bounds.tolist() == [FREE, FREE]
    assert math.isinf(Grouper().next_change_s(snap, Grouper().order(snap), seen.jobs.gpus < 0))


class Arrays(Slurm):
    """Each array has its job id as its throttle; of those above *most* nothing can be read."""

    def __init__(self) -> None:
        self.most = 100

    def run(self, _: str, *args: str) -> str:
        """Slurm's answer."""
        job = int(args[-1].partition("_")[0])
        if job > self.most:
            msg = "Invalid job id specified"
            raise ClusterError(msg)
        return f"JobId={job} ArrayJobId={job} ArrayTaskId=0-8 ArrayTaskThrottle={job} JobName=x"


def test_every_array_is_asked_for_in_its_turn() -> None:
    """Many arrays, and what is known of them is to be asked again before all have been.

    What is known stays while Slurm is silent, except of an array that has been written to.
    """
    ids = [*range(1, 71), *range(101, 106)]
    texts = {JobId(j): JobText(label=f"{j}_[0-8]") for j in ids}
    table = SimpleNamespace(job_id=ids, state=[JobState.PENDING] * len(ids), texts=texts)
    slurm = Arrays()
    throttles = ArrayThrottles(slurm)
    for _ in range(6):
        throttles.forget()
        found = throttles.of(table)  # type: ignore[arg-type]
    assert found == {JobId(j): j for j in range(1, 71)}
    slurm.most = 0
    throttles.forget()
    assert throttles.of(table) == found  # type: ignore[arg-type]
    throttles.ask_again(JobId(70))
    assert throttles.of(table) == {j: n for j, n in found.items() if j < 70}  # type: ignore[arg-type]


def test_the_fake_cluster_has_throttles() -> None:
    """As Slurm: the value written last is shown."""
    cluster = FakeCluster(nodes=1, gpus=4)
    job = cluster.submit(1, work_s=10.0)
    cluster.apply(Throttle(job_id=job, tasks=2, why="test"))
    assert cluster.observe().throttles == {job: 2}
