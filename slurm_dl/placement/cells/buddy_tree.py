"""Cells: the GPUs of one type as a tree of levels, handed out by buddy allocation.

A cell is a whole leaf (switch or block), a whole node, or an even part of a node. Accounts own
cells by level and count, not by name: which leaf or node it is comes out when one is used. Cells
below the node are counted inside their node, as Slurm chooses the GPUs there: what is free of a
node is always its largest parts.

Everybody's unused cells can be produced as long as, from the top level down,
``free[l] - owed[l] + spare[l + 1] * children >= 0``, with ``spare[l]`` that number where it is
above 0. Leaves may differ in size: owed ones are counted on the smallest that are free.

Source: HiveD, OSDI 2020, sections 3 and 4 (cells, buddy cell allocation, safety).
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

OUTSIDE: Final = ""  # Owner of what is taken by nobody who owns cells


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """A cell in use.

    Attributes:
        owner: The account.
        level: See `CellTree`.
        place: The node, or the leaf of a cell of that level.
    """

    owner: str
    level: int
    place: int


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Cells that were promised and cannot be produced.

    Attributes:
        level: See `CellTree`.
        missing: How many.
        accounts: Those who have unused cells of the level: for some of them there is none.
    """

    level: int
    missing: int
    accounts: tuple[str, ...]


class CellTree:
    """The cells of the nodes of one type, all with the same number of GPUs.

    Levels are numbered from below: the parts of a node, the node, the leaf.

    Args:
        sizes: GPUs of a cell of each level up to the node, from 1 on; each divides the next.
        leaf_of: Leaf of each node.
        owned: Cells of each account: level -> count.
        bad: Nodes that are down: no cell is produced from them.

    Raises:
        ValueError: The sizes do not divide each other, or a count or level is none.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        leaf_of: Mapping[int, int],
        owned: Mapping[str, Mapping[int, int]],
        bad: Collection[int] = (),
    ) -> None:
        self.sizes = sizes
        self.node_level = len(sizes) - 1
        self.leaf_level = len(sizes)
        _check(sizes, owned)
        self.leaf_of = dict(sorted(leaf_of.items()))
        self.bad = frozenset(bad) & frozenset(leaf_of)
        inside: dict[int, list[int]] = {}
        for node, leaf in self.leaf_of.items():
            inside.setdefault(leaf, []).append(node)
        self.nodes_in = {leaf: tuple(nodes) for leaf, nodes in sorted(inside.items())}
        self._left = {
            account: [of.get(level, 0) for level in range(self.leaf_level + 1)]
            for account, of in sorted(owned.items())
        }
        self._owed = [sum(left) for left in zip(*self._left.values(), strict=True)] or (
            [0] * (self.leaf_level + 1)
        )
        self._taken = dict.fromkeys(self.leaf_of, 0)
        self._in_use: Counter[Cell] = Counter()
        # What is free, kept up to date: parts of nodes by level, whole nodes of leaves that are
        # not whole, and the sizes of whole leaves.
        self._parts = [0] * self.node_level
        self._untouched = dict.fromkeys(self.nodes_in, 0)
        self._loose = 0
        self._whole: list[int] = []
        for node in self.leaf_of:
            self._count(node, 1)

    @property
    def gpus(self) -> int:
        """GPUs of a node."""
        return self.sizes[-1]

    @property
    def accounts(self) -> tuple[str, ...]:
        """Accounts that own cells, sorted."""
        return tuple(self._left)

    def left(self, account: str, level: int) -> int:
        """Cells of a level that the account owns and does not use."""
        return self._left[account][level] if account in self._left else 0

    def free(self, level: int) -> int:
        """Cells of a level that are free and no part of a larger free cell."""
        if level == self.leaf_level:
            return len(self._whole)
        return self._loose if level == self.node_level else self._parts[level]

    def free_gpus(self, node: int) -> int:
        """GPUs of the node that are in nobody's cell; 0 if it is down."""
        return 0 if node in self.bad else self.gpus - self._taken[node]

    def taken(self, node: int) -> int:
        """GPUs of the node that are in a cell, or taken for good."""
        return self._taken[node]

    def slack(self) -> tuple[int, ...]:
        """By level, how many cells there would be besides those still owed; below 0: missing."""
        owed = self._owed
        slack = [0] * (self.leaf_level + 1)
        slack[self.leaf_level] = len(self._whole) - owed[self.leaf_level]
        # The smallest leaves for those who own leaves leave most nodes to the others.
        spare = sum(self._whole[owed[self.leaf_level] :])
        slack[self.node_level] = self._loose + spare - owed[self.node_level]
        for level in reversed(range(self.node_level)):
            spare = max(0, slack[level + 1])
            parts = self._parts[level] + spare * (self.sizes[level + 1] // self.sizes[level])
            slack[level] = parts - owed[level]
        return tuple(slack)

    @property
    def is_safe(self) -> bool:
        """Whether all cells that are owed could be produced, whoever else gives way."""
        return min(self.slack()) >= 0

    def shortfalls(self) -> tuple[Shortfall, ...]:
        """Cells that could not be produced, from the top level down."""
        slack = self.slack()
        return tuple(
            Shortfall(level, -slack[level], tuple(a for a in self._left if self.left(a, level)))
            for level in reversed(range(len(slack)))
            if slack[level] < 0
        )

    def is_free(self, level: int, place: int) -> bool:
        """Whether a cell of *level* could be at *place*, which is no part of one in use."""
        if level == self.leaf_level:
            return self._untouched[place] == len(self.nodes_in[place])
        return self.free_gpus(place) >= self.sizes[level]

    def claim(self, account: str, level: int, place: int) -> Cell | None:
        """Use one of the account's cells there; None if it is not free or others would lose theirs.

        What is lost already, because nodes are down, is nobody's hindrance.

        Args:
            account: `OUTSIDE` for what is given to jobs that no account's cells are for.
        """
        if account != OUTSIDE and not self.left(account, level):
            return None
        if not self.is_free(level, place):
            return None
        before = self.slack()
        cell = Cell(account, level, place)
        self._use(cell, 1)
        if any(min(0, now) < min(0, then) for now, then in zip(self.slack(), before, strict=True)):
            self._use(cell, -1)
            return None
        return cell

    def allocate(
        self, account: str, level: int, cost: Callable[[int], float | None] = lambda _: 0.0
    ) -> Cell | None:
        """Use one of the account's cells where it costs nothing, or least, and splits least.

        Args:
            cost: What a place costs; None: not there. Of places that cost nothing, and of the
                others, first comes a free cell of the level, then the lowest higher one to split.
        """
        if not self.left(account, level):
            return None
        places = self.nodes_in if level == self.leaf_level else self.leaf_of
        costs = {p: c for p in places if (c := cost(p)) is not None}
        order = sorted(
            (c > 0, self._split(level, p), c, p) for p, c in costs.items() if self.is_free(level, p)
        )
        refused: set[tuple[int, int, int]] = set()
        for _, split, _, place in order:
            # Places that are alike are refused alike.
            alike = (split, *self._likeness(level, place))
            if alike in refused:
                continue
            cell = self.claim(account, level, place)
            if cell is not None:
                return cell
            refused.add(alike)
        return None

    def release(self, cell: Cell) -> None:
        """Give a cell back; free parts become their larger cell again.

        Raises:
            ValueError: It is not in use.
        """
        if not self._in_use[cell]:
            msg = f"{cell} is not in use"
            raise ValueError(msg)
        self._use(cell, -1)

    def occupy(self, node: int, gpus: int) -> bool:
        """Count GPUs as taken for good; False if some of them were in an account's cell."""
        room = self.gpus - self._taken[node]
        self._take(node, min(gpus, room))
        return gpus <= room

    def fill(self, node: int) -> bool:
        """Take all that is free of the node for good, unless somebody would lose cells by it."""
        rest = self.free_gpus(node)
        if not rest:
            return False
        before = self.slack()
        self._take(node, rest)
        if any(min(0, now) < min(0, then) for now, then in zip(self.slack(), before, strict=True)):
            self._take(node, -rest)
            return False
        return True

    def is_whole(self, leaf: int) -> bool:
        """Whether all nodes of the leaf are up and nobody's."""
        return self._untouched[leaf] == len(self.nodes_in[leaf])

    def nodes_of(self, cell: Cell) -> tuple[int, ...]:
        """The nodes that a cell lies on."""
        return self.nodes_in[cell.place] if cell.level == self.leaf_level else (cell.place,)

    def _split(self, level: int, place: int) -> int:
        """The level of the free cell that one of *level* at *place* is cut from."""
        if level == self.leaf_level:
            return level
        if self._taken[place]:
            return min(lv for lv, n in self._digits(place) if lv >= level and n)
        return self.leaf_level if self.is_whole(self.leaf_of[place]) else self.node_level

    def _likeness(self, level: int, place: int) -> tuple[int, int]:
        if level == self.leaf_level:
            return len(self.nodes_in[place]), 0
        return len(self.nodes_in[self.leaf_of[place]]), self._taken[place]

    def _use(self, cell: Cell, sign: int) -> None:
        for node in self.nodes_of(cell):
            self._take(node, sign * self.sizes[min(cell.level, self.node_level)])
        self._in_use[cell] += sign
        if cell.owner != OUTSIDE:
            self._left[cell.owner][cell.level] -= sign
            self._owed[cell.level] -= sign

    def _take(self, node: int, gpus: int) -> None:
        self._count(node, -1)
        self._taken[node] += gpus
        self._count(node, 1)

    def _count(self, node: int, sign: int) -> None:
        """Add (1) or take out (-1) what the node adds to the free cells."""
        if node in self.bad:
            return
        if self._taken[node]:
            for level, parts in self._digits(node):
                self._parts[level] += sign * parts
            return
        leaf = self.leaf_of[node]
        size = len(self.nodes_in[leaf])
        if self._untouched[leaf] == size:
            del self._whole[bisect.bisect_left(self._whole, size)]
        else:
            self._loose -= self._untouched[leaf]
        self._untouched[leaf] += sign
        if self._untouched[leaf] == size:
            bisect.insort(self._whole, size)
        else:
            self._loose += self._untouched[leaf]

    def _digits(self, node: int) -> Iterator[tuple[int, int]]:
        """The free parts of a node that is not free as a whole, the largest first."""
        rest = self.gpus - self._taken[node]
        for level in reversed(range(self.node_level)):
            yield level, rest // self.sizes[level]
            rest %= self.sizes[level]


def _check(sizes: tuple[int, ...], owned: Mapping[str, Mapping[int, int]]) -> None:
    pairs = itertools.pairwise(sizes)
    if not sizes or sizes[0] != 1 or any(b <= a or b % a for a, b in pairs):
        msg = f"sizes of cells begin at 1 and each divides the next (got {sizes})"
        raise ValueError(msg)
    for account, of in owned.items():
        if account == OUTSIDE:
            msg = "an account that owns cells has a name"
            raise ValueError(msg)
        for level, count in of.items():
            if not 0 <= level <= len(sizes) or count < 0:
                msg = f"account {account}: {count} cells of level {level} are none"
                raise ValueError(msg)
