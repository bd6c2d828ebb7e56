"""The jobs that would hold GPUs if the policy alone decided: GPUs counted, pool by pool.

Partitions that share nodes are one pool. Where on the nodes the GPUs are is `FreeResources`'s
business.

Hot path of the simulator: a few NumPy calls over the live jobs, whatever their number.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import F64, NOT_HELD, PENDING, Bool, is_in
from slurm_dl.model.nodes import Nodes
from slurm_dl.model.snapshot import Snapshot

Rows = npt.NDArray[np.int64]

NOBODY: Rows = np.zeros(0, dtype=np.int64)
"""No row at all."""

SLACK_GPUS = 1e-9
"""Ten tenths of a GPU are one, whatever the rounding of their sum."""


@dataclass(frozen=True, slots=True, eq=False)
class PartitionPool:
    """Managed partitions that share nodes.

    Attributes:
        partitions: Their indices in `Observed.partitions`; None: all there are.
        jobs: ``(n,)`` bool, jobs that run, or may start, in one of them; None: all managed jobs.
    """

    partitions: frozenset[int] | None = None
    nodes: Bool | None = None  # ``(m,)`` bool, their nodes; None: all there are
    jobs: Bool | None = None

    def usable(self, snap: Snapshot) -> Bool:
        """``(m,)`` bool: nodes of the pool that are up."""
        up = snap.seen.nodes.up
        return up if self.nodes is None else up & self.nodes

    def gpus(self, snap: Snapshot) -> float:
        """GPUs of the pool on nodes that are up."""
        nodes = snap.seen.nodes
        return _gpus_up(nodes) if self.nodes is None else float(nodes.gpus[self.usable(snap)].sum())

    def of(self, rows: Rows) -> Rows:
        """Those of *rows*, managed jobs, that are in the pool."""
        return rows if self.jobs is None else rows[self.jobs[rows]]


EVERYTHING = (PartitionPool(),)
"""One pool of all nodes."""


def pools(snap: Snapshot) -> tuple[PartitionPool, ...]:
    """The managed partitions, those that share nodes together."""
    node_in = snap.seen.node_in
    if len(snap.managed) < 2 or not len(node_in):  # noqa: PLR2004 - one partition is one pool
        return EVERYTHING
    found: list[tuple[set[int], Bool]] = []
    for partition in snap.managed.nonzero()[0].tolist():
        group, nodes = {partition}, node_in[partition]
        for other in [f for f in found if (f[1] & nodes).any()]:
            found.remove(other)
            group, nodes = group | other[0], nodes | other[1]
        found.append((group, nodes))
    if len(found) == 1:
        return (PartitionPool(frozenset(found[0][0]), found[0][1]),)
    return tuple(
        PartitionPool(frozenset(group), nodes, _jobs_in(snap, group)) for group, nodes in found
    )


def _jobs_in(snap: Snapshot, partitions: set[int]) -> Bool:
    inside: Bool = is_in(snap.jobs.partition, list(partitions))
    others = [job_id for job_id, also in snap.seen.also_in.items() if partitions & set(also)]
    return inside | is_in(snap.jobs.job_id, others)


def to_serve(snap: Snapshot, ranked: Rows, pinned: Rows, barred: Bool | None) -> Rows:
    """Those of the rows *ranked* that may be given GPUs, in their order; none of the *pinned*.

    Jobs without GPUs take no part; held ones, those over a limit and those that the policy bars
    cannot be started.
    """
    jobs = snap.jobs
    rows = ranked
    if barred is not None or np.count_nonzero(jobs.held) or np.count_nonzero(jobs.gpus <= 0):
        kept = jobs.held != NOT_HELD if barred is None else (jobs.held != NOT_HELD) | barred
        apart = (jobs.gpus <= 0) | (kept & (jobs.state == PENDING))
        rows = ranked[~apart[ranked]]
    if len(pinned):
        rows = rows[~is_in(rows, pinned)]
    return rows


def choose_target(
    snap: Snapshot,
    ranked: Rows,
    pinned: Rows,
    *,
    skips: bool,
    barred: Bool | None = None,
    pool: PartitionPool = EVERYTHING[0],
) -> Rows:
    """The jobs of one pool that would hold GPUs, in the order they are served.

    GPUs are counted by type, as in the paper's simulator.

    Args:
        ranked: Managed live jobs, best first.
        pinned: Running jobs that cannot be moved; they are in whatever their rank.
        skips: Whether jobs behind one that does not fit are served.
        barred: ``(n,)`` bool, waiting jobs that are not to start; None: nobody.
        pool: Whose GPUs are shared out.
    """
    jobs = snap.jobs
    if len(pinned):
        pinned = pinned[jobs.gpus[pinned] > 0]
    rows = to_serve(snap, ranked, pinned, barred)
    if len(snap.seen.gpu_types) > 1 and (jobs.gpu_type[rows] >= 0).any():
        served = _serve_typed(snap, rows, pinned, pool.usable(snap), skips=skips)
    else:
        free_gpus = pool.gpus(snap) - float(jobs.gpus[pinned].sum())
        served = serve(jobs.gpus[rows], free_gpus, skips=skips)
    target: Rows = np.concatenate([pinned, rows[served]])
    return target


@functools.lru_cache(maxsize=4)
def _gpus_up(nodes: Nodes) -> float:
    return float(nodes.gpus[nodes.up].sum())


def serve(wants: F64, free_gpus: float, *, skips: bool) -> Bool:
    """``(k,)`` bool: who is served when each in turn takes what it wants, if that is left.

    Args:
        wants: ``(k,)`` GPUs, above 0, in the order of service.
        free_gpus: GPUs to share out.
        skips: Whether those behind one that gets nothing are served.
    """
    free_gpus += SLACK_GPUS
    taken = wants.cumsum()
    first = int(taken.searchsorted(free_gpus, side="right"))
    served = np.zeros(len(wants), dtype=np.bool_)
    served[:first] = True
    if not skips or first == len(wants):
        return served
    if first:
        free_gpus -= float(taken[first - 1])
    rest = first + (wants[first:] <= free_gpus).nonzero()[0]
    # What does not fit now never will, so each pass shortens the rest.
    while len(rest):
        taken = wants[rest].cumsum()
        fit = int(taken.searchsorted(free_gpus, side="right"))
        served[rest[:fit]] = True
        free_gpus -= float(taken[fit - 1])
        rest = rest[fit:]
        rest = rest[wants[rest] <= free_gpus]
    return served


def _serve_typed(snap: Snapshot, rows: Rows, pinned: Rows, usable: Bool, *, skips: bool) -> Bool:
    """`serve` where GPUs are of several types and some jobs want a certain one."""
    jobs, nodes = snap.jobs, snap.seen.nodes
    free = nodes.totals(usable, len(snap.seen.gpu_types)).tolist()
    total = sum(free) + SLACK_GPUS
    for wanted, kind in zip(
        jobs.gpus[pinned].tolist(), jobs.gpu_type[pinned].tolist(), strict=True
    ):
        total -= wanted
        if kind >= 0:
            free[kind + 1] -= wanted
    served = np.zeros(len(rows), dtype=np.bool_)
    for i, (wanted, kind) in enumerate(
        zip(jobs.gpus[rows].tolist(), jobs.gpu_type[rows].tolist(), strict=True)
    ):
        if wanted <= total and (kind < 0 or wanted <= free[kind + 1] + SLACK_GPUS):
            total -= wanted
            if kind >= 0:
                free[kind + 1] -= wanted
            served[i] = True
        elif not skips:
            break
        if total <= SLACK_GPUS:
            break
    return served
