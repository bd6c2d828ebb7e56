"""The simulated cluster: how many nodes with how many GPUs of which type, on which switches."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.nodes import Nodes

MAX_NODES: Final = 100_000
MAX_GPUS_PER_NODE: Final = 1024

MAX_LEAVES: Final = 32_767

_GROUP: Final = re.compile(
    r"([0-9]{1,6})x([0-9]{1,4})(?::([A-Za-z0-9][A-Za-z0-9_.-]{0,62}))?(?:@([0-9]{1,6}))?"
)
_ANY_TYPE: Final = "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes that are alike.

    Attributes:
        nodes: Nodes.
        gpus: GPUs of each.
        gpu_type: Their type.
        leaf_nodes: Nodes on each leaf switch, the last one may have fewer; 0: all on one.
    """

    nodes: int
    gpus: int
    gpu_type: str = _ANY_TYPE
    leaf_nodes: int = 0

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
        return tuple(dict.fromkeys(g.gpu_type for g in self.groups))

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
        )

    def __str__(self) -> str:
        return ",".join(
            f"{g.nodes}x{g.gpus}"
            + (f":{g.gpu_type}" if g.gpu_type != _ANY_TYPE else "")
            + (f"@{g.leaf_nodes}" if g.leaf_nodes else "")
            for g in self.groups
        )


def parse_shape(text: str) -> ClusterShape:
    """A cluster from words: ``8x8`` is 8 nodes of 8 GPUs, ``4x8:v100,2x4:k80`` two groups.

    ``8x8@4`` has 4 nodes on each leaf switch; leaves of different groups are different ones, and a
    group without ``@`` beside one with it has a leaf of its own.

    Raises:
        ConfigError: *text* is no such thing.
    """
    groups = []
    for part in text.split(","):
        match = _GROUP.fullmatch(part.strip())
        if not match or not 1 <= int(match[1]) <= MAX_NODES:
            msg = (
                f"cluster {text!r}: {part.strip()!r} is not NODESxGPUS, NODESxGPUS:TYPE or "
                "NODESxGPUS@NODES_OF_A_LEAF, for example 8x8, 4x8:v100,2x4:k80 or 8x8@4"
            )
            raise ConfigError(msg)
        if not 1 <= int(match[2]) <= MAX_GPUS_PER_NODE:
            msg = f"cluster {text!r}: a node has 1 to {MAX_GPUS_PER_NODE} GPUs (got {match[2]})"
            raise ConfigError(msg)
        if match[4] is not None and not int(match[4]):
            msg = f"cluster {text!r}: a leaf switch has at least 1 node (got {match[4]})"
            raise ConfigError(msg)
        groups.append(
            NodeGroup(
                nodes=int(match[1]),
                gpus=int(match[2]),
                gpu_type=match[3] or _ANY_TYPE,
                leaf_nodes=int(match[4] or 0),
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
