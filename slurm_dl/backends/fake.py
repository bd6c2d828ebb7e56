"""A small cluster in memory that behaves like Slurm as far as the engine can tell.

It starts jobs by priority and job id, skips what does not fit, keeps reserved nodes for attached
jobs and excluded ones from jobs, holds requeued jobs for a while, and remembers everything it was
told. Time moves only when
told to, in steps of one second. Tests and model checks use it where a real Slurm would be too slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from slurm_dl.backends.fake_job import FakeJob, FakeReservation, OnSignal
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import RESERVATION_PREFIX, Run, reservation_name
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, JobRow, Jobs, JobState
from slurm_dl.model.nodes import Allocations, Nodes
from slurm_dl.model.plan import (
    Attach,
    ClearSteer,
    ClusterAction,
    Detach,
    Requeue,
    Reserve,
    SetSiteFactor,
    SetSteer,
    Signal,
    Unseal,
)
from slurm_dl.model.snapshot import JobText, Observed, Reservation

ACK_WAIT_S = 60.0
"""After its grace and this long a job that acknowledged requeues itself, as dlrun does."""

EPOCH_S = 1_000_000.0
"""Where the fake's clock starts; not 0, so that "never" and "at the start" differ."""

_ENDED = frozenset({JobState.COMPLETED, JobState.FAILED})


class FakeCluster:
    """A `Cluster` of *nodes* nodes with *gpus* GPUs each.

    Args:
        hold_s: How long a requeued job may not start, seconds.
    """

    def __init__(self, *, nodes: int, gpus: int, hold_s: float = 6.0) -> None:
        self.now_s = EPOCH_S
        self.jobs: dict[JobId, FakeJob] = {}
        self.applied: list[ClusterAction] = []
        self.fail: list[type[ClusterAction]] = []
        """Kinds of action that are refused, each entry once."""
        self.down = False
        self.reader = None
        """What reads its queue: nothing has to."""
        self.now: Callable[[], float] = self.clock
        """The loop's clock; the fake goes by its own."""
        self.asked_s = 0.0
        """How long it took to answer: no time."""
        self.config = None
        """What of slurm.conf is known: there is none."""
        self.reservations: dict[str, FakeReservation] = {}
        self.down_nodes: set[str] = set()
        self._gpus = gpus
        self._names = tuple(f"n{i + 1}" for i in range(nodes))
        self._hold_s = hold_s
        self._cut_short: set[JobId] = set()

    def close(self) -> None:
        """End nothing: nothing runs for it."""

    def why_not(self) -> str:
        """Nothing forbids to change it."""
        return ""

    def health(self) -> NoReturn:
        """Nothing tells how it is.

        Raises:
            ClusterError: Always.
        """
        msg = "the fake has no slurmctld"
        raise ClusterError(msg)

    def clock(self) -> float:
        """The fake's time, epoch seconds."""
        return self.now_s

    def submit(
        self,
        gpus: float,
        *,
        work_s: float,
        n_nodes: int = 1,
        contract: Contract | None = None,
        on_signal: OnSignal = "save",
        save_s: float = 2.0,
        limit_s: float = float("inf"),
        uid: int = 1000,
        qos: str = "",
        hold: bool = False,
        begin_s: float = 0.0,
        after: JobId | None = None,
        requeueable: bool = True,
        exclusive: bool = False,
        nodes: Sequence[str] = (),
        exclude: Sequence[str] = (),
        most_nodes: int | None = None,
        typed: bool = False,
    ) -> JobId:
        """Queue a job of *gpus* GPUs in all, evenly over *n_nodes* nodes; see `FakeJob`.

        Args:
            begin_s: It does not start before, epoch seconds.
            nodes: Names of the only nodes it may use; empty for any.
            exclude: Names of nodes it may not use.
            most_nodes: It may lie on any number of nodes up to this, evenly; None: on *n_nodes*.
        """
        job_id = JobId(len(self.jobs) + 1)
        self.jobs[job_id] = FakeJob(
            job_id=job_id,
            gpus=gpus,
            n_nodes=n_nodes,
            work_s=work_s,
            contract=contract,
            on_signal=on_signal,
            save_s=save_s,
            limit_s=limit_s,
            uid=uid,
            qos=qos,
            submit_s=self.now_s,
            eligible_s=max(self.now_s, begin_s),
            hold=hold,
            after=after,
            requeueable=requeueable,
            exclusive=exclusive,
            wanted=self._rows(nodes),
            excluded=frozenset(self._rows(exclude)),
            most_nodes=most_nodes,
            typed=typed,
        )
        return job_id

    def exclude(self, job_id: JobId, *nodes: str) -> None:
        """Change the nodes a waiting job excludes, all of them, as its owner would."""
        job = self.jobs[job_id]
        _refuse_if(job.state is not JobState.PENDING, f"job {job_id} is no longer pending")
        job.excluded = frozenset(self._rows(nodes))

    def cancel(self, job_id: JobId) -> None:
        """End a job as its user would."""
        job = self.jobs[job_id]
        if job.state in (JobState.PENDING, JobState.RUNNING):
            self._cut_short.add(job_id)
            self._end(job, JobState.FAILED)

    def crash(self, job_id: JobId) -> None:
        """End a running job by a failure of its own."""
        self._end(self.jobs[job_id], JobState.FAILED)

    def requeue(self, job_id: JobId) -> None:
        """Put a job back into the queue as its user would, with ``scontrol requeue``."""
        job = self.jobs[job_id]
        _refuse_if(job.state is not JobState.RUNNING, f"job {job_id} is not running")
        _refuse_if(not job.requeueable, f"job {job_id} may not be requeued")
        self._requeue(job)

    def lose_node(self, name: str) -> None:
        """A node dies: Slurm puts its jobs back into the queue, or ends those it may not."""
        (row,) = self._rows([name])
        self.down_nodes.add(name)
        for job in self.jobs.values():
            if job.state is JobState.RUNNING and row in job.nodes:
                if job.requeueable:
                    self._requeue(job)
                else:
                    self._end(job, JobState.FAILED)

    def return_node(self, name: str) -> None:
        """A node that died is back, empty."""
        self.down_nodes.discard(name)

    def advance(self, seconds: int) -> None:
        """Let *seconds* pass."""
        for _ in range(seconds):
            self.now_s += 1
            self._tick()

    def observe(self) -> Observed:
        """The cluster now; see `Cluster`."""
        if self.down:
            msg = "squeue: Unable to contact slurm controller"
            raise ClusterError(msg)
        listed = list(self.jobs.values())
        holding = [(i, j, n) for i, j in enumerate(listed) for n in j.nodes]
        m = len(self._names)
        return Observed(
            now_s=self.now_s,
            jobs=Jobs.of([self._row(j) for j in listed]),
            nodes=Nodes(
                name=self._names,
                up=~np.isin(self._names, list(self.down_nodes)),
                gpus=np.full(m, float(self._gpus)),
                gpu_type=np.zeros(m, dtype=np.int16),
                cpus=np.full(m, 1000, dtype=np.int32),
                mem_mb=np.zeros(m, dtype=np.int64),
                leaf=np.zeros(m, dtype=np.int16),
            ),
            held=Allocations(
                job=np.array([i for i, _, _ in holding], dtype=np.int32),
                node=np.array([n for _, _, n in holding], dtype=np.int32),
                gpus=np.array([j.gpus / len(j.nodes) for _, j, _ in holding], dtype=np.float64),
                cpus=np.ones(len(holding), dtype=np.int32),
                mem_mb=np.zeros(len(holding), dtype=np.int64),
            ),
            partitions=("gpu",),
            gpu_types=("a100",),
            node_in=np.ones((1, m), dtype=np.bool_),
            claims={
                j.job_id: Claim(contract=j.contract, acked_run=j.acked_run, most_nodes=j.most_nodes)
                for j in listed
                if j.contract is not None or j.most_nodes is not None
            },
            choices={
                j.job_id: np.isin(np.arange(m), j.wanted)
                for j in listed
                if j.wanted and j.state not in _ENDED
            },
            excluded={
                j.job_id: np.isin(np.arange(m), list(j.excluded))
                for j in listed
                if j.excluded and j.state is JobState.PENDING
            },
            begins={
                j.job_id: j.eligible_s
                for j in listed
                if j.state is JobState.PENDING and j.eligible_s > self.now_s
            },
            texts={j.job_id: JobText(label=str(j.job_id), qos=j.qos) for j in listed},
            reserved={j.job_id: j.reservation for j in listed if j.reservation},
            cut_short=frozenset(self._cut_short),
            reservations=tuple(
                Reservation(name=name, end_s=r.end_s) for name, r in self.reservations.items()
            ),
        )

    def apply(self, action: ClusterAction, /) -> None:
        """Do one thing; see `Cluster`."""
        refused = type(action) in self.fail
        if refused:
            self.fail.remove(type(action))
        if self.down or refused:
            msg = f"refused: {type(action).__name__}"
            raise ClusterError(msg)
        self._do(action)
        self.applied.append(action)

    def priority(self, job: FakeJob) -> int:
        """Slurm's priority of *job*."""
        return 1 + job.site_factor

    def _do(self, action: ClusterAction) -> None:
        match action:
            case SetSiteFactor(job_id=job_id, value=value):
                job = self._job(job_id)
                _refuse_if(job.state in _ENDED, f"job {job_id} has already finished")
                job.site_factor = value
            case Reserve() | Attach() | Detach() | Unseal():
                self._seal(action)
            case SetSteer() | ClearSteer():
                self._steer(action)
            case Signal(run=run):
                job = self._same_run(run)
                job.signals.append(self.now_s)
                if job.asked_s is None:
                    job.asked_s = self.now_s
            case Requeue(run=run):
                if self._job(run.job_id).state is not JobState.PENDING:
                    self._requeue(self._same_run(run))

    def _seal(self, action: Reserve | Attach | Detach | Unseal) -> None:
        match action:
            case Reserve(handover_id=hid, nodes=nodes, duration_s=duration_s):
                self._reserve(reservation_name(hid), frozenset(self._rows(nodes)), duration_s)
            case Attach(handover_id=hid, job_id=job_id):
                name = reservation_name(hid)
                _refuse_if(name not in self.reservations, f"there is no reservation {name}")
                self._job(job_id).reservation = name
            case Detach(job_id=job_id):
                self._detach(job_id)
            case Unseal(name=name):
                _refuse_if(not name.startswith(RESERVATION_PREFIX), f"{name} is not ours")
                self.reservations.pop(name, None)

    def _rows(self, names: Sequence[str]) -> tuple[int, ...]:
        unknown = ", ".join(sorted(set(names) - set(self._names)))
        _refuse_if(unknown != "", f"there is no node {unknown}")
        return tuple(self._names.index(name) for name in names)

    def _job(self, job_id: JobId) -> FakeJob:
        _refuse_if(job_id not in self.jobs, f"there is no job {job_id}")
        return self.jobs[job_id]

    def _detach(self, job_id: JobId) -> None:
        if job_id in self.jobs and self.jobs[job_id].state is JobState.PENDING:
            self.jobs[job_id].reservation = ""

    def _steer(self, action: SetSteer | ClearSteer) -> None:
        steer = action.steer if isinstance(action, SetSteer) else None
        own = action.own if isinstance(action, ClearSteer) else action.steer.excluded
        rows = self._rows(sorted(own))
        job = self.jobs.get(action.job_id)
        if job is None or job.state is not JobState.PENDING:
            return
        job.excluded = frozenset(rows)
        if steer is not None and steer.not_before_s > 0:
            job.eligible_s = steer.not_before_s
        elif action.lift:
            job.eligible_s = self.now_s

    def _reserve(self, name: str, rows: frozenset[int], duration_s: float) -> None:
        standing = self.reservations.get(name)
        if standing is not None:
            _refuse_if(standing.nodes != rows, f"{name} stands already and is another")
            return
        overlaps = any(r.nodes & rows for r in self.reservations.values())
        _refuse_if(overlaps, "Requested nodes are busy: overlaps with another reservation")
        self.reservations[name] = FakeReservation(nodes=rows, end_s=self.now_s + duration_s)

    def _same_run(self, run: Run) -> FakeJob:
        job = self._job(run.job_id)
        same = job.start_s == run.start_s and job.restarts == run.restarts
        gone = job.state is not JobState.RUNNING or not same
        _refuse_if(gone, f"job {run.job_id} is not in that run any more")
        _refuse_if(not job.requeueable, f"job {run.job_id} may not be requeued")
        return job

    def _held(self, job: FakeJob) -> Held:
        if job.state is not JobState.PENDING:
            return Held.NO
        if job.hold:
            return Held.USER_OR_ADMIN
        if job.after is not None and self.jobs[job.after].state is not JobState.COMPLETED:
            return Held.DEPENDENCY
        return Held.BEGIN_TIME if job.eligible_s > self.now_s else Held.NO

    def _row(self, job: FakeJob) -> JobRow:
        return JobRow(
            job_id=job.job_id,
            state=job.state,
            held=self._held(job),
            uid=job.uid,
            n_nodes=len(job.nodes) or job.n_nodes,
            gpus=job.gpus,
            gpu_type=0 if job.typed else -1,
            cpus=job.n_nodes,
            submit_s=job.submit_s,
            start_s=0.0 if job.state is JobState.PENDING else job.start_s,
            end_s=job.end_s,
            limit_s=job.limit_s,
            restarts=job.restarts,
            # Slurm's floor is 1, and 0 is held.
            priority=0 if job.hold else max(1, self.priority(job)),
            requeueable=job.requeueable,
            exclusive=job.exclusive,
        )

    def _tick(self) -> None:
        for job in self.jobs.values():
            if job.state is JobState.RUNNING:
                self._work(job)
        for name in [n for n, r in self.reservations.items() if r.end_s <= self.now_s]:
            del self.reservations[name]
            for job in self.jobs.values():
                job.reservation = "" if job.reservation == name else job.reservation
        ready = [
            j
            for j in self.jobs.values()
            if j.state is JobState.PENDING and self._held(j) is Held.NO
        ]
        for job in sorted(ready, key=lambda j: (-self.priority(j), j.job_id)):
            self._try_start(job)

    def _work(self, job: FakeJob) -> None:
        stopped = job.acked_run == job.restarts
        if not stopped:
            job.done_s += 1
        if job.asked_s is not None and not stopped:
            waited = self.now_s - job.asked_s
            if job.on_signal == "finish" and waited >= job.save_s:
                self._end(job, JobState.COMPLETED)
                return
            if job.on_signal in ("save", "requeue_itself") and waited >= job.save_s:
                job.saved_s = job.done_s
                job.acked_run = job.restarts
                if job.on_signal == "requeue_itself":
                    self._requeue(job)
                    return
        if stopped and job.contract is not None and job.asked_s is not None:
            if self.now_s - job.asked_s >= job.contract.grace_s + ACK_WAIT_S:
                self._requeue(job)
        elif job.done_s >= job.work_s:
            self._end(job, JobState.COMPLETED)
        elif self.now_s - job.start_s >= job.limit_s:
            self._cut_short.add(job.job_id)
            self._end(job, JobState.FAILED)

    def _free(self) -> list[float]:
        free: list[float] = [self._gpus] * len(self._names)
        for job in self.jobs.values():
            for node in job.nodes:
                free[node] -= job.gpus / len(job.nodes)
        return free

    def _try_start(self, job: FakeJob) -> None:
        kept = {
            n for name, r in self.reservations.items() if name != job.reservation for n in r.nodes
        }
        free = self._free()
        down = set(self._rows(sorted(self.down_nodes)))
        alone = {n for j in self.jobs.values() if j.exclusive for n in j.nodes}
        taken = {n for j in self.jobs.values() for n in j.nodes} if job.exclusive else alone
        may = [
            n
            for n in range(len(free))
            if n not in kept | taken | down | job.excluded and (not job.wanted or n in job.wanted)
        ]
        for n_nodes in job.ways():
            fits = [n for n in may if free[n] >= job.gpus / n_nodes]
            if len(fits) >= n_nodes:
                job.nodes = tuple(sorted(fits, key=lambda n: free[n])[:n_nodes])
                job.state, job.start_s, job.end_s = JobState.RUNNING, self.now_s, 0.0
                return

    def _end(self, job: FakeJob, state: JobState) -> None:
        if job.state is JobState.RUNNING:
            job.runs.append((job.start_s, self.now_s))
        else:
            job.start_s = 0.0
        job.state, job.end_s, job.nodes = state, self.now_s, ()

    def _requeue(self, job: FakeJob) -> None:
        job.runs.append((job.start_s, self.now_s))
        job.state, job.nodes, job.start_s = JobState.PENDING, (), 0.0
        job.restarts += 1
        job.submit_s = self.now_s
        job.eligible_s = self.now_s + self._hold_s
        job.done_s, job.asked_s = job.saved_s, None


def _refuse_if(wrong: bool, why: str) -> None:  # noqa: FBT001 - the condition itself
    if wrong:
        raise ClusterError(why)
