"""Accounts own cells (leaves, nodes, parts of nodes), and get them whenever they ask.

A job whose account has unused cells that hold it is guaranteed: it goes to these cells, and jobs
that have no right to them give way. All others are opportunistic: they use whatever is free, first
what nobody has been promised. A quota of GPUs cannot do that: what is left of it may lie in
splinters on many nodes.

Nothing is remembered. Which running jobs are guaranteed follows from where they lie and the order
in which the engine names them, which waiting ones from their rank.

A job that is not guaranteed and whose GPUs cannot be taken back (it has no contract, say) would
void the guarantees of others. It is kept on nodes that no unused cell needs.

Source: HiveD, OSDI 2020, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64, I64, Bool, JobState
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.cells import guaranteed_jobs
from slurm_dl.placement.cells.configuration import CellLevel, forest, levels_of
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.resource_request import PendingJob
from slurm_dl.placement.scheme import Answer, GuaranteeQueue, Placer, Promise, Scheme, Spot, Wait

_SOURCE = "HiveD, OSDI 2020, sections 3 and 4"
_INTERPRETATION = (
    "Cells below the node are counted inside it. Cells that are free now go before the buddy "
    "order. Owed leaves are counted on the smallest ones. A job that is not guaranteed and cannot "
    "be preempted stays on nodes that no unused cell needs."
)
_HOLDING = (JobState.RUNNING, JobState.CONFIGURING, JobState.SUSPENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Accounts own cells by level and count; their jobs come first there.

    Attributes:
        cells: By account, the count of cells of each level: ``node``, ``leaf``, or a number of GPUs
            inside a node, in quotes. Where the cluster has several GPU types the level begins with
            the type and a colon, as in ``a100:node``.
    """

    name: ClassVar[str] = "cells"
    source: ClassVar[str] = _SOURCE
    interpretation: ClassVar[str] = _INTERPRETATION

    cells: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.levels()

    def levels(self) -> Mapping[str, Mapping[CellLevel, int]]:
        """The cells with their levels understood.

        Raises:
            ValueError: One is no level, or a count is below 0.
        """
        return levels_of(self.cells)

    def check(self, snap: Snapshot) -> None:
        """Raise unless the cluster has all these cells, nodes that are down counted as up.

        Raises:
            ConfigError: Says whose cells do not fit, and which.
        """
        trees, mistakes = forest(snap, self.levels(), bad=())
        missing = [*mistakes.values(), *(t for tree in trees for t in tree.missing().values())]
        if missing:
            msg = f"cells: {'; '.join(sorted(set(missing)))}"
            raise ConfigError(msg)

    def promise(self, snap: Snapshot, queue: GuaranteeQueue, /) -> Promise:
        """Guarantees of jobs; see `Promising`."""
        return guaranteed_jobs.promise(snap, self.levels(), queue)

    def keeping(self, promise: Promise, /) -> Scheme:
        """The scheme, placing jobs as it has promised; see `Promising`."""
        return _Keeping(promise)

    def begin(self, snap: Snapshot, stock: FreeNodes, profiles: Mapping[str, Profile], /) -> Placer:
        """See `Scheme`. Where nobody has asked for a promise, jobs come first eligible first."""
        jobs = snap.jobs
        by_place = np.lexsort([jobs.job_id, snap.memory.queued_s])
        by_start = np.lexsort([jobs.job_id, jobs.start_s])
        waits = snap.managed_jobs & (jobs.state == JobState.PENDING) & (jobs.gpus > 0)
        opted_in = [j for j, claim in snap.seen.claims.items() if claim.contract is not None]
        queue = GuaranteeQueue(
            running=by_start[np.isin(jobs.state[by_start], _HOLDING)],
            waiting=by_place[waits[by_place]],
            returnable=np.isin(jobs.job_id, opted_in) & jobs.requeueable,
        )
        return self.keeping(self.promise(snap, queue)).begin(snap, stock, profiles)


@dataclass(frozen=True, slots=True, eq=False)
class _Keeping:
    """`Cells`, holding to a promise."""

    name: ClassVar[str] = Cells.name
    source: ClassVar[str] = _SOURCE
    interpretation: ClassVar[str] = _INTERPRETATION

    promise: Promise

    def begin(
        self, snap: Snapshot, _stock: FreeNodes, _profiles: Mapping[str, Profile], /
    ) -> Placer:
        """See `Scheme`."""
        return _Placer(snap, self.promise)


class _Placer:
    """Guaranteed jobs to their cells, others where these are not."""

    def __init__(self, snap: Snapshot, promise: Promise) -> None:
        self._nodes = snap.seen.nodes
        self._promise = promise
        held, m = snap.seen.held, len(self._nodes)
        # GPUs of jobs that are not guaranteed, by node: those that can be taken back, and others.
        self._used: dict[bool, F64] = {}
        for returnable in (True, False):
            kind = ~promise.guaranteed & (promise.returnable == returnable)
            mine = kind[held.job]
            self._used[returnable] = np.bincount(held.node[mine], held.gpus[mine], m).astype(
                np.float64
            )

    def place(self, want: PendingJob, offer: CandidateNodes, /) -> Answer:
        """See `Placer`."""
        cells = self._promise.cells.get(want.row)
        return self._elsewhere(want, offer) if cells is None else _to_cells(want, offer, cells)

    def _elsewhere(self, want: PendingJob, offer: CandidateNodes) -> Answer:
        """Free nodes that nobody is waiting for by right, first those that nobody is promised."""
        promise = self._promise
        within, returnable = promise.within(want.row), bool(promise.returnable[want.row])
        used = self._used[returnable]
        where = offer.stock.conditions()
        for ask in want.need.asks:
            usable, _ = offer.usable(ask)
            open_to = want.need.allowed & (where >= 0) & usable[where]
            if within is not None:
                open_to &= within
            rows = np.flatnonzero(open_to)
            if len(rows) < ask.n_nodes:
                continue
            free = offer.stock.gpus[where[rows]]
            best = np.lexsort([free, -used[rows], ~promise.outside[rows]])
            nodes = rows[best[: ask.n_nodes]]
            used[nodes] += ask.gpus
            where_to = "nobody is promised" if promise.outside[nodes].all() else "may be claimed"
            return Spot(nodes=_ascending(nodes), why=f"nodes that {where_to}")
        if within is None or not (want.need.allowed & ~within).any():
            return None
        why = (
            "nodes that no job waits for by right"
            if returnable
            else "nodes that no account's cells need, as it cannot be taken back"
        )
        mask = within & want.need.allowed
        could = any(self._holds(mask, ask.n_nodes, ask.gpus) for ask in want.need.asks)
        return Wait(within=mask if could else None, for_s=float("inf"), why=why)

    def _holds(self, mask: Bool, n_nodes: int, gpus: float) -> bool:
        return int(np.count_nonzero(mask & (self._nodes.gpus >= gpus))) >= n_nodes


def _to_cells(want: PendingJob, offer: CandidateNodes, cells: Bool) -> Answer:
    """To its cells: now, if there is room on them, and else when others have given way."""
    rows = np.flatnonzero(cells)
    where = offer.stock.conditions()[rows]
    # Of an array Slurm starts as many tasks there as fit; a spot would be for one of them.
    for ask in want.need.asks:
        if len(rows) == ask.n_nodes and want.need.allowed[rows].all():
            usable, _ = offer.usable(ask)
            if (where >= 0).all() and usable[where].all():
                return Spot(nodes=_ascending(rows), why="cells of its account")
    return Wait(within=cells, for_s=float("inf"), why="cells of its account")


def _ascending(rows: I64) -> tuple[int, ...]:
    return tuple(sorted(rows.tolist()))
