"""The part of Sia and Pollux: what each job could be given, and the choice that is worth most.

A job is given one of its sizes on GPUs of one type, or nothing. A job that is not elastic has the
size that it asks for. A change is worth less the more of its life a job has spent on restarts.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from slurm_dl.model.jobs import F64, I32, I64, PENDING, RUNNING, Bool, is_in
from slurm_dl.model.parameter_bounds import Count, Positive
from slurm_dl.model.sizes import AS_ASKED, NOT_NOW
from slurm_dl.model.snapshot import Fixed, Snapshot
from slurm_dl.policies.arithmetic.assignment import Options, assign
from slurm_dl.policies.arithmetic.supply_and_demand import rates_of, type_held
from slurm_dl.policies.base import Order, PolicyDefaults, one_tier
from slurm_dl.policies.elastic.sizing_policy import by_arrival

_RESTART_S = 30.0  # Cost of a restart where nothing is known of it: that of Pollux' simulator

FALLBACK = (
    "a job without sizes has the one it asks for; where nothing tells types apart their GPUs are "
    "one pool; a restart of unknown cost counts as 30 s"
)
"""Of these policies where an input is missing."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidates:
    """Pairs of size and type that n jobs could be given; those of one job stand together.

    Attributes:
        waits: ``(k,)`` bool, the job holds no GPUs.
        keeps: ``(k,)`` what is left of the rate by a start, 0 to 1; 1 for what the job holds.
    """

    rows: I64  # ``(n,)`` rows of the jobs, first eligible first
    job: I64  # ``(k,)`` whose each is, an index into *rows*
    size: I32  # ``(k,)`` index into `Snapshot.sizes`, or `AS_ASKED`
    kind: I64  # ``(k,)`` GPU type; -1: any
    gpus: F64  # ``(k,)``
    rate: F64  # ``(k,)`` speed, above 0
    nodes: I64  # ``(k,)`` on so many nodes
    waits: Bool
    may: Bool  # ``(k,)`` bool, the job may be given this now
    held: Bool  # ``(k,)`` bool, the job has this now
    keeps: F64
    places: F64  # ``(t, m)`` GPUs of each type on each node that is up, but for those that are kept
    share: float  # GPUs / jobs, of all that hold GPUs or could

    @property
    def capacity(self) -> F64:
        """``(t,)`` GPUs of each type."""
        gpus: F64 = self.places.sum(axis=1)
        return gpus

    def least(self, column: F64) -> F64:
        """``(k,)`` the least of *column* among the candidates of the same job."""
        starts = np.flatnonzero(np.diff(self.job, prepend=-1))
        counts = np.diff(np.append(starts, len(self.job)))
        found: F64 = np.repeat(np.minimum.reduceat(column, starts), counts)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeAndType(PolicyDefaults):
    """One tier; size and type are the decision, and all that are chosen fit together.

    Attributes:
        quantum_s: Sizes are chosen anew this often, seconds, above 0.
        exact_jobs: With more jobs the linear relaxation is rounded, 1 or more.
        limit_s: Seconds that the solver may take, above 0.
    """

    quantum_s: Positive = 60.0
    exact_jobs: Count = 1000
    limit_s: Positive = 10.0

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        what = candidates(snap)
        size = np.full(len(snap.jobs), AS_ASKED, dtype=np.int32)
        kind = np.full(len(snap.jobs), -1, dtype=np.int16)
        if len(what.job):
            chosen = self.choose(what, np.where(what.may, self.worth(what), -1.0))
            at, rows = chosen[chosen >= 0], what.rows[chosen >= 0]
            size[what.rows] = NOT_NOW
            size[rows], kind[rows] = what.size[at], what.kind[at]
        order = one_tier(np.where(size == NOT_NOW, math.inf, 0.0))
        # Where no job is elastic the key says it all.
        return dataclasses.replace(
            order,
            size=None if snap.sizes is None else size,
            gpu_type=kind if len(what.capacity) > 1 else None,
        )

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:
        """After *quantum_s*, while jobs run, or wait until they are old enough; see `Policy`."""
        if snap.sizes is None and order.gpu_type is None:
            return math.inf
        age_s = snap.now_s - snap.memory.first_submit_s
        grown_s = self.quantum_s + 2 * (snap.jobs.restarts + 1) * _restarts_s(snap)
        young = (snap.jobs.state == PENDING) & (age_s < grown_s)
        turns = bool(running.any() or young.any())
        return snap.now_s + self.quantum_s if turns else math.inf

    @abc.abstractmethod
    def worth(self, what: Candidates, /) -> F64:
        """``(k,)`` what each candidate adds to the sum that is to be as large as can be."""

    def choose(self, what: Candidates, worth: F64, /) -> I64:
        """``(n,)`` index of the candidate that each job is given; -1: none.

        Args:
            worth: ``(k,)`` as `worth` tells; below 0 for those that may not be given now.
        """
        options = Options(job=what.job, gpus=what.gpus, kind=what.kind, worth=worth)
        n = len(what.rows)
        relaxed = n > self.exact_jobs
        return assign(options, n, what.capacity, relaxed=relaxed, limit_s=self.limit_s).option


def _restarts_s(snap: Snapshot) -> F64:
    """``(n,)`` what a restart of each job costs, seconds."""
    return np.full(len(snap.jobs), _RESTART_S) if snap.setup_s is None else snap.setup_s


def candidates(snap: Snapshot) -> Candidates:
    """The pairs of size and type for the jobs that take part.

    Jobs that keep what they hold have none, and what they hold is not there for others. One that
    can only give GPUs back has its smaller sizes on the type that it holds.
    """
    jobs, sizes, rows = snap.jobs, snap.sizes, by_arrival(snap)
    fixed = np.zeros(len(jobs), dtype=np.int8) if snap.fixed is None else snap.fixed
    every, rows = len(rows), rows[fixed[rows] != Fixed.ALL]
    place = np.full(len(jobs), -1)
    place[rows] = np.arange(len(rows))
    rigid = rows if sizes is None else rows[~is_in(rows, sizes.row)]
    by_type = len(snap.seen.gpu_types) > 1 and (
        snap.rates is not None or (sizes is not None and sizes.on_type is not None)
    )
    rates = rates_of(snap) if by_type else np.ones((len(jobs), 1))
    row, size, gpus, rate = rigid, np.full(len(rigid), AS_ASKED), jobs.gpus[rigid], rates[rigid]
    nodes = jobs.n_nodes[rigid]
    if sizes is not None:
        owner = np.repeat(sizes.row, np.diff(sizes.first))
        on_type = sizes.rate[:, None] if sizes.on_type is None or not by_type else sizes.on_type
        row, size = np.append(row, owner), np.append(size, np.arange(len(owner)))
        gpus, nodes = np.append(gpus, sizes.gpus), np.append(nodes, sizes.nodes)
        rate = np.concatenate([rate, np.where(rates[owner] > 0, on_type, 0.0)])
    holds = type_held(snap.seen, snap.on_type) if by_type else np.zeros(len(jobs), dtype=np.int16)
    others = (gpus > jobs.gpus[row])[:, None] | (np.arange(rates.shape[1]) != holds[row, None])
    at, kind = ((rate > 0) & (place[row] >= 0)[:, None]).nonzero()
    turn = np.argsort(place[row[at]], kind="stable")
    at, kind = at[turn], kind[turn]
    row = row[at]
    runs = jobs.state[row] == RUNNING
    held = runs & (gpus[at] == jobs.gpus[row]) & (holds[row] == kind)
    restart_s = _restarts_s(snap)
    age_s = np.maximum(snap.now_s - snap.memory.first_submit_s, 0.0)
    factor = reallocation_factor(age_s, jobs.restarts.astype(np.float64), restart_s)
    places = _places(snap, by_type=by_type)
    kept = (jobs.state == RUNNING) & ((fixed == Fixed.ALL) | ~snap.managed_jobs)
    return Candidates(
        rows=rows,
        job=place[row],
        size=size[at].astype(np.int32),
        kind=kind if by_type else np.full(len(kind), -1),
        gpus=gpus[at],
        rate=rate[at, kind],
        nodes=nodes[at].astype(np.int64),
        waits=~runs,
        may=~(others[at, kind] & (fixed[row] == Fixed.GROWTH)),
        held=held,
        keeps=np.where(held, 1.0, factor[row]),
        places=places - _held_by(snap, kept, by_type=by_type),
        share=float(places.sum()) / max(1, every),
    )


def _places(snap: Snapshot, *, by_type: bool) -> F64:
    nodes = snap.seen.nodes
    kinds = range(len(snap.seen.gpu_types)) if by_type else ()
    typed = [np.where(nodes.with_type(kind), nodes.of_type(kind), 0.0) for kind in kinds]
    found: F64 = np.where(nodes.up, np.array(typed or [nodes.gpus]), 0.0)
    return found


def _held_by(snap: Snapshot, these: Bool, *, by_type: bool) -> F64:
    """``(t, m)`` GPUs of nodes that are up which *these* jobs hold."""
    held, nodes, types = snap.seen.held, snap.seen.nodes, len(snap.seen.gpu_types)
    gpus = held.gpus_by_type(nodes, types) if by_type else held.gpus[None]
    at = these[held.job] & nodes.up[held.node]
    m = len(nodes)
    found: F64 = np.array([np.bincount(held.node[at], row[at], m) for row in gpus])
    return found


def reallocation_factor(age_s: F64, restarts: F64, restart_s: F64) -> F64:
    """``(n,)`` the share of its life that each job will have worked if it is restarted now.

        max(T - R d, 0) / (T + d)

    Source: Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep
    Learning", OSDI 2021, section 4.2 (REALLOC); Sia, SOSP 2023, section 3.4 (r_i).

    Args:
        age_s: ``(n,)`` T, seconds since submission.
        restarts: ``(n,)`` R.
        restart_s: ``(n,)`` d, what a restart costs, seconds.
    """
    whole_s = age_s + restart_s
    worked_s = np.maximum(age_s - restarts * restart_s, 0.0)
    factor: F64 = np.divide(worked_s, whole_s, out=np.ones(len(whole_s)), where=whole_s > 0)
    return factor
