"""Sizes are laid on the nodes that there are, like any job of that size."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from slurm_dl.model.errors import ConfigError
from slurm_dl.submit import job_shape
from slurm_dl.submit.job_extras import lay_out, least_of
from slurm_dl.submit.job_request import JobRequest, SubmitOptions, check
from slurm_dl.submit.job_shape import GpuNode, GpuPartition

SITE = [
    GpuPartition(
        name="gpu",
        nodes=(
            *(GpuNode(gpu_type="a100", gpus=4, up=True) for _ in range(4)),
            GpuNode(gpu_type="h100", gpus=8, up=True),
        ),
    )
]


def laid(sizes: str, **typed: str) -> JobRequest:
    options = replace(SubmitOptions(gpus="4", sizes=sizes), **typed)  # type: ignore[arg-type]
    request = check(options, sbatch=(), command=("x",), cwd="/w", dlrun="/d")
    wanted = job_shape.choose(
        SITE, gpus=request.gpus, gpu_type=request.gpu_type, nodes=request.nodes
    )
    return lay_out(request, wanted, SITE)


@pytest.mark.parametrize(
    ("sizes", "typed", "expected", "asked"),
    [
        ("8,2,1,2", {}, "1x1,1x2,1x4,1x8", "1x4"),
        ("8,16", {"gpu_type": "a100"}, "1x4,2x4,4x4", "1x4"),
        ("1,4,2x4,4x2", {"nodes": "2"}, "1x1,2x2,2x4,4x2", "2x2"),
        ("4x1,1x4", {"gpus": "1"}, "1x1,1x4,4x1", "1x1"),
    ],
)
def test_how_sizes_are_laid(sizes: str, typed: dict[str, str], expected: str, asked: str) -> None:
    """A number on the fewest nodes, fewest GPUs first; what --gpus asks for is one of them."""
    request = laid(sizes, **typed)

    assert ",".join(map(str, request.sizes)) == expected
    ours = json.loads(request.comment)["slurm_dl"]
    assert (ours["sizes"], ours["asked"], ours.get("batch")) == (expected, asked, None)
    assert json.loads(laid(sizes, batch="gpu", **typed).comment)["slurm_dl"]["batch"] == "gpu"


@pytest.mark.parametrize(
    ("sizes", "typed", "message"),
    [
        ("2,15", {"gpu_type": "a100"}, "--sizes: 15: 15 a100 GPUs .*; 12 or 16 would fit"),
        ("5x4", {}, "--sizes: 5x4: 20 GPUs on 5 nodes .*; fewer nodes would fit"),
        ("2x8", {}, "--sizes: 2x8: 16 GPUs on 2 nodes .*; 2x4 or 4x4 would fit"),
        (",".join(f"1x{n}" for n in range(1, 9)), {"comment": "y" * 380}, "name fewer"),
    ],
)
def test_sizes_that_do_not_fit(sizes: str, typed: dict[str, str], message: str) -> None:
    """Those of them, and others that would, as in --sizes; or too many for the comment."""
    with pytest.raises(ConfigError, match=message) as caught:
        laid(sizes, **typed)

    assert "--gpus=" not in str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "gpu_type", "each", "types"),
    [("1,8", None, 1, ("a100", "h100")), ("2x2", "a100", 2, ("a100",))],
)
def test_the_least_share_of_a_node(
    sizes: str, gpu_type: str | None, each: int, types: tuple[str, ...]
) -> None:
    """By it the nodes are found whose CPUs and memory count."""
    typed = {} if gpu_type is None else {"gpu_type": gpu_type}
    wanted = job_shape.choose(SITE, gpus=4, gpu_type=gpu_type, nodes=None)

    least = least_of(laid(sizes, **typed), wanted, SITE)

    assert (least.gpus_per_node, least.types) == (each, types)
