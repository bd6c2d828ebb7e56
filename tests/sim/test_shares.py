"""Shares, leases and GPU types in the ideal cluster."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from slurm_dl.model.jobs import F64, Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.trace import Ending, Trace
from slurm_dl.policies import registry
from slurm_dl.policies.base import About, Order, Preempts, by_share
from slurm_dl.policies.fifo import FifoSkip
from slurm_dl.policies.shortest import Srtf
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal.simulator import simulate
from slurm_dl.simulation.ideal.start_costs import FlatCosts
from slurm_dl.simulation.job_knowledge import TraceKnowledge
from slurm_dl.simulation.outcome import Outcome
from slurm_dl.traces.format_registry import read_trace

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """Shares by job, whatever happens."""

    name: ClassVar[str] = "fixed"
    source: ClassVar[str] = ""
    interpretation: ClassVar[str] = ""
    about: ClassVar[About] = About(row="-", level="W2", formula="")
    preempts: ClassVar[Preempts] = "rank"
    skips: ClassVar[bool] = True
    tiers: ClassVar[int] = 1

    shares: tuple[tuple[float, ...], ...]
    lease_s: float = 100.0

    def order(self, snap: Snapshot, /) -> Order:
        """The shares of the jobs that are there."""
        return by_share(np.array(self.shares)[snap.jobs.job_id])

    def next_change_s(self, _snap: Snapshot, _order: Order, _running: Bool, /) -> float:
        """Never."""
        return np.inf


def trace_of(
    duration_s: list[float], gpus: list[float], submit_s: list[float] | None = None
) -> Trace:
    """A small trace."""
    n = len(duration_s)
    return Trace(
        name="small",
        format="generated",
        job_id=tuple(f"j{i}" for i in range(n)),
        submit_s=np.array(submit_s or [0.0] * n),
        duration_s=np.array(duration_s),
        gpus=np.array(gpus),
        user=np.arange(n, dtype=np.int32),
        model=np.full(n, -1, dtype=np.int32),
        ending=np.full(n, Ending.COMPLETED, dtype=np.int8),
        users=tuple(f"u{i}" for i in range(n)),
    )


def ran_until(outcome: Outcome, when_s: float) -> F64:
    """``(n,)`` seconds that each job ran before *when_s*."""
    runs = outcome.records.runs
    ran = np.zeros(len(outcome.records))
    np.add.at(ran, runs.job, np.clip(np.minimum(runs.end_s, when_s) - runs.start_s, 0, None))
    return ran


def test_two_jobs_share_a_gpu_in_turns_of_a_lease() -> None:
    """One deserves a quarter of the time and gets it, within a lease at any time."""
    policy = Fixed(shares=((0.75,), (0.25,)))
    outcome = simulate(trace_of([30_000, 10_000], [1, 1]), parse_shape("1x1"), policy)

    for leases in range(4, 390):
        ran = ran_until(outcome, leases * 100.0)
        assert abs(ran[0] - 75 * leases) <= 100.001
        assert abs(ran[1] - 25 * leases) <= 100.001


def test_runs_end_with_leases_or_with_their_jobs() -> None:
    """Restarts are what shares cost; between the ends of leases nobody is stopped."""
    policy = Fixed(shares=((0.5,), (0.5,), (0.5,), (0.5,)))
    outcome = simulate(
        trace_of([1000, 1300, 700, 900], [1, 1, 1, 1], [0, 30, 60, 250]), parse_shape("1x2"), policy
    )

    runs = outcome.records.runs
    last = runs.end_s == outcome.records.end_s[runs.job]
    assert not last.all()
    np.testing.assert_allclose(runs.end_s[~last] % 100, 0, atol=1e-6)
    assert outcome.records.finished.all()


def test_a_longer_lease_costs_fewer_restarts() -> None:
    """With a restart of 10 s the shorter lease loses more."""
    trace = trace_of([4000.0] * 3, [1, 1, 1])
    costs = FlatCosts(restart_s=10, large_restart_s=10, gpus=trace.gpus)

    def lost(lease_s: float) -> float:
        policy = Fixed(shares=((2 / 3,),) * 3, lease_s=lease_s)
        outcome = simulate(trace, parse_shape("1x2"), policy, costs=costs)
        return float(outcome.records.all_lost_gpu_s.sum())

    assert lost(50) > 3 * lost(400) > 0


def test_a_gang_gets_its_turn_although_small_jobs_run_beside_each_other() -> None:
    """Leases end together, so that its GPUs come free at once."""
    policy = Fixed(shares=((0.5,), (0.5,), (0.5,)))
    outcome = simulate(
        trace_of([2000, 2000, 2000], [2, 1, 1], [0, 10, 30]), parse_shape("1x2"), policy
    )

    ran = ran_until(outcome, 2000.0)
    assert np.abs(ran - 1000).max() <= 200


def test_short_jobs_that_come_and_go_do_not_keep_a_gang_waiting() -> None:
    """Each is done before its lease ends, and the next one takes its GPU."""
    n = 60
    submit_s = [0.0, *(50.0 * i for i in range(n))]
    policy = Fixed(shares=((0.5,), *((0.25,),) * n), lease_s=100.0)
    trace = trace_of([50.0, *[90.0] * n], [4, *[1] * n], submit_s)

    outcome = simulate(trace, parse_shape("1x4"), policy)

    assert outcome.records.start_s[0] <= 400.0


def test_on_two_types_each_share_is_had_on_its_type_and_at_its_speed() -> None:
    """Gavel's example: a job that is owed nine tenths of the fast GPU has them."""
    rates = np.array([[4.0, 1.0], [3.0, 1.0], [2.0, 1.0]])
    policy = Fixed(shares=((0.455, 0.0), (0.455, 0.091), (0.091, 0.909)))
    trace = trace_of([1e5] * 3, [1, 1, 1])
    outcome = simulate(
        trace, parse_shape("1x1:v100,1x1:k80"), policy, known=TraceKnowledge(rates=rates)
    )

    # Normalised throughput is equal, so jobs with twice the speed-up have done more work.
    assert outcome.records.finished.all()
    jct_s = outcome.records.jct_s
    assert jct_s[0] < jct_s[1] < jct_s[2]
    # Until the first is done nobody's rate is far from what the shares say.
    first_s = float(jct_s.min())
    assert 1e5 / first_s == pytest.approx(0.455 * 4, rel=0.02)


def test_an_order_without_types_takes_the_fastest_gpus_first() -> None:
    """And the next jobs take what is left, where they can run."""
    rates = np.array([[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]])
    outcome = simulate(
        trace_of([100, 100, 100], [1, 1, 1], [0, 1, 2]),
        parse_shape("1x1:k80,1x1:v100"),
        FifoSkip(),
        known=TraceKnowledge(rates=rates),
    )

    assert outcome.records.end_s.tolist() == [50.0, 101.0, 150.0]


def test_what_is_foreseen_need_not_be_what_is() -> None:
    """Shortest first by estimates runs the job first that is thought to be short."""
    trace = trace_of([100, 200], [1, 1])
    foreseen = TraceKnowledge(foreseen_s=np.array([300.0, 50.0]))

    known = simulate(trace, parse_shape("1x1"), Srtf())
    wrong = simulate(trace, parse_shape("1x1"), Srtf(), known=foreseen)

    assert known.records.end_s.tolist() == [100.0, 300.0]
    assert wrong.records.end_s.tolist() == [300.0, 200.0]


@pytest.mark.parametrize("policy", ["gavel_max_min", "gavel_isolated", "gandiva_fair", "hug"])
def test_on_types_that_count_alike_no_more_gpus_are_held_than_there_are(policy: str) -> None:
    """Speeds of the types are not known; shares are of each type all the same."""
    trace = read_trace(ROOT / "traces/gavel/max_min_fairness.trace", "gavel")

    runs = simulate(trace, parse_shape("8x1:v100,8x1:k80"), registry.find(policy)()).records.runs

    for at_s in runs.start_s.tolist():
        assert runs.gpus[(runs.start_s <= at_s) & (runs.end_s > at_s)].sum() <= 16
