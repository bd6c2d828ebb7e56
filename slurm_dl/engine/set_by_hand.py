"""Jobs whose priority an operator has set (``scontrol update Priority``): they are left alone.

Slurm does not look at their SiteFactor until they are released. It tells of it only when asked, so
it is asked about a job whose priority is not what its SiteFactor makes it, and about one that is to
have its first SiteFactor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Final

import numpy as np

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import BY_HAND, COMPLETING, PENDING, Held
from slurm_dl.model.membership import is_in
from slurm_dl.model.plan import Plan, SetSiteFactor
from slurm_dl.model.snapshot import Snapshot

AskByHand = Callable[[Collection[JobId]], Mapping[JobId, bool]]
"""Asks of which of these waiting jobs the priority was set by hand; some may be missing.

May raise `ClusterError`.
"""

_NOT_TOLD: Final = (Held.USER_OR_ADMIN, Held.DEPENDENCY, Held.BEGIN_TIME)
"""Slurm tells nothing of jobs that are not eligible."""


class SetByHand:
    """The unfinished jobs whose priority was set by hand; kept from cycle to cycle.

    Attributes:
        priority: Of each of them the priority that it had when Slurm told so.
    """

    def __init__(self) -> None:
        self.priority: dict[JobId, int] = {}
        self._first: frozenset[JobId] = frozenset()

    def look(self, snap: Snapshot, doubtful: Collection[JobId], ask: AskByHand) -> None:
        """Ask about those of *doubtful* that wait, and about those whose priority has changed."""
        jobs, known = snap.jobs, self.priority
        live = (jobs.state < COMPLETING) & (jobs.priority > 0)
        rows = (live & is_in(jobs.job_id, [*doubtful, *known])).nonzero()[0]
        now = dict(zip(jobs.job_id[rows].tolist(), jobs.priority[rows].tolist(), strict=True))
        self.priority = {job: priority for job, priority in known.items() if job in now}
        told = (jobs.state[rows] == PENDING) & ~np.isin(jobs.held[rows], _NOT_TOLD)
        asked = {job for job, priority in self.priority.items() if priority != now[job]}
        asked = (asked | {*doubtful}) & set(jobs.job_id[rows[told]].tolist())
        try:
            answers = ask(asked) if asked else {}
        except ClusterError:
            return
        for job in asked & answers.keys():
            self.priority.pop(job, None)
            if answers[job]:
                self.priority[job] = now[job]

    def look_before(self, snap: Snapshot, plan: Plan, ask: AskByHand) -> bool:
        """Ask about jobs that *plan* gives their first SiteFactor; whether any is to have none."""
        places = [a.job_id for a in plan.actions if isinstance(a, SetSiteFactor) and a.value]
        rows = is_in(snap.jobs.job_id, places) & (snap.memory.site_factor == 0)
        before, self._first = self._first, frozenset(snap.jobs.job_id[rows].tolist())
        if new := self._first - before:
            self.look(snap, new, ask)
        return not new.isdisjoint(self.priority)

    def marked(self, snap: Snapshot) -> Snapshot:
        """*snap*, in which these jobs are held by hand, in the queue or on nodes."""
        if not self.priority:
            return snap
        these = is_in(snap.jobs.job_id, list(self.priority))
        held = np.where(these, np.int8(BY_HAND), snap.jobs.held)
        jobs = dataclasses.replace(snap.jobs, held=held)
        return dataclasses.replace(snap, seen=dataclasses.replace(snap.seen, jobs=jobs))
