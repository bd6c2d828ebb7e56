"""An order finer than tiers, as tiers, where Slurm itself preempts by them.

There a job may displace every running one in a band below it, so each waiting job cannot have a
place of its own. What matters is told exactly, the rest coarsely::

    0        jobs that should hold GPUs now, waiting or running
    1        running jobs that should not: they may be displaced by those above, and by nobody else
    2 - 9    the first eight waiting jobs, one each
    10 ...   the next eight, the next sixteen, the next thirty-two, ...
    last     waiting jobs that had better not start now

Inside a level Slurm takes the earlier job id. A job that moves up crosses few levels, so there are
few writes. What fits into free GPUs is in level 0 already; between two looks Slurm fills GPUs that
come free by the levels that follow.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from slurm_dl.engine.intent import Intent
from slurm_dl.engine.target import NOBODY, Rows
from slurm_dl.model.jobs import NOT_HELD, PENDING
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy, Preempts, displaces

LEVELS: Final = 24
"""How many there are, whatever the number of jobs."""

_WAITS: Final = 2
_EXACT: Final = 8
_LAST: Final = LEVELS - 1


def levels_of(policy: Policy) -> int:
    """Number of tiers in orders of *policy* as written to Slurm."""
    return policy.tiers if displaces(policy) == "tier" else max(policy.tiers, LEVELS)


def in_levels(
    snap: Snapshot, preempts: Preempts, intent: Intent, protected: Rows = NOBODY
) -> Intent:
    """*intent* with levels in place of its tiers, where its order is finer than tiers.

    First come, first served inside a tier is what Slurm does by itself.

    Args:
        preempts: Whom a waiting job may displace.
        protected: Running jobs that keep their GPUs whatever their rank.
    """
    order = intent.order
    plain = np.array_equal(order.key, snap.memory.queued_s)
    if preempts == "tier" or (plain and preempts == "never" and order.barred is None):
        return intent
    ranked = intent.ranked
    waits = snap.jobs.state[ranked] == PENDING
    # Who cannot start whatever is free does not take the places of those who could.
    could = (snap.jobs.held[ranked] == NOT_HELD) & (snap.jobs.gpus[ranked] > 0)
    queued = waits & could & ~np.isin(ranked, intent.target)
    if order.barred is not None:
        queued &= ~order.barred[ranked]
    if queued.any():
        # Who keeps its GPUs only because it may not be stopped stands where it would wait.
        behind = np.arange(len(ranked)) > queued.argmax()
        queued |= behind & ~waits & np.isin(ranked, protected)
    queue = ranked[queued]
    level = np.full(len(order.tier), _LAST, dtype=np.int16)
    level[ranked[~waits]] = 1
    level[intent.target] = 0
    # Which group each place in the queue is in.
    place = np.arange(len(queue))
    doubling = _EXACT + np.floor(np.log2(np.maximum(place // _EXACT, 1)))
    groups = np.where(place < _EXACT, place, doubling).astype(np.int16)
    level[queue] = np.minimum(_WAITS + groups, _LAST - 1)
    return dataclasses.replace(
        intent, order=dataclasses.replace(order, tier=level, tiers=max(order.tiers, LEVELS))
    )
