"""Reasons for which Slurm would not start a victim again, or a beneficiary at all.

Of a victim is asked what is asked of a new pending job with its request. One that fails loses its
work, or waits for an admin: it is protected, with the reason. That a limit keeps a
beneficiary Slurm says only once it is next to start: its victims would have been stopped for
nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, PENDING, Bool, is_in
from slurm_dl.model.limits import Quotas
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.reservations import shut_out
from slurm_dl.placement.resource_request import ResourceRequests

Rows = npt.NDArray[np.int64]
Protection = tuple[Bool, str, bool]
"""Whom a rule protects, ``(r,)`` bool, the reason, and whether it may pass during the run."""


def could_not_start_again(snap: Snapshot, rows: Rows) -> tuple[Protection, ...]:
    """The rules that hold for some running job, one entry for each.

    Args:
        rows: ``(r,)`` rows in `Jobs`.
    """
    jobs, seen = snap.jobs, snap.seen
    job_id, limit_s = jobs.job_id[rows], jobs.limit_s[rows]
    ready_s = _ready_s(snap, rows)
    deadline_s = _of_jobs(seen.deadlines, job_id, math.inf)
    reserved_s = _of_jobs(seen.reserved_until, job_id, math.inf)
    late = shut_out(snap, rows, ready_s) if seen.blocked else np.zeros(len(rows), dtype=np.bool_)
    rules: list[Protection] = [
        (late, "it could not start again before the next reservation", True),
        (
            deadline_s < ready_s + limit_s,
            "it could not be over before its deadline if it started again (--deadline)",
            False,
        ),
        *_partitions(snap, rows),
        (~_has_nodes(snap, rows), "it would find too few nodes that are up to start again", True),
        (
            reserved_s < ready_s + limit_s,
            "its reservation would end before it could be over again",
            False,
        ),
        (
            is_in(job_id, list(seen.barred)),
            "its account or QOS would not let it start again",
            True,
        ),
    ]
    return tuple(rule for rule in rules if rule[0].any())


def shielded_by_deadline(snap: Snapshot) -> Bool:
    """``(n,)`` bool: pending jobs whose deadline would protect them before their run is over.

    Who may not be preempted displaces nobody: else a deadline would be a way to do both.
    """
    rows = np.arange(len(snap.jobs)) if snap.seen.deadlines else np.zeros(0, dtype=np.int64)
    found = np.zeros(len(snap.jobs), dtype=np.bool_)
    deadline_s = _of_jobs(snap.seen.deadlines, snap.jobs.job_id[rows], math.inf)
    found[rows] = deadline_s < _ready_s(snap, rows) + 2 * snap.jobs.limit_s[rows]
    return found


def _ready_s(snap: Snapshot, rows: Rows) -> F64:
    """``(r,)`` when each job could start again if it were signalled now, epoch seconds."""
    seen = snap.seen
    ready_s = np.full(len(rows), snap.now_s + seen.requeue_hold_s)
    if seen.blocked or seen.deadlines or seen.reserved_until:
        claims = [seen.claim(JobId(j)).contract for j in snap.jobs.job_id[rows].tolist()]
        ready_s += np.array([0.0 if c is None else c.grace_s for c in claims])
    return ready_s


def _of_jobs(told: Mapping[JobId, float], job_id: npt.NDArray[np.int64], otherwise: float) -> F64:
    values = np.full(len(job_id), otherwise)
    if told:
        for i in is_in(job_id, list(told)).nonzero()[0].tolist():
            values[i] = told[JobId(int(job_id[i]))]
    return values


def _partitions(snap: Snapshot, rows: Rows) -> list[Protection]:
    """Protections by the partition that each job runs in."""
    jobs, limits = snap.jobs, snap.seen.limits
    if not any(limits):
        return []
    at = jobs.partition[rows]
    n_nodes = jobs.n_nodes[rows]
    starts = np.array([one is None or one.starts for one in limits])[at]
    max_time_s = np.array([math.inf if one is None else one.max_time_s for one in limits])[at]
    least = np.array([0 if one is None else one.min_nodes for one in limits])[at]
    most = np.array([math.inf if one is None else one.max_nodes for one in limits])[at]
    limit_s = jobs.limit_s[rows]
    too_long = np.isfinite(limit_s) & (limit_s > max_time_s)
    return [
        (~starts, "its partition is down or inactive, so it could not start again", True),
        (too_long, "its time limit is above the MaxTime of its partition by now", True),
        (
            (n_nodes < least) | (n_nodes > most),
            "its partition does not start jobs of its number of nodes any more",
            True,
        ),
    ]


def _has_nodes(snap: Snapshot, rows: Rows) -> Bool:
    """``(r,)`` bool: as many nodes are up as the job needs, whoever is on them now."""
    seen, jobs, nodes = snap.seen, snap.jobs, snap.seen.nodes
    held = seen.held
    good = nodes.up[held.node] & seen.node_in[jobs.partition[held.job], held.node]
    # Where all its nodes are up it could start again on these.
    lacks = np.zeros(len(jobs), dtype=np.bool_)
    lacks[held.job[~good]] = True
    enough: Bool = ~lacks[rows]
    if enough.all():
        return enough
    whole, needs = FreeResources.unoccupied(snap), ResourceRequests(snap)
    for i in (~enough).nonzero()[0].tolist():
        job_id = JobId(int(jobs.job_id[rows[i]]))
        # Nodes of a reservation are not up for others.
        inside = any(job_id in one.jobs for one in seen.blocked)
        enough[i] = inside or whole.place(needs.of(int(rows[i]))) is not None
    return enough


BY_ITSELF = -1  # Owner of the plans for jobs that Slurm starts without a hand-over


class LimitsLeft:
    """A working copy of `Observed.quotas` that one decision fills up as it goes.

    A plan is what the beneficiaries of one hand-over need, less what its victims give back.
    """

    def __init__(self, snap: Snapshot, under_way: Iterable[Handover]) -> None:
        """Beside the hand-overs *under_way*."""
        none = Quotas(names=(), most=np.zeros(0), used=np.zeros(0), counts={})
        self._quotas = snap.seen.quotas or none
        self._counts = self._quotas.counts
        self._job_id = snap.jobs.job_id
        self._plans: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        if not self._counts:
            return
        state = dict(zip(self._job_id.tolist(), snap.jobs.state.tolist(), strict=True))
        for number, handover in enumerate(under_way, start=2):
            for job in handover.beneficiaries:
                if state.get(job) == PENDING:
                    self._add(-number, self._counts.get(job, ()), 1)
            # Who is only moved takes its place in the limits again.
            for victim in handover.victims:
                if victim.run.job_id in handover.moved or handover.purpose != "preempt":
                    continue
                if state.get(victim.run.job_id, PENDING) != PENDING:
                    self._add(-number, self._counts.get(victim.run.job_id, ()), -1)

    def of(self, row: int) -> tuple[tuple[int, float], ...]:
        """The quotas that the job at *row* counts in, and its units."""
        return self._counts.get(JobId(int(self._job_id[row])), ()) if self._counts else ()

    def why_not(self, row: int, victims: Collection[int] = (), *, owner: int | None = None) -> str:
        """The limit that leaves the waiting job at *row* no room; empty if none does.

        Args:
            victims: Rows of those who would be stopped for it.
            owner: Whose plan it would join; None: none.
        """
        over = self.over(row, victims, owner=owner)
        return f"{self._quotas.names[next(iter(over))]} leaves it no room" if over else ""

    def over(
        self, row: int, victims: Collection[int] = (), *, owner: int | None = None
    ) -> dict[int, float]:
        """By how much the job would pass each of its quotas; see `why_not`."""
        quotas, found = self._quotas, {}
        for quota, units in self.of(row):
            if owner == BY_ITSELF and quota in quotas.one_at_a_time:
                continue
            # What the victims of one hand-over give back beyond its own need comes free later.
            planned = sum(
                plan[quota] if of == owner else max(0.0, plan[quota])
                for of, plan in self._plans.items()
                if of != BY_ITSELF or quota not in quotas.one_at_a_time
            )
            given = sum(dict(self.of(victim)).get(quota, 0.0) for victim in victims)
            most = float(quotas.most[quota])
            excess = float(quotas.used[quota]) + planned + units - given - most
            if excess > 1e-6 * max(1.0, most):
                found[quota] = excess
        return found

    def plan(self, owner: int, row: int) -> None:
        """Count the job at *row* in the plan of *owner*."""
        self._add(owner, self.of(row), 1)

    def give_back(self, owner: int, victims: Collection[int]) -> None:
        """Count in the plan of *owner* what the jobs at the rows *victims* give back."""
        for victim in victims:
            self._add(owner, self.of(victim), -1)

    def dearer(self, row: int, cost: F64, candidates: Sequence[int]) -> F64:
        """*cost* with which those of *candidates* come last who give back nothing that *row* lacks.

        Args:
            cost: ``(n,)`` what stopping each job costs.
        """
        over = self.over(row).keys()
        if not over:
            return cost
        dearer = cost.copy()
        missing = [len(over - dict(self.of(candidate)).keys()) for candidate in candidates]
        dearer[candidates] += (float(cost.sum()) + 1.0) * np.array(missing)
        return dearer

    def _add(self, owner: int, counts: Iterable[tuple[int, float]], sign: int) -> None:
        for quota, units in counts:
            self._plans[owner][quota] += sign * units
