"""Shortest job first by what recurrent jobs took."""

from __future__ import annotations

import dataclasses
import math

import build
import numpy as np
import pytest
from pasts import Over, past_of

from slurm_dl.engine.intent import intend
from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.contract import Claim
from slurm_dl.model.ids import JobId
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


ONE, OTHER = "0123456789ab", "ba9876543210"  # Tags
OF_SCRIPTS = [
    *(Over("ann", "train", 1, ran_s, tag=tag) for ran_s, tag in ((10.0, ONE), (900.0, OTHER))),
    Over("ann", "train", 4, 50.0, tag=ONE),
    Over("bob", "train", 1, 70.0, tag=OTHER),
    Over("ann", "train", 1, 200.0),
]


@pytest.mark.parametrize(
    ("tags", "keys"),
    [
        # Of the same user, with as many GPUs; all three of the name where there is no such tag.
        (("", ""), [200.0, 70.0]),
        ((ONE, ""), [10.0, 70.0]),
        ((OTHER, ONE), [900.0, 70.0]),
        # Whatever a job says, only its own place changes.
        ((OTHER, OTHER), [900.0, 70.0]),
        (("f" * 12, OTHER), [200.0, 70.0]),
    ],
)
def test_the_tag_tells_scripts_of_one_name_apart(tags: tuple[str, str], keys: list[float]) -> None:
    """A tag of the past that the job does not have says nothing of it, and that of another user."""
    texts = build.texts_of_users({1: ("ann", "train"), 2: ("bob", "train")})
    claims = {JobId(i + 1): Claim(tag=tag) for i, tag in enumerate(tags)}
    seen = build.observed([build.pending(1, 1), build.pending(2, 1)], texts=texts)
    snap = build.snapshot(dataclasses.replace(seen, claims=claims), past=past_of(OF_SCRIPTS))

    assert Tagged().order(snap).key.tolist() == keys


def test_without_a_past_the_time_limit_decides_and_who_runs_is_left_running() -> None:
    """Last without a limit; a shorter job waits for GPUs that are free."""
    rows = [build.pending(1), build.pending(2, limit_s=900), build.pending(3, limit_s=300)]
    assert Tagged().order(snap_of(rows, NO_PAST)).key.tolist() == [math.inf, 900.0, 300.0]

    snap = snap_of([build.running(4, 16), build.pending(1, 1)], past_of(OVER))
    assert Tagged.preempts == "never"
    assert snap.jobs.job_id[intend(snap, Tagged()).target].tolist() == [4]
    order = Tagged().order(snap)
    assert Tagged().next_change_s(snap, order, np.array([True, False])) == math.inf
