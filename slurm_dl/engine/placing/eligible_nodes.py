"""On which nodes room may be made for a job: those it is guaranteed, those of its type of GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from slurm_dl.engine.intent import Intent
from slurm_dl.model.jobs import Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import ResourceRequest

EligibleNodes = Callable[[int], Bool | None]
"""``(m,)`` bool by row in `Jobs`, nodes on which room may be made for it; None: on any."""


def anywhere(_row: int) -> Bool | None:
    """No job is confined to some nodes."""
    return None


def in_both(one: EligibleNodes, other: EligibleNodes) -> EligibleNodes:
    """Nodes that are eligible by *one* and by *other*."""

    def both(row: int) -> Bool | None:
        masks = [mask for mask in (one(row), other(row)) if mask is not None]
        return np.logical_and.reduce(masks) if masks else None

    return both


def nodes_of_chosen_type(snap: Snapshot, intent: Intent) -> EligibleNodes:
    """A job for which the policy chose a type of GPUs is confined to nodes of that type.

    Where it chose none types only helped to count.
    """
    kinds, nodes, order = intent.kind, snap.seen.nodes, intent.order
    if kinds is None or len(snap.seen.gpu_types) < 2:  # noqa: PLR2004 - nothing to choose from
        return anywhere
    if order.share is None and order.gpu_type is None:
        return anywhere

    def of_type(row: int) -> Bool | None:
        if kinds[row] < 0 or (order.gpu_type is not None and order.gpu_type[row] < 0):
            return None
        # Of a node with several types Slurm chooses which GPUs a job gets that asks for any.
        alone = nodes.with_type(int(kinds[row]), only=snap.jobs.gpu_type[row] < 0)
        return alone if (alone & nodes.up).any() else nodes.with_type(int(kinds[row]))

    return of_type


def narrowed(need: ResourceRequest, within: Bool | None) -> ResourceRequest:
    """*need*, on the nodes *within* only."""
    if within is None:
        return need
    place = (*need.place, within.tobytes())
    return dataclasses.replace(
        need, key=(*need.key, *place), place=place, allowed=need.allowed & within
    )
