"""Run time of a job that may be promised something, and the units of each resource it holds."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from slurm_dl.model.estimate_origin import Origin
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, F64, PENDING
from slurm_dl.model.promise import Estimate, PromiseTerms
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.calendar import Need, Resource
from slurm_dl.policies.arithmetic.supply import rates_of

FOREVER_S: Final = 10**10
"""A run time that nobody knows."""


def whole_s(at_s: float) -> int:
    """*at_s* rounded up, but for the rounding of sums."""
    return math.ceil(min(at_s, 100.0 * FOREVER_S) - 1e-3)


class PromiseNeeds:
    """Needs of the jobs of one snapshot, by row.

    Attributes:
        quotas: The limits that each job counts in, and its units.
        on: ``(n, g)`` GPUs that each job holds on nodes of each group.
    """

    def __init__(self, snap: Snapshot, terms: PromiseTerms, margin: float) -> None:
        """See `promises.promised`."""
        self._snap, self._terms, self._margin = snap, terms, margin
        counts = {} if snap.seen.quotas is None else snap.seen.quotas.counts
        ids = snap.jobs.job_id.tolist()
        self.quotas = {row: counts[JobId(j)] for row, j in enumerate(ids) if j in counts}
        self.on = self._on_groups()
        self._known: dict[tuple[int, bool], Need] = {}
        self._rates = rates_of(snap)
        self._capacity = [
            float(snap.seen.nodes.of_type(one.kind)[one.nodes].sum()) for one in terms.groups
        ]

    def due_s(self, row: int) -> int | None:
        """The deadline of a job that counts, in whole epoch seconds; None if it has none."""
        due_s = math.inf if self._snap.due_s is None else float(self._snap.due_s[row])
        return math.floor(due_s) if math.isfinite(due_s) else None

    def rests_on(self, row: int) -> Estimate:
        """Origin of the run time of a job."""
        known = self._snap.left_from
        origin = Origin.DECLARED if known is None else Origin(int(known[row]))
        sure = origin == Origin.KNOWN
        guessed = origin in (Origin.HISTORY, Origin.REPORTED) and self._terms.estimate == "history"
        return "history" if sure or guessed else "limit"

    def needs_s(self, row: int) -> int:
        """Seconds that a job is still going to run, with the margin."""
        return whole_s(self.left_s(row))

    def left_s(self, row: int) -> float:
        """Likewise, not rounded."""
        jobs, left_s = self._snap.jobs, float(self._snap.left_s[row])
        limit_s = float(jobs.limit_s[row])
        if jobs.state[row] > PENDING:
            limit_s = max(0.0, float(jobs.start_s[row]) + limit_s - self._snap.now_s)
        if self.rests_on(row) == "history":
            rates = self._rates[row]
            slowest = float(rates[rates > 0].min(initial=1.0)) if (rates > 0).any() else 1.0
            needs_s = min(left_s / slowest * (1 + self._margin), limit_s)
        else:
            # What is left of a time limit over all runs; each run has the whole of it at most.
            declared = self._snap.left_from is None or (
                self._snap.left_from[row] == Origin.DECLARED and math.isfinite(left_s)
            )
            needs_s = min(left_s, limit_s) if declared else limit_s
        return min(needs_s, FOREVER_S)

    def end_s(self, row: int) -> int:
        """End of the job if it runs from now on; the same at each look at an exact run time."""
        return whole_s(self._snap.now_s + self.left_s(row))

    def gpus(self, row: int) -> float:
        """GPUs of a job as they are counted: a power of two on a node, or whole nodes.

        Counted are GPUs, not nodes, and what lies askew would fit nowhere.
        """
        jobs, group = self._snap.jobs, int(self._terms.group[row])
        gpus, n_nodes = float(jobs.gpus[row]), int(jobs.n_nodes[row])
        if group < 0:
            return gpus
        home = self._terms.groups[group]
        node = float(self._snap.seen.nodes.of_type(home.kind)[home.nodes].max(initial=1.0))
        each = node if jobs.exclusive[row] else gpus / n_nodes
        if jobs.exclusive[row]:
            gpus = max(gpus, n_nodes * node)
        if each >= node:
            return math.ceil(gpus / node - 1e-9) * node
        return n_nodes * min(2.0 ** math.ceil(math.log2(each) - 1e-9), node)

    def of(self, row: int, *, promised: bool = True) -> Need:
        """All that a job holds while it runs, with a promise or without."""
        if (row, promised) not in self._known:
            self._known[row, promised] = self._need_of(row, promised=promised)
        return self._known[row, promised]

    def _need_of(self, row: int, *, promised: bool) -> Need:
        terms, home = self._terms, int(self._terms.group[row])
        gpus = self.gpus(row)
        if self._snap.jobs.state[row] > PENDING:
            units = self.held(row)
        else:
            units = {
                ("nodes", g): min(gpus, self._capacity[g])
                for g in terms.meets[row].nonzero()[0].tolist()
            }
        courteous = frozenset(r for r in units if r != ("nodes", home) or not promised)
        limits: dict[Resource, float] = {("quota", q): u for q, u in self.quotas.get(row, ())}
        units |= limits
        if not promised:
            return Need(units, courteous | limits.keys())
        owners: list[tuple[str, int | str]] = [("user", int(self._snap.jobs.uid[row]))]
        if account := terms.owners.get(row):
            owners.append(("account", account))
        for place, where in enumerate(terms.places):
            if where.jobs is None or where.jobs[row]:
                units["share", place] = gpus
                units |= {("owner", *owner, place): gpus for owner in owners}
        return Need(units, courteous, frozenset(limits) | {("nodes", home)})

    def capacity(self, group: int) -> float:
        """GPUs of a group."""
        return self._capacity[group]

    def held(self, row: int) -> dict[Resource, float]:
        """GPUs that a running job holds of each group."""
        on = self.on[row]
        return {("nodes", g): float(on[g]) for g in on.nonzero()[0].tolist()}

    def _on_groups(self) -> F64:
        """``(n, g)`` GPUs that each job holds on nodes of each group."""
        seen, terms = self._snap.seen, self._terms
        place, n = seen.held, len(seen.jobs)
        on = np.zeros((n, len(terms.groups)))
        for g, group in enumerate(terms.groups):
            here = group.nodes[place.node]
            gpus = place.gpus
            if group.kind >= 0:
                gpus = place.gpus_by_type(seen.nodes, len(seen.gpu_types))[group.kind]
            on[:, g] = np.bincount(place.job, gpus * here, n)
        told = np.zeros(n, dtype=np.bool_)
        told[place.job] = True
        # Clusters without nodes, and jobs of which Slurm does not say yet where they are.
        told |= (seen.jobs.state == PENDING) | (seen.jobs.state >= COMPLETING)
        on[~told] = (terms.meets * seen.jobs.gpus[:, None])[~told]
        return on
