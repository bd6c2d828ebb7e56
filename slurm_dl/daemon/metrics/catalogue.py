"""Every metric by its name: what it counts, in which unit, and which labels it can have.

It stands apart from where the values come from, so that the document, the dashboard, the alerts
and their tests have one list to be held against. Each label has a closed set of values: what a
user writes is never a label, so the number of series is bounded by this file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final, Literal, get_args

from slurm_dl.model.breaker import BREAKERS, Fate
from slurm_dl.model.handover import Purpose
from slurm_dl.model.plan import Action
from slurm_dl.model.promise import CAUSES
from slurm_dl.slurm.tool_runner import OPTIONAL_TOOLS, TOOLS

Kind = Literal["gauge", "counter", "histogram", "info"]

MOST_TIERS: Final = 24
"""Tiers from here on are one."""

NO_TIER: Final = "none"
"""In place of a tier where a job is not managed."""

TIERS: Final = (*map(str, range(MOST_TIERS)), f"{MOST_TIERS}+", NO_TIER)

State = Literal[
    "audit_log",
    "bug",
    "polls_fail",
    "shadow",
    "paused",
    "forbidden",
    "looking",
    "acting",
    "starting",
    "standby",
]
"""What the daemon does, in the order in which the first that holds counts. ``audit_log``: that
cannot be written, so nothing is done. ``forbidden``: Slurm is not set up for it, or the account
lacks the right. ``looking``: the first cycles after a start or a silence only look. ``starting``:
it waits for Slurm to be seen at all. ``standby``: another daemon acts."""

STATES: Final[tuple[State, ...]] = get_args(State)

JOB_STATES: Final = ("waiting", "held", "holding")
PURPOSES: Final[tuple[Purpose, ...]] = get_args(Purpose)
PHASES: Final = ("observe", "decide", "apply")
VICTIM_OUTCOMES: Final = ("requeued", "finished", "left", "refused")
NOTICES: Final = ("acknowledged", "grace", "by_itself")
HANDOVER_ENDS: Final = ("served", "in_vain", "withdrawn")
RESIZES: Final = ("grow", "shrink", "transfer", "start", "refused")
STEER_OUTCOMES: Final = ("honoured", "not_honoured", "let_go", "gone")
RESULTS: Final = ("done", "failed")
FATES: Final[tuple[Fate, ...]] = get_args(Fate)

WATCHED: Final = (
    *("configuration", "release", "partitions", "rights", "private data", "clock"),
    *("priority plugin", "site factor", "priority weights", "priority flags", "gpus"),
    *("preemption", "profiles", "job records", "directories", "templates"),
)
"""Checks of ``dlctl doctor`` that a running daemon makes: those that find errors, but for what
each poll tells anyway (``slurm``, ``reader``, ``cycles``)."""


def snake(name: str) -> str:
    """``SetSteer`` as ``set_steer``, as the audit log has it."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


ACTIONS: Final = tuple(snake(action.__name__) for action in get_args(Action))

CYCLE_BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
NOTICE_BUCKETS_S: Final = (5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
HANDOVER_BUCKETS_S: Final = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0, 7200.0)


@dataclass(frozen=True, slots=True)
class Label:
    """One label and all the values it can have; none: they are the admin's, and one at a time."""

    name: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        name: As Prometheus shows it; a histogram's series have ``_bucket`` and the like behind it.
        help: What it says, for a person; one line.
        buckets: Upper ends of a histogram's buckets.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def most_series(self) -> int:
        """So many series it can have at one time."""
        each = prod(len(label.values) or 1 for label in self.labels)
        return each * (len(self.buckets) + 3 if self.buckets else 1)


_OF_JOBS: Final = (Label("tier", TIERS), Label("state", JOB_STATES))
_PURPOSE: Final = Label("purpose", PURPOSES)
_RESULT: Final = Label("result", RESULTS)

_METRICS: list[Metric] = []


def _metric(
    name: str,
    kind: Kind,
    words: str,
    *labels: Label,
    buckets: tuple[float, ...] = (),
) -> Metric:
    metric = Metric(name=f"slurm_dl_{name}", kind=kind, help=words, labels=labels, buckets=buckets)
    _METRICS.append(metric)
    return metric


# The daemon itself.

INFO = _metric(
    "info",
    "info",
    "Always 1. Labels: the release, the policy, and preemption by dlschedd, Slurm or neither.",
    Label("version"),
    Label("policy"),
    Label("preemption", ("external", "native", "off")),
)
START = _metric(
    "start_time_seconds",
    "gauge",
    "When this daemon started or last took over the lease, epoch seconds.",
)
STATE = _metric(
    "state",
    "gauge",
    "1 for the present state of the daemon, 0 for all others.",
    Label("state", STATES),
)
LIVE = _metric("live", "gauge", "1 if the configuration allows actions, 0 in shadow mode.")
LAST_LOOK = _metric(
    "last_look_timestamp_seconds",
    "gauge",
    "When the last cycle ended, epoch seconds by this host's clock. Absent before the first.",
)
NEXT_LOOK = _metric(
    "next_look_timestamp_seconds",
    "gauge",
    "When the next poll is due, epoch seconds. A time in the past means that the loop hangs.",
)
CYCLES = _metric("cycles_total", "counter", "Complete cycles.")
CYCLE = _metric(
    "cycle_seconds",
    "histogram",
    "Duration of the phases of a cycle.",
    Label("phase", PHASES),
    buckets=CYCLE_BUCKETS_S,
)
POLLS_FAILED = _metric(
    "polls_failed_in_a_row",
    "gauge",
    "Failed polls since the last good one, by cause: Slurm, or the ledger.",
    Label("because", ("slurm", "ledger")),
)
BUGS = _metric("bugs_total", "counter", "Unexpected exceptions. Each is in the log.")
SCRAPE_ERRORS = _metric(
    "scrape_errors_total",
    "counter",
    "Scrapes without an answer because of a bug. The log has the first of each kind.",
)
RELOAD_OK = _metric(
    "config_reload_successful",
    "gauge",
    "1 if the last reload took effect. Absent before the first reload.",
)
PROBLEM = _metric(
    "problem",
    "gauge",
    "1 while this check of dlctl doctor finds an error; dlctl status says which.",
    Label("check", WATCHED),
)
AUDIT_OK = _metric("audit_log_writable", "gauge", "1 if the audit log has all actions so far.")
LEDGER_OK = _metric(
    "ledger_writable", "gauge", "0 if the last poll failed because the ledger could not be used."
)
COMMANDS = _metric(
    "slurm_commands_total",
    "counter",
    "Runs of Slurm commands. Reads by pyslurm are not counted.",
    Label("command", (*TOOLS, *OPTIONAL_TOOLS)),
)

# slurmctld as it is felt.

CLOCK_AHEAD = _metric(
    "slurmctld_clock_ahead_seconds",
    "gauge",
    "How far slurmctld's clock is ahead of this host's. Negative: it is behind.",
)
CLOCK_JUMPS = _metric("slurmctld_clock_jumps_total", "counter", "Jumps of slurmctld's clock.")
TIME_DISTRUSTED = _metric(
    "time_distrusted", "gauge", "1 while no job is preempted because a clock has jumped."
)
SLOW_FACTOR = _metric(
    "slow_factor", "gauge", "Factor on the time between polls while slurmctld is slow."
)
WRITES_HELD = _metric(
    "writes_held", "gauge", "1 while the order is not written because slurmdbd falls behind."
)
UNREADABLE = _metric(
    "unreadable_records", "gauge", "Jobs and nodes of the last poll that could not be read."
)

CHANGED = _metric(
    "changed_jobs",
    "gauge",
    "Jobs that changed while the last poll read them; it did nothing to them.",
)

# The queue as it is ordered.

JOBS = _metric(
    "jobs",
    "gauge",
    "Jobs by tier: waiting (eligible, need free resources), held, holding GPUs or nodes.",
    *_OF_JOBS,
)
GPUS = _metric(
    "job_gpus",
    "gauge",
    "GPUs that these jobs hold or request.",
    *_OF_JOBS,
)
MANAGED_GPUS = _metric(
    "managed_gpus",
    "gauge",
    "GPUs of the managed partitions, including those of nodes that are down.",
)
STRANDED = _metric(
    "stranded_gpus", "gauge", "Free GPUs on nodes that have no CPUs or memory left for them."
)
OVERTAKEN = _metric(
    "overtaken_jobs",
    "gauge",
    "Eligible jobs that lack free resources while a job of a worse rank holds GPUs.",
)
REPORTING = _metric(
    "reporting_jobs", "gauge", "Jobs on GPUs that report the share of their work that is done."
)
SERVED = _metric(
    "served_gpu_seconds_total", "counter", "Service that managed jobs received, GPU-seconds."
)

# GPUs that change hands.

PREEMPTIONS = _metric(
    "preemptions_total",
    "counter",
    "Runs of victims that have ended, by purpose of the hand-over and by outcome.",
    _PURPOSE,
    Label("outcome", VICTIM_OUTCOMES),
)
PREEMPTED_GPUS = _metric(
    "preempted_gpus_total",
    "counter",
    "GPUs that these runs released, without those that their jobs go on with. Runs with outcome "
    "refused are not counted.",
    _PURPOSE,
)
RESIZES_ALL = _metric(
    "resizes_total",
    "counter",
    "Jobs that change size: grow on free GPUs, shrink for waiting jobs, transfer between running "
    "jobs; start in another size than asked for; refused: Slurm gave another size.",
    Label("way", RESIZES),
)
CHECKPOINT = _metric(
    "checkpoint_seconds",
    "histogram",
    "Time from the signal to the acknowledgement, the end of the grace, or the job's own exit.",
    Label("ended", NOTICES),
    buckets=NOTICE_BUCKETS_S,
)
LOST = _metric(
    "lost_gpu_seconds_total",
    "counter",
    "Estimated GPU time that preemption cost: notice (from signal to gone), idle (from then to "
    "the end of the hand-over).",
    Label("part", ("notice", "idle")),
)
HANDOVERS = _metric("handovers", "gauge", "Hand-overs under way.", _PURPOSE)
OLDEST_HANDOVER = _metric(
    "handover_oldest_age_seconds",
    "gauge",
    "Age of the oldest hand-over under way; 0 if there is none.",
)
HANDOVER = _metric(
    "handover_seconds",
    "histogram",
    "Duration of hand-overs: served, in vain (a beneficiary still waits), or withdrawn before any "
    "signal.",
    Label("ended", HANDOVER_ENDS),
    buckets=HANDOVER_BUCKETS_S,
)
RESTARTS = _metric(
    "restarts",
    "gauge",
    "Jobs requeued within a day, by cause, and their fate.",
    Label("by", ("dlschedd", "others")),
    Label("fate", FATES),
)
BREAKER = _metric(
    "breaker_tripped",
    "gauge",
    "1 while this breaker stops preemption; see dlctl breakers.",
    Label("breaker", BREAKERS),
)

PROMISES = _metric(
    "promises",
    "gauge",
    "Jobs with a promised deadline that still holds; see dlctl promises.",
    Label("state", ("waiting", "running")),
)
PROMISES_KEPT = _metric(
    "promises_kept_total",
    "counter",
    "Jobs that were over by their promised deadlines, since the ledger began.",
)
PROMISES_BROKEN = _metric(
    "promises_broken_total",
    "counter",
    "Jobs that were not over by their promised deadlines, by cause, since the ledger began.",
    Label("cause", CAUSES),
)

# What was asked of Slurm, and what became of it.

ACTIONS_ALL = _metric("actions_total", "counter", "Actions tried, by result.", _RESULT)
ACTIONS_BY_KIND = _metric(
    "actions_by_kind_total",
    "counter",
    "The same by kind, without those of cycles that were cut short.",
    Label("action", ACTIONS),
    _RESULT,
)
LEFT = _metric("actions_left", "gauge", "Actions planned in the last cycle and not tried in it.")
UNHONOURED = _metric(
    "unhonoured_jobs",
    "gauge",
    "Jobs with a written SiteFactor that has no effect in Slurm. It is written again.",
)
STEERS = _metric("steers", "gauge", "Waiting jobs with a node constraint or a deferred begin time.")
STEERS_ENDED = _metric(
    "steers_ended_total",
    "counter",
    "Ended constraints, by outcome: job started as intended, elsewhere, released before, gone.",
    Label("outcome", STEER_OUTCOMES),
)

PREDICTIONS = _metric(
    "predictions",
    "gauge",
    "The last forecast ranges of start times, by whether the job started in its range.",
    Label("result", ("held", "missed")),
)
PREDICTION_ERROR = _metric(
    "prediction_error_seconds",
    "gauge",
    "Median error of those forecasts. Absent while there are none.",
)

METRICS: Final = tuple(_METRICS)
"""All of them, in the order of the document."""


def table() -> Iterator[str]:
    """The table of the document, line by line."""
    yield "| metric | type | labels | meaning |"
    yield "|---|---|---|---|"
    for metric in METRICS:
        labels = ", ".join(f"`{label.name}`" for label in metric.labels)
        yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"
