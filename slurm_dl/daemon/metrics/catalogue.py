"""Every metric in one table: what it says, the labels it can have, and its value at one moment.

The document, the dashboard, the alerts and their tests are held against it. Each label has a closed
set of values: what a user writes is never a label, so the number of series is bounded by this file.
What follows from a cycle is worked out once for each state that the daemon publishes, however often
somebody scrapes.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

import numpy as np

import slurm_dl
from slurm_dl.config import Config
from slurm_dl.daemon.assembly import LEDGER_FILE
from slurm_dl.daemon.control.status_answer import stranded_gpus
from slurm_dl.daemon.metrics.counters import BUCKETS, COMMANDS_RUN, Key, MetricsTally, snake
from slurm_dl.daemon.published_state import WATCHED, PublishedState
from slurm_dl.engine.circuit_breakers import managed_gpus, tripped
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.explain.promise_reasons import state_of
from slurm_dl.engine.replicas import running_replicas
from slurm_dl.forecast.calibration import ForecastScore
from slurm_dl.model.breaker import BREAKERS, Fate
from slurm_dl.model.handover import Purpose
from slurm_dl.model.jobs import COMPLETED, F64, NOT_HELD, PENDING, Bool
from slurm_dl.model.plan import Action, TripBreaker
from slurm_dl.model.promise import CAUSES, promises_in, totals_in
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.slurm.tool_runner import OPTIONAL_TOOLS, TOOLS

MOST_TIERS: Final = 24
"""Tiers from here on are one."""

TIERS: Final = (*map(str, range(MOST_TIERS)), f"{MOST_TIERS}+", "none")
"""``none``: the job is not managed."""

STATES: Final = (
    *("audit_log", "bug", "polls_fail", "shadow", "paused", "forbidden", "looking", "acting"),
    *("starting", "standby"),
)
"""What the daemon does, in the order in which the first that holds counts. ``audit_log``: that
cannot be written, so nothing is done. ``forbidden``: Slurm is not set up for it, or the account
lacks the right. ``looking``: the first cycles after a start or a silence only look. ``starting``:
it waits for Slurm to be seen at all. ``standby``: another daemon acts."""

JOB_STATES: Final = ("waiting", "held", "holding")
PURPOSES: Final = get_args(Purpose)
RESULTS: Final = ("done", "failed")
ACTIONS: Final = tuple(snake(action.__name__) for action in get_args(Action))


NO_SCORE: Final = ForecastScore(ranges=0, held=0, median_error_s=math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """All that metrics are made of at one moment; of a daemon that waits, the first two."""

    now: PublishedState
    state: str  # One of `STATES`
    tally: MetricsTally = field(default_factory=MetricsTally)
    scrape_errors: int = 0
    problems: frozenset[str] = frozenset()  # Checks of ``dlctl doctor`` that find an error
    score: ForecastScore = NO_SCORE
    now_s: float = 0.0  # This host's clock, epoch seconds

    @property
    def cycle(self) -> Cycle:
        """The last cycle; there must have been one."""
        assert self.now.cycle is not None  # noqa: S101 - narrows the type
        return self.now.cycle

    @property
    def snap(self) -> Snapshot:
        """Slurm as that cycle saw it."""
        return self.cycle.snapshot


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        value: Its value; for one with labels that by the label's value, or by the values of all,
            and 0 where nothing is said. None: not known now. Without such a function `MetricsTally`
            counts it under its name.
        labels: Each label to all the values that it can have; none: they are the admin's, and one
            at a time.
    """

    value: Callable[[Moment], float | Mapping[Any, float] | None] | None = None
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sparse: bool = False  # Only those series are shown that `value` names
    short: str = ""  # Its name without the prefix
    help: str = ""  # What it says, for a person; one line

    @property
    def name(self) -> str:
        """As Prometheus shows it; a histogram's series have ``_bucket`` and the like behind it."""
        return f"slurm_dl_{self.short}"

    @property
    def kind(self) -> str:
        """``gauge``, ``counter``, ``histogram`` or ``info``."""
        named = {"info": "info", **dict.fromkeys(BUCKETS, "histogram")}
        return named.get(self.short, "counter" if self.short.endswith("_total") else "gauge")

    def values(self, moment: Moment) -> Mapping[Key, Any]:
        """Label values to a number or a `Distribution`.

        Series are there from the start: a counter that appears at 1 has no increase.
        """
        keys = itertools.product(*self.labels.values())
        if self.value is None:
            return {key: moment.tally.value(self.short, *key) for key in keys}
        told = self.value(moment)
        if not isinstance(told, Mapping):
            return {} if told is None else {(): told}
        if self.sparse:
            return told
        return {key: told.get(key[0] if len(key) == 1 else key, 0) for key in keys}


def _info(m: Moment) -> dict[Key, int]:
    preemption = m.now.config.preemption
    mode = preemption.mode if preemption.enabled else "off"
    return {(slurm_dl.__version__, m.now.config.policy.order, mode): 1}


def doing(now: PublishedState, *, audit_ok: bool, paused: bool) -> str:
    """State of the daemon, in a word; the words of ``dlctl status`` are `status_answer.doing`'s."""
    reasons = (
        *(not audit_ok, now.bugs_in_a_row, now.failures, not now.live),
        *(paused, now.idle, now.looks_left, True),
    )
    return next(state for state, holds in zip(STATES, reasons, strict=False) if holds)


def _fails_by(now: PublishedState) -> str:
    """Cause of failed polls: errors of the ledger begin with its path."""
    ledger = str(now.config.paths.state_dir / LEDGER_FILE)
    by_ledger = now.failures and now.trouble and now.trouble.message.startswith(ledger)
    return "ledger" if by_ledger else "slurm"


def _distrusts(m: Moment) -> bool:
    health = m.now.controller_health
    return bool(health.distrust) and health.distrust_until_s > m.now_s


def _changed(cycle: Cycle) -> int:
    # Owners change jobs at any time: that is no fault to be woken for.
    return sum(not job.field for job in cycle.snapshot.seen.left_out.values())


def _by_state(cycle: Cycle) -> tuple[F64, dict[str, Bool]]:
    """``(n,)`` tasks that a record stands for, and ``(n,)`` jobs in each of `JOB_STATES`."""
    jobs = cycle.snapshot.jobs
    pending = jobs.state == PENDING
    # Slurm's own order decides between those that have been held by anybody.
    could = pending & (jobs.held == NOT_HELD) & (jobs.priority > 0)
    holding = ~pending & (jobs.state < COMPLETED)
    # A record of a pending array stands for all its tasks that wait.
    tasks = np.where(pending, jobs.tasks, 1).astype(np.float64)
    return tasks, {"waiting": could, "held": pending & ~could, "holding": holding}


def _by_tier(m: Moment, each: F64 | float) -> dict[Key, float]:
    """Sums over tasks of ``(n,)`` *each*, by tier and state; of all tiers that the policy has."""
    (tasks, states), told = _by_state(m.cycle), m.cycle.plan.tier
    tier = np.where(told < 0, MOST_TIERS + 1, np.minimum(told, MOST_TIERS))
    tiers = m.now.policy.tiers if m.now.policy is not None else 1
    worst = min(max(tiers - 1, int(told.max(initial=0))), MOST_TIERS)
    sums: dict[Key, float] = {}
    for state, mask in states.items():
        weights = (tasks * each)[mask]
        found = np.bincount(tier[mask], weights=weights, minlength=MOST_TIERS + 2)
        for t in (*range(worst + 1), MOST_TIERS + 1):
            sums[TIERS[t], state] = float(found[t])
    return sums


def _overtaken(cycle: Cycle) -> float:
    rank, (tasks, states) = cycle.plan.rank, _by_state(cycle)
    ranked = (rank >= 0) & (cycle.snapshot.jobs.gpus > 0)
    worst = int(rank[states["holding"] & ranked].max(initial=-1))
    return float(tasks[states["waiting"] & ranked & (rank < worst)].sum())


def _reporting(cycle: Cycle) -> int:
    reports = cycle.snapshot.progress
    return 0 if reports is None else int(np.sum(_by_state(cycle)[1]["holding"] & (reports >= 0)))


def _tripped(cycle: Cycle) -> list[str]:
    # In shadow mode a trip is not written down, and stands in each plan.
    planned = [a.breaker for a in cycle.plan.actions if isinstance(a, TripBreaker)]
    return [*(b.name for b in tripped(cycle.snapshot)), *planned]


def _promises(cycle: Cycle) -> Counter[str]:
    rows = cycle.snapshot.jobs.rows
    found = promises_in(cycle.booked).items()
    return Counter(state_of(cycle.snapshot, rows.get(job), promise) for job, promise in found)


_TIER_AND_STATE: Final = {"tier": TIERS, "state": JOB_STATES}


class _OfDaemon:
    """Metrics that need no cycle, in the order of an answer."""

    scrape_errors_total = Metric(lambda m: m.scrape_errors)
    """Scrapes without an answer because of a bug. The log has the first of each kind."""
    info = Metric(
        _info,
        {"version": (), "policy": (), "preemption": ("external", "native", "off")},
        sparse=True,
    )
    """Always 1. Labels: the release, the policy, and preemption by dlschedd, Slurm or neither."""
    start_time_seconds = Metric(lambda m: m.now.started_s)
    """When this daemon started or last took over the lease, epoch seconds."""
    live = Metric(lambda m: m.now.live)
    """1 if the configuration allows actions, 0 in shadow mode."""
    last_look_timestamp_seconds = Metric(lambda m: m.now.seen_s or None)
    """When the last cycle ended, epoch seconds by this host's clock. Absent before the first."""
    next_look_timestamp_seconds = Metric(lambda m: m.now.next_poll_s or None)
    """When the next poll is due, epoch seconds. A time in the past means that the loop hangs."""
    config_reload_successful = Metric(lambda m: m.now.reloaded.ok if m.now.reloaded else None)
    """1 if the last reload took effect. Absent before the first reload."""
    state = Metric(lambda m: {m.state: 1}, {"state": STATES})
    """1 for the present state of the daemon, 0 for all others."""
    audit_log_writable = Metric(lambda m: m.state != "audit_log")
    """1 if the audit log has all actions so far."""
    problem = Metric(lambda m: dict.fromkeys(m.problems, 1), {"check": WATCHED})
    """1 while this check of dlctl doctor finds an error; dlctl status says which."""
    polls_failed_in_a_row = Metric(
        lambda m: {_fails_by(m.now): m.now.failures}, {"because": ("slurm", "ledger")}
    )
    """Failed polls since the last good one, by cause: Slurm, or the ledger."""
    ledger_writable = Metric(lambda m: _fails_by(m.now) != "ledger")
    """0 if the last poll failed because the ledger could not be used."""
    bugs_total = Metric(lambda m: m.now.bugs)
    """Unexpected exceptions. Each is in the log."""
    slurmctld_clock_ahead_seconds = Metric(lambda m: m.now.controller_health.ahead_s)
    """How far slurmctld's clock is ahead of this host's. Negative: it is behind."""
    slurmctld_clock_jumps_total = Metric(lambda m: m.now.controller_health.jumps)
    """Jumps of slurmctld's clock."""
    time_distrusted = Metric(_distrusts)
    """1 while no job is preempted because a clock has jumped."""
    slow_factor = Metric(lambda m: m.now.controller_health.slowed)
    """Factor on the time between polls while slurmctld is slow."""
    writes_held = Metric(lambda m: bool(m.now.controller_health.writes_held))
    """1 while the order is not written because slurmdbd falls behind."""
    slurm_commands_total = Metric(lambda _: COMMANDS_RUN, {"command": (*TOOLS, *OPTIONAL_TOOLS)})
    """Runs of Slurm commands. Reads by pyslurm are not counted."""
    cycles_total = Metric(lambda m: m.now.cycles)
    """Complete cycles."""
    actions_total = Metric(
        lambda m: {"done": m.now.done, "failed": m.now.failed}, {"result": RESULTS}
    )
    """Actions tried, by result."""
    steers_ended_total = Metric(
        lambda m: {how.replace(" ", "_"): n for how, n in m.now.steers_ended.items()},
        {"outcome": ("honoured", "not_honoured", "let_go", "gone")},
    )
    """Ended constraints, by outcome: job started as intended, elsewhere, released before, gone."""
    actions_by_kind_total = Metric(labels={"action": ACTIONS, "result": RESULTS})
    """The same by kind, without those of cycles that were cut short."""
    served_gpu_seconds_total = Metric()
    """Service that managed jobs received, GPU-seconds."""
    preemptions_total = Metric(
        labels={
            "purpose": PURPOSES,
            "outcome": ("requeued", "shrunk", "finished", "left", "refused"),
        }
    )
    """Runs of victims that have given way, by purpose of the hand-over and by outcome. With outcome
    shrunk the run goes on with fewer nodes."""
    preempted_gpus_total = Metric(labels={"purpose": PURPOSES})
    """GPUs that these runs released, without those that their jobs go on with. Runs with outcome
    refused are not counted."""
    resizes_total = Metric(labels={"way": ("grow", "shrink", "transfer", "start", "refused")})
    """Jobs that change size: grow on free GPUs, shrink for waiting jobs, transfer between running
    jobs; start in another size than asked for; refused: Slurm gave another size."""
    lost_gpu_seconds_total = Metric(labels={"part": ("notice", "idle")})
    """Estimated GPU time that preemption cost: notice (from signal to gone), idle (from then to the
    end of the hand-over)."""
    cycle_seconds = Metric(labels={"phase": ("observe", "decide", "apply")})
    """Duration of the phases of a cycle."""
    checkpoint_seconds = Metric(labels={"ended": ("acknowledged", "grace", "by_itself")})
    """Time from the signal to the acknowledgement, the end of the grace, or the job's own exit."""
    handover_seconds = Metric(labels={"ended": ("served", "in_vain", "withdrawn")})
    """Duration of hand-overs: served, in vain (a beneficiary still waits), or withdrawn before any
    signal."""
    steer_start_error_seconds = Metric(labels={"start": ("later", "earlier")})
    """Difference of the start of a constrained job and the start that was expected when it was sent
    there."""
    predictions = Metric(
        lambda m: {"held": m.score.held, "missed": m.score.ranges - m.score.held},
        {"result": ("held", "missed")},
    )
    """The last forecast ranges of start times, by whether the job started in its range."""
    prediction_error_seconds = Metric(
        lambda m: None if math.isnan(m.score.median_error_s) else m.score.median_error_s
    )
    """Median error of those forecasts. Absent while there are none."""


class _OfCycle:
    """Metrics that follow from the last cycle."""

    unreadable_records = Metric(lambda m: m.snap.seen.unreadable - _changed(m.cycle))
    """Jobs and nodes of the last poll that could not be read."""
    changed_jobs = Metric(lambda m: _changed(m.cycle))
    """Jobs that changed while the last poll read them; it did nothing to them."""
    jobs = Metric(lambda m: _by_tier(m, 1.0), _TIER_AND_STATE, sparse=True)
    """Jobs by tier: waiting (eligible, need free resources), held, holding GPUs or nodes."""
    job_gpus = Metric(lambda m: _by_tier(m, m.snap.jobs.gpus), _TIER_AND_STATE, sparse=True)
    """GPUs that these jobs hold or request."""
    overtaken_jobs = Metric(lambda m: _overtaken(m.cycle))
    """Eligible jobs that lack free resources while a job of a worse rank holds GPUs."""
    reporting_jobs = Metric(lambda m: _reporting(m.cycle))
    """Jobs on GPUs that report the share of their work that is done."""
    managed_gpus = Metric(lambda m: managed_gpus(m.snap))
    """GPUs of the managed partitions, including those of nodes that are down."""
    stranded_gpus = Metric(lambda m: stranded_gpus(m.snap))
    """Free GPUs on nodes that have no CPUs or memory left for them."""
    handovers = Metric(
        lambda m: Counter(handover.purpose for handover in m.snap.handovers), {"purpose": PURPOSES}
    )
    """Hand-overs under way."""
    handover_oldest_age_seconds = Metric(
        lambda m: max((0.0, *(m.snap.now_s - h.opened_s for h in m.snap.handovers)))
    )
    """Age of the oldest hand-over under way; 0 if there is none."""
    restarts = Metric(
        lambda m: Counter(
            ("dlschedd" if r.handover_id else "others", str(r.fate)) for r in m.snap.restarts
        ),
        {"by": ("dlschedd", "others"), "fate": get_args(Fate)},
    )
    """Jobs requeued within a day, by cause, and their fate."""
    breaker_tripped = Metric(lambda m: dict.fromkeys(_tripped(m.cycle), 1), {"breaker": BREAKERS})
    """1 while this breaker stops preemption; see dlctl breakers."""
    promises = Metric(lambda m: _promises(m.cycle), {"state": ("waiting", "running")})
    """Jobs with a promised deadline that still holds; see dlctl promises."""
    promises_kept_total = Metric(lambda m: totals_in(m.cycle.booked).kept)
    """Jobs that were over by their promised deadlines, since the ledger began."""
    promises_broken_total = Metric(lambda m: totals_in(m.cycle.booked).broken, {"cause": CAUSES})
    """Jobs that were not over by their promised deadlines, by cause, since the ledger began."""
    replicas = Metric(
        lambda m: {
            (service.name, state): n
            for service in m.snap.services
            for state, n in (
                ("wanted", service.wanted),
                ("running", len(running_replicas(m.snap, service.jobs))),
            )
        },
        {"service": (), "state": ("wanted", "running")},
        sparse=True,
    )
    """Replicas of each service that are wanted, and that run. Absent without services."""
    actions_left = Metric(lambda m: len(m.cycle.left))
    """Actions planned in the last cycle and not tried in it."""
    unhonoured_jobs = Metric(lambda m: len(m.cycle.plan.unhonoured))
    """Jobs with a written SiteFactor that has no effect in Slurm. It is written again."""
    steers = Metric(lambda m: sum(s.kind in ("spot", "wait") for s in m.snap.steers.values()))
    """Waiting jobs with a node constraint or a deferred begin time."""


def _rows(table: type) -> tuple[Metric, ...]:
    """Metrics of a class with their names, each with the string below it as its help."""
    (top,) = ast.parse(inspect.getsource(table)).body
    rows = []
    for row, words in itertools.pairwise(top.body if isinstance(top, ast.ClassDef) else ()):
        match row, words:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(
                value=ast.Constant(value=str(told))
            ):
                rows.append(replace(vars(table)[name], short=name, help=" ".join(told.split())))
    return tuple(rows)


_OF_DAEMON: Final = _rows(_OfDaemon)
_OF_CYCLE: Final = _rows(_OfCycle)
METRICS: Final = (*_OF_DAEMON, *_OF_CYCLE)
"""All of them, in the order of an answer."""

Figure = tuple[Metric, Mapping[Key, Any]]


def of_daemon(moment: Moment) -> Iterator[Figure]:
    """Metrics that have a value now, but for those that follow from a cycle."""
    return ((m, values) for m in _OF_DAEMON if (values := m.values(moment)))


def of_cycle(now: PublishedState) -> tuple[Figure, ...]:
    """Metrics that follow from the last cycle; none before the first."""
    moment = Moment(now=now, state="")
    return () if now.cycle is None else tuple((m, m.values(moment)) for m in _OF_CYCLE)


def waiting(config: Config, scrape_errors: int) -> Iterator[Figure]:
    """Metrics of a daemon that waits for its turn or for Slurm."""
    now = PublishedState(config=config, config_rows=(), started_s=0.0, live=False)
    state = "standby" if config.takeover.enabled else "starting"
    told = of_daemon(Moment(now=now, state=state, scrape_errors=scrape_errors))
    return (
        figure for figure in told if figure[0].short in {"scrape_errors_total", "info", "state"}
    )


def table() -> Iterator[str]:
    """Rows of the table of the document."""
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"
