"""The nodes that one job may be put on: what fits, what its owner allows, and what rules say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import I64, Bool
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.ranked_groups import Key
from slurm_dl.placement.resource_request import Ask, PendingJob

Order = npt.NDArray[np.int64]  # Conditions, best first


@runtime_checkable  # Pydantic asks for it.
class Rule(Protocol):
    """Rule on nodes that a job must or should avoid. A frozen dataclass like a scheme."""

    name: ClassVar[str]
    source: ClassVar[str]  # Paper and section the rule comes from
    interpretation: ClassVar[str]
    """Where it reads the source in its own way, in words; empty if nowhere."""
    strict: ClassVar[bool]  # True: never there. False: there only if nothing else fits.

    def allows(self, want: PendingJob, ask: Ask, stock: FreeNodes, /) -> Bool:
        """``(v,)`` bool by kind of node in *stock*: one share of *want* may be there.

        Args:
            ask: Which of the job's ways.
        """


class CandidateNodes:
    """The nodes that a scheme may choose from, for one job.

    Args:
        rules: Those to be kept: all of them, or the strict ones alone.
    """

    def __init__(self, stock: FreeNodes, want: PendingJob, rules: Sequence[Rule]) -> None:
        self.stock = stock
        self._want = want
        self._rules = rules

    def usable(self, ask: Ask) -> tuple[Bool, I64]:
        """``(v,)`` bool and int64: where one share may be, and on how many nodes of each condition.

        A condition that holds no node for the job is not usable.
        """
        usable, count = self.stock.room(self._want.need, ask)
        if usable.any():  # Rules are not asked about jobs that fit nowhere.
            allowed = self._by_rules(ask)
            if allowed is not None:
                usable &= allowed
        return usable, count

    def within_rules(self, ask: Ask) -> Bool:
        """``(m,)`` bool, the nodes where it may be whatever is free there: owner, and rules."""
        where = self.stock.conditions()
        nodes: Bool = self._want.need.allowed & (where >= 0)
        allowed = self._by_rules(ask)
        if allowed is not None:
            nodes[nodes] = allowed[where[nodes]]
        return nodes

    def best(self, ask: Ask, by: Key) -> tuple[int, ...] | None:
        """The nodes that are best for the job by *by*, as many as it needs.

        Equal ones in the order in which they came to be as they are, then of nodes.

        Args:
            by: Should be the same function for all jobs: what it said is remembered.

        Returns:
            Rows in `Nodes`, ascending; None if they are too few.
        """
        stock = self.stock
        shelf = None if self._rules else stock.shelf(self._want.need, ask, by)
        if shelf is not None:
            return self._first(ask, shelf)
        usable, count = self.usable(ask)
        rows = usable.nonzero()[0]
        stock.examined += len(stock)
        if not len(rows):
            return None
        keys = by(stock, rows, ask)
        best = int(keys.argmin())
        if count[rows[best]] >= ask.n_nodes:
            return self._first(ask, (int(rows[best]),))
        return self.pick(ask, rows[keys.argsort(kind="stable")])

    def on_leaves(self, ask: Ask, by: Key) -> I64:
        """``(l,)`` nodes that could take a share, by leaf switch; see `NodeGroups.leaves`.

        Args:
            by: As for `best`.
        """
        stock = self.stock
        shelf = None if self._rules else stock.shelf(self._want.need, ask, by)
        if shelf is not None:
            return shelf.on_leaves()
        usable, count = self.usable(ask)
        rows = np.flatnonzero(usable)
        stock.examined += len(rows)
        total = np.bincount(stock.leaf_at(rows), count[rows], len(stock.leaves))
        nodes: I64 = total.astype(np.int64)
        return nodes

    def best_on(self, ask: Ask, by: Key, leaf: int, n_nodes: int) -> list[int]:
        """Up to *n_nodes* nodes on ``leaves[leaf]`` that are best for the job by *by*."""
        stock, need = self.stock, self._want.need
        rows = np.array(stock.on_leaf(leaf), dtype=np.int64)
        fits = stock.fits_at(rows, need, ask)
        stock.examined += len(rows)
        groups = stock.open_to(need)
        if groups is not None:
            fits &= groups[stock.group[rows]]
        allowed = self._by_rules(ask)
        if allowed is not None:
            fits &= allowed[rows]
        rows = rows[fits]
        nodes: list[int] = []
        for row in rows[by(stock, rows, ask).argsort(kind="stable")].tolist():
            for node in self._nodes_in(row):
                if len(nodes) == n_nodes:
                    return nodes
                nodes.append(node)
        return nodes

    def pick(self, ask: Ask, order: Order) -> tuple[int, ...] | None:
        """The first nodes of the conditions in *order* that the job may use, as many as it needs.

        Args:
            order: Usable conditions, best first.

        Returns:
            Rows in `Nodes`, ascending; None if they are too few.
        """
        return self._first(ask, order.tolist())

    def _first(self, ask: Ask, order: Iterable[int]) -> tuple[int, ...] | None:
        nodes: list[int] = []
        for condition in order:
            for node in self._nodes_in(condition):
                nodes.append(node)
                if len(nodes) == ask.n_nodes:
                    return tuple(sorted(nodes))
        return None

    def _by_rules(self, ask: Ask) -> Bool | None:
        """``(v,)`` bool, where one share may be by all rules; None if there are none."""
        allowed: Bool | None = None
        for rule in self._rules:
            mask = rule.allows(self._want, ask, self.stock)
            allowed = mask if allowed is None else allowed & mask
        return allowed

    def _nodes_in(self, condition: int) -> Iterator[int]:
        members = self.stock.members(condition)
        if self.stock.open_to(self._want.need) is not None:
            return iter(members)
        allowed = self._want.need.allowed
        return (node for node in members if allowed[node])
