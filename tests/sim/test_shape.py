"""Clusters from words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.model.errors import ConfigError
from slurm_dl.simulation.cluster_shape import (
    MAX_GPUS_PER_NODE,
    MAX_LEAVES,
    MAX_NODES,
    ClusterShape,
    NodeGroup,
    parse_shape,
)

GROUPS = st.builds(
    NodeGroup,
    nodes=st.integers(1, 500),
    gpus=st.integers(1, MAX_GPUS_PER_NODE),
    gpu_type=st.sampled_from(["gpu", "v100", "a100-sxm4.80", "K80", "h200_x"]),
    leaf_nodes=st.integers(0, 9),
)


def test_groups_of_types() -> None:
    """Two groups: their nodes in order, their types by name, all up."""
    shape = parse_shape("4x8:v100, 2x4:k80")
    nodes = shape.nodes()

    assert shape.groups == (
        NodeGroup(nodes=4, gpus=8, gpu_type="v100"),
        NodeGroup(nodes=2, gpus=4, gpu_type="k80"),
    )
    assert shape.gpus == 40
    assert shape.gpu_types == ("v100", "k80")
    assert nodes.name == ("n1", "n2", "n3", "n4", "n5", "n6")
    assert nodes.gpus.tolist() == [8, 8, 8, 8, 4, 4]
    assert nodes.gpu_type.tolist() == [0, 0, 0, 0, 1, 1]
    assert nodes.up.all()


def test_one_type_in_two_groups_is_one_type() -> None:
    """The type has one index however many groups have it."""
    shape = parse_shape("1x8:a,1x4:b,1x2:a")

    assert shape.gpu_types == ("a", "b")
    assert shape.nodes().gpu_type.tolist() == [0, 1, 0]


def test_nodes_are_on_leaves() -> None:
    """Four nodes a leaf; the last one takes what is left; groups share none."""
    shape = parse_shape("6x8@4,2x4:k80@1,3x2")

    assert shape.nodes().leaf.tolist() == [0, 0, 0, 0, 1, 1, 2, 3, 4, 4, 4]
    assert shape.leaves == 5
    assert [g.leaf_nodes for g in shape.groups] == [4, 1, 0]


def test_without_leaves_all_nodes_are_on_one() -> None:
    """However many groups there are: nothing is known of a topology."""
    shape = parse_shape("2x8,2x4")

    assert shape.nodes().leaf.tolist() == [0, 0, 0, 0]
    assert shape.leaves == 1


@given(groups=st.lists(GROUPS, min_size=1, max_size=5))
def test_a_shape_says_how_it_is_written(groups: list[NodeGroup]) -> None:
    """What str() says is read as the same shape, and the nodes add up."""
    shape = ClusterShape(tuple(groups))

    assert parse_shape(str(shape)) == shape
    assert shape.nodes().gpus.sum() == shape.gpus == sum(g.nodes * g.gpus for g in groups)
    assert len(shape.nodes()) == sum(g.nodes for g in groups)
    leaf = shape.nodes().leaf
    assert set(leaf.tolist()) == set(range(shape.leaves))
    assert (np.diff(leaf) >= 0).all()
    for group in groups:
        if group.leaf_nodes:
            first = sum(g.nodes for g in groups[: groups.index(group)])
            mine = leaf[first : first + group.nodes]
            assert (np.bincount(mine - mine[0]) <= group.leaf_nodes).all()


@pytest.mark.parametrize(
    "text",
    [
        *("", "8", "8x", "x8", "8x8x8", "0x8", "8x0", "-1x8", "8x8:", "8x8,", ",8x8", "8x8:a b"),
        *("8\u00d78", "\u0668x8", "8X8", "1.5x8", "1e3x8", "8x8:-a", "8x8\n:a", "8x8;2x2"),
        *("9" * 7 + "x1", "1x99999", f"{MAX_NODES + 1}x1", f"1x{MAX_GPUS_PER_NODE + 1}"),
        *(f"{MAX_NODES}x1,1x1", "8x8:" + "a" * 64),
        *("8x8@", "8x8@0", "8x8@-1", "8x8@2@2", "8x8@a", "8x8@2:a", "@2", f"{MAX_LEAVES + 1}x1@1"),
    ],
)
def test_words_that_are_no_cluster_are_refused(text: str) -> None:
    """The message repeats them; limits are checked before anything is allocated."""
    with pytest.raises(ConfigError, match="cluster "):
        parse_shape(text)


def test_the_largest_cluster_is_allowed() -> None:
    """The limits themselves are within."""
    assert parse_shape(f"{MAX_NODES}x{MAX_GPUS_PER_NODE}").gpus == MAX_NODES * MAX_GPUS_PER_NODE


@given(text=st.text(max_size=20) | st.from_regex(r"[0-9x:,a@ ]{0,20}", fullmatch=True))
def test_any_text_is_a_cluster_or_an_error(text: str) -> None:
    """Nothing else is ever raised, and what is accepted has GPUs."""
    try:
        shape = parse_shape(text)
    except ConfigError:
        return
    assert shape.gpus >= 1
