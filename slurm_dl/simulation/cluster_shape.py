"""The simulated cluster: how many nodes with how many GPUs of which type, on which switches."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.nodes import Nodes

MAX_NODES: Final = 100_000
MAX_GPUS_PER_NODE: Final = 1024
MAX_LEAVES: Final = 32_767

_GPUS: Final = re.compile(r"([0-9]{1,4})(?::([A-Za-z0-9][A-Za-z0-9_.-]{0,62}))?")
_GROUP: Final = re.compile(r"([0-9]{1,6})x([^@]{1,500}?)(?:@([0-9]{1,6}))?")
ANY_TYPE: Final = "gpu"  # The type of GPUs without a type


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes that are alike."""

    nodes: int  # Nodes
    gpus: int  # GPUs of each
    gpu_type: str = ANY_TYPE  # Their type; of several the first
    leaf_nodes: int = 0  # Nodes on each leaf switch, the last one may have fewer; 0: all on one
    others: tuple[tuple[str, int], ...] = ()  # Further types, and how many of *gpus* are of each

    @property
    def by_type(self) -> Mapping[str, int]:
        """GPUs of each type on each node."""
        rest = self.gpus - sum(count for _, count in self.others)
        return {self.gpu_type: rest} | dict(self.others)

    def __str__(self) -> str:
        gpus = "+".join(
            f"{count}:{name}" if name != ANY_TYPE else str(count)
            for name, count in self.by_type.items()
        )
        return f"{self.nodes}x{gpus}" + (f"@{self.leaf_nodes}" if self.leaf_nodes else "")

    @property
    def leaves(self) -> int:
        """Leaf switches."""
        return math.ceil(self.nodes / self.leaf_nodes) if self.leaf_nodes else 1


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """The nodes of a cluster, group by group."""

    groups: tuple[NodeGroup, ...]

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(g.nodes * g.gpus for g in self.groups)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Type names, in the order of the groups."""
        return tuple(dict.fromkeys(name for g in self.groups for name in g.by_type))

    @property
    def largest_node_gpus(self) -> int:
        """GPUs of the largest node."""
        return max(g.gpus for g in self.groups)

    @property
    def leaves(self) -> int:
        """Leaf switches; 1 where no group has any."""
        return sum(g.leaves for g in self.groups) if self._has_leaves else 1

    @property
    def _has_leaves(self) -> bool:
        return any(g.leaf_nodes for g in self.groups)

    def _leaf(self) -> npt.NDArray[np.int16]:
        """``(m,)`` leaf of each node: groups share none, unless no group has any."""
        if not self._has_leaves:
            return np.zeros(sum(g.nodes for g in self.groups), dtype=np.int16)
        parts, first = [], 0
        for group in self.groups:
            parts.append(first + np.arange(group.nodes) // (group.leaf_nodes or group.nodes))
            first += group.leaves
        return np.concatenate(parts).astype(np.int16)

    def nodes(self) -> Nodes:
        """The nodes as columns: n1, n2, ..., all up, with room for any number of CPUs."""
        counts = [g.nodes for g in self.groups]
        total = sum(counts)
        types = self.gpu_types
        return Nodes(
            name=tuple(f"n{i + 1}" for i in range(total)),
            up=np.ones(total, dtype=np.bool_),
            gpus=np.repeat(np.array([g.gpus for g in self.groups], dtype=np.float64), counts),
            gpu_type=np.repeat(
                np.array([types.index(g.gpu_type) for g in self.groups], dtype=np.int16), counts
            ),
            cpus=np.full(total, 1_000_000, dtype=np.int32),
            mem_mb=np.zeros(total, dtype=np.int64),
            leaf=self._leaf(),
            by_type=np.repeat(
                [[float(g.by_type.get(name, 0)) for g in self.groups] for name in types],
                counts,
                axis=1,
            )
            if any(g.others for g in self.groups)
            else None,
        )

    def __str__(self) -> str:
        return ",".join(map(str, self.groups))


def parse_shape(text: str) -> ClusterShape:
    """A cluster from words: ``8x8`` is 8 nodes of 8 GPUs, ``4x8:v100,2x4:k80`` two groups.

    ``8x8@4`` has 4 nodes on each leaf switch; leaves of different groups are different ones, and a
    group without ``@`` beside one with it has a leaf of its own. ``2x2:a100+4:t4`` has nodes with
    GPUs of two types.

    Raises:
        ConfigError: *text* is no such thing.
    """
    groups = []
    for part in text.split(","):
        match = _GROUP.fullmatch(part.strip())
        gpus = [_GPUS.fullmatch(one) for one in match[2].split("+")] if match else []
        if not match or None in gpus or not 1 <= int(match[1]) <= MAX_NODES:
            msg = (
                f"cluster {text!r}: {part.strip()!r} is not NODESxGPUS, NODESxGPUS:TYPE or "
                "NODESxGPUS@NODES_OF_A_LEAF, for example 8x8, 4x8:v100,2x4:k80, 2x2:a100+4:t4 or "
                "8x8@4"
            )
            raise ConfigError(msg)
        types = {found[2] or ANY_TYPE: int(found[1]) for found in gpus if found}
        if len(types) < len(gpus) or not 1 <= min(types.values()) <= sum(types.values()) <= (
            MAX_GPUS_PER_NODE
        ):
            msg = (
                f"cluster {text!r}: a node has 1 to {MAX_GPUS_PER_NODE} GPUs, and names each type "
                f"once (got {match[2]})"
            )
            raise ConfigError(msg)
        if match[3] is not None and not int(match[3]):
            msg = f"cluster {text!r}: a leaf switch has at least 1 node (got {match[3]})"
            raise ConfigError(msg)
        first, *others = types.items()
        groups.append(
            NodeGroup(
                nodes=int(match[1]),
                gpus=sum(types.values()),
                gpu_type=first[0],
                leaf_nodes=int(match[3] or 0),
                others=tuple(others),
            )
        )
    if sum(g.nodes for g in groups) > MAX_NODES:
        msg = f"cluster {text!r}: more than {MAX_NODES} nodes"
        raise ConfigError(msg)
    shape = ClusterShape(tuple(groups))
    if shape.leaves > MAX_LEAVES:
        msg = f"cluster {text!r}: more than {MAX_LEAVES} leaf switches"
        raise ConfigError(msg)
    return shape
