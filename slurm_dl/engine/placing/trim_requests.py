"""Pending jobs that would fit with fewer CPUs or less memory get their fair part instead of more.

A job may ask for more than the part of a node that goes with its GPUs, because its model can use
it. Where it waits for that and its part is there, it is cut to its part; never below, and only if
its owner has said so. Slurm changes no running job, so nobody who runs gives anything back.

Source: Synergy, OSDI 2022, section 4.2 (Synergy-TUNE, its first step).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.preemption.eligibility import waiting
from slurm_dl.engine.site_factors import in_window
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import Trim
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import ResourceRequest, ResourceRequests
from slurm_dl.placement.synergy import Host, Share, proportional

WHY = "there is room for it with the CPUs and memory that go with its GPUs"


def trims(
    snap: Snapshot, ranked: npt.NDArray[np.int64], reserved: Collection[JobId], window: int
) -> Iterator[Trim]:
    """Trims of waiting jobs' requests, best jobs first; a job is tried once.

    Args:
        ranked: Rows of the managed live jobs, best first.
        reserved: Jobs that a hand-over makes room for as they are.
        window: Waiting jobs of each partition, best first, that are looked at.
    """
    ready = waiting(snap)[ranked]
    first = ranked[ready & in_window(snap, ranked, ready, window)]
    rows = [row for row in first.tolist() if _is_flexible(snap, row)]
    if not rows:
        return
    needs, room = ResourceRequests(snap), FreeResources.free_in(snap)
    for row in rows:
        job_id = JobId(int(snap.jobs.job_id[row]))
        if job_id in reserved or job_id in snap.trimmed:
            continue
        need = needs.of(row)
        nodes = room.place(need)
        if nodes is not None:
            room.take(need, nodes)
            continue
        lean = _lean(snap, row, need)
        nodes = None if lean is None else room.place(lean)
        if lean is None or nodes is None:
            continue
        room.take(lean, nodes)
        ask, wished = lean.asks[0], need.asks[0]
        yield Trim(
            job_id=job_id,
            cpus=ask.cpus if ask.cpus < wished.cpus else 0,
            mem_mb=ask.mem_mb if ask.mem_mb < wished.mem_mb else 0,
            why=WHY,
        )


def _is_flexible(snap: Snapshot, row: int) -> bool:
    """Whether its owner lets it be cut, and it is of a shape that Slurm lets be cut."""
    claim = snap.seen.claim(JobId(int(snap.jobs.job_id[row])))
    is_allowed = claim.least_cpus is not None or claim.least_mem_mb is not None
    return is_allowed and claim.most_nodes is None and not snap.jobs.exclusive[row]


def _lean(snap: Snapshot, row: int, need: ResourceRequest) -> ResourceRequest | None:
    """*need* with the least its owner allows, and no less than its part of a node.

    None if that is what it asks for anyway.
    """
    claim = snap.seen.claim(JobId(int(snap.jobs.job_id[row])))
    ask, nodes = need.asks[0], snap.seen.nodes
    wide = np.flatnonzero(need.allowed & (nodes.of_type(int(snap.jobs.gpu_type[row])) >= ask.gpus))
    if not len(wide):
        return None
    # Of unlike nodes the largest part, so that it is nowhere below its part.
    part = Share(0, 0)
    for gpus, cpus, mem_mb in {
        (int(nodes.gpus[n]), int(nodes.cpus[n]), int(nodes.mem_mb[n])) for n in wide.tolist()
    }:
        mine = proportional(Host(gpus=gpus, cpus=cpus, mem_mb=mem_mb), ask.gpus)
        part = Share(max(part.cpus, mine.cpus), max(part.mem_mb, mine.mem_mb))
    cpus, mem_mb = ask.cpus, ask.mem_mb
    if claim.least_cpus is not None:
        cpus = min(ask.cpus, max(claim.least_cpus, part.cpus))
    if claim.least_mem_mb is not None and ask.mem_mb > 0:
        mem_mb = min(ask.mem_mb, max(claim.least_mem_mb, part.mem_mb))
    if (cpus, mem_mb) == (ask.cpus, ask.mem_mb):
        return None
    lean = dataclasses.replace(ask, cpus=cpus, mem_mb=mem_mb)
    return dataclasses.replace(need, key=(*need.key, lean), asks=(lean,))
