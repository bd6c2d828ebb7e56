"""On as few leaf switches as may be, and on the leaf that it fills best.

Trees and blocks look alike: each node is on one leaf. Where one leaf can hold a job it goes to the
one with the fewest free suitable nodes that still does, so that large jobs find whole leaves; else
to the fewest leaves.

Source: Slurm's topology/tree (best-fit leaf); locality as in Philly, ATC 2019, section 3.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from slurm_dl.model.jobs import I64
from slurm_dl.model.parameter_bounds import Bounded, NotNegative
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.best_fit import free_gpus
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.ranked_groups import Key
from slurm_dl.placement.resource_request import Ask, PendingJob
from slurm_dl.placement.scheme import Answer, Placer, Spot, Wait
from slurm_dl.placement.soonest import Soonest


def fewest_leaves(nodes: I64, n_nodes: int) -> list[tuple[int, int]]:
    """The leaves to take, each with the nodes to take there; empty if there are too few.

    The largest first are the fewest: any k leaves hold at most as many nodes as the k largest do.
    The last one is the smallest that would do, so that large ones stay whole.

    Args:
        nodes: ``(l,)`` suitable nodes on each leaf.
        n_nodes: Nodes in all, at least 1.
    """
    left = n_nodes
    taken: list[tuple[int, int]] = []
    while left:
        enough = (nodes >= left).nonzero()[0]
        if len(enough):
            last = int(enough[nodes[enough].argmin()])
            return [*taken, (last, left)]
        largest = int(nodes.argmax()) if len(nodes) else -1
        if largest < 0 or nodes[largest] == 0:
            return []
        taken.append((largest, int(nodes[largest])))
        left -= int(nodes[largest])
        nodes = nodes.copy()
        nodes[largest] = 0
    return taken


def nodes_on(
    offer: CandidateNodes, ask: Ask, by: Key, leaves: list[tuple[int, int]]
) -> tuple[int, ...] | None:
    """The nodes that are best by *by* on the leaves that `fewest_leaves` chose."""
    nodes = [node for leaf, n in leaves for node in offer.best_on(ask, by, leaf, n)]
    return tuple(sorted(nodes)) if len(nodes) == ask.n_nodes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology(Bounded):
    """Fewest nodes first, then the fewest leaf switches, then the leaf with the tightest fit.

    Attributes:
        locality_wait_s: How long a job of several nodes waits for one leaf before it takes more,
            seconds. 0: no wait.
    """

    name: ClassVar[str] = "topology"
    source: ClassVar[str] = "best-fit leaf, as in Slurm's topology/tree; Philly, ATC 2019"
    interpretation: ClassVar[str] = (
        "There is one level of switches. Inside a leaf the fullest nodes are taken. The wait "
        "counts from the end of the job's last run, or from its submission."
    )

    locality_wait_s: NotNegative = 0.0

    def begin(
        self, snap: Snapshot, stock: FreeNodes, _profiles: Mapping[str, Profile], /
    ) -> Placer:
        """See `Scheme`."""
        return _OnLeaves(self, snap, stock)


class _OnLeaves:
    """See `Topology`."""

    def __init__(self, how: Topology, snap: Snapshot, stock: FreeNodes) -> None:
        self._how = how
        self._soonest = functools.cache(lambda: Soonest(snap, stock))

    def place(self, want: PendingJob, offer: CandidateNodes, /) -> Answer:
        """See `Placer`."""
        for_s = self._how.locality_wait_s - want.waited_s
        for ask in want.need.asks:
            leaves = fewest_leaves(offer.on_leaves(ask, free_gpus), ask.n_nodes)
            if len(leaves) != 1 and ask.n_nodes > 1 and for_s > 0:
                wait = self._wait(want, offer, ask, for_s)
                if wait is not None:
                    return wait
            nodes = nodes_on(offer, ask, free_gpus, leaves) if leaves else None
            if nodes is not None:
                n = len(leaves)
                return Spot(
                    nodes=nodes,
                    why="the leaf it fills best" if n == 1 else f"{n} leaves, no fewer",
                )
        return None

    def _wait(self, want: PendingJob, offer: CandidateNodes, ask: Ask, for_s: float) -> Wait | None:
        """On one leaf; None if no leaf, or every node that it may use, is as good."""
        soonest = self._soonest()
        wide = soonest.wide(offer, ask)
        if soonest.leaves_of(wide) < 2:  # noqa: PLR2004 - one leaf is no choice
            return None
        leaf = soonest.best_leaf(want, wide, ask)
        return None if leaf is None else Wait(within=leaf, for_s=for_s, why="one leaf switch")
