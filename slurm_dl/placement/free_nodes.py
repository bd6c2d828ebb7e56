"""Free resources of nodes, reduced as jobs are placed.

On a large cluster most nodes are in one of a few conditions: empty, or so many GPUs and CPUs taken
by so many jobs. Schemes choose among these conditions, not among nodes, and remember what they
have judged (`shelf`), so a placement costs as many steps as the job has nodes.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I64, Bool, JobState
from slurm_dl.model.nodes import SLACK
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.node_groups import GANGS, LEAST, MOST, NodeGroups
from slurm_dl.placement.ranked_groups import Key, RankedGroups
from slurm_dl.placement.resource_request import Ask, PendingJob, ResourceRequest


def gpus_taken(snap: Snapshot, staying: Bool) -> F64:
    """``(m,)`` GPUs of each node that cannot be given away as whole ones.

    Two halves on two devices take two GPUs from the jobs that want whole ones, two halves on one
    device take one.

    Shares whose device is not known count as if they filled one device after the other: Slurm
    takes the first that has room.

    Args:
        staying: ``(k,)`` bool, the rows of `Allocations` that count; others are about to be free.
    """
    held, m = snap.seen.held, len(snap.seen.nodes)
    on, gpus = held.node[staying], held.gpus[staying]
    whole = np.floor(gpus + SLACK)
    part = np.maximum(gpus - whole, 0.0)
    taken: F64 = np.bincount(on, weights=whole, minlength=m).astype(np.float64)
    if not (part > SLACK).any():
        return taken
    job_id = snap.jobs.job_id[held.job[staying]].tolist()
    unknown = {
        (job, node): share
        for job, node, share in zip(job_id, on.tolist(), part.tolist(), strict=True)
        if share > SLACK
    }
    shares = dict(unknown)
    for gpu in snap.seen.shared:
        tenants = [(job, gpu.node) for job in gpu.jobs if (job, gpu.node) in shares]
        taken[gpu.node] += bool(tenants)
        for tenant in tenants:
            unknown.pop(tenant, None)
    loose = np.zeros(m)
    for (_, node), share in unknown.items():
        loose[node] += share
    taken += np.ceil(loose - SLACK)
    return taken


_HOLDING = (JobState.RUNNING, JobState.CONFIGURING, JobState.SUSPENDED)
_FEW: Final = 8


class FreeNodes(NodeGroups):
    """The nodes of one snapshot by their conditions, filled up as jobs are placed.

    A node that is not up is in none.

    Attributes:
        group_of: ``(m,)`` group of each node; -1 if it is not up.
    """

    def __init__(self, values: F64, nodes: I64, groups: F64, group_of: I64) -> None:
        """From the condition of each node.

        Args:
            values: ``(k, 12)`` conditions of the nodes *nodes*; see `NodeGroups`.
            nodes: ``(k,)`` rows in `Nodes`, ascending.
        """
        known, which = np.unique(values, axis=0, return_inverse=True)
        which = which.reshape(-1)
        super().__init__(known, np.bincount(which, minlength=len(known)), groups)
        self.group_of = group_of
        self._members: list[list[int]] = [[] for _ in range(len(known))]
        self._where = np.full(len(group_of), -1, dtype=np.int64)
        self._where[nodes] = which
        for node, condition in zip(nodes.tolist(), which.tolist(), strict=True):
            self._members[condition].append(node)
        self._on_leaf: list[list[int]] = [[] for _ in self.leaves]
        for row, leaf in enumerate(self.leaf_at(np.arange(len(known))).tolist()):
            self._on_leaf[leaf].append(row)
        self._places: dict[tuple[object, ...], Bool | None] = {}
        self._shelves: dict[tuple[object, ...], RankedGroups] = {}

    @classmethod
    def of(cls, snap: Snapshot, profiles: Mapping[str, Profile]) -> FreeNodes:
        """Free nodes of *snap*; jobs that are ending count as gone.

        Args:
            profiles: By model; says what the running jobs load.
        """
        return _stock_of(snap, profiles)

    def open_to(self, need: ResourceRequest) -> Bool | None:
        """``(g,)`` bool, groups all of whose nodes *need* may use.

        None where it may use some nodes of a group and not others.
        """
        if need.place not in self._places:
            up = self.group_of >= 0
            groups = len(self.groups)
            all_of = np.bincount(self.group_of[up], minlength=groups)
            mine = np.bincount(self.group_of[up & need.allowed], minlength=groups)
            simple = ((mine == 0) | (mine == all_of)).all()
            self._places[need.place] = (mine > 0) if simple else None
        return self._places[need.place]

    def condition_of(self, node: int) -> int:
        """Row of the condition that a node is in; -1 if it is not up."""
        return int(self._where[node])

    def conditions(self) -> I64:
        """``(m,)`` row of the condition that each node is in; -1 if it is not up."""
        return self._where

    def members(self, condition: int) -> Sequence[int]:
        """The nodes in a condition, ascending."""
        return self._members[condition]

    def room(self, need: ResourceRequest, ask: Ask) -> tuple[Bool, I64]:
        """``(v,)`` bool and int64: where a share fits, and on how many of the nodes it may use."""
        usable = self.fits(need, ask)
        groups = self.open_to(need)
        if groups is not None:
            if not groups.all():
                usable &= groups[self.group]
            return usable, self.count
        mine = self._where[need.allowed & (self._where >= 0)]
        count = np.bincount(mine, minlength=len(self)).astype(np.int64)
        usable &= count > 0
        return usable, count

    def shelf(self, need: ResourceRequest, ask: Ask, by: Key) -> RankedGroups | None:
        """Groups of nodes on which a share fits, best first by *by*.

        None where *need* may use some nodes of a group and not others.
        """
        key = (need.place, need.exclusive, ask.gpus, ask.cpus, ask.mem_mb, by)
        shelf = self._shelves.get(key)
        if shelf is None:
            groups = self.open_to(need)
            if groups is None:
                return None
            shelf = self._shelves[key] = RankedGroups(self, need, ask, groups, by)
        return shelf

    def on_leaf(self, leaf: int) -> Sequence[int]:
        """The conditions on the leaf switch ``leaves[leaf]`` that nodes are in, ascending."""
        rows = self._on_leaf[leaf] = [row for row in self._on_leaf[leaf] if self._members[row]]
        return rows

    def take(self, want: PendingJob, nodes: Sequence[int]) -> None:
        """Give each of *nodes* one share of *want*."""
        ask = want.need.ask(len(nodes))
        load, gpus = _load_of(want, ask), want.gpus
        moved: dict[int, list[int]] = {}
        for node, row in zip(nodes, self._where[list(nodes)].tolist(), strict=True):
            moved.setdefault(row, []).append(node)
        taken = (0.0, -ask.gpus, -ask.cpus, -ask.mem_mb, 1.0, *load)
        for row, those in moved.items():
            old = self._table[:, row].tolist()
            new = [a + b for a, b in zip(old, taken, strict=False)]
            new += [min(old[LEAST], gpus) if gpus > 0 else old[LEAST], max(old[MOST], gpus)]
            self._move(row, those, new)

    def expect(self, want: PendingJob, nodes: Sequence[int]) -> None:
        """Count on *want* to come to some of *nodes*: rules see it there, nothing is taken yet."""
        there = self._where[list(nodes)]
        inside = np.bincount(there[there >= 0], minlength=len(self))
        rows = np.flatnonzero(inside)
        split = rows[inside[rows] < self.count[rows]]
        if len(split):
            mine = frozenset(nodes)
            for row in split.tolist():
                those = [node for node in self._members[row] if node in mine]
                self._move(row, those, self._table[:, row].tolist())
            rows = np.unique(self._where[[n for n in nodes if self._where[n] >= 0]])
        # In place: schemes remember what a condition has free, which this leaves as it is.
        ways = [ask for ask in want.need.asks if ask.n_nodes <= max(1, len(nodes))]
        load = np.max([_load_of(want, ask) for ask in ways or want.need.asks[:1]], axis=0)
        self._table[GANGS:LEAST, rows] += load[:, np.newaxis]
        if want.gpus > 0:
            self._table[LEAST, rows] = np.minimum(self._table[LEAST, rows], want.gpus)
        self._table[MOST, rows] = np.maximum(self._table[MOST, rows], want.gpus)

    def _move(self, row: int, nodes: Sequence[int], condition: Sequence[float]) -> None:
        """Put *nodes*, which are in *row*, into a new condition."""
        inside = self._members[row]
        if len(nodes) == len(inside):
            self._members[row] = []
        elif len(nodes) <= _FEW:
            for node in nodes:
                del inside[bisect.bisect_left(inside, node)]
        else:
            gone = frozenset(nodes)
            self._members[row] = [node for node in inside if node not in gone]
        self._count[row] -= len(nodes)
        new = self._add(condition, row, len(nodes))
        self._members.append(sorted(nodes))
        self._where[list(nodes)] = new
        self._on_leaf[int(self._leaf_of_group[self._group[new]])].append(new)


def _load_of(want: PendingJob, ask: Ask) -> tuple[float, ...]:
    """A share's part of the columns from `GANGS` to `BLIND`."""
    network, pcie = want.network_mb_s(ask), want.pcie_mb_s(ask)
    gang = ask.n_nodes > 1
    return (
        float(gang),
        float(gang and network is None),
        network or 0.0,
        pcie or 0.0,
        float(gang and pcie is None),
    )


def _stock_of(snap: Snapshot, profiles: Mapping[str, Profile]) -> FreeNodes:
    nodes, held, jobs = snap.seen.nodes, snap.seen.held, snap.jobs
    m = len(nodes)
    group_of, groups = _groups(snap)
    stays = np.isin(jobs.state[held.job], _HOLDING)
    on, by = held.node[stays], held.job[stays]
    gpus, cpus, mem_mb = held.gpus[stays], held.cpus[stays], held.mem_mb[stays]
    spans = np.bincount(by, minlength=len(jobs)) > 1
    network, pcie = _loads(snap, profiles, np.unique(by))
    sums = [cpus, mem_mb, np.ones(len(on)), spans[by], (np.isnan(network) & spans)[by]]
    sums += [(np.nan_to_num(network) * spans)[by] * gpus, np.nan_to_num(pcie)[by] * gpus]
    sums += [(np.isnan(pcie) & spans)[by]]
    taken = [np.bincount(on, np.asarray(column, dtype=np.float64), m) for column in sums]
    least, most = np.full(m, np.inf), np.zeros(m)
    size = jobs.gpus[by]
    np.minimum.at(least, on, np.where(size > 0, size, np.inf))
    np.maximum.at(most, on, size)
    free = [nodes.gpus - gpus_taken(snap, stays), nodes.cpus - taken[0], nodes.mem_mb - taken[1]]
    values = np.column_stack([group_of.astype(np.float64), *free, *taken[2:], least, most])
    up = np.flatnonzero(nodes.up)
    return FreeNodes(values[up], up, groups, group_of)


def _groups(snap: Snapshot) -> tuple[I64, F64]:
    """Group of each node, -1 if it is not up, and what each group has."""
    nodes = snap.seen.nodes
    columns: list[npt.NDArray[Any]] = [
        *(nodes.leaf, nodes.gpu_type, nodes.gpus, nodes.cpus, nodes.mem_mb)
    ]
    values = np.column_stack(
        [*columns, *snap.seen.node_in, *([] if nodes.by_type is None else nodes.by_type)]
    ).astype(np.float64)
    known, which = np.unique(values, axis=0, return_inverse=True)
    group_of: I64 = np.where(nodes.up, which.reshape(-1), -1).astype(np.int64)
    return group_of, known[:, :5]


def _loads(
    snap: Snapshot, profiles: Mapping[str, Profile], rows: npt.NDArray[np.int32]
) -> tuple[F64, F64]:
    """``(n,)`` network and PCIe traffic of one GPU of the jobs at *rows*; nan where unknown."""
    network, pcie = np.full((2, len(snap.jobs)), np.nan)
    job_ids = snap.jobs.job_id[rows].tolist()
    for row, job_id in zip(rows.tolist(), job_ids, strict=True) if profiles else ():
        profile = profiles.get(snap.seen.claim(JobId(job_id)).model or "")
        if profile is None:
            continue
        if profile.load.pcie_mb_s is not None:
            pcie[row] = profile.load.pcie_mb_s
        if profile.load.network_mb_s is not None:
            network[row] = profile.load.network_mb_s
    return network, pcie
