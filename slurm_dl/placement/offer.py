"""The nodes that one job may be put on: what fits, what its owner allows, and what rules say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import I64, Bool
from slurm_dl.placement.need import Ask
from slurm_dl.placement.rule import Rule
from slurm_dl.placement.stock import Stock
from slurm_dl.placement.want import Want

Order = npt.NDArray[np.int64]
"""Conditions, best first."""


class Offer:
    """What a scheme may choose from, for one job.

    Args:
        rules: Those to be kept: all of them, or the strict ones alone.
    """

    def __init__(self, stock: Stock, want: Want, rules: Sequence[Rule]) -> None:
        self.stock = stock
        self._want = want
        self._rules = rules

    def usable(self, ask: Ask) -> tuple[Bool, I64]:
        """``(v,)`` bool and int64: where one share may be, and on how many nodes of each condition.

        A condition that holds no node for the job is not usable.
        """
        stock, need = self.stock, self._want.need
        usable = stock.fits(need, ask)
        groups = stock.open_to(need)
        if groups is None:
            where = stock.conditions()
            mine = where[need.allowed & (where >= 0)]
            count = np.bincount(mine, minlength=len(stock)).astype(np.int64)
            usable &= count > 0
        else:
            count = stock.count
            usable &= groups[stock.group]
        for rule in self._rules:
            usable &= rule.allows(self._want, ask, stock)
        return usable, count

    def within_rules(self, ask: Ask) -> Bool:
        """``(m,)`` bool, the nodes where it may be whatever is free there: owner, and rules."""
        stock, need = self.stock, self._want.need
        allowed = np.ones(len(stock), dtype=np.bool_)
        for rule in self._rules:
            allowed &= rule.allows(self._want, ask, stock)
        where = stock.conditions()
        nodes: Bool = need.allowed & (where >= 0)
        nodes &= allowed[where]
        return nodes

    def pick(self, ask: Ask, order: Order) -> tuple[int, ...] | None:
        """The first nodes of the conditions in *order* that the job may use, as many as it needs.

        Args:
            order: Usable conditions, best first.

        Returns:
            Rows in `Nodes`, ascending; None if they are too few.
        """
        nodes: list[int] = []
        for condition in order.tolist():
            for node in self._nodes_in(condition):
                nodes.append(node)
                if len(nodes) == ask.n_nodes:
                    return tuple(sorted(nodes))
        return None

    def _nodes_in(self, condition: int) -> Iterator[int]:
        members = self.stock.members(condition)
        if self.stock.open_to(self._want.need) is not None:
            return iter(members)
        allowed = self._want.need.allowed
        return (node for node in members if allowed[node])
