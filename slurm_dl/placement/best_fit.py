"""The fullest nodes on which a job still fits, on as few nodes as may be.

It keeps empty nodes empty for the jobs that need them whole. Where a job may lie on more nodes than
it asks for, fewer come first.

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
from slurm_dl.placement.pending_job import PendingJob
from slurm_dl.placement.ranked_groups import Key
from slurm_dl.placement.resource_request import Ask
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

    key: ClassVar[Key] = free_gpus
    """The nodes of the least are taken."""
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
