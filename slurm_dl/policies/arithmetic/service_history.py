"""GPU time that each tenant was served, hour by hour: who had how much of the cluster of late.

Nothing is stored for it. A snapshot tells of every live job what it has received over all its runs
and when the present run began, and of jobs that are over when they ran. Time is cut into buckets
of equal length that begin at whole multiples of it; the last one is still under way.

Where a job ran is exact if it ran in one piece. Of a job that ran in several only the present run
is known to the second; what it had before is spread evenly between its first start and the start of
the present run, or the end of the last one.

Source: Ye et al., "ASTRAEA: A Fair Deep Learning Scheduler for Multi-Tenant GPU Clusters", IEEE
TPDS 33(11), 2022 (GPU time of tenants in a window of 24 buckets of an hour).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import COMPLETING, F64, PENDING, Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.supply_and_demand import Tenants

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ServedTime:
    """GPU time as pieces, each spread evenly over its span.

    Attributes:
        tenant: ``(k,)`` index of the tenant it belongs to; below 0: nobody's that counts.
        begin_s: ``(k,)`` where the span begins, epoch seconds.
        end_s: ``(k,)`` where it ends, not before it begins.
        gpu_s: ``(k,)`` GPU-seconds in it.
    """

    tenant: Rows
    begin_s: F64
    end_s: F64
    gpu_s: F64


def bucket_edges(now_s: float, bucket_s: float, buckets: int) -> F64:
    """``(buckets + 1,)`` edges of the last so many buckets, epoch seconds; now is in the last."""
    first = math.floor(now_s / bucket_s) - buckets + 1
    edges: F64 = np.arange(first, first + buckets + 1, dtype=np.float64) * bucket_s
    return edges


def served(snap: Snapshot, tenants: Tenants, edges: F64) -> F64:
    """``(len(tenants), len(edges) - 1)`` GPU-seconds served to each tenant in each bucket.

    Args:
        tenants: Whose the jobs of *snap* are; finished jobs count by the name of their account.
        edges: Edges of the buckets, epoch seconds, increasing.
    """
    found: F64 = np.zeros((len(tenants), len(edges) - 1))
    if len(tenants):
        for piece in (_runs_under_way(snap, tenants), _runs_before(snap, tenants)):
            found += in_buckets(piece, len(tenants), edges)
        found += in_buckets(_past(snap, tenants), len(tenants), edges)
    return found


def in_buckets(service: ServedTime, tenants: int, edges: F64) -> F64:
    """``(tenants, len(edges) - 1)`` GPU-seconds of *service* in each bucket, by tenant.

    A piece without length is all in the bucket in which its instant is.
    """
    counts = (service.tenant >= 0) & (service.gpu_s > 0)
    counts &= (service.end_s >= edges[0]) & (service.begin_s < edges[-1])
    rows = counts.nonzero()[0]
    begin_s, end_s = service.begin_s[rows], service.end_s[rows]
    gpu_s, whose = service.gpu_s[rows], service.tenant[rows]
    length_s = end_s - begin_s
    found: F64 = np.zeros((tenants, len(edges) - 1))
    lasts = length_s > 0
    rate = np.divide(gpu_s, length_s, out=np.zeros_like(gpu_s), where=lasts)
    for b, (left, right) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        inside_s = np.minimum(end_s, right) - np.maximum(begin_s, left)
        part = rate * np.maximum(inside_s, 0.0)
        part += np.where(~lasts & (begin_s >= left) & (begin_s < right), gpu_s, 0.0)
        found[:, b] = np.bincount(whose, weights=part, minlength=tenants)
    return found


def _by_id(snap: Snapshot, mask: Bool) -> Rows:
    """Rows of *mask* by job id: sums must not depend on how Slurm listed the jobs."""
    rows = mask.nonzero()[0]
    found: Rows = rows[np.argsort(snap.jobs.job_id[rows])]
    return found


def _holds(snap: Snapshot) -> Bool:
    """``(n,)`` bool: a run is under way, or its processes are being ended."""
    jobs = snap.jobs
    holds: Bool = (jobs.state > PENDING) & (jobs.state <= COMPLETING) & (jobs.start_s > 0)
    return holds & (jobs.start_s <= snap.now_s)


def _run_s(snap: Snapshot) -> F64:
    """``(n,)`` seconds of the run under way so far; 0 for jobs that do not run."""
    return np.where(_holds(snap), snap.now_s - snap.jobs.start_s, 0.0)


def _runs_under_way(snap: Snapshot, tenants: Tenants) -> ServedTime:
    rows = _by_id(snap, _holds(snap))
    return ServedTime(
        tenant=tenants.of[rows],
        begin_s=snap.jobs.start_s[rows],
        end_s=np.full(len(rows), snap.now_s),
        gpu_s=snap.seen.weighted_gpus()[rows] * _run_s(snap)[rows],
    )


def _runs_before(snap: Snapshot, tenants: Tenants) -> ServedTime:
    """What live jobs had in runs that are over."""
    jobs, memory = snap.jobs, snap.memory
    # Jobs that are over are in the past, where their runs count.
    rows = _by_id(snap, (jobs.state <= COMPLETING) & (memory.attained_gpu_s > 0))
    run_s = _run_s(snap)[rows]
    left_gpu_s = memory.attained_gpu_s[rows] - snap.seen.weighted_gpus()[rows] * run_s
    # The ledger's sum and the product differ by roundings.
    left_gpu_s[left_gpu_s <= memory.attained_gpu_s[rows] * 1e-9] = 0.0
    end_s = np.where(_holds(snap)[rows], jobs.start_s[rows], memory.waiting_since_s[rows])
    end_s = np.minimum(end_s, snap.now_s)
    first_s = memory.first_run_s[rows]
    first_s = np.where(first_s > 0, first_s, memory.first_submit_s[rows])
    return ServedTime(
        tenant=tenants.of[rows], begin_s=np.minimum(first_s, end_s), end_s=end_s, gpu_s=left_gpu_s
    )


def _past(snap: Snapshot, tenants: Tenants) -> ServedTime:
    past = snap.past
    return ServedTime(
        tenant=tenant_of_past(snap, tenants),
        begin_s=np.minimum(past.start_s, past.end_s),
        end_s=past.end_s,
        gpu_s=past.size_gpu_s,
    )


def tenant_of_past(snap: Snapshot, tenants: Tenants) -> Rows:
    """``(k,)`` index of the tenant that each finished job belongs to; -1 if it is none of them."""
    past = snap.past
    index = {name: t for t, name in enumerate(tenants.names)}
    table = np.array([index.get(name, -1) for name in past.accounts] or [-1], dtype=np.int64)
    known = (past.account >= 0) & (past.account < len(past.accounts))
    found: Rows = np.where(known, table[np.where(known, past.account, 0)], -1)
    return found
