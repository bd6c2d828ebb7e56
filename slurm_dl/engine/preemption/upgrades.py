"""Running jobs go to a faster type of GPUs that is idle: they lose a save and a restore, and gain.

A policy that tells GPU types apart says on which type each job had best run. A job that runs on a
slower one stays there until another job wants its GPUs, or until GPUs of the better type are free:
then it is moved, at the end of its lease and under all limits of a preemption, if what is left of
its work is done sooner by more than the restart takes. No job waits for what is taken from it.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning
Workloads" (Gavel), OSDI 2020, section 5: each round places jobs anew, whether or not others wait.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from slurm_dl.engine.placing.eligible_nodes import EligibleNodes, anywhere, narrowed
from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.placing.place_waiting import named, sealed_nodes
from slurm_dl.engine.preemption.eligibility import Victims
from slurm_dl.engine.preemption.new_handovers import next_id, victim_of
from slurm_dl.engine.settings import Preemption
from slurm_dl.engine.target import Rows
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import HandoverId
from slurm_dl.model.jobs import F64, I16
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import ResourceRequests
from slurm_dl.policies.arithmetic.gpu_type_held import type_held


def upgrades(
    snap: Snapshot,
    kind: I16 | None,
    candidates: Victims,
    under_way: Collection[Handover],
    limits: Preemption,
    *,
    types: EligibleNodes = anywhere,
    within: EligibleNodes = anywhere,
) -> list[Handover]:
    """Hand-overs that move running jobs to free GPUs of a faster type, largest saving first.

    Args:
        kind: ``(n,)`` type of GPUs that each job should hold; None: types are not told apart.
        under_way: Hand-overs that are under way or begin; their nodes are spoken for.
        types: Nodes of the type that the policy chose for a job.
        within: Nodes on which the job at a row may be.
    """
    if kind is None or snap.rates is None or types is anywhere or not limits.enabled:
        return []
    rows, saves_s = _worth_it(snap, kind, candidates, under_way, limits)
    if not len(rows):
        return []
    seats = named(snap.seen.nodes, {name for h in under_way for name in h.seats})
    open_ = ~(sealed_nodes(snap, under_way) | seats)
    available, needs = FreeResources.free_in(snap), ResourceRequests(snap)
    most_gpus = min(limits.max_gpus_per_hour or math.inf, limits.most_gpus)
    gpus = snap.preempted_gpus_last_hour if limits.max_gpus_per_hour else 0.0
    first = next_id(snap, under_way)
    moves: list[Handover] = []
    counted = snap.seen.weighted_gpus()
    for row in rows[np.lexsort((snap.jobs.job_id[rows], -saves_s))].tolist():
        if len(under_way) + len(moves) >= limits.max_handovers:
            break
        right = types(row)
        if right is None or gpus + float(counted[row]) > most_gpus:
            continue
        need = narrowed(needs.of(row), within(row))
        nodes = available.place(need, within=right & open_)
        if nodes is None:
            continue
        available.take(need, nodes)
        gpus += float(counted[row])
        open_[nodes] = False  # Two reservations of ours never overlap.
        names = tuple(snap.seen.nodes.name[n] for n in sorted(nodes.tolist()))
        moves.append(
            Handover(
                handover_id=HandoverId(first + len(moves)),
                opened_s=snap.now_s,
                beneficiaries=(),
                victims=(victim_of(snap, row),),
                nodes=names,
                purpose="reshape",
                seats=names,
            )
        )
    return moves


def _worth_it(
    snap: Snapshot,
    kind: I16,
    candidates: Victims,
    under_way: Collection[Handover],
    limits: Preemption,
) -> tuple[Rows, F64]:
    """Rows of the jobs that gain by moving, and what each saves, seconds."""
    jobs, rates = snap.jobs, snap.rates
    held = type_held(snap.seen, snap.on_type)
    rows = candidates.may
    rows = rows[(held[rows] >= 0) & (kind[rows] >= 0) & (held[rows] != kind[rows])]
    busy = {v.run.job_id for h in under_way for v in h.victims}
    rows = rows[~np.isin(jobs.job_id[rows], list(busy))]
    rows = rows[snap.now_s >= _not_before_s(snap, rows, limits.handover_timeout_s)]
    if rates is None or not len(rows):
        return rows[:0], np.zeros(0)
    old, new = rates[rows, held[rows]], rates[rows, kind[rows]]
    with np.errstate(divide="ignore", invalid="ignore"):
        saves_s: F64 = snap.left_s[rows] * (1 / old - 1 / new)
    worth = saves_s > limits.checkpoint_cost_s
    return rows[worth], saves_s[worth]


def _not_before_s(snap: Snapshot, rows: Rows, base_s: float) -> F64:
    """``(len(rows),)`` when each job may be moved again, epoch seconds, if a move was in vain.

    Not before it has been there for twice as long as when the move failed, so each pause is about
    twice as long as the one before.
    """
    failed_s = snap.memory.last_fruitless_s[rows]
    pause_s = np.maximum(base_s, failed_s - snap.memory.first_run_s[rows])
    not_before_s: F64 = np.where(failed_s > 0, failed_s + pause_s, -np.inf)
    return not_before_s
