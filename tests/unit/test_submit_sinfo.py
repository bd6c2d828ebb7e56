"""sinfo's answer becomes partitions, whatever the nodes carry."""

from __future__ import annotations

import pytest

from slurm_dl.model.errors import ConfigError
from slurm_dl.submit.job_shape import GpuNode, GpuPartition, HalfGpu, choose_half
from slurm_dl.submit.slurm_calls import parse_partitions

SINFO = """\
gpu*|idle|gpu:a100:4(S:0,1)
gpu*|mixed|gpu:a100:4(S:0-1),lustre:1
gpu*|drained*|gpu:a100:4
gpu*|idle~|gpu:4
big|planned|gpu:h100:8,gpu:a100:2
big|down|gpu:h100:8
cpu|idle|(null)
"""


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        ("(null)", {}),
        ("", {}),
        ("gpu:4", {"": 4}),
        ("gpu:a100:4", {"a100": 4}),
        ("gpu:a100:4(S:0,1),gpu:v100:2(S:1),shard:8", {"a100": 4, "v100": 2}),
        ("gpu:a100:no_consume:4", {"a100": 4}),
        ("gpu:a100:2,gpu:a100:2", {"a100": 4}),
        ("gpu:0,gpu:x:0", {}),
        ("gpu:,mps:200,gpu_mem:3", {}),
    ],
)
def test_gres(gres: str, expected: dict[str, int]) -> None:
    """Only whole GPUs count, by type."""
    nodes = parse_partitions(f"gpu|idle|{gres}").by_name["gpu"].nodes

    assert {node.gpu_type: node.gpus for node in nodes} == expected


def test_partitions() -> None:
    """Nodes by partition, the default marked, and only nodes that take jobs are up."""
    read = parse_partitions(SINFO)

    assert read.default == "gpu"
    assert [n.up for n in read.by_name["gpu"].nodes] == [True, True, False, True]
    assert read.by_name["gpu"].nodes[3] == GpuNode(gpu_type="", gpus=4, up=True)
    assert read.by_name["big"].nodes == (
        GpuNode(gpu_type="h100", gpus=8, up=True),
        GpuNode(gpu_type="a100", gpus=2, up=True),
        GpuNode(gpu_type="h100", gpus=8, up=False),
    )
    assert read.by_name["cpu"].nodes == ()


@pytest.mark.parametrize(
    ("state", "up"),
    [
        ("allocated#", True),
        ("reserved", True),
        ("maint", True),
        ("completing", True),
        ("idle*", False),
        ("down$", False),
        ("draining", False),
        ("drained", False),
        ("unknown*", False),
        ("inval", False),
        ("", False),
        ("IDLE?", False),
    ],
)
def test_states(state: str, up: bool) -> None:  # noqa: FBT001
    """A node is up if it takes jobs now or when it is free; what is not understood is not."""
    assert parse_partitions(f"gpu|{state}|gpu:1").by_name["gpu"].nodes[0].up is up


def test_selecting() -> None:
    """The default partition if none is named; a name that does not exist is refused."""
    read = parse_partitions(SINFO)

    assert [p.name for p in read.select(())] == ["gpu"]
    assert [p.name for p in read.select(("cpu", "big"))] == ["cpu", "big"]
    with pytest.raises(ConfigError, match="no partition 'nope'; there are: big, cpu, gpu"):
        read.select(("big", "nope"))
    with pytest.raises(ConfigError, match="no partition is the default here"):
        parse_partitions("a|idle|gpu:1").select(())


def part(*gres: str) -> GpuPartition:
    lines = (f"gpu*|idle|{text}|n{i}|16|64000|UNLIMITED|1\n" for i, text in enumerate(gres))
    return parse_partitions("".join(lines)).by_name["gpu"]


def test_half_the_shards_of_one_gpu() -> None:
    """Nodes without shards do not matter: Slurm does not put the job there."""
    half = choose_half([part("gpu:a100:4,shard:a100:16(S:0)", "gpu:v100:4")], gpu_type=None)

    assert half == HalfGpu(shards=2, gpu_type=None, types=("a100",), enough_up=True)
    assert half.request == "shard:2"


@pytest.mark.parametrize(
    ("gres", "gpu_type", "message"),
    [
        (("gpu:4",), None, "the GPUs of gpu have no shards, so Slurm cannot share them; leave"),
        (("gpu:4,shard:4",), None, "has 1 shard, which is no two halves; ask the admin"),
        (("gpu:4,shard:12",), None, "has 3 shards, which is no two halves"),
        (("gpu:4,shard:6",), None, "has 1.5 shards, which is no two halves"),
        (("gpu:4,shard:8", "gpu:2,shard:8"), None, "have 2 and 4 shards each"),
        (
            ("gpu:a:4,shard:8", "gpu:b:4,shard:8"),
            "a",
            "not all GPUs of gpu that can be shared are a",
        ),
        (("gpu:a:4,shard:8",), "b", "there are no GPUs of type b"),
    ],
)
def test_what_cannot_be_halved(gres: tuple[str, ...], gpu_type: str | None, message: str) -> None:
    """Each says what to do."""
    with pytest.raises(ConfigError, match=message):
        choose_half([part(*gres)], gpu_type=gpu_type)
