"""SiteFactors that Slurm has undone are written again; writes stay out of backfill passes.

Backfill copies the priority of each job when its pass begins. With ``bf_continue`` it sets that
copy back when it comes to the job, so that a SiteFactor written in between no longer counts until
the job is updated again (measured on 22.05.8, 24.11.5 and 26.05.5). Without ``bf_continue`` a write
ends the pass early, and so does a reservation that is created or deleted in either case.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slurm_dl.engine.write_retries import rest_cycles
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import Action, SetSiteFactor, Unseal, handover_of


class UndoneWrites:
    """When to write again what Slurm has undone; kept from cycle to cycle.

    The first write is repeated at the next look, then after 2 cycles, 4 and so on. A write during
    a backfill pass does not make the pause longer: the pass is likely to undo it.
    """

    def __init__(self) -> None:
        self._cycle = 0
        self._times: dict[JobId, int] = {}
        self._due: dict[JobId, int] = {}

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
