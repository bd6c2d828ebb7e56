"""The jobs of a simulated Slurm as columns, and the arithmetic of one run.

A run holds its GPUs from its start to its end. In between it is launched, reads its checkpoint,
works, perhaps saves, and is stopped; whatever of that is no lasting progress is a loss with a name.

Times are seconds since the trace's zero; NaN is "not (yet)".
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.completed_jobs import Records, RunNodes, Runs
from slurm_dl.model.jobs import F64, JobState
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.slurm.job_behaviour import JobBehaviour, JobRequests
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
        """How many checkpoints a run of *work_s* takes by itself."""
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
