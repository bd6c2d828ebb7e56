"""Nodes, partitions, topology, reservations and a few settings, read from Slurm's tools.

They change seldom, so they are read apart from the queue: see `SlurmCluster.refresh_nodes`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from ClusterShell.NodeSet import NodeSet

from slurm_dl.backends.slurm.command import printable
from slurm_dl.backends.slurm.records import output_format, split_records
from slurm_dl.backends.slurm.slurm_conf import site_factor_plugin
from slurm_dl.backends.slurm.tres import Gres, parse_gres
from slurm_dl.backends.slurm.versions import Release, parse_release
from slurm_dl.backends.slurm.words import epoch_s, is_number
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import RESERVATION_PREFIX
from slurm_dl.model.jobs import Bool
from slurm_dl.model.nodes import Nodes

NODE_FIELDS = (
    "NodeList",
    "StateComplete",
    "Partition",
    "CPUs",
    "Memory",
    "Gres",
    "features_act",
)
NO_WORDS = frozenset({"", "(null)", "None", "N/A"})
"""How the tools write an empty list."""

MOST_NODES = 100_000
"""More in one list is no list of nodes: users can write ``Nodes=n[0-999999999]`` into a job's name,
which Slurm prints as it is."""

_MOST_CPUS = 2**31 - 1

# Expanded here: ClusterShell would look up groups (@), take n1[1-20] for 110 nodes, and make all
# names of a list, however many, before it could be asked how many they are.
_SPANS = r"\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\]"
_NODE_LIST = re.compile(rf"(?:[\w.-]|{_SPANS})+(?:,(?:[\w.-]|{_SPANS})+)*", re.ASCII)
_WORD = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_LONGEST_NAME = 255
# ClusterShell folds no number of more than 100.
_MOST_DIGITS = 100
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")

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

_SLURM_USER = re.compile(r"\(([0-9]{1,10})\)\Z", re.ASCII)

_LEAF = re.compile(r"^(?:SwitchName=\S+ Level=0 .*?|BlockName=\S+ .*?)\bNodes=(\S+)", re.MULTILINE)
_RESERVATION = re.compile(
    r"ReservationName=(?P<name>\S+) .*?\bEndTime=(?P<end>\S+) "
    r".*?\bNodes=(?P<nodes>\S*) .*?\bState=(?P<state>\S+)"
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
    """What of slurm.conf the daemon must know; see `read_config`.

    Attributes:
        private: Words of PrivateData, in lower case: what ordinary users may not see of others.
        slurm_uid: SlurmUser's uid; None if Slurm does not say.
        accounting: There is a slurmdbd.
        unfit: Why Slurm would not order its queue by SiteFactor, and what to do; empty if it would.
    """

    release: Release
    tracks_memory: bool
    spreads_shares: bool = False
    private: frozenset[str] = frozenset()
    slurm_uid: int | None = None
    accounting: bool = False
    unfit: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """Everything that is not the queue, as of one reading.

    Attributes:
        row: Row in *nodes* by node name.
        features: Active features of each node, in the order of *nodes*.
        partition_row: Index in *partitions* by name.
        shards_per_gpu: How many ``gres/shard`` make a GPU here; 0 if there are none.
        mps_per_gpu: The same for ``gres/mps``.
        sharable: ``(m,)`` bool, nodes that hand out shares of their GPUs.
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


def expand(nodes: str) -> tuple[str, ...]:
    """The names in a Slurm node list, in its order.

    Raises:
        ClusterError: It is no node list, or one of more than `MOST_NODES` nodes.
    """
    if nodes in NO_WORDS:
        return ()
    if not 0 < names_in(nodes) <= MOST_NODES:
        msg = f"node list {printable(nodes[:80])} cannot be read, or has too many nodes"
        raise ClusterError(msg)
    words = _WORD.findall(nodes)
    return tuple(dict.fromkeys(name for word in words for name in _expanded(word)))


def names_in(nodes: str) -> int:
    """How many names a Slurm node list stands for, each as often as it is there; 0 if it is none.

    Nothing is made for that: one list may name the same nodes a hundred times.
    """
    return sum(map(_names_of, _WORD.findall(nodes))) if _NODE_LIST.fullmatch(nodes) else 0


def _names_of(word: str) -> int:
    """How many names a word of a node list stands for; none is made for that."""
    if sum(map(len, _BRACKETS.split(word)[::2])) > _LONGEST_NAME or _digits_of(word) > _MOST_DIGITS:
        return 0
    return math.prod(
        sum(max(0, last - first + 1) for first, last, _ in _spans(inside))
        for inside in _BRACKETS.findall(word)
    )


def _digits_of(word: str) -> int:
    """No name that a word stands for has more digits than this."""
    return sum(
        max(len(number) for number in re.split("[,-]", part))
        if place % 2
        else sum(map(str.isdigit, part))
        for place, part in enumerate(_BRACKETS.split(word))
    )


def _expanded(word: str) -> Iterator[str]:
    parts = [
        [f"{n:0{width}}" for first, last, width in _spans(part) for n in range(first, last + 1)]
        if number % 2
        else [part]
        for number, part in enumerate(_BRACKETS.split(word))
    ]
    return map("".join, itertools.product(*parts))


def _spans(inside: str) -> Iterator[tuple[int, int, int]]:
    """First, last and width of each span between brackets, ``01-03,7``."""
    for span in inside.split(","):
        first, _, last = span.partition("-")
        if is_number(first) and is_number(last or first):
            yield int(first), int(last or first), len(first)


def fold(names: Iterable[str]) -> str:
    """A Slurm node list of *names*, which are names of nodes; empty if there are none."""
    return str(NodeSet.fromlist(names))


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
) -> Site:
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
    return Site(
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


def read_reservations(text: str) -> tuple[ReservationSeen, ...]:
    """Reservations out of ``scontrol show reservation -o``; only admins write into that text."""
    seen = []
    for line in text.split("\n"):
        found = _RESERVATION.match(line)
        if found is None:
            continue
        try:
            end_s = epoch_s(found["end"])
        except ValueError:
            msg = f"reservation {printable(found['name'][:80])} cannot be read: its end is no time"
            raise ClusterError(msg) from None
        seen.append(
            ReservationSeen(
                name=found["name"],
                end_s=end_s,
                nodes=expand(found["nodes"]),
                active=found["state"] == "ACTIVE",
            )
        )
    return tuple(seen)


def config_values(text: str) -> dict[str, str]:
    """The settings in ``scontrol show config``, as it spells them."""
    pairs = (line.partition("=") for line in text.split("\n"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def read_config(text: str, slurm_conf: str = "") -> SiteConfig:
    """What the daemon needs of ``scontrol show config``.

    Args:
        slurm_conf: Path of slurm.conf; empty: the one that *text* names.

    Raises:
        ClusterError: The version is not in it.
    """
    values = config_values(text)
    private = (word.strip().lower() for word in values.get("PrivateData", "").split(","))
    slurm_user = _SLURM_USER.search(values.get("SlurmUser", ""))
    return SiteConfig(
        release=parse_release(values.get("SLURM_VERSION", "")),
        tracks_memory="MEMORY" in values.get("SelectTypeParameters", "").upper(),
        spreads_shares="LL_SHARED_GRES" in values.get("SelectTypeParameters", "").upper(),
        private=frozenset(private) - {"", "none", "(null)"},
        slurm_uid=int(slurm_user[1]) if slurm_user else None,
        accounting=values.get("AccountingStorageType", "").lower().endswith("slurmdbd"),
        unfit=why_unordered(values, site_factor_plugin(values, slurm_conf)),
    )


def why_unordered(values: Mapping[str, str], plugin: str) -> str:
    """Why Slurm would not order its queue by our SiteFactors, and what to do; empty if it would.

    Slurm itself says nothing: priority/basic takes a SiteFactor and ignores it, and a plug-in of
    the site's writes its own over ours. A setting that is not told is taken to be well.
    """
    kind = values.get("PriorityType", "")
    if kind and kind.lower() != "priority/multifactor":
        return (
            f"slurm.conf has PriorityType={printable(kind)[:60]}, with which Slurm ignores "
            "SiteFactor; set PriorityType=priority/multifactor and restart slurmctld"
        )
    if plugin:
        return (
            f"slurm.conf has PrioritySiteFactorPlugin={printable(plugin)[:60]}, which overwrites "
            "the SiteFactors that dlschedd sets; take it out and restart slurmctld"
        )
    return ""
