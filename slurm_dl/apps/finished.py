"""Jobs that are over, as Slurm last listed them: whose they were and how they ended.

Slurm forgets a job minutes after its end, and the ledger knows neither its name nor its owner. What
is kept here is lost when the daemon ends.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from slurm_dl.apps.published import Published, text_of
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, JobState

MOST_JOBS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedJob:
    """One job.

    Attributes:
        job_id: Id of its record.
        uid: Its owner.
        label: As Slurm names it.
        ending: How it ended, in a word.
    """

    job_id: JobId
    uid: int
    label: str
    ending: str


class Finished:
    """Remembers the last jobs that ended. A `Watcher`; other threads may ask it."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[JobId, FinishedJob] = OrderedDict()
        self._by_label: dict[str, JobId] = {}
        self._over = np.empty(0, np.int64)

    def saw(self, now: Published, /) -> None:
        """Take in those that are over since the last cycle."""
        if now.cycle is None:
            return
        seen = now.cycle.snapshot.seen
        jobs = seen.jobs
        rows = np.flatnonzero(jobs.state >= COMPLETED)
        new = rows[~np.isin(jobs.job_id[rows], self._over)]
        self._over = jobs.job_id[rows]
        for i in new.tolist():
            job_id, uid = JobId(int(jobs.job_id[i])), int(jobs.uid[i])
            ending = JobState(int(jobs.state[i])).name.lower()
            label = text_of(seen, job_id).label
            one = FinishedJob(job_id=job_id, uid=uid, label=label, ending=ending)
            if self._jobs.get(job_id) == one:
                continue
            self._jobs[job_id] = one
            self._by_label[label] = job_id
        while len(self._jobs) > MOST_JOBS:
            _, oldest = self._jobs.popitem(last=False)
            if self._by_label.get(oldest.label) == oldest.job_id:
                del self._by_label[oldest.label]

    def find(self, name: str) -> FinishedJob | None:
        """The job that *name* means; None if it is not remembered."""
        job_id = self._by_label.get(name)
        if job_id is None and name.isascii() and name.isdecimal():
            job_id = JobId(int(name))
        return None if job_id is None else self._jobs.get(job_id)
