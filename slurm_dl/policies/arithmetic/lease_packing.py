"""Leases for jobs with deadlines: each needs so many of the leases before its own.

    x[j,t] in {0, 1}                 job j runs in lease t, first_j <= t < before_j
    sum_t x[j,t] = leases_j
    sum_j units_j,r x[j,t] <= free_r,t       for each resource r and lease t

By a greedy rule: the jobs with most GPUs first, of these the ones with least slack, of these the
last due; each from its deadline backwards. Or exactly, by HiGHS (SciPy's ``milp``).

Source: Gao, Ye, Sun, Wen and Zhang, "Chronus: A Novel Deadline-aware Scheduler for Deep Learning
Training Jobs", SoCC 2021; the greedy order is that of S-Lab-System-Group/ChronusArtifact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.model.jobs import F64, I64, Bool
from slurm_dl.policies.arithmetic.lp_solver import stdout_is_stderr

_ROUNDING: Final = 1e-9  # Sums of units are off by less
_MOST_VARIABLES: Final = 50_000  # Of a program; a larger one is not tried


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeaseNeed:
    """Leases that a job needs, by their numbers."""

    gpus: float
    units: F64  # ``(r,)`` of each resource that it holds while it runs
    leases: int  # How many it needs; 0 or less: none
    first: int  # The first it may have
    before: int  # The one after the last it may have


def pack(needs: Sequence[LeaseNeed], free: F64) -> list[I64] | None:
    """The leases of each job, increasing, by the greedy rule; None if it finds no room for one.

    Args:
        free: ``(r, t)`` units of each resource in each lease.
    """
    left, found = free.copy(), [np.zeros(0, dtype=np.int64)] * len(needs)

    def urgency(job: int) -> tuple[float, int, int, int]:
        need = needs[job]
        return (-need.gpus, need.before - need.first - need.leases, -need.before, job)

    for job in sorted(range(len(needs)), key=urgency):
        mine = latest(needs[job], left)
        if mine is None:
            return None
        left[:, mine] -= needs[job].units[:, None]
        found[job] = mine
    return found


def latest(need: LeaseNeed, free: F64) -> I64 | None:
    """The last leases that have room for a job, increasing; None if there are too few.

    Args:
        free: See `pack`.
    """
    if need.leases <= 0:
        return np.zeros(0, dtype=np.int64)
    part = free[:, need.first : max(need.before, need.first)]
    has_room: Bool = np.all(part >= need.units[:, None] - _ROUNDING, axis=0)
    room = has_room.nonzero()[0] + need.first
    return room[-need.leases :] if len(room) >= need.leases else None


def pack_exactly(needs: Sequence[LeaseNeed], free: F64, node_limit: int) -> list[I64] | None:
    """The leases of each job, increasing; None if there is no such packing, or it was not found.

    It is not looked for where jobs and leases are too many, nor beyond *node_limit*. There is no
    limit of time: equal questions have equal answers.

    Args:
        free: See `pack`.
        node_limit: Branches that the solver may look at, above 0.
    """
    wide = [max(0, need.before - need.first) if need.leases > 0 else 0 for need in needs]
    if any(need.leases > width for need, width in zip(needs, wide, strict=True)):
        return None
    if not 0 < sum(wide) <= _MOST_VARIABLES:
        return None if sum(wide) else [np.zeros(0, dtype=np.int64)] * len(needs)
    job = np.repeat(np.arange(len(needs)), wide)
    starts = np.array([need.first for need in needs]) - np.cumsum([0, *wide[:-1]])
    lease = np.arange(len(job)) + starts[job]
    chosen = _solved(needs, job, lease, free, node_limit)
    if chosen is None:
        return None
    return [lease[(job == one) & chosen].astype(np.int64) for one in range(len(needs))]


def _solved(
    needs: Sequence[LeaseNeed], job: I64, lease: I64, free: F64, node_limit: int
) -> Bool | None:
    """``(v,)`` bool, the variables that are 1; *job* and *lease* are those of each."""
    from scipy import optimize, sparse  # noqa: PLC0415 - slow to import

    (kinds, leases), v = free.shape, np.arange(len(job))
    units = np.array([need.units for need in needs])
    row, column, value = [job], [v], [np.ones(len(v))]
    for kind in range(kinds):
        row.append(len(needs) + kind * leases + lease)
        column.append(v)
        value.append(units[job, kind])
    counts = np.array([max(0, need.leases) for need in needs], dtype=np.float64)
    entries = (np.concatenate(value), (np.concatenate(row), np.concatenate(column)))
    rows = sparse.coo_array(entries, shape=(len(needs) + free.size, len(v))).tocsr()
    with stdout_is_stderr():
        found = optimize.milp(
            np.zeros(len(v)),
            constraints=optimize.LinearConstraint(
                rows,
                np.append(counts, np.full(free.size, -np.inf)),
                np.append(counts, free.ravel() + _ROUNDING),
            ),
            integrality=np.ones(len(v)),
            bounds=optimize.Bounds(0, 1),
            options={"node_limit": node_limit},
        )
    if found.x is None:
        return None
    chosen: Bool = found.x > 0.5  # noqa: PLR2004 - 0 or 1, but for rounding
    return chosen
