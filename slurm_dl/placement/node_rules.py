"""Rules on whom a job may share a node with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slurm_dl.model.jobs import Bool
from slurm_dl.model.parameter_bounds import Bounded, NotNegative, Positive
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.resource_request import Ask, PendingJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention(Bounded):
    """At most one job of several nodes on each node, or as many as its budgets allow.

    A budget bounds the sum of what the jobs on a node send or move, by their profiles.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallApart(Bounded):
    """Jobs of few GPUs and larger ones are kept apart, as long as both fit.

    A small job goes where only small jobs are, or, if it fits nowhere there, to an empty node,
    before it joins a larger job; a larger one avoids the nodes of small ones.

    Attributes:
        small_gpus: A job of this many GPUs in all, or fewer, is small.
    """

    name: ClassVar[str] = "small_apart"
    source: ClassVar[str] = "Gandiva, OSDI 2018, Algorithm 1; Philly, ATC 2019, section 5"
    interpretation: ClassVar[str] = (
        "There are two classes of jobs, small and larger; Gandiva has one for each number of "
        "GPUs. Jobs without GPUs do not count."
    )
    strict: ClassVar[bool] = False

    small_gpus: Positive = 1.0

    def allows(self, want: PendingJob, ask: Ask, stock: FreeNodes, /) -> Bool:
        """See `Rule`."""
        if want.gpus > self.small_gpus:
            apart: Bool = stock.least_gpus > self.small_gpus
            return apart
        most = stock.most_gpus
        among: Bool = (most > 0) & (most <= self.small_gpus)
        fits, count = stock.room(want.need, ask)
        if int(count[fits & among].sum()) >= ask.n_nodes:
            return among
        either: Bool = most <= self.small_gpus
        return either
