"""Cells: what can be produced, by the invariant and by trying everything."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.placement.cells.buddy_tree import OUTSIDE, Cell, CellTree

SIZES = (1, 2, 4)
NODE, LEAF = 2, 3


def tree(
    leaves: Sequence[int],
    owned: Mapping[str, Mapping[int, int]],
    bad: Sequence[int] = (),
    sizes: tuple[int, ...] = SIZES,
) -> CellTree:
    """Leaves with so many nodes each, numbered from 0."""
    leaf_of = dict(enumerate(leaf for leaf, n in enumerate(leaves) for _ in range(n)))
    return CellTree(sizes, leaf_of, owned, bad)


@dataclass
class Oracle:
    """Whether cells can be produced, by trying every way of cutting them out.

    GPUs of a node are told apart, and a cell below the node lies on a multiple of its size, as in
    a real tree of cells. What jobs hold of a node is known by number: it is packed to the left.
    """

    sizes: tuple[int, ...]
    leaves: tuple[tuple[int, ...], ...]
    free: dict[int, int]

    def can(self, wanted: Sequence[int]) -> bool:
        """Whether cells of all these levels can be cut out at the same time."""
        whole = self.sizes[-1]
        start = tuple(frozenset(range(whole - self.free[n], whole)) for n in sorted(self.free))
        return self._fits(start, sorted(wanted, reverse=True))

    def _fits(self, state: tuple[frozenset[int], ...], wanted: Sequence[int]) -> bool:
        if not wanted:
            return True
        return any(self._fits(after, wanted[1:]) for after in set(self._cuts(state, wanted[0])))

    def _cuts(
        self, state: tuple[frozenset[int], ...], level: int
    ) -> Iterator[tuple[frozenset[int], ...]]:
        whole = frozenset(range(self.sizes[-1]))
        if level == len(self.sizes):
            for leaf in self.leaves:
                if all(state[n] == whole for n in leaf):
                    yield tuple(frozenset() if n in leaf else gpus for n, gpus in enumerate(state))
            return
        size = self.sizes[level]
        for n, gpus in enumerate(state):
            for first in range(0, self.sizes[-1], size):
                cell = frozenset(range(first, first + size))
                if cell <= gpus:
                    yield (*state[:n], gpus - cell, *state[n + 1 :])


def oracle(of: CellTree) -> Oracle:
    """The oracle of what is free of a tree."""
    leaves = tuple(of.nodes_in.values())
    return Oracle(of.sizes, leaves, {n: of.free_gpus(n) for n in of.leaf_of})


def owed(of: CellTree) -> list[int]:
    """The levels of all cells that are owned and not in use."""
    return [
        level
        for account in of.accounts
        for level in range(of.leaf_level + 1)
        for _ in range(of.left(account, level))
    ]


def test_a_free_cell_goes_before_a_larger_one_is_split() -> None:
    """The second half node is the other half of the first."""
    cells = tree([2, 2], {"a": {1: 3}})

    first, second, third = (cells.allocate("a", 1) for _ in range(3))

    assert first == Cell("a", 1, 0)
    assert second == first
    assert third == Cell("a", 1, 1)


def test_the_lowest_higher_cell_is_split() -> None:
    """A single GPU comes out of a half node, a node out of a leaf that is not whole."""
    cells = tree([2, 2], {"a": {0: 1, 1: 1, 2: 1}})
    cells.allocate("a", 1, lambda n: None if n != 3 else 0.0)

    assert cells.allocate("a", 0) == Cell("a", 0, 3)
    assert cells.allocate("a", 2) == Cell("a", 2, 2)
    assert cells.free(LEAF) == 1


def test_what_is_released_becomes_the_larger_cell_again() -> None:
    """After everybody has gone all leaves are whole."""
    cells = tree([2, 3], {"a": {0: 2, 1: 1, 2: 2}})
    used = [cells.allocate("a", level) for level in (0, 1, 0, 2, 2)]

    for cell in used:
        assert cell is not None
        cells.release(cell)

    assert [cells.free(level) for level in range(LEAF + 1)] == [0, 0, 0, 2]
    assert owed(cells) == [0, 0, 1, 2, 2]


def test_releasing_what_nobody_uses_is_refused() -> None:
    """A book that is wrong must not go on."""
    cells = tree([1], {"a": {2: 1}})

    with pytest.raises(ValueError, match="not in use"):
        cells.release(Cell("a", 2, 0))


def test_a_cell_is_not_cut_from_what_another_is_owed() -> None:
    """The whole leaf stays whole for who owns one, though there are free nodes in it."""
    cells = tree([2, 2], {"a": {NODE: 2}, "b": {LEAF: 1}})
    assert cells.claim("a", NODE, 0) is not None

    assert cells.claim("a", NODE, 2) is None
    assert cells.claim("a", NODE, 1) is not None


def test_owed_leaves_are_counted_on_the_smallest() -> None:
    """One leaf of 2 and one of 4: who owns a leaf can have the small one, 4 nodes are left."""
    assert tree([2, 4], {"a": {LEAF: 1}, "b": {NODE: 4}}).is_safe
    assert not tree([2, 4], {"a": {LEAF: 1}, "b": {NODE: 5}}).is_safe


def test_a_down_node_breaks_its_leaf_and_it_is_said_for_whom() -> None:
    """The invariant says which cells are missing and who of the owners waits for them."""
    cells = tree([2, 2], {"a": {LEAF: 1}, "b": {LEAF: 1}, "c": {1: 1}}, bad=[3])

    short = cells.shortfalls()

    assert [(s.level, s.missing, s.accounts) for s in short] == [(LEAF, 1, ("a", "b"))]
    assert cells.allocate("b", LEAF) == Cell("b", LEAF, 0)
    assert [s.accounts for s in cells.shortfalls()] == [("a",)]


def test_what_is_lost_already_hinders_nobody_else() -> None:
    """A node cell can be used although a leaf is missing; it takes nothing from its owner."""
    cells = tree([2, 2], {"a": {LEAF: 2}, "c": {NODE: 1}}, bad=[3])

    assert not cells.is_safe
    assert cells.allocate("c", NODE) == Cell("c", NODE, 2)


def test_down_nodes_are_in_no_cell() -> None:
    """A cell is cut from nodes that are up."""
    cells = tree([3], {"a": {NODE: 2}}, bad=[0])

    assert {c.place for _ in range(2) if (c := cells.allocate("a", NODE))} == {1, 2}


def test_a_place_that_costs_nothing_goes_before_a_smaller_split() -> None:
    """Nobody is displaced for the order of the buddies, if all others keep their cells."""
    cells = tree([2, 2], {"a": {NODE: 2}})
    cells.claim("a", NODE, 0)

    assert cells.allocate("a", NODE, lambda n: float(n == 1)) == Cell("a", NODE, 2)


@pytest.mark.parametrize(
    ("sizes", "owned", "match"),
    [
        ((2, 4), {}, "begin at 1"),
        ((1, 2, 3), {}, "divides the next"),
        ((1, 4), {"a": {5: 1}}, "account a"),
        ((1, 4), {"a": {0: -1}}, "account a"),
        ((1, 4), {OUTSIDE: {0: 1}}, "has a name"),
    ],
)
def test_what_is_no_tree_is_refused(
    sizes: tuple[int, ...], owned: Mapping[str, Mapping[int, int]], match: str
) -> None:
    """Wrong sizes, levels and counts are said at once."""
    with pytest.raises(ValueError, match=match):
        CellTree(sizes, {0: 0}, owned)


TINY = st.tuples(
    st.lists(st.integers(1, 2), min_size=1, max_size=3),
    st.lists(st.integers(0, 4), min_size=5, max_size=5),
    st.lists(st.integers(0, 3), max_size=5),
    st.sets(st.integers(0, 5), max_size=1),
)


@settings(max_examples=200, deadline=None)
@given(TINY)
def test_the_invariant_holds_just_where_everybodys_cells_can_be_produced(
    case: tuple[list[int], list[int], list[int], set[int]],
) -> None:
    """Independent oracle: every way of cutting the cells out, tried on tiny trees."""
    leaves, taken, wanted, bad = case
    counts = {level: wanted.count(level) for level in set(wanted)}
    cells = tree(leaves, {"a": counts} if counts else {}, sorted(bad))
    for node in cells.leaf_of:
        cells.occupy(node, taken[node % 5])

    assert cells.is_safe == oracle(cells).can(wanted)


@dataclass(frozen=True)
class Step:
    """Ask for a cell of one's own, or give one back."""

    account: str
    level: int
    back: int | None


STEPS = st.lists(
    st.builds(
        Step,
        account=st.sampled_from(["a", "b", "c"]),
        level=st.integers(0, LEAF),
        back=st.one_of(st.none(), st.integers(0, 10)),
    ),
    max_size=40,
)
OWNED = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.dictionaries(st.integers(0, LEAF), st.integers(1, 2), min_size=1),
    min_size=1,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), OWNED, STEPS)
def test_whoever_has_cells_left_gets_one_whatever_came_before(
    leaves: list[int],
    owned: dict[str, dict[int, int]],
    steps: list[Step],
) -> None:
    """HiveD's guarantee: every request within the own cells succeeds, in any order."""
    cells = tree(leaves, owned)
    if not cells.is_safe:
        return
    used: list[Cell] = []
    for i, step in enumerate(steps):
        if step.back is not None:
            if used:
                cells.release(used.pop(step.back % len(used)))
            continue
        left = cells.left(step.account, step.level)
        cell = cells.allocate(step.account, step.level, lambda p, i=i: float((p * 7 + i) % 3))  # type: ignore[misc]
        assert (cell is not None) == (left > 0)
        if cell is not None:
            used.append(cell)
        assert cells.is_safe


def test_a_quota_of_gpus_is_left_over_and_no_node_is_whole() -> None:
    """The sequence on which counting GPUs fails and cells do not.

    Two nodes of 4 GPUs. Accounts *a* and *b* have a quota of 4 GPUs each, or a node cell each.
    *a* runs two jobs of 2 GPUs, and a scheduler that counts puts one on each node: that is within
    its quota. Then *b*, which has used nothing of its 4, wants a node: 4 GPUs are free, no node is.
    """
    quota, free = {"a": 4, "b": 4}, {0: 4, 1: 4}
    for node in (0, 1):
        quota["a"] -= 2
        free[node] -= 2
    assert quota["b"] == 4
    assert sum(free.values()) == 4
    assert not any(gpus >= 4 for gpus in free.values())

    cells = tree([2], {"a": {NODE: 1}, "b": {NODE: 1}})
    # With cells both jobs of *a* are in its one node, and *b* has the other.
    assert cells.allocate("a", NODE) == Cell("a", NODE, 0)
    assert cells.allocate("b", NODE) == Cell("b", NODE, 1)


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_who_comes_first_makes_no_difference(order: tuple[str, ...]) -> None:
    """A leaf, two nodes and a half node fit in any order of asking."""
    level = {"a": LEAF, "b": NODE, "c": 1}
    cells = tree([2, 2], {"a": {LEAF: 1}, "b": {NODE: 1}, "c": {1: 2}})

    assert all(cells.allocate(who, level[who]) is not None for who in order)


def test_what_is_missing_above_is_not_missed_again_below() -> None:
    """Three nodes are owed and there are two: one is missing, and the half node, not its double."""
    cells = tree([2], {"a": {NODE: 3}, "b": {1: 1}})

    assert [(s.level, s.missing) for s in cells.shortfalls()] == [(NODE, 1), (1, 1)]


def test_a_place_that_others_need_is_passed_over_for_a_dearer_one() -> None:
    """The idle node lies in the only whole leaf, which is owed; the other has to be cleared."""
    cells = tree([2, 2], {"a": {NODE: 2}, "b": {LEAF: 1}})
    cells.claim("a", NODE, 0)

    assert cells.allocate("a", NODE, lambda n: float(n == 1)) == Cell("a", NODE, 1)
