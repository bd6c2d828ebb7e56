"""Which nodes a job asks for: the fewest that hold its GPUs evenly, and those of several sizes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.model.errors import ConfigError
from slurm_dl.submit import job_shape
from slurm_dl.submit.job_extras import lay_out, least_of
from slurm_dl.submit.job_request import JobRequest, SubmitOptions, check
from slurm_dl.submit.job_shape import GpuNode, GpuPartition, choose


def nodes(count: int, gpus: int, gpu_type: str = "a100", *, up: bool = True) -> list[GpuNode]:
    return [GpuNode(gpu_type=gpu_type, gpus=gpus, up=up)] * count


def part(*groups: list[GpuNode], name: str = "gpu") -> GpuPartition:
    return GpuPartition(name=name, nodes=tuple(n for group in groups for n in group))


FOUR_BY_FOUR = part(nodes(4, 4))
MIXED = part(nodes(2, 8, "h100"), nodes(4, 4, "a100"), nodes(1, 2, ""))


@pytest.mark.parametrize(
    ("partition", "gpus", "gpu_type", "asked", "expected"),
    [
        (FOUR_BY_FOUR, 1, None, None, (1, 1)),
        (FOUR_BY_FOUR, 3, None, None, (1, 3)),
        (FOUR_BY_FOUR, 4, None, None, (1, 4)),
        (FOUR_BY_FOUR, 6, None, None, (2, 3)),
        (FOUR_BY_FOUR, 9, None, None, (3, 3)),
        (FOUR_BY_FOUR, 16, None, None, (4, 4)),
        (FOUR_BY_FOUR, 8, None, 4, (4, 2)),
        (FOUR_BY_FOUR, 4, "a100", 2, (2, 2)),
        (MIXED, 16, None, None, (2, 8)),
        (MIXED, 16, "a100", None, (4, 4)),
        (MIXED, 12, None, None, (2, 6)),
        (MIXED, 2, "", None, (1, 2)),
    ],
)
def test_fewest_nodes(
    partition: GpuPartition,
    gpus: int,
    gpu_type: str | None,
    asked: int | None,
    expected: tuple[int, int],
) -> None:
    """The widest nodes are used first, and every node gives as many GPUs as the others."""
    shape = choose([partition], gpus=gpus, gpu_type=gpu_type, nodes=asked)

    assert (shape.nodes, shape.gpus_per_node) == expected


@pytest.mark.parametrize(
    ("partition", "gpus", "gpu_type", "asked", "words"),
    [
        (FOUR_BY_FOUR, 17, None, None, "17 GPUs |; --gpus=16 would fit"),
        (FOUR_BY_FOUR, 7, "a100", None, "7 a100 GPUs |; --gpus=6 or --gpus=8 would fit"),
        (FOUR_BY_FOUR, 8, None, 3, "on 3 nodes |; --gpus=6 or --gpus=9 or --nodes=2 would fit"),
        (FOUR_BY_FOUR, 8, None, 8, "8 GPUs on 8 nodes |4 nodes x 4 a100; --nodes=2 would fit"),
        (MIXED, 4, "v100", None, "type v100: |1 node x 2 untyped, 4 nodes x 4 a100, 2 nodes x 8"),
        (part(name="cpu"), 1, None, None, "partition cpu has no GPUs; give --partition"),
        (part(nodes(1, 2, up=False), nodes(1, 2)), 8, None, None, "2 nodes x 2 a100, 1 up; |=4 "),
    ],
)
def test_what_does_not_fit_says_what_would(
    partition: GpuPartition, gpus: int, gpu_type: str | None, asked: int | None, words: str
) -> None:
    """The refusal names what the partition has and the nearest that fits."""
    with pytest.raises(ConfigError) as caught:
        choose([partition], gpus=gpus, gpu_type=gpu_type, nodes=asked)

    assert [part for part in words.split("|") if part not in str(caught.value)] == []


def test_a_job_never_needs_two_partitions_at_once() -> None:
    """Of several partitions one has to hold the whole job."""
    first, second = part(nodes(2, 4), name="a"), part(nodes(3, 4), name="b")

    assert choose([first, second], gpus=12, gpu_type=None, nodes=None).nodes == 3
    with pytest.raises(ConfigError, match=r"partition a has .*; partition b has "):
        choose([first, second], gpus=16, gpu_type=None, nodes=None)


partitions = st.lists(
    st.builds(
        GpuNode,
        gpu_type=st.sampled_from(["a100", "v100"]),
        gpus=st.integers(1, 8),
        up=st.booleans(),
    ),
    min_size=1,
    max_size=10,
).map(part)


@given(partitions, st.integers(1, 40), st.sampled_from([None, "a100"]))
def test_the_shape_is_the_best_of_all_that_fit(
    partition: GpuPartition, gpus: int, gpu_type: str | None
) -> None:
    """Against every shape there is: fewest nodes, one type, enough of them, up ones first."""
    fitting = [
        (not only_up, n, kind)
        for only_up in (True, False)
        for n in range(1, gpus + 1)
        for kind in ({"a100", "v100"} if gpu_type is None else {gpu_type})
        if gpus % n == 0
        and sum(
            node.gpus * n >= gpus
            for node in partition.nodes
            if node.gpu_type == kind and (node.up or not only_up)
        )
        >= n
    ]
    try:
        shape = choose([partition], gpus=gpus, gpu_type=gpu_type, nodes=None)
    except ConfigError:
        assert not fitting
        return

    best = min(fitting)[:2]
    assert (not shape.enough_up, shape.nodes) == best
    assert shape.types == tuple(sorted(kind for *rest, kind in fitting if (*rest,) == best))
    assert shape.gpus == gpus


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
