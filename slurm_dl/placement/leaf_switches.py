"""On which leaf switches a job of several nodes lies: as few as may be.

Taking the leaves with the most suitable nodes first gives the fewest: any k leaves hold at most as
many nodes as the k largest do. Of the leaves that would do as the last one the smallest is taken,
so that large ones stay whole.
"""

from __future__ import annotations

from slurm_dl.model.jobs import I64
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.ranked_groups import Key
from slurm_dl.placement.resource_request import Ask


def fewest_leaves(nodes: I64, n_nodes: int) -> list[tuple[int, int]]:
    """The leaves to take, each with the nodes to take there; empty if there are too few.

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
