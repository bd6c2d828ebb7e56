"""Users who forbade the requeue of a job that ran with a contract.

Such a run keeps its GPUs, as Slurm refuses to requeue it. So that nobody gains by that, the user's
jobs count as jobs without a contract for a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

from slurm_dl.engine.settings import Preemption
from slurm_dl.json_types import JsonObject
from slurm_dl.model.booking import entry, of_kind
from slurm_dl.model.membership import is_in
from slurm_dl.model.plan import Book
from slurm_dl.model.snapshot import Snapshot

BROKEN: Final = "broken_contract"
"""Kind of the entries in the book; their keys are job ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """One run that was taken out of its contract."""

    job_id: int
    uid: int  # Its owner
    start_s: float  # Start of the run, epoch seconds
    at_s: float  # When it was seen, epoch seconds


def broke_contracts(snap: Snapshot, limits: Preemption) -> dict[int, Broken]:
    """The last run that each user took out of its contract, by uid; as far as it still counts."""
    lasts = {b.uid: b for b in sorted(_known(snap), key=lambda b: b.at_s)}
    return {uid: b for uid, b in lasts.items() if _counts(b, snap, limits)}


def note_broken(snap: Snapshot, limits: Preemption) -> list[Book]:
    """Write down the runs that were taken out of their contract; strike out what counts no more."""
    jobs, known = snap.jobs, _known(snap)
    rows = (is_in(jobs.job_id, list(snap.broken)) & snap.is_managed()).nonzero()[0]
    now = [
        Broken(job_id=job_id, uid=uid, start_s=start_s, at_s=snap.now_s)
        for job_id, uid, start_s in zip(
            jobs.job_id[rows].tolist(), jobs.uid[rows].tolist(), jobs.start_s[rows].tolist(),
            strict=True,
        )
    ]  # fmt: skip
    noted = {(b.job_id, b.start_s) for b in known}
    new = [b for b in now if (b.job_id, b.start_s) not in noted]
    still = {b.job_id for b in now}
    old = [b for b in known if not _counts(b, snap, limits) and b.job_id not in still]
    if not (new or old):
        return []
    entries = [entry(BROKEN, b.job_id, None) for b in old]
    for b in new:
        body: JsonObject = {"uid": b.uid, "start_s": b.start_s, "at_s": b.at_s}
        entries.append(entry(BROKEN, b.job_id, body))
    ids = ", ".join(str(b.job_id) for b in new)
    why = f"Requeue=0 was set while jobs ran with a contract: {ids}" if new else "over"
    return [Book(entries=tuple(entries), why=why)]


def _known(snap: Snapshot) -> list[Broken]:
    return [
        Broken(job_id=int(key), **cast("dict[str, Any]", body))
        for key, body in of_kind(snap.booked, BROKEN).items()
    ]


def _counts(broken: Broken, snap: Snapshot, limits: Preemption) -> bool:
    return abs(snap.now_s - broken.at_s) < limits.broken_contract_s
