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
    if not known and (not claimed or len(snap.seen.gpu_types) < 2):  # noqa: PLR2004 - one type
        return Locks(snap, ())
    jobs, row_of = snap.jobs, snap.jobs.rows
    held, gpu_type = type_held(snap.seen, snap.on_type), jobs.gpu_type.copy()
    actions: list[Book | Reshape] = []
    # A job that is not listed need not have left.
    stay = {k: known[k] for k in known if k.isdecimal() and snap.seen.may_list(JobId(int(k)))}
    for job_id in claimed:
        row = row_of.get(job_id)
        if row is None or jobs.state[row] >= COMPLETED or not snap.managed_jobs[row]:
            continue
        body = _body(snap, row, int(held[row]), known.get(str(job_id)))
        if body is None:
            continue
        stay[str(job_id)] = body
        if jobs.gpu_type[row] < 0:
            of_lock = snap.seen.gpu_types.index(str(body["type"]))
            # Slurm may have started it elsewhere, as where its request cannot be changed.
            gpu_type[row] = held[row] if 0 <= held[row] < len(snap.seen.gpu_types) else of_lock
            if jobs.state[row] == PENDING and not snap.is_of_array(job_id):
                actions.append(_typed(job_id, body))
    entries = [*(entry(LOCKED, k, None) for k in known.keys() - stay.keys())]
    entries += [entry(LOCKED, k, body) for k, body in stay.items()]
    if news := changes(snap.booked, entries):
        actions.insert(0, Book(entries=news, why="types of GPUs that jobs are locked to"))
    if (gpu_type != jobs.gpu_type).any():
        snap = snap.with_jobs(gpu_type=gpu_type)
    return Locks(snap, tuple(actions))


def _body(snap: Snapshot, row: int, held: int, known: JsonObject | None) -> JsonObject | None:
    """The type and the shape of the first run; None before it, or if there is no such type."""
    if known is not None and known.get("type") in snap.seen.gpu_types:
        return known
    shape = size_of(snap.jobs, row)
    if held < 0 or held >= len(snap.seen.gpu_types) or shape is None:
        return None
    return {"type": snap.seen.gpu_types[held], "shape": str(shape)}


def _typed(job_id: JobId, body: JsonObject) -> Reshape:
    """The write that has a waiting job ask for its type, in the shape that it has run in."""
    return Reshape(
        job_id=job_id,
        shape=Shape.of(str(body["shape"])),
        cpus=0,
        mem_mb=0,
        why=f"its shape is locked, and it has run on {body['type']}",
        gpu_type=str(body["type"]),
    )
