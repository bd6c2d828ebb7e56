"""Terms on which a policy may promise: nodes, shares, and when GPUs of running jobs come back.

A job is promised nodes only where Slurm serves no other job before it: nodes of managed partitions
in which no other partition has a higher PriorityTier.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from slurm_dl.engine.deadlines import bounded_places
from slurm_dl.engine.preemption.commitment import UNLIMITED_S
from slurm_dl.engine.preemption.eligibility import Victims, accepted, unmodelled
from slurm_dl.engine.settings import Settings
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, F64, I64, PENDING, RUNNING, Bool, is_in
from slurm_dl.model.promise import NodeGroup, PromiseTerms, SharePlace, promises_in
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.reservations import eligible
from slurm_dl.policies.base import Policy

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
    refused = {row: why for row in asks.nonzero()[0].tolist() if (why := _refusal(snap, row))}
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


def _refusal(snap: Snapshot, row: int) -> str:
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
    if snap.sizes is not None and row in snap.sizes.row:
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
