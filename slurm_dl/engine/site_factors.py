"""From a policy's order to Slurm's SiteFactors: what to write, and what Slurm left out.

Backfill copies the priority of each job when its pass begins. With ``bf_continue`` it sets that
copy back when it comes to the job, so that a SiteFactor written in between no longer counts until
the job is updated again (measured on 22.05.8, 24.11.5 and 26.05.5). Without ``bf_continue`` a write
ends the pass early, and so does a reservation that is created or deleted in either case.

A SiteFactor does not count either where an operator has set the job's priority. Slurm tells of it
only when asked. Such a job is left alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import numpy as np

from slurm_dl.engine.intent import Intent
from slurm_dl.engine.settings import Settings
from slurm_dl.engine.target import NOBODY, Rows
from slurm_dl.engine.write_retries import rest_cycles
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import BY_HAND, COMPLETING, I64, NOT_HELD, PENDING, Bool, Held, is_in
from slurm_dl.model.plan import Action, Plan, SetSiteFactor, Unseal, handover_of
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Order, Policy, Preempts, displaces

HIGHEST_SITE_FACTOR: Final = 2**31 - 3
"""Slurm keeps SiteFactor as a signed 32-bit number around 0, and takes up to this of it."""


def wanted_site_factor(order: Order, settings: Settings) -> I64:
    """``(n,)`` int64, the SiteFactor of each job: one positive band for each tier.

    Slurm adds it to the priority it computes itself, and serves equal priorities in the order of
    job ids, which is the order of first submission: in native mode who was held early comes first
    inside a band. Positive, because Slurm cuts priorities off
    at 1 and a job that was never written has 0 and must be last.
    """
    bands: I64 = (order.tiers - order.tier.astype(np.int64)) * settings.band_width
    return bands


def highest_site_factor(tiers: int, band_width: int) -> int:
    """SiteFactor of a running job that no waiting one exceeds, where Slurm preempts by itself."""
    return tiers * band_width + band_width // 2


def site_factor_writes(
    snap: Snapshot, ranked: Rows, wanted: I64, settings: Settings
) -> list[SetSiteFactor]:
    """The SiteFactors that differ from what counts in Slurm, for the jobs where it matters.

    Those are the running jobs, which take their place along when they are requeued for any
    reason, and of the pending ones a window of each partition, best first.
    """
    jobs = snap.jobs
    stale = (wanted[ranked] != snap.memory.site_factor[ranked]) | rewritten(snap, ranked)
    pending = jobs.state[ranked] == PENDING
    writes = ranked[stale & (~pending | in_window(snap, ranked, pending, settings.window))]
    # Pending jobs first, best first: they are what the next scheduling pass looks at.
    writes = writes[np.argsort(jobs.state[writes] != PENDING, kind="stable")]
    return [
        SetSiteFactor(
            job_id=JobId(int(jobs.job_id[row])),
            value=int(wanted[row]),
            why=_why(snap, row, int(wanted[row])),
        )
        for row in writes.tolist()
    ]


def rewritten(snap: Snapshot, rows: Rows) -> Bool:
    """``(len(rows),)`` bool: the SiteFactor is to be written again as it is."""
    if not snap.rewrite:
        return np.zeros(len(rows), dtype=np.bool_)
    return np.isin(snap.jobs.job_id[rows], list(snap.rewrite))


def _why(snap: Snapshot, row: int, after: int) -> str:
    before = int(snap.memory.site_factor[row])
    if after == before:
        return "Slurm has undone the SiteFactor that was written (see doctor: backfill passes)"
    if not before:
        return "first place in the order"
    return "its place in the order changed" if after else "others come before it in the order"


def is_undone(snap: Snapshot, rows: Rows, band_width: int) -> Bool:
    """``(len(rows),)`` bool: the job's priority is not what its SiteFactor makes it.

    Slurm accepts the update and the priority stays or becomes an older one: during a backfill pass,
    or where the priority was set by hand. Slurm's own factors and the user's nice value may make
    a difference of half a band.
    """
    jobs = snap.jobs
    off = np.abs(jobs.priority[rows] - snap.memory.site_factor[rows])
    undone: Bool = (jobs.priority[rows] > 0) & (off > band_width // 2)
    return undone


def undone(snap: Snapshot, rows: Rows, band_width: int) -> tuple[JobId, ...]:
    """Those of the jobs at *rows* whose priority is not what their SiteFactor makes it."""
    these = rows[is_undone(snap, rows, band_width) & (snap.jobs.held[rows] != BY_HAND)]
    return tuple(JobId(j) for j in snap.jobs.job_id[these].tolist())


def in_window(snap: Snapshot, ranked: Rows, of: Bool, size: int) -> Bool:
    """``(len(ranked),)`` bool: among the first *size* of its partition of those marked in *of*."""
    inside = np.zeros(len(ranked), dtype=np.bool_)
    partition = snap.jobs.partition[ranked]
    for part in snap.managed.nonzero()[0].tolist():
        inside[(of & (partition == part)).nonzero()[0][:size]] = True
    return inside


LEVELS: Final = 24  # How many there are, whatever the number of jobs
_WAITS: Final = 2
_EXACT: Final = 8
_LAST: Final = LEVELS - 1


def levels_of(policy: Policy) -> int:
    """Number of tiers in orders of *policy* as written to Slurm."""
    return policy.tiers if displaces(policy) == "tier" else max(policy.tiers, LEVELS)


def in_levels(
    snap: Snapshot, preempts: Preempts, intent: Intent, protected: Rows = NOBODY
) -> Intent:
    """*intent* with levels in place of its tiers, where its order is finer than tiers.

    Where Slurm itself preempts by tiers, a job may displace every running one in a band below it,
    so each waiting job cannot have a place of its own. What matters is told exactly, the rest
    coarsely::

        0        jobs that should hold GPUs now, waiting or running
        1        running jobs that should not: they may be displaced by those above alone
        2 - 9    the first eight waiting jobs, one each
        10 ...   the next eight, the next sixteen, the next thirty-two, ...
        last     waiting jobs that had better not start now

    Inside a level Slurm takes the earlier job id, and a job that moves up crosses few levels, so
    there are few writes. First come, first served inside a tier is what Slurm does by itself.

    Args:
        preempts: Whom a waiting job may displace.
        protected: Running jobs that keep their GPUs whatever their rank.
    """
    order = intent.order
    plain = np.array_equal(order.key, snap.memory.queued_s)
    if preempts == "tier" or (plain and preempts == "never" and order.barred is None):
        return intent
    ranked = intent.ranked
    waits = snap.jobs.state[ranked] == PENDING
    # Who cannot start whatever is free does not take the places of those who could.
    could = (snap.jobs.held[ranked] == NOT_HELD) & (snap.jobs.gpus[ranked] > 0)
    queued = waits & could & ~np.isin(ranked, intent.target)
    if order.barred is not None:
        queued &= ~order.barred[ranked]
    if queued.any():
        # Who keeps its GPUs only because it may not be stopped stands where it would wait.
        behind = np.arange(len(ranked)) > queued.argmax()
        queued |= behind & ~waits & np.isin(ranked, protected)
    queue = ranked[queued]
    level = np.full(len(order.tier), _LAST, dtype=np.int16)
    level[ranked[~waits]] = 1
    level[intent.target] = 0
    # Which group each place in the queue is in.
    place = np.arange(len(queue))
    doubling = _EXACT + np.floor(np.log2(np.maximum(place // _EXACT, 1)))
    groups = np.where(place < _EXACT, place, doubling).astype(np.int16)
    level[queue] = np.minimum(_WAITS + groups, _LAST - 1)
    return dataclasses.replace(
        intent, order=dataclasses.replace(order, tier=level, tiers=max(order.tiers, LEVELS))
    )


AskByHand = Callable[[Collection[JobId]], Mapping[JobId, bool]]
"""Asks of which waiting jobs the priority was set by hand; may leave out some, or raise."""

_NOT_TOLD: Final = (Held.USER_OR_ADMIN, Held.DEPENDENCY, Held.BEGIN_TIME, Held.DATA)
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
