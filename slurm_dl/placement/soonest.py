"""Time at which a node has room for a share, if the jobs on it end as expected."""

from __future__ import annotations

import numpy as np

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.node_groups import CPUS, GPUS, MEM, Rows
from slurm_dl.placement.resource_request import Ask, PendingJob

NEVER_S = 1e9  # Stands for an end that nobody knows; a second more behind it still counts


class Soonest:
    """Expected times of room on nodes, and the jobs that it is kept for."""

    def __init__(self, snap: Snapshot, stock: FreeNodes) -> None:
        self._stock = stock
        self._nodes = snap.seen.nodes
        held = snap.seen.held
        ends_s = np.minimum(snap.left_s[held.job], NEVER_S)
        order = np.lexsort((ends_s, held.node))
        self._on = held.node[order].astype(np.int64)
        self._ends_s = ends_s[order]
        self._gives = np.stack([held.gpus, held.cpus, held.mem_mb]).astype(np.float64)[:, order]
        self._begins = np.searchsorted(self._on, np.arange(len(self._nodes)))
        self._room: dict[tuple[float, int, int], tuple[int, F64]] = {}
        self._promised: dict[JobId, tuple[list[int], float]] = {}
        self._behind_s = np.zeros(len(self._nodes))

    def wide(self, offer: CandidateNodes, ask: Ask) -> Bool:
        """``(m,)`` bool, the nodes that the job may use and that hold a share when empty."""
        nodes = self._nodes
        wide = offer.within_rules(ask)
        wide &= (nodes.gpus >= ask.gpus) & (nodes.cpus >= ask.cpus) & (nodes.mem_mb >= ask.mem_mb)
        return wide

    def room_s(self, ask: Ask) -> F64:
        """``(m,)`` seconds until one share has room on each node, `NEVER_S` if that is unknown.

        What was given away in this decision does not come back, and whoever was told to wait for a
        node has it first.
        """
        share = (ask.gpus, ask.cpus, ask.mem_mb)
        known = self._room.get(share)
        if known is None or known[0] != len(self._stock):
            known = self._room[share] = (len(self._stock), self._room_s(share))
        return known[1] + self._behind_s

    def best_nodes(self, want: PendingJob, wide: Bool, ask: Ask) -> Bool:
        """``(m,)`` bool: as many of *wide* as *ask* has, on one leaf if one is wide enough.

        Those that will have room first; of equals those with the most free GPUs.
        """
        room_s = self._room_for(want, ask)
        leaf = self._best_leaf(wide, room_s, ask.n_nodes)
        rows = np.flatnonzero(wide if leaf is None else wide & (self._nodes.leaf == leaf))
        chosen = _first(rows, room_s, self._free_gpus(), ask.n_nodes)
        self._promise(want, chosen.tolist())
        return _mask(chosen, len(self._nodes))

    def best_leaf(self, want: PendingJob, wide: Bool, ask: Ask) -> Bool | None:
        """``(m,)`` bool, of *wide* the leaf that will have room first; None if none ever has."""
        room_s = self._room_for(want, ask)
        leaf = self._best_leaf(wide, room_s, ask.n_nodes)
        if leaf is None:
            return None
        inside: Bool = wide & (self._nodes.leaf == leaf)
        rows = np.flatnonzero(inside)
        chosen = _first(rows, room_s, self._free_gpus(), ask.n_nodes)
        self._promise(want, chosen.tolist())
        return inside

    def leaves_of(self, wide: Bool) -> int:
        """Number of leaves that the nodes *wide* are on."""
        return len(np.unique(self._nodes.leaf[wide]))

    def on_one_leaf(self, wide: Bool, n_nodes: int) -> bool:
        """Whether some leaf has *n_nodes* of the nodes *wide*."""
        _, count = np.unique(self._nodes.leaf[wide], return_counts=True)
        return int(count.max(initial=0)) >= n_nodes

    def _best_leaf(self, wide: Bool, room_s: F64, n_nodes: int) -> int | None:
        """The leaf of which *n_nodes* wide nodes have room first; None if no leaf has as many."""
        rows = np.flatnonzero(wide)
        rows = rows[np.lexsort((room_s[rows], self._nodes.leaf[rows]))]
        leaf, begins, count = np.unique(
            self._nodes.leaf[rows], return_index=True, return_counts=True
        )
        holds = count >= n_nodes
        if not holds.any():
            return None
        last_s = room_s[rows[begins[holds] + n_nodes - 1]]
        return int(leaf[holds][np.argmin(last_s)])

    def _room_for(self, want: PendingJob, ask: Ask) -> F64:
        """`room_s` for a job that may be asked about again: it does not wait for itself."""
        before = self._promised.pop(want.job_id, None)
        if before is not None:
            self._behind_s[before[0]] -= before[1]
        return self.room_s(ask)

    def _promise(self, want: PendingJob, nodes: list[int]) -> None:
        run_s = min(want.left_s, want.limit_s, NEVER_S)
        self._promised[want.job_id] = nodes, run_s
        self._behind_s[nodes] += run_s

    def _free_gpus(self) -> F64:
        return self._free(GPUS)

    def _free(self, which: int) -> F64:
        """``(m,)`` what each node has free; 0 if it is not up."""
        where = self._stock.conditions()
        free = np.zeros(len(where))
        free[where >= 0] = self._stock.column(which)[where[where >= 0]]
        return free

    def _room_s(self, share: tuple[float, int, int]) -> F64:
        where = self._stock.conditions()
        free = np.stack([self._free(which) for which in (GPUS, CPUS, MEM)])
        asked = np.array(share)[:, np.newaxis]
        room_s = np.full(len(self._nodes), NEVER_S)
        room_s[(where >= 0) & (free >= asked).all(axis=0)] = 0.0
        if not len(self._on):
            return room_s
        given = np.cumsum(self._gives, axis=1)
        before = np.where(self._begins > 0, given[:, self._begins - 1], 0.0)
        later = free[:, self._on] + given - before[:, self._on]
        enough = (later >= asked).all(axis=0)
        np.minimum.at(room_s, self._on[enough], self._ends_s[enough])
        return room_s


def _first(rows: Rows, room_s: F64, free: F64, n_nodes: int) -> Rows:
    """Of *rows* the *n_nodes* that have room first; of equals the ones with the most free GPUs."""
    if len(rows) > n_nodes:
        edge = np.partition(room_s[rows], n_nodes - 1)[n_nodes - 1]
        rows = rows[room_s[rows] <= edge]
    return rows[np.lexsort((rows, -free[rows], room_s[rows]))[:n_nodes]]


def _mask(rows: Rows, m: int) -> Bool:
    mask = np.zeros(m, dtype=np.bool_)
    mask[rows] = True
    return mask
