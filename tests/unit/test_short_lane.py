"""Short jobs come first on their share of the GPUs."""

from __future__ import annotations

import dataclasses

import numpy as np
import slurm_scenarios as scenes
from build import observed, pending, running, snapshot
from elastic_jobs import sizes_of
from hypothesis import given
from hypothesis import strategies as st
from most_first_policy import MostFirst

from slurm_dl.engine.settings import Overdue, Preemption, Settings
from slurm_dl.engine.short_lane import short_jobs
from slurm_dl.engine.target import pools
from slurm_dl.model.jobs import Held, JobRow, JobState
from slurm_dl.simulation.slurm.job_columns import JobBehaviour
from slurm_dl.simulation.slurm.scenario import simulate_slurm

SHORT_S = 900.0
LANE = Overdue(after_s=0.0, pass_s=0.0, short_s=SHORT_S, short_gpus=2.0, short_share=0.25)


@st.composite
def a_job(draw: st.DrawFn, job_id: int) -> tuple[JobRow, float]:
    """A job, and how long it ran before."""
    make = draw(st.sampled_from([pending, pending, running]))
    row = make(
        job_id,
        draw(st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0])),
        limit_s=draw(st.sampled_from([SHORT_S - 1, SHORT_S, SHORT_S + 1, np.inf])),
        uid=draw(st.integers(1, 3)),
    )
    if row.state is JobState.PENDING:
        held = draw(st.sampled_from([Held.NO, Held.NO, Held.DATA]))
        row = dataclasses.replace(row, held=held, tasks=draw(st.sampled_from([1, 1, 3])))
    return row, draw(st.sampled_from([0.0, SHORT_S - 1, SHORT_S]))


@given(st.integers(0, 8).flatmap(lambda n: st.tuples(*(a_job(1 + i) for i in range(n)))))
def test_the_user_with_the_fewest_gpus_in_the_lane_is_next(
    drawn: tuple[tuple[JobRow, float], ...],
) -> None:
    """Against one choice after another: the first job of whoever would hold the fewest with it.

    An array counts with all its tasks, and a short job that runs however long it has run.
    """
    rows = [row for row, _ in drawn]
    snap = snapshot(observed(rows, nodes=(8, 8)))
    memory = dataclasses.replace(snap.memory, ran_s=np.array([ran_s for _, ran_s in drawn]))
    snap = dataclasses.replace(snap, memory=memory)

    short = [(r, ran_s) for r, ran_s in drawn if r.limit_s <= SHORT_S and r.gpus <= 2]
    held = dict.fromkeys(range(1, 4), 0.0)
    for row, _ in short:
        held[row.uid] += row.gpus if row.state is JobState.RUNNING else 0.0
    new = [r for r, ran_s in short if r.state is JobState.PENDING and ran_s < SHORT_S]
    left = [r for r in new if r.held is Held.NO and r.gpus > 0]
    expected = []
    while left:
        firsts = [next(r for r in left if r.uid == uid) for uid in {r.uid for r in left}]
        best = min(firsts, key=lambda r: (held[r.uid] + r.gpus * r.tasks, r.job_id))
        if sum(held.values()) + best.gpus * best.tasks > 0.25 * 16:
            break
        held[best.uid] += best.gpus * best.tasks
        expected.append(best.job_id)
        left.remove(best)

    found = short_jobs(snap, None, there=pools(snap), bound=LANE)
    assert snap.jobs.job_id[found].tolist() == expected


def test_an_elastic_job_is_as_large_as_its_largest_size() -> None:
    """The policy chooses the size of a job that the lane serves first."""
    snap = snapshot(observed([pending(i, 1, limit_s=SHORT_S) for i in (1, 2)], nodes=(8,)))
    sizes = sizes_of({0: ((1.0, 1.0), (2.0, 2.0)), 1: ((1.0, 1.0), (8.0, 8.0))})
    snap = dataclasses.replace(snap, sizes=sizes)
    assert short_jobs(snap, None, there=pools(snap), bound=LANE).tolist() == [0]


def test_the_wait_of_short_jobs_is_bounded_whatever_is_before_them() -> None:
    """Eight GPUs, twenty jobs of a day before them, and a short one every ten minutes."""
    long = [(float(i), 86_400.0, 2.0) for i in range(20)]
    short = [(3600.0 + 600.0 * i, 240.0, 1.0) for i in range(40)]
    what = scenes.scenario([*long, *short], "1x8", habits=JobBehaviour(limit_factor=1.5))

    def p90_s(lane: Overdue) -> float:
        limits = Preemption(
            min_quantum_s=600.0, cooldown_s=600.0, max_preemptions=1000, limit_reserve_s=0.0
        )
        settings = Settings(partitions=frozenset({"gpu"}), preemption=limits, overdue=lane)
        outcome = simulate_slurm(what, policy=MostFirst(), settings=settings)
        assert outcome.records.success.all()
        return float(np.quantile(outcome.records.queue_s[len(long) :], 0.9))

    plain = Overdue(after_s=0.0, pass_s=0.0)
    lane = dataclasses.replace(plain, short_s=1800.0, short_share=1 / 8)
    assert p90_s(lane) < 1200.0
    assert p90_s(plain) > 86_400.0
