"""Orders of single nodes: the fullest, the emptiest, or those that suit a request best.

Best fit keeps empty nodes empty for the jobs that need them whole. Where a job may lie on more
nodes than it asks for, fewer come first.

Source: the packing rule of the schedulers that Harmony compares with (INFOCOM 2019, section V);
E-LAS, ICPP 2020 (placement).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from slurm_dl.model.jobs import F64
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.node_groups import GPUS, JOBS, NodeGroups, Rows
from slurm_dl.placement.ranked_groups import Key
from slurm_dl.placement.resource_request import Ask, PendingJob
from slurm_dl.placement.scheme import Answer, Spot


def free_gpus(stock: NodeGroups, rows: Rows | slice, _ask: Ask) -> F64:
    """``(k,)`` free GPUs, with more than any node has on top where no job is; see `Key`."""
    empty = stock.column(JOBS)[rows] == 0
    key: F64 = stock.column(GPUS)[rows] + empty * (stock.most_whole_gpus + 1)
    return key


@dataclass(frozen=True, slots=True, kw_only=True)
class BestFit:
    """Fewest nodes first, then the nodes that fit with the fewest free GPUs."""

    name: ClassVar[str] = "best_fit"
    source: ClassVar[str] = "best fit, as in E-LAS (ICPP 2020) and Harmony (INFOCOM 2019)"
    interpretation: ClassVar[str] = (
        "Fullness is counted in free GPUs. A node without a job comes last, however small it is. "
        "Ties are decided by the order of nodes."
    )

    key: ClassVar[Key] = free_gpus  # The nodes of the least are taken
    why: ClassVar[str] = "the fullest nodes it fits on"

    def begin(
        self, _snap: Snapshot, _stock: FreeNodes, _profiles: Mapping[str, Profile], /
    ) -> Self:
        """See `Scheme`: it needs to know nothing else."""
        return self

    def place(self, want: PendingJob, offer: CandidateNodes, /) -> Answer:
        """See `Placer`."""
        for ask in want.need.asks:
            nodes = offer.best(ask, type(self).key)
            if nodes is not None:
                return Spot(nodes=nodes, why=self.why)
        return None


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


def _misalignment(stock: NodeGroups, rows: Rows | slice, ask: Ask) -> F64:
    """``(k,)`` minus the alignment score; see `Key`."""
    unit, free = stock.unit[:, rows], stock.free_share[:, rows]
    score: F64 = ask.gpus * unit[0] * free[0]
    score += ask.cpus * unit[1] * free[1]
    score += ask.mem_mb * unit[2] * free[2]
    return -score


@dataclass(frozen=True, slots=True, kw_only=True)
class Tetris(BestFit):
    """Fewest nodes first, then the nodes that fit with the highest alignment score.

    The score is the sum over resources of demand x free, each as a share of the whole node, so that
    large demands go where much is left of what they need.
    """

    name: ClassVar[str] = "tetris"
    source: ClassVar[str] = "Tetris, SIGCOMM 2014, section 3.2 (alignment score)"
    interpretation: ClassVar[str] = (
        "Jobs come in the policy's order; the paper weighs the score against the time left. "
        "Network and disk are left out."
    )

    key: ClassVar[Key] = _misalignment
    why: ClassVar[str] = "the nodes whose free resources suit it best"
