"""What holds for every policy in the ideal cluster, whatever the trace."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_traces import make_trace, outcome_of, traces

from slurm_dl.model.trace import Trace
from slurm_dl.policies.base import Policy
from slurm_dl.policies.registry import POLICIES
from slurm_dl.simulation.ideal.decision_times import DecisionTimes
from slurm_dl.simulation.ideal.start_costs import FlatCosts, QuantileCosts
from slurm_dl.simulation.outcome import Outcome

SIZES: Final = (3.0, 7.0, 20.0, 21.0, 64.0)
PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "discrete_las": {"thresholds_gpu_s": (8.0, 24.0), "promote_knob": 1.5},
    "list_las": {"thresholds_gpu_s": (8.0, 24.0), "promote_knob": 2.0},
    "list_gittins": {"thresholds_gpu_s": (8.0, 24.0), "sizes_gpu_s": SIZES, "quantum_gpu_s": 8.0},
    "las": {"quantum_s": 2.0},
    "gittins": {"quantum_s": 2.0, "sizes_gpu_s": SIZES},
}
"""So small that small traces sink, take turns and are promoted."""

LEASE_S: Final = 4.0

EVERY_POLICY = pytest.mark.parametrize("name", POLICIES)
DRAWN = settings(max_examples=15, deadline=None)

Property = Callable[..., None]


def has_leases(name: str) -> bool:
    """Whether its jobs keep GPUs for leases; most of these solve a program at each decision."""
    return "lease_s" in {field.name for field in dataclasses.fields(POLICIES[name])}


def whose_matters(name: str) -> bool:
    """Users, accounts or names of jobs decide something."""
    needs = {"accounts", "history", "texts"} & set(POLICIES[name].about.needs)
    return bool(needs) and name not in {"mlfs", "static_priority"}  # They read only the QOS.


def for_policies(names: Iterable[str], **drawn: st.SearchStrategy[Any]) -> Callable[..., Property]:
    """Test something of each policy, on fewer traces where a decision takes long."""

    def decorate(test: Property) -> Property:
        @pytest.mark.parametrize("name", sorted(names))
        def each(name: str) -> None:
            @settings(max_examples=2 if has_leases(name) else 6, deadline=None)
            @given(**drawn)
            def one(**values: Any) -> None:  # noqa: ANN401 - what was drawn
                test(name, **values)

            one()

        each.__doc__ = test.__doc__
        return each

    return decorate


def knows_only_times_of(name: str) -> bool:
    """Whether all its times and sizes are among those that a test can set.

    Who looks at history does so by the hour, and who shares by what is left takes the last minute
    of a job for a whole one.
    """
    fields = {f.name for f in dataclasses.fields(POLICIES[name])}
    times = {f for f in fields if f.endswith(("_s", "_h"))}
    needs = set(POLICIES[name].about.needs)
    if "history" in needs or (has_leases(name) and "left_s" in needs):
        return False
    return times <= {*PARAMETERS.get(name, {}), "lease_s"}


def policy_called(name: str, *, scale: float = 1.0) -> Policy:
    """A policy of small parameters, those that are times or service *scale* times as large."""
    values = {
        key: value
        if key == "promote_knob"
        else tuple(v * scale for v in value)
        if isinstance(value, tuple)
        else value * scale
        for key, value in {
            **({"lease_s": LEASE_S} if has_leases(name) else {}),
            **PARAMETERS.get(name, {}),
        }.items()
    }
    return POLICIES[name](**values)


def columns(outcome: Outcome) -> dict[str, npt.NDArray[Any]]:
    """All that an outcome says, by name."""
    records = outcome.records
    found = {
        name: getattr(records, name)
        for name in ("start_s", "end_s", "service_gpu_s", "preemptions", "promotions", "success")
    }
    for name in ("job", "start_s", "end_s", "gpus"):
        found[f"runs.{name}"] = getattr(records.runs, name)
    lost = {f"lost.{cause}": column for cause, column in records.lost_gpu_s.items()}
    counts = np.array([outcome.decisions, outcome.events, outcome.now_s])
    return {**found, **lost, "counts": counts}


def assert_sound(outcome: Outcome, trace: Trace, gpus: int) -> None:
    """The invariants of any simulation."""
    records, runs = outcome.records, outcome.records.runs
    assert len(records) == len(trace)
    # No more GPUs than there are at any instant; what ends at an instant is free at it.
    for at_s in np.unique(runs.start_s):
        assert runs.gpus[(runs.start_s <= at_s) & (at_s < runs.end_s)].sum() <= gpus
    # Each run is whole, and a job's runs follow one another.
    assert (runs.gpus == trace.gpus[runs.job]).all()
    assert (runs.end_s >= runs.start_s).all()
    assert (np.diff(runs.end_s) >= 0).all()
    for row in range(len(trace)):
        mine = runs.job == row
        starts, ends = runs.start_s[mine], runs.end_s[mine]
        assert (starts[1:] >= ends[:-1]).all()
        if trace.gpus[row] > gpus:
            assert not mine.any()
            assert math.isnan(records.end_s[row])
            continue
        if not mine.any():
            continue
        # Never before its submission; first start and last end are those of its runs.
        assert starts[0] == records.start_s[row] >= trace.submit_s[row]
        assert records.end_s[row] == ends[-1]
        assert records.preemptions[row] == mine.sum() - 1
        assert records.service_gpu_s[row] == pytest.approx(
            ((ends - starts) * trace.gpus[row]).sum()
        )
        assert records.service_gpu_s[row] == pytest.approx(
            trace.duration_s[row] * trace.gpus[row] + records.all_lost_gpu_s[row]
        )
    done = records.finished
    rounding = 1e-9 * np.abs(trace.submit_s)
    assert (records.jct_s + rounding >= trace.duration_s)[done].all()
    assert (records.all_lost_gpu_s >= -1e-6).all()
    np.testing.assert_array_equal(records.success, done)
    assert outcome.now_s >= np.max(records.end_s[done], initial=-math.inf)


def idle_while_somebody_fits(outcome: Outcome, trace: Trace, gpus: int) -> list[float]:
    """Starts of stretches in which a job waits that would have fitted on the free GPUs."""
    runs = outcome.records.runs
    instants = np.unique(np.concatenate([trace.submit_s, runs.start_s, runs.end_s]))
    wrong = []
    for at_s in instants.tolist():
        on = (runs.start_s <= at_s) & (at_s < runs.end_s)
        free = gpus - runs.gpus[on].sum()
        over = outcome.records.end_s <= at_s
        waits = (trace.submit_s <= at_s) & ~over & ~np.isin(np.arange(len(trace)), runs.job[on])
        if (trace.gpus[waits] <= free).any():
            wrong.append(at_s)
    return wrong


@for_policies(POLICIES, trace=traces(gpus=(1, 2, 3, 4, 9)), nodes=st.integers(1, 2))
def test_every_outcome_is_sound(name: str, trace: Trace, nodes: int) -> None:
    """Capacity, gangs, nobody lost or run twice, service, order of time; nobody idles who fits."""
    policy = policy_called(name)
    outcome = outcome_of(trace, f"{nodes}x4", policy)

    assert_sound(outcome, trace, nodes * 4)
    if policy.skips:
        fits = trace.gpus <= nodes * 4
        assert outcome.records.finished.tolist() == fits.tolist()
    if policy.skips and not policy.about.idles:
        assert idle_while_somebody_fits(outcome, trace, nodes * 4) == []
    np.testing.assert_allclose(outcome.records.all_lost_gpu_s, 0, atol=1e-6)


@for_policies(
    POLICIES,
    trace=traces(gpus=(1, 2, 4)),
    seed=st.integers(0, 9),
    round_s=st.sampled_from([0.0, 2.0, 7.0]),
    tick_s=st.sampled_from([0.0, 1.0]),
)
def test_costs_rounds_and_ticks_leave_it_sound(
    name: str, trace: Trace, seed: int, round_s: float, tick_s: float
) -> None:
    """Drawn restart costs below a turn, decisions in rounds; and equal inputs, equal outcomes."""
    costs = QuantileCosts("drawn", np.array([0.0, 0.25, 0.75, 1.0]))
    clockwork = DecisionTimes(round_s=round_s, tick_s=tick_s)

    def once() -> Outcome:
        policy = policy_called(name)
        return outcome_of(trace, "1x4", policy, costs=costs, clockwork=clockwork, seed=seed)

    outcome = once()
    assert_sound(outcome, trace, 4)
    if policy_called(name).skips:
        assert outcome.records.finished.all()
    again = columns(once())
    for column, values in columns(outcome).items():
        np.testing.assert_array_equal(values, again[column], err_msg=column)


@for_policies({n for n in POLICIES if not whose_matters(n)}, trace=traces(gpus=(1, 2, 4)))
def test_names_of_jobs_and_users_change_nothing(name: str, trace: Trace) -> None:
    """Ids are words, and who submitted does not matter."""
    n = len(trace)
    other = dataclasses.replace(
        trace,
        job_id=tuple(f"job-{n - i}" for i in range(n)),
        user=np.arange(n, dtype=np.int32) % 2,
        users=("ann", "bob"),
    )
    policy = policy_called(name)

    before, after = columns(outcome_of(trace, "1x4", policy)), outcome_of(other, "1x4", policy)
    for column, values in columns(after).items():
        np.testing.assert_array_equal(values, before[column], err_msg=column)


@for_policies(POLICIES, trace=traces(gpus=(1, 2, 4)), zero_s=st.integers(-1000, 2_000_000_000))
def test_the_zero_of_time_does_not_matter(name: str, trace: Trace, zero_s: int) -> None:
    """The same trace some whole seconds later ends those seconds later."""
    early = dataclasses.replace(trace, submit_s=trace.submit_s - trace.submit_s[:1].sum())
    late = dataclasses.replace(trace, submit_s=early.submit_s + zero_s)
    policy = policy_called(name)

    before = outcome_of(early, "1x4", policy).records
    after = outcome_of(late, "1x4", policy).records
    np.testing.assert_allclose(after.end_s - zero_s, before.end_s, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(after.preemptions, before.preemptions)


@for_policies(
    {n for n in POLICIES if knows_only_times_of(n)} - {"list_las", "list_gittins"},
    trace=traces(gpus=(1, 2, 4)),
)
def test_the_unit_of_time_does_not_matter(name: str, trace: Trace) -> None:
    """All times four times as long, the policy's too: so are the ends. Lists know whole seconds."""
    slow = dataclasses.replace(trace, submit_s=trace.submit_s * 4, duration_s=trace.duration_s * 4)
    before = outcome_of(trace, "1x4", policy_called(name)).records
    after = outcome_of(slow, "1x4", policy_called(name, scale=4.0)).records

    np.testing.assert_array_equal(after.end_s, before.end_s * 4)
    np.testing.assert_array_equal(after.preemptions, before.preemptions)


@for_policies(POLICIES, data=st.data(), n=st.integers(2, 8))
def test_equal_jobs_of_one_instant_can_be_exchanged(name: str, data: st.DataObject, n: int) -> None:
    """Which of several equal jobs is listed first changes which of them ends when, nothing else."""
    duration_s = data.draw(st.integers(1, 30))
    others = data.draw(traces(gpus=(1, 2), most=6))
    submit_s = np.concatenate([np.zeros(n), 1 + others.submit_s - others.submit_s[:1].sum()])
    trace = make_trace(
        submit_s,
        np.concatenate([np.full(n, duration_s), others.duration_s]),
        np.concatenate([np.full(n, 2), others.gpus]),
    )
    order = np.concatenate([data.draw(st.permutations(range(n))), np.arange(n, len(trace))])
    other = dataclasses.replace(trace, job_id=tuple(str(i) for i in order))
    policy = policy_called(name)

    before = outcome_of(trace, "1x4", policy).records
    after = outcome_of(other, "1x4", policy).records
    end_of = dict(zip(after.job_id, after.end_s.tolist(), strict=True))
    assert sorted(end_of.values()) == sorted(before.end_s.tolist())
    for row in range(n, len(trace)):
        assert end_of[str(row)] == before.end_s[row]


@EVERY_POLICY
def test_an_empty_trace_is_an_empty_outcome(name: str) -> None:
    """No job, no event, no decision."""
    outcome = outcome_of(make_trace([], []), "2x4", policy_called(name))

    assert len(outcome.records) == len(outcome.records.runs) == 0
    assert (outcome.events, outcome.decisions, outcome.now_s) == (0, 0, 0.0)


@EVERY_POLICY
def test_one_job_runs_at_once_and_undisturbed(name: str) -> None:
    """It ends after its duration, though it passes all thresholds on the way."""
    outcome = outcome_of(make_trace([17.5], [1000], [4]), "1x4", policy_called(name))

    assert outcome.records.start_s.tolist() == [17.5]
    assert outcome.records.end_s.tolist() == [1017.5]
    assert outcome.records.preemptions.tolist() == [0]
    assert outcome.records.runs.job.tolist() == [0]


@for_policies(POLICIES, trace=traces(gpus=(1, 2, 4)))
def test_without_contention_nobody_waits_under_any_policy(name: str, trace: Trace) -> None:
    """With room for all, every job ends its duration after its submission."""
    records = outcome_of(trace, "12x4", policy_called(name)).records

    np.testing.assert_array_equal(records.end_s, trace.submit_s + trace.duration_s)
    assert not records.preemptions.any()


@for_policies(POLICIES, trace=traces(gpus=(1,)))
def test_on_one_gpu_the_busy_time_is_the_same_for_all(name: str, trace: Trace) -> None:
    """Free preemption and no idling: the instants at which the queue runs empty are FIFO's."""
    end_s, at_s = [], -math.inf
    for submit_s, duration_s in zip(trace.submit_s, trace.duration_s, strict=True):
        if submit_s > at_s > -math.inf:
            end_s.append(at_s)
        at_s = max(at_s, submit_s) + duration_s
    end_s += [at_s] * (len(trace) > 0)

    runs = outcome_of(trace, "1x1", policy_called(name)).records.runs
    starts, ends = np.sort(runs.start_s), np.sort(runs.end_s)
    found = ends[np.append(starts[1:], math.inf)[: len(ends)] > ends]
    np.testing.assert_allclose(found, end_s, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["fifo", "fifo_skip"])
@DRAWN
@given(trace=traces(gpus=(1, 2, 4)))
def test_first_in_first_out_preempts_nobody(name: str, trace: Trace) -> None:
    """One run a job; and without skipping jobs start in the order in which they came."""
    costs = FlatCosts(restart_s=50, large_restart_s=50, gpus=trace.gpus)
    records = outcome_of(trace, "1x4", policy_called(name), costs=costs).records

    assert not records.preemptions.any()
    assert len(records.runs) == len(trace)
    assert not records.all_lost_gpu_s.any()
    if name == "fifo":
        assert (np.diff(records.start_s) >= 0).all()


@DRAWN
@given(trace=traces(gpus=(1,)), name=st.sampled_from(sorted(POLICIES)))
def test_nobody_beats_srtf_on_one_gpu(trace: Trace, name: str) -> None:
    """Shortest remaining time first has the smallest mean completion time (Schrage 1968)."""
    best = outcome_of(trace, "1x1", policy_called("srtf")).records.jct_s
    other = outcome_of(trace, "1x1", policy_called(name)).records.jct_s

    assert best.sum() <= other.sum() + 1e-6 * len(trace)


def test_where_nothing_costs_nothing_is_lost() -> None:
    """Loss is a cost and never negative, however large the numbers of seconds are."""
    trace = make_trace(1.7e9 + np.arange(9) * 0.7, np.full(9, 0.3), np.full(9, 8))

    lost = outcome_of(trace, "1x8", policy_called("fifo")).records.all_lost_gpu_s
    assert lost.tolist() == [0.0] * 9
