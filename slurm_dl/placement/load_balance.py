"""The emptiest nodes: load is spread evenly, at the price of leaving no node whole.

Source: the load-balancing rule (worst fit) that learned schedulers compare with: DL2 (TPDS 2021),
Harmony (INFOCOM 2019, section V).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from slurm_dl.model.jobs import F64
from slurm_dl.placement.best_fit import BestFit
from slurm_dl.placement.node_groups import NodeGroups, Rows
from slurm_dl.placement.ranked_groups import Key
from slurm_dl.placement.resource_request import Ask


def load(stock: NodeGroups, rows: Rows | slice, _ask: Ask) -> F64:
    """``(k,)`` minus the shares of GPUs, CPUs and memory that are free; see `Key`."""
    share = stock.free_share[:, rows]
    key: F64 = share[0] + share[1]
    key += share[2]
    return -key


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalance(BestFit):
    """Fewest nodes first, then the least loaded nodes that fit."""

    name: ClassVar[str] = "load_balance"
    source: ClassVar[str] = "worst fit, as in DL2 (TPDS 2021) and Harmony (INFOCOM 2019)"
    interpretation: ClassVar[str] = (
        "a node's load is the sum of the shares of its GPUs, CPUs and memory that are taken"
    )

    key: ClassVar[Key] = load
    why: ClassVar[str] = "the least loaded nodes it fits on"
