"""Deadlines of jobs that count: those that stay within the site's shares, first eligible first.

A deadline is a claim of a user that can bring a job forward. This bound stands between the claim
and every policy, so false and greedy deadlines together move no more than a share of the GPUs. A
job that comes later never costs an earlier one its deadline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from slurm_dl.engine.explain.past_reasons import span
from slurm_dl.engine.settings import Deadlines
from slurm_dl.engine.target import SLACK_GPUS, pools
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, F64, Bool, Held, is_in
from slurm_dl.model.promise import promises_in
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.policies.arithmetic.demand import contenders


@dataclass(frozen=True, slots=True, eq=False)
class CountedDeadlines:
    """The deadlines that policies go by, and the others.

    Attributes:
        due_s: ``(n,)`` epoch seconds, inf for jobs without one that counts; None if no job has one.
        refused: For each job with a deadline that does not count, the reason as a clause.
    """

    due_s: F64 | None
    refused: Mapping[JobId, str]


def counted_deadlines(
    snap: Snapshot, rules: Deadlines | None, *, shared: bool = True
) -> CountedDeadlines:
    """The deadlines in the claims of managed jobs that are not over.

    A job counts with the GPUs of all its tasks, in each pool in which it may start, and there among
    the jobs that ask for its GPU type. One that is held has no share: it would cost its owner
    nothing to keep others from theirs.

    Args:
        rules: The site's bounds; None: no deadline counts.
        shared: Count the shares here. False: the policy's promises do that, instant by instant.
    """
    jobs, claims = snap.jobs, snap.seen.claims
    asked = {job_id: c.due_s for job_id, c in claims.items() if c.due_s is not None}
    if not asked:
        return CountedDeadlines(None, {})
    live = (jobs.state < COMPLETING) & (jobs.gpus > 0) & snap.managed_jobs
    rows = np.flatnonzero(live & np.isin(jobs.job_id, list(asked)))
    rows = rows[np.lexsort([jobs.job_id[rows], snap.memory.queued_s[rows]])]
    if rules is None:
        native = "Slurm itself preempts here (preemption.mode is native)"
        return CountedDeadlines(None, dict.fromkeys(map(JobId, jobs.job_id[rows].tolist()), native))
    shares = _Shares(snap, rules, shared=shared)
    answered = {} if shared else promises_in(snap.booked)
    due_s, refused = np.full(len(jobs), np.inf), dict[JobId, str]()
    for row in rows.tolist():
        job_id = JobId(int(jobs.job_id[row]))
        text = snap.seen.texts.get(job_id) or JobText(label=str(job_id))
        promise = answered.get(job_id)
        if promise is not None and promise.due_s == asked[job_id] and shares.may_start(row):
            due_s[row] = asked[job_id]  # Rules are for new deadlines.
        elif why := shares.refusal(row, text, asked[job_id] - snap.now_s):
            refused[job_id] = why
        else:
            due_s[row] = asked[job_id]
    return CountedDeadlines(due_s if np.isfinite(due_s).any() else None, refused)


class _Shares:
    """GPUs of each pool that jobs with counted deadlines ask for: in all, of each owner."""

    def __init__(self, snap: Snapshot, rules: Deadlines, *, shared: bool) -> None:
        self._rules, self._may_start, self._shared = rules, _may_start(snap), shared
        if not shared:
            # Limits, maintenance and nodes that are down pass; promises count them.
            passing = (Held.LIMIT, Held.RESERVATION, Held.UNAVAILABLE)
            self._may_start |= np.isin(snap.jobs.held, passing)
        self._pools = list(bounded_places(snap))
        # Lists: single values of an array are slow, and there may be 10,000 deadlines.
        self._gpus: list[float] = (snap.jobs.gpus * snap.jobs.tasks).tolist()
        self._uid: list[int] = snap.jobs.uid.tolist()
        self._used = defaultdict[str, list[float]](lambda: [0.0] * len(self._pools))

    def may_start(self, row: int) -> bool:
        """The job at *row* could start, or its reason not to will pass."""
        return bool(self._may_start[row])

    def refusal(self, row: int, text: JobText, ahead_s: float) -> str:
        """Count the job at *row*; if a bound forbids that, the bound as a clause, else empty."""
        rules = self._rules
        if rules.qos and text.qos not in rules.qos:
            return f"jobs of QOS {text.qos or '(none)'} may have none"
        if not self._may_start[row]:
            return "the job cannot start yet"
        if ahead_s <= 0:
            return "it has passed"
        if ahead_s > rules.longest_ahead_s:
            return f"it is more than {span(rules.longest_ahead_s)} ahead"
        return self._exceeded(row, text.account) if self._shared else ""

    def _exceeded(self, row: int, account: str) -> str:
        gpus = self._gpus[row]
        # Users too: where Slurm does not enforce associations, a job may name any account.
        owners = [f"account {account}"] if account else []
        owners.append(f"user {self._uid[row]}")
        bounds = [(owner, self._rules.account_share, self._used[owner]) for owner in owners]
        bounds.append(("all jobs", self._rules.share, self._used["all jobs"]))
        places = [i for i, (inside, *_) in enumerate(self._pools) if inside is None or inside[row]]
        for i in places:
            _, there, kind = self._pools[i]
            for has, share, used in bounds:
                if used[i] + gpus > share * there + SLACK_GPUS:
                    # Without the GPUs in use: Slurm may hide the jobs of others from the owner.
                    return f"{has} may have deadlines on {share * there:g} of {there:g} {kind}GPUs"
        for _, _, used in bounds:
            for i in places:
                used[i] += gpus
        return ""


def bounded_places(snap: Snapshot) -> Iterator[tuple[Bool | None, float, str]]:
    """The pools, and in each the GPUs of a type: jobs that ask for them, GPUs, type and blank."""
    nodes, kinds = snap.seen.nodes, snap.seen.gpu_types
    for pool in pools(snap):
        yield pool.jobs, pool.gpus(snap), ""
        totals = nodes.totals(pool.usable(snap), len(kinds))[1:].tolist()
        for kind, there in enumerate(totals if len(kinds) > 1 else ()):
            asks: Bool = snap.jobs.gpu_type == kind
            yield asks if pool.jobs is None else asks & pool.jobs, there, f"{kinds[kind]} "


def _may_start(snap: Snapshot) -> Bool:
    """``(n,)`` bool: the contenders, and jobs that Slurm keeps back for a moment."""
    jobs, latest_s = snap.jobs, snap.now_s + snap.seen.requeue_hold_s
    later = [job_id for job_id, begin_s in snap.seen.begins.items() if begin_s > latest_s]
    soon: Bool = (jobs.held == Held.BEGIN_TIME) & ~is_in(jobs.job_id, later)
    return contenders(snap) | soon
