"""Users who forbade the requeue of a job that ran with a contract.

Such a run keeps its GPUs, as Slurm refuses to requeue it. So that nobody gains by that, the user's
jobs count as jobs without a contract while it lasts and for some time after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slurm_dl.engine.settings import Preemption
from slurm_dl.json_types import JsonObject
from slurm_dl.ledger.run_contracts import BROKEN
from slurm_dl.model.booking import Entry, entry, of_kind
from slurm_dl.model.jobs import is_in
from slurm_dl.model.plan import Book
from slurm_dl.model.snapshot import Snapshot

_ANEW_S: Final = 86_400.0
"""While such a run lasts its entry is written anew this often."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The last run of one user that was taken out of its contract."""

    job_id: int
    at_s: float  # When it was last written down, epoch seconds


def broke_contracts(snap: Snapshot, limits: Preemption) -> dict[int, Broken]:
    """Users whose contracts do not count, by uid."""
    return {uid: b for uid, b in _known(snap).items() if _counts(b, snap, limits)}


def note_broken(snap: Snapshot, limits: Preemption) -> list[Book]:
    """Write down the runs that were taken out of their contract; strike out what counts no more."""
    jobs, known = snap.jobs, _known(snap)
    rows = is_in(jobs.job_id, list(snap.broken)) & snap.managed_jobs & (jobs.gpus > 0)
    now = dict(zip(jobs.uid[rows].tolist(), jobs.job_id[rows].tolist(), strict=True))
    new = {
        uid: job_id
        for uid, job_id in now.items()
        if uid not in known or abs(snap.now_s - known[uid].at_s) >= _ANEW_S
    }
    old = [uid for uid, b in known.items() if uid not in now and not _counts(b, snap, limits)]
    entries: list[Entry] = [entry(BROKEN, uid, None) for uid in old]
    for uid, job_id in new.items():
        body: JsonObject = {"job_id": job_id, "at_s": snap.now_s}
        entries.append(entry(BROKEN, uid, body))
    if not entries:
        return []
    ids = ", ".join(map(str, sorted(new.values())))
    why = f"Requeue=0 was set while jobs ran with a contract: {ids}" if new else "over"
    return [Book(entries=tuple(entries), why=why)]


def _known(snap: Snapshot) -> dict[int, Broken]:
    """Entries of the book by uid; a damaged one is passed over."""
    known = {}
    for uid, body in of_kind(snap.booked, BROKEN).items():
        job_id, at_s = body.get("job_id"), body.get("at_s")
        if uid.isdecimal() and isinstance(job_id, int) and isinstance(at_s, int | float):
            known[int(uid)] = Broken(job_id, float(at_s))
    return known


def _counts(broken: Broken, snap: Snapshot, limits: Preemption) -> bool:
    return abs(snap.now_s - broken.at_s) < limits.broken_contract_s
