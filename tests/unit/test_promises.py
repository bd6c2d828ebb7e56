"""Promises are kept: windows never move for another job, whatever happens to the daemon."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from promise_world import GRACE, LIMITS, RULES, PromiseWorld
from small_traces import make_trace

from slurm_dl.forecast.forward_runs import ForecastQuestion, foresee
from slurm_dl.model.contract import Contract
from slurm_dl.model.promise import Promise, promises_in
from slurm_dl.policies.arithmetic.calendar import Calendar, Need
from slurm_dl.policies.base import Policy
from slurm_dl.policies.edf import Edf
from slurm_dl.policies.fifo import FifoSkip
from slurm_dl.policies.plain import PLAIN
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.forward.continued_cluster import ForwardTiming
from slurm_dl.simulation.ideal.simulator import IdealCluster
from slurm_dl.simulation.job_knowledge import TraceKnowledge

END_S = 40
WINDOWS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, END_S), st.integers(1, 15)), max_size=8
)


# --- the calendar against a table with an entry for each second ------------------------------


@settings(max_examples=300)
@given(WINDOWS, st.integers(1, 4), st.integers(1, 12), st.integers(1, END_S), st.booleans())
def test_the_calendar_finds_what_a_table_of_seconds_does(
    windows: list[tuple[int, int, int]],
    gpus: int,
    lasts_s: int,
    due_s: int,
    two: bool,  # noqa: FBT001
) -> None:
    """Latest and earliest begin, on one resource and on two of which one is shared."""
    calendar, free = Calendar(0), {("a",): np.full(200, 4), ("b",): np.full(200, 3)}
    for name, table in free.items():
        calendar.open(name, float(table[0]))
    for units, begin_s, long_s in windows:
        for name in (("a",), ("b",)) if units < 3 else (("a",),):
            calendar.take(Need({name: units}), begin_s, begin_s + long_s)
            free[name][begin_s : begin_s + long_s] -= units
    need = Need({("a",): gpus, ("b",): gpus} if two else {("a",): gpus})
    ok = (free["a",] >= gpus) & ((free["b",] >= gpus) | (not two))
    begins = [s for s in range(150) if ok[s : s + lasts_s].all()]
    by_due = [s for s in begins if s + lasts_s <= due_s]
    assert calendar.latest_s(need, lasts_s, due_s) == (max(by_due) if by_due else None)
    assert calendar.earliest_s(need, lasts_s) == (min(begins) if begins else None)
    assert calendar.fits(need, due_s, due_s + lasts_s) == ok[due_s : due_s + lasts_s].all()


def test_a_narrow_group_is_left_to_those_who_have_no_other() -> None:
    """A job that may run anywhere does not take the one node that another relies on."""
    calendar = Calendar(0)
    calendar.open(("wide",), 8)
    calendar.open(("narrow",), 4)
    narrow = Need({("wide",): 4, ("narrow",): 4}, frozenset({("wide",)}), frozenset({("narrow",)}))
    wide = Need({("wide",): 8, ("narrow",): 4}, frozenset({("narrow",)}), frozenset({("wide",)}))
    assert calendar.fits(wide, 0, 10)
    calendar.take(narrow, 5, 15)
    assert not calendar.fits(wide, 0, 10)
    assert calendar.latest_s(wide, 10, 30) == 20
    assert calendar.fits(wide, 15, 25)


# --- the papers' ideal cluster ----------------------------------------------------------------


class Watched(IdealCluster):
    """Keeps each state that a promise has had."""

    told: dict[int, list[Promise]]

    def _decide(self) -> None:
        super()._decide()
        told = self.__dict__.setdefault("told", {})
        for job, promise in promises_in(self._jobs.snapshot(self._now_s).booked).items():
            if not told.setdefault(int(job), []) or told[int(job)][-1] != promise:
                told[int(job)].append(promise)


JOB = st.tuples(
    st.integers(0, 60),  # submitted, minutes
    st.integers(1, 30),  # run time, minutes
    st.sampled_from([1, 2, 4, 8]),
    st.none() | st.floats(1.0, 6.0),  # deadline, in run times
)


def simulated(
    jobs: Sequence[tuple[int, int, int, float | None]], others: str
) -> tuple[Watched, Any]:
    """The ideal cluster of two nodes after *jobs* under edf, and the jobs' ends."""
    jobs = sorted(jobs, key=lambda job: job[0])
    submit_s = np.array([60.0 * job[0] for job in jobs])
    lasts_s = np.array([60.0 * job[1] for job in jobs])
    due_s = submit_s + lasts_s * np.array([math.inf if j[3] is None else j[3] for j in jobs])
    trace = make_trace(submit_s, lasts_s, [job[2] for job in jobs])
    cluster = Watched(
        trace=trace, shape=parse_shape("2x4"), policy=Edf(others=others, margin=0.0),
        known=TraceKnowledge(due_s=due_s), costs=_free(), clockwork=_at_events(), seed=0,
    )  # fmt: skip
    cluster.run()
    return cluster, (due_s, cluster.outcome().records.end_s)


def _free() -> Any:  # noqa: ANN401
    from slurm_dl.simulation.ideal.start_costs import NoCosts  # noqa: PLC0415

    return NoCosts()


def _at_events() -> Any:  # noqa: ANN401
    from slurm_dl.simulation.ideal.decision_times import AT_EVENTS  # noqa: PLC0415

    return AT_EVENTS


@settings(max_examples=200)
@given(st.lists(JOB, min_size=2, max_size=14), st.sampled_from(sorted(PLAIN)))
def test_what_is_promised_is_kept_and_never_moved(
    jobs: list[tuple[int, int, int, float | None]], others: str
) -> None:
    """Each promise has one window for good, whoever comes later, and is kept; a no stays a no."""
    cluster, (due_s, end_s) = simulated(jobs, others)
    for job, states in cluster.__dict__.get("told", {}).items():
        assert len(states) == 1, states
        if states[0].says == "yes":
            assert end_s[job] <= due_s[job] + 1e-3
            assert states[0].end_s is not None
            assert states[0].end_s <= due_s[job]


def test_admission_beats_first_due_first_under_overload() -> None:
    """Ten jobs of ten minutes on all GPUs, all due after thirty: three are in time, or none."""
    jobs = [(0, 10, 8, 3.0)] * 10
    _, (due_s, end_s) = simulated(jobs, "fifo_skip")
    assert (end_s <= due_s).sum() == 3
    late = [(0, 10, 8, 1.0 + i / 20) for i in range(10)]
    _, (due_s, end_s) = simulated(late, "fifo_skip")
    assert (end_s <= due_s).sum() == 1


# --- the engine's loop -----------------------------------------------------------------------


@pytest.mark.parametrize("restart_at_s", [None, 400], ids=["", "restart at half time"])
def test_a_promised_job_starts_in_time(tmp_path: Path, restart_at_s: int | None) -> None:
    """It may displace although it has no contract, and nobody displaces it, a newcomer neither."""
    world = PromiseWorld(tmp_path, nodes=1)
    filler = world.submit(4, 5000, contract=GRACE, save_s=20.0)
    world.look()
    world.cluster.advance(5)
    due = world.submit(2, 300, 900)

    def step() -> bool:
        if restart_at_s and world.cluster.now_s - world.zero_s == restart_at_s:
            world.restart()
        if world.cluster.jobs[due].state.name == "RUNNING" and world.cluster.now_s % 50 == 0:
            world.submit(2, 60, contract=GRACE)
        return world.is_over(due)

    world.run(step)
    assert world.was_in_time(due)
    assert world.cluster.jobs[due].restarts == 0
    assert world.cluster.jobs[filler].restarts == 1
    assert len(set(world.windows[due])) == 1
    world.look()
    assert world.totals().kept == 1
    assert due not in world.booked()


def test_a_job_that_ran_before_is_served_in_its_window(tmp_path: Path) -> None:
    """Its window ends before the deadline, as another begins there: it must not wait for more."""
    world = PromiseWorld(tmp_path, nodes=1)
    again = world.submit(4, 300)
    world.look()
    world.cluster.advance(20)
    world.look()
    world.cluster.requeue(again)
    world.submit(4, 5000, contract=GRACE, save_s=20.0)
    world.cluster.advance(5)
    later = world.submit(4, 300, 1202)  # So that no look falls on a begin.
    world.look()
    world.cluster.due_s[again] = int(world.cluster.now_s) + 1220
    world.run(lambda: world.is_over(again) and world.is_over(later))
    assert world.promises[again].end_s == world.promises[later].begin_s
    assert world.was_in_time(again)
    assert world.was_in_time(later)
    assert len(set(world.windows[again])) == 1


@pytest.mark.parametrize(
    ("lasts_s", "contract", "starts_before"),
    [(200, None, True), (1000, None, False), (1000, GRACE, True)],
    ids=["short", "long", "long, may be preempted"],
)
def test_jobs_that_could_not_be_taken_back_in_time_wait(
    tmp_path: Path,
    lasts_s: int,
    contract: Contract | None,
    starts_before: bool,  # noqa: FBT001
) -> None:
    """All GPUs are free until the window, and only who gives them back in time gets them."""
    world = PromiseWorld(tmp_path, nodes=1, policy=Edf(others="fifo_skip"))
    first = world.submit(4, 30)
    due = world.submit(4, 300, 900)
    world.look()
    world.cluster.advance(5)
    other = world.submit(2, lasts_s, contract=contract, begin_s=world.cluster.now_s + 10)
    # Before the promised job, which it must not keep from starting in the end.
    world.run(lambda: world.cluster.jobs[other].state.name == "RUNNING" or world.is_over(due))
    assert world.is_over(first)
    assert (not world.is_over(due)) == starts_before
    world.run(lambda: world.is_over(due))
    assert world.was_in_time(due)


def test_forecasts_keep_promises(tmp_path: Path) -> None:
    """Promised jobs are in time in each forward run; with fifo_skip alone they are not."""
    world = PromiseWorld(tmp_path, policy=Edf(others="fifo_skip"))
    for _ in range(2):
        world.submit(4, 5000, contract=GRACE)
    world.look()
    world.cluster.advance(60)
    due = [
        world.submit(4, 300, 900),
        world.submit(4, 300, 900),
        world.submit(8, 300, 2000, n_nodes=2),
    ]
    world.look()
    world.cluster.advance(5)
    cycle = world.look()
    assert all(world.booked()[job].is_kept for job in due)

    def in_time(policy: Policy) -> list[bool]:
        found = foresee(
            cycle.snapshot,
            ForecastQuestion(jobs=tuple(due), runs=2),
            policy=policy,
            settings=world.settings,
            pace=ForwardTiming(poll_s=5.0, handover_s=30.0, restore_s=5.0),
        )
        ends = zip(due, found.jobs, strict=True)
        return [one.end.high_s <= world.cluster.due_s[job] for job, one in ends]

    assert all(in_time(world.policy))
    assert not all(in_time(FifoSkip()))


EVENT = st.tuples(st.sampled_from(["due", "be", "kept", "restart"]), st.integers(0, 400))


@settings(max_examples=20, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    st.lists(
        st.tuples(
            EVENT,
            st.sampled_from([1, 2, 4, 8]),
            st.sampled_from([30, 60, 120, 300]),
            st.integers(1, 5),
        ),
        min_size=3,
        max_size=12,
    ),
    st.none() | st.tuples(st.integers(50, 500), st.integers(20, 300)),
)
@example(  # It starts again too late by the seconds between two looks.
    events=[
        (("restart", 158), 2, 120, 3),
        (("due", 23), 1, 60, 3),
        (("be", 62), 1, 60, 2),
        (("due", 138), 8, 300, 2),
        (("be", 272), 2, 120, 3),
        (("due", 157), 2, 300, 3),
        (("due", 63), 8, 120, 4),
        (("be", 6), 8, 300, 2),
        (("be", 280), 1, 300, 1),
    ],
    loss=(205, 31),
)
def test_windows_outlive_the_daemon(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[tuple[tuple[str, int], int, int, int]],
    loss: tuple[int, int] | None,
) -> None:
    """Newcomers and restarts move no window; only a lost node does, and then its cause is told."""
    world = PromiseWorld(tmp_path_factory.mktemp("world"))
    todo = sorted(events, key=lambda e: e[0][1])
    asked = []

    def step() -> bool:
        now_s = world.cluster.now_s - world.zero_s
        while todo and todo[0][0][1] <= now_s:
            (what, _), gpus, lasts_s, times = todo.pop(0)
            nodes = max(1, gpus // 4)
            # Jobs are submitted with a delay, as by dlsubmit: Slurm starts none before a look.
            begin_s = world.cluster.now_s + 25
            if what == "restart":
                world.restart()
            elif what == "due":
                due_s = lasts_s * times + 60
                asked.append(world.submit(gpus, lasts_s, due_s, n_nodes=nodes, begin_s=begin_s))
            else:
                contract = GRACE if what == "be" else None
                world.submit(gpus, lasts_s, n_nodes=nodes, contract=contract, begin_s=begin_s)
        if loss and loss[0] <= now_s < loss[0] + 10:
            world.cluster.lose_node("n1")
        if loss and loss[0] + loss[1] <= now_s < loss[0] + loss[1] + 10:
            world.cluster.return_node("n1")
        return not todo and all(map(world.is_over, asked)) and now_s > 810

    world.run(step, step_s=10, most_s=12_000)
    world.cluster.advance(5)
    world.look()
    yes = [job for job in asked if world.promises[job].says == "yes"]
    late = [job for job in yes if not world.was_in_time(job)]
    totals = world.totals()
    assert totals.kept == len(yes) - len(late)
    assert sum(totals.broken.values()) == len(late)
    assert set(totals.broken) <= ({"node", "room"} if loss else set()), totals
    if loss is None:
        assert all(len(set(world.windows.get(job, []))) <= 1 for job in yes)


# --- shares ------------------------------------------------------------------------------------


def test_early_deadlines_for_everything_gain_no_more_than_the_share(tmp_path: Path) -> None:
    """A user who asks for early deadlines has no more than the account's share at any time."""
    rules = dataclasses.replace(RULES, share=0.5, account_share=0.25)
    world = PromiseWorld(tmp_path, nodes=4, rules=rules)
    others = [world.submit(4, 600, contract=GRACE, uid=2000) for _ in range(8)]
    world.look()
    world.cluster.advance(5)
    greedy = [world.submit(2, 300, 400 + 10 * i, uid=1000) for i in range(20)]

    def step() -> bool:
        running = [j for j in greedy if world.cluster.jobs[j].state.name == "RUNNING"]
        promised = [j for j in running if j in world.promises and world.promises[j].is_kept]
        assert sum(world.cluster.jobs[j].gpus for j in promised) <= 4
        return all(map(world.is_over, others))

    world.run(step)
    said = [world.promises[j].says for j in greedy]
    assert 0 < said.count("yes") < len(said)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda w: w.cluster.lose_node("n1"), "node"),
        (
            lambda w: setattr(
                w,
                "settings",
                dataclasses.replace(
                    w.settings, preemption=dataclasses.replace(LIMITS, enabled=False)
                ),
            ),
            "preemption_off",
        ),
    ],
    ids=["node", "preemption off"],
)
def test_the_cause_is_told_and_passes(tmp_path: Path, change: Any, cause: str) -> None:  # noqa: ANN401
    """While its window cannot be had a promise is broken; it stands again once it can."""
    world = PromiseWorld(tmp_path)
    for _ in range(2):
        world.submit(4, 5000, contract=GRACE)
    world.look()
    world.cluster.advance(5)
    due = world.submit(8, 300, 900, n_nodes=2)
    world.look()
    before = world.booked()[due]
    assert before.is_kept
    settings_before = world.settings
    world.cluster.advance(5)
    change(world)
    world.look()
    assert world.booked()[due].broken == cause
    world.cluster.return_node("n1")
    world.settings = settings_before
    world.cluster.advance(5)
    world.run(lambda: world.is_over(due))
    assert world.was_in_time(due)
