"""Parts of the cluster: what jobs ask of each resource, and what all-divisible fairness would give.

The dominant share of a tenant is the largest of its parts of the cluster's GPUs, CPUs and memory.
Where everything could be divided, dominant shares would rise together, each by the tenant's weight,
until a tenant has all it wants or something that it needs is used up.

Source: Ghodsi et al., "Dominant Resource Fairness: Fair Allocation of Multiple Resource Types",
NSDI 2011, section 4 (the progressive filling that Algorithm 1 follows in steps of a task).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import F64
from slurm_dl.model.parameter_bounds import Table
from slurm_dl.model.snapshot import Snapshot

I64 = npt.NDArray[np.int64]

_SLACK: Final = 1e-9  # Relative difference below which two levels are one
_NOTHING: Final = 1e-18  # Part of a cluster that is nothing


def parts(snap: Snapshot) -> F64:
    """``(n, 3)`` what each job asks for, as parts of the cluster's GPUs, CPUs and memory.

    Of what the cluster has none of, nothing is a part.
    """
    jobs, nodes = snap.jobs, snap.seen.nodes
    asked = np.column_stack([jobs.gpus, jobs.cpus, jobs.mem_mb]).astype(np.float64)
    there = np.array(
        [float(column[nodes.up].sum()) for column in (nodes.gpus, nodes.cpus, nodes.mem_mb)]
    )
    part: F64 = np.divide(asked, there, out=np.zeros_like(asked), where=there > 0)
    return part


def sum_by(part: F64, tenant: I64, tenants_n: int) -> F64:
    """``(k, r)`` sums of the rows of *part* over the jobs of each tenant."""
    columns = [np.bincount(tenant, weights=column, minlength=tenants_n) for column in part.T]
    # Counts of nothing are whole numbers.
    summed: F64 = np.column_stack(columns).astype(np.float64)
    return summed


def fluid_progress(want: F64, weight: F64) -> F64:
    """``(k,)`` part of what it wants that each tenant gets where everything can be divided.

    Dominant shares rise together, each by its weight, until a tenant has all it wants or something
    that it needs is used up.

    Args:
        want: ``(k, r)`` what each tenant wants, as parts of what there is.
        weight: ``(k,)`` weights, above 0.
    """
    most = want.max(axis=1, initial=0.0)
    wants = most > 0
    # At level y a tenant that still rises has the part y / full of what it wants.
    full = np.divide(most, weight, out=np.zeros_like(most), where=wants)
    got = np.where(wants, np.nan, 1.0)
    rises = wants.copy()
    while rises.any():
        taken = (np.nan_to_num(got)[:, None] * want)[~rises].sum(axis=0)
        level = _level(want[rises], full[rises], np.maximum(1.0 - taken, 0.0))
        finite = level.min()
        if finite == np.inf:
            got[rises] = 1.0
            break
        short = (level <= finite * (1 + _SLACK)) & (want[rises] > 0).any(axis=0)
        rows = rises.nonzero()[0]
        stops = (want[rises][:, short] > 0).any(axis=1)
        got[rows[stops]] = np.minimum(finite / full[rows[stops]], 1.0)
        rises[rows[stops]] = False
    return got


def _level(want: F64, full: F64, room: F64) -> F64:
    """``(r,)`` the level at which each resource is used up; inf where all can be satisfied."""
    by = np.argsort(full, kind="stable")
    sorted_full, sorted_want = full[by][:, None], want[by]
    # Between two of the levels at which somebody is satisfied, use is a straight line.
    done = np.cumsum(sorted_want, axis=0) - sorted_want
    slope = np.cumsum((sorted_want / sorted_full)[::-1], axis=0)[::-1]
    use = done + slope * sorted_full
    found = np.full(want.shape[1], np.inf)
    for r in range(want.shape[1]):
        at = int((use[:, r] > room[r] * (1 + _SLACK) + _NOTHING).argmax())
        if use[at, r] > room[r] * (1 + _SLACK) + _NOTHING:
            found[r] = (room[r] - done[at, r]) / slope[at, r]
    return found


def weights_of(weights: Table, names: tuple[str, ...]) -> F64:
    """``(k,)`` the weight of each of *names*; 1 for those that have none."""
    table = dict(weights)
    return np.array([table.get(name, 1.0) for name in names], dtype=np.float64)
