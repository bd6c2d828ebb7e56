"""Half a GPU: as many shards as make two jobs fill it, or a reason why not."""

from __future__ import annotations

import pytest

from slurm_dl.model.errors import ConfigError
from slurm_dl.submit.job_shape import GpuPartition, HalfGpu, choose_half
from slurm_dl.submit.slurm_calls import parse_partitions


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
