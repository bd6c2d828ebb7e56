"""The papers' ideal cluster: what the policy wants is so at once.

Jobs are a number of GPUs that may be anywhere; a decision starts and stops them in no time, and a
job that is stopped goes on later where it was. Only a cost model (`costs`) takes something away.
This is what nearly all published simulators compute, and what they can be compared in. With a
scheme of placement (`jobs_on_nodes`) jobs are put on nodes, and work at the speed that they have
there.

Time goes from event to event: arrivals, completions, and the instant at which the policy says its
order changes. All events of one instant are handled in this order: completions, arrivals, one
decision. Hot path: columns of the live jobs, no object for an event.
"""

from __future__ import annotations

import array
import dataclasses
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.intent import intend
from slurm_dl.engine.leases import lease_of, next_end_s, under_lease
from slurm_dl.engine.settings import AS_SUBMITTED, Resizing
from slurm_dl.engine.target import NOBODY
from slurm_dl.ledger.lease_credits import accrue
from slurm_dl.model.booking import changes, updated
from slurm_dl.model.completed_jobs import Records, Runs
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, F64, PENDING, RUNNING
from slurm_dl.model.promise import Promise, note_answers
from slurm_dl.model.trace import Ending, Trace
from slurm_dl.policies.base import Policy
from slurm_dl.simulation.cluster_shape import ClusterShape
from slurm_dl.simulation.ideal.active_jobs import ActiveJobs
from slurm_dl.simulation.ideal.decision_times import AT_EVENTS, INSTANT_S, DecisionTimes
from slurm_dl.simulation.ideal.placement_model import Anywhere, OnSizes, OnTypes, PlacementModel
from slurm_dl.simulation.ideal.start_costs import Costs, NoCosts, restarts_s
from slurm_dl.simulation.job_knowledge import NOTHING, Chronicle, TraceKnowledge
from slurm_dl.simulation.outcome import Outcome, SimulationError

Rows = npt.NDArray[np.int64]

_MOST_AT_ONE_INSTANT = 1000
"""Decisions with next to no progress of time after which a policy is said to be stuck."""


_EVENTS_PER_REPORT = 2048


def simulate(
    trace: Trace,
    shape: ClusterShape,
    policy: Policy,
    *,
    costs: Costs | None = None,
    clockwork: DecisionTimes = AT_EVENTS,
    whereabouts: PlacementModel | None = None,
    known: TraceKnowledge = NOTHING,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
    kind: type[IdealCluster] | None = None,
    resizing: Resizing = AS_SUBMITTED,
) -> Outcome:
    """Run *trace* under *policy*.

    Args:
        costs: What starting costs; None: nothing.
        whereabouts: Where its jobs lie, for this run alone (`jobs_on_nodes.OnNodes`); None:
        anywhere.
        known: What is known of its jobs; names and the past are added if *policy* needs them.
        seed: For what a cost model draws.
        progress: Told now and then how many jobs are done.
        kind: With rounds of its own; None: as this module says.
        resizing: Which sizes elastic jobs get.

    Raises:
        SimulationError: The policy stops time.
    """
    simulation = (kind or IdealCluster)(
        trace=trace,
        shape=shape,
        policy=policy,
        costs=costs or NoCosts(),
        clockwork=clockwork,
        whereabouts=whereabouts,
        known=known,
        seed=seed,
        resizing=resizing,
    )
    simulation.run(progress)
    return simulation.outcome()


class IdealCluster:
    """One simulation under way; see the module."""

    def __init__(
        self,
        *,
        trace: Trace,
        shape: ClusterShape,
        policy: Policy,
        costs: Costs,
        clockwork: DecisionTimes,
        seed: int,
        whereabouts: PlacementModel | None = None,
        known: TraceKnowledge = NOTHING,
        resizing: Resizing = AS_SUBMITTED,
    ) -> None:
        n = len(trace)
        self._trace = trace
        self._policy = policy
        self._costs = costs
        self._clockwork = clockwork
        self._lease_s = lease_of(policy)
        self._resizing = resizing
        self._where: PlacementModel = whereabouts or _anywhere(known, n, len(shape.gpu_types))
        self._random = np.random.default_rng(seed)
        # Seconds since the first submission: sums of large times would be less exact.
        self._zero_s = float(trace.submit_s[0]) if n else 0.0
        submit_s = trace.submit_s - self._zero_s
        work_s = trace.duration_s * costs.slowdown
        if known.steps_per_s is not None:
            work_s = work_s * known.steps_per_s
        exact = "accounts" in policy.about.needs
        remembers = exact or "history" in policy.about.needs
        self._known = dataclasses.replace(known, texts=known.texts or remembers)
        self._chronicle = Chronicle(trace, submit_s, exact=exact) if remembers else None
        self._jobs = ActiveJobs(
            trace,
            shape,
            submit_s,
            work_s,
            self._where.claims(),
            known=self._known,
            restart_s=restarts_s(costs, trace.gpus),
        )
        self._work_s = work_s
        self._counted_to_s = 0.0
        self._arrived = 0
        self._submits = [*submit_s.tolist(), math.inf]
        self._now_s = 0.0
        self._wake_s = math.inf
        self._decisions = self._events = self._stuck = 0
        self._left = (-1, 0, 0.0)
        self._first_start_s = np.full(n, np.nan)
        self._end_s = np.full(n, np.nan)
        self._service_gpu_s = np.zeros(n)
        self._lost_gpu_s = np.zeros(n)
        self._preemptions = np.zeros(n, dtype=np.int32)
        self._promotions = np.zeros(n, dtype=np.int32)
        self._answers: dict[JobId, Promise] = {}
        self._run_job = array.array("i")
        self._run_start_s = array.array("d")
        self._run_end_s = array.array("d")
        self._run_gpus = array.array("d")

    def run(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """Go on until nothing more can happen; see `simulate`."""
        while True:
            if self._events % _EVENTS_PER_REPORT == 0:
                self._check_progress()
                progress(self._arrived - self._jobs.alive)
            end_s = float(self._jobs.done_s.min(initial=math.inf))
            event_s = min(self._submits[self._arrived], end_s, self._wake_s)
            if event_s == math.inf:
                return
            asked = event_s == self._wake_s and event_s <= self._now_s + 2 * INSTANT_S
            self._stuck = self._stuck + 1 if asked else 0
            if self._stuck > _MOST_AT_ONE_INSTANT:
                msg = (
                    f"policy {self._policy.name} stops time at {self._zero_s + event_s:g} s: "
                    "it asks to be woken at that instant again and again"
                )
                raise SimulationError(msg)
            self._now_s = event_s
            self._events += 1
            self._complete()
            self._admit()
            turn_s = self._clockwork.turn_s(event_s)
            if turn_s > event_s:
                self._wake_s = turn_s
            else:
                self._decide()
            self._adjust()

    def _check_progress(self) -> None:
        """Raise if nothing has come, gone or been worked on since the last time.

        Raises:
            SimulationError: Jobs are stopped before they have paid for their start.
        """
        jobs, now_s = self._jobs, self._now_s
        worked_s = np.maximum(now_s - jobs.since_s - jobs.lag_s, 0.0)
        left_s = float(
            (jobs.work_s - worked_s * jobs.speed * jobs.running)[jobs.state != COMPLETED].sum()
        )
        state = (self._arrived, jobs.alive, left_s)
        if state == self._left:
            msg = (
                f"no job gets on any more at {self._zero_s + now_s:g} s: policy "
                f"{self._policy.name} stops them before they have paid for their start "
                f"({self._costs.name}); give it longer turns"
            )
            raise SimulationError(msg)
        self._left = state

    def outcome(self) -> Outcome:
        """What has become of the jobs so far."""
        trace = self._trace
        jobs = np.array(self._run_job, dtype=np.int32)
        return Outcome(
            records=Records(
                job_id=trace.job_id,
                user=trace.user,
                users=trace.users,
                gpus=trace.gpus,
                submit_s=trace.submit_s,
                start_s=np.maximum(self._first_start_s + self._zero_s, trace.submit_s),
                end_s=self._end_s + self._zero_s,
                alone_s=trace.duration_s,
                service_gpu_s=self._service_gpu_s.copy(),
                lost_gpu_s=self._losses(),
                preemptions=self._preemptions.copy(),
                promotions=self._promotions.copy(),
                success=~np.isnan(self._end_s) & (trace.ending == Ending.COMPLETED),
                runs=Runs(
                    job=jobs,
                    start_s=np.array(self._run_start_s) + self._zero_s,
                    end_s=np.array(self._run_end_s) + self._zero_s,
                    gpus=np.array(self._run_gpus),
                    nodes=self._where.run_nodes(),
                ),
            ),
            decisions=self._decisions,
            events=self._events,
            now_s=self._now_s + self._zero_s,
            lay=self._where.lay(),
            answers={int(job): one for job, one in self._answers.items()},
            zero_s=-self._zero_s,
            due_s=self._known.due_s,
        )

    def _losses(self) -> dict[str, F64]:
        causes = {"restart": self._lost_gpu_s.copy(), **self._where.losses()}
        if self._costs.slowdown > 1:
            worked_gpu_s = self._service_gpu_s - sum(causes.values())
            part = 1 - 1 / self._costs.slowdown
            causes["slowdown"] = np.where(np.isnan(self._end_s), 0.0, worked_gpu_s * part)
        return causes

    def _complete(self) -> None:
        jobs = self._jobs
        done = (jobs.done_s <= self._now_s).nonzero()[0]
        if len(done):
            rows = jobs.job_id[done]
            if not self._costs.at_every_event:
                self._book_losses(done, jobs.lag_s[done])
            self._where.finish(jobs, done)
            self._close_runs(done)
            self._end_s[rows] = self._now_s
            if self._chronicle is not None:
                ran_s = jobs.ran_before_s[done] + self._now_s - jobs.start_s[done]
                first_s = self._first_start_s[rows].tolist()
                self._chronicle.add(rows.tolist(), first_s, ran_s.tolist(), self._now_s)
            jobs.remove(done)

    def _admit(self) -> None:
        first = last = self._arrived
        while self._submits[last] <= self._now_s:
            last += 1
        if last > first:
            self._jobs.admit(first, last)
            self._arrived = last

    def _decide(self) -> None:
        """One decision, and the cluster as it wants it."""
        jobs, now_s = self._jobs, self._now_s
        if not jobs.alive:
            self._wake_s = math.inf
            return
        self._decisions += 1
        if self._costs.at_every_event:
            self._charge_all()
        self._account()
        snap = jobs.snapshot(now_s)
        kept = under_lease(snap, self._lease_s).nonzero()[0] if self._lease_s else NOBODY
        intent = intend(
            snap, self._policy, kept, lease_s=self._lease_s, restart_s=self._costs.restart_s,
            resizing=self._resizing,
        )  # fmt: skip
        order = intent.order
        if news := changes(snap.booked, order.book):
            note_answers(self._answers, news)
            jobs.remember(updated(snap.booked, news))
        promoted = order.promote.nonzero()[0]
        if len(promoted):
            self._promote(promoted)
        jobs.tier[:] = order.tier
        jobs.place[intent.ranked] = np.arange(len(intent.ranked))
        if order.share is not None:
            jobs.share[:] = order.share
        change = self._where.settle(jobs, snap, intent)
        if len(change.stops) or len(change.starts):
            self._stop(change.stops)
            self._start(change.starts)
        change_s = self._policy.next_change_s(snap, order, jobs.running)
        change_s = min(change_s, now_s + change.look_again_s)
        if self._lease_s and jobs.running.any():
            change_s = min(change_s, next_end_s(now_s, self._lease_s))
        self._wake_s = self._clockwork.wake_s(now_s, change_s)

    def _adjust(self) -> None:
        """Go on with other speeds where jobs have come beside others, or gone."""
        rows, speed = self._where.changed(self._jobs)
        if len(rows):
            self._go_on(rows, speed)

    def _go_on(self, rows: Rows, speed: F64) -> None:
        """Running jobs go on at *speed*; what is left of their start is still to be paid."""
        jobs = self._jobs
        lag_s = np.maximum(jobs.lag_s[rows] - (self._now_s - jobs.since_s[rows]), 0.0)
        self._end_stretch(rows)
        jobs.speed[rows] = speed
        self._begin_stretch(rows, lag_s)

    def _charge_all(self) -> None:
        jobs = self._jobs
        rows = jobs.running.nonzero()[0]
        self._end_stretch(rows)
        ids = jobs.job_id[rows]
        self._begin_stretch(
            rows, self._costs.lag_s(ids, np.zeros(len(ids), dtype=np.bool_), self._random)
        )

    def _account(self) -> None:
        """Bring what policies see up to now."""
        jobs, now_s = self._jobs, self._now_s
        np.subtract(now_s, jobs.start_s, out=jobs.ran_s)
        jobs.ran_s *= jobs.running
        jobs.ran_s += jobs.ran_before_s
        np.multiply(jobs.ran_s, jobs.gpus, out=jobs.attained_gpu_s)
        if self._known.sizes is not None:
            had = jobs.had_before_gpu_s + (jobs.ran_s - jobs.ran_before_s) * jobs.gpus
            jobs.attained_gpu_s[:] = had
        # What is left of a start is no work: a stop would not save it.
        np.minimum(jobs.work_s, (jobs.done_s - now_s) * jobs.speed, out=jobs.left_s)
        whole_s = self._work_s[jobs.job_id]
        done_s = whole_s - jobs.left_s
        np.divide(done_s, whole_s, out=jobs.progress)
        if self._known.foreseen_s is not None:
            jobs.left_s[:] = self._known.left_s(jobs.job_id, done_s, jobs.left_s)
        self._accrue()
        if self._chronicle is not None:
            jobs.tell(self._chronicle.told())
        self._where.show(jobs, now_s)

    def _accrue(self) -> None:
        """Bring credits up to now: since the last decision the same jobs have run."""
        jobs, passed_s = self._jobs, self._now_s - self._counted_to_s
        self._counted_to_s = self._now_s
        if not self._lease_s or not jobs.share.any():
            return
        ran_s = np.zeros_like(jobs.share)
        rows = jobs.running.nonzero()[0]
        ran_s[rows, jobs.on_type[rows]] = passed_s
        jobs.credit_s[:] = accrue(jobs.credit_s, jobs.share, ran_s, passed_s, self._lease_s)

    def _promote(self, rows: Rows) -> None:
        jobs = self._jobs
        jobs.forgiven_gpu_s[rows] = jobs.attained_gpu_s[rows]
        jobs.forgiven_ran_s[rows] = jobs.ran_s[rows]
        self._promotions[jobs.job_id[rows]] += 1

    def _start(self, rows: Rows) -> None:
        self._jobs.on_type[rows] = 0
        self._where.enter(self._jobs, rows)
        jobs, ids = self._jobs, self._jobs.job_id[rows]
        first = np.isnan(self._first_start_s[ids])
        self._first_start_s[ids[first]] = self._now_s
        jobs.running[rows] = True
        jobs.state[rows] = RUNNING
        jobs.start_s[rows] = self._now_s
        anew = rows[jobs.ran_before_s[rows] == jobs.forgiven_ran_s[rows]]
        jobs.first_run_s[anew] = self._now_s
        self._begin_stretch(rows, self._costs.lag_s(ids, first, self._random))

    def _stop(self, rows: Rows) -> None:
        if not len(rows):
            return
        jobs = self._jobs
        self._end_stretch(rows)
        self._where.leave(jobs, rows)
        self._close_runs(rows)
        self._preemptions[jobs.job_id[rows]] += 1
        jobs.gpus[rows] = self._trace.gpus[jobs.job_id[rows]]
        jobs.ran_before_s[rows] = jobs.ran_s[rows]
        jobs.had_before_gpu_s[rows] = jobs.attained_gpu_s[rows]
        jobs.running[rows] = False
        jobs.state[rows] = PENDING
        jobs.on_type[rows] = -1
        jobs.start_s[rows] = 0
        jobs.done_s[rows] = math.inf
        jobs.restarts[rows] += 1
        jobs.waiting_since_s[rows] = self._now_s

    def _begin_stretch(self, rows: Rows, lag_s: F64) -> None:
        jobs = self._jobs
        jobs.since_s[rows] = self._now_s
        jobs.lag_s[rows] = lag_s
        foreseen_s = 0.0 if self._costs.at_every_event else lag_s
        jobs.done_s[rows] = self._now_s + foreseen_s + self._where.needs_s(jobs, rows)

    def _end_stretch(self, rows: Rows) -> None:
        """Book the progress of running jobs since their stretch began, and what was lost."""
        jobs = self._jobs
        passed_s = self._now_s - jobs.since_s[rows]
        lost_s = np.minimum(jobs.lag_s[rows], passed_s)
        jobs.work_s[rows] -= self._where.book(jobs, rows, passed_s - lost_s)
        self._book_losses(rows, lost_s)

    def _book_losses(self, rows: Rows, lost_s: F64) -> None:
        jobs = self._jobs
        self._lost_gpu_s[jobs.job_id[rows]] += lost_s * jobs.gpus[rows]

    def _close_runs(self, rows: Rows) -> None:
        jobs, now_s = self._jobs, self._now_s
        ids, start_s = jobs.job_id[rows], jobs.start_s[rows]
        self._service_gpu_s[ids] += (now_s - start_s) * jobs.gpus[rows]
        self._run_job.extend(ids.tolist())
        self._run_start_s.extend(start_s.tolist())
        self._run_end_s.extend([now_s] * len(rows))
        self._run_gpus.extend(jobs.gpus[rows].tolist())


def _anywhere(known: TraceKnowledge, n: int, types: int) -> PlacementModel:
    if known.sizes is None and known.rates is None and types == 1:
        return Anywhere()
    rates = np.ones((n, types)) if known.rates is None else known.rates
    return OnTypes(rates) if known.sizes is None else OnSizes(rates)
