"""What Slurm starts in one pass: the main scheduler's and backfill's rules, without any clock.

Both take the waiting jobs in the order of their priority and the free GPUs of each node, and say
which jobs start where. A job wants the same number of GPUs on each of its nodes.

Hot path: of the shapes below m is the number of nodes, k the number of running jobs and h that of
the shares they hold, one for each node of each job. Nothing is as large as k times m.

Source: slurm.conf(5), SchedulerParameters, of 22.05, and what slurmctld 22.05.8 was seen to do.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import F64, I32, I64, Bool

NodeRows = npt.NDArray[np.int64]
Start = tuple[int, NodeRows]  # A job and the nodes it starts on


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WaitingJob:
    """One waiting job, as a pass needs it."""

    job: int  # Whose it is; given back in a `Start`
    n_nodes: int  # Nodes it wants
    share: int  # GPUs it wants on each
    limit_s: float  # Its time limit, seconds
    reservation: str = ""  # Of the reservation it is to start in; empty for none
    excluded: Bool | None = None  # ``(m,)`` bool, nodes it may not start on; None if it may on all


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Running:
    """Who holds GPUs, by the end of their time limits: k jobs."""

    end_s: F64  # ``(k,)`` when each must end at the latest, ascending, seconds
    job: I64  # ``(h,)`` whose each share is, a row of *end_s*, ascending
    node: I64  # ``(h,)`` where it is
    gpus: I64  # ``(h,)`` how much it is

    @classmethod
    def of(cls, end_s: F64, nodes: Sequence[I64 | I32], gpus: I64) -> Self:
        """Jobs with the *nodes* of each, and ``(h,)`` what they hold there."""
        return cls(
            end_s=end_s,
            job=np.repeat(np.arange(len(end_s)), [len(on) for on in nodes]),
            node=np.concatenate([np.zeros(0, dtype=np.int64), *nodes]),
            gpus=gpus,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reserved:
    """Nodes that are kept for the jobs of one reservation (FLEX: those may use others too)."""

    name: str  # Its name
    nodes: Bool  # ``(m,)`` bool
    end_s: float  # When it lapses, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """How precisely backfill plans; see `SlurmCosts` for the fields.

    Attributes:
        epoch_s: What multiples of `resolution_s` are counted from: epoch seconds of time 0.
    """

    resolution_s: float
    precision_s: float
    window_s: float
    max_jobs: int
    epoch_s: float = 0.0

    def whole(self, at_s: float) -> float:
        """An instant as Slurm has it: the whole epoch second that has begun."""
        return math.floor(self.epoch_s + at_s) - self.epoch_s


def main_pass(
    waiting: Iterable[WaitingJob], free: I64, up: Bool, reserved: Sequence[Reserved]
) -> list[Start]:
    """What the main scheduler starts: strictly by priority, until the first that does not fit.

    A job of a reservation that does not fit holds up only those of the same reservation.

    Args:
        waiting: Best first.
        free: ``(m,)`` free GPUs of each node; not changed.
        up: ``(m,)`` bool, jobs may start there.
    """
    free = free.copy()
    full: set[str] = set()
    started: list[Start] = []
    for job in waiting:
        if job.reservation in full:
            continue
        nodes = place(job, free, _open_to(job, up, reserved, -math.inf))
        if nodes is not None:
            free[nodes] -= job.share
            started.append((job.job, nodes))
        elif job.reservation:
            full.add(job.reservation)
        else:
            break
    return started


def place(job: WaitingJob, free: I64 | I32, allowed: Bool) -> NodeRows | None:
    """The *allowed* nodes the job gets; None if too few of them hold its share.

    Slurm looks at runs of neighbouring nodes that could be used, and takes the first nodes of the
    shortest run that is long enough. If none is, it takes the longest, and goes on with the others.
    """
    fits = (allowed & (free >= job.share)).nonzero()[0]
    if len(fits) < job.n_nodes:
        return None
    edges = (np.diff(fits) > 1).nonzero()[0] + 1
    if not len(edges):
        return fits[: job.n_nodes]
    runs = np.split(fits, edges)
    chosen: list[NodeRows] = []
    left = job.n_nodes
    while left > 0:
        enough = [run for run in runs if len(run) >= left]
        best = min(enough, key=len) if enough else max(runs, key=len)
        runs = [run for run in runs if run is not best]
        chosen.append(best[:left])
        left -= len(chosen[-1])
    return np.sort(np.concatenate(chosen))


def _open_to(job: WaitingJob, up: Bool, reserved: Sequence[Reserved], at_s: float) -> Bool:
    """``(m,)`` bool, nodes the job may use that no reservation keeps for others at *at_s*."""
    allowed = up if job.excluded is None else up & ~job.excluded
    for reservation in reserved:
        if reservation.name != job.reservation and reservation.end_s > at_s:
            allowed = allowed & ~reservation.nodes
    return allowed


def backfill_pass(
    waiting: Sequence[WaitingJob],
    free: I64,
    up: Bool,
    reserved: Sequence[Reserved],
    running: Running,
    *,
    now_s: float,
    how: Backfill,
) -> list[Start]:
    """What backfill starts: jobs that delay no planned start of a job before them.

    Each job that cannot start now is given nodes from the earliest time on at which the time limits
    of the running jobs leave it room, for as long as its own limit, whole nodes at a time.
    """
    tested = waiting[: how.max_jobs]
    if not tested:
        return []
    plan = _Plan(free, up, reserved, running, now_s=now_s, how=how, most=len(tested))
    # What the rest of the queue asks for at least: when nothing is left for that, it is over.
    least_share = np.minimum.accumulate([j.share for j in tested][::-1])[::-1].tolist()
    least_limit_s = np.minimum.accumulate([j.limit_s for j in tested][::-1])[::-1].tolist()
    started: list[Start] = []
    for index, job in enumerate(tested):
        if not plan.leaves(least_share[index], least_limit_s[index]):
            break
        nodes = plan.consider(job)
        if nodes is not None:
            started.append((job.job, nodes))
    return started


class _Plan:
    """Planned starts so far: when which nodes are spoken for."""

    def __init__(
        self,
        free: I64,
        up: Bool,
        reserved: Sequence[Reserved],
        running: Running,
        *,
        now_s: float,
        how: Backfill,
        most: int,
    ) -> None:
        self._up = up
        self._reserved = reserved
        self._now_s = now_s
        self._how = how
        self._end_s = np.maximum(running.end_s, now_s + 1.0)
        some = running.gpus > 0
        self._job, self._node = running.job[some], running.node[some]
        self._gpus = running.gpus[some]
        self._free = free.copy()
        self._planned = 0
        self._from_s = np.zeros(most)
        self._to_s = np.zeros(most)
        self._nodes = np.zeros((most, len(free)), dtype=np.bool_)
        self._edges = sorted({r.end_s for r in reserved if r.end_s > now_s})
        self._free_later: dict[int, I64] = {}

    def leaves(self, share: int, limit_s: float) -> bool:
        """Whether some node has *share* free GPUs now that nobody wants within *limit_s*."""
        blocked = self._blocked(self._now_s, self._now_s + limit_s)
        return bool((self._up & ~blocked & (self._free >= share)).any())

    def consider(self, job: WaitingJob) -> NodeRows | None:
        """Start the job, and say where; or plan its start."""
        from_s = self._now_s
        while True:
            allowed = _open_to(job, self._up, self._reserved, from_s)
            allowed = allowed & ~self._blocked(from_s, from_s + job.limit_s)
            at = bisect.bisect_right(self._edges, from_s)
            later_s = self._edges[at] if at < len(self._edges) else math.inf
            found = self._earliest(job, allowed)
            if found is None:
                if later_s == math.inf:
                    return None
                from_s = later_s
                continue
            start_s, nodes = max(found[0], from_s), found[1]
            if start_s <= self._now_s:
                self._start(job, nodes)
                return nodes
            begin_s, end_s = self._rounded(start_s), self._rounded(start_s + job.limit_s)
            if begin_s > later_s:
                from_s = later_s
            elif start_s > self._now_s + self._how.window_s:
                return None
            elif self._overlaps(nodes, begin_s, end_s):
                # Where it was looked for from there already, the next edge may free other nodes.
                from_s = start_s if start_s > from_s else later_s
                if from_s == math.inf:
                    return None
            else:
                self._speak_for(nodes, begin_s, end_s)
                return None

    def _blocked(self, from_s: float, to_s: float) -> Bool:
        """``(m,)`` bool, nodes somebody better wants at some time from *from_s* to *to_s*."""
        planned = self._planned
        clash = (self._from_s[:planned] <= to_s) & (self._to_s[:planned] > from_s)
        return np.asarray(self._nodes[:planned][clash].any(axis=0))

    def _overlaps(self, nodes: NodeRows, from_s: float, to_s: float) -> bool:
        planned = self._planned
        clash = (self._from_s[:planned] < to_s) & (self._to_s[:planned] > from_s)
        return bool(self._nodes[:planned][clash][:, nodes].any())

    def _earliest(self, job: WaitingJob, allowed: Bool) -> tuple[float, NodeRows] | None:
        """When and where *allowed* nodes first hold the job, as the running jobs end."""
        nodes = place(job, self._free, allowed)
        if nodes is not None:
            return self._now_s, nodes
        if np.count_nonzero(allowed) < job.n_nodes:
            return None
        looks = self._looks(allowed)

        def is_enough(last: int) -> bool:
            there = allowed & (self._free_after(last) >= job.share)
            return int(np.count_nonzero(there)) >= job.n_nodes

        # Ends only free GPUs: once there is enough there is enough from then on.
        at = bisect.bisect_left(looks, True, key=is_enough)
        if at == len(looks):
            return None
        last = looks[at]
        nodes = place(job, self._free_after(last), allowed)
        return None if nodes is None else (float(self._end_s[last]), nodes)

    def _free_after(self, last: int) -> I64:
        """``(m,)`` what is free once the job at *last*, and all that end before it, have ended."""
        free = self._free_later.get(last)
        if free is None:
            ended = int(self._job.searchsorted(last, side="right"))
            freed = np.bincount(self._node[:ended], self._gpus[:ended], len(self._free))
            free = self._free_later[last] = self._free + freed.astype(np.int64)
        return free

    def _looks(self, allowed: Bool) -> list[int]:
        """The running jobs after whose ends Slurm looks whether there is room; rows, ascending.

        Ends are taken together up to a limit: the end of the interval that the first one lies in
        and a precision more, then two, four and so on. Slurm asks whether the next job is beyond
        the limit, but passes over jobs on other nodes without asking again: the one behind those
        is taken along, however late it ends (22.05.8).
        """
        holds = np.zeros(len(self._end_s), dtype=np.bool_)
        holds[self._job[allowed[self._node]]] = True
        matters = holds.nonzero()[0]
        ahead_s = self._how.precision_s
        if not ahead_s or not len(matters):
            different = np.diff(self._end_s[matters], append=math.inf) > 0
            return list(matters[different].tolist())
        next_s = np.append(self._end_s[1:], math.inf)[matters].tolist()
        limit_s = self._floor(float(self._end_s[matters[0]]), ahead_s) + ahead_s
        looks: list[int] = []
        at = 0
        while at < len(matters):
            # Ends are ascending.
            beyond = bisect.bisect_right(next_s, limit_s + ahead_s, at)
            at = min(beyond, len(matters) - 1)
            looks.append(at)
            while limit_s + ahead_s < next_s[at] < math.inf:
                ahead_s *= 2.0
            at += 1
        return list(matters[looks].tolist())

    def _start(self, job: WaitingJob, nodes: NodeRows) -> None:
        end_s = self._now_s + job.limit_s
        at = int(np.searchsorted(self._end_s, end_s, side="right"))
        self._end_s = np.insert(self._end_s, at, end_s)
        first = int(np.searchsorted(self._job, at))
        self._job[first:] += 1
        self._job = np.insert(self._job, first, np.full(len(nodes), at))
        self._node = np.insert(self._node, first, nodes)
        self._gpus = np.insert(self._gpus, first, np.full(len(nodes), job.share))
        self._free[nodes] -= job.share
        self._free_later.clear()

    def _speak_for(self, nodes: NodeRows, from_s: float, to_s: float) -> None:
        edges = (from_s, to_s)
        self._from_s[self._planned], self._to_s[self._planned] = edges
        self._nodes[self._planned, nodes] = True
        self._planned += 1
        for edge in edges:
            at = bisect.bisect_left(self._edges, edge)
            if edge > self._now_s and (at == len(self._edges) or self._edges[at] != edge):
                self._edges.insert(at, edge)

    def _rounded(self, at_s: float) -> float:
        return self._floor(at_s, self._how.resolution_s)

    def _floor(self, at_s: float, step_s: float) -> float:
        """The last multiple of *step_s*, counted in epoch seconds, at or before *at_s*."""
        if not step_s:
            return at_s
        epoch_s = self._how.epoch_s
        return math.floor((epoch_s + at_s) / step_s) * step_s - epoch_s
