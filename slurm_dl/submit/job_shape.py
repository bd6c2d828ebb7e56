"""How many nodes with how many GPUs each: the fewest nodes that hold the job evenly.

Pure: partitions in, shape out. Jobs that say a range of nodes or share a GPU have shapes of their
own, in `node_range` and `half_gpu`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_dl.model.errors import ConfigError
from slurm_dl.placement.synergy import Host
from slurm_dl.text import in_other_case

UNTYPED = "untyped"
"""How GPUs without a type are called in messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNode:
    """GPUs of one type on one node; a node with two types counts twice."""

    gpu_type: str  # Its type; empty if Slurm knows none
    gpus: int  # How many, at least 1
    up: bool  # Jobs may start there now or when it is free
    name: str = ""  # The node's name; empty if it is not known
    shards: int = 0  # ``gres/shard`` of the whole node
    host: Host | None = None  # What the whole node has for jobs; None if it is not known
    threads: int = 1  # CPUs of one core: Slurm gives no part of a core


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPartition:
    """A partition and its GPUs."""

    name: str
    nodes: tuple[GpuNode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape:
    """What is asked of Slurm."""

    nodes: int  # Nodes, at least 1
    gpus_per_node: int  # GPUs on each, at least 1
    gpu_type: str | None  # Type that is asked for; None if any will do
    types: tuple[str, ...]  # Types of which enough nodes exist
    enough_up: bool  # Enough of those nodes are up

    @property
    def gpus(self) -> int:
        """GPUs of the whole job."""
        return self.nodes * self.gpus_per_node

    @property
    def request(self) -> str:
        """The value of ``--gpus-per-node``."""
        return with_type(self.gpu_type, self.gpus_per_node)

    def may_use(self, node: GpuNode) -> bool:
        """A share of the job fits on *node* when it is empty."""
        return node.gpu_type in self.types and node.gpus >= self.gpus_per_node


def with_type(gpu_type: str | None, gpus: int) -> str:
    """GPUs in Slurm's words, ``a100:4`` or ``4``."""
    return f"{gpus}" if gpu_type is None else f"{gpu_type}:{gpus}"


def choose(
    partitions: Sequence[GpuPartition], *, gpus: int, gpu_type: str | None, nodes: int | None
) -> JobShape:
    """The shape of a job of *gpus* GPUs in one of *partitions*, all nodes of one GPU type.

    Nodes that are down count only if no shape fits the nodes that are up: the job then waits.

    Args:
        partitions: Where it may run; at least one.
        gpus: GPUs of the whole job.
        gpu_type: Only this type; None for any.
        nodes: Exactly so many nodes; None for the fewest.

    Raises:
        ConfigError: No shape fits; the message says what there is and what would fit.
    """
    check_type(partitions, gpu_type)
    shape = _fit(partitions, gpus, gpu_type, nodes)
    if shape is not None:
        return shape
    raise ConfigError(_refusal(partitions, gpus, gpu_type, nodes))


def check_type(partitions: Sequence[GpuPartition], gpu_type: str | None) -> None:
    """Refuse a type of GPU that none of *partitions* has, or partitions without GPUs.

    Raises:
        ConfigError: There are none.
    """
    if not _types(partitions):
        msg = f"{_names(partitions)} has no GPUs; give --partition"
        raise ConfigError(msg)
    if gpu_type is not None and gpu_type not in _types(partitions):
        hint = in_other_case(gpu_type, sorted(_types(partitions)))
        msg = f"there are no GPUs of type {gpu_type}: {inventory(partitions)}{hint}"
        raise ConfigError(msg)


def _fit(
    partitions: Sequence[GpuPartition], gpus: int, gpu_type: str | None, nodes: int | None
) -> JobShape | None:
    most = max(len(p.nodes) for p in partitions)
    counts = [n for n in range(1, min(gpus, most) + 1) if gpus % n == 0]
    if nodes is not None:
        counts = [n for n in counts if n == nodes]
    for only_up in (True, False):
        for n in counts:
            types = _types_that_fit(partitions, n, gpus // n, gpu_type, only_up=only_up)
            if types:
                return JobShape(
                    nodes=n,
                    gpus_per_node=gpus // n,
                    gpu_type=gpu_type,
                    types=types,
                    enough_up=only_up,
                )
    return None


def _types_that_fit(
    partitions: Iterable[GpuPartition],
    nodes: int,
    each: int,
    gpu_type: str | None,
    *,
    only_up: bool,
) -> tuple[str, ...]:
    """GPU types of which one partition has *nodes* nodes with *each* GPUs or more."""
    fitting: set[str] = set()
    for partition in partitions:
        wide_enough = Counter(
            node.gpu_type
            for node in partition.nodes
            if node.gpus >= each and (node.up or not only_up)
        )
        fitting |= {t for t, n in wide_enough.items() if n >= nodes and gpu_type in {None, t}}
    return tuple(sorted(fitting))


def _types(partitions: Iterable[GpuPartition]) -> set[str]:
    return {node.gpu_type for partition in partitions for node in partition.nodes}


def _refusal(
    partitions: Sequence[GpuPartition], gpus: int, gpu_type: str | None, nodes: int | None
) -> str:
    wanted = f"{gpus} {gpu_type + ' ' if gpu_type else ''}GPU{'s' if gpus > 1 else ''}"
    if nodes is not None:
        wanted += f" on {nodes} node{'s' if nodes > 1 else ''}"
    if nodes is not None and gpus % nodes:
        why = "cannot be shared out evenly"
    else:
        why = "do not fit evenly" if gpus > 1 else "does not fit"
    return f"{wanted} {why}: {inventory(partitions)}; {_hint(partitions, gpus, gpu_type, nodes)}"


def _hint(
    partitions: Sequence[GpuPartition], gpus: int, gpu_type: str | None, nodes: int | None
) -> str:
    """What would fit: the nearest counts of GPUs, or the same count on other nodes."""
    total = max(sum(node.gpus for node in partition.nodes) for partition in partitions)
    below = next(
        (n for n in range(min(gpus - 1, total), 0, -1) if _fits(partitions, n, gpu_type, nodes)), 0
    )
    above = next(
        (n for n in range(gpus + 1, total + 1) if _fits(partitions, n, gpu_type, nodes)), 0
    )
    options = [f"--gpus={n}" for n in (below, above) if n]
    other = _fit(partitions, gpus, gpu_type, None) if nodes is not None else None
    if other is not None:
        options.append(f"--nodes={other.nodes}")
    return f"{' or '.join(options)} would fit" if options else "fewer --nodes would fit"


def _fits(
    partitions: Sequence[GpuPartition], gpus: int, gpu_type: str | None, nodes: int | None
) -> bool:
    return _fit(partitions, gpus, gpu_type, nodes) is not None


def _names(partitions: Sequence[GpuPartition]) -> str:
    word = "partition" if len(partitions) == 1 else "partitions"
    return f"{word} {','.join(p.name for p in partitions)}"


def inventory(partitions: Sequence[GpuPartition]) -> str:
    """What the partitions have, in words."""
    return "; ".join(f"partition {p.name} has {_contents(p)}" for p in partitions)


def _contents(partition: GpuPartition) -> str:
    kinds = Counter((node.gpu_type, node.gpus) for node in partition.nodes)
    up = Counter((node.gpu_type, node.gpus) for node in partition.nodes if node.up)
    parts = []
    for (gpu_type, gpus), n in sorted(kinds.items()):
        down = "" if up[gpu_type, gpus] == n else f", {up[gpu_type, gpus]} up"
        parts.append(f"{n} node{'s' if n > 1 else ''} x {gpus} {gpu_type or UNTYPED}{down}")
    return ", ".join(parts) or "no GPUs"
