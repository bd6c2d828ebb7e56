"""GPUs by type, how fast jobs are on them, who has which, and who asks for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, F64, I16, NOT_HELD, PENDING, Bool
from slurm_dl.model.snapshot import Observed, Snapshot


def gpus_by_type(snap: Snapshot, within: Bool | None = None) -> F64:
    """``(t,)`` GPUs of each of the `Observed.gpu_types` on nodes that are up.

    Where no type has a name they are of one; beside others those without a name do not count.

    Args:
        within: ``(m,)`` bool, the nodes that count; None: all.
    """
    nodes = snap.seen.nodes
    found = nodes.totals(
        nodes.up if within is None else nodes.up & within, len(snap.seen.gpu_types)
    )
    return found[1:] if snap.seen.gpu_types else found


def rates_of(snap: Snapshot) -> F64:
    """``(n, t)`` speed of each job on each GPU type; 0 where it may not or cannot run.

    Where nothing is known every type is as fast as any other. A job that asks for a type, or
    whose nodes are restricted to some (``--constraint``, ``--nodelist``, its partition), runs on no
    other.
    """
    jobs, seen = snap.jobs, snap.seen
    kinds = max(1, len(seen.gpu_types))
    rates = np.ones((len(jobs), kinds)) if snap.rates is None else snap.rates.copy()
    if kinds > 1 and len(seen.partitions):
        rates[~_types_in_reach(snap)] = 0.0
    asks = (jobs.gpu_type >= 0).nonzero()[0]
    others = np.arange(kinds) != jobs.gpu_type[asks, None]
    rates[asks] = np.where(others, 0.0, rates[asks])
    if seen.choices and kinds > 1:
        row_of, has = jobs.rows, _types_on(seen)
        for job_id, nodes in seen.choices.items():
            row = row_of.get(JobId(job_id))
            if row is not None:
                rates[row, ~has[nodes].any(axis=0)] = 0.0
    return rates


def _types_in_reach(snap: Snapshot) -> Bool:
    """``(n, t)`` bool: a partition of the job has nodes with GPUs of the type."""
    jobs, seen = snap.jobs, snap.seen
    has = _types_on(seen) & (seen.nodes.gpus > 0)[:, None]
    there = seen.node_in.astype(np.int64) @ has.astype(np.int64) > 0
    reach: Bool = there[jobs.partition]
    reach[jobs.partition < 0] = True
    if seen.also_in:
        row_of = jobs.rows
        for job_id, others in seen.also_in.items():
            if job_id in row_of:
                reach[row_of[job_id]] |= there[list(others)].any(axis=0)
    return reach


def _types_on(seen: Observed) -> Bool:
    """``(m, t)`` bool: the node has GPUs of the type."""
    kinds = np.arange(len(seen.gpu_types))
    has: Bool = seen.nodes.gpu_type[:, None] == kinds
    return has if seen.nodes.by_type is None else has | (seen.nodes.by_type.T > 0)


def type_held(seen: Observed, held: I16 | None = None) -> I16:
    """``(n,)`` type of the GPUs that each running job holds; -1 for the others.

    The one of which it holds most, if they are of several; of equals the first type. Where no type
    has a name all are of type 0.

    Args:
        held: ``(n,)`` as a cluster without nodes tells it, see `Snapshot.on_type`.
    """
    jobs = seen.jobs
    if held is None:
        by_type = seen.held.gpus_by_type(seen.nodes, len(seen.gpu_types))
        job, n = seen.held.job, len(jobs)
        holds = np.array([np.bincount(job, gpus, n) for gpus in by_type]).T
        held = np.where(holds.any(axis=1), holds.argmax(axis=1), -1).astype(np.int16)
    runs: Bool = (jobs.state > PENDING) & (jobs.state < COMPLETING)
    found: I16 = np.where(runs, held, np.int16(-1)).astype(np.int16)
    return found


def contenders(snap: Snapshot) -> Bool:
    """``(n,)`` bool: managed jobs that hold GPUs, or wait for room and nothing else."""
    jobs = snap.jobs
    mask: Bool = (jobs.state < COMPLETING) & (jobs.gpus > 0) & snap.managed_jobs
    mask &= (jobs.state != PENDING) | (jobs.held == NOT_HELD)
    return mask


@dataclass(frozen=True, slots=True, eq=False)
class Tenants:
    """Whose each job is.

    Attributes:
        of: ``(n,)`` index into *names*.
        names: Slurm accounts, sorted; user ids as text where a cluster tells no accounts.
    """

    of: npt.NDArray[np.int64]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)


def tenants(snap: Snapshot) -> Tenants:
    """The tenants of all jobs: their accounts; users where the cluster knows no accounts."""
    texts = snap.seen.texts
    if not texts:
        whose = [str(uid) for uid in snap.jobs.uid.tolist()]
    else:
        found = (texts.get(JobId(j)) for j in snap.jobs.job_id.tolist())
        whose = ["" if text is None else text.account for text in found]
    if not whose:
        return Tenants(np.zeros(0, dtype=np.int64), ())
    names, of = np.unique(np.array(whose, dtype=object), return_inverse=True)
    return Tenants(of.reshape(-1), tuple(names.tolist()))
