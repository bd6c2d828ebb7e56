"""A simulated Slurm whose jobs do what their scripts say: their users do as they like."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import Run
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I64, RUNNING, Bool
from slurm_dl.model.nodes import Allocations
from slurm_dl.model.plan import Reshape
from slurm_dl.model.snapshot import Observed
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.slurm.events import Event, EventKind
from slurm_dl.simulation.slurm.job_columns import JobColumns, OnSignal
from slurm_dl.simulation.slurm.machine import Machine
from slurm_dl.simulation.slurm.scheduler import Start
from slurm_dl.simulation.slurm.simulated_cluster import FIRST_JOB_ID, SlurmSim

OPTED_IN: Final = Claim(contract=Contract())

NOBODY: Final = -1  # The row of no job


@dataclass(frozen=True, slots=True, kw_only=True)
class JobScript:
    """One job of a user less honest than those of `JobBehaviour`; times in seconds."""

    claim: Claim | None = OPTED_IN  # What its metadata say; None: nothing
    claims_while_it_runs: bool = True  # False: it takes the claim out once it runs
    on_signal: OnSignal = OnSignal.SAVE
    checkpoint_every_s: float = 3600.0  # Of work; 0: it saves only when it is asked to or leaves
    reports: Literal["true", "never", "now"] = "true"  # Of its last checkpoint, while it runs
    progress: float | None = None  # Share of its work it says it has done; None: the truth
    requeue_refused: bool = False  # It sets Requeue=0 once it runs
    fails: bool = False  # At its end
    begin_s: float = -math.inf  # Not eligible before, in the trace's time
    leaves_after_s: float = math.inf  # Of a run; then it saves, and leaves by itself
    heir: int = NOBODY  # Row of the job that goes on with its work; without one it requeues itself
    heir_after: Literal["leaving", "preemption"] = "leaving"  # What makes it end for its heir
    gap_s: float = 1.0  # From its end to the submission of its heir
    after: int = NOBODY  # Row of the job after whose end it is submitted, heirs of that included
    think_s: float = 0.0  # From that end to its submission
    held: tuple[int, int] | None = None  # Nodes, and GPUs on each of them that nobody else gets
    gpus: float | None = None  # What Slurm tells of it; None: all that it holds
    cpus: int | None = None  # Likewise; None: one on each node


@dataclass(frozen=True, slots=True, eq=False)
class Scripts:
    """The scripts of all jobs of a trace, row by row."""

    rows: tuple[JobScript, ...]

    def column(self, name: str) -> list[Any]:
        """One field of all jobs."""
        return [getattr(script, name) for script in self.rows]

    @property
    def progress(self) -> F64 | None:
        """``(n,)`` what each claims, NaN where it tells the truth; None: all do."""
        claimed = np.array(self.column("progress"), dtype=np.float64)
        return None if np.isnan(claimed).all() else claimed

    @property
    def due(self) -> Bool:
        """``(n,)`` bool, jobs that come by themselves, at their time in the trace."""
        heirs = np.isin(np.arange(len(self.rows)), self.column("heir"))
        by_itself: Bool = ~heirs & (np.array(self.column("after")) == NOBODY)
        return by_itself


class ScriptedMachine(Machine):
    """A machine whose jobs have timers, begin times and heirs.

    Args:
        scripts: Of all jobs.
        due_s: When Slurm has each of those that come by themselves, seconds.
        more: As for `Machine`; what scripts say is not taken from there.
    """

    def __init__(
        self,
        scripts: Scripts,
        jobs: JobColumns,
        *,
        due_s: list[float],
        **more: Any,  # noqa: ANN401 - they are the machine's
    ) -> None:
        self._scripts = scripts.rows
        self._leaving: set[int] = set()
        """Jobs that end their run by themselves."""
        self._followers: dict[int, list[int]] = {}
        for row, script in enumerate(scripts.rows):
            if script.held is not None:
                jobs.n_nodes[row], jobs.share[row] = script.held
            if script.after != NOBODY:
                self._followers.setdefault(script.after, []).append(row)
        jobs.gpus = (jobs.n_nodes * jobs.share).astype(np.float64)
        jobs.every_s = np.array(scripts.column("checkpoint_every_s"), dtype=np.float64)
        jobs.wanted_s = jobs.wanted_s.copy()
        more["on_signal"] = np.array(scripts.column("on_signal"), dtype=np.int8)
        due_s = np.where(scripts.due, due_s, math.inf).tolist()
        super().__init__(jobs, due_s=due_s, **more)
        self.left = len(due_s) - sum(script.heir != NOBODY for script in scripts.rows)
        self._on_event[EventKind.LEAVES] = self._leaves

    def _submit(self, event: Event) -> None:
        row = event.subject
        super()._submit(event)
        # Heirs come in another order than their rows.
        self.listed.sort()
        if self._scripts[row].begin_s > self.now_s:
            self.put_off(row, self._scripts[row].begin_s)

    def _start(self, start: Start) -> None:
        super()._start(start)
        row = start[0]
        if (leaves_after_s := self._scripts[row].leaves_after_s) < math.inf:
            self._after(leaves_after_s, EventKind.LEAVES, row)

    def _leaves(self, event: Event) -> None:
        row = event.subject
        if math.isnan(self.jobs.stopped_s[row]):
            self.jobs.stop_work(row, self.now_s)
            self._leaving.add(row)
            self._after(self._costs.save_s, EventKind.SAVED, row)

    def _saved(self, event: Event) -> None:
        row = event.subject
        if row in self._leaving:
            self.jobs.stored_s[row] = self.now_s
            self._after(self._costs.ack_s, EventKind.REQUEUES_ITSELF, row)
        else:
            super()._saved(event)

    def _back_in_queue(self, row: int) -> None:
        script, leaves = self._scripts[row], row in self._leaving
        self._leaving.discard(row)
        self.jobs.preemptions[row] -= leaves
        if script.heir == NOBODY or leaves != (script.heir_after == "leaving"):
            super()._back_in_queue(row)
            return
        self.jobs.saved_s[script.heir] = self.jobs.saved_s[row]
        self._followers[script.heir] = self._followers.pop(row, [])
        self._comes(script.heir, script.gap_s)
        self.left += 1
        self.jobs.end_s[row] = self.now_s
        self._over(row, success=False)

    def _over(self, row: int, *, success: bool) -> None:
        super()._over(row, success=success and not self._scripts[row].fails)
        for follower in self._followers.pop(row, []):
            self._comes(follower, self._scripts[follower].think_s)

    def _comes(self, row: int, delay_s: float) -> None:
        self.jobs.wanted_s[row] = self.now_s + delay_s
        self._after(delay_s, EventKind.SUBMIT, row)


class ScriptedSim(SlurmSim):
    """See `SlurmSim`.

    Args:
        scripts: Of all jobs of the trace.
        more: As for `SlurmSim`.
    """

    def __init__(self, scripts: Scripts, trace: Trace, *where: Any, **more: Any) -> None:  # noqa: ANN401
        self._scripts = scripts.rows
        self._refuses = np.array(scripts.column("requeue_refused"), dtype=np.bool_)
        super().__init__(trace, *where, kind=functools.partial(ScriptedMachine, scripts), **more)
        self._claim = [script.claim for script in scripts.rows]

    def _lasting_columns(self, trace: Trace) -> dict[str, npt.NDArray[Any]]:
        columns, jobs = super()._lasting_columns(trace), self.machine.jobs
        told = {
            "gpus": np.array([s.gpus for s in self._scripts], dtype=np.float64),
            "cpus": np.array([s.cpus for s in self._scripts], dtype=np.float64),
        }
        for name, column in told.items():
            all_of_it = columns[name]
            columns[name] = np.where(np.isnan(column), all_of_it, column).astype(all_of_it.dtype)
        # Seen of each node.
        self._gpus_each = columns["gpus"] / jobs.n_nodes
        self._cpus_each = np.maximum(columns["cpus"] // jobs.n_nodes, 1).astype(np.int32)
        return columns

    def _reshape(self, row: int, action: Reshape) -> None:
        super()._reshape(row, action)
        self._gpus_each[row] = action.shape.gpus_per_node
        self._cpus_each[row] = action.cpus or self._cpus_each[row]
        self._asked["cpus"][row] = action.shape.nodes * self._cpus_each[row]

    def _observed(self) -> Observed:
        seen = super()._observed()
        row = seen.jobs.job_id - FIRST_JOB_ID
        may = ~(self._refuses[row] & (seen.jobs.state == RUNNING))
        if may.all():
            return seen
        return dataclasses.replace(seen, jobs=dataclasses.replace(seen.jobs, requeueable=may))

    def _requeue(self, run: Run) -> None:
        if self._refuses[self._row(run.job_id)]:
            msg = f"job {run.job_id}: Job can not be requeued"
            raise ClusterError(msg)
        super()._requeue(run)

    def _claims(self) -> dict[JobId, Claim]:
        claims, state = super()._claims(), self.machine.jobs.state
        for job_id, claim in tuple(claims.items()):
            row = int(job_id) - FIRST_JOB_ID
            if state[row] != RUNNING:
                continue
            script = self._scripts[row]
            if not script.claims_while_it_runs:
                del claims[job_id]
            elif (saved_s := self._reported_s(row, script)) is not None:
                claims[job_id] = _saved(claim, int(saved_s))
        return claims

    def _reported_s(self, row: int, script: JobScript) -> float | None:
        """The end of its last checkpoint, as it says; epoch seconds."""
        jobs, every_s = self.machine.jobs, script.checkpoint_every_s
        if script.reports == "now":
            return self.clock()
        if script.reports == "never" or not every_s:
            return None
        step_s, from_s = every_s + self._costs.save_s, float(jobs.work_from_s[row])
        saves = max(0.0, self.machine.now_s - from_s) // step_s
        return self._epoch_s + from_s + saves * step_s if saves else None

    def _allocations(self, rows: I64) -> Allocations:
        held = super()._allocations(rows)
        real = rows[held.job]
        return dataclasses.replace(held, gpus=self._gpus_each[real], cpus=self._cpus_each[real])


@functools.lru_cache(maxsize=1024)
def _saved(claim: Claim, saved_s: int) -> Claim:
    """*claim* with a report, which is the same at most looks."""
    return dataclasses.replace(claim, saved_s=saved_s)
