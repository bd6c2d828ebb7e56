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

from slurm_dl.model.jobs import F64, I16, NOT_HELD, PENDING, Bool, is_in
from slurm_dl.model.nodes import Nodes
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.supply_and_demand import gpus_by_type, rates_of, type_held

Rows = npt.NDArray[np.int64]

NOBODY: Rows = np.zeros(0, dtype=np.int64)  # No row at all
SLACK_GPUS = 1e-9  # Ten tenths of a GPU are one, whatever the rounding of their sum


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


EVERYTHING = (PartitionPool(),)  # One pool of all nodes


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


class TypedResources:
    """GPUs left of each type while jobs are served one after another.

    Args:
        pinned: Rows of jobs that keep what they hold.
        within: ``(m,)`` bool, the nodes whose GPUs are given out; None: all.
    """

    def __init__(self, snap: Snapshot, pinned: Rows, within: Bool | None = None) -> None:
        self.kind: I16 = np.full(len(snap.jobs), -1, dtype=np.int16)
        self._gpus = snap.jobs.gpus
        free = gpus_by_type(snap, within)
        self._held = type_held(snap.seen, snap.on_type)
        on = self._held[pinned]
        known = on >= 0
        np.subtract.at(free, on[known], self._gpus[pinned[known]])
        self.kind[pinned] = on
        self._free: list[float] = free.tolist()
        self._all: list[float] = gpus_by_type(snap, within).tolist()
        self._rates = rates_of(snap)

    def by_need(self, rows: Rows, need: F64) -> Rows:
        """Serve the pairs of job and type in the order of their need; who was served.

        Args:
            rows: Jobs to be served, in the order in which ties are broken.
            need: ``(n, t)`` see `ledger.lease_credits.needs`; -inf where a job wants no GPUs of the
            type.
        """
        kinds = need.shape[1]
        wants = need[rows].ravel()
        may = (wants > -np.inf) & (self._rates[rows].ravel() > 0)
        # Of equal needs first who runs there, then by rank.
        stays = (self._held[rows][:, None] == np.arange(kinds)).ravel()
        place = np.repeat(np.arange(len(rows)), kinds)
        order = np.lexsort([place, ~stays, -wants])
        order = order[may[order]]
        kind_of = np.tile(np.arange(kinds), len(rows))
        served: list[int] = []
        for row, kind in zip(rows[place[order]].tolist(), kind_of[order].tolist(), strict=True):
            if self.kind[row] < 0 and self._take(row, kind):
                served.append(row)
        return np.array(served, dtype=np.int64)

    def by_rank(self, rows: Rows, wanted: I16 | None, *, skips: bool) -> Rows:
        """Serve jobs in their order, each on the best type that has room; who was served.

        Args:
            wanted: ``(n,)`` type that each had best run on, -1: the one it runs on, else the
                fastest.
        """
        served: list[int] = []
        fastest = np.argsort(-self._rates[rows], axis=1, kind="stable").tolist()
        left, whole = max(self._free), max(self._all)
        for row, kinds in zip(rows.tolist(), fastest, strict=True):
            if self.kind[row] >= 0:
                continue
            if self._gpus[row] > (left if skips else whole) + SLACK_GPUS:
                continue  # What no type can ever hold keeps nobody waiting.
            first = -1 if wanted is None else int(wanted[row])
            first = int(self._held[row]) if first < 0 else first
            if first >= 0:
                kinds = [first, *(k for k in kinds if k != first)]  # noqa: PLW2901 - its own list
            for kind in kinds:
                if self._rates[row, kind] > 0 and self._take(row, kind):
                    served.append(row)
                    left = max(self._free)
                    break
            else:
                if not skips:
                    break
            if left <= SLACK_GPUS:
                break
        return np.array(served, dtype=np.int64)

    def _take(self, row: int, kind: int) -> bool:
        gpus = float(self._gpus[row])
        if gpus > self._free[kind] + SLACK_GPUS:
            return False
        self._free[kind] -= gpus
        self.kind[row] = kind
        return True
