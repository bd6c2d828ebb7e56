"""What is free, with nodes that are alike counted together.

On a large cluster most nodes are in one of a few conditions: empty, or so many GPUs and CPUs taken
by so many jobs. Schemes choose among these conditions, not among nodes, so a placement costs what
the conditions cost; a node changes its condition when a job is put on it.

Hot path: a placement is a few NumPy calls on columns of v conditions, and as many steps as the job
has nodes.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I64, Bool, JobState
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.need import Ask, Need
from slurm_dl.placement.want import Want

GROUP, GPUS, CPUS, MEM, JOBS, GANGS, HEAVY, NIC, PCIE, LEAST, MOST = range(11)
"""Columns of a condition; see `Stock`."""

_COLUMNS: Final = 11
_HOLDING = (JobState.RUNNING, JobState.CONFIGURING, JobState.SUSPENDED)
_NO_JOB: Final = (np.inf, 0.0)


class Stock:
    """The nodes of one snapshot by their conditions, filled up as jobs are placed.

    A node that is not up is in none. All columns are ``(v,)`` float64, one row for each condition;
    rows of conditions that no node is in any more stay, with count 0.

    Attributes:
        groups: Of each group of like nodes (leaf, GPU type, GPUs, CPUs, memory, partitions), the
            values ``(g, 5)`` of a whole node: leaf, GPU type (index), GPUs, CPUs, memory in MB.
        group_of: ``(m,)`` group of each node; -1 if it is not up.
    """

    def __init__(self, values: F64, nodes: I64, groups: F64, group_of: I64) -> None:
        """From the condition of each node.

        Args:
            values: ``(k, 11)`` conditions of the nodes *nodes*.
            nodes: ``(k,)`` rows in `Nodes`, ascending.
        """
        self.groups = groups
        self.group_of = group_of
        known, which = np.unique(values, axis=0, return_inverse=True)
        which = which.reshape(-1)
        self._v = len(known)
        self._table = np.zeros((max(64, 2 * self._v), _COLUMNS))
        self._table[: self._v] = known
        self._count = np.zeros(len(self._table), dtype=np.int64)
        self._count[: self._v] = np.bincount(which, minlength=self._v)
        self._row_of: dict[tuple[float, ...], int] = {
            tuple(row): i for i, row in enumerate(known.tolist())
        }
        self._members: list[list[int]] = [[] for _ in range(self._v)]
        self._where = np.full(len(group_of), -1, dtype=np.int64)
        self._where[nodes] = which
        for node, condition in zip(nodes.tolist(), which.tolist(), strict=True):
            self._members[condition].append(node)
        self._places: dict[tuple[object, ...], Bool | None] = {}

    @classmethod
    def of(cls, snap: Snapshot, profiles: Mapping[str, Profile]) -> Stock:
        """What is free in *snap*: jobs that are ending count as gone.

        Args:
            profiles: By model; says what the running jobs load.
        """
        return _stock_of(snap, profiles)

    def __len__(self) -> int:
        return self._v

    @property
    def count(self) -> I64:
        """``(v,)`` nodes in each condition."""
        return self._count[: self._v]

    def column(self, which: int) -> F64:
        """``(v,)`` one of the columns `GROUP` to `MOST`."""
        column: F64 = self._table[: self._v, which]
        return column

    @property
    def group(self) -> I64:
        """``(v,)`` group of the nodes, an index into `groups`."""
        return self.column(GROUP).astype(np.int64)

    @property
    def gpus(self) -> F64:
        """``(v,)`` free GPUs."""
        return self.column(GPUS)

    @property
    def cpus(self) -> F64:
        """``(v,)`` free CPUs."""
        return self.column(CPUS)

    @property
    def mem_mb(self) -> F64:
        """``(v,)`` free memory, MB."""
        return self.column(MEM)

    @property
    def jobs_on(self) -> F64:
        """``(v,)`` jobs that hold something of the node."""
        return self.column(JOBS)

    @property
    def gangs(self) -> F64:
        """``(v,)`` jobs on it that span several nodes."""
        return self.column(GANGS)

    @property
    def heavy_gangs(self) -> F64:
        """``(v,)`` of these, those whose traffic nobody knows."""
        return self.column(HEAVY)

    @property
    def network_mb_s(self) -> F64:
        """``(v,)`` traffic with other nodes of the jobs whose profile says it, MB a second."""
        return self.column(NIC)

    @property
    def pcie_mb_s(self) -> F64:
        """``(v,)`` PCIe traffic of the jobs whose profile says it, MB a second."""
        return self.column(PCIE)

    @property
    def least_gpus(self) -> F64:
        """``(v,)`` GPUs, on all nodes, of the smallest job on it; inf if there is none."""
        return self.column(LEAST)

    @property
    def most_gpus(self) -> F64:
        """``(v,)`` GPUs, on all nodes, of the largest job on it; 0 if there is none."""
        return self.column(MOST)

    @property
    def whole_gpus(self) -> F64:
        """``(v,)`` GPUs of the whole node."""
        whole: F64 = self.groups[self.group, 2]
        return whole

    @property
    def leaf(self) -> I64:
        """``(v,)`` leaf switch or block of the node."""
        leaf: I64 = self.groups[self.group, 0].astype(np.int64)
        return leaf

    def fits(self, need: Need, ask: Ask) -> Bool:
        """``(v,)`` bool, where one share of *ask* fits; `open_to` says where *need* may be."""
        table = self._table[: self._v]
        fits: Bool = (
            (table[:, GPUS] >= ask.gpus)
            & (table[:, CPUS] >= ask.cpus)
            & (table[:, MEM] >= ask.mem_mb)
            & (self._count[: self._v] > 0)
        )
        if need.exclusive:
            fits &= table[:, JOBS] == 0
        return fits

    def open_to(self, need: Need) -> Bool | None:
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

    def take(self, want: Want, nodes: Sequence[int]) -> None:
        """Give each of *nodes* one share of *want*."""
        ask = want.need.ask(len(nodes))
        self._put(want, ask, nodes, (0.0, -ask.gpus, -float(ask.cpus), -float(ask.mem_mb)))

    def expect(self, want: Want, nodes: Sequence[int]) -> None:
        """Count on *want* to come to some of *nodes*: rules see it there, nothing is taken yet."""
        self._put(want, want.need.asks[0], nodes, (0.0, 0.0, 0.0, 0.0))

    def _put(self, want: Want, ask: Ask, nodes: Sequence[int], taken: tuple[float, ...]) -> None:
        network, pcie = want.network_mb_s(ask), want.pcie_mb_s(ask)
        gang = ask.n_nodes > 1
        heavy = gang and network is None
        delta = (*taken, 1.0, float(gang), float(heavy), network or 0.0, pcie or 0.0)
        gpus = want.gpus
        for node in nodes:
            old = self._table[self._where[node]].tolist()
            new = tuple(a + b for a, b in zip(old, delta, strict=False))
            self._move(node, (*new, min(old[LEAST], gpus), max(old[MOST], gpus)))

    def _move(self, node: int, condition: tuple[float, ...]) -> None:
        old = int(self._where[node])
        inside = self._members[old]
        del inside[bisect.bisect_left(inside, node)]
        self._count[old] -= 1
        row = self._row_of.get(condition)
        if row is None:
            row = self._add(condition)
        bisect.insort(self._members[row], node)
        self._count[row] += 1
        self._where[node] = row

    def _add(self, condition: tuple[float, ...]) -> int:
        row = self._v
        if row == len(self._table):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
            self._count = np.concatenate([self._count, np.zeros_like(self._count)])
        self._table[row] = condition
        self._members.append([])
        self._row_of[condition] = row
        self._v += 1
        return row


def _stock_of(snap: Snapshot, profiles: Mapping[str, Profile]) -> Stock:
    nodes, held, jobs = snap.seen.nodes, snap.seen.held, snap.jobs
    m = len(nodes)
    group_of, groups = _groups(snap)
    stays = np.isin(jobs.state[held.job], _HOLDING)
    on, by = held.node[stays], held.job[stays]
    gpus, cpus, mem_mb = held.gpus[stays], held.cpus[stays], held.mem_mb[stays]
    spans = np.bincount(by, minlength=len(jobs)) > 1
    network, pcie, unknown = _loads(snap, profiles, np.unique(by), spans)
    sums = [gpus, cpus, mem_mb, np.ones(len(on)), spans[by], (unknown & spans)[by]]
    sums += [(network * spans)[by] * gpus, pcie[by] * gpus]
    taken = [np.bincount(on, np.asarray(column, dtype=np.float64), m) for column in sums]
    least, most = np.full(m, np.inf), np.zeros(m)
    np.minimum.at(least, on, jobs.gpus[by])
    np.maximum.at(most, on, jobs.gpus[by])
    free = [nodes.gpus - taken[0], nodes.cpus - taken[1], nodes.mem_mb - taken[2]]
    values = np.column_stack([group_of.astype(np.float64), *free, *taken[3:], least, most])
    up = np.flatnonzero(nodes.up)
    return Stock(values[up], up, groups, group_of)


def _groups(snap: Snapshot) -> tuple[I64, F64]:
    """Group of each node, -1 if it is not up, and what each group has."""
    nodes = snap.seen.nodes
    columns: list[npt.NDArray[Any]] = [
        *(nodes.leaf, nodes.gpu_type, nodes.gpus, nodes.cpus, nodes.mem_mb)
    ]
    values = np.column_stack([*columns, *snap.seen.node_in]).astype(np.float64)
    known, which = np.unique(values, axis=0, return_inverse=True)
    group_of: I64 = np.where(nodes.up, which.reshape(-1), -1).astype(np.int64)
    return group_of, known[:, :5]


def _loads(
    snap: Snapshot, profiles: Mapping[str, Profile], rows: npt.NDArray[np.int32], spans: Bool
) -> tuple[F64, F64, Bool]:
    """``(n,)`` network and PCIe traffic of one GPU, and whether the network's is unknown."""
    n = len(snap.jobs)
    network, pcie, unknown = np.zeros(n), np.zeros(n), spans.copy()
    for row in rows.tolist() if profiles else ():
        model = snap.seen.claim(JobId(int(snap.jobs.job_id[row]))).model
        profile = None if model is None else profiles.get(model)
        if profile is None:
            continue
        pcie[row] = profile.load.pcie_mb_s or 0.0
        if profile.load.network_mb_s is not None:
            network[row], unknown[row] = profile.load.network_mb_s, False
    return network, pcie, unknown
