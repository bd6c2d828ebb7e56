"""The loop's state for other threads: one immutable value, replaced after each cycle.

The control threads read whichever value stands on the `Board`, so they never wait for the loop
nor it for them. Rows for people are built when somebody asks and only for the jobs asked for:
a cycle at 100,000 jobs must not pay for answers nobody wants.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_dl.config import Config, ConfigValue
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.waiting_sizes import shape_of
from slurm_dl.json_types import JsonObject
from slurm_dl.model.breaker import Breaker
from slurm_dl.model.ids import JobId, has_task
from slurm_dl.model.jobs import JobState, Origin
from slurm_dl.model.plan import Action, ForgetSteer
from slurm_dl.model.sizes import size_of
from slurm_dl.model.snapshot import JobText, Observed, Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.slurm.controller import SiteConfig
from slurm_dl.slurm.read.queue_reader import ReaderChoice
from slurm_dl.text import escaped

LETTERS: Mapping[JobState, str] = {
    JobState.PENDING: "PD",
    JobState.CONFIGURING: "CF",
    JobState.RUNNING: "R",
    JobState.SUSPENDED: "S",
    JobState.COMPLETING: "CG",
    JobState.COMPLETED: "CD",
    JobState.FAILED: "F",
}
"""squeue's compact state of each `JobState`; every end without success is an ``F`` here."""

LIVE = (
    JobState.PENDING,
    JobState.CONFIGURING,
    JobState.RUNNING,
    JobState.SUSPENDED,
    JobState.COMPLETING,
)

_GPU_S_PER_GPU_H = 3600.0

_LONGEST_NAME = 200
"""Characters of a job's name that are shown: Slurm takes 1,024, and a list may have all jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The last thing that went wrong: when, epoch seconds, and what."""

    at_s: float
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingProblem:
    """An error that a check finds while the daemon runs: what, what to do, and since when."""

    check: str
    found: str
    advice: str
    since_s: float


WATCHED = (
    *("configuration", "release", "partitions", "rights", "private data", "clock"),
    *("priority plugin", "site factor", "priority weights", "priority flags", "gpus"),
    *("preemption", "profiles", "job records", "directories", "templates"),
)
"""Checks of ``dlctl doctor`` that a running daemon makes: those that find errors, but for what
each poll tells anyway (``slurm``, ``reader``, ``cycles``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """The last reload: when, epoch seconds, whether it took effect, and what was said of it."""

    at_s: float
    ok: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Durations of the parts of a cycle, milliseconds."""

    observe_ms: float = 0.0
    decide_ms: float = 0.0
    apply_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerHealthShown:
    """slurmctld's clock and how slow it is.

    Attributes:
        distrust_until_s: Until when, epoch seconds by this host's clock; 0 if that is over.
    """

    clock: str = "this host's clock"  # Whose time decisions are made in, as a clause
    ahead_s: float = 0.0  # How far that is ahead of this host's clock, seconds
    distrust: str = ""  # Why nothing is signalled or requeued now; empty if it may be
    distrust_until_s: float = 0.0
    jumps: int = 0  # How often slurmctld's clock has jumped since the start
    slow: str = ""  # Why it looks less often than configured; empty if it does not
    slowed: float = 1.0  # By what factor
    writes_held: str = ""  # Why the order is not written now; empty if it may be


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublishedState:
    """The daemon as others may see it.

    Attributes:
        seen_s: When the last cycle ended by this machine's clock, epoch seconds; 0 before.
        idle: What forbade it to act when its last poll began, beside the audit log and a pause.
        bugs, bugs_in_a_row: Exceptions nobody expected, since the start and since the last cycle
            that came to its end.
        controller_health: slurmctld's clock and how slow it is, as of the last poll.
        done, failed: Actions applied and refused since the start.
        steers_ended: Steers that are over since the start, by how they ended; see `ForgetSteer`.
    """

    config: Config  # The configuration in force
    config_rows: tuple[ConfigValue, ...]  # Its values with their origins
    started_s: float  # When the daemon started, epoch seconds
    live: bool  # False: it only looks (shadow mode)
    cycle: Cycle | None = None  # The last cycle that came to its end; None before the first
    resets: tuple[Breaker, ...] = ()  # Breakers that were reset since then
    policy: Policy | None = None  # The policy of that cycle
    cycles: int = 0  # How many there were
    seen_s: float = 0.0
    durations: Durations = field(default_factory=Durations)  # Of the last cycle
    idle: str = ""
    looks_left: int = 0  # Cycles that will only look: after the start, after the cluster was lost
    failures: int = 0  # Polls in a row that the cluster did not answer
    next_poll_s: float = 0.0  # When the next poll is due, epoch seconds
    trouble: Trouble | None = None  # The last error of a poll or a cycle
    bugs: int = 0
    bugs_in_a_row: int = 0
    reloaded: Reloaded | None = None  # The last reload
    reader: ReaderChoice | None = None  # What reads the queue; None before the first cycle
    slurm: SiteConfig | None = None  # What of slurm.conf was read last; None before the first cycle
    controller_health: ControllerHealthShown = field(default_factory=ControllerHealthShown)
    done: int = 0
    failed: int = 0
    steers_ended: Mapping[str, int] = field(default_factory=dict)

    @property
    def poll_s(self) -> float:
        """Seconds between polls at present, more than configured while slurmctld is slow."""
        daemon = self.config.daemon
        slowed_s = min(daemon.poll_s * self.controller_health.slowed, daemon.slow_poll_s)
        return max(daemon.poll_s, slowed_s)

    def steers_ended_after(self, action: Action) -> Mapping[str, int]:
        """*steers_ended* once *action* was done."""
        if not isinstance(action, ForgetSteer):
            return self.steers_ended
        so_far = self.steers_ended.get(action.outcome, 0)
        return {**self.steers_ended, action.outcome: so_far + 1}


class Board:
    """Holder of the loop's published state. Replacing one reference is atomic.

    Attributes:
        problems: Asks for those that stand; they are found beside the loop.
        checked_s: Asks when they were last looked for, epoch seconds; 0: never.
    """

    def __init__(self, first: PublishedState) -> None:
        self.current = first
        self.problems: Callable[[], tuple[StandingProblem, ...]] = tuple
        self.checked_s: Callable[[], float] = float


def row(cycle: Cycle, i: int) -> JsonObject:
    """One job for people, from row *i* of the columns."""
    snap, plan = cycle.snapshot, cycle.plan
    seen, jobs = snap.seen, snap.jobs
    job_id = JobId(int(jobs.job_id[i]))
    state = JobState(int(jobs.state[i]))
    text, claim = text_of(seen, job_id), seen.claim(job_id)
    partition, rank, tier = int(jobs.partition[i]), int(plan.rank[i]), int(plan.tier[i])
    started_s, end_s = float(jobs.start_s[i]), float(jobs.end_s[i])
    now_s = end_s if state in {JobState.COMPLETED, JobState.FAILED} else snap.now_s
    ran = state is not JobState.PENDING and started_s > 0
    # Of a job that is over the ledger does not keep what it asked for.
    is_over, limit_s = state >= JobState.COMPLETED, float(jobs.limit_s[i])
    return {
        "job": text.label,
        "job_id": job_id,
        "partition": seen.partitions[partition] if partition >= 0 else None,
        "partitions": [seen.partitions[p] for p in snap.partitions_of(i)],
        "name": text.name[:_LONGEST_NAME],
        "user": text.user or str(int(jobs.uid[i])),
        "uid": int(jobs.uid[i]),
        "account": text.account,
        "qos": text.qos,
        "state": LETTERS[state],
        "tasks": int(jobs.tasks[i]),
        "n_nodes": int(jobs.n_nodes[i]),
        "gpus": float(jobs.gpus[i]),
        **_sizes(cycle, i, job_id),
        "cpus": None if is_over else int(jobs.cpus[i]),
        "limit_s": None if is_over or not math.isfinite(limit_s) else limit_s,
        "submit_s": None if is_over else float(jobs.submit_s[i]) or None,
        "start_s": started_s if ran else None,
        "tier": tier if tier >= 0 else None,
        # People count from 1.
        "rank": rank + 1 if rank >= 0 else None,
        "attained_gpu_h": round(float(snap.memory.attained_gpu_s[i]) / _GPU_S_PER_GPU_H, 4),
        "restarts": int(jobs.restarts[i]),
        "preemptions": int(snap.memory.preemptions[i]),
        "time_s": max(0.0, round(now_s - started_s, 1)) if ran else 0.0,
        "nodes": text.nodes,
        "reason": text.reason,
        "ending": text.ending.lower(),
        "preemptible": claim.contract is not None,
        "due_s": claim.due_s,
        "progress": claim.progress,
        "left_s": reported_left_s(snap, i),
        "steps_per_s": claim.rate,
        "note": plan.notes.get(job_id, ""),
    }


def _sizes(cycle: Cycle, i: int, job_id: JobId) -> JsonObject:
    """The size that the job in row *i* has or asks for, the one it should have, and all it may."""
    jobs, sizes = cycle.snapshot.jobs, cycle.snapshot.sizes
    has, wants = size_of(jobs, i), cycle.plan.sizes.get(job_id)
    over = sizes is None or jobs.state[i] >= JobState.COMPLETING
    return {
        "size": None if has is None else str(has),
        "wanted_size": None if wants is None or over else str(wants),
        "sizes": [] if sizes is None or over else [str(shape_of(sizes, k)) for k in sizes.of(i)],
    }


def reported_left_s(snap: Snapshot, i: int) -> float | None:
    """Seconds that the job in row *i* still runs by what it reports of its progress itself."""
    # What is estimated has no rows for jobs that the ledger adds, and those are over.
    if snap.jobs.state[i] >= JobState.COMPLETING or snap.left_from is None:
        return None
    return round(float(snap.left_s[i]), 1) if snap.left_from[i] == Origin.REPORTED else None


def text_of(seen: Observed, job_id: JobId) -> JobText:
    """Words about a job; its number if there are none."""
    return seen.texts.get(job_id) or JobText(label=str(job_id))


_JOB_NAME = re.compile(r"(?P<id>\d{1,10})(_(?P<task>\d{1,10}))?(\+\d{1,4})?", re.ASCII)


def find_job(seen: Observed, name: str, owner: int | None = None) -> JobId | list[str]:
    """The record that *name* means: ``123``, an array task ``123_7``, a het component ``123+1``.

    Args:
        owner: Uid of the only user whose jobs may be found; None: everybody's.

    Returns:
        Its job id, also of one that was left out; or what else it could have been, best first, none
        if nothing was like it.

    Raises:
        ValueError: *name* is no job id.
    """
    jobs = seen.jobs
    mine = np.ones(len(jobs), np.bool_) if owner is None else jobs.uid == owner
    left_out = {j: one for j, one in seen.left_out.items() if owner in {None, one.uid}}
    ids = {*jobs.job_id[mine].tolist(), *left_out}
    labels = {one.label: job_id for job_id, one in left_out.items()}
    labels |= {text.label: job_id for job_id, text in seen.texts.items() if job_id in ids}
    if name in labels:
        return labels[name]
    match = _JOB_NAME.fullmatch(name)
    if match is None:
        msg = f"{escaped(name, 40)!r} is no job id: write 123 or, for an array task, 123_7"
        raise ValueError(msg)
    array, task = match["id"], match["task"]
    tasks = {label: j for label, j in labels.items() if label.startswith(f"{array}_")}
    # Pending tasks share one record, labelled 123_[8-20%4]; the bare 123 means it too.
    pending = [
        j
        for label, j in tasks.items()
        if (is_pending_part(label) if task is None else has_task(label, int(task)))
    ]
    if pending:
        return pending[0]
    if name == array and not tasks and int(array) in ids:
        return JobId(int(array))
    return sorted(tasks, key=lambda label: (len(label), label))[:5]


def not_listed(now: PublishedState, name: str, found: Sequence[str], owner: int | None) -> str:
    """A sentence on a job *name* that is neither in the last look nor in the ledger.

    Args:
        found: What else it could have been; see `find_job`.
        owner: Likewise; to them it is not told whether others have such a job.
    """
    told = f"no job {name}{'' if owner is None else ' of yours'} in the last snapshot"
    if found:
        return f"{told}; did you mean {' or '.join(found)}?"
    listed = now.cycle.snapshot.seen.jobs.job_id.tolist() if now.cycle else []
    # Slurm counts upwards.
    if owner is None and int(re.split(r"[_+]", name)[0]) <= max(listed, default=0):
        return f"{told}, and no record of one"
    return (
        f"{told}: if it was submitted since, it is not looked at yet; the next look is in "
        f"{max(0.0, now.next_poll_s - time.time()):.0f} s"
    )


def is_pending_part(label: str) -> bool:
    """Whether *label* is of tasks that wait in one record, as ``123_[8-20%4]``."""
    return label.endswith("]")
