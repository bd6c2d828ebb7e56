"""The cluster in memory as the loop sees it: observed, acted upon, and remembering all of it.

Tests and model checks use it where a real Slurm would be too slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn, assert_never

import numpy as np
from fake_slurm import FakeJob, FakeReservation, FakeSlurm, refuse_if

from slurm_dl.model.contract import Claim
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
    Reshape,
    Retry,
    SetSiteFactor,
    SetSteer,
    Shrink,
    Signal,
    Throttle,
    Trim,
    Unseal,
)
from slurm_dl.model.snapshot import JobText, Observed, Reservation

_BEFORE_DATA = frozenset({Held.NO, Held.BEGIN_TIME})
_ENDED = frozenset({JobState.COMPLETED, JobState.FAILED})


class FakeCluster(FakeSlurm):
    """Slurm in memory as a `Cluster`, which remembers what it was told.

    Args:
        gpu_types: Type of the GPUs of each node; empty: all are alike.

    Attributes:
        applied: What was done to it, in order.
        fail: Kinds of action that are refused, each entry once.
        down: It does not answer.
        reader: What reads its queue: nothing has to.
        now: The loop's clock; the fake goes by its own.
        asked_s: How long it took to answer: no time.
        config: What of slurm.conf is known: there is none.
    """

    def __init__(
        self, *, nodes: int, gpus: int, hold_s: float = 6.0, gpu_types: Sequence[str] = ()
    ) -> None:
        super().__init__(nodes=nodes, gpus=gpus, hold_s=hold_s)
        of_nodes = tuple(gpu_types) or ("a100",) * nodes
        self._gpu_types = tuple(dict.fromkeys(of_nodes))
        self._type_of = [self._gpu_types.index(name) for name in of_nodes]
        self.applied: list[ClusterAction] = []
        self.throttles: dict[JobId, int] = {}
        self.fail: list[type[ClusterAction]] = []
        self.down = False
        self.reader = None
        self.now: Callable[[], float] = self.clock
        self.asked_s = 0.0
        self.config = None

    def clock(self) -> float:
        """The fake's time, epoch seconds."""
        return self.now_s

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
                gpu_type=np.array(self._type_of, dtype=np.int16),
                cpus=np.full(m, 1000, dtype=np.int32),
                mem_mb=np.zeros(m, dtype=np.int64),
                leaf=np.zeros(m, dtype=np.int16),
            ),
            held=Allocations(
                job=np.array([i for i, _, _ in holding], dtype=np.int32),
                node=np.array([n for _, _, n in holding], dtype=np.int32),
                gpus=np.array([j.gpus / len(j.nodes) for _, j, _ in holding], dtype=np.float64),
                cpus=np.array([j.cpus for _, j, _ in holding], dtype=np.int32),
                mem_mb=np.array([j.mem_mb for _, j, _ in holding], dtype=np.int64),
            ),
            partitions=("gpu",),
            gpu_types=self._gpu_types,
            node_in=np.ones((1, m), dtype=np.bool_),
            claims={
                j.job_id: Claim(
                    contract=j.contract,
                    acked_run=j.acked_run,
                    most_nodes=j.most_nodes,
                    sizes=j.sizes,
                    in_place=j.in_place,
                    preempted_run=None if j.asked_s is None else j.restarts,
                )
                for j in listed
                if j.contract is not None or j.most_nodes is not None
            },
            choices={
                j.job_id: np.isin(np.arange(m), () if j.unmodelled else j.wanted)
                for j in listed
                if (j.wanted or j.unmodelled) and j.state not in _ENDED
            },
            unmodelled={
                j.job_id: j.unmodelled for j in listed if j.unmodelled and j.state not in _ENDED
            },
            deadlines={
                j.job_id: j.deadline_s
                for j in listed
                if j.deadline_s < math.inf and j.state not in _ENDED
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
            eligible={
                j.job_id: j.eligible_s
                for j in listed
                if j.state not in _ENDED and j.eligible_s > j.submit_s
            },
            throttles={j: t for j, t in self.throttles.items() if j in self.jobs},
            texts={j.job_id: JobText(label=str(j.job_id), qos=j.qos) for j in listed},
            reserved={j.job_id: j.reservation for j in listed if j.reservation},
            cut_short=frozenset(self._cut_short),
            failed_with={
                j: s for j, s in self.failed_with.items() if self.jobs[j].state is JobState.FAILED
            },
            reservations=tuple(
                Reservation(name=name, end_s=r.end_s) for name, r in self.reservations.items()
            ),
        )

    def look_again(
        self,
        seen: Observed,
        jobs: frozenset[JobId],  # noqa: ARG002
        *,
        nodes: bool,  # noqa: ARG002
    ) -> Observed:
        """*seen*: nothing that it tells is old."""
        return seen

    def set_by_hand(self, jobs: Collection[JobId]) -> dict[JobId, bool]:
        """Of each of *jobs* whether its priority was set by hand."""
        return {job: self.jobs[job].by_hand is not None for job in jobs}

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

    def _do(self, action: ClusterAction) -> None:
        match action:
            case SetSiteFactor(job_id=job_id, value=value):
                job = self._job(job_id)
                refuse_if(job.state in _ENDED, f"job {job_id} has already finished")
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
            case Requeue() | Retry():
                self._take_back(action)
            case Shrink():
                self._shrink(action)
            case Trim() | Reshape() | Throttle():
                self._change_request(action)
            case _:
                assert_never(action)

    def _seal(self, action: Reserve | Attach | Detach | Unseal) -> None:
        match action:
            case Reserve(handover_id=hid, nodes=nodes, duration_s=duration_s):
                self._reserve(reservation_name(hid), frozenset(self._rows(nodes)), duration_s)
            case Attach(handover_id=hid, job_id=job_id):
                name = reservation_name(hid)
                refuse_if(name not in self.reservations, f"there is no reservation {name}")
                self._job(job_id).reservation = name
            case Detach(job_id=job_id):
                self._detach(job_id)
            case Unseal(name=name):
                refuse_if(not name.startswith(RESERVATION_PREFIX), f"{name} is not ours")
                self.reservations.pop(name, None)

    def _take_back(self, action: Requeue | Retry) -> None:
        job = self._job(action.run.job_id)
        if job.state is not JobState.PENDING:
            ended = isinstance(action, Retry) or action.ended
            state = JobState.FAILED if ended else JobState.RUNNING
            self._requeue(self._same_run(action.run, state))
            job.hold |= isinstance(action, Retry) and action.hold

    def _shrink(self, action: Shrink) -> None:
        """As Slurm 22.05: the record of the request stays."""
        job, kept = self._same_run(action.run), self._rows(action.nodes)
        refuse_if(min(job.nodes) not in kept, "Invalid node name specified")
        given = job.gpus * (1 - len(kept) / len(job.nodes))
        job.gpus, job.gave = job.gpus - given, (*job.gave, (self.now_s, given))
        job.nodes = tuple(n for n in job.nodes if n in kept)
        job.asked_s = job.acked_run = None

    def _change_request(self, action: Trim | Reshape | Throttle) -> None:
        """As Slurm: a size that no node has is taken, and never starts."""
        job = self._job(action.job_id)
        if isinstance(action, Throttle):
            self.throttles[job.job_id] = action.tasks
            return
        if job.state is not JobState.PENDING:
            return
        if isinstance(action, Reshape):
            job.n_nodes, job.gpus = action.shape.nodes, float(action.shape.gpus)
            job.changed = True
            job.cpus = action.cpus or job.cpus
        elif action.cpus:
            job.cpus = min(job.cpus, action.cpus)
        job.mem_mb = action.mem_mb or job.mem_mb

    def _job(self, job_id: JobId) -> FakeJob:
        refuse_if(job_id not in self.jobs, f"there is no job {job_id}")
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
            refuse_if(standing.nodes != rows, f"{name} stands already and is another")
            return
        overlaps = any(r.nodes & rows for r in self.reservations.values())
        refuse_if(overlaps, "Requested nodes are busy: overlaps with another reservation")
        self.reservations[name] = FakeReservation(nodes=rows, end_s=self.now_s + duration_s)

    def _same_run(self, run: Run, state: JobState = JobState.RUNNING) -> FakeJob:
        job = self._job(run.job_id)
        same = job.start_s == run.start_s and job.restarts == run.restarts
        gone = job.state is not state or not same
        refuse_if(gone, f"job {run.job_id} is not in that run any more")
        refuse_if(not job.requeueable, f"job {run.job_id} may not be requeued")
        return job

    def _row(self, job: FakeJob) -> JobRow:
        held = self._held(job)
        waits = job.state is JobState.PENDING and not job.data_ready and held in _BEFORE_DATA
        return JobRow(
            job_id=job.job_id,
            state=job.state,
            held=Held.DATA if waits else held,
            uid=job.uid,
            n_nodes=len(job.nodes) or job.n_nodes,
            gpus=job.gpus,
            gpu_type=0 if job.typed else -1,
            cpus=job.n_nodes * job.cpus,
            mem_mb=job.n_nodes * job.mem_mb,
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
