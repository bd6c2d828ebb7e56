"""The values of all metrics at one moment, from what the daemon has published and counted.

Pure but for the clock that is passed in; knows nothing of Prometheus' formats. What follows from
a cycle alone is worked out once for it, however often somebody scrapes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np

import slurm_dl
from slurm_dl.config import Config
from slurm_dl.daemon.assembly import LEDGER_FILE
from slurm_dl.daemon.control.status_answer import stranded_gpus
from slurm_dl.daemon.metrics import catalogue
from slurm_dl.daemon.metrics.catalogue import MOST_TIERS, TIERS, Metric, State
from slurm_dl.daemon.metrics.counters import Distribution, Key, MetricsTally
from slurm_dl.daemon.preconditions import Precondition
from slurm_dl.daemon.published_state import Board, PublishedState
from slurm_dl.engine.circuit_breakers import managed_gpus, tripped
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.explain.promise_reasons import state_of
from slurm_dl.forecast.calibration import ForecastScore
from slurm_dl.model.breaker import BREAKERS
from slurm_dl.model.jobs import COMPLETED, NOT_HELD, PENDING, Bool
from slurm_dl.model.plan import TripBreaker
from slurm_dl.model.promise import CAUSES, promises_in, totals_in
from slurm_dl.slurm.tool_runner import OPTIONAL_TOOLS, TOOLS


@dataclass(frozen=True, slots=True)
class MetricValue:
    """One metric with its values: label values to a number, or to a distribution."""

    metric: Metric
    values: Mapping[Key, float | Distribution]


def one(metric: Metric, value: float) -> MetricValue:
    """A metric without labels."""
    return MetricValue(metric, {(): value})


@dataclass(kw_only=True)
class ActingDaemonMetrics:
    """Metrics of a daemon that acts, or is in shadow mode."""

    board: Board  # What its loop has published
    tally: MetricsTally  # What was counted
    audit: Precondition  # Its audit log, as a permit
    pause: Precondition  # Its pause switch, likewise
    commands: Counter[str]  # How often each of Slurm's commands was run
    score: Callable[[], ForecastScore]  # How good predictions of starts were
    now: Callable[[], float]  # This host's clock, epoch seconds
    _of_cycle: tuple[Cycle, tuple[MetricValue, ...]] | None = field(default=None, init=False)

    def figures(self) -> Iterator[MetricValue]:
        """Every metric that has a value now."""
        now = self.board.current
        yield from _about(now)
        audit, pause = not self.audit.why_not(), bool(self.pause.why_not())
        yield _state(_doing(now, audit_ok=audit, paused=pause))
        yield one(catalogue.AUDIT_OK, audit)
        standing = {problem.check for problem in self.board.problems()}
        yield MetricValue(catalogue.PROBLEM, {(c,): c in standing for c in catalogue.WATCHED})
        yield from _polls(now)
        yield from _pulse(now, self.now())
        yield MetricValue(
            catalogue.COMMANDS,
            {(tool,): self.commands.get(tool, 0) for tool in (*TOOLS, *OPTIONAL_TOOLS)},
        )
        yield from _counted(now, self.tally)
        yield from _predicted(self.score())
        if now.cycle is not None:
            tiers = now.policy.tiers if now.policy is not None else 1
            yield from self._cycle(now.cycle, tiers)

    def _cycle(self, cycle: Cycle, tiers: int) -> tuple[MetricValue, ...]:
        known = self._of_cycle
        if known is None or known[0] is not cycle:
            known = self._of_cycle = cycle, tuple(_of_cycle(cycle, tiers))
        return known[1]


@dataclass(frozen=True, slots=True)
class WaitingDaemonMetrics:
    """Metrics of a daemon that waits for its turn or for Slurm."""

    policy: str
    preemption: str
    state: Literal["starting", "standby"]

    @classmethod
    def under(cls, config: Config) -> Self:
        """With what *config* says of it."""
        state: Literal["starting", "standby"] = "standby" if config.takeover.enabled else "starting"
        return cls(config.policy.order, preemption_of(config), state)

    def figures(self) -> Iterator[MetricValue]:
        """Policy, mode and state."""
        yield _info(self.policy, self.preemption)
        yield _state(self.state)


def preemption_of(config: Config) -> str:
    """Mode of preemption, in a word."""
    section = config.preemption
    return section.mode if section.enabled else "off"


def _info(policy: str, preemption: str) -> MetricValue:
    return MetricValue(catalogue.INFO, {(slurm_dl.__version__, policy, preemption): 1})


def _state(state: State) -> MetricValue:
    return MetricValue(catalogue.STATE, {(s,): s == state for s in catalogue.STATES})


def _about(now: PublishedState) -> Iterator[MetricValue]:
    yield _info(now.config.policy.order, preemption_of(now.config))
    yield one(catalogue.START, now.started_s)
    yield one(catalogue.LIVE, now.live)
    if now.seen_s:
        yield one(catalogue.LAST_LOOK, now.seen_s)
    if now.next_poll_s:
        yield one(catalogue.NEXT_LOOK, now.next_poll_s)
    if now.reloaded is not None:
        yield one(catalogue.RELOAD_OK, now.reloaded.ok)


def _doing(now: PublishedState, *, audit_ok: bool, paused: bool) -> State:
    """State of the daemon, in a word; the words of ``dlctl status`` are `status_answer.doing`'s."""
    first: tuple[tuple[object, State], ...] = (
        (not audit_ok, "audit_log"),
        (now.bugs_in_a_row, "bug"),
        (now.failures, "polls_fail"),
        (not now.live, "shadow"),
        (paused, "paused"),
        (now.idle, "forbidden"),
        (now.looks_left, "looking"),
    )
    return next((state for holds, state in first if holds), "acting")


def _polls(now: PublishedState) -> Iterator[MetricValue]:
    """Failed polls by cause: errors of the ledger begin with its path."""
    ledger = str(now.config.paths.state_dir / LEDGER_FILE)
    by_ledger = bool(now.failures and now.trouble and now.trouble.message.startswith(ledger))
    yield MetricValue(
        catalogue.POLLS_FAILED,
        {("slurm",): 0 if by_ledger else now.failures, ("ledger",): now.failures * by_ledger},
    )
    yield one(catalogue.LEDGER_OK, not by_ledger)
    yield one(catalogue.BUGS, now.bugs)


def _pulse(now: PublishedState, now_s: float) -> Iterator[MetricValue]:
    health = now.controller_health
    yield one(catalogue.CLOCK_AHEAD, health.ahead_s)
    yield one(catalogue.CLOCK_JUMPS, health.jumps)
    yield one(catalogue.TIME_DISTRUSTED, bool(health.distrust) and health.distrust_until_s > now_s)
    yield one(catalogue.SLOW_FACTOR, health.slowed)
    yield one(catalogue.WRITES_HELD, bool(health.writes_held))


def _counted(now: PublishedState, tally: MetricsTally) -> Iterator[MetricValue]:
    yield one(catalogue.CYCLES, now.cycles)
    yield MetricValue(catalogue.ACTIONS_ALL, {("done",): now.done, ("failed",): now.failed})
    yield MetricValue(
        catalogue.STEERS_ENDED,
        {
            (word,): now.steers_ended.get(word.replace("_", " "), 0)
            for word in catalogue.STEER_OUTCOMES
        },
    )
    for metric in (
        catalogue.ACTIONS_BY_KIND,
        catalogue.SERVED,
        catalogue.PREEMPTIONS,
        catalogue.PREEMPTED_GPUS,
        catalogue.RESIZES_ALL,
        catalogue.LOST,
    ):
        yield MetricValue(metric, {key: tally.count(metric, *key) for key in keys(metric)})
    for metric in (catalogue.CYCLE, catalogue.CHECKPOINT, catalogue.HANDOVER):
        yield MetricValue(metric, {key: tally.distribution(metric, *key) for key in keys(metric)})


def _predicted(score: ForecastScore) -> Iterator[MetricValue]:
    missed = score.ranges - score.held
    yield MetricValue(catalogue.PREDICTIONS, {("held",): score.held, ("missed",): missed})
    if not math.isnan(score.median_error_s):
        yield one(catalogue.PREDICTION_ERROR, score.median_error_s)


def keys(metric: Metric) -> list[Key]:
    """Every combination of label values; a series that is there from the start can be counted."""
    combined: list[Key] = [()]
    for label in metric.labels:
        combined = [(*key, value) for key in combined for value in label.values]
    return combined


def _of_cycle(cycle: Cycle, tiers: int) -> Iterator[MetricValue]:
    snap, plan = cycle.snapshot, cycle.plan
    # Owners change jobs at any time: that is no fault to be woken for.
    changed = sum(not job.field for job in snap.seen.left_out.values())
    yield one(catalogue.UNREADABLE, snap.seen.unreadable - changed)
    yield one(catalogue.CHANGED, changed)
    yield from _queue(cycle, tiers)
    yield one(catalogue.MANAGED_GPUS, managed_gpus(snap))
    yield one(catalogue.STRANDED, stranded_gpus(snap))
    purposes = Counter(handover.purpose for handover in snap.handovers)
    yield MetricValue(catalogue.HANDOVERS, {(p,): purposes[p] for p in catalogue.PURPOSES})
    opened_s = min((handover.opened_s for handover in snap.handovers), default=snap.now_s)
    yield one(catalogue.OLDEST_HANDOVER, max(0.0, snap.now_s - opened_s))
    fates = Counter(("dlschedd" if r.handover_id else "others", str(r.fate)) for r in snap.restarts)
    yield MetricValue(
        catalogue.RESTARTS, {(by, fate): fates[by, fate] for by, fate in keys(catalogue.RESTARTS)}
    )
    # In shadow mode a trip is not written down, and stands in each plan.
    standing = {b.name for b in tripped(snap)}
    standing |= {a.breaker for a in plan.actions if isinstance(a, TripBreaker)}
    yield MetricValue(catalogue.BREAKER, {(name,): name in standing for name in BREAKERS})
    yield from _promised(cycle)
    yield one(catalogue.LEFT, len(cycle.left))
    yield one(catalogue.UNHONOURED, len(plan.unhonoured))
    yield one(catalogue.STEERS, sum(s.kind in ("spot", "wait") for s in snap.steers.values()))


def _promised(cycle: Cycle) -> Iterator[MetricValue]:
    """Promises that hold, and those that are settled.

    The book counts over restarts: a 0 before the first look would make each restart an increase.
    """
    booked, rows = cycle.booked, cycle.snapshot.jobs.rows
    found = promises_in(booked).items()
    states = Counter(state_of(cycle.snapshot, rows.get(j), p) for j, p in found)
    yield MetricValue(catalogue.PROMISES, {(s,): states[s] for s in ("waiting", "running")})
    totals = totals_in(booked)
    yield one(catalogue.PROMISES_KEPT, totals.kept)
    yield MetricValue(catalogue.PROMISES_BROKEN, {(c,): totals.broken.get(c, 0) for c in CAUSES})


def _queue(cycle: Cycle, tiers: int) -> Iterator[MetricValue]:
    """Jobs and GPUs by tier and state, and who is overtaken; O(n) over columns.

    Args:
        tiers: So many the policy has; they are shown even where nobody is in them.
    """
    jobs, plan = cycle.snapshot.jobs, cycle.plan
    pending = jobs.state == PENDING
    # Slurm's own order decides between those that have been held by anybody.
    could = pending & (jobs.held == NOT_HELD) & (jobs.priority > 0)
    holding: Bool = ~pending & (jobs.state < COMPLETED)
    # A record of a pending array stands for all its tasks that wait.
    tasks = np.where(pending, jobs.tasks, 1).astype(np.float64)
    gpus = jobs.gpus * tasks
    tier = np.where(plan.tier < 0, MOST_TIERS + 1, np.minimum(plan.tier, MOST_TIERS))
    worst_tier = min(max(tiers - 1, int(plan.tier.max(initial=0))), MOST_TIERS)
    counts: dict[Key, float] = {}
    sums: dict[Key, float] = {}
    for state, mask in (("waiting", could), ("held", pending & ~could), ("holding", holding)):
        number = np.bincount(tier[mask], weights=tasks[mask], minlength=MOST_TIERS + 2)
        wanted = np.bincount(tier[mask], weights=gpus[mask], minlength=MOST_TIERS + 2)
        for t in (*range(worst_tier + 1), MOST_TIERS + 1):
            counts[TIERS[t], state] = float(number[t])
            sums[TIERS[t], state] = float(wanted[t])
    yield MetricValue(catalogue.JOBS, counts)
    yield MetricValue(catalogue.GPUS, sums)
    ranked_holders = plan.rank[holding & (plan.rank >= 0) & (jobs.gpus > 0)]
    worst = int(ranked_holders.max(initial=-1))
    overtaken = could & (plan.rank >= 0) & (plan.rank < worst) & (jobs.gpus > 0)
    yield one(catalogue.OVERTAKEN, float(tasks[overtaken].sum()))
    reports = cycle.snapshot.progress
    yield one(catalogue.REPORTING, 0 if reports is None else int(np.sum(holding & (reports >= 0))))
