"""Nodes, partitions, topology, reservations and a few settings, read from Slurm's tools.

They change seldom, so they are read apart from the queue: see `SlurmCluster.refresh_nodes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from ClusterShell.NodeSet import NodeSet, NodeSetException

from slurm_dl.backends.slurm.command import printable
from slurm_dl.backends.slurm.records import split_records
from slurm_dl.backends.slurm.tres import Gres, parse_gres
from slurm_dl.backends.slurm.versions import Release, parse_release
from slurm_dl.backends.slurm.words import epoch_s
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import RESERVATION_PREFIX
from slurm_dl.model.jobs import Bool
from slurm_dl.model.nodes import Nodes

NODE_FIELDS = ("NodeList", "StateComplete", "Partition", "CPUs", "Memory", "Gres")

# Words of StateComplete, "base+flag+flag". A node that is powered down or planned for a job is
# up: jobs may start there. So is one in a reservation; foreign ones are looked up by name.
_UP_BASES = frozenset({"idle", "mixed", "allocated"})
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
_RESERVATION = re.compile(
    r"^ReservationName=(?P<name>\S+) StartTime=\S+ EndTime=(?P<end>\S+) .*?"
    r" Nodes=(?P<nodes>\S*) .*? State=(?P<state>\S+)"
)


@dataclass(frozen=True, slots=True)
class ReservationSeen:
    """One reservation, ours or not."""

    name: str
    end_s: float
    nodes: tuple[str, ...]
    active: bool

    @property
    def is_ours(self) -> bool:
        """Its name begins as all of ours do."""
        return self.name.startswith(RESERVATION_PREFIX)


@dataclass(frozen=True, slots=True)
class SiteConfig:
    """What of slurm.conf the reader must know."""

    release: Release
    tracks_memory: bool


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """Everything that is not the queue, as of one reading.

    Attributes:
        row: Row in *nodes* by node name.
        partition_row: Index in *partitions* by name.
        shards_per_gpu: How many ``gres/shard`` make a GPU here; 0 if there are none.
        mps_per_gpu: The same for ``gres/mps``.
        unreadable: Node records left out.
    """

    nodes: Nodes
    row: Mapping[str, int]
    partitions: tuple[str, ...]
    partition_row: Mapping[str, int]
    node_in: Bool
    gpu_types: tuple[str, ...]
    shards_per_gpu: float
    mps_per_gpu: float
    config: SiteConfig
    unreadable: int = 0


@dataclass(slots=True)
class _Node:
    state: str
    cpus: int
    mem_mb: int
    gres: Gres


def expand(nodes: str) -> tuple[str, ...]:
    """The names in a Slurm node list, in its order.

    Raises:
        ClusterError: It is no node list.
    """
    if "[" not in nodes and "," not in nodes:
        return (nodes,) if nodes and nodes not in {"(null)", "None", "N/A"} else ()
    try:
        return tuple(NodeSet(nodes))
    except NodeSetException as err:
        msg = f"node list {printable(nodes)[:80]} cannot be read: {printable(str(err))[:80]}"
        raise ClusterError(msg) from None


def is_up(state: str) -> bool:
    """Whether jobs may start on a node in *state* (sinfo's StateComplete).

    A node that has not registered since slurmctld started is ``unknown``: not up.
    """
    base, *flags = state.lower().split("+")
    return base in _UP_BASES and _DOWN_FLAGS.isdisjoint(flags)


def read_site(
    sinfo: str,
    nonce: str,
    *,
    topology: str,
    reservations: tuple[ReservationSeen, ...],
    config: SiteConfig,
) -> Site:
    """Put together what the tools said.

    Args:
        sinfo: Output of ``sinfo -N`` in the form of `NODE_FIELDS` and *nonce*.
        topology: Output of ``scontrol show topology``.
        reservations: Nodes of active ones that are not ours count as not up.

    Raises:
        ClusterError: The output is cut short or unreadable.
    """
    records, unreadable = split_records(sinfo, nonce, len(NODE_FIELDS))
    found: dict[str, _Node] = {}
    parts: dict[str, set[str]] = {}
    for name, state, partition, cpus, mem_mb, gres in records:
        if not (cpus.isdecimal() and mem_mb.isdecimal()):
            unreadable += 1
            continue
        node = _Node(state, int(cpus), int(mem_mb), parse_gres(gres))
        for one in expand(name):
            found[one] = node
            parts.setdefault(partition.removesuffix("*"), set()).add(one)
    leaves = _leaves(topology)
    taken = {n for r in reservations if r.active and not r.is_ours for n in r.nodes}
    names = tuple(found)
    gpu_types = tuple(dict.fromkeys(n.gres.gpu_type for n in found.values() if n.gres.gpu_type))
    type_row = {t: i for i, t in enumerate(gpu_types)}
    partitions = tuple(sorted(p for p in parts if p))
    node_in = np.zeros((len(partitions), len(names)), dtype=np.bool_)
    for i, partition in enumerate(partitions):
        node_in[i] = [name in parts[partition] for name in names]
    node_in.setflags(write=False)
    # A node in no leaf is its own group beside them.
    elsewhere = max(leaves.values(), default=-1) + 1
    return Site(
        nodes=Nodes(
            name=names,
            up=np.array([is_up(n.state) and k not in taken for k, n in found.items()], np.bool_),
            gpus=np.array([n.gres.gpus for n in found.values()], np.float64),
            gpu_type=np.array(
                [type_row.get(n.gres.gpu_type, -1) for n in found.values()], np.int16
            ),
            cpus=np.array([n.cpus for n in found.values()], np.int32),
            mem_mb=np.array([n.mem_mb for n in found.values()], np.int64),
            leaf=np.array([leaves.get(name, elsewhere) for name in names], np.int16),
        ),
        row={name: i for i, name in enumerate(names)},
        partitions=partitions,
        partition_row={p: i for i, p in enumerate(partitions)},
        node_in=node_in,
        gpu_types=gpu_types,
        shards_per_gpu=_per_gpu([(n.gres.shards, n.gres.gpus) for n in found.values()]),
        mps_per_gpu=_per_gpu([(n.gres.mps, n.gres.gpus) for n in found.values()]),
        config=config,
        unreadable=unreadable,
    )


def _per_gpu(counts: list[tuple[float, float]]) -> float:
    with_both = [(shares, gpus) for shares, gpus in counts if shares and gpus]
    gpus = sum(g for _, g in with_both)
    return sum(s for s, _ in with_both) / gpus if gpus else 0.0


def _leaves(topology: str) -> dict[str, int]:
    """Leaf switch or block of each node, numbered as Slurm lists them."""
    return {
        name: leaf
        for leaf, nodes in enumerate(_LEAF.findall(topology))
        for name in expand(nodes)
    }


def read_reservations(text: str) -> tuple[ReservationSeen, ...]:
    """Reservations out of ``scontrol show reservation -o``; only admins write into that text."""
    seen = []
    for line in text.split("\n"):
        found = _RESERVATION.match(line)
        if found is None:
            continue
        seen.append(
            ReservationSeen(
                name=found["name"],
                end_s=epoch_s(found["end"]) or 0.0,
                nodes=expand(found["nodes"]),
                active=found["state"] == "ACTIVE",
            )
        )
    return tuple(seen)


def read_config(text: str) -> SiteConfig:
    """What the reader needs of ``scontrol show config``.

    Raises:
        ClusterError: The version is not in it.
    """
    values = {
        key.strip(): value.strip()
        for key, _, value in (line.partition("=") for line in text.split("\n"))
    }
    return SiteConfig(
        release=parse_release(values.get("SLURM_VERSION", "")),
        tracks_memory="MEMORY" in values.get("SelectTypeParameters", "").upper(),
    )
