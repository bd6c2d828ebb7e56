"""Nodes on which room may be made for a job: it is guaranteed them, or they have its type of GPUs.

Those that waiting jobs of a higher PriorityTier could use are never freed for a lower one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from slurm_dl.engine.fresh_look import THERE_IS_ROOM
from slurm_dl.engine.intent import Intent
from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.preemption.eligibility import lacks_room
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import I64, PENDING, Bool
from slurm_dl.model.limits import PartitionLimits
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.reservations import eligible
from slurm_dl.placement.resource_request import ResourceRequest, ResourceRequests

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HigherTiers:
    """Nodes on which waiting jobs come before jobs of a lower PriorityTier.

    Slurm starts the jobs of the higher tier first as room comes up. A reservation of ours would go
    round that, so it is not looked at whether slurm_dl manages their partition.
    """

    snap: Snapshot
    of: I64  # ``(p + 1,)`` PriorityTier of each partition
    tier: I64  # ``(m,)`` highest PriorityTier in which a waiting job could use each node; 0: none
    job: I64  # ``(m,)`` row in `Jobs` of the first such job
    partition: I64  # ``(m,)`` the partition in which it could
    _known: dict[tuple[int, ...], Bool] = field(default_factory=dict)

    def within(self, row: int) -> Bool | None:
        """``(m,)`` bool, nodes that are not kept from the job at *row*; None: none is."""
        kept = self._kept(row)
        return ~kept if kept.any() else None

    def notes(self, notes: Mapping[JobId, str]) -> dict[JobId, str]:
        """*notes* on waiting jobs, with the job that comes first on nodes that they could use."""
        snap, told = self.snap, dict(notes)
        jobs, rows = snap.jobs, snap.jobs.rows
        for job_id, note in notes.items():
            row = rows[job_id]
            nodes = self._kept(row) & snap.seen.nodes.up & eligible(snap, row)
            if note == THERE_IS_ROOM or jobs.state[row] != PENDING or not nodes.any():
                continue
            at = int(np.where(nodes, self.tier, 0).argmax())
            first = f"job {jobs.job_id[self.job[at]]}"
            first += f" of partition {snap.seen.partitions[self.partition[at]]}"
            first += f" (PriorityTier {self.tier[at]}) comes first on these nodes"
            told[job_id] = f"{first}; {note}"
        return told

    def _kept(self, row: int) -> Bool:
        partitions = self.snap.partitions_of(row)
        if partitions not in self._known:
            own = self.of[list(partitions), None] * self.snap.seen.node_in[list(partitions)]
            # Elsewhere the job has no business.
            self._known[partitions] = (own.max(axis=0) < self.tier) & (own.max(axis=0) > 0)
        return self._known[partitions]


def higher_tiers(snap: Snapshot) -> HigherTiers | None:
    """The nodes that waiting jobs could use before others; None where no job comes before others.

    A job counts if Slurm could start it if nobody ran. One whose conditions are not understood
    could use any node of its partitions. A hand-over that is under way has its own nodes for its
    jobs, and they wait for no others.
    """
    of, tiers = snap.partition_tiers(), snap.priority_tiers()
    if of is None or tiers is None or not snap.managed.any():
        return None
    seen, jobs = snap.seen, snap.jobs
    served = [b for h in snap.handovers for b in h.beneficiaries]
    above = tiers > of[: len(snap.managed)][snap.managed].min()
    above |= np.isin(jobs.job_id, list(seen.also_in))
    rows = np.flatnonzero(lacks_room(snap) & above & ~np.isin(jobs.job_id, served))
    if not len(rows):
        return None
    choices = {job: nodes for job, nodes in seen.choices.items() if nodes.any()}
    loose = snap.derived(seen=dataclasses.replace(seen, choices=choices))
    needs, whole = ResourceRequests(loose), FreeResources.unoccupied(snap)
    tier, job, part = np.zeros((3, len(seen.nodes)), np.int64)
    found = HigherTiers(snap=snap, of=of, tier=tier, job=job, partition=part)
    up = seen.nodes.up & seen.node_in
    done: set[tuple[object, ...]] = set()
    for row in rows[np.argsort(jobs.job_id[rows])].tolist():
        need = needs.of(row)
        n_nodes, limit_s = int(jobs.n_nodes[row]), float(jobs.limit_s[row])
        partitions = snap.partitions_of(row)
        for partition in partitions:
            limits = seen.limits[partition] or PartitionLimits()
            key = (partition, *need.key)
            if key in done or not limits.takes(n_nodes, limit_s):
                continue
            if len(partitions) > 1 and not limits.is_open:
                continue  # Anybody may name it beside one that admits him.
            done.add(key)
            if (found.tier >= of[partition])[up[partition]].all():
                continue  # No other job keeps more of it.
            for ask in need.asks:
                fits = whole.fits_on(need, ask) & seen.node_in[partition]
                if np.count_nonzero(fits) >= ask.n_nodes:
                    more = fits & (found.tier < of[partition])
                    found.tier[more], found.job[more] = of[partition], row
                    found.partition[more] = partition
    return found
