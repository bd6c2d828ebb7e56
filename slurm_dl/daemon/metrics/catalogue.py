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
STEER_OUTCOMES: Final = ("honoured", "not_honoured", "let_go", "gone")
RESULTS: Final = ("done", "failed")
FATES: Final[tuple[Fate, ...]] = get_args(Fate)


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
    "Always 1; the release, the policy that orders jobs, and who takes GPUs back.",
    Label("version"),
    Label("policy"),
    Label("preemption", ("external", "native", "off")),
)
START = _metric("start_time_seconds", "gauge", "When this daemon began its turn, epoch seconds.")
STATE = _metric(
    "state", "gauge", "1 for what the daemon does now, 0 for all else.", Label("state", STATES)
)
LIVE = _metric("live", "gauge", "1 if the configuration lets it act, 0 in shadow mode.")
LAST_LOOK = _metric(
    "last_look_timestamp_seconds",
    "gauge",
    "When the last cycle ended, epoch seconds by this host's clock; absent before the first.",
)
NEXT_LOOK = _metric(
    "next_look_timestamp_seconds",
    "gauge",
    "When the next look at the queue is due, epoch seconds; in the past, the loop hangs.",
)
CYCLES = _metric("cycles_total", "counter", "Cycles that came to their end.")
CYCLE = _metric(
    "cycle_seconds",
    "histogram",
    "How long the parts of a cycle took.",
    Label("phase", PHASES),
    buckets=CYCLE_BUCKETS_S,
)
POLLS_FAILED = _metric(
    "polls_failed_in_a_row",
    "gauge",
    "Looks that failed since the last that did not, by who failed: Slurm, or our ledger.",
    Label("because", ("slurm", "ledger")),
)
BUGS = _metric("bugs_total", "counter", "Exceptions that nobody expected; each is in the log.")
SCRAPE_ERRORS = _metric(
    "scrape_errors_total",
    "counter",
    "Scrapes that a bug in the figures left without an answer; the log has the first of each kind.",
)
RELOAD_OK = _metric(
    "config_reload_successful", "gauge", "1 if the last reload took effect; absent before any."
)
AUDIT_OK = _metric("audit_log_writable", "gauge", "1 if all that was done is in the audit log.")
LEDGER_OK = _metric(
    "ledger_writable", "gauge", "0 if the last look failed because the ledger could not be used."
)
COMMANDS = _metric(
    "slurm_commands_total",
    "counter",
    "Slurm commands that were run; what pyslurm reads is not in it.",
    Label("command", (*TOOLS, *OPTIONAL_TOOLS)),
)

# slurmctld as it is felt.

CLOCK_AHEAD = _metric(
    "slurmctld_clock_ahead_seconds",
    "gauge",
    "How far slurmctld's clock is ahead of this host's; below 0 it is behind.",
)
CLOCK_JUMPS = _metric("slurmctld_clock_jumps_total", "counter", "How often its clock jumped.")
TIME_DISTRUSTED = _metric(
    "time_distrusted", "gauge", "1 while nobody is stopped because a clock has jumped."
)
SLOW_FACTOR = _metric(
    "slow_factor", "gauge", "By what the time between looks is multiplied as slurmctld is slow."
)
WRITES_HELD = _metric(
    "writes_held", "gauge", "1 while the order is not written because slurmdbd falls behind."
)
UNREADABLE = _metric(
    "unreadable_records", "gauge", "Jobs and nodes of the last look that could not be read."
)

# The queue as it is ordered.

JOBS = _metric(
    "jobs",
    "gauge",
    "Jobs by tier: waiting (could start if there were room), held, holding GPUs or nodes.",
    *_OF_JOBS,
)
GPUS = _metric(
    "job_gpus",
    "gauge",
    "GPUs that these jobs hold or ask for.",
    *_OF_JOBS,
)
MANAGED_GPUS = _metric(
    "managed_gpus", "gauge", "GPUs of the managed partitions, those of nodes that are down too."
)
STRANDED = _metric(
    "stranded_gpus", "gauge", "Free GPUs on nodes without CPUs or memory left to go with them."
)
OVERTAKEN = _metric(
    "overtaken_jobs",
    "gauge",
    "Jobs that could start if there were room, while a job of a worse rank holds GPUs.",
)
SERVED = _metric(
    "served_gpu_seconds_total", "counter", "Service that managed jobs received, GPU-seconds."
)

# GPUs that change hands.

PREEMPTIONS = _metric(
    "preemptions_total",
    "counter",
    "Runs chosen to give way that were seen to their end, by what for and how they ended.",
    _PURPOSE,
    Label("outcome", VICTIM_OUTCOMES),
)
PREEMPTED_GPUS = _metric(
    "preempted_gpus_total",
    "counter",
    "GPUs that such runs gave back; those that refused are not in it.",
    _PURPOSE,
)
CHECKPOINT = _metric(
    "checkpoint_seconds",
    "histogram",
    "From the signal to the acknowledgement, to the end of the grace, or until it left by itself.",
    Label("ended", NOTICES),
    buckets=NOTICE_BUCKETS_S,
)
LOST = _metric(
    "lost_gpu_seconds_total",
    "counter",
    "GPU time that preemption cost, estimated: notice (from signal to gone), idle (until its "
    "hand-over was over).",
    Label("part", ("notice", "idle")),
)
HANDOVERS = _metric("handovers", "gauge", "Hand-overs under way.", _PURPOSE)
OLDEST_HANDOVER = _metric(
    "handover_oldest_age_seconds", "gauge", "Age of the oldest hand-over under way; 0 if none is."
)
HANDOVER = _metric(
    "handover_seconds",
    "histogram",
    "How long hand-overs took: served, in vain (a beneficiary still waits), or withdrawn before "
    "anybody was signalled.",
    Label("ended", HANDOVER_ENDS),
    buckets=HANDOVER_BUCKETS_S,
)
RESTARTS = _metric(
    "restarts",
    "gauge",
    "Jobs put back into the queue within a day, by whom, and what became of them.",
    Label("by", ("dlschedd", "others")),
    Label("fate", FATES),
)
BREAKER = _metric(
    "breaker_tripped",
    "gauge",
    "1 while this breaker stops preemption; see dlctl breakers.",
    Label("breaker", BREAKERS),
)

# What was asked of Slurm, and what became of it.

ACTIONS_ALL = _metric("actions_total", "counter", "Actions tried, by result.", _RESULT)
ACTIONS_BY_KIND = _metric(
    "actions_by_kind_total",
    "counter",
    "The same by kind; without those of cycles that were cut short.",
    Label("action", ACTIONS),
    _RESULT,
)
LEFT = _metric("actions_left", "gauge", "Actions planned in the last cycle and not tried in it.")
UNHONOURED = _metric(
    "unhonoured_jobs",
    "gauge",
    "Jobs whose SiteFactor was written and does not count in Slurm; it is written again.",
)
STEERS = _metric(
    "steers", "gauge", "Waiting jobs that are kept from some nodes, or from starting too early."
)
STEERS_ENDED = _metric(
    "steers_ended_total",
    "counter",
    "Steers that are over, by how: started where it should, elsewhere, let go before, gone.",
    Label("outcome", STEER_OUTCOMES),
)

PREDICTIONS = _metric(
    "predictions",
    "gauge",
    "The last ranges in which jobs were expected to start, by whether they did.",
    Label("result", ("held", "missed")),
)
PREDICTION_ERROR = _metric(
    "prediction_error_seconds",
    "gauge",
    "Median distance of those starts from what was expected; absent while there is none.",
)

METRICS: Final = tuple(_METRICS)
"""All of them, in the order of the document."""


def table() -> Iterator[str]:
    """The table of the document, line by line."""
    yield "| metric | type | labels | what it says |"
    yield "|---|---|---|---|"
    for metric in METRICS:
        labels = ", ".join(f"`{label.name}`" for label in metric.labels)
        yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"
