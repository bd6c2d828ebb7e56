"""A Slurm in simulated time, as the engine sees it: `observe` and `apply`.

What it is shown is what Slurm would tell: whole seconds, and nothing of what only the machine
knows. Both take their time, and meanwhile the machine goes on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, assert_never

import numpy as np
import numpy.typing as npt

from slurm_dl.model.contract import Claim
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import Run, reservation_name
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, F64, PENDING, RUNNING, Held, Jobs, JobState
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
from slurm_dl.model.snapshot import Observed, Reservation
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.cluster_shape import ClusterShape
from slurm_dl.simulation.job_knowledge import JobSizes
from slurm_dl.simulation.outcome import NodeJournal
from slurm_dl.simulation.slurm.job_columns import (
    JobBehaviour,
    JobColumns,
    NodeFailures,
    OnSignal,
    shapes,
)
from slurm_dl.simulation.slurm.machine import Machine
from slurm_dl.simulation.slurm.overheads import SlurmCosts
from slurm_dl.simulation.slurm.scheduler import Backfill
from slurm_dl.simulation.slurm.scheduling_passes import Phases

EPOCH_S: Final = 1_699_999_980.0
"""Epoch seconds of the trace's zero, unless told otherwise: the beginning of a minute."""

FIRST_JOB_ID: Final = 1
FIRST_UID: Final = 1000

_LOOK_FIRST = (Signal, Requeue, Detach, SetSteer, ClearSteer, Reshape)


class SlurmSim:
    """One simulated cluster with one partition, and the jobs of one trace; see `Cluster`.

    Args:
        trace: The jobs; they are submitted at their times.
        partition: The partition's name.
        limit_s: ``(n,)`` time limits, seconds; None: as *habits* has it.
        failures: When nodes break; None: never.
        phases: Where the schedulers' clocks stand; None: drawn.
        seed: Of everything that is drawn.
        epoch_s: Epoch seconds of the trace's zero.
        journal: Is told which nodes each run held; None: nobody wants to know.
        sizes: Of each job those it can have, and its speed in them; None: no job is elastic.
        kind: Makes the machine.

    Attributes:
        machine: The cluster as it really is.

    Raises:
        ValueError: A job does not fit the empty cluster.
    """

    def __init__(
        self,
        trace: Trace,
        shape: ClusterShape,
        *,
        costs: SlurmCosts,
        habits: JobBehaviour,
        partition: str = "gpu",
        limit_s: F64 | None = None,
        failures: NodeFailures | None = None,
        phases: Phases | None = None,
        seed: int = 0,
        epoch_s: float = EPOCH_S,
        journal: NodeJournal | None = None,
        sizes: Sequence[JobSizes | None] | None = None,
        kind: Callable[..., Machine] = Machine,
    ) -> None:
        self._costs = costs
        self._partition = partition
        self._epoch_s = epoch_s
        self._nodes = shape.nodes()
        self._gpu_types = shape.gpu_types
        if limit_s is None:
            overhead_s = costs.launch_s + costs.restore_s + costs.finish_s
            limit_s = habits.limits(trace, overhead_s=overhead_s)
        rng = np.random.default_rng(seed)
        opted_in, on_signal = habits.draw(len(trace), rng)
        self._sizes = [None] * len(trace) if sizes is None else sizes
        contracts = {kind: habits.contract(kind) for kind in OnSignal}
        self._claim = [
            _with_sizes(Claim(contract=contracts[OnSignal(kind)]) if may else None, elastic)
            for may, kind, elastic in zip(
                opted_in.tolist(), on_signal.tolist(), self._sizes, strict=True
            )
        ]
        self.machine = kind(
            JobColumns(trace, shapes(trace.gpus, self._nodes.gpus), limit_s, costs, habits),
            due_s=(trace.submit_s + costs.submit_s).tolist(),
            ending=trace.ending,
            on_signal=on_signal,
            grace_s=habits.grace_s,
            gpus=self._nodes.gpus.astype(np.int64),
            costs=costs,
            how=Backfill(
                resolution_s=costs.bf_resolution_s,
                precision_s=costs.bf_precision_s,
                window_s=costs.bf_window_s,
                max_jobs=int(costs.bf_max_jobs),
                epoch_s=epoch_s,
            ),
            failures=failures,
            phases=phases,
            rng=rng,
            journal=journal,
        )

        self._asked = self._lasting_columns(trace)

    def _lasting_columns(self, trace: Trace) -> dict[str, npt.NDArray[Any]]:
        """Those columns of `Jobs`, for all jobs of the trace, that only a `Reshape` changes."""
        n, jobs = len(trace), self.machine.jobs
        return {
            "job_id": np.arange(n) + FIRST_JOB_ID,
            "partition": np.zeros(n, dtype=np.int16),
            "uid": trace.user.astype(np.int64) + FIRST_UID,
            "tasks": np.ones(n, dtype=np.int32),
            "n_nodes": jobs.n_nodes.copy(),
            "gpus": jobs.gpus.copy(),
            "gpu_type": np.full(n, -1, dtype=np.int16),
            "cpus": jobs.n_nodes.copy(),
            "mem_mb": np.zeros(n, dtype=np.int64),
            "requeueable": np.ones(n, dtype=np.bool_),
            "exclusive": np.zeros(n, dtype=np.bool_),
        }

    def clock(self) -> float:
        """Epoch seconds now."""
        return self._epoch_s + self.machine.now_s

    def observe(self) -> Observed:
        """The cluster now; see `Cluster`."""
        seen = self._observed()
        self.machine.advance_to(self.machine.now_s + self._costs.observe_s)
        return seen

    def apply(self, action: ClusterAction, /) -> None:
        """Do one thing, after the time its commands take; see `Cluster`."""
        machine = self.machine
        # These look at the job again before they act.
        commands = 2 if isinstance(action, _LOOK_FIRST) else 1
        machine.advance_to(machine.now_s + commands * self._costs.rpc_s)
        match action:
            case SetSiteFactor(job_id=job_id, value=value):
                machine.set_site_factor(self._row(job_id), value)
            case Reserve():
                self._reserve(action)
            case Attach(handover_id=handover_id, job_id=job_id):
                self._attach(self._row(job_id), reservation_name(handover_id))
            case Detach(job_id=job_id):
                self._detach(self._row(job_id))
            case Signal(run=run):
                machine.signal(self._same_run(run))
            case Requeue(run=run) | Retry(run=run):
                self._requeue(run)
            case Unseal(name=name):
                machine.unseal(name)
            case SetSteer() | ClearSteer():
                self._steer(action)
            case Trim() | Reshape() | Shrink() | Throttle():
                self._change_request(action)
            case _:
                assert_never(action)

    def _attach(self, row: int, name: str) -> None:
        if name not in self.machine.reserved:
            msg = f"reservation {name} does not exist"
            raise ClusterError(msg)
        self.machine.attach(row, name)

    def _detach(self, row: int) -> None:
        if self.machine.jobs.state[row] == JobState.PENDING:
            self.machine.attach(row, "")

    def _steer(self, action: SetSteer | ClearSteer) -> None:
        row = self._row(action.job_id)
        if self.machine.jobs.state[row] != JobState.PENDING:
            return
        steer = action.steer if isinstance(action, SetSteer) else None
        names = action.own if isinstance(action, ClearSteer) else sorted(action.steer.excluded)
        self.machine.exclude(row, np.isin(self._nodes.name, list(names)))
        if steer is not None and steer.not_before_s > 0:
            self.machine.put_off(row, steer.not_before_s - self._epoch_s)
        elif action.lift:
            self.machine.put_off(row, self.machine.now_s)

    def _change_request(self, action: Trim | Reshape | Shrink | Throttle) -> None:
        if isinstance(action, Throttle):
            msg = "the simulated Slurm has no arrays"
            raise ClusterError(msg)
        if isinstance(action, Shrink):
            msg = "the simulated Slurm takes no node from a running job"
            raise ClusterError(msg)
        row = self._row(action.job_id)
        if isinstance(action, Trim):
            msg = "the simulated Slurm counts no CPUs and no memory, and cuts none"
            raise ClusterError(msg)
        if action.gpu_type:
            msg = "the simulated Slurm changes no job's GPU type"
            raise ClusterError(msg)
        if self.machine.jobs.state[row] != JobState.PENDING:
            return
        self._reshape(row, action)

    def _reshape(self, row: int, action: Reshape) -> None:
        shape, sizes = action.shape, self._sizes[row]
        speed = 1.0 if sizes is None else sizes.speed(shape)
        self.machine.reshape(row, shape.nodes, shape.gpus_per_node, speed)
        self._asked["n_nodes"][row], self._asked["gpus"][row] = shape.nodes, shape.gpus
        self._asked["cpus"][row] = shape.nodes

    def _requeue(self, run: Run) -> None:
        if self.machine.jobs.state[self._row(run.job_id)] != JobState.PENDING:
            self.machine.requeue(self._same_run(run))

    def _row(self, job_id: JobId) -> int:
        row, state = int(job_id) - FIRST_JOB_ID, self.machine.jobs.state
        if not 0 <= row < len(state) or state[row] < 0:
            msg = f"job {job_id} does not exist"
            raise ClusterError(msg)
        return row

    def _same_run(self, run: Run) -> int:
        row, jobs = self._row(run.job_id), self.machine.jobs
        same = (
            jobs.state[row] == RUNNING
            and int(jobs.restarts[row]) == run.restarts
            and math.floor(self._epoch_s + jobs.start_s[row]) == run.start_s
        )
        if not same:
            msg = f"job {run.job_id} is not in the run that was chosen any more"
            raise ClusterError(msg)
        return row

    def _reserve(self, action: Reserve) -> None:
        name = reservation_name(action.handover_id)
        nodes = np.isin(self._nodes.name, action.nodes)
        if any((r.nodes & nodes).any() for r in self.machine.reserved.values() if r.name != name):
            msg = f"reservation {name}: nodes of it are reserved already"
            raise ClusterError(msg)
        # Slurm takes whole minutes.
        self.machine.reserve(name, nodes, 60.0 * max(1, math.ceil(action.duration_s / 60.0)))

    def _observed(self) -> Observed:
        machine, jobs = self.machine, self.machine.jobs
        rows = np.array(machine.listed, dtype=np.int64)
        state = jobs.state[rows]

        def told(at_s: F64) -> F64:
            whole: F64 = np.floor(self._epoch_s + at_s[rows])
            whole[np.isnan(whole)] = 0.0
            return whole

        waits = (state == PENDING) & (jobs.eligible_s[rows] > machine.now_s)
        start_s, limit_s = told(jobs.start_s), jobs.limit_s[rows]
        ends_s = np.where(state >= COMPLETED, told(jobs.end_s), start_s + limit_s)
        columns = {
            "state": state,
            "held": waits * np.int8(Held.BEGIN_TIME),
            "submit_s": told(jobs.submit_s),
            "start_s": start_s,
            "end_s": np.where(state == PENDING, 0.0, ends_s),
            "limit_s": limit_s,
            "restarts": jobs.restarts[rows],
            "priority": 1 + jobs.site_factor[rows],
        }
        return Observed(
            now_s=float(math.floor(self.clock())),
            jobs=Jobs(**{name: column[rows] for name, column in self._asked.items()}, **columns),
            nodes=self._seen_nodes(),
            held=self._allocations(rows),
            partitions=(self._partition,),
            gpu_types=self._gpu_types,
            node_in=np.ones((1, len(self._nodes)), dtype=np.bool_),
            claims=self._claims(),
            excluded={
                JobId(row + FIRST_JOB_ID): nodes
                for row, nodes in machine.queue.excluded.items()
                if jobs.state[row] == JobState.PENDING
            },
            begins={
                JobId(int(row) + FIRST_JOB_ID): self._epoch_s + float(jobs.eligible_s[row])
                for row in rows[waits].tolist()
            },
            eligible={
                JobId(int(row) + FIRST_JOB_ID): self._epoch_s + float(jobs.eligible_s[row])
                for row in rows[jobs.eligible_s[rows] > jobs.submit_s[rows]].tolist()
            },
            reserved={
                JobId(r + FIRST_JOB_ID): name for r, name in machine.queue.reservation.items()
            },
            reservations=tuple(
                Reservation(name=r.name, end_s=float(math.floor(self._epoch_s + r.end_s)))
                for r in machine.reserved.values()
            ),
        )

    def _seen_nodes(self) -> Nodes:
        if not np.array_equal(self._nodes.up, self.machine.room.up):
            self._nodes = dataclasses.replace(self._nodes, up=self.machine.room.up)
        return self._nodes

    def _claims(self) -> dict[JobId, Claim]:
        claims = {
            JobId(row + FIRST_JOB_ID): claim
            for row in self.machine.listed
            if (claim := self._claim[row]) is not None
        }
        for row, restarts in self.machine.acked.items():
            job_id = JobId(row + FIRST_JOB_ID)
            claims[job_id] = dataclasses.replace(claims[job_id], acked_run=restarts)
        return claims

    def _allocations(self, rows: npt.NDArray[np.int64]) -> Allocations:
        holding = sorted(self.machine.room.holds)
        nodes = [self.machine.room.holds[row] for row in holding]
        job = np.repeat(np.searchsorted(rows, holding), [len(on) for on in nodes])
        share = self.machine.jobs.share[rows[job]] if len(job) else np.zeros(0)
        return Allocations(
            job=job.astype(np.int32),
            node=np.concatenate([*nodes, np.zeros(0, dtype=np.int64)]).astype(np.int32),
            gpus=share.astype(np.float64),
            cpus=np.ones(len(job), dtype=np.int32),
            mem_mb=np.zeros(len(job), dtype=np.int64),
        )


def _with_sizes(claim: Claim | None, sizes: JobSizes | None) -> Claim | None:
    """*claim* as an elastic job has it."""
    if sizes is None:
        return claim
    shapes_of = sizes.shapes()
    return dataclasses.replace(claim or Claim(), sizes=shapes_of, asked=shapes_of[sizes.asked])
