"""The jobs of a simulated Slurm as columns, and their behaviour where the trace does not say.

A run holds its GPUs from its start to its end. In between it is launched, reads its checkpoint,
works, perhaps saves, and is stopped; whatever of that is no lasting progress is a loss with a name.

A trace tells when a job came, how long it ran and on how many GPUs. Whether its owner opted in to
preemption, what it does when it is signalled, what time limit it asked for, and when nodes
break is drawn here, from a seed.

Times are seconds since the trace's zero; NaN is "not (yet)".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.completed_jobs import Records, RunNodes, Runs
from slurm_dl.model.contract import Contract
from slurm_dl.model.jobs import F64, I32, Bool, JobState
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.slurm.events import Agenda, EventKind
from slurm_dl.simulation.slurm.overheads import SlurmCosts

LOSSES: Final = (
    "launch",
    "restore",
    "checkpoint",
    "redone",
    "saving",
    "stopping",
    "failure",
    "ending",
)
"""What a run can spend its GPUs on besides lasting work: being started; reading a checkpoint; the
checkpoints it writes by itself; work that is done again; saving on demand; waiting to be requeued
and to be gone; a dead node that nobody has noticed; the end of the job itself."""


class JobColumns:
    """One row for each job of the trace; the columns change as time goes on.

    Attributes:
        wanted_s: When its user submitted it.
        every_s: Seconds of work between two checkpoints that it takes by itself; 0: none.
        n_nodes, share: Nodes it asks for or holds, and GPUs on each.
        gpus: GPUs it holds while it runs.
        speed: How fast it works in that size; 1 in the size it was submitted with.
        need_s: Seconds of work it needs in all, at speed 1.
        limit_s: Its time limit.
        submit_s: Slurm's submit time; a requeue overwrites it.
        first_submit_s: When Slurm first had it.
        start_s: Start of the run under way, or of the last one.
        end_s: End of the last run.
        first_start_s: Its first start.
        state: A `JobState`; -1 before it is submitted.
        restarts: Slurm's restart count.
        site_factor: Its SiteFactor.
        eligible_s: It may not start before.
        saved_s: Work that a checkpoint holds, seconds at speed 1.
        work_from_s: When the run under way begins, or began, to work.
        stopped_s: When its work stopped.
        stored_s: When the checkpoint it was asked for was on disk.
        asked_s: When it was signalled.
        lost_gpu_s: By cause.
    """

    def __init__(
        self,
        trace: Trace,
        asked: JobRequests,
        limit_s: F64,
        costs: SlurmCosts,
        habits: JobBehaviour,
    ) -> None:
        n = len(trace)

        def never() -> F64:
            return np.full(n, math.nan)

        self.wanted_s = trace.submit_s
        self.every_s = np.full(n, habits.checkpoint_every_s)
        self.n_nodes = asked.n_nodes
        self.share = asked.share
        self.gpus = (asked.n_nodes * asked.share).astype(np.float64)
        self.speed = np.ones(n)
        self.need_s = trace.duration_s
        self.limit_s = limit_s
        self.submit_s, self.first_submit_s = never(), never()
        self.start_s, self.first_start_s, self.end_s = never(), never(), never()
        self.eligible_s = never()
        self.work_from_s, self.stopped_s = never(), never()
        self.asked_s, self.stored_s = never(), never()
        self.saved_s = np.zeros(n)
        self.state = np.full(n, -1, dtype=np.int8)
        self.restarts = np.zeros(n, dtype=np.int32)
        self.site_factor = np.zeros(n, dtype=np.int64)
        self.preemptions = np.zeros(n, dtype=np.int32)
        self.promotions = np.zeros(n, dtype=np.int32)
        self.success = np.zeros(n, dtype=np.bool_)
        self.service_gpu_s = np.zeros(n)
        self.lost_gpu_s = {cause: np.zeros(n) for cause in LOSSES}
        self._trace = trace
        self._costs = costs
        self._runs: list[tuple[int, float, float, float]] = []
        self._asked: dict[int, float] = {}
        """Of jobs that have changed their size, the GPUs that they were submitted with."""

    def reshape(self, row: int, n_nodes: int, share: int, speed: float) -> None:
        """Give a job that holds nothing another size."""
        self._asked.setdefault(row, float(self.gpus[row]))
        self.n_nodes[row], self.share[row] = n_nodes, share
        self.gpus[row], self.speed[row] = n_nodes * share, speed

    def asked_gpus(self) -> F64:
        """``(n,)`` GPUs that each job was submitted with."""
        gpus = self.gpus.copy()
        gpus[[*self._asked]] = [*self._asked.values()]
        return gpus

    def begin_run(self, row: int, now_s: float) -> float:
        """Start a run; when its work would be done, seconds."""
        costs = self._costs
        self.state[row] = JobState.RUNNING
        self.start_s[row] = now_s
        if math.isnan(self.first_start_s[row]):
            self.first_start_s[row] = now_s
        self.end_s[row] = self.asked_s[row] = math.nan
        self.stopped_s[row] = self.stored_s[row] = math.nan
        restore_s = costs.restore_s if self.saved_s[row] > 0 else 0.0
        work_from_s = now_s + costs.launch_s + restore_s
        self.work_from_s[row] = work_from_s
        left_s = self._left_s(row)
        return work_from_s + left_s + costs.save_s * self._checkpoints(row, left_s)

    def stop_work(self, row: int, at_s: float) -> None:
        """The run gets no further from *at_s* on; nothing of it is saved by that."""
        if math.isnan(self.stopped_s[row]):
            self.stopped_s[row] = at_s

    def end_run(self, row: int, at_s: float, *, rest: str) -> None:
        """The run's GPUs are free: book where its time went.

        Args:
            rest: What the time after its work was lost to, where it did not save.
        """
        costs, gpus = self._costs, float(self.gpus[row])
        start_s, stopped_s = float(self.start_s[row]), float(self.stopped_s[row])
        # A run can be stopped before it has come to work.
        work_from_s = min(float(self.work_from_s[row]), stopped_s)
        restore_from_s = min(start_s + costs.launch_s, work_from_s)
        worked_s, safe_s = self._worked(row, stopped_s)
        stored_s = float(self.stored_s[row])
        kept_s = worked_s if rest == "ending" or not math.isnan(stored_s) else safe_s
        lost = {
            "launch": restore_from_s - start_s,
            "restore": work_from_s - restore_from_s,
            "checkpoint": stopped_s - work_from_s - worked_s,
            "redone": worked_s - kept_s,
        }
        if math.isnan(stored_s):
            lost[rest] = at_s - stopped_s
        else:
            lost["saving"] = stored_s - stopped_s
            lost[rest] = at_s - stored_s
        for cause, seconds in lost.items():
            self.lost_gpu_s[cause][row] += gpus * seconds
        self.service_gpu_s[row] += gpus * (at_s - start_s)
        self.saved_s[row] += kept_s * float(self.speed[row])
        self._runs.append((row, start_s, at_s, gpus))

    def _left_s(self, row: int) -> float:
        """Seconds that its work still takes at its speed."""
        return float((self.need_s[row] - self.saved_s[row]) / self.speed[row])

    def _checkpoints(self, row: int, work_s: float) -> int:
        every_s = float(self.every_s[row])
        return max(0, math.ceil(work_s / every_s) - 1) if every_s else 0

    def _worked(self, row: int, at_s: float) -> tuple[float, float]:
        """Seconds the run has worked by *at_s*, and how many its own checkpoints hold."""
        ran_s = max(0.0, at_s - float(self.work_from_s[row]))
        left_s = self._left_s(row)
        every_s, save_s = float(self.every_s[row]), self._costs.save_s
        if not every_s:
            return min(ran_s, left_s), 0.0
        most = self._checkpoints(row, left_s)
        whole = min(int(ran_s // (every_s + save_s)), most)
        into_s = ran_s - whole * (every_s + save_s)
        if whole < most:
            into_s = min(into_s, every_s)
        return min(whole * every_s + into_s, left_s), whole * every_s

    def records(self, nodes: RunNodes | None = None) -> Records:
        """What became of each job; a job that is not over has no end.

        Args:
            nodes: Which nodes its runs held, if somebody noted it.
        """
        trace, costs = self._trace, self._costs
        over = np.isin(self.state, (JobState.COMPLETED, JobState.FAILED))
        runs = np.array(self._runs, dtype=np.float64).reshape(-1, 4)
        job: npt.NDArray[np.int32] = runs[:, 0].astype(np.int32)
        return Records(
            job_id=trace.job_id,
            user=trace.user,
            users=trace.users,
            gpus=self.asked_gpus(),
            submit_s=self.wanted_s,
            start_s=self.first_start_s,
            end_s=np.where(over, self.end_s, math.nan),
            alone_s=trace.duration_s + (costs.launch_s + costs.finish_s),
            service_gpu_s=self.service_gpu_s,
            lost_gpu_s={c: lost for c, lost in self.lost_gpu_s.items() if lost.any()},
            preemptions=self.preemptions,
            promotions=self.promotions,
            success=self.success,
            runs=Runs(job=job, start_s=runs[:, 1], end_s=runs[:, 2], gpus=runs[:, 3], nodes=nodes),
        )


MINUTE_S: Final = 60.0  # Slurm's time limits are whole minutes


class OnSignal(IntEnum):
    """What a job does when it is asked for its GPUs."""

    SAVE = 0  # Save, acknowledge, wait to be requeued
    IGNORE = 1  # Nothing; only SIGKILL ends it
    FINISH = 2  # End with success, as a job does that is about to be done
    REQUEUE_ITSELF = 3  # Save and put itself back into the queue, as submitit and Lightning do


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBehaviour:
    """How users write their jobs.

    Attributes:
        grace_s: Longest wait between signal and requeue that jobs ask for, seconds; above 0.
        checkpoint_every_s: Seconds of work between two checkpoints that a job takes by itself;
            0: it saves only when it is asked to.
    """

    opted_in_frac: float = 1.0  # Share of the jobs that may be preempted
    ignore_frac: float = 0.0  # Of those, share that does nothing about the signal
    finish_frac: float = 0.0  # Of those, share that ends with success when it is signalled
    requeue_itself_frac: float = 0.0  # Of those, share that puts itself back
    grace_s: float = 120.0
    checkpoint_every_s: float = 0.0
    limit_factor: float = 3.0  # Time limit of a job over the time it needs, at least 1
    limit_least_s: float = 1800.0  # Time limits are at least this, seconds

    def __post_init__(self) -> None:
        shares = (self.ignore_frac, self.finish_frac, self.requeue_itself_frac)
        if not all(0 <= share <= 1 for share in (self.opted_in_frac, *shares, math.fsum(shares))):
            msg = "the shares of jobs must be between 0 and 1, those of their habits together too"
            raise ValueError(msg)
        if not (self.grace_s > 0 and self.checkpoint_every_s >= 0 and self.limit_least_s >= 0):
            msg = "grace_s must be above 0, checkpoint_every_s and limit_least_s 0 or more"
            raise ValueError(msg)
        if not self.limit_factor >= 1:
            msg = f"limit_factor must be 1 or more (got {self.limit_factor})"
            raise ValueError(msg)

    def limits(self, trace: Trace, *, overhead_s: float) -> F64:
        """``(n,)`` time limits, whole minutes, seconds.

        Args:
            overhead_s: What a run takes besides the work; a limit leaves room for it.
        """
        asked = np.maximum(trace.duration_s * self.limit_factor, self.limit_least_s)
        limits: F64 = np.ceil((asked + overhead_s) / MINUTE_S) * MINUTE_S
        return limits

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Bool, npt.NDArray[np.int8]]:
        """``(n,)`` bool, who has opted in, and ``(n,)`` int8, an `OnSignal` for each job."""
        opted_in: Bool = rng.random(n) < self.opted_in_frac
        edges = np.cumsum([self.ignore_frac, self.finish_frac, self.requeue_itself_frac])
        which = np.searchsorted(edges, rng.random(n), side="right")
        kinds = np.array(
            [OnSignal.IGNORE, OnSignal.FINISH, OnSignal.REQUEUE_ITSELF, OnSignal.SAVE],
            dtype=np.int8,
        )
        return opted_in, kinds[which]

    def contract(self, on_signal: OnSignal) -> Contract:
        """The contract such a job declares."""
        itself = on_signal is OnSignal.REQUEUE_ITSELF
        return Contract(grace_s=self.grace_s, requeued_by="job" if itself else "daemon")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailures:
    """Nodes break and are mended, each on its own; both times are exponentially distributed."""

    mtbf_s: float  # Mean time a node works until it breaks, seconds; a minute at least
    mttr_s: float  # Mean time until it is back, seconds; above 0

    def __post_init__(self) -> None:
        if not (math.inf > self.mtbf_s >= MINUTE_S and math.inf > self.mttr_s > 0):
            msg = f"mtbf_s must be 60 or more, mttr_s above 0 (got {self.mtbf_s}, {self.mttr_s})"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobRequests:
    """What each job asks of Slurm."""

    n_nodes: I32  # ``(n,)`` nodes
    share: I32  # ``(n,)`` GPUs on each of them


def shapes(gpus: F64, node_gpus: F64) -> JobRequests:
    """The fewest nodes that hold each job evenly, whole GPUs only.

    Args:
        gpus: ``(n,)`` GPUs of each job; fractions count as whole GPUs.
        node_gpus: ``(m,)`` GPUs of each node.

    Raises:
        ValueError: A job fits no such cluster even when it is empty.
    """
    n_nodes, share = np.zeros(len(gpus), dtype=np.int32), np.zeros(len(gpus), dtype=np.int32)
    most = int(node_gpus.max(initial=0))
    for wanted in np.unique(gpus).tolist():
        whole = math.ceil(wanted)
        for nodes in range(max(1, -(-whole // max(1, most))), len(node_gpus) + 1):
            each = -(-whole // nodes)
            if whole % nodes == 0 and np.count_nonzero(node_gpus >= each) >= nodes:
                n_nodes[gpus == wanted], share[gpus == wanted] = nodes, each
                break
        else:
            msg = (
                f"{int(np.count_nonzero(gpus == wanted))} jobs of {wanted:g} GPUs fit no equal "
                f"shares of {len(node_gpus)} nodes with at most {most} GPUs"
            )
            raise ValueError(msg)
    return JobRequests(n_nodes=n_nodes, share=share)


# When nodes break, when Slurm notices, and when they are back.
class Breakage:
    """Puts the deaths and returns of nodes on the agenda.

    Args:
        failures: How often they break; None: never.
        lost_after_s: Slurm takes a silent node for lost after this, seconds.
        rng: Draws the times.
    """

    def __init__(
        self,
        failures: NodeFailures | None,
        agenda: Agenda,
        *,
        lost_after_s: float,
        rng: np.random.Generator,
    ) -> None:
        self._failures, self._agenda = failures, agenda
        self._lost_after_s, self._rng = lost_after_s, rng

    def begins(self, node: int, now_s: float) -> None:
        """*node* is whole from now on."""
        if self._failures is not None:
            dies_s = now_s + float(self._rng.exponential(self._failures.mtbf_s))
            self._agenda.add(dies_s, EventKind.NODE_DIES, subject=node)

    def died(self, node: int, now_s: float) -> None:
        """*node* has died; it is back no earlier than Slurm knows of it."""
        if self._failures is not None:
            mend_s = now_s + float(self._rng.exponential(self._failures.mttr_s))
            lost_s = now_s + self._lost_after_s
            self._agenda.add(lost_s, EventKind.NODE_LOST, subject=node)
            self._agenda.add(max(mend_s, lost_s), EventKind.NODE_BACK, subject=node)
