"""MLFS: its formulas by hand, what it falls back on, and deadlines that urgency saves."""

from __future__ import annotations

import dataclasses
import math

import build
import numpy as np
import policy_runs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_runs import Work

from slurm_dl.engine.intent import intend
from slurm_dl.model.jobs import JobRow
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.mlfs import Mlfs, loss_factor, ml_priority


def snapshot_of(
    rows: list[JobRow],
    *,
    qos: dict[int, str] | None = None,
    left_s: dict[int, float] | None = None,
    due_s: dict[int, float] | None = None,
    progress: dict[int, float] | None = None,
    ran_s: dict[int, float] | None = None,
    waited_s: dict[int, float] | None = None,
) -> Snapshot:
    """Jobs of which only this is known; columns that nobody gives are not there."""
    texts = build.texts(qos=qos or {})
    since_s = {r.job_id: build.NOW_S - (waited_s or {}).get(r.job_id, 0.0) for r in rows}
    memory: dict[str, dict[int, float]] = {"ran_s": ran_s or {}, "waiting_since_s": since_s}
    snap = build.snapshot(build.observed(rows, texts=texts), memory=memory)

    def column(
        values: dict[int, float], default: float
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([values.get(r.job_id, default) for r in rows], dtype=np.float64)

    return dataclasses.replace(
        snap,
        left_s=column(left_s or {}, math.inf),
        due_s=None if due_s is None else column(due_s, math.inf),
        progress=None if progress is None else column(progress, math.nan),
    )


def priorities(snap: Snapshot, policy: Mlfs) -> list[float]:
    """P of every job."""
    found: list[float] = (-policy.order(snap).key).tolist()
    return found


def test_the_loss_factor_is_the_last_reduction_over_all() -> None:
    """Nothing known, or nothing gained: 1. A loss that rose again counts against the job."""
    assert loss_factor([]) == 1.0
    assert loss_factor([0.5]) == 1.0
    assert loss_factor([0.5, 0.25, 0.25]) == 0.25
    assert loss_factor([0.0, 0.0]) == 1.0
    assert loss_factor([0.5, -0.75]) == 1.0
    assert loss_factor([0.5, -0.1]) == pytest.approx(-0.25)


def test_training_priority_is_urgency_over_iteration_times_the_factor() -> None:
    """Urgency 3 in iteration 4 with a quarter of all reductions."""
    found = ml_priority(np.array([3.0, 1.0]), np.array([4.0, 1.0]), np.array([0.25, 1.0]))

    assert found.tolist() == [3 / 16, 1.0]


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(
            st.sampled_from(["high", "low", "none"]),
            st.sampled_from([-500.0, 10.0, 600.0, 90000.0, math.inf]),
            st.sampled_from([0.0, 300.0, 40000.0, math.inf]),
            st.sampled_from([0.0, 70.0, 9000.0]),
            st.sampled_from([math.nan, 0.0, 0.335, 1.0]),
            st.booleans(),
        ),
        min_size=1,
        max_size=7,
    ),
    data=st.data(),
)
def test_the_mix_equals_the_formula_job_by_job(
    jobs: list[tuple[str, float, float, float, float, bool]], data: st.DataObject
) -> None:
    """In whatever order jobs are listed; every term as a share of the largest."""
    urgency_of = {"high": 5.0, "low": 0.5, "none": 1.0}
    ml, deadline, remaining, waiting = [], [], [], []
    for qos, due, left, past, progress, runs in jobs:
        if not math.isnan(progress):
            iteration = min(int(progress * 20), 19) + 1
        elif math.isfinite(left) and past + left > 0:
            iteration = min(int(past / (past + left) * 20), 19) + 1
        else:
            iteration = int(past / 500) + 1
        ml.append(urgency_of[qos] / iteration)
        deadline.append(0.0 if math.isinf(due) or due < 0 else 1 / max(due, 60))
        remaining.append(0.0 if math.isinf(left) else 1 / max(left, 60))
        waiting.append(0.0 if runs else past)
    terms = [[x / (max(t) or 1.0) for x in t] for t in (ml, deadline, remaining, waiting)]
    expected = {
        i + 1: 0.25 * m + 0.75 * (0.1 * d + 0.2 * r + 0.7 * w)
        for i, (m, d, r, w) in enumerate(zip(*terms, strict=True))
    }
    rows = [(build.running if j[5] else build.pending)(i + 1) for i, j in enumerate(jobs)]
    rows = data.draw(st.permutations(rows))
    ids = range(1, len(jobs) + 1)
    snap = snapshot_of(
        rows,
        qos={i: jobs[i - 1][0] for i in ids},
        due_s={i: build.NOW_S + jobs[i - 1][1] for i in ids},
        left_s={i: jobs[i - 1][2] for i in ids},
        ran_s={i: jobs[i - 1][3] for i in ids},
        waited_s={i: jobs[i - 1][3] for i in ids},
        progress={i: jobs[i - 1][4] for i in ids},
    )
    policy = Mlfs(
        urgency=(("high", 5.0), ("low", 0.5)),
        alpha=0.25,
        deadline_weight=0.1,
        remaining_weight=0.2,
        waiting_weight=0.7,
        iterations=20,
        iteration_s=500.0,
    )

    assert priorities(snap, policy) == pytest.approx([expected[r.job_id] for r in rows])


def test_the_defaults_are_those_of_the_paper() -> None:
    """Weights 0.3, 0.3, 0.3 and 0.35: a job alone has all terms in full."""
    snap = snapshot_of(
        [build.pending(1)],
        due_s={1: build.NOW_S + 100},
        left_s={1: 50.0},
        waited_s={1: 5.0},
    )

    assert priorities(snap, Mlfs()) == pytest.approx([0.3 + 0.7 * (0.3 + 0.3 + 0.35)])


def test_where_nothing_is_known_the_first_submitted_goes_first() -> None:
    """No estimates, no deadlines, no QOS: what has waited longest, then submission."""
    rows = [build.pending(j) for j in (3, 1, 2)]
    snap = snapshot_of(rows)
    waited = snapshot_of(rows, waited_s={2: 30.0, 1: 10.0, 3: 10.0})

    assert snap.jobs.job_id[intend(snap, Mlfs()).ranked].tolist() == [1, 2, 3]
    assert snap.jobs.job_id[intend(waited, Mlfs()).ranked].tolist() == [2, 1, 3]


def test_running_jobs_keep_their_gpus() -> None:
    """However urgent who waits is; when GPUs come free the most urgent one gets them."""
    rows = [build.running(1, 16), build.pending(2, 16), build.pending(3, 16)]
    snap = snapshot_of(rows, qos={1: "low", 2: "low", 3: "high"})
    policy = Mlfs(urgency=(("high", 9.0), ("low", 0.1)))

    assert snap.jobs.job_id[intend(snap, policy).ranked].tolist() == [1, 3, 2]
    runs = np.array([True, False, False])
    assert policy.next_change_s(snap, policy.order(snap), runs) == math.inf


def due_jobs(seed: int) -> list[Work]:
    """Forty jobs of mixed length with deadlines, a third of them urgent, on a loaded cluster."""
    draw = np.random.default_rng(seed)
    works: list[Work] = []
    submit_s = build.NOW_S
    for job_id in range(1, 41):
        submit_s += float(draw.exponential(150.0))
        size_s = float(draw.choice([300.0, 1200.0, 3600.0]))
        works.append(
            Work(
                job_id=job_id,
                submit_s=submit_s,
                size_s=size_s,
                gpus=float(draw.choice([1, 2, 4])),
                qos="urgent" if draw.uniform() < 1 / 3 else "normal",
                due_s=submit_s + size_s * float(draw.uniform(1.2, 3.0)),
            )
        )
    return works


def met(works: list[Work], qos: str) -> float:
    """Share of the jobs of a QOS that were done in time."""
    ours = [w for w in works if w.qos == qos]
    return sum(w.end_s <= w.due_s for w in ours) / len(ours)


def test_urgency_raises_the_share_of_deadlines_that_are_met() -> None:
    """Six random workloads: urgent jobs meet a fifth more of theirs if they weigh ten times."""
    shares: dict[float, list[float]] = {1.0: [], 10.0: []}
    for seed in range(6):
        for urgent, found in shares.items():
            works = due_jobs(seed)
            policy_runs.run(Mlfs(urgency=(("urgent", urgent),)), works, 8)
            found.append(met(works, "urgent"))
    mean = {urgent: sum(found) / len(found) for urgent, found in shares.items()}

    assert mean[1.0] * 1.2 < mean[10.0]
