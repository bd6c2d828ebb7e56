"""Jobs get their fair part of CPUs and memory instead of more where another job needs the rest.

A job may ask for more than the part of a node that goes with its GPUs, because its model can use
it. It is cut to its part, never below, and only if its owner has said so: where it waits for the
rest and its part is there, and where a job that asks for no more than its own part fits beside it
then. Slurm changes no running job; `preemption.host_shares` starts such jobs again.

Source: Synergy, OSDI 2022, section 4.2 (Synergy-TUNE).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.placing.free_resources import FreeResources, NodeRows
from slurm_dl.engine.placing.place_waiting import sealed_nodes
from slurm_dl.engine.preemption.eligibility import waiting
from slurm_dl.engine.site_factors import in_window
from slurm_dl.model.handover import Handover, jobs_of
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import is_in
from slurm_dl.model.plan import Trim
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import ResourceRequest, ResourceRequests
from slurm_dl.placement.synergy import Host, Share, proportional

WHY = "there is room for it with the CPUs and memory that go with its GPUs"
_BESIDE = "another job fits beside it if it has the CPUs and memory that go with its GPUs"


def trims(
    snap: Snapshot, ranked: npt.NDArray[np.int64], live: Collection[Handover], window: int
) -> Iterator[Trim]:
    """Trims of waiting jobs' requests, best jobs first; a job is tried once.

    Args:
        ranked: Rows of the managed live jobs, best first.
        live: Hand-overs under way. Their jobs are not cut here, and their nodes are not looked at.
        window: Waiting jobs of each partition, best first, that are looked at.
    """
    ready = waiting(snap)[ranked]
    first = ranked[ready & in_window(snap, ranked, ready, window)]
    rows = first[~is_in(snap.jobs.job_id[first], list(jobs_of(live)))].tolist()
    if not any(_is_flexible(snap, row) for row in rows):
        return
    needs, room = ResourceRequests(snap), FreeResources.free_in(snap)
    room.gpus[sealed_nodes(snap, live)] = -1.0  # Nothing fits there.
    wide: dict[int, tuple[ResourceRequest, ResourceRequest, NodeRows]] = {}
    for row in rows:
        need, was_cut = needs.of(row), JobId(int(snap.jobs.job_id[row])) in snap.trimmed
        cut = None if was_cut else lean(snap, row, need)
        nodes = room.place(need)
        if nodes is not None:
            room.take(need, nodes)
            if cut is not None:
                wide[row] = need, cut, nodes
            continue
        least, nodes = cut or need, room.place(cut or need)
        if nodes is None and is_in_part(snap, row, least):
            giver, room, nodes = _beside(room, least, wide)
            if nodes is not None:
                del wide[giver]
                yield from trim_of(snap, needs, giver, _BESIDE)
        if nodes is not None:
            room.take(least, nodes)
            yield from trim_of(snap, needs, row, WHY) if cut is not None else ()


def _beside(
    room: FreeResources,
    need: ResourceRequest,
    wide: Mapping[int, tuple[ResourceRequest, ResourceRequest, NodeRows]],
) -> tuple[int, FreeResources, NodeRows | None]:
    """The last of the jobs *wide* beside whose part *need* fits, the room then, and where.

    Args:
        wide: Request, part and nodes of the jobs that are about to start with more, best first.
    """
    for row, (wished, part, on) in reversed(list(wide.items())):
        left = room.copy()
        left.cpus[on] += wished.cpus - part.cpus
        left.mem_mb[on] += wished.mem_mb - part.mem_mb
        if (nodes := left.place(need)) is not None:
            return row, left, nodes
    return -1, room, None


def trim_of(snap: Snapshot, needs: ResourceRequests, row: int, why: str) -> Iterator[Trim]:
    """The write that cuts the waiting job at *row* to its part, if it asks for more."""
    wished = needs.of(row)
    part = lean(snap, row, wished)
    if part is not None:
        yield Trim(
            job_id=JobId(int(snap.jobs.job_id[row])),
            cpus=part.cpus if part.cpus < wished.cpus else 0,
            mem_mb=part.mem_mb if part.mem_mb < wished.mem_mb else 0,
            why=why,
        )


def room_beside_parts(
    snap: Snapshot, needs: ResourceRequests, room: FreeResources, rows: Iterable[int]
) -> FreeResources:
    """*room* once the running jobs at *rows* have started again on their nodes with their parts."""
    room, held = room.copy(), snap.seen.held
    for row in rows:
        if (part := lean(snap, row, needs.of(row))) is not None:
            on, mine = held.nodes_of(row), held.job == row
            room.cpus[on] += np.maximum(held.cpus[mine] - part.cpus, 0)
            room.mem_mb[on] += np.maximum(held.mem_mb[mine] - part.mem_mb, 0)
    return room


def is_in_part(snap: Snapshot, row: int, need: ResourceRequest) -> bool:
    """True if *need* of the job at *row* is no more than the part that goes with its GPUs."""
    part = _part(snap, row, need)
    return part is not None and part.covers(Share(need.cpus, need.mem_mb))


def _is_flexible(snap: Snapshot, row: int) -> bool:
    """Its owner lets it be cut, and it is of a kind that `change_request` can cut."""
    job_id = JobId(int(snap.jobs.job_id[row]))
    claim = snap.seen.claim(job_id)
    is_allowed = claim.least_cpus is not None or claim.least_mem_mb is not None
    is_apart = claim.most_nodes is None and not snap.is_of_array(job_id)
    return is_allowed and is_apart and not snap.jobs.exclusive[row]


def lean(snap: Snapshot, row: int, need: ResourceRequest) -> ResourceRequest | None:
    """*need* with the least its owner allows, and no less than its part of a node.

    None if that is what it asks for anyway, or its owner allows no less.
    """
    part = _part(snap, row, need) if _is_flexible(snap, row) else None
    if part is None:
        return None
    claim, ask = snap.seen.claim(JobId(int(snap.jobs.job_id[row]))), need.asks[0]
    cpus, mem_mb = ask.cpus, ask.mem_mb
    if claim.least_cpus is not None:
        cpus = min(ask.cpus, max(claim.least_cpus, part.cpus))
    if claim.least_mem_mb is not None and ask.mem_mb > 0:
        mem_mb = min(ask.mem_mb, max(claim.least_mem_mb, part.mem_mb))
    if (cpus, mem_mb) == (ask.cpus, ask.mem_mb):
        return None
    less = dataclasses.replace(ask, cpus=cpus, mem_mb=mem_mb)
    return dataclasses.replace(need, key=(*need.key, less), asks=(less,))


def _part(snap: Snapshot, row: int, need: ResourceRequest) -> Share | None:
    """Part of a node that goes with the GPUs of *need*; None if it has none, or no node so many."""
    ask, nodes = need.asks[0], snap.seen.nodes
    wide = np.flatnonzero(need.allowed & (nodes.of_type(int(snap.jobs.gpu_type[row])) >= ask.gpus))
    if not (len(wide) and ask.gpus > 0):
        return None
    # Of unlike nodes the largest part, so that it is nowhere below its part.
    columns = (column[wide].tolist() for column in (nodes.gpus, nodes.cpus, nodes.mem_mb))
    sizes = set(zip(*columns, strict=True))
    hosts = [Host(gpus=int(g), cpus=int(c), mem_mb=int(m)) for g, c, m in sizes]
    parts = [proportional(host, ask.gpus) for host in hosts]
    return Share(max(part.cpus for part in parts), max(part.mem_mb for part in parts))
