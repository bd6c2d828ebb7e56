"""Deadlines that count, and terms on which a policy may promise: nodes, shares, returns of GPUs.

A job is promised nodes only where Slurm serves no other job before it: nodes of managed partitions
in which no other partition has a higher PriorityTier.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurm_dl.engine.explain.past_reasons import span
from slurm_dl.engine.preemption.commitment import UNLIMITED_S
from slurm_dl.engine.preemption.eligibility import Victims, accepted, unmodelled
from slurm_dl.engine.settings import Deadlines, Settings
from slurm_dl.engine.target import SLACK_GPUS, pools
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, F64, I64, PENDING, RUNNING, Bool, Held, is_in
from slurm_dl.model.promise import NodeGroup, PromiseTerms, SharePlace, promises_in
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.model.value_curve import ValueCurve
from slurm_dl.placement.reservations import eligible
from slurm_dl.policies.arithmetic.supply_and_demand import contenders
from slurm_dl.policies.base import Policy


@dataclass(frozen=True, slots=True, eq=False)
class CountedDeadlines:
    """The deadlines that policies go by, and the others.

    Attributes:
        due_s: ``(n,)`` epoch seconds, inf for jobs without one that counts; None if no job has one.
        refused: For each job with a deadline that does not count, the reason as a clause.
        curves: Values of the jobs with several deadlines of which one counts, without those that
            have passed or are too far ahead.
    """

    due_s: F64 | None
    refused: Mapping[JobId, str]
    curves: Mapping[JobId, ValueCurve] = field(default_factory=dict)


def counted_deadlines(
    snap: Snapshot, rules: Deadlines | None, *, shared: bool = True
) -> CountedDeadlines:
    """The deadlines in the claims of managed jobs that are not over, first eligible first.

    They can bring a job forward. The site's shares stand between the claim and every policy, so
    false and greedy deadlines together move no more than a share of the GPUs, and a job that comes
    later never costs an earlier one its deadline.

    A job counts with the GPUs of all its tasks, in each pool in which it may start, and there among
    the jobs that ask for its GPU type. One that is held has no share: it would cost its owner
    nothing to keep others from theirs.

    Of several deadlines of a job the one counts that was answered, else the next; a job's values
    choose among its own deadlines and say nothing beside those of others.

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
    curves, last_s = dict[JobId, ValueCurve](), snap.now_s + rules.longest_ahead_s
    for row in rows.tolist():
        job_id = JobId(int(jobs.job_id[row]))
        text = snap.seen.texts.get(job_id) or JobText(label=str(job_id))
        promise = answered.get(job_id)
        curve = whole = claims[job_id].curve
        own: tuple[float, ...] = (asked[job_id],) if whole is None else whole.due_s
        if promise is not None and promise.due_s in own and shares.may_start(row):
            due_s[row] = promise.due_s  # Rules are for new deadlines.
        else:
            curve = whole and whole.between(snap.now_s, last_s)
            at_s = asked[job_id] if curve is None else curve.due_s[0]
            if why := shares.refusal(row, text, at_s - snap.now_s):
                refused[job_id] = why
                continue
            due_s[row] = at_s
        if curve is not None:
            curves[job_id] = curve
    return CountedDeadlines(due_s if np.isfinite(due_s).any() else None, refused, curves)


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


PROMISED: Final = "it runs under a promise to be done in time"
"""The reason why a job is not preempted."""


def promises(policy: Policy | None) -> bool:
    """True if *policy* promises deadlines."""
    return bool(getattr(policy, "promises", False))


def with_terms(snap: Snapshot, policy: Policy, settings: Settings, victims: Victims) -> Snapshot:
    """*snap* with `Snapshot.terms`, if *policy* promises and a job has a deadline or a promise.

    Args:
        settings: With the limits on preemption that hold now.
        victims: The managed running jobs, and which of them may be preempted.
    """
    rules = settings.deadlines
    if not promises(policy) or rules is None:
        return snap
    asks = np.isfinite(snap.due_s) if snap.due_s is not None else np.zeros(len(snap.jobs), np.bool_)
    asks = asks | is_in(snap.jobs.job_id, list(promises_in(snap.booked)))
    if not asks.any():
        return snap
    groups = _Groups(snap)
    sizes = "sizes" in policy.about.needs
    rows = asks.nonzero()[0].tolist()
    refused = {row: why for row in rows if (why := _refusal(snap, row, sizes=sizes))}
    group = np.full(len(snap.jobs), -1, dtype=np.int64)
    for row in asks.nonzero()[0].tolist():
        group[row] = groups.of(row)
    texts, ids = snap.seen.texts, snap.jobs.job_id.tolist()
    terms = PromiseTerms(
        groups=tuple(groups.found),
        group=group,
        meets=groups.meets(),
        places=tuple(SharePlace(inside, gpus) for inside, gpus, _ in bounded_places(snap)),
        refused=refused,
        owners={
            row: text.account
            for row in asks.nonzero()[0].tolist()
            if (text := texts.get(JobId(ids[row]))) is not None and text.account
        },
        returns_s=_returns_s(snap, settings, victims),
        holds_s=_holds_s(snap, settings),
        is_preempting=settings.preemption.enabled,
        share=rules.share,
        account_share=rules.account_share,
        lead_s=rules.lead_s,
        estimate=rules.estimate,
        most_per_hour=settings.preemption.max_gpus_per_hour or math.inf,
    )
    return snap.derived(terms=terms)


def _refusal(snap: Snapshot, row: int, *, sizes: bool) -> str:
    """The reason why nothing can be said of the job's start; empty if there is none."""
    jobs, seen = snap.jobs, snap.seen
    job_id = JobId(int(jobs.job_id[row]))
    if option := seen.unmodelled.get(job_id):
        return unmodelled(option)
    if snap.is_of_array(job_id) or jobs.tasks[row] > 1:
        return "it is part of an array: promises are made to single jobs"
    if jobs.gpus[row] != np.floor(jobs.gpus[row]):
        return "it asks for shares of a GPU"
    if any(job_id in one.jobs for one in seen.blocked):
        return "it asks for a reservation"
    if snap.sizes is not None and row in snap.sizes.row and not sizes:
        return "its size may change: promises are made to jobs of one size"
    return ""


class _Groups:
    """The groups of nodes of jobs with a deadline, and the nodes of all others."""

    def __init__(self, snap: Snapshot) -> None:
        self._snap = snap
        self._first = _comes_first(snap)
        nodes = snap.seen.nodes
        back = nodes.up.copy()
        for one in snap.seen.blocked:
            back |= one.nodes & (one.start_s <= snap.now_s)
        self._there = back
        self._at: dict[tuple[bytes, int, float], int] = {}
        self.found: list[NodeGroup] = []

    def of(self, row: int) -> int:
        """Number of the group of the job at *row*; -1 if no nodes are left."""
        snap, kind = self._snap, int(self._snap.jobs.gpu_type[row])
        mine = eligible(snap, row) & self._first_of(row)
        size = snap.seen.nodes.of_type(kind)
        most = float(size[mine].max(initial=0.0))
        each = max(1.0, float(snap.jobs.gpus[row]) / int(snap.jobs.n_nodes[row]))
        if snap.sizes is not None:
            per_node = [snap.sizes.gpus[i] / snap.sizes.nodes[i] for i in snap.sizes.of(row)]
            each = max([each, *map(float, per_node)])
        # Of a job whose nodes Slurm chooses the number may not be known yet.
        each = most if snap.jobs.exclusive[row] else min(2.0 ** math.ceil(math.log2(each)), most)
        mine &= size >= max(1.0, each)
        nodes = mine & self._there
        if not nodes.any():
            return -1
        at = self._at.setdefault((nodes.tobytes(), kind, each), len(self.found))
        if at == len(self.found):
            is_short = bool((mine & ~self._there).any())
            self.found.append(NodeGroup(nodes=nodes, kind=kind, each=each, is_short=is_short))
        return at

    def meets(self) -> Bool:
        """``(n, g)`` bool, see `PromiseTerms`."""
        snap, jobs = self._snap, self._snap.jobs
        met = np.zeros((len(jobs), len(self.found)), dtype=np.bool_)
        known: dict[tuple[object, ...], Bool] = {}
        for row in ((jobs.state < COMPLETING) & (jobs.gpus > 0)).nonzero()[0].tolist():
            choice = snap.choice(JobId(int(jobs.job_id[row])))
            kind = int(jobs.gpu_type[row])
            key = (snap.partitions_of(row), kind, None if choice is None else choice.tobytes())
            if key not in known:
                mine = eligible(snap, row) & self._there
                known[key] = np.array(
                    [
                        bool((mine & g.nodes).any()) and (kind < 0 or g.kind in (-1, kind))
                        for g in self.found
                    ],
                    dtype=np.bool_,
                )
            met[row] = known[key]
        return met

    def _first_of(self, row: int) -> Bool:
        """``(m,)`` bool, nodes on which no partition comes before those of the job."""
        partitions = list(self._snap.partitions_of(row))
        of = self._snap.partition_tiers()
        if of is None:
            return self._first >= 0
        own = (of[partitions, None] * self._snap.seen.node_in[partitions]).max(axis=0, initial=0)
        first: Bool = (self._first >= 0) & (own >= self._first)
        return first


def _comes_first(snap: Snapshot) -> I64:
    """``(m,)`` highest PriorityTier on each node; -1 where a partition is not managed.

    Partitions that shut out some and in which no job is do not count: an admin's own.
    """
    seen, jobs = snap.seen, snap.jobs
    of = snap.partition_tiers()
    busy = set(jobs.partition[jobs.state < COMPLETING].tolist())
    highest = np.ones(len(seen.nodes), dtype=np.int64)
    unmanaged = np.zeros(len(seen.nodes), dtype=np.bool_)
    for p, inside in enumerate(seen.node_in):
        limits = seen.limits[p] if p < len(seen.limits) else None
        if limits is not None and not (limits.starts and (limits.is_open or p in busy)):
            continue
        highest[inside] = np.maximum(highest[inside], 1 if of is None else int(of[p]))
        unmanaged |= inside & ~snap.managed[p]
    highest[unmanaged] = -1
    return highest


def _returns_s(snap: Snapshot, settings: Settings, victims: Victims) -> F64:
    """``(n,)`` seconds until GPUs of each running job can be taken back; inf: only at its end."""
    jobs, limits, now_s = snap.jobs, settings.preemption, snap.now_s
    returns_s = np.full(len(jobs), np.inf)
    rows = np.setdiff1d(victims.rows, victims.lasting)
    rest_s = np.maximum(
        jobs.start_s[rows] + limits.min_quantum_s,
        snap.memory.last_preempted_s[rows] + limits.cooldown_s,
    )
    returns_s[rows] = np.maximum(rest_s - now_s, 0.0)
    return returns_s


def _holds_s(snap: Snapshot, settings: Settings) -> F64:
    """``(n,)`` seconds for which each waiting job would keep its GPUs once it started."""
    jobs, limits = snap.jobs, settings.preemption
    whole_s = np.minimum(jobs.limit_s, UNLIMITED_S)
    if not limits.enabled:
        return whole_s
    may = accepted(snap, limits) & (snap.memory.preemptions < limits.max_preemptions)
    # Of a short run nothing can be taken back: it is in its quantum, then near its limit.
    may &= jobs.limit_s > limits.min_quantum_s + limits.limit_reserve_s
    held_s: F64 = np.where(may, limits.min_quantum_s, whole_s)
    return np.where((jobs.state == PENDING) | (jobs.state == RUNNING), held_s, 0.0)
