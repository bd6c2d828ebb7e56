"""A small cluster on which a policy runs jobs that are as long as they say: stops cost nothing.

Slow and plain on purpose, a second opinion beside the simulator: what a policy orders becomes the
set of running jobs at every arrival, end, end of a lease, and whenever the policy asks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import build
import numpy as np
from pasts import past_columns

from slurm_dl.engine.intent import intend
from slurm_dl.engine.leases import lease_of, next_end_s, under_lease
from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, JobRow, JobState
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.policies.base import Policy

_END_S = 1e-6


@dataclass(kw_only=True)
class Work:
    """A job, and what has become of it.

    Attributes:
        runs: Begin and end of every run that is over, seconds.
    """

    job_id: int
    submit_s: float
    size_s: float
    gpus: float = 1.0
    account: str = ""
    user: str = "u"
    name: str = ""
    qos: str = ""
    label: str = ""
    due_s: float = math.inf
    ran_s: float = 0.0
    start_s: float = 0.0
    end_s: float = math.inf
    waiting_since_s: float = 0.0
    runs: list[tuple[float, float]] = field(default_factory=list)

    @property
    def runs_now(self) -> bool:
        """It holds GPUs."""
        return self.start_s > 0

    @property
    def first_run_s(self) -> float:
        """Start of its first run; 0 before any."""
        return self.runs[0][0] if self.runs else self.start_s

    def run_s(self, now_s: float) -> float:
        """Seconds it has run in all."""
        return self.ran_s + (now_s - self.start_s if self.runs_now else 0.0)

    def stop(self, now_s: float) -> None:
        """Take its GPUs away."""
        self.runs.append((self.start_s, now_s))
        self.ran_s += now_s - self.start_s
        self.start_s, self.waiting_since_s = 0.0, now_s


def picture(works: Sequence[Work], now_s: float, gpus: float, *, knows_left: bool) -> Snapshot:
    """The snapshot of these jobs on one node of so many *gpus*."""
    live = [w for w in works if w.submit_s <= now_s and math.isinf(w.end_s)]
    rows: list[JobRow] = [
        build.running(w.job_id, w.gpus, submit_s=w.submit_s, start_s=w.start_s)
        if w.runs_now
        else build.pending(w.job_id, w.gpus, submit_s=w.submit_s)
        for w in live
    ]
    texts = {
        JobId(w.job_id): JobText(
            label=w.label or str(w.job_id), name=w.name, user=w.user, account=w.account, qos=w.qos
        )
        for w in live
    }
    memory = {
        "attained_gpu_s": {w.job_id: w.gpus * w.run_s(now_s) for w in live},
        "ran_s": {w.job_id: w.run_s(now_s) for w in live},
        "first_run_s": {w.job_id: w.first_run_s for w in live},
        "first_submit_s": {w.job_id: w.submit_s for w in live},
        "waiting_since_s": {w.job_id: max(w.waiting_since_s, w.submit_s) for w in live},
    }
    held = {w.job_id: {0: w.gpus} for w in live if w.runs_now}
    seen = build.observed(rows, nodes=(gpus,), held=held, now_s=now_s, texts=texts)
    due_s = np.array([w.due_s for w in live])
    snap = build.snapshot(seen, memory=memory, past=past_of(works), due_s=due_s)
    if knows_left:
        left_s = np.array([w.size_s - w.run_s(now_s) for w in live])
        object.__setattr__(snap, "left_s", np.maximum(left_s, 0.0))
    return snap


def past_of(works: Sequence[Work]) -> Past:
    """Those that are over."""
    over = sorted((w for w in works if math.isfinite(w.end_s)), key=lambda w: w.end_s)
    if not over:
        return NO_PAST
    accounts = tuple(sorted({w.account for w in over}))
    return past_columns(
        [w.ran_s for w in over],
        account=[accounts.index(w.account) for w in over],
        gpus=[w.gpus for w in over],
        submit_s=[w.submit_s for w in over],
        start_s=[w.first_run_s for w in over],
        end_s=[w.end_s for w in over],
        accounts=accounts,
    )


def run(
    policy: Policy,
    works: Sequence[Work],
    gpus: float,
    *,
    until_s: float = math.inf,
    knows_left: bool = True,
    watch: Callable[[Snapshot], None] = lambda _: None,
) -> Sequence[Work]:
    """Run *works* under *policy* until all are over or the clock says *until_s*.

    Args:
        watch: Called with every snapshot that a decision is made from.
    """
    now_s = min(w.submit_s for w in works)
    while now_s < until_s and any(math.isinf(w.end_s) for w in works):
        snap = picture(works, now_s, gpus, knows_left=knows_left)
        watch(snap)
        changes_s = _decide(policy, works, snap)
        now_s = max(min(until_s, changes_s, _next_event_s(policy, works, now_s)), now_s)
        for w in works:
            if w.runs_now and w.run_s(now_s) >= w.size_s - _END_S:
                w.stop(now_s)
                w.end_s = now_s
    for w in works:
        if w.runs_now:
            w.stop(now_s)
    return works


def _decide(policy: Policy, works: Sequence[Work], snap: Snapshot) -> float:
    """Start and stop jobs; when the order next changes by itself."""
    never = policy.preempts == "never"
    pinned = snap.jobs.start_s > 0 if never else under_lease(snap, lease_of(policy))
    intent = intend(snap, policy, pinned.nonzero()[0])
    chosen = set(snap.jobs.job_id[intent.target].tolist())
    for w in works:
        if w.runs_now and w.job_id not in chosen:
            w.stop(snap.now_s)
        elif w.job_id in chosen and not w.runs_now:
            w.start_s = snap.now_s
    running = np.isin(snap.jobs.job_id, list(chosen))
    return policy.next_change_s(snap, intent.order, running)


def _next_event_s(policy: Policy, works: Sequence[Work], now_s: float) -> float:
    """The next arrival, end, or end of leases."""
    arrivals = [w.submit_s for w in works if w.submit_s > now_s]
    ends = [w.start_s + w.size_s - w.ran_s for w in works if w.runs_now]
    return min([*arrivals, *ends, next_end_s(now_s, lease_of(policy))])


def odd_cluster(case: str, rows: list[JobRow]) -> Snapshot:
    """*rows* on four GPUs, but for *case*."""
    if case == "none":
        rows = []
    if case == "large":
        rows.append(build.pending(4, 64))
    if case == "odd":
        rows.append(build.pending(4, held=Held.DEPENDENCY))
        rows.append(build.pending(5, partition=1))
        rows.append(build.pending(6, 0))
        rows.append(dataclasses.replace(build.running(7), state=JobState.COMPLETED))
    seen = build.observed(rows, nodes=() if case == "no gpus" else (4,))
    if case == "down":
        off = np.zeros(1, dtype=np.bool_)
        seen = dataclasses.replace(seen, nodes=dataclasses.replace(seen.nodes, up=off))
    return build.snapshot(seen)
