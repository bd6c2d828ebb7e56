"""A small policy that promises: first come, as long as all promised GPUs fit beside each other."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from slurm_dl.model.booking import Entry
from slurm_dl.model.ids import JobId
from slurm_dl.model.promise import Promise, promises_in
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Order
from slurm_dl.policies.fifo import FifoSkip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Admitting(FifoSkip):
    """Promises a job whatever others that were promised leave of all GPUs."""

    name: ClassVar[str] = "admitting"
    promises: ClassVar[bool] = True

    def order(self, snap: Snapshot, /) -> Order:
        """First eligible first, with a verdict on each new deadline."""
        order = FifoSkip.order(self, snap)
        if snap.due_s is None:
            return order
        known = promises_in(snap.booked)
        free = float(snap.seen.nodes.gpus.sum())
        free -= sum(p.gpus for p in known.values() if p.is_kept)
        book: list[Entry] = []
        for row in np.lexsort((snap.jobs.job_id, snap.memory.queued_s)).tolist():
            job_id, due_s = JobId(int(snap.jobs.job_id[row])), snap.due_s[row]
            if job_id in known or not np.isfinite(due_s):
                continue
            gpus, left_s = float(snap.jobs.gpus[row]), float(snap.left_s[row])
            fits = gpus <= free and snap.now_s + left_s <= due_s
            free -= gpus if fits else 0.0
            promise = Promise(
                says="yes" if fits else "no",
                due_s=int(due_s),
                at_s=int(snap.now_s),
                gpus=gpus,
                needs_s=0 if np.isinf(left_s) else int(left_s),
                rests_on="limit",
                begin_s=int(due_s - left_s) if fits else None,
                end_s=int(due_s) if fits else None,
                nearest_s=None if fits or np.isinf(left_s) else int(snap.now_s + 2 * left_s),
                why="" if fits else "GPUs are promised to other jobs until then",
            )
            book.append(promise.entry(job_id))
        return dataclasses.replace(order, book=tuple(book))
