"""Nodes, partitions, topology and reservations: all that Slurm's tools print beside the queue.

They change seldom, so they are read apart from the queue: see `SlurmCluster.refresh_nodes`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import RESERVATION_PREFIX
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I64, Bool
from slurm_dl.model.limits import PartitionLimits
from slurm_dl.model.nodes import Nodes
from slurm_dl.model.snapshot import Blocked
from slurm_dl.slurm.controller import SiteConfig
from slurm_dl.slurm.read.grammar import NO_WORDS, UsableNode, expand, is_number
from slurm_dl.slurm.read.record_parser import output_format, split_records
from slurm_dl.slurm.read.tres import Gres, node_gres, parse_gres
from slurm_dl.slurm.read.vocabulary import epoch_s, limit_s
from slurm_dl.text import escaped

_RESERVATION = re.compile(
    r"ReservationName=(?P<name>\S+) .*?\bStartTime=(?P<start>\S+) .*?\bEndTime=(?P<end>\S+) "
    r".*?\bNodes=(?P<nodes>\S*) (?:.*?\bTRES=(?P<tres>\S*) )?.*?\bState=(?P<state>\S+)"
)
_CPUS = re.compile(r"(?:^|,)cpu=([0-9]{1,9})(?:,|$)")


@dataclass(frozen=True, slots=True)
class ReservationSeen:
    """One reservation, ours or not."""

    name: str
    start_s: float
    end_s: float
    nodes: tuple[str, ...]
    active: bool
    cpus: int | None  # CPUs reserved on all *nodes* together; None if that is not told

    @property
    def is_ours(self) -> bool:
        """Its name begins as all of ours do."""
        return self.name.startswith(RESERVATION_PREFIX)


def read_reservations(text: str) -> tuple[ReservationSeen, ...]:
    """Reservations out of ``scontrol show reservation -o``; only admins write into that text."""
    seen = []
    for line in text.split("\n"):
        found = _RESERVATION.match(line)
        if found is None:
            continue
        try:
            start_s, end_s = epoch_s(found["start"]), epoch_s(found["end"])
        except ValueError:
            name = escaped(found["name"][:80])
            msg = f"reservation {name} cannot be read: its start or end is no time"
            raise ClusterError(msg) from None
        cpus = _CPUS.search(found["tres"] or "")
        seen.append(
            ReservationSeen(
                name=found["name"],
                start_s=start_s,
                end_s=end_s,
                nodes=expand(found["nodes"]),
                active=found["state"] == "ACTIVE",
                cpus=None if cpus is None else int(cpus[1]),
            )
        )
    return tuple(seen)


def blocked_by(
    reservations: Collection[ReservationSeen],
    nodes: Nodes,
    inside: Mapping[JobId, Collection[str]],
    now_s: float,
) -> tuple[Blocked, ...]:
    """Nodes that other reservations keep from jobs; ended ones keep none.

    One of cores leaves the rest of its nodes to all jobs (22.05.8), and one of licences has no
    nodes: neither is meant.

    Args:
        inside: Names of the reservations that each job is in or asks for.
    """
    blocked = []
    for one in reservations:
        if one.is_ours or one.end_s <= now_s:
            continue
        mask = np.isin(nodes.name, one.nodes)
        whole = one.cpus is None or one.cpus >= int(nodes.cpus[mask].sum())
        if not (mask.any() and whole):
            continue
        mask.setflags(write=False)
        jobs = frozenset(job for job, names in inside.items() if one.name in names)
        blocked.append(Blocked(start_s=one.start_s, end_s=one.end_s, nodes=mask, jobs=jobs))
    return tuple(blocked)


def last_end_s(
    reservations: Collection[ReservationSeen], inside: Mapping[JobId, Collection[str]]
) -> dict[JobId, float]:
    """Last end of the reservations that a job is in or asks for; see `Observed.reserved_until`."""
    ends_s = {one.name: one.end_s for one in reservations}
    return {
        job: max((ends_s.get(name, 0.0) for name in names), default=0.0)
        for job, names in inside.items()
    }


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
_ADMITTED = ("Groups", "Accounts", "Qos")

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
        occupied: State of each node that jobs hold (allocated, mixed or completing), by its name.
        other_gres: What each node offers beside GPUs; see `node_gres`.
    """

    nodes: Nodes
    row: Mapping[str, int]  # Row in *nodes* by node name
    type_row: Mapping[str, int]  # Index of each type of GPUs
    features: tuple[frozenset[str], ...]  # Active features of each node, in the order of *nodes*
    partitions: tuple[str, ...]
    partition_row: Mapping[str, int]  # Index in *partitions* by name
    node_in: Bool
    shards_per_gpu: float  # How many ``gres/shard`` make a GPU here; 0 if there are none
    mps_per_gpu: float  # The same for ``gres/mps``
    sharable: Bool  # ``(m,)`` bool, nodes that hand out shares of their GPUs
    occupied: Mapping[str, str]
    config: SiteConfig
    tmp_mb: I64  # ``(m,)`` int64, disk under TmpFS of each node, MB
    other_gres: tuple[Mapping[str, float], ...]
    has_topology: bool  # Slurm tells which nodes are close
    has_switches: bool  # It tells it by switches; of blocks it ignores ``--switches``
    one_thread_per_core: bool  # Of every node
    limits: tuple[PartitionLimits | None, ...]  # Of each partition; None for one that was not told
    words: Mapping[str, Mapping[str, str]]  # Of each partition, as `partition_values` has them
    unreadable: int = 0  # Node records left out


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """One node as sinfo tells it."""

    state: str
    cpus: int
    mem_mb: int
    gres: Gres
    features: frozenset[str]
    other_gres: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodesSeen:
    """Result of one sinfo call."""

    nodes: Mapping[str, NodeSeen]  # By name
    members: Mapping[str, frozenset[str]]  # Names of the nodes in each partition, by its name
    unreadable: int  # Records left out


def is_up(state: str) -> bool:
    """Whether jobs may start on a node in *state* (sinfo's StateComplete).

    A node that has not registered since slurmctld started is ``unknown``: not up.
    """
    base, *flags = state.lower().split("+")
    return base in _UP_BASES and _DOWN_FLAGS.isdisjoint(flags)


def check_nobody_runs(site: ClusterReading) -> None:
    """Refuse an empty queue while jobs hold nodes, in whatever partition: squeue lists them all.

    Raises:
        ClusterError: A node is allocated, mixed or completing.
    """
    if site.occupied:
        name, state = next(iter(site.occupied.items()))
        msg = (
            f"squeue lists no job, but sinfo shows nodes in use ({name} is {state}, "
            f"{len(site.occupied)} in all); this look is not used. "
            "Check squeue --all --states=all, and whether PrivateData hides jobs from this account"
        )
        raise ClusterError(msg)


def node_arguments(nonce: str, names: Collection[str] = ()) -> tuple[str, ...]:
    """Arguments for sinfo that list each node in each partition, separated by *nonce*.

    Args:
        names: Of these nodes only; none: of all.
    """
    which = [f"--nodes={','.join(sorted(names))}"] if names else []
    fields = output_format(NODE_FIELDS, nonce)
    return ("--noheader", "--all", "--local", "--Node", *which, f"--Format={fields}")


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
        offers = parse_gres(gres), active, node_gres(gres)
        node = NodeSeen(state, int(cpus), int(mem_mb), *offers)
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
    usable: Mapping[str, UsableNode] = MappingProxyType({}),
    words: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    first: Sequence[str] = (),
) -> ClusterReading:
    """Put together what the tools said.

    Args:
        topology: Output of ``scontrol show topology``.
        reservations: Nodes of active ones that are not ours count as not up.
        type_row: Index of each GPU type; new ones are added to it.
        usable: What jobs may use of nodes; of others they may use what sinfo counts.
        words: Of each partition, as `partition_values` has them.
        first: Partitions whose index is to be their place here, whether or not they have nodes.

    Raises:
        ClusterError: A node list in the topology cannot be read.
    """
    nodes = seen.nodes
    # Leaf switches or blocks, numbered as Slurm lists them.
    listed = enumerate(_LEAF.findall(topology))
    leaves = {name: leaf for leaf, names in listed for name in expand(names)}
    # A node in no leaf is in a group of its own beside them.
    elsewhere = max(leaves.values(), default=-1) + 1
    taken = {n for r in reservations if r.active and not r.is_ours for n in r.nodes}
    for gpu_type in (name for node in nodes.values() for name, _ in node.gres.types):
        type_row.setdefault(gpu_type, len(type_row))
    partitions = tuple(dict.fromkeys((*first, *seen.members)))
    inside = [seen.members.get(partition, frozenset()) for partition in partitions]
    node_in = np.array([[name in names for name in nodes] for names in inside], np.bool_).reshape(
        len(partitions), len(nodes)
    )
    node_in.setflags(write=False)
    return ClusterReading(
        nodes=Nodes(
            name=tuple(nodes),
            up=np.array([is_up(n.state) and k not in taken for k, n in nodes.items()], np.bool_),
            gpus=np.array([n.gres.gpus for n in nodes.values()], np.float64),
            gpu_type=np.array(
                [type_row.get(_main_type(n.gres), -1) for n in nodes.values()], np.int16
            ),
            cpus=_sealed([_usable(n, usable.get(k)).cpus for k, n in nodes.items()], np.int32),
            mem_mb=_sealed([_usable(n, usable.get(k)).mem_mb for k, n in nodes.items()], np.int64),
            leaf=np.array([leaves.get(name, elsewhere) for name in nodes], np.int16),
            by_type=_by_type([n.gres for n in nodes.values()], type_row),
        ),
        row={name: i for i, name in enumerate(nodes)},
        type_row=dict(type_row),
        features=tuple(n.features for n in nodes.values()),
        partitions=partitions,
        partition_row={p: i for i, p in enumerate(partitions)},
        node_in=node_in,
        shards_per_gpu=_per_gpu([(n.gres.shards, n.gres.gpus) for n in nodes.values()]),
        mps_per_gpu=_per_gpu([(n.gres.mps, n.gres.gpus) for n in nodes.values()]),
        sharable=_sealed([n.gres.shards > 0 for n in nodes.values()], np.bool_),
        occupied={
            name: node.state
            for name, node in nodes.items()
            if not _OCCUPIED.isdisjoint(node.state.lower().split("+"))
        },
        config=config,
        tmp_mb=_sealed([usable[k].tmp_mb if k in usable else 0 for k in nodes], np.int64),
        other_gres=tuple(n.other_gres for n in nodes.values()),
        has_topology=bool(leaves),
        has_switches="SwitchName=" in topology,
        one_thread_per_core=all(k in usable and usable[k].threads == 1 for k in nodes),
        limits=tuple(limits_of(words[name]) if name in words else None for name in partitions),
        words=words,
        unreadable=seen.unreadable,
    )


def limits_of(words: Mapping[str, str]) -> PartitionLimits:
    """The limits in the *words* of one partition; what is not understood limits nothing."""
    try:
        max_time_s = limit_s(words.get("MaxTime", ""))
    except ValueError:
        max_time_s = math.inf
    return PartitionLimits(
        # A draining partition takes no new jobs, and starts those that it has.
        starts=words.get("State", "UP") in ("UP", "DRAIN"),
        max_time_s=max_time_s,
        min_nodes=int(whole_or(words.get("MinNodes", ""), 0)),
        max_nodes=whole_or(words.get("MaxNodes", "")),
        max_cpus_per_node=whole_or(words.get("MaxCPUsPerNode", "")),
        is_open=all(words.get(f"Allow{of}", "ALL") == "ALL" for of in _ADMITTED)
        and not any(f"Deny{of}" in words for of in _ADMITTED),
        tier=int(whole_or(words.get("PriorityTier", ""), 1)),
    )


def whole_or(text: str, otherwise: float = math.inf) -> float:
    """The whole number in *text*, or *otherwise*."""
    return float(text) if is_number(text) else otherwise


def _usable(node: NodeSeen, told: UsableNode | None) -> UsableNode:
    """Resources of *node* that jobs may use: of both figures the lesser."""
    if told is None:
        return UsableNode(node.cpus, node.mem_mb, 0)
    return UsableNode(min(node.cpus, told.cpus), min(node.mem_mb, told.mem_mb), told.tmp_mb)


def _main_type(gres: Gres) -> str:
    """The type of which there are most, of equals the first; empty if none has a name."""
    return max(gres.types, key=lambda of: of[1], default=("", 0.0))[0]


def _by_type(nodes: Sequence[Gres], type_row: Mapping[str, int]) -> F64 | None:
    """``(t, m)`` GPUs of each type on each of *nodes*; None if none has several."""
    if all(len(gres.types) <= 1 for gres in nodes):
        return None
    found = np.zeros((len(type_row), len(nodes)))
    for m, gres in enumerate(nodes):
        for gpu_type, gpus in gres.types:
            found[type_row[gpu_type], m] = gpus
    return found


def _sealed(values: Sequence[float], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    column = np.array(values, dtype)
    column.setflags(write=False)
    return column


def _per_gpu(counts: list[tuple[float, float]]) -> float:
    with_both = [(shares, gpus) for shares, gpus in counts if shares and gpus]
    gpus = sum(g for _, g in with_both)
    return sum(s for s, _ in with_both) / gpus if gpus else 0.0
