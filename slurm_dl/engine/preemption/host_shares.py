"""Hand-overs in which running jobs give back CPUs and memory beyond their part of a node.

A waiting job finds GPUs but no CPUs or memory beside them. If it asks for no more than its part,
running jobs whose owners allow less are requeued and start again on their nodes with their parts,
beside it. They keep their place in the order: any job may be the beneficiary, also one that comes
later. Slurm changes no running job, so each pays one restart, under all limits of a preemption.

Source: Synergy, OSDI 2022, section 4.2 (Synergy-TUNE, its second step).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.placing.place_waiting import sealed_nodes
from slurm_dl.engine.placing.trim_requests import is_in_part, lean, room_beside_parts
from slurm_dl.engine.preemption.eligibility import not_beneficiary, tried_in_vain
from slurm_dl.engine.preemption.mode import DecisionContext
from slurm_dl.engine.preemption.new_handovers import next_id, victim_of
from slurm_dl.engine.preemption.slurm_refusals import LimitsLeft
from slurm_dl.engine.settings import Settings
from slurm_dl.engine.target import Rows
from slurm_dl.engine.waiting_sizes import live_elastic
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import is_in
from slurm_dl.placement.resource_request import ResourceRequest
from slurm_dl.placement.synergy import ServerTenant, Share, SynergyServer, givers


def give_backs(
    context: DecisionContext, waiting: Rows, under_way: Sequence[Handover], settings: Settings
) -> list[Handover]:
    """The hand-over to begin now, for the first of the *waiting* jobs that it lets start.

    Args:
        waiting: Rows of the jobs that could start if there were room, best first.
        under_way: Hand-overs that are under way or begin; their nodes are spoken for.
    """
    limits = settings.preemption
    may = settings.placement.trim and limits.enabled and len(under_way) < limits.max_handovers
    search = _Search(context, under_way, settings) if may and len(waiting) else None
    if search is None or not search.parts:
        return []
    found = (handover for row in waiting.tolist() if (handover := search.room_for(row)))
    return list(itertools.islice(found, 1))


class _Search:
    def __init__(
        self, context: DecisionContext, under_way: Sequence[Handover], settings: Settings
    ) -> None:
        snap = self._snap = context.snap
        self._context, self._under_way, self._limits = context, under_way, settings.preemption
        self._open = snap.seen.nodes.up & ~sealed_nodes(snap, under_way)
        self._room = FreeResources.free_in(snap)
        self._left = LimitsLeft(snap, under_way)
        self._served = {b for h in under_way for b in h.beneficiaries}
        held = snap.seen.held
        busy = {v.run.job_id for h in under_way for v in h.victims} | snap.trimmed
        rows = context.candidates.may
        rows = rows[~is_in(snap.jobs.job_id[rows], list(busy))]
        # Of an elastic job CPUs go with its size.
        apart = np.concatenate([live_elastic(snap), held.job[~self._open[held.node]]])
        rows = rows[~is_in(rows, apart)]
        kept = {row: lean(snap, row, context.needs.of(row)) for row in rows.tolist()}
        self.parts = {
            row: Share(part.cpus, part.mem_mb)
            for row, part in kept.items()
            if part is not None and part.n_nodes == len(held.nodes_of(row))
        }
        """CPUs and memory that each job that can give back keeps on each of its nodes, by row."""

    def room_for(self, row: int) -> Handover | None:
        """The hand-over that lets the waiting job at *row* start; None if there is none."""
        snap, limits, needs = self._snap, self._limits, self._context.needs
        job_id, need = JobId(int(snap.jobs.job_id[row])), needs.of(row)
        if job_id in self._served:
            return None
        there = self._room.place(need, within=self._open)
        if there is not None:
            # It is Slurm's to start; what it takes is not there for the next one.
            self._room.take(need, there)
            return None
        need = lean(snap, row, need) or need
        if (
            not is_in_part(snap, row, need)
            or not_beneficiary(snap, row, self._context.may_displace, limits)
            or tried_in_vain(snap, row, limits.handover_timeout_s)
            or self._left.why_not(row)
        ):
            return None
        nodes, victims = self._givers(row, need)
        hourly = limits.max_gpus_per_hour or math.inf
        most_gpus = min(hourly - snap.preempted_gpus_last_hour, limits.most_gpus)
        if (
            not 0 < len(victims) <= limits.max_victims
            or float(snap.seen.weighted_gpus()[victims].sum()) > most_gpus
        ):
            return None
        room = room_beside_parts(snap, needs, self._room, victims)
        sealed = np.isin(np.arange(len(snap.seen.nodes)), list(nodes))
        if room.place(need, within=sealed) is None:
            return None
        names = snap.seen.nodes.name
        return Handover(
            handover_id=next_id(snap, self._under_way),
            opened_s=snap.now_s,
            beneficiaries=(job_id,),
            victims=tuple(victim_of(snap, victim) for victim in victims),
            nodes=tuple(names[n] for n in sorted(nodes)),
            purpose="trim",
            seats=tuple(names[n] for n in sorted(self._on(victims))),
        )

    def _givers(self, row: int, need: ResourceRequest) -> tuple[set[int], list[int]]:
        """Nodes of the job and of those that give back, and the rows of these; none: no way."""
        bare = dataclasses.replace(need.asks[0], cpus=0, mem_mb=0)
        within = self._open & self._room.fits_on(need, bare)
        for nodes_of in (self._context.within, self._context.types):
            mine = nodes_of(row)
            within = within if mine is None else within & mine
        has_giver = np.isin(np.arange(len(within)), list(self._on(self.parts)))
        nodes = np.flatnonzero(within & (self._room.fits_on(need) | has_giver)).tolist()
        servers = [self._server(node) for node in nodes]
        share = Share(need.cpus, need.mem_mb)
        found = givers(servers, n_servers=need.n_nodes, gpus=need.gpus, share=share) or {}
        victims = sorted({job for jobs in found.values() for job in jobs})
        return {nodes[i] for i in found} | self._on(victims), victims

    def _on(self, rows: Iterable[int]) -> set[int]:
        """Nodes of the running jobs at *rows*."""
        return {n for row in rows for n in self._snap.seen.held.nodes_of(row).tolist()}

    def _server(self, node: int) -> SynergyServer:
        held, room, tenants = self._snap.seen.held, self._room, list[ServerTenant]()
        for at in np.flatnonzero(held.node == node).tolist():
            row, gpus = int(held.job[at]), float(held.gpus[at])
            if row in self.parts and gpus > 0:
                has = Share(int(held.cpus[at]), int(held.mem_mb[at]))
                keeps = has.no_more_than(self.parts[row])
                tenants.append(ServerTenant(job=row, gpus=gpus, has=has, keeps=keeps))
        return SynergyServer(
            free_gpus=float(room.gpus[node]),
            free=Share(int(room.cpus[node]), int(room.mem_mb[node])),
            tenants=tuple(tenants),
        )
