"""On which nodes room may be made for a job: those it is guaranteed, those of its type of GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from slurm_dl.engine.intent import Intent
from slurm_dl.model.jobs import Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.need import Need

Within = Callable[[int], Bool | None]
"""``(m,)`` bool by row in `Jobs`, nodes on which room may be made for it; None: on any."""


def anywhere(_row: int) -> Bool | None:
    """No job is confined to some nodes."""
    return None


def on_types(snap: Snapshot, intent: Intent, within: Within) -> Within:
    """*within*, and a job for which a type of GPUs was chosen on nodes of that type only."""
    kinds, of = intent.kind, snap.seen.nodes.gpu_type
    if kinds is None or len(snap.seen.gpu_types) < 2:  # noqa: PLR2004 - nothing to choose from
        return within

    def narrower(row: int) -> Bool | None:
        nodes = within(row)
        if kinds[row] < 0:
            return nodes
        right: Bool = of == kinds[row]
        return right if nodes is None else nodes & right

    return narrower


def narrowed(need: Need, within: Bool | None) -> Need:
    """*need*, on the nodes *within* only."""
    if within is None:
        return need
    place = (*need.place, within.tobytes())
    return dataclasses.replace(
        need, key=(*need.key, *place), place=place, allowed=need.allowed & within
    )
