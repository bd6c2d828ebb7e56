"""A cluster in memory with what makes a real one hard: slow ends, lost nodes, lost memories.

`World` adds to `FakeCluster` jobs that hold their GPUs for a while after their end, and a slurmctld
that dies and comes back as it was some seconds ago, as a real one does that saves its state
every few seconds. It keeps the truth about service beside what it tells, and asks a witness
before each action and after each second.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from fake_cluster import FakeCluster
from fake_slurm import FakeJob, FakeReservation

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import ClusterAction, Requeue, Reshape, SetSiteFactor, Shrink, Signal
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import Observed

SAVED_EVERY_S = 5
"""Slurmctld forgets at most so much when it dies."""

MISSED_AFTER_S = 4
"""So long after its start slurmctld learns which jobs are on no node any more."""

OVER = (JobState.COMPLETED, JobState.FAILED)


class Witness(Protocol):
    """Who looks on."""

    def before(self, action: ClusterAction) -> None:
        """*action* is about to be done."""

    def started(self, job: FakeJob) -> None:
        """*job* has just started."""

    def ticked(self) -> None:
        """A second has passed."""


_FIELDS = (
    *("state", "site_factor", "start_s", "end_s", "eligible_s", "restarts", "submit_s"),
    *("acked_run", "reservation", "hold", "requeueable", "contract", "nodes"),
    *("n_nodes", "gpus", "cpus", "mem_mb", "gave"),
)
_fields_of = operator.attrgetter(*_FIELDS)


@dataclass(frozen=True, slots=True)
class _Saved:
    """What slurmctld has on its disk."""

    jobs: dict[JobId, tuple[Any, ...]]
    reservations: dict[str, FakeReservation]
    ending: dict[JobId, tuple[float, JobState]]


class World(FakeCluster):
    """A `FakeCluster` of which everything is checked.

    Args:
        ending_s: How long a job holds its GPUs after its end, seconds.

    Attributes:
        witness: Asked about everything, once it is set.
        doubtful: Jobs whose runs slurmctld has forgotten something about.
        requeued_by_us: Runs, as job and start, that an action of ours put back.
        failed: Jobs that ended without success: by their users, by an error, by a node.
        acting: The daemon whose action is under way.
        forgot_s: When slurmctld last forgot something.
        passes: Whether a backfill pass is under way, second by second, over and over.
        undoes: A pass undoes the SiteFactors that are written meanwhile.
        undone: Jobs whose last SiteFactor it has undone.
        ignores: So many of the next changes of a size are taken, and nothing is done.
        deaf: Jobs whose size never changes, whatever is written.
        given: What jobs gave back while they ran: the job, when, and how many GPUs.
        ignored: Sizes that each job was not given, and how often it started in another.
    """

    def __init__(self, *, nodes: int, gpus: int, hold_s: float, ending_s: int) -> None:
        super().__init__(nodes=nodes, gpus=gpus, hold_s=hold_s)
        self.witness: Witness | None = None
        self.doubtful: set[JobId] = set()
        self.requeued_by_us: set[tuple[JobId, float]] = set()
        self.failed: set[JobId] = set()
        self.acting: object = None
        self.het: set[JobId] = set()
        self.forgot_s = 0.0
        self.passes = [False]
        self.undoes = False
        self.undone: set[JobId] = set()
        self.ignores = 0
        self.deaf: set[JobId] = set()
        self.ignored: dict[JobId, dict[Shape, int]] = {}
        self.given: list[tuple[JobId, float, float]] = []
        self._unheard: dict[JobId, Shape] = {}
        self.ending_s = ending_s
        self._ending: dict[JobId, tuple[float, JobState]] = {}
        self._ghosts: dict[JobId, float] = {}
        self._saved: deque[_Saved] = deque(maxlen=SAVED_EVERY_S)

    # What users and machines do.

    def fails(self, job_id: JobId) -> None:
        """A running job ends by an error of its own."""
        if self.jobs[job_id].state is JobState.RUNNING:
            self._end(self.jobs[job_id], JobState.FAILED)

    def user_requeues(self, job_id: JobId) -> None:
        """Put a running job back, if Slurm lets its user."""
        job = self.jobs[job_id]
        if job.state is JobState.RUNNING and job.requeueable:
            self.requeue(job_id)

    def crash(self, forgets_s: int) -> None:
        """Slurmctld dies, and another starts from what was saved that long ago."""
        if len(self._saved) < forgets_s or forgets_s < 1:
            return
        saved = self._saved[-forgets_s]
        self.forgot_s = self.now_s
        for job_id, job in self.jobs.items():
            if job_id in saved.jobs:
                fields = dict(zip(_FIELDS, saved.jobs[job_id], strict=True))
                self._remember(job, fields, saved.ending.get(job_id))
        self.reservations = {n: copy.copy(r) for n, r in saved.reservations.items()}
        self._saved.clear()

    def _remember(
        self, job: FakeJob, saved: dict[str, Any], ending: tuple[float, JobState] | None
    ) -> None:
        """Take over what slurmctld says of *job*; what ran and was signalled stays as it was."""
        same_run = job.state is saved["state"] and job.start_s == saved["start_s"]
        if job.gave != saved["gave"]:
            self.doubtful.add(job.job_id)
        if not same_run or job.restarts != saved["restarts"]:
            self.doubtful.add(job.job_id)
            if job.state is JobState.RUNNING:  # Nobody knows it: its processes are ended.
                job.end_run(self.now_s)
            job.done_s = job.saved_s
            job.asked_s = None
            self._ghosts.pop(job.job_id, None)
            self._ending.pop(job.job_id, None)
            if saved["state"] is JobState.RUNNING:
                self._ghosts[job.job_id] = self.now_s + MISSED_AFTER_S
            if saved["state"] is JobState.COMPLETING and ending is not None:
                self._ending[job.job_id] = ending
        for name, value in saved.items():
            setattr(job, name, value)

    # What is true, whatever is told.

    def service_gpu_s(self, job: FakeJob) -> float:
        """GPU-seconds that a job has had up to now."""
        running = job.state is JobState.RUNNING and job.job_id not in self._ghosts
        return job.gpu_s + (job.run_gpu_s(self.now_s) if running else 0.0)

    def is_doubtful(self, job_id: JobId) -> bool:
        """Whether what Slurm tells of its runs is not what happened."""
        return job_id in self.doubtful

    def free_gpus(self) -> list[float]:
        """GPUs free on each node."""
        return self._free()

    def node_rows(self, *names: str) -> frozenset[int]:
        """Rows of these nodes."""
        return frozenset(self._rows(names))

    def backfilling(self) -> bool:
        """Whether a backfill pass is under way."""
        return self.passes[int(self.now_s) % len(self.passes)]

    # The cluster.

    def observe(self) -> Observed:
        """The cluster now; parts of het jobs are told as the reader tells them."""
        seen = super().observe()
        if not self.het:
            return seen
        nowhere = np.zeros(len(seen.nodes), dtype=np.bool_)
        alive = {j for j in self.het if self.jobs[j].state not in OVER}
        return dataclasses.replace(seen, choices={**seen.choices, **dict.fromkeys(alive, nowhere)})

    def _do(self, action: ClusterAction) -> None:
        if self.witness is not None:
            self.witness.before(action)
        if isinstance(action, SetSiteFactor):
            self._set_site_factor(action)
            return
        if isinstance(action, Reshape) and self._ignores(action):
            return
        if isinstance(action, Shrink) and self.ignores:
            self.ignores -= 1
            return
        if not isinstance(action, Signal | Requeue | Shrink):
            super()._do(action)
            return
        job, run = self.jobs[action.run.job_id], action.run
        running, start_s = job.state is JobState.RUNNING, job.start_s
        other = running and (job.start_s, job.restarts) != (run.start_s, run.restarts)
        before = job.gave
        super()._do(action)
        self.given += [(run.job_id, *gift) for gift in job.gave[len(before) :]]
        assert not other, f"{action}, and {job.job_id} was in another run"
        if isinstance(action, Requeue) and running:
            self.requeued_by_us.add((run.job_id, start_s))

    def _ignores(self, action: Reshape) -> bool:
        """True if Slurm takes the change and does nothing."""
        job = self.jobs[action.job_id]
        self._unheard.pop(job.job_id, None)
        if job.state is not JobState.PENDING or not (self.ignores or job.job_id in self.deaf):
            return False
        self.ignores -= job.job_id not in self.deaf
        if (job.n_nodes, job.gpus) != (action.shape.nodes, action.shape.gpus):
            self._unheard[job.job_id] = action.shape
        return True

    def _set_site_factor(self, action: SetSiteFactor) -> None:
        job = self.jobs[action.job_id]
        before = job.site_factor
        super()._do(action)
        self.undone.discard(job.job_id)
        if self.undoes and self.backfilling():
            job.site_factor = before
            self.undone.add(job.job_id)

    def _tick(self) -> None:
        self._saved.append(
            _Saved(
                jobs={j: _fields_of(job) for j, job in self.jobs.items()},
                reservations={n: copy.copy(r) for n, r in self.reservations.items()},
                ending=dict(self._ending),
            )
        )
        for job_id in [j for j, at_s in self._ghosts.items() if at_s <= self.now_s]:
            self._missed(self.jobs[job_id])
        for job_id in [j for j, (at_s, _) in self._ending.items() if at_s <= self.now_s]:
            self._ended(self.jobs[job_id])
        super()._tick()
        if self.witness is not None:
            self.witness.ticked()

    def _work(self, job: FakeJob) -> None:
        if job.job_id not in self._ghosts:
            super()._work(job)

    def _missed(self, job: FakeJob) -> None:
        """No node has the job that slurmctld takes for running: it is put back, or has failed."""
        del self._ghosts[job.job_id]
        if job.state is not JobState.RUNNING:
            return
        if job.requeueable:
            self._put_back(job)
        else:
            job.state, job.end_s, job.nodes = JobState.FAILED, self.now_s, ()
            self.failed.add(job.job_id)

    def _put_back(self, job: FakeJob) -> None:
        super()._requeue(job)
        job.runs.pop()
        job.ran_gpu_s.pop()

    def _ended(self, job: FakeJob) -> None:
        _, becomes = self._ending.pop(job.job_id)
        job.state, job.nodes = becomes, ()
        job.asks_again()
        if becomes is JobState.PENDING:
            job.submit_s, job.start_s = job.end_s, 0.0
            job.eligible_s = job.end_s + self._hold_s

    def _end(self, job: FakeJob, state: JobState) -> None:
        if state is JobState.FAILED:
            self.failed.add(job.job_id)
        if job.job_id in self._ghosts:
            # Cancelled before it was missed.
            del self._ghosts[job.job_id]
            job.runs.append((self.now_s, self.now_s))
            job.ran_gpu_s.append(0.0)
            job.state, job.end_s, job.nodes = state, self.now_s, ()
            return
        has, ran = (job.nodes, job.gpus, job.gave), job.state is JobState.RUNNING
        super()._end(job, state)
        if ran and self.ending_s:
            job.state, (job.nodes, job.gpus, job.gave) = JobState.COMPLETING, has
            self._ending[job.job_id] = (self.now_s + self.ending_s, state)

    def _requeue(self, job: FakeJob) -> None:
        if job.job_id in self._ghosts:
            del self._ghosts[job.job_id]
            self._put_back(job)
            return
        has, submit_s, start_s = (job.nodes, job.gpus, job.gave), job.submit_s, job.start_s
        super()._requeue(job)
        if self.ending_s:
            # Until its processes are gone Slurm shows the new restart count with the old times.
            job.state, (job.nodes, job.gpus, job.gave) = JobState.COMPLETING, has
            job.start_s = start_s
            job.submit_s, job.end_s = submit_s, self.now_s
            self._ending[job.job_id] = (self.now_s + self.ending_s, JobState.PENDING)

    def _try_start(self, job: FakeJob) -> None:
        super()._try_start(job)
        if job.state is not JobState.RUNNING:
            return
        if shape := self._unheard.pop(job.job_id, None):
            often = self.ignored.setdefault(job.job_id, {})
            often[shape] = often.get(shape, 0) + 1
        if self.witness is not None:
            self.witness.started(job)
