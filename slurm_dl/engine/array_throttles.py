"""ArrayTaskThrottle of arrays of which only some tasks are to run at once.

Slurm serves all tasks of a pending record in its place in the line, and starts tasks of a later
array on GPUs that an earlier job cannot use yet. A begin time would put off the whole record; the
throttle bounds how many tasks run. It cannot be zero, so at least one task of an array may run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from slurm_dl.model.booking import Entry, changes, entry
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import I32
from slurm_dl.model.plan import Book, Throttle
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.throttle import FREE, NO_THROTTLE, THROTTLE, Throttled, owned, throttles_in
from slurm_dl.policies.base import Policy


def watched(policy: Policy, booked: Iterable[Entry]) -> bool:
    """True if throttles of arrays have to be known: it takes an RPC for each array.

    The policy bounds arrays, or some are *booked* that are to be written back.
    """
    return bool(getattr(policy, "bounds_arrays", False) or throttles_in(booked))


class Throttling(NamedTuple):
    """Throttles to write, after they are booked, and the reasons."""

    books: tuple[Book, ...]
    writes: tuple[Throttle, ...]
    notes: dict[JobId, str]  # By pending array that ours bounds


def throttling(
    snap: Snapshot, running: I32 | None, why: str, whys: Mapping[JobId, str]
) -> Throttling:
    """Throttles that are not as *running* wants them; the owner's where it wants none.

    Args:
        running: ``(n,)`` tasks that each array may run at once, 1 or more; `FREE`: as many as its
            owner lets run. None: `FREE` for all.
        why: Of what it is a rule: the name of a policy.
        whys: Reasons of single arrays that come before it.
    """
    booked, present_of = throttles_in(snap.booked), snap.seen.throttles
    if running is None and not booked:
        return Throttling((), (), {})
    row_of, managed = snap.jobs.rows, snap.managed_jobs
    # An array that is not listed need not have left; of one that is, Slurm may not have told.
    gone = (j for j in booked if j not in row_of and not snap.seen.may_list(j))
    wanted = [entry(THROTTLE, j, None) for j in gone]
    writes, notes = [], {}
    for job_id, own in sorted(owned(booked, present_of).items()):
        row, present = row_of[job_id], present_of[job_id]
        most = FREE if running is None or not managed[row] else int(running[row])
        ours = own if most == FREE else most if own == NO_THROTTLE else min(own, most)
        if ours == own == present:
            wanted.append(entry(THROTTLE, job_id, None))
            continue
        body = Throttled(own=own, ours=ours, before=present).body()
        wanted.append(entry(THROTTLE, job_id, body))
        if ours != own:
            notes[job_id] = whys.get(job_id, f"{why} lets {ours} of its tasks run at once")
        if ours != present:
            back = "its owner's throttle is written back"
            writes.append(Throttle(job_id=job_id, tasks=ours, why=notes.get(job_id, back)))
    entries = changes(snap.booked, wanted)
    told = "throttles of arrays change: " + ", ".join(e.key for e in entries)
    books = (Book(entries=entries, why=told),) if entries else ()
    return Throttling(books, tuple(writes), notes)
