"""Room that limits and licences leave for beneficiaries.

Slurm itself says only once a job is next to start that a limit keeps it: its victims would have
been stopped for nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, PENDING
from slurm_dl.model.limits import Quotas
from slurm_dl.model.snapshot import Snapshot

BY_ITSELF = -1
"""Owner of the plans for jobs that Slurm starts without a hand-over."""


class LimitsLeft:
    """A working copy of `Observed.quotas` that one decision fills up as it goes.

    A plan is what the beneficiaries of one hand-over need, less what its victims give back.
    """

    def __init__(self, snap: Snapshot, under_way: Iterable[Handover]) -> None:
        """Beside the hand-overs *under_way*."""
        none = Quotas(names=(), most=np.zeros(0), used=np.zeros(0), counts={})
        self._quotas = snap.seen.quotas or none
        self._counts = self._quotas.counts
        self._job_id = snap.jobs.job_id
        self._plans: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        if not self._counts:
            return
        state = dict(zip(self._job_id.tolist(), snap.jobs.state.tolist(), strict=True))
        for number, handover in enumerate(under_way, start=2):
            for job in handover.beneficiaries:
                if state.get(job) == PENDING:
                    self._add(-number, self._counts.get(job, ()), 1)
            # Who is only moved takes its place in the limits again.
            for victim in handover.victims:
                if victim.run.job_id in handover.moved or handover.purpose != "preempt":
                    continue
                if state.get(victim.run.job_id, PENDING) != PENDING:
                    self._add(-number, self._counts.get(victim.run.job_id, ()), -1)

    def of(self, row: int) -> tuple[tuple[int, float], ...]:
        """The quotas that the job at *row* counts in, and its units."""
        return self._counts.get(JobId(int(self._job_id[row])), ()) if self._counts else ()

    def why_not(self, row: int, victims: Collection[int] = (), *, owner: int | None = None) -> str:
        """The limit that leaves the waiting job at *row* no room; empty if none does.

        Args:
            victims: Rows of those who would be stopped for it.
            owner: Whose plan it would join; None: none.
        """
        over = self.over(row, victims, owner=owner)
        return f"{self._quotas.names[next(iter(over))]} leaves it no room" if over else ""

    def over(
        self, row: int, victims: Collection[int] = (), *, owner: int | None = None
    ) -> dict[int, float]:
        """By how much the job would pass each of its quotas; see `why_not`."""
        quotas, found = self._quotas, {}
        for quota, units in self.of(row):
            if owner == BY_ITSELF and quota in quotas.one_at_a_time:
                continue
            # What the victims of one hand-over give back beyond its own need comes free later.
            planned = sum(
                plan[quota] if of == owner else max(0.0, plan[quota])
                for of, plan in self._plans.items()
                if of != BY_ITSELF or quota not in quotas.one_at_a_time
            )
            given = sum(dict(self.of(victim)).get(quota, 0.0) for victim in victims)
            most = float(quotas.most[quota])
            excess = float(quotas.used[quota]) + planned + units - given - most
            if excess > 1e-6 * max(1.0, most):
                found[quota] = excess
        return found

    def plan(self, owner: int, row: int) -> None:
        """Count the job at *row* in the plan of *owner*."""
        self._add(owner, self.of(row), 1)

    def give_back(self, owner: int, victims: Collection[int]) -> None:
        """Count in the plan of *owner* what the jobs at the rows *victims* give back."""
        for victim in victims:
            self._add(owner, self.of(victim), -1)

    def dearer(self, row: int, cost: F64, candidates: Sequence[int]) -> F64:
        """*cost* with which those of *candidates* come last who give back nothing that *row* lacks.

        Args:
            cost: ``(n,)`` what stopping each job costs.
        """
        over = self.over(row).keys()
        if not over:
            return cost
        dearer = cost.copy()
        missing = [len(over - dict(self.of(candidate)).keys()) for candidate in candidates]
        dearer[candidates] += (float(cost.sum()) + 1.0) * np.array(missing)
        return dearer

    def _add(self, owner: int, counts: Iterable[tuple[int, float]], sign: int) -> None:
        for quota, units in counts:
            self._plans[owner][quota] += sign * units
