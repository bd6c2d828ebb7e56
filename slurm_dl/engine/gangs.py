"""Gangs: the components of a heterogeneous job, which start together or not at all.

Slurm lists each component as a job of its own. A policy sees the first of them, the leader, with
the GPUs and the service of all, and the others with none. The others stand behind their leader in
the order: what the policy says of it holds for them. In the target there are all of them or none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from slurm_dl.engine.target import Rows
from slurm_dl.model.jobs import COMPLETING, Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Order

Gangs = Sequence[Rows]
"""Rows of the live components of each heterogeneous job, the leader first."""


def gangs_in(snap: Snapshot) -> Gangs:
    """The heterogeneous jobs that are listed; a component is ``123+1``."""
    parts = [(job, text.label) for job, text in snap.seen.texts.items() if "+" in text.label]
    found: dict[str, list[tuple[int, int]]] = {}
    for job_id, label in parts:
        leader, _, offset = label.partition("+")
        row = snap.jobs.rows.get(job_id)
        if row is not None and snap.jobs.state[row] < COMPLETING and offset.isdecimal():
            found.setdefault(leader, []).append((int(offset), row))
    gangs = (np.array([row for _, row in sorted(of)], dtype=np.int64) for of in found.values())
    return [gang for gang in gangs if len(gang) > 1]


def as_wholes(snap: Snapshot, gangs: Gangs) -> Snapshot:
    """*snap* in which each leader has the GPUs and the service of its gang, the others none."""
    if not gangs:
        return snap
    gpus, memory = snap.jobs.gpus.copy(), snap.memory
    attained_gpu_s = memory.attained_gpu_s.copy()
    for gang in gangs:
        for column in (gpus, attained_gpu_s):
            column[gang[0]] = column[gang].sum()
            column[gang[1:]] = 0.0
    memory = dataclasses.replace(memory, attained_gpu_s=attained_gpu_s)
    return dataclasses.replace(snap, memory=memory).with_jobs(gpus=gpus)


def led(order: Order, gangs: Gangs) -> Order:
    """*order* with each component where its leader is."""
    if not gangs:
        return order
    of = np.arange(len(order.key))
    for gang in gangs:
        of[gang] = gang[0]
    columns = {
        name: column[of]
        for name in ("tier", "key", "tie", "barred", "start_s")
        if (column := getattr(order, name)) is not None
    }
    return dataclasses.replace(order, **columns)


def in_part(target: Rows, gangs: Gangs, n: int, *, others: bool) -> Bool | None:
    """``(n,)`` bool, components of gangs of which *target* has some and lacks some; None: none.

    Args:
        others: Where there are any, all components of gangs of which it has none, too.
    """
    served, found = np.zeros((2, n), dtype=np.bool_)
    served[target] = True
    for gang in gangs:
        found[gang] = served[gang].any() and not served[gang].all()
    if not found.any():
        return None
    for gang in gangs if others else ():
        found[gang] = not served[gang].all()
    return found
