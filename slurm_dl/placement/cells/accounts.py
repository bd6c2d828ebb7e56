"""Assignment of jobs to the cells of their accounts.

An account's cells are its own: it may put several jobs into one, and a small job into a large one
if nothing smaller is left. Smallest cells go first, and cells in use before new ones. A job on
several nodes has whole nodes, in cells of their own or in one leaf: of parts of nodes nobody can
promise that they are on different ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_dl.placement.cells.buddy_tree import Cell, CellTree

Cost = Callable[[int], float | None]
"""What it costs to put a share of a job on a node; None: it may not be there."""


@dataclass(slots=True, eq=False)
class _Room:
    """A cell in use, and the GPUs of it that jobs hold, by node."""

    cell: Cell
    size: int
    used: dict[int, int] = field(default_factory=dict)

    def left(self, node: int) -> int:
        return self.size - self.used.get(node, 0)


@dataclass(frozen=True, slots=True)
class _Way:
    """One way in which a job may lie in cells.

    Attributes:
        levels: Levels of the cells, from below.
        together: All of it in one cell.
    """

    levels: range
    together: bool = False


@dataclass(slots=True)
class _Laid:
    """Changes for one job, to be undone if it cannot be placed."""

    rooms: list[tuple[_Room, int, int]] = field(default_factory=list)
    new: list[_Room] = field(default_factory=list)


class CellBook:
    """The cells in use of one tree."""

    def __init__(self, tree: CellTree) -> None:
        self.tree = tree
        self._rooms: dict[str, list[_Room]] = {}
        self.overrun: set[str] = set()
        """Accounts on whose cells somebody lies who cannot be moved."""

    def gpus_left(self, account: str) -> bool:
        """Whether the account has any GPU in cells that no guaranteed job holds."""
        tree = self.tree
        return any(tree.left(account, level) for level in range(tree.leaf_level + 1)) or any(
            room.left(node) > 0
            for room in self._rooms.get(account, ())
            for node in tree.nodes_of(room.cell)
        )

    def settle(self, account: str, shares: Mapping[int, int]) -> bool:
        """Let a running job use its account's cells where it lies; False if it cannot.

        Args:
            shares: GPUs it holds by node; all nodes of this tree.
        """
        for way in self._ways(len(shares)):
            if way.together and len({self.tree.leaf_of[node] for node in shares}) > 1:
                continue
            laid = _Laid()
            if all(self._lay(account, n, g, way, laid) for n, g in sorted(shares.items())):
                return True
            self._undo(account, laid)
        return False

    def find(self, account: str, n_nodes: int, gpus: int, cost: Cost) -> tuple[int, ...] | None:
        """Nodes for a waiting job in its account's cells, which are in use from now on.

        Args:
            gpus: GPUs on each node, no more than a node has.

        Returns:
            Ascending; None if the account's unused cells do not hold it.
        """
        for way in self._ways(n_nodes):
            laid = _Laid()
            seek = self._seek_leaf if way.together else self._seek_nodes
            nodes = seek(account, n_nodes, gpus, cost, way=way, laid=laid)
            if nodes is not None:
                return tuple(sorted(nodes))
            self._undo(account, laid)
        return None

    def occupy(self, shares: Mapping[int, int]) -> None:
        """Count what a running job holds that cannot be moved and uses nobody's cells."""
        for node, gpus in sorted(shares.items()):
            room = self.tree.gpus - self.tree.taken(node)
            if not self.tree.occupy(node, gpus):
                self._overrun(node, gpus - room)

    def _overrun(self, node: int, gpus: int) -> None:
        """Somebody lies on cells that are in use, and what of them was not is not theirs now."""
        for account, rooms in self._rooms.items():
            for room in rooms:
                if node in self.tree.nodes_of(room.cell) and gpus > 0:
                    lost = min(gpus, room.left(node))
                    room.used[node] = room.used.get(node, 0) + lost
                    gpus -= lost
                    self.overrun.add(account)

    def _ways(self, n_nodes: int) -> Iterator[_Way]:
        node, leaf = self.tree.node_level, self.tree.leaf_level
        yield _Way(range(0 if n_nodes == 1 else node, node + 1))
        yield _Way(range(leaf, leaf + 1), together=True)
        if n_nodes > 1:
            yield _Way(range(node, leaf + 1))

    def _lay(self, account: str, node: int, gpus: int, way: _Way, laid: _Laid) -> bool:
        """Put a share on *node*: into a cell in use with least room, else into the smallest."""
        tree = self.tree
        rooms = [
            room
            for room in self._rooms.get(account, ())
            if room.cell.level in way.levels
            and node in tree.nodes_of(room.cell)
            and room.left(node) >= gpus
        ]
        if rooms:
            self._put(min(rooms, key=lambda room: room.left(node)), node, gpus, laid)
            return True
        for level in way.levels:
            place = tree.leaf_of[node] if level == tree.leaf_level else node
            if self._size(level) < gpus:
                continue
            cell = tree.claim(account, level, place)
            if cell is not None:
                self._put(self._open(cell, laid), node, gpus, laid)
                return True
        return False

    def _seek_nodes(
        self, account: str, n_nodes: int, gpus: int, cost: Cost, *, way: _Way, laid: _Laid
    ) -> list[int] | None:
        """Shares in any cells of these levels, on different nodes."""
        tree, nodes = self.tree, list[int]()
        for room, node in self._rooms_for(account, gpus, cost, way):
            if len(nodes) < n_nodes and node not in nodes:
                self._put(room, node, gpus, laid)
                nodes.append(node)

        def at(place: int) -> float | None:
            return None if place in nodes else cost(place)

        for level in way.levels:
            while len(nodes) < n_nodes and self._size(level) >= gpus:
                of = self._leaf_cost(at, 1) if level == tree.leaf_level else at
                cell = tree.allocate(account, level, of)
                if cell is None:
                    break
                room = self._open(cell, laid)
                for node in _cheapest(tree.nodes_of(cell), at, n_nodes - len(nodes)):
                    self._put(room, node, gpus, laid)
                    nodes.append(node)
        return nodes if len(nodes) == n_nodes else None

    def _seek_leaf(
        self, account: str, n_nodes: int, gpus: int, cost: Cost, *, way: _Way, laid: _Laid
    ) -> list[int] | None:
        """All shares in one leaf: one in use, else a new one."""
        tree, known = self.tree, dict[int, tuple[_Room, list[int]]]()
        for room, node in self._rooms_for(account, gpus, cost, way):
            known.setdefault(room.cell.place, (room, []))[1].append(node)
        enough = {leaf: found for leaf, found in known.items() if len(found[1]) >= n_nodes}
        if enough:
            _, (room, inside) = min(
                enough.items(),
                key=lambda of: (sum(cost(n) or 0.0 for n in of[1][1][:n_nodes]), of[0]),
            )
        else:
            cell = tree.allocate(account, tree.leaf_level, self._leaf_cost(cost, n_nodes))
            if cell is None:
                return None
            room, inside = self._open(cell, laid), list(tree.nodes_of(cell))
        nodes = _cheapest(inside, cost, n_nodes)
        for node in nodes:
            self._put(room, node, gpus, laid)
        return nodes

    def _rooms_for(self, account: str, gpus: int, cost: Cost, way: _Way) -> list[tuple[_Room, int]]:
        """Cells in use, and their nodes, with room for a share: cheapest, then fullest first."""
        tree = self.tree
        found = [
            (price, room.left(node), node, i)
            for i, room in enumerate(self._rooms.get(account, ()))
            if room.cell.level in way.levels
            for node in tree.nodes_of(room.cell)
            if node not in tree.bad
            and room.left(node) >= gpus
            and (price := cost(node)) is not None
        ]
        return [(self._rooms[account][i], node) for _, _, node, i in sorted(found)]

    def _leaf_cost(self, cost: Cost, n_nodes: int) -> Cost:
        def of_leaf(leaf: int) -> float | None:
            costs = sorted(c for n in self.tree.nodes_in[leaf] if (c := cost(n)) is not None)
            return sum(costs[:n_nodes]) if len(costs) >= n_nodes else None

        return of_leaf

    def _size(self, level: int) -> int:
        return self.tree.sizes[min(level, self.tree.node_level)]

    def _open(self, cell: Cell, laid: _Laid) -> _Room:
        room = _Room(cell, self._size(cell.level))
        self._rooms.setdefault(cell.owner, []).append(room)
        laid.new.append(room)
        return room

    def _put(self, room: _Room, node: int, gpus: int, laid: _Laid) -> None:
        room.used[node] = room.used.get(node, 0) + gpus
        laid.rooms.append((room, node, gpus))

    def _undo(self, account: str, laid: _Laid) -> None:
        for room, node, gpus in laid.rooms:
            room.used[node] -= gpus
        for room in laid.new:
            self._rooms[account].remove(room)
            self.tree.release(room.cell)


def _cheapest(nodes: Sequence[int], cost: Cost, n_nodes: int) -> list[int]:
    known = sorted((c, node) for node in nodes if (c := cost(node)) is not None)
    return [node for _, node in known[:n_nodes]]
