"""What is counted and shown: against what a cluster in memory knows of itself."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
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

import slurm_dl
from slurm_dl import logging_setup
from slurm_dl.config import Config
from slurm_dl.daemon.metrics import catalogue, counters
from slurm_dl.daemon.metrics.catalogue import METRICS, STATES, Figure, Metric, Moment, doing
from slurm_dl.daemon.metrics.counters import BUCKETS, Distribution, MetricsTally
from slurm_dl.daemon.metrics.endpoint import Endpoint
from slurm_dl.daemon.metrics.exposition import wsgi_app
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
from slurm_dl.model.plan import (
    Action,
    Book,
    CloseHandover,
    ForgetSteer,
    MarkGone,
    Requeue,
    TripBreaker,
)
from slurm_dl.model.promise import Promise, Totals
from slurm_dl.model.shape import Shape
from slurm_dl.model.sizes import SIZE, SizeHistory
from slurm_dl.policies.discrete_las import DiscreteLas

POLICY = DiscreteLas(thresholds_gpu_s=(60.0, 400.0))
CONFIG = Config.model_validate({"manage": {"partitions": ["gpu"]}})


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


def shown(now: PublishedState, **more: Any) -> dict[str, dict[Any, Any]]:  # noqa: ANN401
    """Metric to label values to value; each metric once, and one label's value by itself."""
    moment = Moment(**{"now": now, "state": "acting", "now_s": 5000.0, **more})
    figures = [*catalogue.of_daemon(moment), *catalogue.of_cycle(now)]
    assert len({metric.name for metric, _ in figures}) == len(figures)
    return {
        metric.short: {key[0] if len(key) == 1 else key: v for key, v in values.items()}
        for metric, values in figures
    }


def lines(figures: Iterable[Figure]) -> str:
    """All samples that are not 0, as ``metric label values=value``; of distributions number/sum."""
    told = []
    for metric, values in figures:
        for key, value in values.items():
            spread = isinstance(value, Distribution)
            number = value.up_to[-1] if spread else value
            if number:
                text = f"{number}/{value.total:g}" if spread else f"{float(value):.12g}"
                told.append(f"{' '.join((metric.short.removesuffix('_total'), *key))}={text}")
    return "; ".join(told)


def counts(tally: MetricsTally) -> dict[str, float]:
    """What was counted; of distributions the number, and with a ``/`` behind the name the sum."""
    moment = Moment(now=published(), state="acting", tally=tally)
    counted = lines((m, m.values(moment)) for m in METRICS if m.value is None)
    found = defaultdict[str, float](float)
    for name, _, value in (line.partition("=") for line in counted.split("; ")):
        number, _, total = value.partition("/")
        found[name] = float(number)
        found[f"{name}/"] = float(total or 0)
    return found


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
    times = len(life.cluster.jobs[JobId(1)].signals)
    assert times

    counted = counts(life.tally)

    assert counted[f"preemptions preempt {outcome}"] == times
    assert counted["preempted_gpus preempt"] == 4 * times
    assert counted[f"checkpoint_seconds {ended}"] == times
    assert least_s * times <= counted[f"checkpoint_seconds {ended}/"] <= most_s * times
    assert sum("checkpoint" in name for name in counted) == 2


def test_gpu_time_that_is_lost_and_served() -> None:
    """Against the fake's own times: signalled, run over, the other one started; and the ledger."""
    life = preempted("save", cycles=40)
    victim, other = life.cluster.jobs[JobId(1)], life.cluster.jobs[JobId(2)]
    (signalled_s,) = victim.signals
    ended_s = victim.runs[0][1]

    counted = counts(life.tally)

    notice, idle = (counted[f"lost_gpu_seconds {part}"] for part in ("notice", "idle"))
    # Each of the daemon's looks is a second apart, and an action is seen by the next.
    assert notice == pytest.approx(4 * (ended_s - signalled_s), abs=4 * 2)
    began_s = other.runs[0][0] if other.runs else other.start_s
    assert idle == pytest.approx(4 * (began_s - ended_s), abs=4 * 3)
    assert counted["handover_seconds served"] == 1
    # The first cycle has nothing to compare with; nothing ran before it.
    attained = life.cycle().snapshot.memory.attained_gpu_s.sum()
    assert counts(life.tally)["served_gpu_seconds"] == pytest.approx(float(attained))
    assert notice + idle <= 4 * counted["handover_seconds served/"]


NO_PLAN = decide(snapshot(observed([])), POLICY, SETTINGS)


def looked(*looks: tuple[float, Sequence[JobRow], dict[int, float]]) -> list[float]:
    """Service counted after each look: its instant, the jobs listed, what each has attained."""
    counted, totals = MetricsTally(), list[float]()
    for now_s, rows, attained in looks:
        snap = snapshot(observed(rows, now_s=now_s), memory={"attained_gpu_s": attained})
        counted.on_cycle(published(Cycle(snap, NO_PLAN, acting=False)))
        totals.append(counted.value("served_gpu_seconds_total"))
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


ENDS = replace(running(1, 4), state=JobState.COMPLETING)
AGAIN = pending(1, 4, restarts=1)
ELSEWHERE = running(2, partition=1)

LATE = [(1034, [AGAIN], {1: 100}, 100), (1036, [AGAIN], {1: 9000}, 108)]
LOOKS: dict[str, list[tuple[float, list[JobRow], dict[int, float], float]]] = {
    "a run that takes long to complete is booked once Slurm tells when that was": [
        *((1000, [running(1, 4)], {}, 0), (1030, [ENDS], {}, 0), (1032, [ENDS], {}, 0), *LATE)
    ],
    "likewise of a run that was not seen before": [
        *((1000, [], {}, 0), (1030, [ENDS], {}, 0), (1032, [ENDS], {}, 0), *LATE)
    ],
    "a job that waits again asks for less": [
        *((1000, [running(1, 8)], {1: 1}, 0), (1010, [pending(1, 2)], {1: 81}, 80))
    ],
    "a job that runs again holds more": [
        *((1000, [pending(1, 2)], {1: 1}, 0), (1010, [running(1, 8)], {1: 81}, 80))
    ],
    "a job elsewhere is Slurm's affair, and counts once it is moved": [
        (1000, [running(1), ELSEWHERE], {}, 0),
        (2000, [running(1), ELSEWHERE], {1: 500, 2: 5000}, 500),
        (2100, [running(1), running(2)], {1: 500, 2: 5000}, 600),
    ],
}
"""Looks as in `looked`, each with the service counted by then."""


@pytest.mark.parametrize("looks", LOOKS.values(), ids=LOOKS)
def test_service_counts_where_and_when_it_was_received(
    looks: list[tuple[float, list[JobRow], dict[int, float], float]],
) -> None:
    """What the ledger learns late is not service of this moment."""
    assert looked(*(look[:3] for look in looks)) == [look[3] for look in looks]


def tried(
    counted: MetricsTally,
    during: Handover,
    action: Action,
    error: str = "",
    booked: tuple[Entry, ...] = (),
) -> None:
    """Count a cycle in which *action* was tried."""
    snap = snapshot(observed([pending(2)]), handovers=[during], booked=booked)
    done = (AppliedAction(action, error),)
    counted.on_cycle(published(Cycle(snap, NO_PLAN, acting=True, done=done)))


def close(*fruitless: JobId) -> CloseHandover:
    return CloseHandover(handover_id=HandoverId(7), outcome="", why="", fruitless=fruitless)


def gone(outcome: str) -> MarkGone:
    return MarkGone(handover_id=HandoverId(7), job_id=JobId(1), outcome=outcome, why="")


def handover(
    state: VictimState,
    *,
    outcome: str = "",
    now_s: float = 2_000_000.0,
    others: int = 0,
    victim: dict[str, Any] | None = None,
    **more: Any,  # noqa: ANN401
) -> Handover:
    """One with a victim of 3 GPUs, signalled 90 s ago, and *others* like it."""
    taken = Victim(
        run=Run(JobId(1), start_s=1.0, restarts=0),
        gpus=3,
        contract=Contract(),
        state=state,
        signalled_s=0.0 if state is VictimState.CHOSEN else now_s - 90,
        gone_s=now_s - 40 if outcome else 0.0,
        outcome=outcome,
    )
    runs = [Run(JobId(number), 1.0, 0) for number in (1, *range(3, 3 + others))]
    values: dict[str, Any] = {
        "handover_id": HandoverId(7),
        "opened_s": now_s - 100,
        "beneficiaries": (JobId(2),),
        "nodes": ("n1",),
        "victims": tuple(replace(taken, run=run, **(victim or {})) for run in runs),
    }
    return Handover(**{**values, **more})


GONE, CHOSEN, SIGNALLED = VictimState.GONE, VictimState.CHOSEN, VictimState.SIGNALLED
REQUEUE = Requeue(handover_id=HandoverId(7), run=Run(JobId(1), 1.0, 0), why="")
RESHAPE: dict[str, Any] = {"purpose": "reshape", "beneficiaries": ()}
GROWS, SHRINKS = {"then": Shape(1, 4), "gives": 0.0}, {"then": Shape(1, 1), "gives": 2.0}
NOTICE = "lost_gpu_seconds notice=270; checkpoint_seconds by_itself=1/90"


@pytest.mark.parametrize(
    ("during", "action", "wanted"),
    [
        # A hand-over ends in one way; GPUs of a victim that is gone were idle for it.
        *(
            (
                handover(GONE, outcome="requeued"),
                close(*fruitless),
                f"lost_gpu_seconds idle=120; handover_seconds {ended}=1/100",
            )
            for ended, fruitless in (("served", ()), ("in_vain", (JobId(2),)))
        ),
        (handover(GONE, outcome="refused"), close(), "handover_seconds served=1/100"),
        (handover(CHOSEN), close(), "handover_seconds withdrawn=1/100"),
        (handover(CHOSEN), close(JobId(2)), "handover_seconds in_vain=1/100"),
        # A change of size counts by its way, with the GPUs that the job has fewer afterwards.
        (
            handover(SIGNALLED, victim=GROWS, **RESHAPE),
            gone("requeued"),
            f"preemptions reshape requeued=1; resizes grow=1; {NOTICE}",
        ),
        (
            handover(SIGNALLED, victim=SHRINKS),
            gone("requeued"),
            "preemptions preempt requeued=1; preempted_gpus preempt=2; resizes shrink=1; " + NOTICE,
        ),
        (
            handover(SIGNALLED, victim=SHRINKS, others=1, **RESHAPE),
            gone("requeued"),
            "preemptions reshape requeued=1; preempted_gpus reshape=2; resizes transfer=1; "
            + NOTICE,
        ),
        (
            handover(SIGNALLED, victim=SHRINKS),
            gone("finished"),
            f"preemptions preempt finished=1; preempted_gpus preempt=2; {NOTICE}",
        ),
        # Who refused, or left before it was told to, gave up nothing.
        (handover(SIGNALLED, victim=SHRINKS), gone("refused"), "preemptions preempt refused=1"),
        (handover(CHOSEN), gone("left"), "preemptions preempt left=1"),
        # When its notice began is not known, or is later than now by a clock that was set back.
        *(
            (
                handover(SIGNALLED, victim={"signalled_s": signalled_s}),
                gone("left"),
                f"preemptions preempt left=1; preempted_gpus preempt=3{notice}",
            )
            for signalled_s, notice in (
                (0.0, ""),
                (2_000_500.0, "; checkpoint_seconds by_itself=1/0"),
            )
        ),
        # One that is asked for again was waited for once.
        (handover(SIGNALLED), REQUEUE, "checkpoint_seconds grace=1/90"),
        (handover(VictimState.REQUEUING), REQUEUE, ""),
        *(
            (handover(CHOSEN), ForgetSteer(job_id=JobId(2), outcome="", why="", late_s=s), told)
            for s, told in (
                (None, ""),
                (60.0, "steer_start_error_seconds later=1/60"),
                (-9.0, "steer_start_error_seconds earlier=1/9"),
            )
        ),
    ],
)
def test_what_is_done_is_counted(during: Handover, action: Action, wanted: str) -> None:
    """These figures and no other; an action that failed counts as that alone."""
    kind = counters.snake(type(action).__name__)
    for error, result, others in (("", "done", wanted), ("no", "failed", "")):
        counted = MetricsTally()
        tried(counted, during, action, error)
        moment = Moment(now=published(), state="acting", tally=counted)
        told = lines(
            (metric, metric.values(moment))
            for metric in METRICS
            if metric.value is None and metric.short != "cycle_seconds"
        )
        assert told == "; ".join(filter(None, (f"actions_by_kind {kind} {result}=1", others)))


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
    tried(counted, handover(CHOSEN), Book(entries=booked(after), why=""), booked=booked(before))

    assert counted.value("resizes_total", "start") == started
    assert counted.value("resizes_total", "refused") == refused


def test_every_kind_of_action_has_its_word() -> None:
    """Those of the audit log; a new kind of action is a new value."""
    assert len(catalogue.ACTIONS) == len(set(catalogue.ACTIONS)) == len(get_args(Action))
    assert {"set_site_factor", "requeue", "trip_breaker"} <= set(catalogue.ACTIONS)


@given(st.lists(st.floats(-1, 1e5), max_size=30))
def test_a_distribution_puts_each_value_into_the_first_bucket_that_holds_it(
    values: list[float],
) -> None:
    """Durations of phases in seconds; an end belongs to its bucket, as in Prometheus."""
    counted, ends = MetricsTally(), BUCKETS["cycle_seconds"]
    cycle = Cycle(snapshot(observed([])), NO_PLAN, acting=False)
    for value in (*values, *ends):
        took = Durations(observe_ms=value * 1e3, apply_ms=90_000.0)
        counted.on_cycle(published(cycle, durations=took))

    known = [max(0.0, v * 1e3 / 1e3) for v in (*values, *ends)]
    spread = counted.value("cycle_seconds", "observe")
    assert list(spread.up_to) == [sum(v <= end for v in known) for end in (*ends, math.inf)]
    assert spread.total == pytest.approx(sum(known))
    beyond = counted.value("cycle_seconds", "apply")
    assert beyond == Distribution((0,) * len(ends) + (len(known),), 90.0 * len(known))


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


def test_tiers_beyond_the_last_are_one() -> None:
    """However many a policy has, the number of series is bounded; of them here 5 tasks, 2 jobs."""
    cycle = queue_cycle()
    tier = np.array([0, 23, 24, 25, 300, 1, -1, 2], dtype=np.int16)
    cycle = replace(cycle, plan=replace(cycle.plan, tier=tier))

    values = shown(published(cycle))

    tiers = {tier for tier, _ in values["jobs"]}
    assert tiers == set(catalogue.TIERS)
    assert sum(values["jobs"]["24+", state] for state in catalogue.JOB_STATES) == 7


@pytest.mark.parametrize(
    ("state", "audit_ok", "paused", "now"),
    [
        ("audit_log", False, False, {"failures": 3}),
        ("bug", True, False, {"bugs_in_a_row": 1, "failures": 3}),
        ("polls_fail", True, False, {"failures": 3, "live": False}),
        ("shadow", True, True, {"live": False}),
        ("paused", True, True, {"idle": "no right"}),
        ("forbidden", True, False, {"idle": "no right", "looks_left": 1}),
        ("looking", True, False, {"looks_left": 1}),
        ("acting", True, False, {}),
    ],
)
def test_what_it_does_is_one_thing(
    state: str,
    audit_ok: bool,  # noqa: FBT001
    paused: bool,  # noqa: FBT001
    now: dict[str, Any],
) -> None:
    """In the order in which `dlctl status` says it: the first that holds."""
    assert doing(published(**now), audit_ok=audit_ok, paused=paused) == state
    assert shown(published(), state=state)["state"] == {s: s == state for s in STATES}


@pytest.mark.parametrize(("enabled", "state"), [(False, "starting"), (True, "standby")])
def test_who_waits_says_so_and_nothing_else(enabled: bool, state: str) -> None:  # noqa: FBT001
    """Alone it waits for Slurm, beside others for its turn."""
    tree = {"manage": {"partitions": ["gpu"]}, "takeover": {"enabled": enabled}}

    told = {m.short: values for m, values in catalogue.waiting(Config.model_validate(tree), 3)}

    assert told.keys() == {"scrape_errors_total", "info", "state"}
    assert told["scrape_errors_total"] == {(): 3}
    assert [s for (s,), v in told["state"].items() if v] == [state]


def trouble(message: str) -> Trouble:
    return Trouble(at_s=1.0, message=message)


LEDGER = trouble(f"{CONFIG.paths.state_dir}/ledger.sqlite: database is locked; nothing is done")
JUMPED = ControllerHealthShown(
    ahead_s=-4.5, jumps=2, slowed=8.0, distrust="it jumped", distrust_until_s=5001.0
)
BELIEVED = ControllerHealthShown(distrust="it jumped", distrust_until_s=5001.0)
YES = Promise(says="yes", due_s=9, at_s=1, gpus=4.0, needs_s=1, rests_on="limit")


RESTARTS = (
    Restart(job_id=JobId(1), restarts=0, gpus=1, requeued_s=1.0, handover_id=HandoverId(3)),
    Restart(job_id=JobId(2), restarts=0, gpus=1, requeued_s=1.0, handover_id=NOT_OURS, fate="well"),
)
BOOKED = (
    *(YES.entry(6), YES.entry(2), replace(YES, broken="room").entry(3)),
    Totals(kept=5, broken={"node": 2}).entry(),
)


def everything() -> Cycle:
    """Promises, restarts, a hand-over; in shadow mode a trip is only in the plan."""
    cycle = queue_cycle(restarts=RESTARTS, handovers=[handover(CHOSEN)], booked=BOOKED)
    trip = TripBreaker(breaker="cluster_share", at_s=1.0, why="")
    return replace(cycle, plan=replace(cycle.plan, actions=(trip,)))


SCORE = ForecastScore(ranges=9, held=7, median_error_s=61.5)
KNOWN: dict[str, Any] = {
    "seen_s": 4000.0,
    "next_poll_s": 4030.0,
    "cycle": everything(),
    "policy": POLICY,
    "done": 5,
    "failed": 2,
    "bugs": 1,
    "cycles": 9,
    "controller_health": JUMPED,
    "steers_ended": {"honoured": 3, "not honoured": 1, "let go": 2},
    "reloaded": Reloaded(at_s=1.0, ok=True, message=""),
}
QUIET = f"""info {slurm_dl.__version__} discrete_las external=1; start_time_seconds=1000; live=1;
state acting=1; audit_log_writable=1; ledger_writable=1; slow_factor=1; slurm_commands squeue=7"""
"""Samples of a daemon before its first look."""

FULL = f"""info {slurm_dl.__version__} discrete_las external=1; start_time_seconds=1000; live=1;
last_look_timestamp_seconds=4000; next_look_timestamp_seconds=4030; config_reload_successful=1;
state acting=1; audit_log_writable=1; problem clock=1; ledger_writable=1; bugs=1;
slurmctld_clock_ahead_seconds=-4.5; slurmctld_clock_jumps=2; time_distrusted=1; slow_factor=8;
slurm_commands squeue=7; cycles=9; actions done=5; actions failed=2; steers_ended honoured=3;
steers_ended not_honoured=1; steers_ended let_go=2; predictions held=7; predictions missed=2;
prediction_error_seconds=61.5; jobs 0 waiting=5; jobs 2 waiting=1; jobs 0 held=2;
jobs 0 holding=2; jobs 2 holding=1; jobs none holding=1; job_gpus 0 waiting=40;
job_gpus 2 waiting=16; job_gpus 0 held=2; job_gpus 0 holding=8; job_gpus 2 holding=2;
job_gpus none holding=1; overtaken_jobs=5; managed_gpus=16; handovers preempt=1;
handover_oldest_age_seconds=100; restarts dlschedd open=1; restarts others well=1;
breaker_tripped cluster_share=1; promises waiting=1; promises running=1; promises_kept=5;
promises_broken node=2"""


@pytest.mark.parametrize(
    ("now", "more", "wanted"),
    [
        ({}, {}, QUIET),
        # A silent Slurm is told from a ledger that cannot be used, by the path in the error.
        (
            {"failures": 4, "trouble": trouble("squeue: no answer")},
            {},
            QUIET.replace("ledger_w", "polls_failed_in_a_row slurm=4; ledger_w"),
        ),
        (
            {"failures": 4, "trouble": LEDGER},
            {},
            QUIET.replace("ledger_writable=1", "polls_failed_in_a_row ledger=4"),
        ),
        # It is over: what went wrong last is still known, and no reason to say so.
        ({"trouble": LEDGER}, {}, QUIET),
        ({"reloaded": Reloaded(at_s=1.0, ok=False, message="no")}, {}, QUIET),
        (KNOWN, {"problems": frozenset({"clock", "no check"}), "score": SCORE}, FULL),
        # Time is believed again.
        (
            {"controller_health": replace(JUMPED, ahead_s=0, jumps=0, slowed=1.0)},
            {"now_s": 5002.0},
            QUIET,
        ),
    ],
)
def test_a_state_is_shown_as_these_samples(
    now: dict[str, Any], more: dict[str, Any], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that are not 0, in their order."""
    monkeypatch.setattr(catalogue, "COMMANDS_RUN", Counter({"squeue": 7, "no tool": 1}))
    moment = Moment(**{"now": published(**now), "state": "acting", "now_s": 5000.0, **more})

    told = lines((*catalogue.of_daemon(moment), *catalogue.of_cycle(moment.now)))

    assert told == wanted.replace("\n", " ")


def test_what_is_not_known_is_absent_and_what_is_0_is_there() -> None:
    """A 0 would be a time, or a failure, or a count set back; a series must be there to rise."""
    early, late = shown(published()), shown(published(**KNOWN))

    cycle = {m.short for m, _ in catalogue.of_cycle(published(**KNOWN))}
    times = {f"{which}_look_timestamp_seconds" for which in ("last", "next")}
    assert late.keys() - early.keys() == cycle | times | {"config_reload_successful"}
    # Tiers nobody is in are there as well, as many as the policy has.
    assert {tier for tier, _ in late["jobs"]} == {"0", "1", "2", "none"}
    for metric in (m for m in METRICS if m.short in late and not m.sparse):
        assert len(late[metric.short]) == math.prod(map(len, metric.labels.values()))


class Says:
    """A permit that forbids nothing."""

    def why_not(self) -> str:
        """See `Precondition`."""
        return ""


def test_a_cycle_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often somebody scrapes; the next cycle is worked out anew."""
    asked: list[object] = []
    monkeypatch.setattr(catalogue, "stranded_gpus", lambda snap: asked.append(snap) or 3.0)
    board, endpoint = Board(published(queue_cycle())), Endpoint(CONFIG, logging_setup.logger())
    with endpoint.showing(board, MetricsTally(), audit=Says(), pause=Says()):
        for number in (1, 2):
            for _ in range(3):
                told = {metric.short: values for metric, values in endpoint.figures()}
                assert told["stranded_gpus"] == {(): 3.0}
            assert len(asked) == number
            board.current = published(queue_cycle())


# How it is written.


@pytest.fixture(scope="module")
def all_figures() -> list[Figure]:
    """The figures of a daemon of which everything is known."""
    life = preempted("save", cycles=40)
    reloaded = Reloaded(at_s=1.0, ok=True, message="")
    now = replace(life.now, seen_s=4000.0, next_poll_s=4030.0, reloaded=reloaded)
    moment = Moment(now=now, state="acting", tally=life.tally, score=SCORE)
    return [*catalogue.of_daemon(moment), *catalogue.of_cycle(now)]


def test_every_metric_is_shown_with_labels_of_closed_sets(all_figures: list[Figure]) -> None:
    """No job, no user, no word of theirs; and few series, of which a Prometheus has millions."""
    assert [metric.name for metric, _ in all_figures] == [m.name for m in METRICS]
    most = 0
    for metric, values in all_figures:
        series = math.prod(len(known) or 1 for known in metric.labels.values())
        most += series * (len(BUCKETS.get(metric.short, ())) + 3 if metric.short in BUCKETS else 1)
        assert len(values) <= series
        for key in values:
            for known, value in zip(metric.labels.values(), key, strict=True):
                assert value in known or not known, metric.name
        # Of versions, and of services that the admin names.
        assert all(metric.labels.values()) or metric.short in {"info", "replicas"}
    assert most < 700


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_names_follow_prometheus(metric: Metric) -> None:
    """Base units, in the name; counters end with _total; no label says what the name says."""
    assert re.fullmatch(r"slurm_dl_[a-z][a-z0-9_]*[a-z0-9]", metric.name)
    assert not re.search(r"_(ms|minutes|hours|gpu_h|mb|percent)(_|$)", metric.name)
    ends = BUCKETS.get(metric.short, ())
    assert list(ends) == sorted(set(ends))
    assert metric.help.endswith(".")
    assert "\n" not in metric.help
    for label, values in metric.labels.items():
        assert re.fullmatch(r"[a-z]+", label)
        assert len(set(values)) == len(values)


@pytest.mark.parametrize("kind", ["text/plain", "application/openmetrics-text"])
def test_both_formats_say_what_the_figures_are(all_figures: list[Figure], kind: str) -> None:
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
    for metric, values in all_figures:
        name = metric.name
        for key, value in values.items():
            labels = set(zip(metric.labels, key, strict=True))
            if isinstance(value, Distribution):
                ends = (*BUCKETS[metric.short], math.inf)
                for end, up_to in zip(ends, value.up_to, strict=True):
                    wanted[f"{name}_bucket", frozenset(labels | {("le", f"{end:g}")})] = up_to
                wanted[f"{name}_count", frozenset(labels)] = value.up_to[-1]
                wanted[f"{name}_sum", frozenset(labels)] = value.total
            else:
                wanted[name, frozenset(labels)] = float(value)
    assert read == wanted
