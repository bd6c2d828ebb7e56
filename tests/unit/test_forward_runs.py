"""Forward runs: what they foretell is what happens, and ranges are what they say they are."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from build import NOW_S, observed, pending, running, snapshot
from elastic_jobs import sizes_of
from hypothesis import given, settings
from hypothesis import strategies as st
from pasts import past_columns

from slurm_dl.engine.settings import Preemption, Resizing, Settings
from slurm_dl.forecast import forward_runs
from slurm_dl.forecast.calibration import LAST, MOST_OPEN, ForecastBook, judged
from slurm_dl.forecast.forward_runs import Expected, Forecast, ForecastQuestion, foresee, range_of
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.store_protocol import ForecastRange
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, PENDING, RUNNING, Held, JobState, Origin
from slurm_dl.model.nodes import Allocations
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.model.trace import Trace
from slurm_dl.policies import registry
from slurm_dl.policies.base import Policy
from slurm_dl.policies.fifo import Fifo
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.forward.continued_cluster import ContinuedCluster, ForwardTiming
from slurm_dl.simulation.forward.initial_state import MOST_TASKS, HypotheticalJob, beginning
from slurm_dl.simulation.forward.runtime_distribution import RuntimeDistribution
from slurm_dl.simulation.ideal.decision_times import AT_EVENTS
from slurm_dl.simulation.ideal.simulator import IdealCluster
from slurm_dl.simulation.ideal.start_costs import NoCosts
from slurm_dl.simulation.outcome import Outcome
from slurm_dl.simulation.slurm.scheduler import Backfill

FREE = Settings(
    lease_window=0.0,
    partitions=frozenset({"gpu"}),
    preemption=Preemption(
        beneficiaries="all",
        commitment="ignored",
        min_quantum_s=0.0,
        cooldown_s=0.0,
        max_preemptions=10**9,
        limit_reserve_s=0.0,
        checkpoint_cost_s=0.0,
        max_handovers=10**6,
        max_victims=10**6,
        max_beneficiaries=10**6,
    ),
)
"""No limits: what the policy wants is done at once."""

AT_ONCE = ForwardTiming(
    poll_s=0.0,
    handover_s=0.0,
    hold_s=0.0,
    restore_s=0.0,
    growth=0.0,
    bf_interval_s=0.0,
    backfill=Backfill(resolution_s=0.0, precision_s=0.0, window_s=math.inf, max_jobs=10**6),
)
"""Nothing takes any time: the papers' ideal cluster."""


def trace(n: int, seed: int, gpus: tuple[int, ...]) -> Trace:
    """An hour of submissions."""
    draw = np.random.default_rng(seed)
    return Trace(
        name="t",
        format="generated",
        job_id=tuple(map(str, range(n))),
        submit_s=np.sort(draw.uniform(0, 3600, n)).round(),
        duration_s=np.round(np.exp(draw.normal(6.5, 1.2, n))) + 1,
        gpus=draw.choice(gpus, n).astype(np.float64),
        user=draw.integers(0, 3, n).astype(np.int32),
        model=np.full(n, -1, dtype=np.int32),
        ending=np.zeros(n, dtype=np.int8),
        users=("a", "b", "c"),
    )


class Remembering(IdealCluster):
    """An ideal cluster that keeps its picture at the last arrival, as the daemon would see it."""

    begun: Snapshot | None = None

    def _decide(self) -> None:
        if self._jobs.alive and self._arrived == len(self._trace) and self.begun is None:
            self._account()
            self.begun = seen_by_daemon(self._jobs.snapshot(self._now_s))
        super()._decide()


def seen_by_daemon(snap: Snapshot) -> Snapshot:
    """A copy of a simulation's snapshot with everybody opted in and running jobs on the node."""
    jobs = snap.jobs.take(np.arange(len(snap.jobs)))
    memory = dataclasses.replace(
        snap.memory,
        **{
            f.name: getattr(snap.memory, f.name).copy()
            for f in dataclasses.fields(type(snap.memory))
        },
    )
    on = np.flatnonzero(jobs.state == RUNNING).astype(np.int32)
    held = Allocations(
        job=on,
        node=np.zeros(len(on), dtype=np.int32),
        gpus=jobs.gpus[on],
        cpus=np.ones(len(on), dtype=np.int32),
        mem_mb=np.zeros(len(on), dtype=np.int64),
    )
    claims = {JobId(j): Claim(contract=Contract()) for j in jobs.job_id.tolist()}
    return dataclasses.replace(
        snap,
        seen=dataclasses.replace(snap.seen, jobs=jobs, claims=claims, held=held),
        memory=memory,
        left_s=snap.left_s.copy(),
        progress=snap.progress.copy(),
        credit_s=None,
        on_type=None,
    )


@pytest.mark.parametrize(
    ("name", "parameters", "gpus", "preempts"),
    [
        ("fifo", {}, (1, 2, 4), False),
        ("srtf", {}, (1,), False),
        ("discrete_las", {"thresholds_gpu_s": (200, 600, 3000)}, (1,), True),
        ("las", {}, (1,), True),
        ("arrival_las", {}, (1,), True),
        ("discrete_gittins", {}, (1,), True),
    ],
)
def test_what_is_foretold_is_what_happens(
    name: str,
    parameters: dict[str, object],
    gpus: tuple[int, ...],
    preempts: bool,  # noqa: FBT001
) -> None:
    """Begun in the middle of an ideal simulation, with run times known, all ends are its ends."""
    policy = registry.POLICIES[name](**parameters)
    whole = Remembering(
        trace=trace(40, 0, gpus),
        shape=parse_shape("1x4"),
        policy=policy,
        costs=NoCosts(),
        clockwork=AT_EVENTS,
        seed=0,
    )
    whole.run()
    assert whole.begun is not None
    begun = beginning(whole.begun)

    world = ContinuedCluster(begun, begun.left_s, policy=policy, settings=FREE, pace=AT_ONCE)
    world.run(math.inf, np.arange(len(begun.jobs)))

    truth = ends_of(whole.outcome(), trace(40, 0, gpus))[begun.jobs.job_id]
    assert len(begun.jobs) > 15
    assert (begun.jobs.state == RUNNING).any()
    assert bool(world.preempted.any()) is preempts, "the test would prove nothing"
    np.testing.assert_allclose(world.ended_s, truth, rtol=0, atol=1e-6)


def ends_of(outcome: Outcome, day: Trace) -> F64:
    """When each job was over, seconds since the first submission."""
    ends: F64 = outcome.records.end_s - float(day.submit_s[0])
    return ends


def mixed(seed: int, nodes: int = 3, waiting: int = 8) -> Snapshot:
    """A full cluster of 4-GPU nodes and a queue with jobs of one GPU to two nodes."""
    draw = np.random.default_rng(seed)
    rows, held = [], {}
    for node in range(nodes):
        for size in draw.permutation([1, 1, 2]).tolist():
            job_id = len(rows) + 1
            rows.append(running(job_id, size, ran_s=float(draw.integers(10, 5000))))
            held[job_id] = {node: float(size)}
    for size in draw.choice([1, 2, 4, 8], waiting).tolist():
        rows.append(pending(len(rows) + 1, size, n_nodes=max(1, size // 4), limit_s=36000.0))
    ran_s = {row.job_id: NOW_S - row.start_s for row in rows if row.start_s}
    left_s = draw.integers(100, 9000, len(rows)).astype(np.float64)
    begun = snapshot(
        observed(rows, nodes=(4.0,) * nodes, held=held, opted_in=list(range(1, len(rows) + 1))),
        memory={
            "ran_s": ran_s,
            "attained_gpu_s": {j: ran_s[j] * rows[j - 1].gpus for j in ran_s},
            "first_run_s": {j: NOW_S - ran_s[j] for j in ran_s},
        },
        left_from=np.full(len(rows), Origin.KNOWN, dtype=np.int8),
    )
    return dataclasses.replace(begun, left_s=left_s)


LAS = registry.POLICIES["discrete_las"](thresholds_gpu_s=(600, 3000))
QUANTUM = dataclasses.replace(
    FREE, preemption=dataclasses.replace(FREE.preemption, min_quantum_s=300.0, cooldown_s=60.0)
)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("policy", [Fifo(), LAS], ids=["fifo", "discrete_las"])
def test_a_run_that_is_begun_again_in_its_middle_ends_the_same(policy: Policy, seed: int) -> None:
    """All state is in the snapshot: gangs over nodes, quantum, cool-down, attained service."""
    begun = mixed(seed)
    everybody = np.arange(len(begun.jobs))
    first = ContinuedCluster(begun, begun.left_s, policy=policy, settings=QUANTUM, pace=AT_ONCE)
    first.run(begun.now_s + 1500.0, everybody)
    middle = first.snapshot()
    so_far = first.preempted.sum()
    second = ContinuedCluster(middle, middle.left_s, policy=policy, settings=QUANTUM, pace=AT_ONCE)
    second.run(math.inf, np.arange(len(middle.jobs)))
    first.run(math.inf, everybody)

    at = [begun.jobs.row_of()[JobId(j)] for j in middle.jobs.job_id.tolist()]
    assert len(at) > 5
    assert policy.preempts == "never" or first.preempted.sum() > so_far
    np.testing.assert_allclose(second.ended_s, first.ended_s[at], rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", range(2))
def test_nobody_gets_what_another_holds(seed: int) -> None:
    """At each step no node has more GPUs given out than it has, and gangs are whole."""
    begun = mixed(seed)
    world = ContinuedCluster(
        begun, begun.left_s, policy=LAS, settings=QUANTUM, pace=ForwardTiming(hold_s=30.0)
    )
    for _ in range(60):
        world.step()
        snap = world.snapshot()
        held = snap.seen.held
        on_node = np.bincount(held.node, held.gpus, len(snap.seen.nodes))
        assert (on_node <= snap.seen.nodes.gpus + 1e-9).all()
        of_job = np.bincount(held.job, held.gpus, len(snap.jobs))
        runs = snap.jobs.state == JobState.RUNNING
        np.testing.assert_allclose(of_job, np.where(runs, snap.jobs.gpus, 0.0))
        if world.next_s() == math.inf:
            break
        world.now_s = world.next_s()
    assert (world.ended_s < math.inf).sum() > 3


@pytest.mark.parametrize(
    ("beneficiaries", "waits"), [("opted_in", True), ("all", False)], ids=["opted_in", "all"]
)
@pytest.mark.parametrize("opted_in", [False, True])
def test_who_may_not_be_preempted_waits_for_an_end(
    beneficiaries: Literal["opted_in", "all"],
    waits: bool,  # noqa: FBT001
    opted_in: bool,  # noqa: FBT001
) -> None:
    """Of a job to come and of one that waits, on nodes full of jobs that may be preempted."""
    long_s = 40 * 3600.0
    rows = [running(j, 8, ran_s=36_000, limit_s=long_s) for j in (1, 2)]
    rows.append(pending(3, 8, limit_s=60.0))
    claimed = [1, 2, 3] if opted_in else [1, 2]
    begun = snapshot(
        observed(rows, nodes=[8.0, 8.0], held={1: {0: 8.0}, 2: {1: 8.0}}, opted_in=claimed),
        memory={"ran_s": {1: 36_000, 2: 36_000}, "attained_gpu_s": {1: 288_000, 2: 288_000}},
    )
    wanted = HypotheticalJob(
        gpus=8,
        n_nodes=1,
        partition=0,
        uid=7,
        limit_s=60.0,
        contract=Contract() if opted_in else None,
    )
    free = dataclasses.replace(
        FREE, preemption=dataclasses.replace(FREE.preemption, beneficiaries=beneficiaries)
    )
    found = foresee(
        begun,
        ForecastQuestion(jobs=(JobId(3),), wanted=(wanted,), runs=3),
        policy=LAS,
        settings=free,
        pace=AT_ONCE,
    )
    for one in (*found.jobs, *found.wanted):
        assert (one.start.low_s > NOW_S + 60) is (waits and not opted_in)


def test_a_job_is_ended_at_its_limit_and_not_later() -> None:
    """Slurm ends it, whatever it has left."""
    begun = snapshot(
        observed(
            [running(1, 4, ran_s=100, limit_s=400.0), pending(2, 4, limit_s=60.0)],
            nodes=[4.0],
            held={1: {0: 4.0}},
        )
    )
    world = ContinuedCluster(
        begun, np.array([9e5, 9e5]), policy=Fifo(), settings=FREE, pace=AT_ONCE
    )
    world.run(math.inf, np.arange(2))

    assert world.ended_s.tolist() == [NOW_S + 300.0, NOW_S + 360.0]


def queue_of(sizes: list[int], busy_s: float) -> Snapshot:
    """One node of 8 GPUs that is busy for *busy_s*, and jobs in the order of submission."""
    rows = [running(1, 8, ran_s=10, limit_s=36000.0)]
    rows += [pending(i + 2, size, limit_s=36000.0) for i, size in enumerate(sizes)]
    begun = snapshot(
        observed(rows, nodes=[8.0], held={1: {0: 8.0}}),
        memory={"ran_s": {1: 10.0}},
        left_from=np.full(len(rows), Origin.KNOWN, dtype=np.int8),
    )
    return dataclasses.replace(begun, left_s=np.array([busy_s, *([500.0] * len(sizes))]))


def foretold(begun: Snapshot, question: ForecastQuestion, **more: Any) -> Forecast:  # noqa: ANN401
    """The answer first come, first served, without limits or costs."""
    return foresee(begun, question, policy=Fifo(), settings=FREE, pace=AT_ONCE, **more)


@given(
    sizes=st.lists(st.integers(1, 8), max_size=5),
    busy_s=st.floats(10, 5000),
    shapes=st.lists(st.integers(1, 8), min_size=2, max_size=3, unique=True).map(sorted),
)
@settings(max_examples=12)
def test_more_gpus_never_start_earlier(sizes: list[int], busy_s: float, shapes: list[int]) -> None:
    """First come, first served on one node: of two that come now the larger is not sooner."""
    found = foretold(
        queue_of(sizes, busy_s),
        ForecastQuestion(
            wanted=tuple(
                HypotheticalJob(gpus=g, n_nodes=1, partition=0, uid=7, limit_s=3600.0)
                for g in shapes
            ),
            runs=2,
        ),
    )

    starts = [one.start.median_s for one in found.wanted]
    assert found.runs == 2
    assert starts == sorted(starts)
    assert starts[0] >= NOW_S + busy_s - 1e-6
    for one in found.wanted:
        for told in (one.start, one.end):
            assert told.low_s <= told.median_s <= told.high_s
        assert one.end.low_s >= one.start.low_s


def test_as_many_runs_are_in_time_as_end_by_then() -> None:
    """Nothing is said without a deadline, and of one beyond what was looked at."""
    question = ForecastQuestion(runs=40)

    def told(due_s: float) -> Expected:
        job = HypotheticalJob(gpus=8, n_nodes=1, partition=0, uid=7, limit_s=3600.0, due_s=due_s)
        asked = dataclasses.replace(question, wanted=(job,))
        return foretold(queue_of([8], 500.0), asked).wanted[0]

    end, last_s = told(math.inf).end, NOW_S + question.horizon_s
    moments = (NOW_S, end.low_s, end.median_s, end.high_s, last_s, last_s + 1.0, math.inf)

    assert [told(at).in_time for at in moments] == [0.0, 0.1, 0.5, 0.9, 1.0, None, None]


@given(
    at=st.lists(st.one_of(st.floats(0, 1000), st.just(math.inf)), min_size=1, max_size=60),
    until=st.floats(1, 1000),
    blur=st.floats(0, 50),
)
def test_a_range_is_what_a_count_says(at: list[float], until: float, blur: float) -> None:
    """Tenth, half and nine tenths of the runs, counted one by one; later ones are never."""
    told = range_of(np.array(at), now_s=0.0, until_s=until, blur_s=blur)

    seen = [a if a <= until else math.inf for a in at]
    for share, limit in ((0.1, told.low_s + blur), (0.5, told.median_s), (0.9, told.high_s)):
        assert sum(a <= limit + 1e-9 for a in seen) >= share * len(seen) - 1e-9
    below = math.nextafter(told.median_s, -math.inf)
    assert sum(a <= below for a in seen) < 0.5 * len(seen) or told.median_s == math.inf
    assert told.low_s <= told.median_s <= told.high_s
    assert told.share == pytest.approx(sum(a < math.inf for a in seen) / len(seen))


def test_what_is_not_within_the_horizon_is_said_to_be_so() -> None:
    """A job behind one that runs on for longer has no start, and no end."""
    found = foretold(
        queue_of([4], 5000.0), ForecastQuestion(jobs=(JobId(2),), runs=3, horizon_s=4000.0)
    )

    assert found.jobs[0].start.low_s == math.inf
    assert found.jobs[0].start.share == 0.0


def test_runs_that_take_too_long_are_left_out() -> None:
    """What was computed by the deadline counts, and no half of a run."""
    asked = iter([False] * 4 + [True] * 100)
    found = foretold(
        queue_of([4], 5000.0),
        ForecastQuestion(jobs=(JobId(2),), runs=30),
        is_late=lambda: next(asked),
    )

    assert 1 <= found.runs < 4
    assert found.jobs[0].start.median_s == NOW_S + 5000.0


def test_a_run_that_is_cut_off_says_what_is_later() -> None:
    """Where none comes to its end, what had not happened when time was up is later than that."""
    asked = iter([False] * 3 + [True] * 100)
    begun = queue_of([8, 8], 5000.0)
    found = foretold(
        begun, ForecastQuestion(jobs=(JobId(2), JobId(3)), runs=30), is_late=lambda: next(asked)
    )

    first, second = found.jobs
    assert found.runs == 0
    assert first.until_s == second.until_s == NOW_S + 5000.0
    assert first.start.median_s == NOW_S + 5000.0
    assert (first.end.low_s, second.start.low_s) == (math.inf, math.inf), "later than until_s"


@pytest.mark.parametrize(("blur_s", "sure_s"), [(60.0, 4940.0), (9000.0, 0.0)])
def test_a_run_that_is_cut_off_is_not_sure_of_the_last_instants(
    blur_s: float, sure_s: float
) -> None:
    """What is later may be sooner by as much as instants are uncertain; the horizon is not."""
    asked = iter([False] * 3 + [True] * 100)
    begun = queue_of([8, 8], 5000.0)
    cut, whole = (
        foretold(begun, ForecastQuestion(jobs=(JobId(3),), runs=2, blur_s=blur_s), is_late=is_late)
        for is_late in (lambda: next(asked), lambda: False)
    )

    assert (cut.runs, whole.runs) == (0, 2)
    assert cut.jobs[0].until_s == NOW_S + sure_s
    assert whole.jobs[0].until_s == NOW_S + ForecastQuestion().horizon_s


def test_nothing_is_made_ready_once_it_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several shapes those come that there was time for; the others are not even begun."""
    made: list[int] = []

    def counting(snap: Snapshot, wanted: tuple[HypotheticalJob, ...] = ()) -> Snapshot:
        made.append(len(wanted))
        return beginning(snap, wanted)

    monkeypatch.setattr(forward_runs, "beginning", counting)
    wanted = tuple(
        HypotheticalJob(gpus=gpus, n_nodes=1, partition=0, uid=7, limit_s=3600.0)
        for gpus in (1, 2, 4)
    )
    found = foretold(
        queue_of([4], 5000.0),
        ForecastQuestion(wanted=wanted, runs=5),
        is_late=lambda: len(made) > 1,
    )

    assert len(made) == 2
    assert (found.runs, len(found.wanted)) == (0, 1)


@pytest.mark.parametrize(
    ("policy", "opted_in", "ahead"),
    [(Fifo(), True, False), (LAS, True, True), (LAS, False, False)],
    ids=["never", "may be stopped", "did not opt in"],
)
def test_a_run_goes_on_only_while_something_is_unknown(
    policy: Policy,
    opted_in: bool,  # noqa: FBT001
    ahead: bool,  # noqa: FBT001
) -> None:
    """A job that runs and is stopped by nobody ends when its work does: the rest is not run."""
    begun = queue_of([8, 8], 5000.0)
    if opted_in:
        claims = {JobId(j): Claim(contract=Contract()) for j in (1, 2, 3)}
        begun = dataclasses.replace(begun, seen=dataclasses.replace(begun.seen, claims=claims))
    world = ContinuedCluster(begun, begun.left_s, policy=policy, settings=FREE, pace=AT_ONCE)
    world.run(math.inf, np.array([1]))

    assert bool(world.through_s > world.started_s[1]) is ahead
    assert world.started_s[1] <= world.ended_s[1] < math.inf
    if not ahead:
        assert world.ended_s[1] == NOW_S + 5500.0


def test_who_is_put_off_is_let_go_at_the_look_after_others_have_started() -> None:
    """Four GPUs are free for four jobs, and one at a time has a reservation."""
    begun = snapshot(observed([pending(j) for j in range(1, 5)], nodes=(4,)))
    policy, pace = registry.find("conservative_backfill")(window=1), ForwardTiming(poll_s=5.0)
    world = ContinuedCluster(begun, np.full(4, 100.0), policy=policy, settings=FREE, pace=pace)

    world.run(math.inf, np.arange(4))

    assert (world.started_s - NOW_S).tolist() == [0.0, 5.0, 10.0, 15.0]


def test_tasks_of_an_array_are_jobs_and_the_dead_are_left_out() -> None:
    """Each pending task has a row and an id; what is over or has no GPUs has none."""
    rows = [
        pending(1, 2, tasks=3),
        dataclasses.replace(pending(2, 1), state=JobState.COMPLETED),
        pending(3, 0),
        pending(9, 1, held=Held.DEPENDENCY),
    ]
    begun = beginning(snapshot(observed(rows, opted_in=[1, 9])))

    assert begun.jobs.job_id.tolist() == [1, 10, 11, 9]
    assert begun.jobs.tasks.tolist() == [1, 1, 1, 1]
    assert set(begun.seen.claims) == {1, 9, 10, 11}
    world = ContinuedCluster(begun, np.full(4, 10.0), policy=Fifo(), settings=FREE, pace=AT_ONCE)
    world.run(NOW_S + 1e6, np.arange(3))
    assert (world.ended_s < math.inf).tolist() == [True, True, True, False]


def test_a_huge_array_costs_no_more_than_the_bound() -> None:
    """However many tasks an array has, rows are bounded."""
    begun = beginning(snapshot(observed([pending(1, 1, tasks=10**6), pending(2, 1, tasks=50)])))

    assert len(begun.jobs) == 2 + MOST_TASKS


def past_of(name: str, user: str, gpus: float, ran_s: list[float]) -> Past:
    """Jobs of one kind that are over."""
    return past_columns(ran_s, gpus=gpus, users=(user,), names=(name,))


def one_job(
    ran_s: float, limit_s: float = math.inf, past: Past | None = None
) -> RuntimeDistribution:
    rows = [running(1, 2, ran_s=ran_s, limit_s=limit_s)]
    texts = {JobId(1): JobText(label="1", name="train", user="ann")}
    snap = snapshot(observed(rows, held={1: {0: 2.0}}, texts=texts), memory={"ran_s": {1: ran_s}})
    return RuntimeDistribution(snap if past is None else dataclasses.replace(snap, past=past))


def draws(lives: RuntimeDistribution) -> F64:
    """Evenly spaced chances, in their order."""
    return np.concatenate([lives.draw(np.array([u])) for u in (np.arange(1000) + 0.5) / 1000])


def test_jobs_like_it_that_it_has_outlived_do_not_count() -> None:
    """Of five earlier jobs, the three that ran longer are drawn, each as often."""
    lives = one_job(100.0, 5000.0, past_of("train", "ann", 2, [50, 90, 300, 600, 900]))

    assert lives.sources == ["like it"]
    found, counts = np.unique(draws(lives).round(6), return_counts=True)
    assert found.tolist() == [200.0, 500.0, 800.0]
    assert counts.min() >= 333


def test_other_jobs_do_not_speak_for_it() -> None:
    """Another number of GPUs is another kind of job, and a limit says more than too few jobs."""
    lives = one_job(100.0, 5000.0, past_of("train", "ann", 4, [300.0] * 6))

    assert lives.sources == ["limit"]


def test_a_limit_is_drawn_log_uniformly_from_what_has_run() -> None:
    """P(total > x) = ln(limit / x) / ln(limit / ran), by the formula itself."""
    left_s = draws(one_job(100.0, 10_000.0))

    for x in (200.0, 1000.0, 5000.0):
        share = float((left_s + 100.0 > x).mean())
        assert share == pytest.approx(math.log(10_000 / x) / math.log(100), abs=0.01)
    assert left_s.max() <= 9900.0


def test_without_anything_half_run_for_twice_as_long() -> None:
    """Lindy: P(total > x) = t / x."""
    left_s = draws(one_job(1000.0))

    assert float((left_s > 1000.0).mean()) == pytest.approx(0.5, abs=0.01)
    assert float((left_s > 9000.0).mean()) == pytest.approx(0.1, abs=0.01)


def said(job_id: int, low_s: float, high_s: float, median_s: float = 0.0) -> ForecastRange:
    return ForecastRange(
        job_id=job_id, asked_s=NOW_S, low_s=low_s, median_s=median_s or low_s, high_s=high_s
    )


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 100), st.floats(0, 200)), min_size=1, max_size=300
    )
)
@settings(max_examples=10)
def test_the_score_is_what_a_count_says(
    cases: list[tuple[float, float, float]],
) -> None:
    """Ranges that held of the last so many, and the median size of the error."""
    book = ForecastBook()
    expected: deque[tuple[bool, float]] = deque(maxlen=LAST)
    for job_id, (low_s, width_s, start_s) in enumerate(cases, start=1):
        book.say(said(job_id, NOW_S + low_s, NOW_S + low_s + width_s))
        row = running(job_id, start_s=NOW_S + start_s)
        book.see(snapshot(observed([row], now_s=NOW_S + 1000)))
        held = NOW_S + low_s <= NOW_S + start_s <= NOW_S + low_s + width_s
        expected.append((held, abs(NOW_S + start_s - (NOW_S + low_s))))

    assert book.score.ranges == len(expected)
    assert book.score.held == sum(held for held, _ in expected)
    assert book.score.median_error_s == pytest.approx(float(np.median([e for _, e in expected])))


def test_who_still_waits_when_its_range_is_over_has_missed_it() -> None:
    """Without that only jobs that start would count, and late ones not yet."""
    one = said(1, 10.0, 20.0)

    assert judged(one, start_s=None, now_s=20.0) is None
    late = judged(one, start_s=None, now_s=20.5)
    assert not late.held
    early = judged(one, start_s=9.0, now_s=9.5)
    assert not early.held
    endless = judged(said(1, 10.0, math.inf), start_s=1e9, now_s=1e9)
    assert endless.held


def test_the_score_survives_a_restart(tmp_path: Path) -> None:
    """What is stored comes back as it was; of the open ranges as many as may be."""
    ledger = Ledger(SqliteStore(tmp_path / "ledger.sqlite"))
    book = ForecastBook(lambda: ledger)
    book.say(said(1, NOW_S, NOW_S + 5))
    book.say(said(2, NOW_S, math.inf, math.inf))
    book.see(snapshot(observed([running(1, start_s=NOW_S + 3), pending(2)], now_s=NOW_S + 9)))
    again = ForecastBook(lambda: ledger)
    assert dataclasses.astuple(again.score) == (1, 1, 3.0)
    assert again.has(2)
    assert not again.has(1)
    for job_id in range(3, MOST_OPEN + 3):
        again.say(said(job_id, NOW_S + 9, NOW_S + 99))
    assert not again.has(2)
    assert again.has(3)


def test_a_job_that_is_gone_or_cancelled_says_nothing() -> None:
    """Neither held nor missed."""
    book = ForecastBook()
    book.say(said(1, NOW_S, NOW_S + 5))
    book.say(said(2, NOW_S, NOW_S + 5))
    end_s = NOW_S + 2
    gone = running(2, start_s=end_s, end_s=end_s)
    book.see(snapshot(observed([dataclasses.replace(gone, state=JobState.FAILED)])))
    assert book.score.ranges == 0
    assert not book.has(1)
    assert not book.has(2)

    book.say(said(3, NOW_S, NOW_S + 5))
    brief = running(3, start_s=end_s, end_s=end_s)
    book.see(snapshot(observed([dataclasses.replace(brief, state=JobState.COMPLETED)])))
    assert book.score.held == 1, "it ran for less than a second, but it ran"


def test_a_forecast_leaves_elastic_jobs_in_the_size_they_have() -> None:
    """It answers as if nobody had named sizes."""
    begun = mixed(3)
    waits = tuple(JobId(j) for j in begun.jobs.job_id[begun.jobs.state == PENDING].tolist())
    elastic = dataclasses.replace(
        begun, sizes=sizes_of({row: [(1, 1.0), (2, 1.8)] for row in range(len(begun.jobs))})
    )
    question = ForecastQuestion(jobs=waits, runs=3)
    expand = dataclasses.replace(FREE, resizing=Resizing(expand=True))
    rigid = foresee(begun, question, policy=LAS, settings=expand, pace=AT_ONCE)
    assert foresee(elastic, question, policy=LAS, settings=expand, pace=AT_ONCE) == rigid
