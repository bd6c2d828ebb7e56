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
from slurm_dl.policies.arithmetic.calendar import SLACK, Need, Resource
from slurm_dl.policies.arithmetic.lp_solver import stdout_is_stderr
from slurm_dl.policies.arithmetic.slots import SlotTable

_MOST_VARIABLES: Final = 50_000  # Of a program; a larger one is not tried


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseNeed:
    """Leases that a job needs; they have the numbers of slots."""

    need: Need  # What it holds in each of them
    gpus: float  # By which the greedy rule sorts
    leases: int  # How many it needs; 0 or less: none
    first: int  # The first it may have
    before: int  # The one after the last it may have
    together: bool = False  # Whether they must follow one another


def latest(wanted: LeaseNeed, table: SlotTable) -> I64 | None:
    """The last leases that have room for a job, increasing; None if there are too few."""
    first, before = max(wanted.first, table.first), min(wanted.before, table.first + len(table))
    if wanted.leases <= 0 or before - first < wanted.leases:
        return np.zeros(0, dtype=np.int64) if wanted.leases <= 0 else None
    fits = table.fits(wanted.need)[first - table.first : before - table.first]
    if wanted.together:
        whole = np.convolve(fits, np.ones(wanted.leases, dtype=np.int64), "valid")
        begins = (whole == wanted.leases).nonzero()[0]
        return first + begins[-1] + np.arange(wanted.leases) if len(begins) else None
    room = fits.nonzero()[0] + first
    return room[-wanted.leases :] if len(room) >= wanted.leases else None


def pack(wanted: Sequence[LeaseNeed], table: SlotTable) -> list[I64] | None:
    """The leases of each job, increasing, by the greedy rule; None if it finds no room for one."""
    left, found = table.copy(), [np.zeros(0, dtype=np.int64)] * len(wanted)

    def urgency(job: int) -> tuple[float, int, int, int]:
        one = wanted[job]
        return (-one.gpus, one.before - one.first - one.leases, -one.before, job)

    for job in sorted(range(len(wanted)), key=urgency):
        mine = latest(wanted[job], left)
        if mine is None:
            return None
        left.take(wanted[job].need, mine)
        found[job] = mine
    return found


def pack_exactly(
    wanted: Sequence[LeaseNeed], table: SlotTable, node_limit: int
) -> list[I64] | None:
    """The leases of each job, increasing; None if there is no such packing, or it was not found.

    It is not looked for where jobs and leases are too many, or must follow one another, nor beyond
    *node_limit*. There is no limit of time: equal questions have equal answers. Units of a
    courteous resource count as any.

    Args:
        node_limit: Branches that the solver may look at, above 0.
    """
    end = table.first + len(table)
    first = [max(one.first, table.first) for one in wanted]
    wide = [
        max(0, min(one.before, end) - begin) if one.leases > 0 else 0
        for one, begin in zip(wanted, first, strict=True)
    ]
    if any(one.together or one.leases > w for one, w in zip(wanted, wide, strict=True)):
        return None
    if not 0 < sum(wide) <= _MOST_VARIABLES:
        return None if sum(wide) else [np.zeros(0, dtype=np.int64)] * len(wanted)
    job = np.repeat(np.arange(len(wanted)), wide)
    lease = np.arange(len(job)) + (np.array(first) - np.cumsum([0, *wide[:-1]]))[job]
    chosen = _solved(wanted, job, lease, table, node_limit)
    if chosen is None:
        return None
    return [lease[(job == one) & chosen].astype(np.int64) for one in range(len(wanted))]


def _solved(
    wanted: Sequence[LeaseNeed], job: I64, lease: I64, table: SlotTable, node_limit: int
) -> Bool | None:
    """``(v,)`` bool, the variables that are 1; *job* and *lease* are those of each."""
    from scipy import optimize, sparse  # noqa: PLC0415 - slow to import

    v, counts = np.arange(len(job)), [max(0, one.leases) for one in wanted]
    row, column, value = [job], [v], [np.ones(len(v))]
    least, most = [np.array(counts, float)], [np.array(counts, float)]
    resources = dict.fromkeys(r for one in wanted for r in one.need.units)
    for resource in resources:
        free = table.free(resource)
        if free is None:
            continue
        row.append(sum(map(len, most)) + lease - table.first)
        column.append(v)
        value.append(_units(wanted, resource)[job])
        least.append(np.full(len(free), -np.inf))
        most.append(free + SLACK)
    entries = (np.concatenate(value), (np.concatenate(row), np.concatenate(column)))
    rows = sparse.coo_array(entries, shape=(sum(map(len, most)), len(v))).tocsr()
    with stdout_is_stderr():
        found = optimize.milp(
            np.zeros(len(v)),
            constraints=optimize.LinearConstraint(
                rows, np.concatenate(least), np.concatenate(most)
            ),
            integrality=np.ones(len(v)),
            bounds=optimize.Bounds(0, 1),
            options={"node_limit": node_limit},
        )
    if found.x is None:
        return None
    chosen: Bool = found.x > 0.5  # noqa: PLR2004 - 0 or 1, but for rounding
    return chosen


def _units(wanted: Sequence[LeaseNeed], resource: Resource) -> F64:
    return np.array([one.need.units.get(resource, 0.0) for one in wanted])
