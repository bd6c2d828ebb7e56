"""Shortest job first by what recurrent jobs took."""

from __future__ import annotations

import math

import build
import numpy as np
from pasts import Over, past_of

from slurm_dl.engine.intent import intend
from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.jobs import JobRow
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.tagged import Tagged

OVER = [
    Over("ann", "a", 1, 10.0),
    Over("ann", "a", 1, 20.0),
    Over("ann", "a", 1, 600.0),
    Over("ann", "a", 2, 70.0),
    Over("bob", "a", 1, 300.0),
]
WHOSE = {1: ("ann", "a"), 2: ("ann", "a"), 3: ("ann", "new"), 4: ("bob", "x"), 5: ("eve", "a")}


def snap_of(rows: list[JobRow], past: Past) -> Snapshot:
    """*rows* with the users and names of `WHOSE`."""
    seen = build.observed(rows, texts=build.texts_of_users(WHOSE))
    return build.snapshot(seen, past=past)


ROWS = [build.pending(i, gpus) for i, gpus in ((1, 1), (2, 2), (3, 1), (4, 1), (5, 1))]


def test_the_median_of_the_tag_decides_and_then_the_user_and_everybody() -> None:
    """GPUs are part of the tag and do not weigh."""
    snap = snap_of(ROWS, past_of(OVER))

    assert Tagged().order(snap).key.tolist() == [20.0, 70.0, 175.0, 300.0, 200.0]
    assert snap.jobs.job_id[intend(snap, Tagged()).ranked].tolist() == [1, 2, 3, 5, 4]
    assert Tagged(average="mean").order(snap).key.tolist() == [210.0, 70.0, 175.0, 300.0, 200.0]


def test_without_a_past_the_time_limit_decides() -> None:
    """Last without one."""
    rows = [build.pending(1), build.pending(2, limit_s=900), build.pending(3, limit_s=300)]

    assert Tagged().order(snap_of(rows, NO_PAST)).key.tolist() == [math.inf, 900.0, 300.0]


def test_who_runs_is_left_running() -> None:
    """A shorter job waits for GPUs that are free."""
    rows = [build.running(4, 16), build.pending(1, 1)]
    snap = snap_of(rows, past_of(OVER))

    assert Tagged.preempts == "never"
    assert snap.jobs.job_id[intend(snap, Tagged()).target].tolist() == [4]
    order = Tagged().order(snap)
    assert Tagged().next_change_s(snap, order, np.array([True, False])) == math.inf
