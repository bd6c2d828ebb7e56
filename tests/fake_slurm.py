"""Slurm in memory: jobs, nodes, users and time, as far as the engine can tell.

It starts jobs by priority and job id, skips what does not fit, keeps jobs of a reservation on its
nodes and others off them, keeps jobs off the nodes they exclude, and holds requeued jobs for a
while. Time moves only when told to, in steps of one second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from slurm_dl.model.contract import Contract
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, JobState
from slurm_dl.model.shape import Shape

OnSignal = Literal["save", "ignore", "finish", "requeue_itself"]


@dataclass(slots=True, kw_only=True)
class FakeJob:
    """One job and what it does when it is signalled.

    Attributes:
        work_s: Seconds of running it needs in all.
        on_signal: ``save``: checkpoint within *save_s*, acknowledge and wait; ``ignore``;
            ``finish``: end with success; ``requeue_itself``: checkpoint and go back into the queue.
        done_s: Seconds of its work done in this run and those before it that survived.
        saved_s: Of those, what a checkpoint holds.
        hold: Its owner holds it.
        by_hand: The priority that an operator has set; None: there is none.
        after: The job that must have succeeded before it may start.
        exclusive: It shares its nodes with nobody.
        wanted: The only nodes it may use, as rows; empty for any.
        excluded: Nodes it may not use, as rows, whoever excluded them.
        most_nodes: It may lie on any number of nodes up to this; None: on *n_nodes*.
        typed: It asks for GPUs of the cluster's type, not of any type.
        deadline_s: Its run is over by then, epoch seconds. It ends while it waits, unless it is
            held, once its limit would pass that.
        unmodelled: An option of sbatch of which nobody can tell which nodes it allows.
        cpus, mem_mb: CPUs and memory (MB) on each node.
        ran_gpu_s: GPU-seconds of each of *runs*.
        sizes: Sizes in which it can run, as its comment says.
        in_place: It can give nodes back while it runs, as its comment says.
        changed: Its size was changed while it waited.
        data_ready: Its data is there, as its comment says.
        gave: What it gave back in this run: when, epoch seconds, and how many GPUs.
    """

    job_id: JobId
    gpus: float
    n_nodes: int
    work_s: float
    contract: Contract | None
    on_signal: OnSignal
    save_s: float
    limit_s: float
    uid: int
    submit_s: float
    state: JobState = JobState.PENDING
    site_factor: int = 0
    start_s: float = 0.0
    end_s: float = 0.0
    eligible_s: float = 0.0
    restarts: int = 0
    done_s: float = 0.0
    saved_s: float = 0.0
    asked_s: float | None = None
    acked_run: int | None = None
    reservation: str = ""
    qos: str = ""
    hold: bool = False
    data_ready: bool = True
    by_hand: int | None = None
    after: JobId | None = None
    requeueable: bool = True
    exclusive: bool = False
    wanted: tuple[int, ...] = ()
    excluded: frozenset[int] = frozenset()
    most_nodes: int | None = None
    typed: bool = False
    deadline_s: float = math.inf
    unmodelled: str = ""
    nodes: tuple[int, ...] = ()
    runs: list[tuple[float, float]] = field(default_factory=list)
    signals: list[float] = field(default_factory=list)
    cpus: int = 1
    mem_mb: int = 0
    ran_gpu_s: list[float] = field(default_factory=list)
    sizes: tuple[Shape, ...] = ()
    in_place: bool = False
    changed: bool = False
    gave: tuple[tuple[float, float], ...] = ()

    def ways(self) -> list[int]:
        """On how many nodes it may lie, fewest first: those that split its GPUs evenly."""
        more = range(self.n_nodes + 1, (self.most_nodes or self.n_nodes) + 1)
        return [self.n_nodes, *(n for n in more if self.gpus % n == 0)]

    @property
    def gpu_s(self) -> float:
        """GPU-seconds over the runs that are over."""
        return sum(self.ran_gpu_s)

    def end_run(self, now_s: float) -> None:
        """Note the run that ends now, in the size it had."""
        self.runs.append((self.start_s, now_s))
        self.ran_gpu_s.append(self.run_gpu_s(now_s))
        self.asks_again()

    def asks_again(self) -> None:
        """For what it gave back while it ran."""
        self.gpus += sum(gpus for _, gpus in self.gave)
        self.gave = ()

    def run_gpu_s(self, now_s: float) -> float:
        """GPU-seconds of the run under way, up to *now_s*."""
        before_gpu_s = sum(gpus * (at_s - self.start_s) for at_s, gpus in self.gave)
        return before_gpu_s + self.gpus * (now_s - self.start_s)


@dataclass(slots=True, kw_only=True)
class FakeReservation:
    """Nodes kept for attached jobs until *end_s*."""

    nodes: frozenset[int]
    end_s: float


ACK_WAIT_S = 60.0
"""After its grace and this long a job that acknowledged requeues itself, as dlrun does."""

LEAST_S = 60.0
"""Before a deadline, of a job without a time limit; it gets what is left (22.05.8)."""

EPOCH_S = 1_000_000.0
"""Where the fake's clock starts; not 0, so that "never" and "at the start" differ."""


class FakeSlurm:
    """*nodes* nodes with *gpus* GPUs each, and a queue.

    Args:
        hold_s: How long a requeued job may not start, seconds.

    Attributes:
        now_s: Its clock, epoch seconds.
        jobs: Every job there ever was.
        reservations: By name.
        down_nodes: Names of nodes that died.
    """

    def __init__(self, *, nodes: int, gpus: int, hold_s: float = 6.0) -> None:
        self.now_s = EPOCH_S
        self.jobs: dict[JobId, FakeJob] = {}
        self.reservations: dict[str, FakeReservation] = {}
        self.down_nodes: set[str] = set()
        self._gpus = gpus
        self._names = tuple(f"n{i + 1}" for i in range(nodes))
        self._hold_s = hold_s
        self._cut_short: set[JobId] = set()
        self.failed_with: dict[JobId, int] = {}

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
        deadline_s: float = math.inf,
        unmodelled: str = "",
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
            deadline_s=deadline_s,
            unmodelled=unmodelled,
        )
        return job_id

    def exclude(self, job_id: JobId, *nodes: str) -> None:
        """Change the nodes a waiting job excludes, all of them, as its owner would."""
        job = self.jobs[job_id]
        refuse_if(job.state is not JobState.PENDING, f"job {job_id} is no longer pending")
        job.excluded = frozenset(self._rows(nodes))

    def cancel(self, job_id: JobId) -> None:
        """End a job as its user would."""
        job = self.jobs[job_id]
        if job.state in (JobState.PENDING, JobState.RUNNING):
            self._cut_short.add(job_id)
            self._end(job, JobState.FAILED)

    def crash(self, job_id: JobId, status: int = 0) -> None:
        """End a running job by a failure of its own; Slurm tells a *status* other than 0."""
        if status:
            self.failed_with[job_id] = status
        self._end(self.jobs[job_id], JobState.FAILED)

    def requeue(self, job_id: JobId) -> None:
        """Put a job back into the queue as its user would, with ``scontrol requeue``."""
        job = self.jobs[job_id]
        refuse_if(job.state is not JobState.RUNNING, f"job {job_id} is not running")
        refuse_if(not job.requeueable, f"job {job_id} may not be requeued")
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

    def priority(self, job: FakeJob) -> int:
        """Slurm's priority of *job*."""
        return 1 + job.site_factor if job.by_hand is None else job.by_hand

    def _rows(self, names: Sequence[str]) -> tuple[int, ...]:
        unknown = ", ".join(sorted(set(names) - set(self._names)))
        refuse_if(unknown != "", f"there is no node {unknown}")
        return tuple(self._names.index(name) for name in names)

    def _held(self, job: FakeJob) -> Held:
        if job.state is not JobState.PENDING:
            return Held.NO
        if job.hold:
            return Held.USER_OR_ADMIN
        if job.after is not None and self.jobs[job.after].state is not JobState.COMPLETED:
            return Held.DEPENDENCY
        if job.changed and job.n_nodes > len(self._names):
            return Held.LIMIT
        if job.changed and job.gpus > job.n_nodes * self._gpus:
            return Held.UNAVAILABLE
        return Held.BEGIN_TIME if job.eligible_s > self.now_s else Held.NO

    def _tick(self) -> None:
        for job in self.jobs.values():
            if job.state is JobState.RUNNING:
                self._work(job)
        for name in [n for n, r in self.reservations.items() if r.end_s <= self.now_s]:
            del self.reservations[name]
            for job in self.jobs.values():
                job.reservation = "" if job.reservation == name else job.reservation
        for job in self.jobs.values():
            waits = job.state is JobState.PENDING and not job.hold
            least_s = LEAST_S if math.isinf(job.limit_s) else job.limit_s
            if waits and self.now_s + least_s > job.deadline_s:
                self.cancel(job.job_id)
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
        elif self.now_s >= min(job.start_s + job.limit_s, job.deadline_s):
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
        own = self.reservations.get(job.reservation)
        may = [
            n
            for n in (range(len(free)) if own is None else sorted(own.nodes))
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
            job.end_run(self.now_s)
        else:
            job.start_s = 0.0
        job.state, job.end_s, job.nodes = state, self.now_s, ()

    def _requeue(self, job: FakeJob) -> None:
        job.end_run(self.now_s)
        job.state, job.nodes, job.start_s = JobState.PENDING, (), 0.0
        job.restarts += 1
        job.submit_s = self.now_s
        job.eligible_s = self.now_s + self._hold_s
        job.done_s, job.asked_s = job.saved_s, None


def refuse_if(wrong: bool, why: str) -> None:  # noqa: FBT001 - the condition itself
    """Refuse as Slurm does.

    Raises:
        ClusterError: Because of *why*, if it is *wrong*.
    """
    if wrong:
        raise ClusterError(why)
