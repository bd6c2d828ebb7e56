"""Waiting jobs that may not start before the first one: they would move its planned start.

A policy that serves jobs behind one that does not fit lets small jobs pass a gang of their own
tier for ever. Once the first waiting job has waited for a while, a job behind it is served only if
it is expected to end before the planned start of the first, or if the first leaves it the GPUs
then. It is the rule of EASY backfill, with the order of the policy.

Source: Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slurm_dl.engine.target import NOBODY, SLACK_GPUS, PartitionPool, Rows, serve, to_serve
from slurm_dl.model.jobs import F64, PENDING, Bool
from slurm_dl.model.membership import is_in
from slurm_dl.model.snapshot import Snapshot


class HeldBack(NamedTuple):
    """Jobs that are not served now.

    Attributes:
        rows: ``(k,)`` their rows.
        first: ``(k,)`` row of the waiting job that each would delay.
    """

    rows: Rows
    first: Rows


NOBODY_HELD_BACK = HeldBack(NOBODY, NOBODY)


def held_back(
    snap: Snapshot,
    ranked: Rows,
    target: Rows,
    pinned: Rows,
    there: tuple[PartitionPool, ...],
    *,
    barred: Bool | None,
    pass_s: float,
) -> HeldBack:
    """Waiting jobs that fit, and would move the planned start of the first job of their pool.

    Args:
        ranked: Rows of the managed live jobs, best first.
        target: Rows of the jobs that should hold GPUs if nobody is held back.
        pinned: Running jobs that cannot be moved.
        barred: ``(n,)`` bool, waiting jobs that are not to start; None: nobody.
        pass_s: The first waiting job is passed freely until it has waited for so long, seconds; 0:
            for ever.
    """
    jobs = snap.jobs
    if not pass_s:
        return NOBODY_HELD_BACK
    rows, firsts = [NOBODY], [NOBODY]
    waiting = to_serve(snap, ranked[jobs.state[ranked] == PENDING], NOBODY, barred)
    for pool in there:
        mine = pool.of(waiting)
        mine = mine[jobs.gpus[mine] <= pool.gpus(snap) + SLACK_GPUS]
        at = np.flatnonzero(~is_in(mine, target))[:1]
        first = mine[at]
        if not len(first) or snap.memory.waiting_since_s[first[0]] > snap.now_s - pass_s:
            continue
        behind, all_gpus = mine[at[0] + 1 :], pool.gpus(snap)
        others = pool.of(target[~is_in(target, behind)])
        # Who does not fit now delays nobody.
        free_gpus = all_gpus - float(jobs.gpus[others].sum())
        behind = behind[jobs.gpus[behind] <= free_gpus + SLACK_GPUS]
        if len(behind):
            before = ranked[: np.flatnonzero(ranked == first[0])[0]]
            stays = pool.of(np.union1d(before[is_in(before, target)], pinned))
            rows.append(_movers(snap, first, behind, stays, all_gpus))
            firsts.append(np.repeat(first, len(rows[-1])))
    return HeldBack(np.concatenate(rows), np.concatenate(firsts))


def _movers(snap: Snapshot, first: Rows, behind: Rows, stays: Rows, all_gpus: float) -> Rows:
    """Those of *behind* that would move the planned start of *first*.

    Args:
        stays: Rows of the jobs that have GPUs until they end: they come before it, or stay.
    """
    gpus = snap.jobs.gpus
    ends_s = _left_s(snap, stays)
    order = np.argsort(ends_s, kind="stable")
    ends_s = np.concatenate([[0.0], ends_s[order]])
    spare = all_gpus - float(gpus[stays].sum()) - float(gpus[first[0]])
    # spare[i]: GPUs beside the first job once i of them have ended.
    spare_gpus = spare + np.concatenate([[0.0], gpus[stays[order]].cumsum()])
    start_s = ends_s[int((spare_gpus >= -SLACK_GPUS).argmax())]
    then = int(ends_s.searchsorted(start_s, side="right")) - 1
    late = behind[_left_s(snap, behind) > start_s]
    movers: Rows = late[~serve(gpus[late], float(spare_gpus[then]), skips=True)]
    return movers


def _left_s(snap: Snapshot, rows: Rows) -> F64:
    """``(len(rows),)`` seconds that each is still expected to run; inf where nothing is known."""
    left_s: F64 = np.nan_to_num(snap.left_s[rows], nan=np.inf, posinf=np.inf).clip(min=0.0)
    return left_s
