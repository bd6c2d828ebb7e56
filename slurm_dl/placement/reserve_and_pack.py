"""High-end nodes reserved for the jobs that name their GPU type; all others are packed elsewhere.

A job that names no type, or another one, goes to the fullest nodes that fit without GPUs of a
high-end type. It takes high-end nodes only if it fits nowhere else, and only while so many of each
type have all their GPUs free afterwards. Else it waits.

Source: Weng et al., "MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale
Heterogeneous GPU Clusters", NSDI 2022, section 6 (reserving-and-packing).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from slurm_dl.model.jobs import Bool
from slurm_dl.model.parameter_bounds import Bound, Bounded, Positive
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.best_fit import free_gpus
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.resource_request import Ask, PendingJob
from slurm_dl.placement.scheme import Answer, Placer, Spot, Wait

_Types = Annotated[
    tuple[str, ...], Bound("GPU types, each once", lambda t: all(t) and len(set(t)) == len(t))
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveAndPack(Bounded):
    """Best fit, apart from nodes that are kept free for the jobs that name their GPU type.

    Attributes:
        high_end: GPU types whose nodes are reserved. Empty: none are.
        keep: Nodes of each of these types that other jobs leave free. Below 1: this share of the
            type's nodes, rounded up.
    """

    name: ClassVar[str] = "reserve_and_pack"
    source: ClassVar[str] = "Alibaba PAI (MLaaS in the Wild), NSDI 2022, section 6"
    interpretation: ClassVar[str] = (
        "A job needs a high-end GPU if it names the type; the paper goes by the job's model and "
        "instance type. Nodes that are down do not count as free."
    )

    high_end: _Types = ()
    keep: Positive = 1.0

    def begin(
        self, snap: Snapshot, stock: FreeNodes, _profiles: Mapping[str, Profile], /
    ) -> Placer:
        """See `Scheme`."""
        return _Reserving(self, snap, stock)


class _Reserving:
    """See `ReserveAndPack`."""

    def __init__(self, how: ReserveAndPack, snap: Snapshot, stock: FreeNodes) -> None:
        nodes, self._snap, self._stock = snap.seen.nodes, snap, stock
        self._of: dict[int, tuple[Bool, int]] = {}  # By type: its nodes, and how many are kept
        self._high = np.zeros(len(nodes), dtype=np.bool_)
        for kind, name in enumerate(snap.seen.gpu_types):
            if name in how.high_end:
                mine = nodes.with_type(kind)
                keep = how.keep if how.keep >= 1 else how.keep * np.count_nonzero(mine)
                self._of[kind] = mine, math.ceil(keep)
                self._high |= mine

    def place(self, want: PendingJob, offer: CandidateNodes, /) -> Answer:
        """See `Placer`."""
        named = int(self._snap.jobs.gpu_type[want.row]) in self._of
        for ask in want.need.asks:
            nodes = self._packed(offer, ask, self._high if named else ~self._high)
            if nodes is not None:
                return Spot(nodes=nodes, why="the fullest nodes of its kind that it fits on")
        if named or not (want.need.allowed & self._high).any():
            return None
        for ask in want.need.asks:
            nodes = self._packed(offer, ask, ~self._high | self._spare(ask))
            if nodes is not None:
                return Spot(nodes=nodes, why="more high-end nodes are free than are kept")
        within = want.need.allowed & ~self._high
        could = any(self._holds(ask, within) for ask in want.need.asks)
        why = f"{', '.join(self._snap.seen.gpu_types[t] for t in self._of)} kept for who names it"
        return Wait(within=within if could else None, for_s=float("inf"), why=why)

    def _packed(self, offer: CandidateNodes, ask: Ask, where: Bool) -> tuple[int, ...] | None:
        """The best nodes for one way of a job; those that are not high-end come first."""
        stock, condition = self._stock, self._stock.conditions()
        inside, high = np.zeros((2, len(stock)), dtype=np.bool_)
        inside[condition[where & (condition >= 0)]] = True
        high[condition[self._high & (condition >= 0)]] = True
        usable, _ = offer.usable(ask)
        rows = np.flatnonzero(usable & inside)
        return offer.pick(ask, rows[np.lexsort([free_gpus(stock, rows, ask), high[rows]])])

    def _spare(self, ask: Ask) -> Bool:
        """``(m,)`` bool, high-end nodes that all shares of a way could take with enough left."""
        spare, short = np.zeros((2, len(self._high)), dtype=np.bool_)
        condition = self._stock.conditions()
        untouched = self._stock.gpus[condition] >= self._snap.seen.nodes.gpus
        untouched &= condition >= 0
        for mine, keep in self._of.values():
            left = np.count_nonzero(mine & untouched) - keep
            spare |= mine & (untouched if left >= ask.n_nodes else ~untouched)
            # A node with GPUs of two types counts for both.
            short |= mine & ((left < 0) | (untouched & (left < ask.n_nodes)))
        return spare & ~short

    def _holds(self, ask: Ask, within: Bool) -> bool:
        nodes = self._snap.seen.nodes
        large = (nodes.gpus >= ask.gpus) & (nodes.cpus >= ask.cpus) & (nodes.mem_mb >= ask.mem_mb)
        return int(np.count_nonzero(within & large)) >= ask.n_nodes
