"""Half a GPU: a job that shares one, at its owner's wish, with one other such job.

Slurm divides a GPU into shards (``gres/shard``). A job here asks for exactly half of them, so that
two jobs fill a GPU and a third never joins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_dl.model.errors import ConfigError
from slurm_dl.submit.job_shape import GpuNode, GpuPartition, check_type
from slurm_dl.submit.sbatch_options import given

_HALVES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfGpu:
    """What is asked of Slurm."""

    shards: int  # Half the shards of one GPU
    gpu_type: str | None  # Type of the nodes' GPUs; None if they have several, or none is named
    types: tuple[str, ...]  # Types of the GPUs that can be shared
    enough_up: bool  # A node with such GPUs is up
    nodes: int = 1
    gpus: int = 1

    @property
    def request(self) -> str:
        """The value of ``--gres``."""
        return f"shard:{self.shards}"

    def may_use(self, node: GpuNode) -> bool:
        """It may lie on *node*."""
        return bool(node.shards) and node.gpu_type in self.types


def choose(partitions: Sequence[GpuPartition], *, gpu_type: str | None) -> HalfGpu:
    """Half a GPU in *partitions*.

    Raises:
        ConfigError: Their GPUs cannot be shared, or not in halves, or not by one number of shards.
    """
    check_type(partitions, gpu_type)
    names = ",".join(partition.name for partition in partitions)
    shared = [node for partition in partitions for node in partition.nodes if node.shards]
    if not shared:
        msg = (
            f"--share: the GPUs of {names} have no shards, so Slurm cannot share them; leave"
            " --share out, or give another --partition"
        )
        raise ConfigError(msg)
    types = tuple(sorted({node.gpu_type for node in shared}))
    if gpu_type is not None and types != (gpu_type,):
        # A request for shards names no type, and Slurm takes any node that has enough of them.
        msg = (
            f"--share: not all GPUs of {names} that can be shared are {gpu_type}; leave the type"
            " out, or give a --partition that has no others"
        )
        raise ConfigError(msg)
    each = {_shards_of_one_gpu(node) for node in shared}
    if len(each) > 1:
        counts = " and ".join(f"{shards:g}" for shards in sorted(each))
        msg = (
            f"--share: the GPUs of {names} have {counts} shards each, and half of one is not half"
            " of the other; give a --partition whose nodes are alike"
        )
        raise ConfigError(msg)
    shards = each.pop()
    if shards % _HALVES:
        msg = (
            f"--share: a GPU of {names} has {shards:g} shard{'s' if shards > 1 else ''}, which is"
            " no two halves; ask the admin for an even number of shards for each GPU"
        )
        raise ConfigError(msg)
    return HalfGpu(
        shards=int(shards) // _HALVES,
        gpu_type=gpu_type,
        types=types,
        enough_up=any(node.up for node in shared),
    )


def _shards_of_one_gpu(node: GpuNode) -> float:
    gpus = node.gpus if node.host is None else node.host.gpus
    return node.shards / gpus


def of_request(cpus: str, sbatch: Sequence[str]) -> tuple[str, Sequence[str]]:
    """CPUs and options without what Slurm refuses beside shards, where it counts no GPU.

    Measured on 22.05.8.
    """
    if given(sbatch, {"mem-per-gpu"}):
        msg = (
            "--mem-per-gpu cannot go with --share, where Slurm counts no GPU; give the memory of"
            " the whole job, such as --mem=8G"
        )
        raise ConfigError(msg)
    each = [option for option in sbatch if option.startswith("--cpus-per-gpu=")]
    if not each or cpus not in {"auto", "none"}:
        return cpus, sbatch
    return each[-1].partition("=")[2], [option for option in sbatch if option not in each]
