"""Slurm's words about switches become an order of nodes, whatever they are."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.job import rank_order

TREE = """\
SwitchName=top Level=2 LinkSpeed=1 Nodes=n[1-8]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1,3,5,7]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[2,4,6,8]
SwitchName=core Level=1 LinkSpeed=1 Nodes=n[1-8] Switches=leaf[1-2]
"""
BLOCKS = """\
BlockName=block1 BlockIndex=0 Nodes=n[1-2] BlockSize=2
BlockName=block2 BlockIndex=1 Nodes=n[3-4] BlockSize=2
"""


def test_leaves_of_a_tree() -> None:
    """Switches above the leaves name all nodes too, and are passed over."""
    found = rank_order.leaves(TREE)

    assert {node for node, leaf in found.items() if leaf == "leaf1"} == {"n1", "n3", "n5", "n7"}
    assert len(found) == 8
    assert rank_order.is_tree(TREE)


def test_blocks_are_leaves_too() -> None:
    assert rank_order.leaves(BLOCKS) == {
        "n1": "block1",
        "n2": "block1",
        "n3": "block2",
        "n4": "block2",
    }
    assert not rank_order.is_tree(BLOCKS)


@pytest.mark.parametrize("text", ["", "No topology information available\n", "SwitchName=\n"])
def test_no_topology(text: str) -> None:
    assert rank_order.leaves(text) == {}
    assert not rank_order.is_tree(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1", ["n1"]),
        ("n[1-3],gpu7", ["n1", "n2", "n3", "gpu7"]),
        ("n[01-02,9]-ib", ["n01-ib", "n02-ib", "n9-ib"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("", []),
        ("(null)", []),
        ("n[1-", []),
        ("n]1[", []),
        ("n[3-1]", []),
        ("n[a-b,5]", ["n5"]),
        ("n[1-999999999]", []),
        ("n[1-90000]m[1-90000]", []),
    ],
)
def test_lists_of_nodes(text: str, expected: list[str]) -> None:
    """What is no list of nodes has none, and nothing makes it endless."""
    assert rank_order.hosts(text) == expected


@given(st.text(alphabet="n[]1-,09 (", max_size=30))
def test_any_text_is_read(text: str) -> None:
    """Text that nobody expected ends, and gives names or none."""
    assert all(isinstance(name, str) for name in rank_order.hosts(text))


def test_the_order_of_switches() -> None:
    """Nodes of one switch together, else as Slurm counts them."""
    nodes = [f"n{i}" for i in range(1, 9)]

    ordered = rank_order.switch_order(nodes, rank_order.leaves(TREE))

    assert ordered == ["n1", "n3", "n5", "n7", "n2", "n4", "n6", "n8"]
    assert rank_order.switch_order(nodes, {}) == nodes


@given(st.lists(st.integers(0, 40), unique=True, min_size=1), st.data())
def test_orders_keep_the_first_node_and_each_leaf_together(
    numbers: list[int], data: st.DataObject
) -> None:
    """The batch script runs on the first node; no leaf is left and entered again."""
    nodes = [f"n{i}" for i in numbers]
    leaf_of = {n: data.draw(st.sampled_from("abc")) for n in nodes if data.draw(st.booleans())}

    ordered = rank_order.switch_order(nodes, leaf_of)

    assert sorted(ordered) == sorted(nodes)
    assert ordered[0] == nodes[0]
    leaves = [leaf_of.get(node, "") for node in ordered]
    changes = sum(a != b for a, b in itertools.pairwise(leaves))
    assert changes == len(set(leaves)) - 1
    for leaf in set(leaves):
        of_leaf = [n for n in ordered if leaf_of.get(n, "") == leaf]
        assert of_leaf == [n for n in nodes if leaf_of.get(n, "") == leaf]


@pytest.mark.parametrize(
    ("file", "leaf", "tree"),
    [
        ("slurm-22.05/topology.txt", "leaf", True),
        ("slurm-24.11/topology.txt", "leaf", True),
        ("slurm-26.05/topology.txt", "leaf", True),
        ("slurm-24.11/blocks.txt", "block", False),
        ("slurm-26.05/blocks.txt", "block", False),
    ],
)
def test_topologies_as_slurm_says_them(file: str, leaf: str, tree: bool) -> None:  # noqa: FBT001
    """In the recorded words of three releases: two nodes under each leaf or in each block."""
    text = (Path(__file__).parents[1] / "data" / file).read_text()

    assert rank_order.leaves(text) == {f"n{i}": f"{leaf}{(i + 1) // 2}" for i in range(1, 7)}
    assert rank_order.is_tree(text) == tree
