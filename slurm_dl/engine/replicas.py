"""Replicas that a service wants come before batch jobs; the others rank as batch jobs.

A service is an array of replicas. The replicas that run count first, by their start, then the
tasks that wait, by job id. As many as the service wants are served first; nobody but the site says
how many those are. ArrayTaskThrottle keeps Slurm from starting more. It cannot be zero: of an array
that none is wanted of one task may run.

Swayam (Middleware 2017): replicas follow the predicted rate of requests.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.engine.placing.guarantees import first_in_order
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I32, PENDING, RUNNING, Bool, Held
from slurm_dl.model.replicas import Replicas
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.throttle import FREE, NO_THROTTLE, owned, throttles_in
from slurm_dl.policies.base import Order, Preempts

WANTED: Final = "its service wants this replica"
_PUT_ASIDE: Final = Held.USER_OR_ADMIN, Held.DEPENDENCY  # Nobody knows for how long


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicaPlaces:
    """The replicas that are wanted."""

    first: Bool  # ``(n,)`` bool, replicas that are served before batch jobs
    barred: Bool  # ``(n,)`` bool, replicas that wait and are not to start
    running: I32  # ``(n,)`` tasks of each array that may run at once, see `Order.running`
    tasks: I32  # ``(n,)`` `Jobs.tasks`, of arrays of replicas no more than are wanted
    notes: dict[JobId, str]  # By replica

    def within(self, order: Order) -> Order:
        """*order*, in which surplus replicas do not start and others preempt for wanted ones."""
        running = self.running
        if order.running is not None:
            running = np.where(running == FREE, order.running, running).astype(np.int32)
        barred = self.barred if order.barred is None else order.barred & ~self.first | self.barred
        pressing = self.first if order.pressing is None else order.pressing | self.first
        return dataclasses.replace(order, running=running, barred=barred, pressing=pressing)

    def before_batch(self, order: Order, preempts: Preempts) -> tuple[Order, Preempts]:
        """*order* with wanted replicas first, and whom a waiting job may displace in it.

        Where the policy's jobs displace nobody, wanted replicas alone do.
        """
        if preempts == "rank":
            return first_in_order(order, "tier", self.first), "rank"
        return first_in_order(order, preempts, self.first), "tier"

    def owed(self, need: F64 | None) -> F64 | None:
        """*need*, see `intent.ask`, by which wanted replicas are served first, too."""
        return None if need is None else np.where(self.first[:, None], np.inf, need)


def replicas_in(snap: Snapshot) -> ReplicaPlaces | None:
    """The replicas that are wanted; None if the site has no services."""
    if not snap.services:
        return None
    n = len(snap.jobs)
    places = ReplicaPlaces(
        first=np.zeros(n, dtype=np.bool_),
        barred=np.zeros(n, dtype=np.bool_),
        running=np.full(n, FREE, dtype=np.int32),
        tasks=snap.jobs.tasks.copy(),
        notes={},
    )
    booked = throttles_in(snap.booked)
    # Slurm does not tell all of them at each look.
    owners = {j: t.own for j, t in booked.items()} | owned(booked, snap.seen.throttles)
    own = {_array(snap, job): tasks for job, tasks in owners.items() if tasks != NO_THROTTLE}
    for service in snap.services:
        _choose(snap, service, places, own)
    return places


def running_replicas(snap: Snapshot, replicas: Iterable[JobId]) -> list[int]:
    """Rows of those of *replicas* that run, those that started first before others."""
    jobs = snap.jobs
    rows = [row for row in _rows(snap, replicas) if jobs.state[row] == RUNNING]
    return sorted(rows, key=lambda row: (jobs.start_s[row], jobs.job_id[row]))


def _rows(snap: Snapshot, replicas: Iterable[JobId]) -> list[int]:
    row_of, managed = snap.jobs.rows, snap.managed_jobs
    return [row_of[job] for job in replicas if job in row_of and managed[row_of[job]]]


def _choose(
    snap: Snapshot, service: Replicas, places: ReplicaPlaces, own: Mapping[str, int]
) -> None:
    """Write down the replicas of *service*; *own*: its owner's throttle of each bounded array."""
    jobs, run = snap.jobs, running_replicas(snap, service.jobs)
    waiting = [row for row in _rows(snap, service.jobs) if jobs.state[row] == PENDING]
    id_of = {row: JobId(int(jobs.job_id[row])) for row in (*run, *waiting)}
    array_of = {row: _array(snap, job_id) for row, job_id in id_of.items()}
    rate = "no rate was read"
    if service.rate_per_s is not None:
        rate = f"{service.rate_per_s:.4g} requests/s"
    s = "" if service.wanted == 1 else "s"
    wants = f"service {service.name} wants {service.wanted} replica{s} ({rate}); "
    for place, row in enumerate(run):
        places.first[row] = place < service.wanted
        told = "this is one of them" if places.first[row] else "this one is surplus"
        places.notes[id_of[row]] = wants + told
    left = max(service.wanted - len(run), 0)
    ran = Counter(array_of[row] for row in run)
    # Tasks of an array that may run: those that do and are wanted, and those that are to start.
    most = Counter(array_of[row] for row in run[: service.wanted])
    for row in sorted(waiting, key=id_of.__getitem__):
        array = array_of[row]
        starts = min(left, int(jobs.tasks[row]))
        if array in own:
            starts = min(starts, max(own[array] - ran[array], 0))
        if jobs.held[row] in _PUT_ASIDE:
            starts = 0
        left -= starts
        ran[array] += starts
        most[array] += starts
        places.first[row], places.barred[row] = starts > 0, starts == 0
        places.tasks[row] = starts or jobs.tasks[row]
        told = f"{starts} more are to start" if starts else "no more are to start"
        places.notes[id_of[row]] = wants + told
    for row in waiting:
        places.running[row] = max(1, most[array_of[row]])


def _array(snap: Snapshot, job_id: JobId) -> str:
    """Job id of the array that the replica *job_id* is of."""
    text = snap.seen.texts.get(job_id)
    return str(job_id) if text is None else text.label.partition("_")[0]
