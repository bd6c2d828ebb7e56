"""ElasticFlow: the minimum satisfactory share, and its published setting on 195 jobs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.experiments.oracle import Oracle
from slurm_dl.policies.arithmetic.calendar import Calendar, Need
from slurm_dl.policies.arithmetic.elastic_plans import minimum_share
from slurm_dl.policies.arithmetic.slots import SlotTable
from slurm_dl.policies.base import Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.edf import Edf
from slurm_dl.policies.elasticflow import ElasticFlow
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal.decision_times import DecisionTimes
from slurm_dl.simulation.ideal.simulator import simulate
from slurm_dl.simulation.ideal.start_costs import FlatCosts, NoCosts
from slurm_dl.simulation.outcome import DeadlinesMet
from slurm_dl.traces.format_registry import read_trace

GPUS = (1, 2, 4, 8)
RATES = np.array([1.0, 1.8, 3.0, 4.4])
TRACES = Path(__file__).parents[2] / "traces/elasticflow/enriched"


@pytest.mark.parametrize(
    ("free", "work", "gpus"),
    [
        (16, 100, 1), (16, 170, 2), (16, 290, 4), (16, 500, None),
        (16, 440, 8),  # Exactly what the largest size does
        (3, 180, 2),  # Three GPUs are free: the largest size that fits them is two
        (3, 181, None),
    ],
)  # fmt: skip
def test_the_least_size_that_meets_the_deadline(free: int, work: float, gpus: int | None) -> None:
    """100 s to the deadline, in ten slots."""
    largest = np.full(10, max(i for i, size in enumerate(GPUS) if size <= free))
    plan = minimum_share(largest, RATES, work, np.full(10, 10.0))
    assert (None if plan is None else GPUS[plan.max()]) == gpus


def by_hand(largest: Sequence[int], rates: Sequence[float], work: float) -> list[int] | None:
    """The same plan, slot by slot from the last one, in slots of a second."""
    for most in range(len(rates)):
        plan, left = [-1] * len(largest), work
        for slot in reversed(range(len(largest))):
            if left <= 1e-6:
                break
            plan[slot] = min(most, largest[slot])
            left -= rates[plan[slot]] if plan[slot] >= 0 else 0.0
        if left <= 1e-6:
            return plan
    return None


@settings(max_examples=300)
@given(
    st.lists(st.integers(-1, 3), min_size=1, max_size=12),
    st.lists(st.floats(0.1, 3), min_size=4, max_size=4),
    st.floats(0.1, 60),
)
def test_a_plan_is_filled_backwards_with_the_least_size(
    largest: list[int], steps: list[float], work: float
) -> None:
    rates = list(itertools.accumulate(steps))
    plan = minimum_share(np.array(largest), np.array(rates), work, np.ones(len(largest)))
    assert (None if plan is None else plan.tolist()) == by_hand(largest, rates, work)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 90), st.integers(1, 40)), max_size=6),
    st.sampled_from([5, 10, 30]),
    st.integers(0, 25),
    st.booleans(),
)
def test_slots_have_what_is_free_for_all_of_their_time(
    windows: list[tuple[int, int, int]],
    slot_s: int,
    now_s: int,
    relied: bool,  # noqa: FBT001
) -> None:
    """Against a table with an entry for each second; one of two resources is courteous."""
    calendar, free, used = Calendar(now_s), np.full((2, 400), 4), np.zeros((2, 400))
    for which in (0, 1):
        calendar.open((which,), 4)
    for units, begin_s, long_s in windows:
        need = Need({(0,): units, (1,): units}, relies=frozenset({(1,)} if relied else ()))
        calendar.take(need, now_s + begin_s, now_s + begin_s + long_s)
        span = slice(now_s + begin_s, now_s + begin_s + long_s)
        free[:, span] -= units
        used[1, span] += units * relied
    table = SlotTable(calendar, slot_s, 200)
    slots = [
        slice(max(k * slot_s, now_s), (k + 1) * slot_s) for k in range(table.first, 200 // slot_s)
    ]
    needs = [Need({(0,): n, (1,): n}, courteous=frozenset({(1,)})) for n in (1, 2, 4)]
    ok = [
        [
            (free[0, slot] >= n).all() and ((free[1, slot] >= n).all() or not used[1, slot].any())
            for slot in slots
        ]
        for n in (1, 2, 4)
    ]
    assert [table.fits(need).tolist() for need in needs] == ok
    assert table.largest(needs, 400).tolist() == [sum(each) - 1 for each in zip(*ok, strict=True)]


# --- the published setting ----------------------------------------------------------------------


def met(policy: Policy, nodes: int, *, elastic: bool, restart_s: float = 0.0) -> DeadlinesMet:
    """Deadlines of the 195 jobs that are met; sizes and speeds as they were measured on A100s."""
    trace, shape = read_trace(TRACES / "195job.csv"), parse_shape(f"{nodes}x8")
    known = Oracle(elastic=float(elastic)).of(trace, None, 0, shape=shape)
    costs = FlatCosts(restart_s=restart_s, large_restart_s=restart_s, gpus=trace.gpus)
    found = simulate(
        trace, shape, policy, known=known, costs=costs if restart_s else NoCosts(),
        clockwork=DecisionTimes(round_s=60, tick_s=60),
    ).deadlines  # fmt: skip
    assert found is not None
    return found


def test_elastic_jobs_meet_more_deadlines_than_rigid_ones() -> None:
    """The direction of the paper, section 6: 1.46 to 7.65 times the deadlines of others."""
    vary = met(ElasticFlow(once=False, margin=0.0), 16, elastic=True)
    once = met(ElasticFlow(margin=0.0), 16, elastic=True)
    rigid = met(ElasticFlow(margin=0.0), 16, elastic=False)
    las = met(DiscreteLas(), 16, elastic=False)
    edf = met(Edf(admits=False), 16, elastic=False)

    assert (vary.met, las.met) == (177, 93)
    assert once.met >= 162
    assert vary.met > once.met > rigid.met >= las.met
    assert vary.met > 1.46 * max(las.met, edf.met)
    for one in (vary, once, rigid):
        assert one.kept == one.promised > 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("nodes", "once", "restart_s", "promised", "keeps"),
    [
        (8, False, 0, 162, True),
        (8, True, 0, 104, True),
        (16, False, 100, 174, False),
        (16, True, 100, 167, True),
    ],
)
def test_half_the_cluster_and_dear_changes(
    nodes: int, *, once: bool, restart_s: float, promised: int, keeps: bool
) -> None:
    """Where a change of size costs, plans that change break promises, and windows do not."""
    found = met(ElasticFlow(once=once, margin=0.0), nodes, elastic=True, restart_s=restart_s)
    assert found.promised == pytest.approx(promised, abs=0.03 * promised)
    assert (found.promised == found.kept) == keeps
