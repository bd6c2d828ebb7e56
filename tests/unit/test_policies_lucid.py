"""Lucid: predicted GPU-seconds, smallest first, and its own conditions on pairs."""

from __future__ import annotations

import dataclasses

import build
import numpy as np
import pytest
from pasts import Over, past_of

from slurm_dl.engine.intent import intend
from slurm_dl.model.jobs import Held, Origin
from slurm_dl.model.pair_rates import PairRule
from slurm_dl.policies.lucid import Lucid

OVER = [Over("ann", "a", 1, 1000.0), Over("ann", "b", 8, 3000.0), Over("bob", "c", 2, 500.0)]
WHOSE = {1: "ann", 2: "ann", 3: "bob", 4: "eve", 5: "ann"}


def test_five_jobs_by_hand() -> None:
    """An estimate; the user's mean of 2000 s, and of 500 s; the mean of all, 1500 s; a rest.

    Job 5 asks for half a GPU and ran 1900 of its user's 2000 s.
    """
    gpus = {1: 1, 2: 4, 3: 8, 4: 2, 5: 0.5}
    rows = [build.pending(job, n, limit_s=50_000.0) for job, n in gpus.items()]
    seen = build.observed(rows, texts=build.texts_of_users({j: (u, "x") for j, u in WHOSE.items()}))
    snap = build.snapshot(seen, past=past_of(OVER), memory={"ran_s": {5: 1900.0}})
    origin = np.array([Origin.HISTORY, *[Origin.DECLARED] * 4], dtype=np.int8)
    left_s = np.array([3500.0, *snap.left_s[1:]])
    snap = dataclasses.replace(snap, left_s=left_s, left_from=origin)

    order = Lucid().order(snap)

    assert order.key.tolist() == [3500.0, 4 * 2000.0, 8 * 500.0, 2 * 1500.0, 0.5 * 100.0]
    assert snap.jobs.job_id[intend(snap, Lucid()).ranked].tolist() == [5, 4, 1, 3, 2]
    assert order.pairs is not None
    assert order.pairs.left_gpu_s is order.key, "lengths of a pair are those of the order"


@pytest.mark.parametrize(
    ("ran_s", "limit_s", "past", "key"),
    [
        (0.0, 800.0, OVER, 800.0),
        (2500.0, 9000.0, OVER, 6500.0),
        (0.0, np.inf, OVER, 2000.0),
        (0.0, 9000.0, [], 9000.0),
        (0.0, np.inf, [], np.inf),
    ],
)
def test_the_time_limit_bounds_the_mean_and_stands_in_for_it(
    ran_s: float, limit_s: float, past: list[Over], key: float
) -> None:
    """A shorter limit; a run beyond the mean; no limit; no job that is over."""
    seen = build.observed(
        [build.pending(1, 1, limit_s=limit_s)], texts=build.texts_of_users({1: ("ann", "x")})
    )
    snap = build.snapshot(seen, past=past_of(past), memory={"ran_s": {1: ran_s}})

    assert Lucid().order(snap).key.tolist() == [key]


def test_a_job_is_paired_before_its_begin_time() -> None:
    """Its length must be known then: the daemon chooses its node meanwhile."""
    rows = [build.pending(1, 0.5, held=Held.BEGIN_TIME, limit_s=600.0)]
    pairs = Lucid().order(build.snapshot(build.observed(rows))).pairs

    assert pairs is not None
    assert pairs.left_gpu_s is not None
    assert pairs.left_gpu_s.tolist() == [300.0]


def test_pairs_are_by_labels_unless_speeds_are_asked_for() -> None:
    """At most twice as long as the host, and the host that started first, in any case."""
    snap = build.snapshot(build.observed([build.pending(1)]))

    assert Lucid().order(snap).pairs == PairRule(by_labels=True, most_ratio=2.0, first_host=True)
    other = Lucid(labels=False, most_ratio=1.5).order(snap).pairs
    assert other == PairRule(by_labels=False, most_ratio=1.5, first_host=True)
