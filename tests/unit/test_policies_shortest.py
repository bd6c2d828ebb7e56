"""Orders by what is left, by size, or by how long jobs have been waiting."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import build
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_traces import make_trace, outcome_of

from slurm_dl.engine.intent import intend
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.policies.shortest import FewestGpus, LongestPending, Sjf, Srsf, Srtf
from slurm_dl.simulation.job_knowledge import TraceKnowledge

SIZE_OF: dict[str, Callable[[float, int], float]] = {
    "srtf": lambda left_s, _: left_s,
    "srsf": lambda left_s, gpus: left_s * gpus,
    "fewest_gpus": lambda _, gpus: gpus,
}
POLICIES: tuple[Policy, ...] = (Srtf(), Srsf(), FewestGpus())
EVERY_POLICY = pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)


def snapshot_of(
    rows: list[JobRow], left_s: list[float], places: dict[int, float] | None = None
) -> Snapshot:
    """Jobs with so many seconds left; *places* by id in the last order, the others are new."""
    known = places or {}
    tier = {r.job_id: 0.0 if r.job_id in known else -1.0 for r in rows}
    memory: dict[str, dict[int, float]] = {"place": known, "tier": tier}
    snap = build.snapshot(build.observed(rows), memory=memory)
    return dataclasses.replace(snap, left_s=np.array(left_s, dtype=np.float64))


@EVERY_POLICY
@given(
    jobs=st.lists(
        st.tuples(
            st.sampled_from([0.0, 1.0, 2.0, 6.0, math.inf]),
            st.sampled_from([1, 2, 3]),
            st.sampled_from([JobState.PENDING, JobState.RUNNING]),
        ),
        min_size=1,
        max_size=10,
    ),
    data=st.data(),
)
def test_the_order_is_that_of_a_stable_sort(
    policy: Policy, jobs: list[tuple[float, int, JobState]], data: st.DataObject
) -> None:
    """Smallest first; equals keep their last order, new ones behind by submission; no tiers.

    Running or waiting makes no difference.
    """
    n = len(jobs)
    size = [SIZE_OF[policy.name](left_s, gpus) for left_s, gpus, _ in jobs]
    rows = [
        dataclasses.replace(build.pending(i + 1, gpus), state=state)
        for i, (_, gpus, state) in enumerate(jobs)
    ]
    old = data.draw(st.permutations(range(1, n + 1)))[: data.draw(st.integers(0, n))]
    snap = snapshot_of(rows, [j[0] for j in jobs], {j: float(p) for p, j in enumerate(old)})

    last = [*old, *(j for j in range(1, n + 1) if j not in old)]
    expected = sorted(last, key=lambda j: size[j - 1])
    assert snap.jobs.job_id[intend(snap, policy).ranked].tolist() == expected


@EVERY_POLICY
def test_a_smaller_job_takes_the_gpus_of_a_larger_one(policy: Policy) -> None:
    """The waiting job is smaller by every measure."""
    rows = [build.running(1, 16), build.pending(2, 8)]
    snap = snapshot_of(rows, [100.0, 50.0], {1: 0.0})

    assert snap.jobs.job_id[intend(snap, policy).target].tolist() == [2]
    assert policy.next_change_s(snap, policy.order(snap), np.array([False, True])) == math.inf


@given(
    jobs=st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 2.0, 6.0, math.inf]), st.booleans()),
        min_size=1,
        max_size=10,
    )
)
def test_sjf_takes_the_shortest_that_waits_and_stops_nobody(jobs: list[tuple[float, bool]]) -> None:
    """Running jobs first; then those with the least time left, equals by submission."""
    rows = [(build.running if runs else build.pending)(i) for i, (_, runs) in enumerate(jobs, 1)]
    snap = snapshot_of(rows, [left_s for left_s, _ in jobs])

    ids = range(1, len(jobs) + 1)
    expected = sorted(ids, key=lambda i: (not jobs[i - 1][1], jobs[i - 1][0], i))
    assert snap.jobs.job_id[intend(snap, Sjf()).ranked].tolist() == expected


def test_sjf_lets_a_long_job_run_to_its_end() -> None:
    """One GPU: 10 s at 0; at 1 come 5 s and 2 s. By hand: 0, then the 2 s at 10, the 5 s at 12.

    With preemption (srtf) the short ones would run at once, one after the other.
    """
    trace = make_trace([0, 1, 1], [10, 5, 2])
    starts = {p.name: outcome_of(trace, "1x1", p).records for p in (Sjf(), Srtf())}

    assert starts["sjf"].start_s.tolist() == [0, 12, 10]
    assert starts["srtf"].start_s.tolist() == [0, 3, 1]


@pytest.mark.parametrize("policy", [Sjf(), Srtf(), Srsf()], ids=lambda p: p.name)
def test_true_run_times_or_estimates_decide_whichever_the_snapshot_has(policy: Policy) -> None:
    """Two jobs come while the GPU is busy; what is foreseen is the wrong way round."""
    trace = make_trace([0, 1, 1], [10, 50, 20])
    guess = TraceKnowledge(foreseen_s=np.array([10.0, 15.0, 60.0]))
    true = outcome_of(trace, "1x1", policy).records.start_s.tolist()
    guessed = outcome_of(trace, "1x1", policy, known=guess).records.start_s.tolist()

    assert true.index(max(true)) == 1
    assert guessed.index(max(guessed)) == 2


@given(
    jobs=st.lists(
        st.tuples(st.booleans(), st.sampled_from([0.0, 10.0, 10.0, 99.0]), st.integers(0, 3)),
        min_size=1,
        max_size=10,
    )
)
def test_who_waits_longest_goes_first(jobs: list[tuple[bool, float, int]]) -> None:
    """Waiting began with the end of the last run, or the first submission; equals by submission."""
    rows, since = [], {}
    for i, (runs, waited_s, submit) in enumerate(jobs, start=1):
        make = build.running if runs else build.pending
        rows.append(make(i, submit_s=build.NOW_S - 1000 + submit))
        since[i] = build.NOW_S - waited_s
    snap = build.snapshot(build.observed(rows), memory={"waiting_since_s": since})
    policy = LongestPending()

    expected = sorted(
        range(1, len(jobs) + 1),
        key=lambda i: (not jobs[i - 1][0], -jobs[i - 1][1], jobs[i - 1][2], i),
    )
    assert snap.jobs.job_id[intend(snap, policy).ranked].tolist() == expected


def test_nobody_passes_the_job_that_waits_longest() -> None:
    """Job 2 has waited longer than job 3 since its last run; it does not fit, so 3 waits too."""
    rows = [build.running(1, 8), build.pending(2, 12), build.pending(3, 4)]
    memory = {"waiting_since_s": {2: build.NOW_S - 20, 3: build.NOW_S - 10}}
    snap = build.snapshot(build.observed(rows), memory=memory)

    assert snap.jobs.job_id[intend(snap, LongestPending()).target].tolist() == [1]


@pytest.mark.parametrize(
    "policy", [Sjf(), Srtf(), Srsf(), FewestGpus(), LongestPending()], ids=lambda p: p.name
)
def test_what_is_no_number_goes_last(policy: Policy) -> None:
    """An estimate that is none, and a job that has neither GPUs nor a time limit."""
    rows = [build.pending(1, 2), build.pending(2, 0), build.pending(3, 2)]
    snap = snapshot_of(rows, [math.nan, math.inf, 5.0])

    ranked = snap.jobs.job_id[intend(snap, policy).ranked].tolist()
    expected = {"fewest_gpus": [2, 1, 3], "longest_pending": [1, 2, 3], "srsf": [2, 3, 1]}
    assert ranked == expected.get(policy.name, [3, 1, 2])
