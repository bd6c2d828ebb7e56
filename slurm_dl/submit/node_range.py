"""A job whose GPUs may lie on any number of nodes in a range, as Slurm finds them free.

Measured on Slurm 22.05.8: ``--nodes=1-4 --gpus=8`` takes what is left on several nodes, 3 + 3 + 2
for instance, and is refused by some releases if it also says ``--ntasks-per-node``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slurm_dl.model.errors import ConfigError
from slurm_dl.submit.job_shape import GpuNode, GpuPartition, check_type, inventory, with_type


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRange:
    """What is asked of Slurm."""

    nodes: int  # Fewest nodes, at least 1
    most_nodes: int  # Most nodes, above *nodes*
    gpus: int  # GPUs of the whole job; Slurm shares them out
    gpu_type: str | None  # Type that is asked for; None if any will do
    types: tuple[str, ...]  # Types of which there are enough
    enough_up: bool  # Enough of them are on nodes that are up

    @property
    def request(self) -> str:
        """The value of ``--gpus``."""
        return with_type(self.gpu_type, self.gpus)

    def may_use(self, node: GpuNode) -> bool:
        """Some of its GPUs may lie on *node*."""
        return node.gpu_type in self.types


def choose(
    partitions: Sequence[GpuPartition],
    *,
    gpus: int,
    gpu_type: str | None,
    least: int,
    most: int,
) -> NodeRange:
    """The shape of a job of *gpus* GPUs on *least* to *most* nodes of one of *partitions*.

    Raises:
        ConfigError: It does not fit; the message says what there is.
    """
    check_type(partitions, gpu_type)
    for only_up in (True, False):
        types = tuple(
            sorted(
                set(
                    _types_that_fit(
                        _nodes(partitions, only_up=only_up), gpus, gpu_type, least, most
                    )
                )
            )
        )
        if types:
            return NodeRange(
                nodes=least,
                most_nodes=most,
                gpus=gpus,
                gpu_type=gpu_type,
                types=types,
                enough_up=only_up,
            )
    msg = (
        f"{gpus} {gpu_type + ' ' if gpu_type else ''}GPUs do not fit on {least} to {most} nodes:"
        f" {inventory(partitions)}; ask for fewer GPUs, or for more nodes in --nodes=MIN-MAX"
    )
    raise ConfigError(msg)


def _nodes(partitions: Sequence[GpuPartition], *, only_up: bool) -> list[list[GpuNode]]:
    return [[n for n in partition.nodes if n.up or not only_up] for partition in partitions]


def _types_that_fit(
    of_partitions: Sequence[Sequence[GpuNode]],
    gpus: int,
    gpu_type: str | None,
    least: int,
    most: int,
) -> Iterator[str]:
    """Types of which one partition has *gpus* GPUs on *most* nodes, and *least* nodes at all."""
    for nodes in of_partitions:
        for name in {node.gpu_type for node in nodes}:
            wide = sorted((n.gpus for n in nodes if n.gpu_type == name), reverse=True)
            if gpu_type in {None, name} and len(wide) >= least and sum(wide[:most]) >= gpus:
                yield name
