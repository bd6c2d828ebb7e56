"""Quasi-shortest service first: predicted GPU-seconds, from accounting alone."""

from __future__ import annotations

import math

import build
import numpy as np
import pytest
from pasts import Over, past_of

from slurm_dl.engine.intent import intend
from slurm_dl.estimates import boosted_trees
from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.jobs import JobRow
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.qssf import Qssf

OVER = [
    Over("ann", "short", 1, 100.0),
    Over("ann", "short", 4, 300.0),
    Over("ann", "loooooong", 1, 50_000.0),
    Over("bob", "other", 2, 1000.0),
]
ALL_S = (100 + 300 + 50_000 + 1000) / 4


def snap_of(rows: list[JobRow], whose: dict[int, tuple[str, str]], past: Past) -> Snapshot:
    """*rows* with users and names by job id."""
    seen = build.observed(rows, texts=build.texts_of_users(whose))
    return build.snapshot(seen, past=past)


def test_the_rank_is_gpus_times_the_predicted_run_time() -> None:
    """Without enough jobs to learn from: the rolling mean."""
    rows = [build.pending(1, 4), build.pending(2, 1), build.pending(3, 8), build.pending(4, 1)]
    whose = {
        1: ("ann", "short"),
        2: ("ann", "loooooonk"),
        3: ("eve", "short"),
        4: ("bob", "zzz"),
    }
    snap = snap_of(rows, whose, past_of(OVER))
    order = Qssf().order(snap)

    assert order.key.tolist() == [4 * 300.0, 50_000.0, 8 * ALL_S, 1000.0]
    assert order.tiers == 1
    assert snap.jobs.job_id[intend(snap, Qssf()).ranked].tolist() == [4, 1, 2, 3]


def test_both_predictions_are_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tenth rolling, nine tenths learned; what is learned is a column like another."""
    snap = snap_of([build.pending(1, 4)], {1: ("ann", "short")}, past_of(OVER))
    monkeypatch.setattr("slurm_dl.policies.qssf.learned_s", lambda *_, **__: np.array([2000.0]))

    assert Qssf().order(snap).key[0] == pytest.approx(4 * (0.1 * 300 + 0.9 * 2000))
    assert Qssf(rolling_weight=0.5).order(snap).key[0] == pytest.approx(4 * 1150)
    assert Qssf(rolling_weight=1.0).order(snap).key[0] == pytest.approx(4 * 300)


def test_with_enough_jobs_it_learns_and_without_the_library_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same jobs rank otherwise; nothing fails."""
    over = [
        Over("ann", "ab"[i % 2] * 4, 1, [60.0, 6000.0][i % 2] * (1 + i % 7 / 7), 1e6 + 1000.0 * i)
        for i in range(240)
    ]
    snap = snap_of([build.pending(1, 1)], {1: ("ann", "aaaa")}, past_of(over))
    mixed = Qssf().order(snap).key[0]
    monkeypatch.setattr(boosted_trees, "is_available", lambda: False)
    boosted_trees._model_of.cache_clear()
    rolling = Qssf().order(snap).key[0]

    assert rolling == pytest.approx(np.mean([job.ran_s for job in over if job.name == "aaaa"]))
    assert mixed != rolling
    assert 60 < mixed < 120
    boosted_trees._model_of.cache_clear()


def test_without_a_past_the_time_limit_decides() -> None:
    """Last without one; the first submitted first among equals."""
    rows = [
        build.pending(1, 1),
        build.pending(2, 1, limit_s=900),
        build.pending(3, 2, limit_s=300),
        build.pending(4, 1),
    ]
    snap = build.snapshot(build.observed(rows), past=NO_PAST)

    assert snap.jobs.job_id[intend(snap, Qssf()).ranked].tolist() == [3, 2, 1, 4]


def test_who_runs_is_left_running_and_smaller_jobs_pass_one_that_does_not_fit() -> None:
    """Nobody is preempted; the large job waits while the small one starts."""
    rows = [build.running(1, 8), build.pending(2, 16, limit_s=1), build.pending(3, 4, limit_s=9000)]
    snap = build.snapshot(build.observed(rows, held={1: {0: 4, 1: 4}}))

    assert Qssf.preempts == "never"
    assert sorted(snap.jobs.job_id[intend(snap, Qssf()).target].tolist()) == [1, 3]
    assert Qssf().next_change_s(snap, Qssf().order(snap), np.array([True, False, True])) == math.inf
