"""Nodes that are alike, counted together: the columns that schemes and rules look at.

A condition is what all its nodes have free and who is on them. What it has free never changes: a
node that gives something away moves to a new condition. So whoever has judged a condition once
only ever has to look at newer ones, and at how many nodes are left in the old.

Hot path: a condition is a row number; each column is one contiguous float64 array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import F64, I64, Bool
from slurm_dl.placement.resource_request import Ask, ResourceRequest

(GROUP, GPUS, CPUS, MEM, JOBS, GANGS, HEAVY, NIC, PCIE, BLIND, LEAST, MOST) = range(12)
"""Columns of a condition; see `NodeGroups`."""

COLUMNS: Final = 12

Rows = npt.NDArray[np.int64]  # Row numbers of conditions


class NodeGroups:
    """The conditions of the nodes of one snapshot, and how many nodes are in each.

    All columns are ``(v,)`` float64, one row for each condition; rows of conditions that no node
    is in any more stay, with count 0.

    Attributes:
        groups: Of each group of like nodes (leaf, GPU type, GPUs, CPUs, memory, partitions), the
            values ``(g, 5)`` of a whole node: leaf, GPU type (index), GPUs, CPUs, memory in MB.
        leaves: ``(l,)`` the leaf switches there are, ascending.
        examined: Conditions that were looked at one by one so far: what placing has cost.
    """

    def __init__(self, values: F64, count: I64, groups: F64) -> None:
        """From the conditions there are.

        Args:
            values: ``(v, 12)``.
            count: ``(v,)`` nodes in each.
        """
        self._v = v = len(values)
        room = max(64, 2 * v)
        self._table = np.zeros((COLUMNS, room))
        self._table[:, :v] = values.T
        self._count = np.zeros(room, dtype=np.int64)
        self._count[:v] = count
        self._group = np.zeros(room, dtype=np.int64)
        self._group[:v] = values[:, GROUP]
        self._born = self._count.copy()
        self._origin = np.full(room, -1, dtype=np.int64)
        self.groups = groups
        self.leaves, leaf_of_group = np.unique(groups[:, 0], return_inverse=True)
        self._leaf_of_group = leaf_of_group.reshape(-1)
        whole = groups[:, 2:5].T
        unit_of_group = np.divide(1.0, whole, out=np.zeros(whole.shape), where=whole > 0)
        self._unit = np.zeros((3, room))
        self._unit[:, :v] = unit_of_group[:, self._group[:v]]
        self._free_share = np.zeros((3, room))
        self._free_share[:, :v] = self._table[GPUS:JOBS, :v] * self._unit[:, :v]
        self.most_whole_gpus = float(groups[:, 2].max(initial=0.0))
        self.examined = 0

    def __len__(self) -> int:
        return self._v

    @property
    def count(self) -> I64:
        """``(v,)`` nodes in each condition."""
        return self._count[: self._v]

    @property
    def origin(self) -> I64:
        """``(v,)`` the condition that the nodes of each were in before; -1: they were in none."""
        return self._origin[: self._v]

    @property
    def born(self) -> I64:
        """``(v,)`` nodes that were in each condition at first; they only become fewer."""
        return self._born[: self._v]

    def column(self, which: int) -> F64:
        """``(v,)`` one of the columns `GROUP` to `MOST`."""
        column: F64 = self._table[which, : self._v]
        return column

    @property
    def free_share(self) -> F64:
        """``(3, v)`` free GPUs, CPUs and memory, as shares of the whole node's."""
        return self._free_share[:, : self._v]

    @property
    def unit(self) -> F64:
        """``(3, v)`` one GPU, one CPU and one MB as a share of the node's; 0 if it has none."""
        return self._unit[:, : self._v]

    @property
    def group(self) -> I64:
        """``(v,)`` group of the nodes, an index into `groups`."""
        return self._group[: self._v]

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
        """``(v,)`` jobs on it that span several nodes, those that may come included."""
        return self.column(GANGS)

    @property
    def heavy_gangs(self) -> F64:
        """``(v,)`` of these, those whose network traffic nobody knows."""
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
    def pcie_heavy_gangs(self) -> F64:
        """``(v,)`` jobs on it that span several nodes and whose PCIe traffic nobody knows."""
        return self.column(BLIND)

    @property
    def least_gpus(self) -> F64:
        """``(v,)`` GPUs, on all nodes, of the smallest job with any on it; inf if there is none."""
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

    def leaf_at(self, rows: Rows | slice) -> I64:
        """``(k,)`` leaf of the conditions *rows*, an index into `topology`."""
        leaf: I64 = self._leaf_of_group[self._group[rows]]
        return leaf

    def fits(self, need: ResourceRequest, ask: Ask) -> Bool:
        """``(v,)`` bool, where one share of *ask* fits; who may be there is another question."""
        fits = self.fits_at(slice(0, self._v), need, ask)
        fits &= self._count[: self._v] > 0
        return fits

    def fits_at(self, rows: Rows | slice, need: ResourceRequest, ask: Ask) -> Bool:
        """``(k,)`` bool: one share fits into the conditions *rows*, if a node is left in them."""
        table = self._table
        fits: Bool = table[GPUS, rows] >= ask.gpus
        fits &= table[CPUS, rows] >= ask.cpus
        fits &= table[MEM, rows] >= ask.mem_mb
        if need.exclusive:
            fits &= table[JOBS, rows] == 0
        return fits

    def _add(self, condition: Sequence[float], origin: int, count: int) -> int:
        row = self._v
        if row == len(self._count):
            self._grow()
        self._table[:, row] = condition
        self._group[row] = self._group[origin]
        self._unit[:, row] = self._unit[:, origin]
        self._free_share[:, row] = self._table[GPUS:JOBS, row] * self._unit[:, row]
        self._origin[row] = origin
        self._born[row] = self._count[row] = count
        self._v += 1
        return row

    def _grow(self) -> None:
        for name in ("_table", "_unit", "_free_share", "_count", "_group", "_born", "_origin"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros_like(column)], axis=-1))
