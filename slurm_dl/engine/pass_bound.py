"""Waiting jobs that may not start before the first one: they would move its planned start.

A policy that serves jobs behind one that does not fit lets small jobs pass a gang of their own
tier for ever. Once the first waiting job has waited for a while, a job behind it is served only if
it is expected to end before the planned start of the first, or if it finds room that the first
leaves. It is the rule of EASY backfill, with the order of the policy.

Source: Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.placing.free_resources import HOLDING, FreeResources
from slurm_dl.engine.target import NOBODY, SLACK_GPUS, PartitionPool, Rows, to_serve
from slurm_dl.model.jobs import F64, PENDING, RUNNING, Bool, Origin, is_in
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import ResourceRequest, ResourceRequests

MOST_LOOKED_AT = 1000
"""Jobs behind the first one for which room beside it is looked for; the rest find none."""


class HeldBack(NamedTuple):
    """Jobs that are not served now."""

    rows: Rows  # ``(k,)`` their rows
    first: Rows  # ``(k,)`` row of the waiting job that each would delay


NOBODY_HELD_BACK = HeldBack(NOBODY, NOBODY)


def held_back(
    snap: Snapshot,
    ranked: Rows,
    target: Rows,
    pinned: Rows,
    there: tuple[PartitionPool, ...],
    *,
    barred: Bool | None,
    waits_for_all: Bool | None,
    pass_s: float,
) -> HeldBack:
    """Waiting jobs that fit, and would move the planned start of the first job of their pool.

    Args:
        ranked: Rows of the managed live jobs, best first.
        target: Rows of the jobs that should hold GPUs if nobody is held back.
        pinned: Running jobs that cannot be moved.
        barred: ``(n,)`` bool, waiting jobs that are not to start; None: nobody.
        waits_for_all: ``(n,)`` bool, waiting jobs for which nobody is preempted now; None: nobody.
        pass_s: The first waiting job is passed freely until it has waited for so long, seconds.
    """
    jobs = snap.jobs
    waits_for_all = np.zeros(len(jobs), dtype=np.bool_) if waits_for_all is None else waits_for_all
    rows, firsts = [NOBODY], [NOBODY]
    waiting = to_serve(snap, ranked[jobs.state[ranked] == PENDING], NOBODY, barred)
    for pool in there:
        mine = pool.of(waiting)
        mine = mine[jobs.gpus[mine] <= pool.gpus(snap) + SLACK_GPUS]
        at = np.flatnonzero(~is_in(mine, target))[:1]
        first = mine[at]
        if not len(first) or snap.memory.waiting_since_s[first[0]] > snap.now_s - pass_s:
            continue
        behind = mine[at[0] + 1 :]
        # Nobody waits for one that cannot start now.
        behind = behind[~waits_for_all[behind]]
        if not len(behind):
            continue
        before = ranked[: np.flatnonzero(ranked == first[0])[0]]
        stays = np.union1d(before[is_in(before, target)], pinned)
        if waits_for_all[first[0]]:
            stays = np.union1d(stays, ranked[jobs.state[ranked] == RUNNING])
        rows.append(_Beside(snap, pool, int(first[0]), stays, target).movers(behind))
        firsts.append(np.repeat(first, len(rows[-1])))
    return HeldBack(np.concatenate(rows), np.concatenate(firsts))


class _Beside:
    """The room that one waiting job leaves to those behind it.

    Args:
        first: Its row.
        stays: Rows of the jobs that have GPUs until they end: they come before it, or stay.
        target: Rows of the jobs in the target.
    """

    def __init__(
        self, snap: Snapshot, pool: PartitionPool, first: int, stays: Rows, target: Rows
    ) -> None:
        jobs, held = snap.jobs, snap.seen.held
        self._snap, self._first, self._usable = snap, first, pool.usable(snap)
        # Jobs that are not managed, or have no GPUs, make room for nobody.
        gives_way = snap.managed_jobs & (jobs.gpus > 0) & (jobs.state == RUNNING)
        gives_way[stays] = False
        holds = is_in(jobs.state[held.job], HOLDING)
        self._staying: Bool = holds & ~gives_way[held.job]
        self._next = stays[jobs.state[stays] == PENDING]
        gives_way[target] = False
        self._now = FreeResources.beside(snap, holds & ~gives_way[held.job])

    def movers(self, behind: Rows) -> Rows:
        """Those of *behind* that would move its planned start."""
        snap, gpus = self._snap, self._snap.jobs.gpus
        free_gpus = float(self._now.gpus[self._usable].sum()) - float(gpus[self._next].sum())
        # Who does not fit now delays nobody.
        behind = behind[gpus[behind] <= free_gpus + SLACK_GPUS]
        if not len(behind):
            return NOBODY
        needs = ResourceRequests(snap)
        planned = self._planned(needs.of(self._first))
        if planned is None:
            return NOBODY
        start_s, then = planned
        late = behind[_left_s(snap, behind) > start_s]
        left = then.lesser(self._now)
        moves = np.ones(len(late), dtype=np.bool_)
        no_room = set()
        for i, row in enumerate(late[:MOST_LOOKED_AT].tolist()):
            if left.gpus[self._usable].max(initial=0.0) <= 0:
                break
            need = needs.of(row)
            nodes = None if need.key in no_room else left.place(need, self._usable)
            if nodes is None:
                no_room.add(need.key)
            else:
                left.take(need, nodes)
                moves[i] = False
        movers: Rows = late[moves]
        return movers

    def _planned(self, need: ResourceRequest) -> tuple[float, FreeResources] | None:
        """Seconds until there is room for *need*, and what is free then beside it.

        None if it could start now, or never: something else keeps it from starting.
        """
        snap = self._snap
        found: list[FreeResources] = []
        ends_s, next_s = _left_s(snap, snap.seen.held.job), _left_s(snap, self._next)

        def fits(time_s: float) -> bool:
            free = FreeResources.beside(snap, self._staying & (ends_s > time_s))
            nodes = free.place(need, self._usable)
            if nodes is None:
                return False
            free.take(need, nodes)
            taken = float(snap.jobs.gpus[self._next[next_s > time_s]].sum())
            has_room = float(free.gpus[self._usable].sum()) + SLACK_GPUS >= taken
            if has_room:
                found.append(free)
            return has_room

        times = np.unique(np.concatenate([[0.0], ends_s[self._staying], next_s]))
        times = times[np.isfinite(times)]
        at = bisect_left(times, True, key=fits)
        # Of the times that bisect has tried, the last that fits is the one it finds.
        return (float(times[at]), found[-1]) if at and found else None


def _left_s(snap: Snapshot, rows: npt.NDArray[np.integer]) -> F64:
    """``(len(rows),)`` seconds that each is still expected to run; inf where nothing is known.

    What a job reports itself does not count: only its limit is enforced.
    """
    jobs = snap.jobs
    left_s = snap.left_s[rows]
    if snap.left_from is not None:
        ran_s = np.where(jobs.state[rows] == RUNNING, snap.now_s - jobs.start_s[rows], 0.0)
        said = snap.left_from[rows] == Origin.REPORTED
        left_s = np.where(said, jobs.limit_s[rows] - ran_s, left_s)
    left: F64 = np.nan_to_num(left_s, nan=math.inf, posinf=math.inf).clip(min=0.0)
    return left
