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
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, PENDING, RUNNING, Bool
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
    roomless: Bool | None,
    pass_s: float,
) -> HeldBack:
    """Waiting jobs that fit, and would move the planned start of the first job of their pool.

    Args:
        ranked: Rows of the managed live jobs, best first.
        target: Rows of the jobs that should hold GPUs if nobody is held back.
        pinned: Running jobs that cannot be moved.
        barred: ``(n,)`` bool, waiting jobs that are not to start; None: nobody.
        roomless: ``(n,)`` bool, waiting jobs that may displace nobody; None: nobody.
        pass_s: The first waiting job is passed freely until it has waited for so long, seconds.
    """
    jobs = snap.jobs
    rows, firsts = [NOBODY], [NOBODY]
    waiting = to_serve(snap, ranked[jobs.state[ranked] == PENDING], NOBODY, barred)
    for pool in there:
        mine = pool.of(waiting)
        mine = mine[jobs.gpus[mine] <= pool.gpus(snap) + SLACK_GPUS]
        at = np.flatnonzero(~is_in(mine, target))[:1]
        first = mine[at]
        if not len(first) or snap.memory.waiting_since_s[first[0]] > snap.now_s - pass_s:
            continue
        reach = _reach(snap, pool, int(first[0]))
        all_gpus = pool.gpus(snap) if reach is None else float(reach.sum())
        gpus: F64 = jobs.gpus if reach is None else _gpus_within(snap, reach, int(first[0]))
        behind = mine[at[0] + 1 :]
        before = ranked[: np.flatnonzero(ranked == first[0])[0]]
        stays = np.union1d(before[is_in(before, target)], pinned)
        others = target[~is_in(target, behind)]
        if roomless is not None and roomless[first[0]]:
            # It waits for all that run. Who displaces them takes no free GPU.
            running = ranked[jobs.state[ranked] == RUNNING]
            stays, others = np.union1d(stays, running), np.union1d(others, running)
        # Who does not fit now delays nobody.
        free_gpus = all_gpus - float(gpus[pool.of(others)].sum())
        behind = behind[(gpus[behind] > 0) & (jobs.gpus[behind] <= free_gpus + SLACK_GPUS)]
        if len(behind):
            spare = all_gpus - float(jobs.gpus[first[0]])
            rows.append(_movers(snap, spare, behind, pool.of(stays), gpus))
            firsts.append(np.repeat(first, len(rows[-1])))
    return HeldBack(np.concatenate(rows), np.concatenate(firsts))


def _movers(snap: Snapshot, spare: float, behind: Rows, stays: Rows, gpus: F64) -> Rows:
    """Those of *behind* that would move the planned start of the first job.

    Args:
        spare: GPUs that are left beside the first job if nobody else has any.
        stays: Rows of the jobs that have GPUs until they end: they come before it, or stay.
        gpus: ``(n,)`` GPUs of each job, of those that the first may use.
    """
    ends_s = _left_s(snap, stays)
    order = np.argsort(ends_s, kind="stable")
    ends_s = np.concatenate([[0.0], ends_s[order]])
    # spare_gpus[i]: GPUs beside the first job once i of them have ended.
    freed_gpus: F64 = np.concatenate([[0.0], gpus[stays[order]].cumsum()])
    spare_gpus = freed_gpus + (spare - float(gpus[stays].sum()))
    fits = spare_gpus >= -SLACK_GPUS
    if fits[0] or not fits[-1]:
        # It is not the GPUs in use that keep it from starting: there is no planned start.
        return NOBODY
    start_s = ends_s[int(fits.argmax())]
    then = int(ends_s.searchsorted(start_s, side="right")) - 1
    late = behind[_left_s(snap, behind) > start_s]
    movers: Rows = late[~serve(snap.jobs.gpus[late], float(spare_gpus[then]), skips=True)]
    return movers


def _left_s(snap: Snapshot, rows: Rows) -> F64:
    """``(len(rows),)`` seconds that each is still expected to run; inf where nothing is known."""
    left_s: F64 = np.nan_to_num(snap.left_s[rows], nan=np.inf, posinf=np.inf).clip(min=0.0)
    return left_s


def _reach(snap: Snapshot, pool: PartitionPool, row: int) -> F64 | None:
    """``(m,)`` GPUs of each node that the job at *row* may use; None: all of the pool."""
    seen, nodes = snap.seen, snap.seen.nodes
    kind = int(snap.jobs.gpu_type[row]) if len(seen.gpu_types) > 1 else -1
    choice = snap.choice(JobId(int(snap.jobs.job_id[row])))
    if choice is None and kind < 0 and pool.partitions is None:
        return None
    usable = pool.usable(snap)
    inside = usable if choice is None else usable & choice
    if kind >= 0:
        inside = inside & nodes.with_type(kind)
    if pool.partitions is not None:
        inside = inside & seen.node_in[list(snap.partitions_of(row))].any(axis=0)
    if kind < 0 and np.array_equal(inside, usable):
        return None
    return np.where(inside, nodes.of_type(kind), 0.0)


def _gpus_within(snap: Snapshot, reach: F64, row: int) -> F64:
    """``(n,)`` GPUs that each job holds of those in *reach*, or may get if it waits."""
    seen, jobs, held = snap.seen, snap.jobs, snap.seen.held
    inside: Bool = reach > 0
    kind = int(jobs.gpu_type[row])
    of_type = held.gpus if held.by_type is None or kind < 0 else held.by_type[kind]
    gpus: F64 = np.zeros(len(jobs))
    np.add.at(gpus, held.job, np.where(inside[held.node], of_type, 0.0))
    types = [bool((inside & seen.nodes.with_type(t)).any()) for t in range(len(seen.gpu_types))]
    # The last is for jobs that name no type.
    may: Bool = np.array([*types, True])[jobs.gpu_type]
    if kind >= 0:
        may &= (jobs.gpu_type < 0) | (jobs.gpu_type == kind)
    there: Bool = np.ones(len(jobs), dtype=np.bool_)
    if len(seen.node_in):
        partitions = np.count_nonzero(seen.node_in & inside, axis=1) > 0
        there = partitions[jobs.partition]
    row_of = jobs.row_of()
    for job_id in seen.also_in.keys() & row_of.keys():
        at = row_of[job_id]
        there[at] = partitions[list(snap.partitions_of(at))].any()
    for job_id in seen.choices.keys() & row_of.keys():
        there[row_of[job_id]] &= (inside & seen.choices[job_id]).any()
    may &= there
    waits = jobs.state == PENDING
    gpus[waits] = np.where(may, jobs.gpus, 0.0)[waits]
    return gpus
