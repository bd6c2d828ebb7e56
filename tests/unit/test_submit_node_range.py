"""A range of nodes fits where enough GPUs of one type lie on few enough nodes."""

from __future__ import annotations

import pytest

from slurm_dl.model.errors import ConfigError
from slurm_dl.submit.job_shape import GpuNode, GpuPartition, NodeRange, choose_range


def node(gpus: int, gpu_type: str = "a100", *, up: bool = True) -> GpuNode:
    return GpuNode(gpu_type=gpu_type, gpus=gpus, up=up)


MIXED = GpuPartition(
    name="gpu", nodes=(node(4), node(4), node(2), node(8, "h100"), node(8, "h100"))
)


@pytest.mark.parametrize(
    ("gpus", "gpu_type", "least", "most", "types"),
    [
        (8, None, 1, 2, ("a100", "h100")),
        (10, None, 1, 3, ("a100", "h100")),
        (10, None, 1, 2, ("h100",)),
        (9, "a100", 1, 3, ("a100",)),
        (5, None, 3, 4, ("a100",)),
        (16, None, 2, 16, ("h100",)),
    ],
)
def test_what_fits(
    gpus: int, gpu_type: str | None, least: int, most: int, types: tuple[str, ...]
) -> None:
    """The widest nodes of one type have to hold it, and there must be the fewest it asks for."""
    shape = choose_range([MIXED], gpus=gpus, gpu_type=gpu_type, least=least, most=most)

    assert shape == NodeRange(
        nodes=least,
        most_nodes=most,
        gpus=gpus,
        gpu_type=gpu_type,
        types=types,
        enough_up=True,
    )
    assert shape.request == (f"{gpus}" if gpu_type is None else f"{gpu_type}:{gpus}")


@pytest.mark.parametrize(
    ("gpus", "gpu_type", "least", "most", "message"),
    [
        (11, "a100", 1, 4, "11 a100 GPUs do not fit on 1 to 4 nodes: partition gpu has"),
        (9, "a100", 1, 2, "or for more nodes in --nodes=MIN-MAX"),
        (4, "h100", 3, 4, "do not fit on 3 to 4 nodes"),
        (4, "v100", 1, 2, "there are no GPUs of type v100"),
    ],
)
def test_what_does_not_fit(
    gpus: int, gpu_type: str | None, least: int, most: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_range([MIXED], gpus=gpus, gpu_type=gpu_type, least=least, most=most)


def test_nodes_that_are_down_count_last() -> None:
    """The job then waits for them."""
    partition = GpuPartition(name="gpu", nodes=(node(4), node(4, up=False)))

    assert choose_range([partition], gpus=4, gpu_type=None, least=1, most=2).enough_up
    assert not choose_range([partition], gpus=6, gpu_type=None, least=1, most=2).enough_up
