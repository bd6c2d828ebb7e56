"""A whole simulation: a trace on a simulated Slurm, alone or with the daemon's loop beside it.

The loop is dlschedd's: the same `run_cycle`, the same pace. Looks that can bring nothing that the
one before did not bring are left out; with them the outcome would be the same.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurm_dl.engine.cycle import Carry, Cycle, run_cycle
from slurm_dl.engine.preemption.stopping_cost import setup_s
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.estimates.remaining_time import left_of
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I64, RUNNING, JobState, Origin
from slurm_dl.model.plan import Book, Promote
from slurm_dl.model.promise import Promise, note_answers
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.trace import Trace
from slurm_dl.policies.base import Policy, displaces
from slurm_dl.simulation.cluster_shape import ClusterShape
from slurm_dl.simulation.job_knowledge import NOTHING, TraceKnowledge, TraceTexts, past_of
from slurm_dl.simulation.outcome import NodeJournal, Outcome
from slurm_dl.simulation.slurm.daemon_timing import (
    Writes,
    delay_after,
    has_handovers,
    quiet_until,
    until_wake,
)
from slurm_dl.simulation.slurm.job_columns import JobBehaviour, JobColumns, NodeFailures
from slurm_dl.simulation.slurm.overheads import PRODUCTION, SlurmCosts
from slurm_dl.simulation.slurm.scheduling_passes import Phases, next_on_grid
from slurm_dl.simulation.slurm.scripted_cluster import ScriptedSim, Scripts
from slurm_dl.simulation.slurm.simulated_cluster import EPOCH_S, FIRST_JOB_ID, SlurmSim

LOOKS_AFTER_START: Final = 1  # dlschedd only looks in its first cycle

WHOLE_SECOND_S: Final = 1.0
"""Slurm tells whole seconds: looking again within one, when nothing has changed, shows nothing."""

_GROWS: Final = 1.05

MOST_AT_ONE_INSTANT: Final = 100
"""Cycles at one instant; with costs of zero, each may be a consequence of the one before."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scenario:
    """What is simulated, besides who schedules it.

    Attributes:
        phases: Where slurmctld's clocks stand, seconds since the trace's zero; None: drawn.
        epoch_s: Epoch seconds of the trace's zero: backfill counts minutes from there.
        known: What is known of the jobs; names and the past are added if the policy needs them.
        journal: Is told which nodes each run held; None: nobody wants to know.
        scripts: How each job is written, in place of what *habits* draw; None: as they draw it.
    """

    trace: Trace  # The jobs
    shape: ClusterShape  # The cluster
    costs: SlurmCosts = PRODUCTION  # What everything takes
    habits: JobBehaviour = field(default_factory=JobBehaviour)  # What the jobs are like
    limit_s: F64 | None = None  # ``(n,)`` time limits, seconds; None: as *habits* has it
    failures: NodeFailures | None = None  # When nodes break; None: never
    phases: Phases | None = None
    seed: int = 0  # Of everything that is drawn
    epoch_s: float = EPOCH_S
    known: TraceKnowledge = NOTHING
    journal: NodeJournal | None = None
    scripts: Scripts | None = None

    def cluster(self, partition: str) -> SlurmSim:
        """The cluster before anything has happened.

        Raises:
            ConfigError: A job of the trace does not fit it.
        """
        scripts = self.scripts
        kind = SlurmSim if scripts is None else functools.partial(ScriptedSim, scripts)
        try:
            return kind(
                self.trace,
                self.shape,
                costs=self.costs,
                habits=self.habits,
                partition=partition,
                limit_s=self.limit_s,
                failures=self.failures,
                phases=self.phases,
                seed=self.seed,
                epoch_s=self.epoch_s,
                journal=self.journal,
                sizes=self.known.sizes,
            )
        except ValueError as err:
            msg = f"trace {self.trace.name} on {self.shape}: {err}; take a larger cluster"
            raise ConfigError(msg) from None


OnStep = Callable[[int], None]
"""Told after each step how many jobs are left; what it raises ends the run."""


def _nobody(_: int, /) -> None:
    """Nobody wants to know."""


def simulate_plain(scenario: Scenario, *, on_step: OnStep = _nobody) -> Outcome:
    """Slurm alone: by submission, with backfill.

    Raises:
        ConfigError: A job of the trace does not fit the cluster.
    """
    machine = scenario.cluster("gpu").machine
    while machine.left and (next_s := machine.next_event_s()) < math.inf:
        machine.advance_to(next_s)
        on_step(machine.left)
    return Outcome(
        records=machine.jobs.records(machine.room.run_nodes()),
        decisions=0,
        events=machine.events,
        now_s=machine.now_s,
    )


def simulate_slurm(
    scenario: Scenario, *, policy: Policy, settings: Settings, on_step: OnStep = _nobody
) -> Outcome:
    """Slurm with dlschedd.

    Args:
        settings: Of its partitions the first is the one that is simulated.

    Raises:
        ConfigError: A job of the trace does not fit the cluster.
    """
    return Simulation(scenario, policy=policy, settings=settings).run(on_step)


class Simulation:
    """One run of the daemon's loop in simulated time."""

    def __init__(self, scenario: Scenario, *, policy: Policy, settings: Settings) -> None:
        self._cluster = scenario.cluster(min(settings.partitions, default="gpu"))
        self._machine = self._cluster.machine
        self._costs = scenario.costs
        self._epoch_s = scenario.epoch_s
        self._due_s = scenario.known.due_s
        self._seed = scenario.seed
        self._policy = policy
        self._settings = settings
        self._ledger = Ledger(MemoryStore())
        self._carry = Carry()
        self._writes = Writes(scenario.costs, self._machine.now_s)
        self._know = JobFacts(
            scenario.trace,
            self._machine.jobs,
            needs=policy.about.needs,
            epoch_s=scenario.epoch_s,
            known=scenario.known,
            scripts=scenario.scripts,
        )
        self._decisions = 0
        self._answers: dict[JobId, Promise] = {}

    def run(self, on_step: OnStep = _nobody) -> Outcome:
        """Go on until all jobs have ended."""
        machine = self._machine
        # Nobody knows where in its period the daemon is when the first job comes.
        phase = float(np.random.default_rng([self._seed, 1]).random())
        machine.advance_to(machine.now_s + phase * self._costs.poll_s)
        at_once = 0
        while machine.left:
            began_s, changes = machine.now_s, machine.changes
            cycle = self._cycle(acting=self._decisions >= LOOKS_AFTER_START)
            at_s = self.next_look_s(cycle, began_s, changes)
            at_once = at_once + 1 if at_s <= began_s else 0
            if not machine.left:
                break
            if at_once > MOST_AT_ONE_INSTANT:
                at_s = began_s + WHOLE_SECOND_S
            if at_s == math.inf:
                break
            machine.advance_to(at_s)
            on_step(machine.left)
        return Outcome(
            records=machine.jobs.records(machine.room.run_nodes()),
            decisions=self._decisions,
            events=machine.events,
            now_s=machine.now_s,
            answers={job_id - FIRST_JOB_ID: one for job_id, one in self._answers.items()},
            zero_s=self._epoch_s,
            due_s=self._due_s,
        )

    def next_look_s(self, cycle: Cycle, began_s: float, changes: int) -> float:
        """When the next cycle begins that may bring something new; inf if none ever will.

        Args:
            began_s: When *cycle* began.
            changes: `Machine.changes` then.
        """
        costs, machine = self._costs, self._machine
        next_s = max(began_s + delay_after(cycle, costs), machine.now_s + costs.least_gap_s)
        if machine.changes != changes:
            return next_s
        next_s = self._later(next_s, began_s)
        delay_s = costs.fast_poll_s if has_handovers(cycle) else costs.poll_s
        least_s = costs.observe_s + costs.least_gap_s
        period_s = max(delay_s, least_s)
        by_tier = displaces(self._policy) == "tier"
        quiet = quiet_until(cycle, self._settings, by_tier=by_tier)
        until_s, before_s = quiet.until_s - self._epoch_s, quiet.before_s - self._epoch_s
        wake_at_s = cycle.plan.wake_at_s
        while next_s < min(until_s, before_s) and next_s + period_s <= before_s:
            machine.advance_to(next_s)
            if machine.changes != changes:
                break
            wake_in_s = wake_at_s - math.floor(self._epoch_s + next_s)
            if 0 < wake_in_s < period_s:
                step_s = max(until_wake(delay_s, wake_in_s, costs), least_s)
                next_s = self._later(next_s + step_s, next_s)
                continue
            from_s = min(until_s, before_s - period_s, machine.next_event_s())
            if from_s == math.inf:
                return math.inf
            from_s = min(from_s, wake_at_s - self._epoch_s - period_s)
            next_s = next_on_grid(max(from_s, next_s + period_s), next_s, period_s)
        return next_s

    def _later(self, next_s: float, began_s: float) -> float:
        """*next_s*, or later: not in the second of a look at *began_s* without a change since.

        With a poll period of 0 the next look is when something happens.
        """
        whole_s = math.floor(self._epoch_s + began_s) + WHOLE_SECOND_S - self._epoch_s
        return max(next_s, min(self._machine.next_event_s(), whole_s))

    def _cycle(self, *, acting: bool) -> Cycle:
        machine, costs = self._machine, self._costs
        self._writes.refill(machine.now_s)
        cycle = run_cycle(
            self._cluster,
            self._ledger,
            self._policy,
            self._settings,
            clock=self._cluster.clock,
            acting=acting,
            may_write=self._writes.take,
            timer=lambda: machine.now_s,
            write_for_s=max(costs.least_gap_s, costs.fast_poll_s) or math.inf,
            carry=self._carry,
            enrich=self._know,
        )
        self._decisions += 1
        for done in cycle.done:
            if isinstance(done.action, Promote) and not done.error:
                machine.jobs.promotions[int(done.action.job_id) - FIRST_JOB_ID] += 1
            elif isinstance(done.action, Book):
                note_answers(self._answers, done.action.entries)
        return cycle


class JobFacts:
    """Adds to a snapshot how long its jobs have left, their names, and the jobs that are over.

    It is the same that the ideal cluster tells.

    Args:
        jobs: The jobs of the simulated Slurm.
        needs: What the policy needs, see `About.needs`.
        epoch_s: Epoch seconds of the trace's zero.
    """

    def __init__(
        self,
        trace: Trace,
        jobs: JobColumns,
        *,
        needs: tuple[str, ...],
        epoch_s: float,
        known: TraceKnowledge = NOTHING,
        scripts: Scripts | None = None,
    ) -> None:
        self._trace, self._jobs, self._epoch_s, self._known = trace, jobs, epoch_s, known
        self._curves = known.curves_from(epoch_s, FIRST_JOB_ID)
        self._remembers = bool({"accounts", "history"} & set(needs))
        self._measures = "setup_s" in needs or known.sizes is not None
        self._texts = TraceTexts(trace)
        self._past = NO_PAST
        self._claimed = None if scripts is None else scripts.progress

    def __call__(self, snap: Snapshot) -> Snapshot:
        """*snap* with all that is known."""
        row = snap.jobs.job_id - FIRST_JOB_ID
        need_s = self._jobs.need_s[row]
        done_s = np.clip(self._worked_s(row, snap.now_s - self._epoch_s), 0.0, need_s)
        more = dataclasses.replace(
            snap,
            **self._known.inputs(row, self._epoch_s),
            curves=self._curves,
            left_s=self._known.left_s(row, done_s, need_s - done_s),
            progress=done_s / need_s,
            past=self._so_far() if self._remembers else NO_PAST,
            setup_s=setup_s(snap, {}, Preemption().checkpoint_cost_s) if self._measures else None,
        )
        if self._claimed is not None:
            more = _as_claimed(more, self._claimed[row])
        if not (self._remembers or self._known.texts):
            return more
        texts = {JobId(r + FIRST_JOB_ID): self._texts[JobId(r)] for r in row.tolist()}
        return dataclasses.replace(more, seen=dataclasses.replace(snap.seen, texts=texts))

    def _worked_s(self, row: I64, now_s: float) -> F64:
        """``(len(row),)`` work done by the jobs, as far as a run under way has got, too."""
        jobs = self._jobs
        done_s = jobs.saved_s[row]
        runs = (jobs.state[row] == RUNNING).nonzero()[0]
        # Work that has not been stopped goes on until now.
        until_s = np.fmin(jobs.stopped_s[row[runs]], now_s)
        worked_s = np.maximum(until_s - jobs.work_from_s[row[runs]], 0.0)
        done_s[runs] += worked_s * jobs.speed[row[runs]]
        return done_s

    def _so_far(self) -> Past:
        """The jobs that are over; told anew when there are more, or a twentieth more.

        With jobs from before the trace it is the latter: to learn from many takes time, and the
        daemon does it at intervals.
        """
        jobs, before, told = self._jobs, self._known.before, len(self._past)
        rows = np.isin(jobs.state, (JobState.COMPLETED, JobState.FAILED)).nonzero()[0]
        there = len(before) + len(rows)
        if there == told or (len(before) and told and there < told * _GROWS):
            return self._past
        rows = rows[np.argsort(jobs.end_s[rows], kind="stable")]
        gpus = jobs.asked_gpus()[rows]
        past = past_of(
            self._trace,
            rows,
            gpus=gpus,
            submit_s=jobs.first_submit_s[rows] + self._epoch_s,
            start_s=jobs.first_start_s[rows] + self._epoch_s,
            end_s=jobs.end_s[rows] + self._epoch_s,
            ran_s=np.maximum(jobs.service_gpu_s[rows] / gpus, 1e-3),
        )
        self._past = before.then(past) if len(before) else past
        return self._past


def _as_claimed(snap: Snapshot, claimed: F64) -> Snapshot:
    """*snap* as the daemon sees it where jobs say what they have done, be it true or not.

    Args:
        claimed: ``(n,)`` share of its work that each says it has done; NaN: the truth.
    """
    left_s, left_from, done = snap.left_s, snap.left_from, snap.progress
    assert left_s is not None and left_from is not None and done is not None  # noqa: S101, PT018 - just set
    says = ~np.isnan(claimed)
    origin = np.where(says, Origin.PRIOR, left_from).astype(np.int8)
    snap = dataclasses.replace(snap, progress=np.where(says, claimed, done), left_from=origin)
    left = left_of(snap)
    return dataclasses.replace(
        snap,
        left_s=np.where(says, left.seconds, left_s),
        left_from=np.where(says, left.origin, origin),
    )
