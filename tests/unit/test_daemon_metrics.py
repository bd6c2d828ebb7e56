"""What is counted and shown: against what a cluster in memory knows of itself."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import build
import numpy as np
import pytest
from build import observed, pending, running, snapshot
from fake_cluster import FakeCluster
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as plain_families
from streams import SETTINGS

from slurm_dl.config import Config
from slurm_dl.daemon.metrics import catalogue
from slurm_dl.daemon.metrics.catalogue import METRICS, SCRAPE_ERRORS, STATES, Metric
from slurm_dl.daemon.metrics.counters import Distribution, MetricsTally
from slurm_dl.daemon.metrics.exposition import wsgi_app
from slurm_dl.daemon.metrics.samples import (
    ActingDaemonMetrics,
    MetricValue,
    WaitingDaemonMetrics,
    keys,
)
from slurm_dl.daemon.published_state import (
    Board,
    ControllerHealthShown,
    Durations,
    PublishedState,
    Reloaded,
    Trouble,
)
from slurm_dl.engine.cycle import AppliedAction, Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.forecast.calibration import ForecastScore
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.booking import Entry, entry
from slurm_dl.model.breaker import NOT_OURS, Restart
from slurm_dl.model.contract import Contract
from slurm_dl.model.handover import Handover, Run, Victim, VictimState
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Held, JobRow, JobState
from slurm_dl.model.plan import Action, Book, CloseHandover, MarkGone, Requeue, TripBreaker
from slurm_dl.model.promise import Promise, Totals
from slurm_dl.model.shape import Shape
from slurm_dl.model.size_history import SIZE, SizeHistory
from slurm_dl.policies.discrete_las import DiscreteLas

POLICY = DiscreteLas(thresholds_gpu_s=(60.0, 400.0))
CONFIG = Config.model_validate({"manage": {"partitions": ["gpu"]}})

NO_SCORE = ForecastScore(ranges=0, held=0, median_error_s=math.nan)


class Says:
    """A permit that says this."""

    def __init__(self, why: str = "") -> None:
        self.why = why

    def why_not(self) -> str:
        """See `Precondition`."""
        return self.why


def published(cycle: Cycle | None = None, **more: Any) -> PublishedState:  # noqa: ANN401
    values: dict[str, Any] = {
        "config": CONFIG,
        "config_rows": (),
        "started_s": 1000.0,
        "live": True,
        "cycle": cycle,
        "policy": None if cycle is None else POLICY,
    }
    return PublishedState(**{**values, **more})


def daemon(
    now: PublishedState,
    counted: MetricsTally | None = None,
    **more: Any,  # noqa: ANN401
) -> ActingDaemonMetrics:
    values: dict[str, Any] = {
        "board": Board(now),
        "tally": counted or MetricsTally(),
        "audit": Says(),
        "pause": Says(),
        "commands": Counter(),
        "score": lambda: NO_SCORE,
        "now": lambda: 5000.0,
    }
    return ActingDaemonMetrics(**{**values, **more})


def shown(
    source: ActingDaemonMetrics | WaitingDaemonMetrics,
) -> dict[str, dict[tuple[str, ...], float | Distribution]]:
    """Metric to label values to value; each metric once."""
    figures = list(source.figures())
    assert len({f.metric.name for f in figures}) == len(figures)
    return {f.metric.name.removeprefix("slurm_dl_"): dict(f.values) for f in figures}


class Life:
    """A daemon's cycles over a cluster in memory, and what was counted of them."""

    def __init__(self, *, nodes: int = 1) -> None:
        self.cluster = FakeCluster(nodes=nodes, gpus=4)
        self.ledger = Ledger(MemoryStore())
        self.tally = MetricsTally()
        self.now = published()

    def cycle(self, seconds: int = 1) -> Cycle:
        """One cycle, then some seconds pass."""
        self.cluster.watch_reservations = True  # type: ignore[attr-defined] # as the real one has
        cycle = build.cycle(self.cluster, self.ledger, POLICY, SETTINGS)
        self.now = published(cycle, cycles=self.now.cycles + 1)
        self.tally.on_cycle(self.now)
        self.cluster.advance(seconds)
        return cycle

    def count(self, metric: Metric, *labels: str) -> float:
        """The value of a counter."""
        return self.tally.count(metric, *labels)


def preempted(on_signal: str, *, cycles: int = 120) -> Life:
    """A job that has had its share, and one that comes later and deserves its GPUs."""
    life = Life()
    life.cluster.submit(
        4,
        work_s=100_000,
        contract=Contract(grace_s=12.0),
        on_signal=on_signal,  # type: ignore[arg-type] # one of the fake's words
        save_s=5.0,
    )
    for _ in range(30):
        life.cycle()
    life.cluster.submit(4, work_s=20)
    for _ in range(cycles):
        life.cycle()
    return life


@pytest.mark.parametrize(
    ("on_signal", "ended", "least_s", "most_s", "outcome"),
    [
        ("save", "acknowledged", 5, 7, "requeued"),
        ("ignore", "grace", 12, 14, "requeued"),
        ("finish", "by_itself", 0, 7, "finished"),
        ("requeue_itself", "by_itself", 5, 7, "requeued"),
    ],
)
def test_a_preemption_is_counted_as_the_cluster_saw_it(
    on_signal: str, ended: str, least_s: float, most_s: float, outcome: str
) -> None:
    """One victim, its GPUs, how its notice ended and how long that took; nothing twice."""
    life = preempted(on_signal)
    victim = life.cluster.jobs[JobId(1)]
    assert victim.signals

    times = len(victim.signals)
    assert life.count(catalogue.PREEMPTIONS, "preempt", outcome) == times
    assert life.count(catalogue.PREEMPTED_GPUS, "preempt") == 4 * times
    notice = life.tally.distribution(catalogue.CHECKPOINT, ended)
    assert notice.up_to[-1] == times
    assert least_s * times <= notice.total <= most_s * times
    others = set(catalogue.NOTICES) - {ended}
    for other in others:
        assert not life.tally.distribution(catalogue.CHECKPOINT, other).up_to[-1]


def test_lost_gpu_time_is_that_from_the_signal_to_the_end_of_the_hand_over() -> None:
    """Compared with the fake's own times: signalled, its run over, the other one started."""
    life = preempted("save", cycles=40)
    victim, other = life.cluster.jobs[JobId(1)], life.cluster.jobs[JobId(2)]
    (signalled_s,) = victim.signals
    ended_s = victim.runs[0][1]

    notice = life.count(catalogue.LOST, "notice")
    idle = life.count(catalogue.LOST, "idle")

    # Each of the daemon's looks is a second apart, and an action is seen by the next.
    assert notice == pytest.approx(4 * (ended_s - signalled_s), abs=4 * 2)
    began_s = other.runs[0][0] if other.runs else other.start_s
    assert idle == pytest.approx(4 * (began_s - ended_s), abs=4 * 3)
    served = life.tally.distribution(catalogue.HANDOVER, "served")
    assert served.up_to[-1] == 1
    assert notice + idle <= 4 * served.total


def test_service_is_what_the_ledger_has_given() -> None:
    """Every second of every managed job, whatever became of it meanwhile."""
    life = preempted("save", cycles=60)

    cycle = life.cycle()

    attained = cycle.snapshot.memory.attained_gpu_s.sum()
    assert attained > 0
    # The first cycle has nothing to compare with; nothing ran before it.
    assert life.count(catalogue.SERVED) == pytest.approx(float(attained))


NO_PLAN = decide(snapshot(observed([])), POLICY, SETTINGS)


def looked(*looks: tuple[float, Sequence[JobRow], dict[int, float]]) -> list[float]:
    """Service counted after each look: its instant, the jobs listed, what each has attained."""
    counted, totals = MetricsTally(), list[float]()
    for now_s, rows, attained in looks:
        snap = snapshot(observed(rows, now_s=now_s), memory={"attained_gpu_s": attained})
        counted.on_cycle(published(Cycle(snap, NO_PLAN, acting=False)))
        totals.append(counted.count(catalogue.SERVED))
    return totals


@given(
    st.lists(
        st.tuples(
            st.integers(-50, 500),
            st.dictionaries(st.integers(1, 9), st.integers(0, 10_000), max_size=9),
        ),
        min_size=2,
        max_size=6,
    )
)
def test_service_counted_is_what_was_added_within_the_time_there_was(
    looks: list[tuple[int, dict[int, float]]],
) -> None:
    """What each job has gained, at most its GPUs x the time since the last look; it never falls.

    Job j holds j GPUs. Jobs come and go, and clocks are set back.
    """
    now_s, wanted, before = 2e6, 0.0, dict[int, float]()
    wants: list[float] = [0.0]
    told: list[tuple[float, Sequence[JobRow], dict[int, float]]] = []
    for number, (after_s, look) in enumerate(looks):
        now_s += after_s
        told.append((now_s, [running(job, job) for job in sorted(look, reverse=True)], look))
        if number:
            gained = [
                min(max(0.0, has - before.get(job, 0.0)), job * max(0.0, after_s))
                for job, has in look.items()
            ]
            wanted += sum(gained)
            wants.append(wanted)
        before = look

    totals = looked(*told)

    assert totals == wants
    assert totals == sorted(totals)


def test_a_job_that_one_look_missed_is_not_counted_anew() -> None:
    """Of the hours that it had had before, nothing; its ledger entry goes on meanwhile."""
    rows = [running(1, 4), running(2, 2)]

    totals = looked(
        (1000.0, rows, {1: 4e6, 2: 10.0}),
        (1010.0, rows[1:], {2: 30.0}),
        (1020.0, rows, {1: 4e6 + 80, 2: 50.0}),
        (1030.0, rows, {1: 4e6 + 120, 2: 70.0}),
    )

    # Of the look that missed it its 40 are lost.
    assert totals == [0, 20, 20 + 40 + 20, 80 + 40 + 20]


@pytest.mark.parametrize("known", [True, False])
def test_what_accounting_tells_later_is_not_service_of_this_moment(known: bool) -> None:  # noqa: FBT001
    """Runs from before the daemon's time are filled in once sacct has answered."""
    first = (1000.0, [running(1, 4)] if known else [], {1: 8.0} if known else {})

    totals = looked(first, (1010.0, [running(1, 4)], {1: 9e6}))

    assert totals == [0, 40]


@pytest.mark.parametrize("seen_first", ["running", "completing"])
def test_the_end_of_a_run_that_took_long_to_complete_is_counted(seen_first: str) -> None:
    """It is booked once Slurm tells when that was, however many looks later these follow."""
    ends = dataclasses.replace(running(1, 4), state=JobState.COMPLETING)
    over = pending(1, 4, restarts=1)

    totals = looked(
        (1000.0, [running(1, 4)] if seen_first == "running" else [], {}),
        (1030.0, [ends], {}),
        (1032.0, [ends], {}),
        (1034.0, [over], {1: 100.0}),
        (1036.0, [over], {1: 9000.0}),
    )

    assert totals == [0, 0, 0, 100, 108]


def test_a_run_that_ended_counts_with_what_it_held() -> None:
    """A job that waits again may ask for less; one that runs again may hold more."""
    fewer = (running(1, 8), pending(1, 2))
    more = (pending(1, 2), running(1, 8))

    for before, after in (fewer, more):
        assert looked((1000.0, [before], {1: 1.0}), (1010.0, [after], {1: 81.0})) == [0, 80]


def test_service_of_others_is_not_counted() -> None:
    """A job in a partition that is not managed is Slurm's affair."""
    attained = {1: 500.0, 2: 5000.0}

    totals = looked(
        (1000.0, [running(1), running(2, partition=1)], {}),
        (2000.0, [running(1), running(2, partition=1)], attained),
        (2100.0, [running(1), running(2)], attained),
    )

    # One that is moved into a managed partition counts from then on.
    assert totals == [0, 500, 600]


def tried(counted: MetricsTally, during: Handover, action: Action, error: str = "") -> None:
    """Count a cycle in which *action* was tried."""
    snap = snapshot(observed([pending(2)]), handovers=[during])
    done = (AppliedAction(action, error),)
    counted.on_cycle(published(Cycle(snap, NO_PLAN, acting=True, done=done)))


def close(*fruitless: JobId) -> CloseHandover:
    return CloseHandover(handover_id=HandoverId(7), outcome="", why="", fruitless=fruitless)


def gone(outcome: str) -> MarkGone:
    return MarkGone(handover_id=HandoverId(7), job_id=JobId(1), outcome=outcome, why="")


def handover(state: VictimState, *, outcome: str = "", now_s: float = 2_000_000.0) -> Handover:
    return Handover(
        handover_id=HandoverId(7),
        opened_s=now_s - 100,
        beneficiaries=(JobId(2),),
        nodes=("n1",),
        victims=(
            Victim(
                run=Run(JobId(1), start_s=1.0, restarts=0),
                gpus=3,
                contract=Contract(),
                state=state,
                signalled_s=0.0 if state is VictimState.CHOSEN else now_s - 90,
                gone_s=now_s - 40 if outcome else 0.0,
                outcome=outcome,
            ),
        ),
    )


@pytest.mark.parametrize(
    ("state", "outcome", "fruitless", "ended", "idle_gpu_s"),
    [
        (VictimState.GONE, "requeued", False, "served", 120),
        (VictimState.GONE, "requeued", True, "in_vain", 120),
        (VictimState.GONE, "refused", False, "served", 0),
        (VictimState.CHOSEN, "", False, "withdrawn", 0),
        (VictimState.CHOSEN, "", True, "in_vain", 0),
    ],
)
def test_a_hand_over_ends_in_one_way(
    state: VictimState,
    outcome: str,
    fruitless: bool,  # noqa: FBT001
    ended: str,
    idle_gpu_s: float,
) -> None:
    """How it ended, how long it took, and how long GPUs were idle for it."""
    counted = MetricsTally()
    tried(counted, handover(state, outcome=outcome), close(JobId(2)) if fruitless else close())

    for word in catalogue.HANDOVER_ENDS:
        spread = counted.distribution(catalogue.HANDOVER, word)
        assert (spread.up_to[-1], spread.total) == ((1, 100.0) if word == ended else (0, 0.0))
    assert counted.count(catalogue.LOST, "idle") == idle_gpu_s


THEN = {"grow": (Shape(1, 4), 0.0), "shrink": (Shape(1, 1), 2.0), "transfer": (Shape(1, 1), 2.0)}


@pytest.mark.parametrize("outcome", ["requeued", "finished", "refused"])
@pytest.mark.parametrize("way", THEN)
def test_a_change_of_size_counts_by_its_way(way: str, outcome: str) -> None:
    """And of the GPUs taken back those alone that the job has fewer afterwards, of three."""
    counted, told = MetricsTally(), handover(VictimState.SIGNALLED)
    (victim,) = told.victims
    other = dataclasses.replace(victim, run=Run(JobId(3), 1.0, 0), then=Shape(1, 4), gives=0.0)
    told = dataclasses.replace(
        told,
        victims=(
            dataclasses.replace(victim, then=THEN[way][0], gives=THEN[way][1]),
            *([other] if way == "transfer" else ()),
        ),
        **({} if way == "shrink" else {"purpose": "reshape", "beneficiaries": ()}),
    )
    tried(counted, told, gone(outcome))

    ways = {w: counted.count(catalogue.RESIZES_ALL, w) for w in catalogue.RESIZES}
    assert ways == {w: float(w == way and outcome == "requeued") for w in catalogue.RESIZES}
    less = 0 if way == "grow" or outcome == "refused" else 2
    assert counted.count(catalogue.PREEMPTED_GPUS, told.purpose) == less


@pytest.mark.parametrize(
    ("before", "after", "started", "refused"),
    [
        (None, {"now": Shape(1, 2)}, 1, 0),
        ({"written": Shape(1, 2)}, {"now": Shape(1, 2)}, 1, 0),
        ({"written": Shape(1, 2)}, {"now": Shape(1, 1), "refused": {Shape(1, 2)}}, 0, 1),
        ({"refused": {Shape(1, 2)}}, {"refused": {Shape(1, 2)}}, 0, 0),
        ({"now": Shape(1, 1)}, {"now": Shape(1, 2)}, 0, 0),
        (None, {"written": Shape(1, 2)}, 0, 0),
    ],
)
def test_first_starts_in_other_sizes_and_refusals_count(
    before: dict[str, Any] | None, after: dict[str, Any], started: int, refused: int
) -> None:
    """By what the book has of a job that was submitted with one GPU."""

    def booked(of: dict[str, Any] | None) -> tuple[Entry, ...]:
        values = {k: frozenset(v) if k == "refused" else v for k, v in (of or {}).items()}
        body = SizeHistory(asked=Shape(1, 1), **values).body()
        return () if of is None else (entry(SIZE, 2, body),)

    counted = MetricsTally()
    snap = snapshot(observed([pending(2)]), booked=booked(before))
    done = (AppliedAction(Book(entries=booked(after), why="")),)
    counted.on_cycle(published(Cycle(snap, NO_PLAN, acting=True, done=done)))

    assert counted.count(catalogue.RESIZES_ALL, "start") == started
    assert counted.count(catalogue.RESIZES_ALL, "refused") == refused


def test_who_was_not_told_loses_nothing() -> None:
    """A victim that left before it was signalled, and one that refused, cost no notice."""
    counted = MetricsTally()
    for state, outcome in ((VictimState.CHOSEN, "left"), (VictimState.SIGNALLED, "refused")):
        tried(counted, handover(state), gone(outcome))

    assert counted.count(catalogue.PREEMPTIONS, "preempt", "left") == 1
    assert counted.count(catalogue.PREEMPTIONS, "preempt", "refused") == 1
    assert counted.count(catalogue.PREEMPTED_GPUS, "preempt") == 0
    assert counted.count(catalogue.LOST, "notice") == 0


@pytest.mark.parametrize(("signalled_s", "notices"), [(0.0, 0), (2_000_500.0, 1)])
def test_a_notice_takes_no_time_that_was_not(signalled_s: float, notices: int) -> None:
    """When it began is not known, or is later than now by a clock that was set back."""
    told = handover(VictimState.SIGNALLED)
    victims = tuple(dataclasses.replace(v, signalled_s=signalled_s) for v in told.victims)
    counted = MetricsTally()
    tried(counted, dataclasses.replace(told, victims=victims), gone("left"))

    assert counted.count(catalogue.LOST, "notice") == 0
    left = counted.distribution(catalogue.CHECKPOINT, "by_itself")
    assert (left.up_to[-1], left.total) == (notices, 0)


def test_a_requeue_that_is_tried_again_is_one_notice() -> None:
    """It was asked for in an earlier cycle: the waiting was over then."""
    counted = MetricsTally()
    for state in (VictimState.SIGNALLED, VictimState.REQUEUING):
        run = Run(JobId(1), start_s=1.0, restarts=0)
        tried(counted, handover(state), Requeue(handover_id=HandoverId(7), run=run, why=""))

    assert counted.distribution(catalogue.CHECKPOINT, "grace").total == 90.0
    assert counted.distribution(catalogue.CHECKPOINT, "grace").up_to[-1] == 1


def test_actions_are_counted_by_kind_and_result() -> None:
    """What failed changes nothing else: a hand-over that could not be closed is not over."""
    counted = MetricsTally()
    tried(counted, handover(VictimState.GONE), close(), "no")

    assert counted.count(catalogue.ACTIONS_BY_KIND, "close_handover", "failed") == 1
    assert counted.count(catalogue.ACTIONS_BY_KIND, "close_handover", "done") == 0
    assert not counted.distribution(catalogue.HANDOVER, "served").up_to[-1]


def test_every_kind_of_action_has_its_word() -> None:
    """Those of the audit log; a new kind of action is a new value."""
    assert len(catalogue.ACTIONS) == len(set(catalogue.ACTIONS)) == len(get_args(Action))
    assert {"set_site_factor", "requeue", "trip_breaker"} <= set(catalogue.ACTIONS)


def test_durations_of_phases_are_spread() -> None:
    """In seconds, each phase by itself."""
    counted = MetricsTally()
    cycle = Life().cycle()
    took = Durations(observe_ms=20.0, decide_ms=300.0, apply_ms=90_000.0)
    counted.on_cycle(published(cycle, durations=took))

    spreads = {p: counted.distribution(catalogue.CYCLE, p) for p in catalogue.PHASES}
    below = {p: s.up_to.count(0) for p, s in spreads.items()}
    # Up to 0.025, up to 0.5, beyond all.
    assert below == {"observe": 1, "decide": 5, "apply": len(catalogue.CYCLE_BUCKETS_S)}
    assert [round(s.total, 6) for s in spreads.values()] == [0.02, 0.3, 90.0]


@given(st.lists(st.floats(-1, 1e5), max_size=30))
def test_a_distribution_puts_each_value_into_the_first_bucket_that_holds_it(
    values: list[float],
) -> None:
    """Against the plain definition; an end belongs to its bucket, as in Prometheus."""
    ends = catalogue.NOTICE_BUCKETS_S
    spread = Distribution((0,) * (len(ends) + 1))
    for value in (*values, *ends):
        spread = spread.after(value, ends)

    known = [max(0.0, v) for v in (*values, *ends)]
    up_to = [sum(v <= end for v in known) for end in (*ends, math.inf)]
    assert list(spread.up_to) == up_to
    assert spread.total == pytest.approx(sum(known))


# What is shown.


QUEUE = [
    running(1, 4, ran_s=100),
    running(2, 2, ran_s=5000),
    pending(3, 8, tasks=5),
    pending(4, 1, held=Held.DEPENDENCY),
    pending(5, 1, priority=0),
    pending(6, 16),
    running(7, 1, partition=1),
    running(8, 4, ran_s=10),
]


def queue_cycle(**more: Any) -> Cycle:  # noqa: ANN401
    snap = snapshot(
        observed(QUEUE, opted_in=[1, 2]),
        memory={"attained_gpu_s": {1: 30.0, 2: 9000.0, 6: 500.0}},
        **more,
    )
    return Cycle(snap, decide(snap, POLICY, SETTINGS), acting=False)


def test_jobs_and_gpus_by_tier_and_state() -> None:
    """Against a plain count over rows; tasks of an array count each."""
    cycle = queue_cycle()
    jobs, gpus = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for row, tier in zip(QUEUE, cycle.plan.tier.tolist(), strict=True):
        waits = row.state is JobState.PENDING
        could = row.held is Held.NO and row.priority > 0
        state = ("waiting" if could else "held") if waits else "holding"
        key = ("none" if tier < 0 else str(tier), state)
        jobs[key] += row.tasks
        gpus[key] += int(row.gpus) * row.tasks

    values = shown(daemon(published(cycle)))

    assert {k: v for k, v in values["jobs"].items() if v} == jobs
    assert {k: v for k, v in values["job_gpus"].items() if v} == gpus
    # Tiers nobody is in are there as well, as many as the policy has.
    assert {tier for tier, _ in values["jobs"]} == {"0", "1", "2", "none"}


def test_tiers_beyond_the_last_are_one() -> None:
    """However many a policy has, the number of series is bounded; of them here 5 tasks, 2 jobs."""
    cycle = queue_cycle()
    tier = np.array([0, 23, 24, 25, 300, 1, -1, 2], dtype=np.int16)
    cycle = dataclasses.replace(cycle, plan=dataclasses.replace(cycle.plan, tier=tier))

    values = shown(daemon(published(cycle)))

    tiers = {tier for tier, _ in values["jobs"]}
    assert tiers == set(catalogue.TIERS)
    assert sum(values["jobs"]["24+", state] for state in catalogue.JOB_STATES) == 7  # type: ignore[misc]


def test_overtaken_jobs_against_pairs() -> None:
    """Who waits, could start, and has a better rank than anybody who holds GPUs."""
    cycle = queue_cycle()
    ranks = dict(zip([row.job_id for row in QUEUE], cycle.plan.rank.tolist(), strict=True))
    holders = [r for r in QUEUE if r.state is JobState.RUNNING and ranks[r.job_id] >= 0]
    overtaken = [
        row
        for row in QUEUE
        if row.state is JobState.PENDING
        and row.held is Held.NO
        and row.priority > 0
        and any(0 <= ranks[row.job_id] < ranks[h.job_id] for h in holders)
    ]
    assert overtaken

    values = shown(daemon(published(cycle)))

    assert values["overtaken_jobs"][()] == sum(row.tasks for row in overtaken)


def test_what_it_does_is_one_thing() -> None:
    """In the order in which `dlctl status` says it: the first that holds."""
    trouble = Trouble(at_s=1.0, message="squeue: no answer")
    cases: list[tuple[str, ActingDaemonMetrics]] = [
        ("audit_log", daemon(published(failures=3, trouble=trouble), audit=Says("full"))),
        ("bug", daemon(published(bugs_in_a_row=1, failures=3, trouble=trouble))),
        ("polls_fail", daemon(published(failures=3, trouble=trouble, live=False))),
        ("shadow", daemon(published(live=False), pause=Says("paused by ann"))),
        ("paused", daemon(published(idle="no right"), pause=Says("paused by ann"))),
        ("forbidden", daemon(published(idle="no right", looks_left=1))),
        ("looking", daemon(published(looks_left=1))),
        ("acting", daemon(published())),
    ]

    for state, source in cases:
        values = shown(source)["state"]
        assert [s for (s,), v in values.items() if v] == [state]
        assert [s for (s,) in values] == list(STATES)


@pytest.mark.parametrize(("enabled", "state"), [(False, "starting"), (True, "standby")])
def test_who_waits_says_so_and_nothing_else(enabled: bool, state: str) -> None:  # noqa: FBT001
    """Alone it waits for Slurm, beside others for its turn."""
    tree = {"manage": {"partitions": ["gpu"]}, "takeover": {"enabled": enabled}}

    values = shown(WaitingDaemonMetrics.under(Config.model_validate(tree)))

    assert values.keys() == {"info", "state"}
    assert [s for (s,), v in values["state"].items() if v] == [state]


def test_a_ledger_that_cannot_be_written_is_told_from_a_silent_slurm() -> None:
    """By the error's beginning: the ledger's own path."""
    ledger = f"{CONFIG.paths.state_dir}/ledger.sqlite: database is locked; nothing is done"
    for message, because, writable in (("squeue: no answer", "slurm", 1), (ledger, "ledger", 0)):
        trouble = Trouble(at_s=1.0, message=message)
        values = shown(daemon(published(failures=4, trouble=trouble)))
        failed = values["polls_failed_in_a_row"]
        assert {k: v for (k,), v in failed.items() if v} == {because: 4}
        assert values["ledger_writable"][()] == writable
    # It is over: what went wrong last is still known, and no reason to say so.
    values = shown(daemon(published(failures=0, trouble=Trouble(at_s=1.0, message=ledger))))
    assert not any(values["polls_failed_in_a_row"].values())
    assert values["ledger_writable"][()] == 1


def test_values_that_are_not_known_yet_are_absent() -> None:
    """0 would be a time, or a failure."""
    early = shown(daemon(published()))
    assert not {
        "last_look_timestamp_seconds",
        "next_look_timestamp_seconds",
        "config_reload_successful",
        "jobs",
    } & set(early)

    late = shown(
        daemon(
            published(
                queue_cycle(),
                seen_s=4000.0,
                next_poll_s=4030.0,
                reloaded=Reloaded(at_s=1.0, ok=False, message="no"),
            )
        )
    )
    assert late["last_look_timestamp_seconds"][()] == 4000.0
    assert late["next_look_timestamp_seconds"][()] == 4030.0
    assert late["config_reload_successful"][()] == 0


def test_what_counts_since_the_start_is_passed_on() -> None:
    """Actions, bugs, steers by how they ended, commands, cycles."""
    now = published(
        done=5,
        failed=2,
        bugs=1,
        cycles=9,
        steers_ended={"honoured": 3, "not honoured": 1, "let go": 2},
    )

    values = shown(daemon(now, commands=Counter({"squeue": 7})))

    assert values["actions_total"] == {("done",): 5, ("failed",): 2}
    assert values["steers_ended_total"] == {
        ("honoured",): 3,
        ("not_honoured",): 1,
        ("let_go",): 2,
        ("gone",): 0,
    }
    assert values["slurm_commands_total"]["squeue",] == 7
    assert values["slurm_commands_total"]["sdiag",] == 0
    assert values["cycles_total"][()] == 9
    assert values["bugs_total"][()] == 1


def test_how_good_predictions_were() -> None:
    """Those that held, those that did not, and by how much; nothing of what nobody knows."""
    score = ForecastScore(ranges=9, held=7, median_error_s=61.5)
    values = shown(daemon(published(), score=lambda: score))
    assert values["predictions"] == {("held",): 7, ("missed",): 2}
    assert values["prediction_error_seconds"][()] == 61.5

    assert "prediction_error_seconds" not in shown(daemon(published()))


def test_slurmctlds_pulse() -> None:
    """How far its clock is ahead, how slow it is, whether time is believed."""
    controller_health = ControllerHealthShown(
        ahead_s=-4.5, jumps=2, slowed=8.0, distrust="it jumped", distrust_until_s=5001.0
    )

    values = shown(daemon(published(controller_health=controller_health)))

    assert values["slurmctld_clock_ahead_seconds"][()] == -4.5
    assert values["slurmctld_clock_jumps_total"][()] == 2
    assert values["slow_factor"][()] == 8.0
    assert values["time_distrusted"][()] == 1
    over = dataclasses.replace(controller_health, distrust_until_s=4999.0)
    assert shown(daemon(published(controller_health=over)))["time_distrusted"][()] == 0


def test_breakers_that_stand_and_that_trip_now() -> None:
    """In shadow mode a trip is only in the plan."""
    cycle = queue_cycle()
    trip = TripBreaker(breaker="cluster_share", at_s=1.0, why="")
    plan = dataclasses.replace(cycle.plan, actions=(trip,))

    values = shown(daemon(published(dataclasses.replace(cycle, plan=plan))))

    assert {k: v for (k,), v in values["breaker_tripped"].items() if v} == {"cluster_share": True}


def test_promises_that_hold_and_that_are_settled() -> None:
    """Every cause is there, also before the first promise is broken; nothing before a look."""
    yes = Promise(says="yes", due_s=9, at_s=1, gpus=4.0, needs_s=1, rests_on="limit")
    totals = Totals(kept=5, broken={"node": 2}).entry()
    broken = dataclasses.replace(yes, broken="room").entry(3)
    snap = snapshot(
        observed([pending(1), running(2), pending(3)]),
        booked=(yes.entry(1), yes.entry(2), broken, totals),
    )
    cycle = Cycle(snap, decide(snap, POLICY, SETTINGS), acting=True)

    values = shown(daemon(published(cycle)))

    assert values["promises"] == {("waiting",): 1, ("running",): 1}
    assert values["promises_kept_total"] == {(): 5}
    assert values["promises_broken_total"] == {
        ("estimate",): 0, ("node",): 2, ("preemption_off",): 0, ("room",): 0
    }  # fmt: skip
    assert not {name for name in shown(daemon(published())) if "promises" in name}


def test_restarts_by_whom_and_what_became_of_them() -> None:
    """Ours, and those of the jobs or of Slurm."""
    restarts = (
        Restart(job_id=JobId(1), restarts=0, gpus=1, requeued_s=1.0, handover_id=HandoverId(3)),
        Restart(
            job_id=JobId(2), restarts=0, gpus=1, requeued_s=1.0, handover_id=NOT_OURS, fate="well"
        ),
    )

    values = shown(daemon(published(queue_cycle(restarts=restarts))))

    assert {k: v for k, v in values["restarts"].items() if v} == {
        ("dlschedd", "open"): 1,
        ("others", "well"): 1,
    }


def test_hand_overs_and_the_age_of_the_oldest() -> None:
    """By the snapshot's clock."""
    values = shown(daemon(published(queue_cycle(handovers=[handover(VictimState.CHOSEN)]))))

    others = {("defragment",): 0, ("split",): 0, ("reshape",): 0}
    assert values["handovers"] == {("preempt",): 1, **others}
    assert values["handover_oldest_age_seconds"][()] == 100


def test_a_cycle_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often somebody scrapes; the next cycle is worked out anew."""
    from slurm_dl.daemon.metrics import samples as figures  # noqa: PLC0415

    asked: list[object] = []

    def stranded(snap: object) -> float:
        asked.append(snap)
        return 3.0

    monkeypatch.setattr(figures, "stranded_gpus", stranded)
    source = daemon(published(queue_cycle()))
    for _ in range(3):
        assert shown(source)["stranded_gpus"][()] == 3.0
    assert len(asked) == 1

    source.board.current = published(queue_cycle())
    shown(source)
    assert len(asked) == 2


# How it is written.


def everything() -> list[MetricValue]:
    """The figures of a daemon of which everything is known."""
    life = preempted("save", cycles=40)
    now = dataclasses.replace(
        life.now,
        seen_s=4000.0,
        next_poll_s=4030.0,
        reloaded=Reloaded(at_s=1.0, ok=True, message=""),
    )
    score = ForecastScore(ranges=9, held=7, median_error_s=61.5)
    return list(daemon(now, life.tally, score=lambda: score).figures())


@pytest.fixture(scope="module")
def all_figures() -> list[MetricValue]:
    return everything()


def test_every_metric_is_shown_and_no_other(all_figures: list[MetricValue]) -> None:
    """The catalogue is what there is."""
    # The endpoint counts its own.
    told = {f.metric.name for f in all_figures} | {SCRAPE_ERRORS.name}
    assert told == {m.name for m in METRICS}


def test_labels_are_those_of_the_catalogue(all_figures: list[MetricValue]) -> None:
    """Closed sets: no job, no user, no word of theirs."""
    for figure in all_figures:
        assert len(figure.values) <= figure.metric.most_series
        for key in figure.values:
            assert len(key) == len(figure.metric.labels)
            for label, value in zip(figure.metric.labels, key, strict=True):
                assert value in label.values or not label.values, figure.metric.name
    open_labels = [m.name for m in METRICS for label in m.labels if not label.values]
    assert set(open_labels) == {"slurm_dl_info"}


def test_there_are_few_series() -> None:
    """A Prometheus of a large site has millions; a daemon may have hundreds."""
    assert sum(metric.most_series for metric in METRICS) < 700


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_names_follow_prometheus(metric: Metric) -> None:
    """Base units, in the name; counters end with _total; no label says what the name says."""
    assert re.fullmatch(r"slurm_dl_[a-z][a-z0-9_]*[a-z0-9]", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not re.search(r"_(ms|minutes|hours|gpu_h|mb|percent)(_|$)", metric.name)
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert metric.help.endswith(".")
    assert "\n" not in metric.help
    for label in metric.labels:
        assert re.fullmatch(r"[a-z]+", label.name)
        assert len(set(label.values)) == len(label.values)


@pytest.mark.parametrize("kind", ["text/plain", "application/openmetrics-text"])
def test_both_formats_say_what_the_figures_are(all_figures: list[MetricValue], kind: str) -> None:
    """Read back by the library's own parsers; nothing else is there, as Python's own metrics."""
    families = {"text/plain": plain_families, "application/openmetrics-text": open_families}[kind]
    asked = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/metrics",
        "HTTP_ACCEPT": f"{kind};version=1.0.0",
    }
    told, bugs = list[Any](), list[Exception]()
    app = wsgi_app(lambda: all_figures, bugs.append)
    (body,) = app(asked, lambda *words: told.append(words))
    assert dict(told[0][1])["Content-Type"].startswith(f"{kind};")
    read: dict[tuple[str, frozenset[tuple[str, str]]], float] = {
        # One format writes ends of buckets as 5, the other as 5.0.
        (
            s.name,
            frozenset((k, v if k != "le" else f"{float(v):g}") for k, v in s.labels.items()),
        ): s.value
        for family in families(body.decode())
        for s in family.samples
    }

    wanted: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for figure in all_figures:
        name = figure.metric.name
        for key, value in figure.values.items():
            labels = set(zip([x.name for x in figure.metric.labels], key, strict=True))
            if isinstance(value, Distribution):
                ends = (*figure.metric.buckets, math.inf)
                for end, up_to in zip(ends, value.up_to, strict=True):
                    wanted[f"{name}_bucket", frozenset(labels | {("le", f"{end:g}")})] = up_to
                wanted[f"{name}_count", frozenset(labels)] = value.up_to[-1]
                wanted[f"{name}_sum", frozenset(labels)] = value.total
            else:
                wanted[name, frozenset(labels)] = float(value)
    assert read == wanted


def test_keys_are_all_combinations() -> None:
    """Series are there from the start: a counter that appears at 1 has no increase."""
    assert keys(catalogue.CYCLES) == [()]
    assert keys(catalogue.ACTIONS_ALL) == [("done",), ("failed",)]
    purposes, outcomes = catalogue.PURPOSES, catalogue.VICTIM_OUTCOMES
    assert keys(catalogue.PREEMPTIONS) == list(itertools.product(purposes, outcomes))
