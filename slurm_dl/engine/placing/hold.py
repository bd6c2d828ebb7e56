"""Jobs that are not to start yet are put off, so that Slurm does not start them on free GPUs.

The policy bars them, or their owners say that their data is not there. Such a job is put off by its
begin time from look to look, as a job that waits for nodes is. The begin time lapses by itself if
nobody looks any more. A barred job still counts as waiting, see
`ledger.apply_observation.without_ours`; one without data does not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from slurm_dl.engine.explain.past_reasons import span
from slurm_dl.engine.intent import Intent
from slurm_dl.engine.placing.place_waiting import Placed
from slurm_dl.engine.placing.steering import SteerAction
from slurm_dl.engine.preemption.eligibility import waits_for
from slurm_dl.engine.target import Rows
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, NO_DATA, NOT_HELD, PENDING, is_in
from slurm_dl.model.plan import Action
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.scheme import Wait
from slurm_dl.policies.base import Order, Policy


def barred_rows(
    snap: Snapshot, intent: Intent, ranked: Rows, busy: Collection[JobId], most: int
) -> Rows:
    """Rows of the jobs to put off, best first: those without data, and those that are barred.

    An array is never put off: all of its tasks would be. Of more than *most* those are put off that
    find room now.

    Args:
        ranked: Rows of the managed live jobs, best first.
        busy: Jobs of hand-overs.
        most: Jobs to put off at most.
    """
    jobs, barred = snap.jobs, intent.order.barred
    mask = jobs.held == NO_DATA
    if barred is not None:
        mask |= barred & (jobs.held == NOT_HELD)
        mask[intent.target] = False
    if not mask.any():
        return ranked[:0]
    mask &= (jobs.state == PENDING) & (jobs.tasks == 1)
    mask &= (jobs.gpus > 0) & ~is_in(jobs.job_id, list(busy))
    rows: Rows = ranked[mask[ranked]]
    if len(rows) > most:
        nodes, holding = snap.seen.nodes, (jobs.state > PENDING) & (jobs.state < COMPLETING)
        free = float(nodes.gpus[nodes.up].sum() - jobs.gpus[holding].sum())
        rows = rows[np.argsort(jobs.gpus[rows] > free, kind="stable")][:most]
    return rows


def with_held(snap: Snapshot, policy: Policy, order: Order, rows: Rows, placed: Placed) -> Placed:
    """*placed*, and the barred jobs at *rows* are put off."""
    if not len(rows):
        return placed
    ids = [JobId(j) for j in snap.jobs.job_id[rows].tolist()]
    start_s = np.full(len(snap.jobs), np.inf) if order.start_s is None else order.start_s
    waits = {
        job_id: Wait(
            within=None,
            for_s=math.inf,
            why=_reason(snap, policy, order, row, float(start_s[row])),
            expected_start_s=float(start_s[row]) if math.isfinite(start_s[row]) else None,
        )
        for job_id, row in zip(ids, rows.tolist(), strict=True)
    }
    return Placed(placed.spots, {**placed.waits, **waits}, frozenset(ids))


def apart(
    steers: Iterable[SteerAction], held: Collection[JobId]
) -> tuple[list[SteerAction], list[SteerAction]]:
    """*steers*, those of *held* jobs apart."""
    both: tuple[list[SteerAction], list[SteerAction]] = [], []
    for action in steers:
        both[action.job_id in held].append(action)
    return both


def in_turns(holds: Sequence[Action], writes: Sequence[Action]) -> Iterator[Action]:
    """Both in their order by turns: where writes are scarce, neither waits for all of the other."""
    for pair in itertools.zip_longest(holds, writes):
        yield from filter(None, pair)


def _reason(snap: Snapshot, policy: Policy, order: Order, row: int, start_s: float) -> str:
    """One clause: the GPUs that the job is kept for and its planned start, as far as known."""
    if snap.jobs.held[row] == NO_DATA:
        return waits_for(snap, row)
    kind = -1 if order.gpu_type is None else int(order.gpu_type[row])
    soon = f"in about {span(max(0.0, start_s - snap.now_s))}" if math.isfinite(start_s) else ""
    if kind >= 0 and len(snap.seen.gpu_types) > 1:
        gpus = f"a {snap.seen.gpu_types[kind]}"
        if snap.jobs.gpus[row] > 1:
            gpus = f"{snap.jobs.gpus[row]:g} {snap.seen.gpu_types[kind]}"
        are = "is" if snap.jobs.gpus[row] <= 1 else "are"
        return f"{policy.name} keeps it for {gpus}" + (f" that {are} free {soon}" if soon else "")
    if soon:
        return f"{policy.name} plans its start {soon}"
    return f"{policy.name} does not start it yet: {policy.about.idles}"
