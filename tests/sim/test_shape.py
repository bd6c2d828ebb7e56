"""Clusters from words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.backends.sim.shape import (
    MAX_GPUS_PER_NODE,
    MAX_NODES,
    ClusterShape,
    NodeGroup,
    parse_shape,
)
from slurm_dl.model.errors import ConfigError

GROUPS = st.builds(
    NodeGroup,
    nodes=st.integers(1, 500),
    gpus=st.integers(1, MAX_GPUS_PER_NODE),
    gpu_type=st.sampled_from(["gpu", "v100", "a100-sxm4.80", "K80", "h200_x"]),
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


@given(groups=st.lists(GROUPS, min_size=1, max_size=5))
def test_a_shape_says_how_it_is_written(groups: list[NodeGroup]) -> None:
    """What str() says is read as the same shape, and the nodes add up."""
    shape = ClusterShape(tuple(groups))

    assert parse_shape(str(shape)) == shape
    assert shape.nodes().gpus.sum() == shape.gpus == sum(g.nodes * g.gpus for g in groups)
    assert len(shape.nodes()) == sum(g.nodes for g in groups)


@pytest.mark.parametrize(
    "text",
    [
        *("", "8", "8x", "x8", "8x8x8", "0x8", "8x0", "-1x8", "8x8:", "8x8,", ",8x8", "8x8:a b"),
        *("8\u00d78", "\u0668x8", "8X8", "1.5x8", "1e3x8", "8x8:-a", "8x8\n:a", "8x8;2x2"),
        *("9" * 7 + "x1", "1x99999", f"{MAX_NODES + 1}x1", f"1x{MAX_GPUS_PER_NODE + 1}"),
        *(f"{MAX_NODES}x1,1x1", "8x8:" + "a" * 64),
    ],
)
def test_words_that_are_no_cluster_are_refused(text: str) -> None:
    """The message repeats them; limits are checked before anything is allocated."""
    with pytest.raises(ConfigError, match="cluster "):
        parse_shape(text)


def test_the_largest_cluster_is_allowed() -> None:
    """The limits themselves are within."""
    assert parse_shape(f"{MAX_NODES}x{MAX_GPUS_PER_NODE}").gpus == MAX_NODES * MAX_GPUS_PER_NODE


@given(text=st.text(max_size=20) | st.from_regex(r"[0-9x:,a ]{0,20}", fullmatch=True))
def test_any_text_is_a_cluster_or_an_error(text: str) -> None:
    """Nothing else is ever raised, and what is accepted has GPUs."""
    try:
        shape = parse_shape(text)
    except ConfigError:
        return
    assert shape.gpus >= 1
