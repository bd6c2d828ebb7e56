"""How many nodes with how many GPUs each: the fewest nodes that hold the job evenly.

Pure: partitions in, shape out. A `NodeRange` and a `HalfGpu` are the other shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from slurm_dl.model.errors import ConfigError
from slurm_dl.placement.synergy import Host
from slurm_dl.submit.sbatch_options import given
from slurm_dl.text import in_other_case

UNTYPED = "untyped"  # How GPUs without a type are called in messages


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
    more: tuple[JobShape, ...] = ()  # Further components of a heterogeneous job

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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRange:
    """A job whose GPUs may lie on any number of nodes in a range, as Slurm finds them free.

    Measured on Slurm 22.05.8: ``--nodes=1-4 --gpus=8`` takes what is left on several nodes,
    3 + 3 + 2 for instance, and is refused by some releases if it also says ``--ntasks-per-node``.
    """

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


def choose_range(
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
                    _types_in_range(
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


def _types_in_range(
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


_HALVES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfGpu:
    """A job that shares one GPU, at its owner's wish, with one other such job.

    Slurm divides a GPU into shards (``gres/shard``). A job here asks for exactly half of them, so
    that two jobs fill a GPU and a third never joins.
    """

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


def choose_half(partitions: Sequence[GpuPartition], *, gpu_type: str | None) -> HalfGpu:
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
