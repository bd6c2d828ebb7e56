"""A fake cluster whose jobs have deadlines, under the policy edf, with a ledger on a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_cluster import FakeCluster

from slurm_dl.daemon.enrich import Enricher
from slurm_dl.engine.cycle import Cycle, run_cycle
from slurm_dl.engine.settings import Deadlines, Placement, Preemption, Settings
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.promise import Promise, Totals, promises_in, totals_in
from slurm_dl.model.snapshot import Observed
from slurm_dl.policies.base import Policy
from slurm_dl.policies.edf import Edf

GRACE = Contract(grace_s=30.0)
RULES = Deadlines(share=1.0, account_share=1.0, lead_s=60.0)
LIMITS = Preemption(
    min_quantum_s=30.0, cooldown_s=30.0, checkpoint_cost_s=10.0, limit_reserve_s=0.0,
    max_preemptions=1000, max_handovers=100,
)  # fmt: skip


class DueCluster(FakeCluster):
    """A fake cluster in which jobs may have deadlines."""

    due_s: dict[JobId, int]

    def observe(self) -> Observed:
        """The cluster now, with the deadlines in the claims."""
        seen = super().observe()
        claims = dict(seen.claims)
        for job_id, due_s in self.due_s.items():
            claims[job_id] = dataclasses.replace(seen.claim(job_id), due_s=due_s)
        return dataclasses.replace(seen, claims=claims)


class PromiseWorld:
    """The engine's loop over a `DueCluster`.

    Attributes:
        cluster: The cluster.
        promises: Every promise as it was last told, by job; of those that are over, too.
        windows: The window of each promise at each look at which it waited, by job.
    """

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 2,
        gpus: int = 4,
        rules: Deadlines = RULES,
        limits: Preemption = LIMITS,
        policy: Policy | None = None,
    ) -> None:
        self.cluster = DueCluster(nodes=nodes, gpus=gpus, hold_s=10.0)
        self.cluster.due_s = {}
        self.zero_s = self.cluster.now_s
        self.policy = policy or Edf()
        self.settings = Settings(
            partitions=frozenset({"gpu"}), preemption=limits, deadlines=rules,
            placement=Placement(settle_s=30.0),
        )  # fmt: skip
        self.know = Enricher(profiles={}, site=SitePriors(), policy=self.policy, deadlines=rules)
        self._file = directory / "ledger.sqlite"
        self.restart()
        self.promises: dict[JobId, Promise] = {}
        self.windows: dict[JobId, list[tuple[int | None, int | None]]] = {}

    def restart(self) -> None:
        """Begin anew with the ledger on the file, as after kill -9 or a takeover."""
        self.ledger = Ledger(SqliteStore(self._file))

    def submit(self, gpus: float, limit_s: float, due_after_s: int = 0, **more: Any) -> JobId:  # noqa: ANN401
        """A job that takes all of its time limit; with *due_after_s* it has a deadline."""
        job_id = self.cluster.submit(gpus, work_s=limit_s, limit_s=limit_s, **more)
        if due_after_s:
            self.cluster.due_s[job_id] = int(self.cluster.now_s) + due_after_s
        return job_id

    def look(self) -> Cycle:
        """One cycle of the daemon."""
        cycle = run_cycle(
            self.cluster, self.ledger, self.policy, self.settings,
            clock=self.cluster.clock, acting=True, enrich=self.know,
        )  # fmt: skip
        seen = self.cluster.observe()
        for job_id, promise in self.booked().items():
            self.promises[job_id] = promise
            row = seen.jobs.row_of()[job_id]
            if promise.is_kept and seen.jobs.state[row] == JobState.PENDING:
                window = (promise.begin_s, promise.end_s)
                self.windows.setdefault(job_id, []).append(window)
        return cycle

    def run(self, until: Callable[[], bool], *, step_s: int = 5, most_s: int = 20_000) -> None:
        """Look and let time pass until *until*."""
        for _ in range(most_s // step_s):
            self.look()
            if until():
                return
            self.cluster.advance(step_s)
        msg = f"it did not come to that within {most_s} s"
        raise AssertionError(msg)

    def booked(self) -> dict[JobId, Promise]:
        """The promises that stand in the ledger."""
        return promises_in(self.ledger.snapshot(self.cluster.observe(), frozenset()).booked)

    def totals(self) -> Totals:
        """The promises that are settled."""
        return totals_in(self.ledger.snapshot(self.cluster.observe(), frozenset()).booked)

    def is_over(self, job_id: JobId) -> bool:
        """True if a job has ended."""
        return self.cluster.jobs[job_id].state is JobState.COMPLETED

    def was_in_time(self, job_id: JobId) -> bool:
        """True if a job ended by its deadline."""
        job = self.cluster.jobs[job_id]
        return self.is_over(job_id) and job.end_s <= self.cluster.due_s[job_id]
