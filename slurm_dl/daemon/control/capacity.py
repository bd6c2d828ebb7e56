"""Free GPUs that no job can use, and cells promised on nodes that the cluster lacks."""

from __future__ import annotations

import numpy as np

from slurm_dl.config.placement_section import PlacementSection
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.cells.hived import Cells
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.synergy import Share


def stranded_gpus(snap: Snapshot) -> float:
    """Free GPUs on nodes that have no CPUs or no memory left to go with them."""
    free_nodes = FreeNodes.of(snap, {})
    return float(stranded_by_group(free_nodes) @ free_nodes.count)


def misfit(section: PlacementSection, snap: Snapshot) -> str:
    """The reason why the cluster cannot keep the promises of the cells; empty if it can."""
    scheme, _ = section.make()
    if not isinstance(scheme, Cells):
        return ""
    try:
        scheme.check(snap)
    except ConfigError as err:
        return str(err)
    return ""


# GPUs that are free and of no use: their node has no CPUs or no memory left to go with them.
def stranded_by_group(free_nodes: FreeNodes, smallest: Share | None = None) -> F64:
    """``(v,)`` free GPUs on one node of each condition in *free_nodes* that nobody can use.

    All free GPUs of a node count if what is left there does not do for one GPU; multiply by
    `NodeGroups.count` for the sum.

    Args:
        smallest: Least CPUs and memory that go with one GPU; None: the part of the node that does.
    """
    whole = free_nodes.groups[free_nodes.group]
    gpus, cpus, mem_mb = whole[:, 2], whole[:, 3], whole[:, 4]
    if smallest is None:
        parts = np.maximum(gpus, 1.0)
        need_cpus, need_mem_mb = np.floor(cpus / parts), np.floor(mem_mb / parts)
    else:
        need_cpus = np.full(len(whole), float(smallest.cpus))
        need_mem_mb = np.full(len(whole), float(smallest.mem_mb))
    free = np.floor(np.maximum(free_nodes.gpus, 0.0))
    lacks = (free_nodes.cpus < need_cpus) | (free_nodes.mem_mb < need_mem_mb)
    stranded: F64 = np.where(lacks & (free_nodes.count > 0), free, 0.0)
    return stranded
