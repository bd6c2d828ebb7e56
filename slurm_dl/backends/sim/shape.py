"""The simulated cluster: how many nodes with how many GPUs of which type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.nodes import Nodes

MAX_NODES: Final = 100_000
MAX_GPUS_PER_NODE: Final = 1024

_GROUP: Final = re.compile(r"([0-9]{1,6})x([0-9]{1,4})(?::([A-Za-z0-9][A-Za-z0-9_.-]{0,62}))?")
_ANY_TYPE: Final = "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes that are alike."""

    nodes: int
    gpus: int
    gpu_type: str = _ANY_TYPE


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
            leaf=np.zeros(total, dtype=np.int16),
        )

    def __str__(self) -> str:
        return ",".join(
            f"{g.nodes}x{g.gpus}" + (f":{g.gpu_type}" if g.gpu_type != _ANY_TYPE else "")
            for g in self.groups
        )


def parse_shape(text: str) -> ClusterShape:
    """A cluster from words: ``8x8`` is 8 nodes of 8 GPUs, ``4x8:v100,2x4:k80`` two groups.

    Raises:
        ConfigError: *text* is no such thing.
    """
    groups = []
    for part in text.split(","):
        match = _GROUP.fullmatch(part.strip())
        if not match or not 1 <= int(match[1]) <= MAX_NODES:
            msg = (
                f"cluster {text!r}: {part.strip()!r} is not NODESxGPUS or NODESxGPUS:TYPE, "
                "for example 8x8 or 4x8:v100,2x4:k80"
            )
            raise ConfigError(msg)
        if not 1 <= int(match[2]) <= MAX_GPUS_PER_NODE:
            msg = f"cluster {text!r}: a node has 1 to {MAX_GPUS_PER_NODE} GPUs (got {match[2]})"
            raise ConfigError(msg)
        groups.append(
            NodeGroup(nodes=int(match[1]), gpus=int(match[2]), gpu_type=match[3] or _ANY_TYPE)
        )
    if sum(g.nodes for g in groups) > MAX_NODES:
        msg = f"cluster {text!r}: more than {MAX_NODES} nodes"
        raise ConfigError(msg)
    return ClusterShape(tuple(groups))
