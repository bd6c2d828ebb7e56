"""GPU time by tenant and bucket, and chances to end: against sums second by second."""

from __future__ import annotations

import math

import build
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pasts import past_columns

from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.service_history import bucket_edges, served
from slurm_dl.policies.arithmetic.supply_and_demand import tenants
from slurm_dl.policies.astraea_ltgf import lifetimes

HOUR_S = 3600.0
NOW_S = 1000 * HOUR_S + 600
"""Ten minutes into an hour."""


def past_of(jobs: list[tuple[str, float, float, float, float]]) -> Past:
    """Finished jobs: account, GPUs, start, end, seconds run."""
    ordered = sorted(jobs, key=lambda j: j[3])
    accounts = tuple(sorted({j[0] for j in ordered}))
    return past_columns(
        [j[4] for j in ordered],
        account=[accounts.index(j[0]) for j in ordered],
        gpus=[j[1] for j in ordered],
        submit_s=[j[2] for j in ordered],
        end_s=[j[3] for j in ordered],
        accounts=accounts,
    )


def snapshot_of(
    rows: list[JobRow],
    accounts: dict[int, str],
    memory: dict[str, dict[int, float]] | None = None,
    past: list[tuple[str, float, float, float, float]] | None = None,
) -> Snapshot:
    """Live jobs of these accounts, and finished ones."""
    seen = build.observed(rows, now_s=NOW_S, texts=build.texts(account=accounts))
    return build.snapshot(seen, memory=memory, past=past_of(past or []))


def table(snap: Snapshot, buckets: int = 3) -> dict[str, list[float]]:
    """GPU-seconds by account in the last hours."""
    who = tenants(snap)
    found = served(snap, who, bucket_edges(snap.now_s, HOUR_S, buckets))
    return dict(zip(who.names, found.tolist(), strict=True))


def test_buckets_begin_on_the_hour_and_now_is_in_the_last() -> None:
    """Also where now is an edge: the bucket that begins is the last one."""
    assert bucket_edges(NOW_S, HOUR_S, 3).tolist() == [h * HOUR_S for h in (998, 999, 1000, 1001)]
    assert bucket_edges(1000 * HOUR_S, HOUR_S, 1).tolist() == [1000 * HOUR_S, 1001 * HOUR_S]


def test_a_job_that_ran_in_one_piece_and_waits_again_counts_where_it_ran() -> None:
    """Between its first start and the end of its run, not up to now."""
    memory = {
        "attained_gpu_s": {1: 2 * 1000.0},
        "first_run_s": {1: 999 * HOUR_S - 400},
        "waiting_since_s": {1: 999 * HOUR_S + 600},
    }
    snap = snapshot_of([build.pending(1, 2)], {1: "a"}, memory)

    assert table(snap)["a"] == pytest.approx([800.0, 1200.0, 0.0])


def test_earlier_runs_are_spread_evenly_before_the_present_one() -> None:
    """Two GPUs: the present run is exact; 900 GPU-seconds before it lie over an hour and a half."""
    memory = {
        "attained_gpu_s": {1: 900.0 + 2 * 600.0},
        "first_run_s": {1: 998.5 * HOUR_S},
    }
    snap = snapshot_of([build.running(1, 2, start_s=1000 * HOUR_S)], {1: "a"}, memory)

    assert table(snap)["a"] == pytest.approx([300.0, 600.0, 1200.0])


def test_finished_jobs_count_by_account_and_their_rows_do_not_count_again() -> None:
    """Half an hour of GPU time over an hour; accounts without a live job are not asked for."""
    past = [("a", 3.0, 998.5 * HOUR_S, 999.5 * HOUR_S, 1800.0), ("z", 9.0, 0.0, NOW_S, 5.0)]
    rows = [
        JobRow(job_id=1, state=JobState.COMPLETED, gpus=3, start_s=998.5 * HOUR_S),
        build.pending(2, 1),
    ]
    memory = {
        "attained_gpu_s": {1: 5400.0},
        "first_run_s": {1: 998.5 * HOUR_S},
        "waiting_since_s": {1: 999.5 * HOUR_S},
    }
    snap = snapshot_of(rows, {1: "a", 2: "a"}, memory, past)

    assert table(snap) == {"a": [2700.0, 2700.0, 0.0]}


def test_service_without_a_span_is_in_the_bucket_of_its_instant() -> None:
    """A ledger that knows how much but not since when."""
    memory = {
        "attained_gpu_s": {1: 50.0},
        "first_run_s": {1: 999 * HOUR_S},
        "waiting_since_s": {1: 999 * HOUR_S},
    }

    assert table(snapshot_of([build.pending(1)], {1: "a"}, memory))["a"] == [0.0, 50.0, 0.0]


@settings(max_examples=40, deadline=None)
@given(
    pieces=st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from([0.5, 1.0, 4.0]),
            st.integers(0, 400),
            st.integers(1, 300),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_every_bucket_equals_a_sum_minute_by_minute(
    pieces: list[tuple[str, float, int, int, bool]],
) -> None:
    """Runs of whole minutes, of finished and of running jobs, over four hours and before."""
    origin_s = NOW_S - 420 * 60
    rows, past, accounts = [], [], {1: "a", 2: "b", 3: "c"}
    rows = [build.pending(j) for j in accounts]
    expected = {name: [0.0] * 4 for name in "abc"}
    edges = bucket_edges(NOW_S, HOUR_S, 4)
    for i, (name, gpus, begin, length, runs) in enumerate(pieces):
        begin_s = origin_s + 60.0 * begin
        end_s = NOW_S if runs else min(begin_s + 60.0 * length, NOW_S)
        if runs:
            rows.append(build.running(10 + i, gpus, start_s=begin_s))
            accounts[10 + i] = name
        else:
            past.append((name, gpus, begin_s, end_s, end_s - begin_s))
        for minute in np.arange(begin_s, end_s, 60.0).tolist():
            b = math.floor((minute - edges[0]) / HOUR_S)
            if b >= 0:
                expected[name][b] += gpus * 60
    found = table(snapshot_of(rows, accounts, None, past), 4)

    for name, sums in expected.items():
        assert found[name] == pytest.approx(sums, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    known=st.lists(st.tuples(st.sampled_from([1.0, 2.0]), st.integers(1, 9000)), max_size=14),
    gpus=st.sampled_from([1.0, 2.0, 8.0]),
    age=st.integers(0, 9500),
)
def test_the_chance_equals_a_count_of_bins(
    known: list[tuple[float, int]], gpus: float, age: int
) -> None:
    """Of those that reached the bin of this age, the share that ended in it."""
    past = past_of([("a", g, 0.0, float(t), float(t)) for g, t in known])
    found = float(lifetimes(past, 1800.0, 5).chance(np.array([gpus]), np.array([float(age)]))[0])

    alike = [t for g, t in known if g == gpus]
    sample = alike if len(alike) >= 5 else [t for _, t in known]
    bins = [t // 1800 for t in sample]
    reached = sum(b >= age // 1800 for b in bins)
    if not known:
        assert math.isnan(found)
    elif not reached:
        assert found == 1.0
    else:
        assert found == pytest.approx(bins.count(age // 1800) / reached)
