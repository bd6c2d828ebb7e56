"""Locked shapes: jobs that keep the type of GPUs on which they first ran.

A placement that a job has learned for its operations is of use on the same GPUs alone. Before its
first run a locked job may get any type that its request allows. From then on it counts as a job
that asks for that type: no policy plans it for another, and nothing moves it there. While it waits
its request is written so that Slurm keeps to the type, too. A run on another type is left there.
That gives it no more than its owner has with ``--gpu-type``.

A locked job has no sizes either: `slurm_dl.slurm.read.comment_claims` reads none.

Source: the systems that learn the placement of operations, Spotlight (ICML 2018) and Mirhoseini et
al., "Device Placement Optimization with Reinforcement Learning" (ICML 2017).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from slurm_dl.json_types import JsonObject
from slurm_dl.model.booking import changes, entry, of_kind
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, PENDING
from slurm_dl.model.plan import Book, Reshape
from slurm_dl.model.shape import Shape
from slurm_dl.model.sizes import size_of
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.supply_and_demand import type_held

LOCKED: Final = "locked"  # Kind of the entries, by job id: type and shape of the first run


class Locks(NamedTuple):
    """Locked jobs of one snapshot."""

    snap: Snapshot  # The snapshot in which they ask for their types
    actions: tuple[Book | Reshape, ...]  # What is written down of them, and into their requests


def locks_of(snap: Snapshot) -> Locks:
    """The locked jobs that have run, or that run now, with their types."""
    known = of_kind(snap.booked, LOCKED)
    claimed = [job_id for job_id, claim in snap.seen.claims.items() if claim.locked]
    types = snap.seen.gpu_types
    if not known and (not claimed or len(types) < 2):  # noqa: PLR2004 - one type
        return Locks(snap, ())
    jobs = snap.jobs
    held, gpu_type = type_held(snap.seen, snap.on_type), jobs.gpu_type.copy()
    actions: list[Book | Reshape] = []
    # A job that is not listed need not have left, and one that is over may be requeued.
    stay = {
        k: body
        for k, body in known.items()
        if snap.seen.may_list(JobId(int(k))) or snap.seen.claim(JobId(int(k))).locked
    }
    for job_id in claimed:
        row = jobs.rows.get(job_id)
        if row is None or jobs.state[row] >= COMPLETED or not snap.managed_jobs[row]:
            continue
        here = types[held[row]] if 0 <= held[row] < len(types) else ""
        body = stay.get(str(job_id))
        if body is None or body["type"] not in types:
            body = _first_run(snap, row, here) or body
        if body is None:
            continue
        stay[str(job_id)] = body
        # Slurm may have started it elsewhere, as where its request cannot be changed.
        name = here or str(body["type"])
        if jobs.gpu_type[row] < 0 and name in types:
            gpu_type[row] = types.index(name)
            if jobs.state[row] == PENDING and not snap.is_of_array(job_id):
                why = f"its shape is locked, and it has run on {name}"
                shape = Shape.of(str(body["shape"]))
                actions.append(
                    Reshape(job_id=job_id, shape=shape, cpus=0, mem_mb=0, why=why, gpu_type=name)
                )
    entries = [entry(LOCKED, k, stay.get(k)) for k in known.keys() | stay.keys()]
    if news := changes(snap.booked, entries):
        actions.insert(0, Book(entries=news, why="types of GPUs that jobs are locked to"))
    if (gpu_type != jobs.gpu_type).any():
        snap = snap.with_jobs(gpu_type=gpu_type)
    return Locks(snap, tuple(actions))


def _first_run(snap: Snapshot, row: int, gpu_type: str) -> JsonObject | None:
    """The type and the shape of a job that runs now; None if it does not."""
    shape = size_of(snap.jobs, row)
    return {"type": gpu_type, "shape": str(shape)} if gpu_type and shape else None
