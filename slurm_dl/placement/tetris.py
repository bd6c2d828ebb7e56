"""Placement by the alignment of a job's request and free GPUs, CPUs and memory.

The alignment of a job and a node is the dot product of its demand and the node's free resources,
each as a share of the whole node: sum over r of demand_r x free_r. The node with the highest is
taken, so that large demands go where much is left of what they need.

Source: Grandl et al., "Multi-Resource Packing for Cluster Schedulers" (Tetris), SIGCOMM 2014,
section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from slurm_dl.model.jobs import F64
from slurm_dl.placement.best_fit import BestFit
from slurm_dl.placement.node_groups import NodeGroups, Rows
from slurm_dl.placement.ranked_groups import Key
from slurm_dl.placement.resource_request import Ask


def _misalignment(stock: NodeGroups, rows: Rows | slice, ask: Ask) -> F64:
    """``(k,)`` minus the alignment score; see `Key`."""
    unit, free = stock.unit[:, rows], stock.free_share[:, rows]
    score: F64 = ask.gpus * unit[0] * free[0]
    score += ask.cpus * unit[1] * free[1]
    score += ask.mem_mb * unit[2] * free[2]
    return -score


@dataclass(frozen=True, slots=True, kw_only=True)
class Tetris(BestFit):
    """Fewest nodes first, then the nodes that fit with the highest alignment score."""

    name: ClassVar[str] = "tetris"
    source: ClassVar[str] = "Tetris, SIGCOMM 2014, section 3.2 (alignment score)"
    interpretation: ClassVar[str] = (
        "Jobs come in the policy's order; the paper weighs the score against the time left. "
        "Network and disk are left out."
    )

    key: ClassVar[Key] = _misalignment
    why: ClassVar[str] = "the nodes whose free resources suit it best"
