"""SiteFactors that Slurm has undone are written again; writes stay out of backfill passes.

Backfill copies the priority of each job when its pass begins. With ``bf_continue`` it sets that
copy back when it comes to the job, so that a SiteFactor written in between no longer counts until
the job is updated again (measured on 22.05.8, 24.11.5 and 26.05.5). Without ``bf_continue`` a write
ends the pass early, and so does a reservation that is created or deleted in either case.

A SiteFactor does not count either where an operator has set the job's priority. Slurm tells of it
only when asked. Such a job is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import numpy as np

from slurm_dl.engine.write_retries import rest_cycles
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import BY_HAND, COMPLETING, PENDING, Held, is_in
from slurm_dl.model.plan import Action, Plan, SetSiteFactor, Unseal, handover_of
from slurm_dl.model.snapshot import Snapshot

AskByHand = Callable[[Collection[JobId]], Mapping[JobId, bool]]
"""Asks of which waiting jobs the priority was set by hand; may leave out some, or raise."""

_NOT_TOLD: Final = (Held.USER_OR_ADMIN, Held.DEPENDENCY, Held.BEGIN_TIME)
"""Slurm tells nothing of jobs that are not eligible."""


class UndoneWrites:
    """Repeats of writes that Slurm has undone; kept from cycle to cycle.

    The first write is repeated at the next look, then after 2 cycles, 4 and so on. A write during
    a backfill pass does not make the pause longer: the pass is likely to undo it.

    Attributes:
        by_hand: Unfinished jobs whose priority was set by hand, each with that priority.
    """

    def __init__(self) -> None:
        self.by_hand: dict[JobId, int] = {}
        self._first: frozenset[JobId] = frozenset()
        self._cycle = 0
        self._times: dict[JobId, int] = {}
        self._due: dict[JobId, int] = {}

    def look(
        self, snap: Snapshot, undone: Collection[JobId], ask: AskByHand, *, acting: bool
    ) -> frozenset[JobId]:
        """Begin a cycle in which the writes of *undone* do not count: those to write again."""
        due = self.due({*undone, *self.by_hand})
        self._learn(snap, due, ask)
        # Where nothing is written again it is asked less and less often, too.
        for job_id in due.intersection(self.by_hand) if acting else due:
            self.wrote(job_id, in_pass=False)
        return due.intersection(undone).difference(self.by_hand)

    def look_before(self, snap: Snapshot, plan: Plan, ask: AskByHand) -> bool:
        """Ask about jobs that *plan* gives their first SiteFactor; whether any is to have none.

        If one of them is, others are likely to be: then it is asked about all that wait.
        """
        places = [a.job_id for a in plan.actions if isinstance(a, SetSiteFactor) and a.value]
        new_here = snap.memory.site_factor == 0
        rows = is_in(snap.jobs.job_id, places) & new_here
        before, self._first = self._first, frozenset(snap.jobs.job_id[rows].tolist())
        new = self._first - before
        self._learn(snap, new, ask)
        if new.isdisjoint(self.by_hand):
            return False
        rest = snap.jobs.job_id[new_here & (snap.jobs.state == PENDING) & snap.managed_jobs]
        self._learn(snap, set(rest.tolist()) - self._first, ask)
        self._first |= frozenset(rest.tolist())
        return True

    def marked(self, snap: Snapshot) -> Snapshot:
        """*snap*, in which jobs whose priority was set by hand are marked, also while they run."""
        if not self.by_hand:
            return snap
        held = snap.jobs.held.copy()
        held[is_in(snap.jobs.job_id, list(self.by_hand))] = BY_HAND
        return snap.with_jobs(held=held)

    def _learn(self, snap: Snapshot, doubtful: Collection[JobId], ask: AskByHand) -> None:
        """Ask about those of *doubtful* that wait, and about those whose priority has changed."""
        jobs = snap.jobs
        live = (jobs.state < COMPLETING) & (jobs.priority > 0)
        rows = (live & is_in(jobs.job_id, [*doubtful, *self.by_hand])).nonzero()[0]
        now = dict(zip(jobs.job_id[rows].tolist(), jobs.priority[rows].tolist(), strict=True))
        self.by_hand = {job: was for job, was in self.by_hand.items() if job in now}
        told = (jobs.state[rows] == PENDING) & ~np.isin(jobs.held[rows], _NOT_TOLD)
        changed = {job for job, was in self.by_hand.items() if was != now[job]}
        asked = changed.union(doubtful).intersection(jobs.job_id[rows[told]].tolist())
        try:
            answers = ask(asked) if asked else {}
        except ClusterError:
            return
        for job in asked & answers.keys():
            self.by_hand.pop(job, None)
            if answers[job]:
                self.by_hand[job] = now[job]

    def due(self, undone: Collection[JobId]) -> frozenset[JobId]:
        """Begin a cycle in which the writes of *undone* do not count: those to write again."""
        self._cycle += 1
        self._times = {job: self._times.get(job, 0) for job in undone}
        self._due = {job: self._due.get(job, 0) for job in undone}
        return frozenset(job for job, at in self._due.items() if at <= self._cycle)

    def wrote(self, job_id: JobId, *, in_pass: bool) -> None:
        """The SiteFactor of *job_id* was written in this cycle."""
        if job_id not in self._times:
            return
        if not in_pass:
            self._times[job_id] += 1
        self._due[job_id] = self._cycle + rest_cycles(self._times[job_id])


class PassGate:
    """Leaves what disturbs a backfill pass to the next cycle, once; kept from cycle to cycle."""

    def __init__(self) -> None:
        self._held = False

    def holds(self, *, in_pass: bool) -> bool:
        """Whether to wait one cycle: a pass is under way, and the last cycle did not wait."""
        self._held = in_pass and not self._held
        return self._held


def sift_disturbing(
    actions: Sequence[Action], again: Collection[JobId]
) -> tuple[list[Action], list[Action]]:
    """*actions* without those that can wait until a backfill pass is over, and those.

    First writes of SiteFactors can, and all steps of a hand-over whose reservation is to be
    deleted, because they are right in their order only. Reservations that end in two cycles in a
    row are deleted in one. What a pass has undone, *again*, is written at once.
    """
    ending = {handover_of(a) for a in actions if isinstance(a, Unseal)}
    now: list[Action] = []
    later: list[Action] = []
    for action in actions:
        handover = handover_of(action)
        if handover is None:
            can_wait = isinstance(action, Unseal) or (
                isinstance(action, SetSiteFactor) and action.job_id not in again
            )
        else:
            can_wait = handover in ending
        (later if can_wait else now).append(action)
    return now, later
