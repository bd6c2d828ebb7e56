"""Jobs that talk to other nodes do not share a node's network card.

Source: Pollux, OSDI 2021, section 4.2 (at most one distributed job on a node); with budgets, the
sum of what the jobs on a node send or move, by their profiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slurm_dl.model.jobs import Bool
from slurm_dl.model.parameter_bounds import Bounded, NotNegative
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.pending_job import PendingJob
from slurm_dl.placement.resource_request import Ask


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention(Bounded):
    """At most one job of several nodes on each node, or as many as its budgets allow.

    Attributes:
        network_mb_s: Traffic that the jobs on a node may send to other nodes together, MB a second.
            0: not counted.
        pcie_mb_s: Traffic that the jobs on a node may move over PCIe together, MB a second. 0: not
            counted. With neither budget, a node has at most one job of several nodes.
    """

    name: ClassVar[str] = "contention"
    source: ClassVar[str] = "Pollux, OSDI 2021, section 4.2 (interference avoidance)"
    interpretation: ClassVar[str] = (
        "The budgets are not in the source. A job of several nodes with an unknown load is alone "
        "among such jobs on its nodes, and so is one that alone exceeds a budget. A job of one "
        "node with an unknown PCIe load is not counted."
    )
    strict: ClassVar[bool] = True

    network_mb_s: NotNegative = 0.0
    pcie_mb_s: NotNegative = 0.0

    def allows(self, want: PendingJob, ask: Ask, stock: FreeNodes, /) -> Bool:
        """See `Rule`."""
        gang = ask.n_nodes > 1
        if self.network_mb_s == 0 and self.pcie_mb_s == 0:
            return _alone(stock) if gang else np.ones(len(stock), dtype=np.bool_)
        allowed = np.ones(len(stock), dtype=np.bool_)
        if self.network_mb_s > 0 and gang:
            load = want.network_mb_s(ask)
            if load is None or load > self.network_mb_s:
                allowed &= _alone(stock)
            else:
                allowed &= stock.heavy_gangs == 0
                allowed &= stock.network_mb_s + load <= self.network_mb_s
        if self.pcie_mb_s > 0:
            load = want.pcie_mb_s(ask)
            if load is None:
                return allowed & _alone(stock) if gang else allowed
            if gang:
                allowed &= stock.pcie_heavy_gangs == 0
            if load > self.pcie_mb_s:
                allowed &= stock.pcie_mb_s == 0
            elif load > 0:
                allowed &= stock.pcie_mb_s + load <= self.pcie_mb_s
        return allowed


def _alone(stock: FreeNodes) -> Bool:
    alone: Bool = stock.gangs == 0
    return alone
