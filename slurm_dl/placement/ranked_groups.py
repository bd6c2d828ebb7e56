"""The conditions on which one share of a need fits, best first, kept from one job to the next.

Jobs that ask for the same find the same conditions in the same order but for what was given away
in between. As a condition never changes what it has free, only newer ones have to be looked at:
a placement costs what has changed since the last one like it, not what there is.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator

import numpy as np

from slurm_dl.model.jobs import F64, I64, Bool
from slurm_dl.placement.node_groups import NodeGroups, Rows
from slurm_dl.placement.resource_request import Ask, ResourceRequest

Key = Callable[[NodeGroups, Rows | slice, Ask], F64]
"""``(k,)`` how good some conditions are for one share, the lowest is best.

It may depend on what a condition has free, its jobs and its group, which never change; ties go to
the older condition.
"""

_AHEAD = 8  # Conditions that are put in front at a time

_LOOK_AHEAD = 256
"""Conditions among which these are looked for at a time: most may have no node left."""


class RankedGroups:
    """Groups of nodes on which one share fits, for all jobs that ask for the same.

    Args:
        open_to: ``(g,)`` bool, the groups that may be used.
    """

    def __init__(
        self, stock: NodeGroups, need: ResourceRequest, ask: Ask, open_to: Bool, by: Key
    ) -> None:
        self._stock = stock
        self._need = need
        self._ask = ask
        self._open_to = open_to
        self._open_to_all = bool(open_to.all())
        self._by = by
        self._seen = 0
        self._front: list[tuple[float, int]] = []
        self._sorted: tuple[F64, Rows] = np.zeros(0), np.zeros(0, dtype=np.int64)
        self._next = 0
        self._late: list[tuple[float, F64, Rows]] = []
        self._fit: Bool = np.zeros(0, dtype=np.bool_)
        self._on_leaf: I64 = np.zeros(len(stock.leaves), dtype=np.int64)

    def __iter__(self) -> Iterator[int]:
        """The conditions with nodes in them, best first. None is given away meanwhile."""
        self._catch_up()
        stock, front = self._stock, self._front
        count = stock.count
        at = 0
        while at < len(front) or self._fill():
            row = front[at][1]
            stock.examined += 1
            if count[row]:
                yield row
                at += 1
            else:
                del front[at]

    def on_leaves(self) -> I64:
        """``(l,)`` nodes that could take a share, by leaf."""
        stock = self._stock
        new = slice(len(self._fit), len(stock))
        if new.start == new.stop:
            return self._on_leaf
        stock.examined += new.stop - new.start
        fits = self._fits(new)
        self._fit = np.concatenate([self._fit, fits])
        if new.start == 0:
            gain = np.where(fits, stock.count, 0)
        else:
            # Nodes in a newer condition have left an older one.
            gain = (fits.astype(np.int64) - self._fit[stock.origin[new]]) * stock.born[new]
        leaf = stock.leaf_at(new)
        total = np.bincount(leaf, weights=gain, minlength=len(stock.leaves))
        self._on_leaf = self._on_leaf + total.astype(np.int64)
        return self._on_leaf

    def _fits(self, rows: Rows | slice) -> Bool:
        fits = self._stock.fits_at(rows, self._need, self._ask)
        if not self._open_to_all:
            fits &= self._open_to[self._stock.group[rows]]
        return fits

    def _catch_up(self) -> None:
        """Put the conditions that are new where they belong."""
        first, end = self._seen, len(self._stock)
        if first == end:
            return
        self._seen = end
        self._stock.examined += end - first
        new = slice(first, end)
        fits = self._fits(new).nonzero()[0]
        if not len(fits):
            return
        keys = self._by(self._stock, new, self._ask)[fits]
        rows = fits + first
        if first == 0:
            self._sorted = _sorted(keys, rows)
            return
        keys, rows = _sorted(keys, rows)
        if self._front:
            early = int(keys.searchsorted(self._front[-1][0]))
            for found in _pairs(keys[:early], rows[:early]):
                bisect.insort(self._front, found)
            keys, rows = keys[early:], rows[early:]
        if len(keys):
            self._late.append((float(keys[0]), keys, rows))

    def _fill(self) -> bool:
        """Put some more in front, none of which is better than what is there."""
        keys, rows = self._sorted
        while self._next < len(rows) or self._late:
            alive = self._stock.count[rows[self._next : self._next + _LOOK_AHEAD]].nonzero()[0]
            some = self._next + alive[:_AHEAD]
            self._next += int(alive[_AHEAD - 1]) + 1 if len(alive) >= _AHEAD else _LOOK_AHEAD
            limit = float(keys[self._next - 1]) if self._next < len(rows) else np.inf
            found = _pairs(keys[some], rows[some])
            for at, (least, late_keys, late_rows) in enumerate(self._late):
                if least < limit:
                    early = int(late_keys.searchsorted(limit))
                    found += _pairs(late_keys[:early], late_rows[:early])
                    left = late_keys[early:]
                    least_left = float(left[0]) if len(left) else np.inf
                    self._late[at] = least_left, left, late_rows[early:]
            if limit == np.inf:
                self._late.clear()
            if found:
                self._front += sorted(found)
                return True
        return False


def _sorted(keys: F64, rows: Rows) -> tuple[F64, Rows]:
    order = keys.argsort(kind="stable")
    return keys[order], rows[order]


def _pairs(keys: F64, rows: Rows) -> list[tuple[float, int]]:
    return list(zip(keys.tolist(), rows.tolist(), strict=True))
