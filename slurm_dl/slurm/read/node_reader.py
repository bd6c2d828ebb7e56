"""Nodes, partitions and topology, read from Slurm's tools, and all that is not the queue.

They change seldom, so they are read apart from the queue: see `SlurmCluster.refresh_nodes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slurm_dl.model.jobs import Bool
from slurm_dl.model.nodes import Nodes
from slurm_dl.slurm.read.hostlists import NO_WORDS, expand
from slurm_dl.slurm.read.record_parser import output_format, split_records
from slurm_dl.slurm.read.reservation_reader import ReservationSeen
from slurm_dl.slurm.read.tres import Gres, parse_gres
from slurm_dl.slurm.read.vocabulary import is_number
from slurm_dl.slurm.running_config import SiteConfig

NODE_FIELDS = (
    "NodeList",
    "StateComplete",
    "Partition",
    "CPUs",
    "Memory",
    "Gres",
    "features_act",
)

_MOST_CPUS = 2**31 - 1

# Words of StateComplete, "base+flag+flag". A node that is powered down or planned for a job is
# up: jobs may start there. So is one in a reservation; foreign ones are looked up by name.
_UP_BASES = frozenset({"idle", "mixed", "allocated"})
_OCCUPIED = frozenset({"allocated", "mixed", "completing"})
_DOWN_FLAGS = frozenset(
    {
        "drain",
        "fail",
        "invalid_reg",
        "maintenance",
        "not_responding",
        "powering_down",
        "reboot_issued",
        "reboot_requested",
        "reboot",
    }
)

_LEAF = re.compile(r"^(?:SwitchName=\S+ Level=0 .*?|BlockName=\S+ .*?)\bNodes=(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, eq=False)
class ClusterReading:
    """Everything that is not the queue, as of one reading.

    Attributes:
        row: Row in *nodes* by node name.
        features: Active features of each node, in the order of *nodes*.
        partition_row: Index in *partitions* by name.
        shards_per_gpu: How many ``gres/shard`` make a GPU here; 0 if there are none.
        mps_per_gpu: The same for ``gres/mps``.
        sharable: ``(m,)`` bool, nodes that hand out shares of their GPUs.
        occupied: State of each node that jobs hold (allocated, mixed or completing), by its name.
        unreadable: Node records left out.
    """

    nodes: Nodes
    row: Mapping[str, int]
    features: tuple[frozenset[str], ...]
    partitions: tuple[str, ...]
    partition_row: Mapping[str, int]
    node_in: Bool
    shards_per_gpu: float
    mps_per_gpu: float
    sharable: Bool
    occupied: Mapping[str, str]
    config: SiteConfig
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """One node as sinfo tells it."""

    state: str
    cpus: int
    mem_mb: int
    gres: Gres
    features: frozenset[str]


@dataclass(frozen=True, slots=True)
class NodesSeen:
    """What one sinfo call told.

    Attributes:
        nodes: By name.
        members: Names of the nodes in each partition, by its name.
        unreadable: Records left out.
    """

    nodes: Mapping[str, NodeSeen]
    members: Mapping[str, frozenset[str]]
    unreadable: int


def is_up(state: str) -> bool:
    """Whether jobs may start on a node in *state* (sinfo's StateComplete).

    A node that has not registered since slurmctld started is ``unknown``: not up.
    """
    base, *flags = state.lower().split("+")
    return base in _UP_BASES and _DOWN_FLAGS.isdisjoint(flags)


def node_arguments(nonce: str) -> tuple[str, ...]:
    """Arguments for sinfo that list each node in each partition, separated by *nonce*."""
    fields = output_format(NODE_FIELDS, nonce)
    return ("--noheader", "--all", "--local", "--Node", f"--Format={fields}")


def read_nodes(sinfo: str, nonce: str) -> NodesSeen:
    """Nodes and partitions out of ``sinfo -N`` in the form of `NODE_FIELDS` and *nonce*.

    Raises:
        ClusterError: The output is cut short or unreadable.
    """
    records, unreadable = split_records(sinfo, nonce, len(NODE_FIELDS))
    nodes: dict[str, NodeSeen] = {}
    members: dict[str, set[str]] = {}
    for name, state, partition, cpus, mem_mb, gres, features in records:
        if not (is_number(cpus) and is_number(mem_mb) and int(cpus) <= _MOST_CPUS):
            unreadable += 1
            continue
        active = frozenset(features.split(",")) - NO_WORDS
        node = NodeSeen(state, int(cpus), int(mem_mb), parse_gres(gres), active)
        for one in expand(name):
            nodes[one] = node
            members.setdefault(partition.removesuffix("*"), set()).add(one)
    return NodesSeen(
        nodes=nodes,
        members={name: frozenset(inside) for name, inside in sorted(members.items()) if name},
        unreadable=unreadable,
    )


def site_of(
    seen: NodesSeen,
    *,
    topology: str,
    reservations: tuple[ReservationSeen, ...],
    config: SiteConfig,
    type_row: dict[str, int],
) -> ClusterReading:
    """Put together what the tools said.

    Args:
        topology: Output of ``scontrol show topology``.
        reservations: Nodes of active ones that are not ours count as not up.
        type_row: Index of each GPU type; new ones are added to it.

    Raises:
        ClusterError: A node list in the topology cannot be read.
    """
    nodes = seen.nodes
    leaves = _leaves(topology)
    # A node in no leaf is in a group of its own beside them.
    elsewhere = max(leaves.values(), default=-1) + 1
    taken = {n for r in reservations if r.active and not r.is_ours for n in r.nodes}
    for node in nodes.values():
        if node.gres.gpu_type:
            type_row.setdefault(node.gres.gpu_type, len(type_row))
    partitions = tuple(seen.members)
    node_in = np.array(
        [[name in seen.members[partition] for name in nodes] for partition in partitions], np.bool_
    ).reshape(len(partitions), len(nodes))
    node_in.setflags(write=False)
    return ClusterReading(
        nodes=Nodes(
            name=tuple(nodes),
            up=np.array([is_up(n.state) and k not in taken for k, n in nodes.items()], np.bool_),
            gpus=np.array([n.gres.gpus for n in nodes.values()], np.float64),
            gpu_type=np.array(
                [type_row.get(n.gres.gpu_type, -1) for n in nodes.values()], np.int16
            ),
            cpus=np.array([n.cpus for n in nodes.values()], np.int32),
            mem_mb=np.array([n.mem_mb for n in nodes.values()], np.int64),
            leaf=np.array([leaves.get(name, elsewhere) for name in nodes], np.int16),
        ),
        row={name: i for i, name in enumerate(nodes)},
        features=tuple(n.features for n in nodes.values()),
        partitions=partitions,
        partition_row={p: i for i, p in enumerate(partitions)},
        node_in=node_in,
        shards_per_gpu=_per_gpu([(n.gres.shards, n.gres.gpus) for n in nodes.values()]),
        mps_per_gpu=_per_gpu([(n.gres.mps, n.gres.gpus) for n in nodes.values()]),
        sharable=_column([n.gres.shards > 0 for n in nodes.values()]),
        occupied={
            name: node.state
            for name, node in nodes.items()
            if not _OCCUPIED.isdisjoint(node.state.lower().split("+"))
        },
        config=config,
        unreadable=seen.unreadable,
    )


def _column(values: list[bool]) -> Bool:
    column = np.array(values, np.bool_)
    column.setflags(write=False)
    return column


def _per_gpu(counts: list[tuple[float, float]]) -> float:
    with_both = [(shares, gpus) for shares, gpus in counts if shares and gpus]
    gpus = sum(g for _, g in with_both)
    return sum(s for s, _ in with_both) / gpus if gpus else 0.0


def _leaves(topology: str) -> dict[str, int]:
    """Leaf switch or block of each node, numbered as Slurm lists them."""
    return {
        name: leaf for leaf, nodes in enumerate(_LEAF.findall(topology)) for name in expand(nodes)
    }
