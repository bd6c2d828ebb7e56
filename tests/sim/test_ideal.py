"""The ideal cluster against a second, slow simulator in exact arithmetic, and closed cases."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest
import slow_simulator as slow
from hypothesis import given, settings
from hypothesis import strategies as st
from small_traces import make_trace, outcome_of, traces

from slurm_dl.model.jobs import Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.trace import Ending, Trace
from slurm_dl.policies.base import Order, Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo, FifoSkip
from slurm_dl.policies.gittins import Gittins
from slurm_dl.policies.las import Las
from slurm_dl.policies.shortest import FewestGpus, Srsf, Srtf
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal.decision_times import DecisionTimes
from slurm_dl.simulation.ideal.simulator import IdealCluster
from slurm_dl.simulation.ideal.start_costs import FlatCosts, MuriCosts, NoCosts
from slurm_dl.simulation.outcome import Outcome, SimulationError

EXACT = settings(max_examples=25, deadline=None)

EDGES = (8, 24)
PAIRS: dict[str, tuple[Policy, Callable[[], slow.Rule]]] = {
    "fifo": (Fifo(), lambda: slow.InTurn(skips=False)),
    "fifo_skip": (FifoSkip(), lambda: slow.InTurn(skips=True)),
    "fewest_gpus": (FewestGpus(), lambda: slow.Smallest(lambda j: j.gpus)),
    "srtf": (Srtf(), lambda: slow.Smallest(lambda j: j.left_s)),
    "srsf": (Srsf(), lambda: slow.Smallest(lambda j: j.left_s * j.gpus)),
    "discrete_las": (
        DiscreteLas(thresholds_gpu_s=EDGES),
        lambda: slow.Queues(EDGES, knob=0, two_dimensions=True),
    ),
    "discrete_las, 1D": (
        DiscreteLas(thresholds_gpu_s=EDGES, dimensions=1),
        lambda: slow.Queues(EDGES, knob=0, two_dimensions=False),
    ),
    "discrete_las, promotion": (
        DiscreteLas(thresholds_gpu_s=EDGES, promote_knob=0.5),
        lambda: slow.Queues(EDGES, knob=0.5, two_dimensions=True),
    ),
    "discrete_las, 1D, late promotion": (
        DiscreteLas(thresholds_gpu_s=(4, 12), promote_knob=2, dimensions=1),
        lambda: slow.Queues((4, 12), knob=2, two_dimensions=False),
    ),
    "las": (Las(quantum_s=0.25), lambda: slow.LeastServed(Fraction(1, 4), two_dimensions=True)),
    "las, 1D": (
        Las(quantum_s=3, dimensions=1),
        lambda: slow.LeastServed(Fraction(3), two_dimensions=False),
    ),
    "gittins without sizes": (
        Gittins(quantum_s=2),
        lambda: slow.LeastServed(Fraction(2), two_dimensions=True, at_every_quantum=True),
    ),
}
COST_UNIT_S = {
    "discrete_las, promotion": 1 / 8,
    "discrete_las, 1D, late promotion": 1 / 4,
    "las": 1 / 32,
    "las, 1D": 1 / 4,
    "gittins without sizes": 1 / 4,
}
"""A seventh or less of the shortest turn; a second where nobody takes turns."""
EVERY_PAIR = pytest.mark.parametrize("name", PAIRS)


def assert_same(found: Outcome, expected: list[slow.SlowJob]) -> None:
    """Start, end, preemptions, promotions, service, loss and every run of every job are equal."""
    records = found.records
    nan = math.nan
    assert records.preemptions.tolist() == [j.preemptions for j in expected]
    assert records.promotions.tolist() == [j.promotions for j in expected]
    np.testing.assert_array_equal(
        records.start_s, [float(j.runs[0][0]) if j.runs else nan for j in expected]
    )
    np.testing.assert_array_equal(
        records.end_s, [nan if j.end_s is None else float(j.end_s) for j in expected]
    )
    np.testing.assert_array_equal(
        records.service_gpu_s, [float(j.ran_s * j.gpus) for j in expected]
    )
    np.testing.assert_array_equal(
        records.all_lost_gpu_s, [float(j.lost_s * j.gpus) for j in expected]
    )
    runs = records.runs
    by_job: list[list[tuple[float, float]]] = [[] for _ in expected]
    for job, *run in zip(
        runs.job.tolist(), runs.start_s.tolist(), runs.end_s.tolist(), strict=True
    ):
        by_job[job].append((run[0], run[1]))
    assert by_job == [[(float(a), float(b)) for a, b in j.runs] for j in expected]


@EVERY_PAIR
@EXACT
@given(trace=traces(gpus=(1, 2, 4, 8, 16)), nodes=st.integers(1, 3))
def test_whole_seconds_equal_the_slow_simulator(name: str, trace: Trace, nodes: int) -> None:
    """Every life of every job, with simultaneous events and jobs larger than the cluster."""
    policy, rule = PAIRS[name]

    assert_same(outcome_of(trace, f"{nodes}x4", policy), slow.run(trace, nodes * 4, rule()))


@EVERY_PAIR
@EXACT
@given(trace=traces(steps=16))
def test_broken_seconds_equal_the_slow_simulator(name: str, trace: Trace) -> None:
    """The same where times are sixteenths of seconds, which floats add without error."""
    policy, rule = PAIRS[name]

    assert_same(outcome_of(trace, "1x8", policy), slow.run(trace, 8, rule()))


@EVERY_PAIR
@EXACT
@given(
    trace=traces(gpus=(1, 2, 4)),
    restart=st.integers(0, 7),
    large=st.integers(0, 7),
    first=st.integers(0, 7),
)
def test_a_flat_cost_equals_the_slow_simulator(
    name: str, trace: Trace, restart: int, large: int, first: int
) -> None:
    """Restarts that cost, more for jobs above two GPUs, and first starts that cost.

    A turn must be longer than what it costs, or the jobs never get anywhere.
    """
    policy, rule = PAIRS[name]
    unit_s = COST_UNIT_S.get(name, 1.0)
    restart_s, large_s, first_s = restart * unit_s, large * unit_s, first * unit_s
    costs = FlatCosts(
        restart_s=restart_s,
        large_restart_s=large_s,
        gpus=trace.gpus,
        large_gpus=2.0,
        start_s=first_s,
    )

    expected = slow.run(
        trace,
        4,
        rule(),
        restart_s=lambda j: Fraction(large_s if j.gpus > 2 else restart_s),
        first_s=Fraction(first_s),
    )
    assert_same(outcome_of(trace, "1x4", policy, costs=costs), expected)


@EVERY_PAIR
@EXACT
@given(trace=traces(gpus=(1, 2, 4)), round_s=st.integers(1, 12))
def test_rounds_equal_the_slow_simulator(name: str, trace: Trace, round_s: int) -> None:
    """Decisions at multiples of a round after the first submission only."""
    policy, rule = PAIRS[name]
    found = outcome_of(trace, "1x4", policy, clockwork=DecisionTimes(round_s=round_s))

    assert_same(found, slow.run(trace, 4, rule(), round_s=round_s))
    assert ((found.records.runs.start_s - trace.submit_s[:1].sum()) % round_s == 0).all()


@pytest.mark.parametrize(
    "name", ["las", "las, 1D", "discrete_las", "discrete_las, promotion", "gittins without sizes"]
)
@EXACT
@given(trace=traces(gpus=(1, 2, 4)), tick_s=st.integers(1, 7))
def test_ticks_equal_the_slow_simulator(name: str, trace: Trace, tick_s: int) -> None:
    """What the policy asks for in between happens at multiples of a tick."""
    policy, rule = PAIRS[name]
    found = outcome_of(trace, "1x4", policy, clockwork=DecisionTimes(tick_s=tick_s))

    assert_same(found, slow.run(trace, 4, rule(), tick_s=tick_s))


@pytest.mark.parametrize(
    "name", ["fifo", "fifo_skip", "fewest_gpus", "srtf", "srsf", "discrete_las"]
)
@EXACT
@given(seed=st.integers(0, 10_000), zero_s=st.sampled_from([0.0, 1e6]))
def test_any_times_are_near_the_slow_simulator(name: str, seed: int, zero_s: float) -> None:
    """Arbitrary floats, of which no two fall together: ends within microseconds of exact ones."""
    rng = np.random.default_rng(seed)
    trace = make_trace(
        zero_s + np.sort(rng.uniform(0, 60, 12)),
        rng.uniform(0.1, 40, 12),
        rng.choice([1, 2, 3], 12),
    )
    policy, rule = PAIRS[name]
    expected = slow.run(trace, 4, rule())
    found = outcome_of(trace, "1x4", policy).records

    ends = [math.nan if j.end_s is None else float(j.end_s) for j in expected]
    np.testing.assert_allclose(found.end_s, ends, rtol=0, atol=1e-4)
    assert found.preemptions.tolist() == [j.preemptions for j in expected]


def test_hundreds_of_jobs_equal_the_slow_simulator() -> None:
    """So many that rows of jobs that are done are given up, and columns grow, in between."""
    rng = np.random.default_rng(7)
    n = 250
    trace = make_trace(
        np.cumsum(rng.integers(0, 9, n)), rng.integers(1, 22, n), rng.choice([1, 2, 4], n)
    )
    for name in ("fifo", "srtf", "discrete_las, promotion", "las, 1D"):
        policy, rule = PAIRS[name]
        assert_same(outcome_of(trace, "2x4", policy), slow.run(trace, 8, rule()))


def test_the_paper_example_of_srsf() -> None:
    """Tiresias' example: jobs of (2, 2), (1, 8), (2, 6) GPUs x seconds on 2 GPUs, mean 28/3."""
    trace = make_trace([0, 0, 0], [2, 8, 6], [2, 1, 2])

    records = outcome_of(trace, "1x2", Srsf()).records

    assert records.end_s.tolist() == [2.0, 10.0, 16.0]
    assert records.jct_s.mean() == pytest.approx(28 / 3)


def test_rounds_count_from_the_first_submission() -> None:
    """The second job waits from the end of the first at 105 for the round at 107."""
    trace = make_trace([77, 77], [28, 10])

    records = outcome_of(trace, "1x1", Fifo(), clockwork=DecisionTimes(round_s=10)).records

    assert records.start_s.tolist() == [77, 107]
    assert records.end_s.tolist() == [105, 117]


def test_a_restart_that_is_cut_short_costs_only_its_part() -> None:
    """Job 0 is stopped 2 s into a restart of 5 s: 2 + 5 s are lost, and none of its work."""
    trace = make_trace([0, 1, 4], [20, 1, 1])
    costs = FlatCosts(restart_s=5, large_restart_s=5, gpus=trace.gpus)

    records = outcome_of(trace, "1x1", Srtf(), costs=costs).records

    # Runs 0-1, restarts 2-4 (2 s lost), restarts again at 5.
    assert records.end_s.tolist() == [29.0, 2.0, 5.0]
    assert records.all_lost_gpu_s.tolist() == [7.0, 0.0, 0.0]
    assert records.service_gpu_s.tolist() == [27.0, 1.0, 1.0]
    assert records.preemptions.tolist() == [2, 0, 0]


def test_muris_overhead_is_paid_at_every_event_by_jobs_that_go_on() -> None:
    """Job 0 pays 1 s when job 1 comes and when it is done; its own end it meets unforeseen."""
    trace = make_trace([0, 4], [10, 3])

    records = outcome_of(trace, "1x2", Fifo(), costs=MuriCosts(np.array([1.0, 2.0]))).records

    # Work of 10.15 and 3.045 s (1.5 % more). Job 0 does 3 s of it until 4, 2.045 s until 7.045.
    np.testing.assert_allclose(records.end_s, [7.045 + (10.15 - 3 - 2.045), 4 + 3.045], rtol=1e-12)
    np.testing.assert_allclose(records.lost_gpu_s["restart"], [2, 0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(records.lost_gpu_s["slowdown"], [0.15, 0.045], rtol=1e-12)


def test_a_job_larger_than_the_cluster_never_starts_and_stops_only_fifo() -> None:
    """It is not lost: no start, no end. FIFO waits for it for ever, the others pass it by."""
    trace = make_trace([0, 1, 2], [5, 5, 5], [1, 9, 1])

    fifo = outcome_of(trace, "2x4", Fifo()).records
    skip = outcome_of(trace, "2x4", FifoSkip()).records

    assert fifo.finished.tolist() == [True, False, False]
    assert skip.finished.tolist() == [True, False, True]
    assert np.isnan(skip.start_s[1])
    assert not skip.success[1]


def test_a_job_that_failed_in_the_trace_ends_without_success() -> None:
    """It takes its time as it did, and is no success."""
    ending = np.array([Ending.COMPLETED, Ending.FAILED, Ending.CANCELLED], dtype=np.int8)
    records = outcome_of(make_trace([0, 0, 0], [5, 5, 5], ending=ending), "1x4", Fifo()).records

    assert records.finished.all()
    assert records.success.tolist() == [True, False, False]


def test_progress_is_told_and_never_exceeds_the_jobs() -> None:
    """What is reported only grows, up to the number of jobs."""
    told: list[int] = []
    trace = make_trace(np.arange(3000), np.full(3000, 0.5))

    outcome_of(trace, "1x1", Fifo(), progress=told.append)

    assert told[0] == 0
    assert told == sorted(told)
    assert 0 < told[-1] <= 3000


@dataclasses.dataclass(frozen=True)
class _Odd(Fifo):
    """A policy that asks for a wake-up at whatever `again_s` is from now."""

    name: ClassVar[str] = "odd"
    again_s: float = 0.0

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:  # noqa: ARG002
        """Always the same way ahead."""
        return snap.now_s + self.again_s


@pytest.mark.parametrize("again_s", [0.0, -1.0, 1e-9, -math.inf])
def test_a_policy_that_stops_time_is_named(again_s: float) -> None:
    """A wake-up now, again and again, ends the simulation with the policy's name."""
    with pytest.raises(SimulationError, match="policy odd stops time at 3"):
        outcome_of(make_trace([3], [100]), "1x1", _Odd(again_s=again_s))


def test_a_policy_that_wakes_often_is_not_stuck() -> None:
    """Each millisecond is progress, and changes nothing."""
    found = outcome_of(make_trace([3], [2]), "1x1", _Odd(again_s=1e-3))

    assert found.records.end_s.tolist() == [5.0]
    assert 1990 < found.decisions < 2010


@dataclasses.dataclass(frozen=True)
class _Nonsense(Fifo):
    """A policy whose order is no order."""

    name: ClassVar[str] = "nonsense"

    def order(self, snap: Snapshot, /) -> Order:
        """Keys that are no numbers."""
        return dataclasses.replace(super().order(snap), key=np.full(len(snap.jobs), math.nan))


def test_a_nonsense_order_is_refused() -> None:
    """Nothing is simulated by it."""
    with pytest.raises(ValueError, match=r"policy nonsense: .*not a number"):
        outcome_of(make_trace([3], [2]), "1x1", _Nonsense())


def test_a_round_is_not_missed_by_a_rounding_error() -> None:
    """The first job ends in round 34, counted from 12.34 s; the second starts at its end."""
    trace = make_trace([12.34, 12.34], [33.5 * 60, 10])

    records = outcome_of(trace, "1x1", Fifo(), clockwork=DecisionTimes(round_s=60)).records

    assert records.start_s[1] == pytest.approx(12.34 + 34 * 60)


def test_many_arrivals_close_together_are_not_taken_for_a_stuck_policy() -> None:
    """A trace in microseconds: 1,500 jobs, each a microsecond after the last."""
    trace = make_trace(np.arange(1500) * 1e-6, np.ones(1500))

    assert outcome_of(trace, "1x1", Fifo()).records.finished.all()


def test_what_has_become_of_the_jobs_so_far_can_be_asked_before_the_end() -> None:
    """`outcome` speaks of the jobs so far, and does not end the simulation."""
    cluster = IdealCluster(
        trace=make_trace([0], [5]),
        shape=parse_shape("1x1"),
        policy=Fifo(),
        costs=NoCosts(),
        clockwork=DecisionTimes(),
        seed=0,
    )
    assert not cluster.outcome().records.finished.any()
    cluster.run()
    assert cluster.outcome().records.finished.all()


def test_turns_shorter_than_a_restart_end_the_simulation_with_a_reason() -> None:
    """Two jobs take turns of 30 s and a restart takes 62 s: neither is ever done."""
    trace = make_trace([0, 0], [1000, 1000])
    costs = FlatCosts(restart_s=62, large_restart_s=62, gpus=trace.gpus)
    told = 0

    def give_up(_: int) -> None:
        nonlocal told
        told += 1
        assert told < 3, "the simulation has gone on for 4,000 events without an end"

    with pytest.raises(SimulationError):
        outcome_of(trace, "1x1", Las(quantum_s=30), costs=costs, progress=give_up)


@pytest.mark.parametrize(
    ("phase_s", "now_s", "turn_s"),
    [(13, 0, 13), (13, 13, 13), (13, 13.1, 73), (13, 7260, 7273), (0, 60, 60), (0, 61, 120)],
)
def test_rounds_may_begin_later(phase_s: float, now_s: float, turn_s: float) -> None:
    """At the phase and multiples of the round after it; an instant of one is its own turn."""
    times = DecisionTimes(round_s=60, phase_s=phase_s)

    assert times.turn_s(now_s) == turn_s


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("field", ["tick_s", "round_s", "phase_s"])
def test_a_clockwork_of_nonsense_is_refused(field: str, value: float) -> None:
    """Negative, infinite or undefined times are no clock."""
    with pytest.raises(ValueError, match=field):
        DecisionTimes(**{field: value})
