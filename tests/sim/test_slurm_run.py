"""A simulated Slurm as a whole: closed forms for one job and one preemption, and invariants."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import slurm_scenarios as scenes
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.config.daemon_section import DaemonSection
from slurm_dl.daemon import rate_limits
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.model.completed_jobs import Records
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import JobState
from slurm_dl.model.trace import Ending
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.elastic.afs import Afs
from slurm_dl.simulation.job_knowledge import JobSizes, TraceKnowledge
from slurm_dl.simulation.outcome import Outcome
from slurm_dl.simulation.slurm import scenario
from slurm_dl.simulation.slurm.daemon_timing import NEVER_QUIET, delay_after
from slurm_dl.simulation.slurm.job_columns import JobBehaviour, NodeFailures
from slurm_dl.simulation.slurm.machine import Machine
from slurm_dl.simulation.slurm.overheads import IDEAL, PRODUCTION, SANDBOX, SlurmCosts
from slurm_dl.simulation.slurm.scenario import Simulation
from slurm_dl.simulation.slurm.simulated_cluster import EPOCH_S

LONG_AND_SHORT = [(0.0, 100.0, 1.0), (20.0, 10.0, 1.0)]
"""On one GPU with a threshold of 10 GPU-seconds the second job takes the first one's GPU."""


def preempted(**costs: float) -> Records:
    """The long and the short job under discrete_las."""
    return habitual({}, **costs)


def habitual(habits: Mapping[str, float], **costs: float) -> Records:
    """The same of jobs with these habits."""
    more = {"habits": JobBehaviour(limit_factor=100.0, **habits)} if habits else {}
    what = scenes.scenario(LONG_AND_SHORT, costs=scenes.ideal(**costs), **more)
    return scenes.scheduled(what).records


def lost(records: Records, cause: str) -> list[float]:
    """GPU-seconds lost to *cause*, job by job."""
    return [*np.round(records.lost_gpu_s.get(cause, np.zeros(len(records))), 6)]


# One job alone.


OF_A_RUN = ("submit_s", "launch_s", "finish_s")
OF_OTHERS = ("epilog_s", "save_s", "restore_s", "cred_expire_s", "observe_s", "poll_s")


@pytest.mark.parametrize("cost", [*OF_A_RUN, *OF_OTHERS])
def test_a_job_alone_takes_its_time_and_what_its_start_and_end_cost(cost: str) -> None:
    records = scenes.plain([(5.0, 30.0, 1.0)], costs=scenes.ideal(**{cost: 7.0}))

    assert records.jct_s[0] == pytest.approx(30.0 + 7.0 * (cost in OF_A_RUN))
    assert records.success.all()


def test_a_job_starts_with_the_first_tick_after_its_submission() -> None:
    """With backfill out of the way it waits less than a tick; over many phases, half of one."""
    costs = scenes.ideal(sched_tick_s=8.0, sched_interval_s=1e6, bf_interval_s=1e6)
    waits = [
        float(scenes.plain([(100.0, 30.0, 1.0)], costs=costs, seed=s).start_s[0]) - 100.0
        for s in range(200)
    ]

    assert 0.0 <= min(waits) <= max(waits) < 8.0
    assert np.mean(waits) == pytest.approx(4.0, abs=0.5)


def test_passes_that_are_asked_for_keep_their_distance() -> None:
    """The second job comes right after the pass that started the first one."""
    jobs = [(0.0, 1000.0, 1.0), (50.0, 10.0, 1.0), (50.5, 10.0, 1.0)]
    costs = scenes.ideal(
        sched_tick_s=1.0, sched_interval_s=1e6, batch_sched_delay_s=20.0, bf_interval_s=1e6
    )
    started = scenes.plain(jobs, "1x4", costs=costs).start_s

    assert started[1] - 50.0 <= 1.0
    assert started[2] - started[1] in (0.0, pytest.approx(20.0))


def test_nobody_tells_the_scheduler_that_a_requeued_job_is_eligible() -> None:
    """It starts with the next pass of the interval."""
    costs = {"sched_tick_s": 1.0, "sched_interval_s": 60.0, "bf_interval_s": 1e6}
    jobs = [(0.0, 300.0, 1.0), (70.0, 10.0, 1.0)]
    outcome = scenes.scheduled(scenes.scenario(jobs, costs=scenes.ideal(cred_expire_s=19, **costs)))
    runs = outcome.records.runs
    first_again = float(runs.start_s[runs.job == 0][1])
    first = float(runs.start_s[0])

    assert (first_again - first) % 1.0 == pytest.approx(0.0, abs=1e-6)
    assert first_again - float(runs.end_s[0]) >= 19.0
    assert outcome.records.preemptions.tolist() == [1, 0]


def test_a_job_ends_as_the_trace_says() -> None:
    """A gang that could never start is refused."""
    ending = [Ending.FAILED, Ending.CANCELLED, Ending.COMPLETED]
    records = scenes.plain([(0.0, 5.0, 1.0)] * 3, ending=ending)

    assert records.success.tolist() == [False, False, True]
    assert records.finished.all()
    with pytest.raises(ConfigError, match=r"1 jobs of 9 GPUs fit no equal shares of 2 nodes"):
        scenes.plain([(0.0, 1.0, 9.0)], "2x4")


def test_a_job_ends_at_its_time_limit() -> None:
    """Its processes get until KillWait, and its GPUs are the next one's after that."""
    jobs = [(0.0, 500.0, 1.0), (0.0, 5.0, 1.0)]
    limit_s = np.array([60.0, 60.0])
    stays = scenes.scenario(
        jobs,
        limit_s=limit_s,
        habits=JobBehaviour(ignore_frac=1.0),
        costs=scenes.ideal(stop_s=2.0, kill_wait_s=30.0),
    )
    records = scenario.simulate_plain(stays).records

    assert records.end_s[0] == 60.0
    assert not records.success[0]
    assert records.start_s[1] == 90.0
    leaves = dataclasses.replace(stays, habits=JobBehaviour())
    assert scenario.simulate_plain(leaves).records.start_s[1] == 62.0


# One preemption.


@pytest.mark.parametrize(
    ("cost", "short_s", "long_s", "lost_by"),
    [
        ("observe_s", 0.0, 0.0, {}),
        # What stands between the signal and the free GPU delays both.
        ("save_s", 3.0, 3.0, {"saving": [3.0, 0.0]}),
        ("signal_s", 3.0, 0.0, {}),
        ("ack_s", 3.0, 3.0, {"stopping": [3.0, 0.0]}),
        ("stop_s", 3.0, 3.0, {"stopping": [3.0, 0.0]}),
        # The restart of the long one.
        ("restore_s", 0.0, 3.0, {"restore": [3.0, 0.0]}),
        # Twice on the way of the long job: after its own first run, and after the short one.
        ("epilog_s", 3.0, 6.0, {"stopping": [3.0, 0.0], "ending": [3.0, 3.0]}),
        # The long one starts late, and so does all that follows.
        ("launch_s", 3.0, 9.0, {"launch": [6.0, 3.0]}),
    ],
)
def test_each_cost_of_a_preemption_has_its_place(
    cost: str, short_s: float, long_s: float, lost_by: dict[str, list[float]]
) -> None:
    """While the signal is on its way the long job still works: only the short one waits for it."""
    records = preempted(**({cost: 3.0} if long_s or short_s else {}))

    assert records.end_s.tolist() == pytest.approx([110.0 + long_s, 30.0 + short_s])
    assert records.preemptions.tolist() == [1, 0]
    for cause, gpu_s in lost_by.items():
        assert lost(records, cause) == gpu_s
    assert records.all_lost_gpu_s.sum() == pytest.approx(sum(map(sum, lost_by.values())))


def test_a_requeued_job_is_held() -> None:
    """For cred_expire and a second, though its GPU is free at 30 s."""
    records = preempted(cred_expire_s=49.0)

    assert records.runs.start_s[2] == pytest.approx(20.0 + 50.0)
    assert records.end_s[0] == pytest.approx(150.0)


def test_a_daemon_that_looks_rarely_acts_late() -> None:
    """Looking every 16 s it sees the short job within 16 s, and requeues the long one 16 s on.

    Commands take their time: a SiteFactor, a reservation, an attachment, signal and requeue (2 x).
    """
    assert 36.0 < preempted(poll_s=16.0, fast_poll_s=16.0).runs.end_s[0] < 52.0
    quick, slow = preempted(), preempted(rpc_s=0.25)
    assert slow.runs.end_s[0] - quick.runs.end_s[0] == pytest.approx(7 * 0.25, abs=1.0)


DEAF = {"ignore_frac": 1.0, "grace_s": 30.0}


def test_a_job_that_does_nothing_is_killed_after_its_grace_and_works_again() -> None:
    """Signalled at 20, requeued at 50, killed at 60: 50 s of work are done again.

    With a checkpoint every 8 s, each taking 1 s, at 50 s five are written and 5 s are not in them.
    """
    records = habitual(DEAF, kill_wait_s=10.0)
    assert records.runs.end_s[0] == pytest.approx(60.0)
    assert lost(records, "redone") == [50.0, 0.0]
    assert lost(records, "stopping") == [10.0, 0.0]
    assert records.end_s[0] == pytest.approx(70.0 + 100.0)

    records = habitual({**DEAF, "checkpoint_every_s": 8.0}, save_s=1.0)
    assert lost(records, "redone") == [5.0, 0.0]
    # 100 s of work take 12 checkpoints, the 60 s that are left 7.
    assert lost(records, "checkpoint")[0] == 5.0 + 7.0


@pytest.mark.parametrize(
    ("habits", "end_s", "runs", "preemptions"),
    [
        pytest.param({"finish_frac": 1.0}, [24.0, 34.0], 2, [0, 0], id="finishes on the signal"),
        pytest.param({"requeue_itself_frac": 1.0}, [114.0, 34.0], 3, [1, 0], id="requeues itself"),
        pytest.param({"opted_in_frac": 0.0}, [100.0, 110.0], 2, [0, 0], id="has not opted in"),
    ],
)
def test_what_a_job_does_on_the_signal(
    habits: dict[str, float], end_s: list[float], runs: int, preemptions: list[int]
) -> None:
    """It is not waited for longer, not run again, or left alone."""
    records = habitual(habits, save_s=4.0)

    assert records.end_s.tolist() == end_s
    assert len(records.runs) == runs
    assert records.preemptions.tolist() == preemptions


def test_a_job_whose_code_has_ended_is_not_run_again() -> None:
    """The signal comes too late, and the requeue before Slurm knows that the job is done."""
    habits = JobBehaviour(grace_s=7.0, limit_factor=100.0)
    costs = scenes.ideal(signal_s=10.0, finish_s=20.0)
    jobs = [(0.0, 100.0, 1.0), (95.0, 5.0, 1.0)]
    records = scenes.scheduled(scenes.scenario(jobs, habits=habits, costs=costs)).records

    assert records.end_s[0] == pytest.approx(120.0)
    assert len(records.runs) == 2
    assert lost(records, "ending") == [20.0, 20.0]


def test_promotions_are_counted() -> None:
    """The long job is stopped for a stream of short ones, and promoted when it has waited."""
    stream = [(0.0, 100.0, 1.0), *((20.0 + 4.0 * i, 8.0, 1.0) for i in range(20))]
    records = scenes.scheduled(scenes.scenario(stream), knob=2.0).records

    assert records.promotions[0] >= 1
    assert records.promotions[1:].sum() == 0
    assert records.success.all()


# Nodes that break.


def test_a_node_that_dies_takes_its_jobs_work_with_it() -> None:
    """What is lost is the work since the start, and the time until somebody notices."""
    failing = scenes.scenario(
        [(0.0, 400.0, 1.0)],
        failures=NodeFailures(mtbf_s=300.0, mttr_s=10.0),
        costs=scenes.ideal(slurmd_timeout_s=25.0),
        seed=3,
    )
    records = scenario.simulate_plain(failing).records
    deaths = len(records.runs) - 1

    assert deaths >= 1
    assert records.success.all()
    assert lost(records, "failure") == [25.0 * deaths]
    assert records.service_gpu_s[0] - records.all_lost_gpu_s[0] == pytest.approx(400.0)
    assert records.preemptions.sum() == 0


# What must always hold.

JOBS = st.lists(
    st.tuples(
        st.floats(0, 200, allow_subnormal=False),
        st.floats(1, 100, allow_subnormal=False),
        st.sampled_from([1.0, 2.0, 4.0, 6.0]),
    ),
    min_size=1,
    max_size=8,
)
HABITS = st.sampled_from(
    [
        JobBehaviour(limit_factor=100.0, grace_s=20.0),
        JobBehaviour(limit_factor=100.0, grace_s=20.0, ignore_frac=0.5, checkpoint_every_s=20.0),
        JobBehaviour(limit_factor=100.0, grace_s=5.0, finish_frac=0.3, requeue_itself_frac=0.3),
        JobBehaviour(limit_factor=100.0, opted_in_frac=0.5, requeue_itself_frac=0.5),
    ]
)
COSTS = st.sampled_from(
    [
        IDEAL,
        SANDBOX,
        PRODUCTION,
        dataclasses.replace(SANDBOX, save_s=3.0, restore_s=2.0),
        dataclasses.replace(IDEAL, save_s=30.0, rpc_s=0.5, bf_interval_s=7.0),
    ]
)
FAILURES = st.sampled_from([None, NodeFailures(mtbf_s=2000.0, mttr_s=50.0)])
LIMITS = dataclasses.replace(scenes.EAGER, min_quantum_s=15.0, cooldown_s=10.0)


@st.composite
def scenarios(draw: st.DrawFn) -> scenario.Scenario:
    return scenes.scenario(
        sorted(draw(JOBS)),
        "2x4",
        costs=draw(COSTS),
        habits=draw(HABITS),
        failures=draw(FAILURES),
        seed=draw(st.integers(0, 5)),
    )


def check(outcome: Outcome, what: scenario.Scenario) -> None:
    """Everything that is true of any simulation that has come to its end."""
    records, runs, trace = outcome.records, outcome.records.runs, what.trace
    assert records.finished.all()
    assert records.success.all()
    assert (runs.end_s >= runs.start_s).all()
    # Capacity: GPUs in use only change when a run begins or ends.
    for at_s in runs.start_s:
        using = (runs.start_s <= at_s) & (runs.end_s > at_s)
        assert runs.gpus[using].sum() <= what.shape.gpus
    for row in range(len(trace)):
        mine = runs.job == row
        start_s, end_s = np.sort(runs.start_s[mine]), np.sort(runs.end_s[mine])
        # Never twice at a time, never before it was submitted, and once to its end.
        assert (start_s[1:] >= end_s[:-1]).all()
        assert start_s[0] >= trace.submit_s[row]
        assert records.start_s[row] == start_s[0]
        assert records.end_s[row] <= end_s[-1]
    held_gpu_s = np.bincount(
        runs.job, (runs.end_s - runs.start_s) * runs.gpus, minlength=len(trace)
    )
    assert records.service_gpu_s == pytest.approx(held_gpu_s)
    if not what.habits.finish_frac:
        work = trace.duration_s * trace.gpus
        assert records.service_gpu_s - records.all_lost_gpu_s == pytest.approx(work)
    assert all((lost_gpu_s >= -1e-6).all() for lost_gpu_s in records.lost_gpu_s.values())


def same(one: Records, other: Records) -> bool:
    """Whether two records are equal in everything."""
    mine, yours = dataclasses.asdict(one), dataclasses.asdict(other)
    return bool(_equal(mine, yours))


def _equal(one: Any, other: Any) -> bool:  # noqa: ANN401
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))
    return bool(one == other)


@settings(max_examples=60, deadline=None)
@given(what=scenarios())
def test_plain_slurm_keeps_the_rules(what: scenario.Scenario) -> None:
    outcome = scenario.simulate_plain(what)

    check(outcome, what)
    assert outcome.records.preemptions.sum() == 0
    assert same(outcome.records, scenario.simulate_plain(what).records)


@settings(max_examples=15, deadline=None)
@given(what=scenarios())
def test_slurm_with_the_daemon_keeps_the_rules(what: scenario.Scenario) -> None:
    outcome = scenes.scheduled(what, 60.0, 400.0, limits=LIMITS)

    check(outcome, what)


def watched(what: scenario.Scenario, limits: Preemption) -> tuple[list[Cycle], Machine]:
    """Every cycle of a simulation, and the machine after it."""
    simulation = Simulation(
        what,
        policy=DiscreteLas(thresholds_gpu_s=(60.0, 400.0)),
        settings=Settings(partitions=frozenset({"gpu"}), preemption=limits),
    )
    cycles: list[Cycle] = []
    cycle_of = simulation._cycle

    def cycle(*, acting: bool) -> Cycle:
        cycles.append(cycle_of(acting=acting))
        machine = simulation._machine
        assert (machine.room.free >= 0).all()
        taken = sum(
            machine.jobs.share[row] * len(nodes) for row, nodes in machine.room.holds.items()
        )
        assert machine.room.free.sum() + taken == what.shape.gpus
        for row, nodes in machine.room.holds.items():
            # Gangs whole: each on as many different nodes as it asked for.
            assert len(set(nodes.tolist())) == machine.jobs.n_nodes[row]
        return cycles[-1]

    simulation._cycle = cycle  # type: ignore[method-assign]
    simulation.run()
    return cycles, simulation._machine


def busy(n: int, seed: int) -> list[scenes.Job]:
    """Sixty jobs or so that want twice what there is."""
    rng = np.random.default_rng(seed)
    submit = np.cumsum(rng.exponential(8.0, n))
    gpus = rng.choice([1.0, 2.0, 4.0, 8.0], n, p=[0.4, 0.3, 0.2, 0.1])
    return [*zip(submit.tolist(), rng.exponential(60.0, n) + 5.0, gpus.tolist(), strict=True)]


@pytest.mark.parametrize(
    "costs", [IDEAL, dataclasses.replace(SANDBOX, save_s=1.0, restore_s=1.0), PRODUCTION]
)
def test_sixty_jobs_end_once_each_with_hand_overs_on_the_way(costs: SlurmCosts) -> None:
    what = scenes.scenario(busy(60, 1), "4x4", costs=costs)
    cycles, machine = watched(what, LIMITS)

    records = machine.jobs.records()
    assert records.success.all()
    assert records.preemptions.sum() > 5
    assert (machine.jobs.state != JobState.PENDING).all()
    seen: dict[int, float] = {}
    last_s = -math.inf
    for cycle in cycles:
        # Time only goes forward, and so does what a job has had.
        assert cycle.snapshot.now_s >= last_s
        last_s = cycle.snapshot.now_s
        for job_id, attained in zip(
            cycle.snapshot.jobs.job_id.tolist(),
            cycle.snapshot.memory.attained_gpu_s.tolist(),
            strict=True,
        ):
            assert attained >= seen.get(job_id, 0.0)
            seen[job_id] = attained
    looked_s = last_s - EPOCH_S
    for row in np.flatnonzero(records.end_s < looked_s).tolist():
        # The ledger counts whole seconds, from whole seconds.
        runs = 2 + int(records.preemptions[row])
        assert abs(seen[row + 1] - records.service_gpu_s[row]) <= 2 * runs * records.gpus[row]
    # A job may end between the look and the act; nothing else is ever refused.
    errors = [done.error for cycle in cycles for done in cycle.done if done.error]
    assert all("is not in the run that was chosen any more" in error for error in errors)


@pytest.mark.parametrize(
    ("costs", "times", "seed", "overdue_s"),
    [
        (SANDBOX, 1, 2, 0.0),
        (PRODUCTION, 40, 1, 0.0),
        (PRODUCTION, 40, 2, 0.0),
        (PRODUCTION, 40, 2, 2_500.0),
    ],
)
def test_looks_that_are_left_out_would_have_changed_nothing(
    costs: SlurmCosts, times: int, seed: int, overdue_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [(times * at_s, times * long_s, gpus) for at_s, long_s, gpus in busy(15, seed)]
    what = scenes.scenario(jobs, "1x8", costs=costs, seed=seed)
    edges = (60.0 * times, 400.0 * times)
    limits = dataclasses.replace(LIMITS, min_quantum_s=25.0 * times, cooldown_s=40.0 * times)
    with_gaps = scenes.scheduled(what, *edges, limits=limits, knob=3.0, overdue_s=overdue_s)
    monkeypatch.setattr(scenario, "quiet_until", lambda *_, **__: NEVER_QUIET)
    without = scenes.scheduled(what, *edges, limits=limits, knob=3.0, overdue_s=overdue_s)

    assert with_gaps.decisions < 0.9 * without.decisions
    assert with_gaps.records.preemptions.sum() > 0
    # To the last bits: the same instants come out of sums and of products.
    assert with_gaps.records.runs.job.tolist() == without.records.runs.job.tolist()
    assert with_gaps.records.runs.start_s == pytest.approx(without.records.runs.start_s, abs=1e-6)
    assert with_gaps.records.end_s == pytest.approx(without.records.end_s, abs=1e-6)


def test_the_pace_is_the_daemons() -> None:
    what = scenes.scenario(busy(20, 4), "2x4", costs=SANDBOX)
    cycles, _ = watched(what, LIMITS)
    costs = dataclasses.replace(SANDBOX, poll_s=30.0, fast_poll_s=5.0)
    section = DaemonSection(poll_s=30.0, fast_poll_s=5.0)

    delays = [delay_after(cycle, costs) for cycle in cycles]
    assert delays == [rate_limits.delay_after(cycle, section) for cycle in cycles]
    assert {5.0, 30.0} <= set(delays)


def test_a_run_is_a_function_of_its_scenario() -> None:
    """The same seed gives the same outcome to the last bit, another seed another draw."""
    what = scenes.scenario(
        busy(30, 5), "2x4", costs=PRODUCTION, failures=NodeFailures(mtbf_s=5000.0, mttr_s=60.0)
    )
    other = dataclasses.replace(what, seed=1)

    assert same(scenes.scheduled(what, 60.0).records, scenes.scheduled(what, 60.0).records)

    assert not same(scenes.scheduled(what, 60.0).records, scenes.scheduled(other, 60.0).records)


def test_the_work_of_one_event_does_not_grow_with_what_is_over() -> None:
    """Finished jobs leave the listing: a long trace is not looked at as a whole."""
    jobs = [(1000.0 * i, 100.0, 1.0) for i in range(50)]
    cycles, machine = watched(scenes.scenario(jobs, costs=PRODUCTION), LIMITS)

    assert max(len(cycle.snapshot.jobs) for cycle in cycles) <= 2
    assert len(machine.listed) <= 2


def test_elastic_jobs_grow_where_nobody_waits() -> None:
    """They end sooner than rigid ones, and have had the GPUs they held, run by run."""
    jobs = [(300.0 * i, 3000.0, 1.0) for i in range(4)]
    size = JobSizes(gpus=np.array([1.0, 2.0, 4.0]), nodes=np.ones(3), rate=np.array([1.0, 1.8, 3]))
    jct_s = []
    for known in (TraceKnowledge(), TraceKnowledge(sizes=(size,) * len(jobs))):
        records = scenario.simulate_slurm(
            scenes.scenario(jobs, "2x4", known=known, costs=PRODUCTION),
            policy=Afs(),
            settings=Settings(partitions=frozenset({"gpu"})),
        ).records
        assert records.success.all()
        jct_s.append(float((records.end_s - records.submit_s).mean()))
        runs = records.runs
        held = np.bincount(runs.job, weights=runs.gpus * (runs.end_s - runs.start_s))
        assert held == pytest.approx(records.service_gpu_s)
    assert set(records.runs.gpus.tolist()) > {1.0}
    assert records.gpus.tolist() == [1.0] * len(jobs)
    assert jct_s[1] < 0.9 * jct_s[0]
