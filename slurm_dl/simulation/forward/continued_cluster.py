"""A cluster that goes on from a snapshot: the engine decides, Slurm starts, jobs end.

The decision is the daemon's own `decide`; what starts is what Slurm would start
(`node_allocations`). A hand-over is one step: its victims save, wait, and go back into the queue;
its beneficiaries start on its nodes when that is over.

Nobody submits anything more, no node breaks or comes back, and times are those of `ForwardTiming`.

Hot path: columns of the n live jobs of the snapshot; a step costs one decision and one pass.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Final

import numpy as np

from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Defragment, External, Settings
from slurm_dl.ledger.lease_credits import Owed
from slurm_dl.model.booking import updated
from slurm_dl.model.breaker import Taken
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import COMPLETED, F64, I64, PENDING, RUNNING, Held, Jobs
from slurm_dl.model.plan import Book, OpenHandover, Plan, Promote, SetSiteFactor
from slurm_dl.model.policy_inputs import columns_at
from slurm_dl.model.remembered import Remembered
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.simulation.forward.initial_state import startable, staying_once_started
from slurm_dl.simulation.forward.node_allocations import NodeAllocations
from slurm_dl.simulation.forward.timing import ForwardTiming

_HOUR_S: Final = 3600.0
_INSTANT_S: Final = 1e-6
_MOST_AT_ONE_INSTANT: Final = 50
"""Decisions at one instant, each of which follows from the one before."""


class GaveUpError(Exception):
    """A forward run took too long."""


class ContinuedCluster:
    """One forward run; see the module.

    Args:
        snap: What `initial_state` made.
        left_s: ``(n,)`` seconds of work that each job really has left, above 0.
        settings: The engine's; where it steers, trims, packs and moves jobs is left
            out, and GPUs are taken back as if by the daemon whoever really does it.

    Attributes:
        now_s: Epoch seconds.
        started_s: ``(n,)`` the first start from the snapshot on, or the start of the run that is
            under way in it; inf before.
        ended_s: ``(n,)`` when each was over; inf before.
        preempted: ``(n,)`` how often each gave way.
    """

    def __init__(
        self,
        snap: Snapshot,
        left_s: F64,
        *,
        policy: Policy,
        settings: Settings,
        pace: ForwardTiming,
    ) -> None:
        self._snap, self._policy, self._pace = snap, policy, pace
        self._settings = dataclasses.replace(
            settings,
            mode=External(),
            placement=dataclasses.replace(settings.placement, steer=False, trim=False, pack=False),
            defragment=Defragment(),
        )
        self.now_s = self._zero_s = snap.now_s
        self._jobs = {f.name: getattr(snap.jobs, f.name).copy() for f in dataclasses.fields(Jobs)}
        self._memory = {
            f.name: getattr(snap.memory, f.name).copy() for f in dataclasses.fields(Remembered)
        }
        jobs, n = snap.jobs, len(snap.jobs)
        self._row_of = jobs.rows
        self._keeps_places = bool((snap.memory.tier >= 0).any())
        runs = (jobs.state != PENDING) & (jobs.start_s > 0)
        run_s = np.where(runs, np.maximum(self.now_s - jobs.start_s, 0.0), 0.0)
        self._before_s = np.maximum(snap.memory.ran_s - run_s, 0.0)
        self._before_gpu_s = np.maximum(snap.memory.attained_gpu_s - run_s * jobs.gpus, 0.0)
        self._expected_s = snap.memory.ran_s + snap.left_s
        self._left_s = left_s.copy()
        self._work_from_s = np.full(n, self.now_s)
        self._base_priority = jobs.priority - snap.memory.site_factor
        self.started_s = np.where(runs, jobs.start_s, math.inf)
        self.ended_s = np.full(n, math.inf)
        self.preempted = np.zeros(n, dtype=np.int32)
        self._due_s = np.full(n, math.inf)
        self._due_s[runs] = np.minimum(
            self.now_s + left_s, np.maximum(jobs.start_s + jobs.limit_s, self.now_s)
        )[runs]
        may = startable(snap)
        self._eligible_s = np.where(may | runs, self.now_s, math.inf)
        for job_id, at_s in snap.seen.begins.items():
            row, steer = self._row_of.get(job_id), snap.steers.get(job_id)
            if steer is not None and steer.puts_off(self.now_s, at_s):
                continue  # A decision puts it off anew, or lets it start.
            if row is not None and may[row]:
                self._eligible_s[row] = max(at_s, self.now_s)
        self._stays = staying_once_started(snap, policy, settings)
        self._floor = NodeAllocations(snap, pace.backfill)
        self._rank = np.full(n, -1, dtype=np.int64)
        self._taken = [t for t in snap.taken if t.at_s > self.now_s - _HOUR_S]
        self._held = np.zeros(n, dtype=np.bool_)
        self._owed: Owed | None = None
        self._booked = snap.booked
        self._stepped_s = self._filled_s = -math.inf
        self._next_decision_s = self.now_s
        """The daemon does not look before."""
        self._stirred = True
        """Something has happened since the last decision."""
        self._change_s = math.inf
        """Then the next decision may be another one although nothing happens."""
        for handover in snap.handovers:
            self._hand_over(handover)

    # Time.

    @property
    def through_s(self) -> float:
        """All that happens up to this instant has happened, epoch seconds; -inf before a step."""
        return self._stepped_s

    def run(self, until_s: float, rows: I64, is_late: Callable[[], bool] = lambda: False) -> None:
        """Go on to *until_s*, or until it is known when the jobs at *rows* are over.

        It also ends where nothing more can happen.

        Args:
            is_late: Asked at each step; True ends it.

        Raises:
            GaveUpError: It was late.
        """
        while True:
            if is_late():
                raise GaveUpError
            self.step()
            if self._all_known(rows):
                return
            next_s = self.next_s()
            if next_s == math.inf or next_s > until_s:
                return
            self.now_s = next_s

    def _all_known(self, rows: I64) -> bool:
        """Whether all of *rows* are over, or run and are stopped by nobody; their ends are then."""
        left = rows[self.ended_s[rows] == math.inf]
        if not bool((self._stays[left] & (self._jobs["state"][left] == RUNNING)).all()):
            return False
        self.ended_s[left] = self._due_s[left]
        return True

    def next_s(self) -> float:
        """When the next step is worth taking, epoch seconds; inf if nothing will change."""
        waits = self._jobs["state"] == PENDING
        later = self._eligible_s[waits & (self._eligible_s > self.now_s)]
        event_s = min(
            float(self._due_s.min(initial=math.inf)),
            float(later.min(initial=math.inf)),
            self._decision_s(),
        )
        return max(event_s, self.now_s + max(self._gap_s(), _INSTANT_S))

    def _gap_s(self) -> float:
        """Time to the next step at least, seconds."""
        return self._pace.growth * (self.now_s - self._zero_s)

    def _decision_s(self) -> float:
        return (
            self._next_decision_s if self._stirred else max(self._next_decision_s, self._change_s)
        )

    def step(self) -> None:
        """All that happens now: ends, one decision or several, starts."""
        came = (self._eligible_s > self._stepped_s) & (self._eligible_s <= self.now_s)
        came &= self._jobs["state"] == PENDING
        self._stirred |= self._end() or bool(came.any())
        # What could start already keeps its place.
        fresh = came & (self._eligible_s > self._zero_s) & (self._before_s == 0)
        self._memory["queued_s"][fresh] = self.now_s
        self._stepped_s = self.now_s
        if self.now_s < self._decision_s():
            self._start_waiting()
            return
        waits = self._jobs["state"] == PENDING
        for _ in range(_MOST_AT_ONE_INSTANT):
            plan = self._decide()
            opened = [a.handover for a in plan.actions if isinstance(a, OpenHandover)]
            for handover in opened:
                self._hand_over(handover)
            self._start_waiting()
            if not opened or self._pace.handover_s:
                break
        # What could not be taken back at once is looked at again soon; who is held may be let go
        # once others have started.
        started = bool((waits & (self._jobs["state"] != PENDING)).any())
        self._stirred = bool(opened) or (started and bool(self._held.any()))
        self._next_decision_s = self.now_s + (
            self._pace.handover_s if opened else self._pace.poll_s
        )
        self._change_s = self._changes_s(plan)

    def _changes_s(self, plan: Plan) -> float:
        """When the next decision may be another one although nothing happens, epoch seconds."""
        times = [np.array([plan.wake_at_s])]
        limits, running = self._settings.preemption, self._jobs["state"] == RUNNING
        if limits.enabled and (self._jobs["state"] == PENDING).any():
            times += [
                self._jobs["start_s"][running] + limits.min_quantum_s,
                self._memory["last_preempted_s"][running] + limits.cooldown_s,
            ]
            if limits.max_gpus_per_hour:
                times.append(np.array([t.at_s + _HOUR_S for t in self._taken]))
        every = np.concatenate(times)
        return float(every[every > self.now_s].min(initial=math.inf))

    # What happens.

    def _end(self) -> bool:
        """Book the jobs that are over by now; whether there were any."""
        rows = np.flatnonzero(self._due_s <= self.now_s)
        self.ended_s[rows] = self._due_s[rows]
        self._due_s[rows] = math.inf
        self._jobs["state"][rows] = COMPLETED
        for row in rows.tolist():
            self._floor.give_back(row)
        return len(rows) > 0

    def _decide(self) -> Plan:
        snap = self.snapshot()
        plan = decide(snap, self._policy, self._settings_now())
        if plan.share is not None:
            self._owed = Owed.after(snap, plan.share, plan.lease_s)
        live = self._live
        self._rank[live] = plan.rank
        self._held[live] = np.isin(self._jobs["job_id"][live], list(plan.held))
        if self._keeps_places:
            self._memory["tier"][live] = plan.tier
            self._memory["place"][live] = plan.rank
        for action in plan.actions:
            if isinstance(action, SetSiteFactor):
                row = self._row_of[action.job_id]
                self._memory["site_factor"][row] = action.value
                self._jobs["priority"][row] = max(1, self._base_priority[row] + action.value)
            elif isinstance(action, Promote):
                row = self._row_of[action.job_id]
                at = int(np.searchsorted(live, row))
                self._memory["forgiven_gpu_s"][row] = snap.memory.attained_gpu_s[at]
                self._memory["forgiven_ran_s"][row] = snap.memory.ran_s[at]
            elif isinstance(action, Book):
                self._booked = updated(self._booked, action.entries)
        return plan

    def _settings_now(self) -> Settings:
        """With as many hand-overs as can be had one after the other until the next step."""
        rounds = math.ceil(self._gap_s() / self._pace.handover_s) if self._pace.handover_s else 1
        if rounds <= 1:
            return self._settings
        limits = self._settings.preemption
        more = dataclasses.replace(limits, max_handovers=limits.max_handovers * rounds)
        return dataclasses.replace(self._settings, preemption=more)

    def _hand_over(self, handover: Handover) -> None:
        """Its victims give way, and its beneficiaries get what that frees."""
        if handover.purpose != "preempt":
            return
        after_s = self.now_s + self._pace.handover_s
        for victim in handover.victims:
            row = self._row_of.get(victim.run.job_id)
            if row is not None and self._jobs["state"][row] == RUNNING:
                self._stop(row, after_s)
        for job_id in handover.beneficiaries:
            row = self._row_of.get(job_id)
            waits = row is not None and self._jobs["state"][row] == PENDING
            if row is not None and waits and self._floor.take_within(row, handover.nodes):
                self._start(row, after_s)

    def _stop(self, row: int, gone_s: float) -> None:
        """The run at *row* saves now and is in the queue again at *gone_s*."""
        jobs, memory, run_s = self._jobs, self._memory, self.now_s - self._jobs["start_s"][row]
        self._before_s[row] += max(run_s, 0.0)
        self._before_gpu_s[row] += max(run_s, 0.0) * jobs["gpus"][row]
        self._left_s[row] -= max(0.0, self.now_s - self._work_from_s[row])
        self._left_s[row] = max(self._left_s[row], 1e-3)
        self._taken.append(
            Taken(
                at_s=self.now_s,
                job_id=JobId(int(jobs["job_id"][row])),
                gpus=float(jobs["gpus"][row]),
                notice_s=self._pace.handover_s,
                handover_id=HandoverId(0),
            )
        )
        self._floor.give_back(row)
        self._due_s[row] = math.inf
        jobs["state"][row] = PENDING
        jobs["start_s"][row] = 0.0
        jobs["restarts"][row] += 1
        jobs["submit_s"][row] = gone_s
        memory["preemptions"][row] += 1
        self.preempted[row] += 1
        memory["last_preempted_s"][row] = self.now_s
        memory["waiting_since_s"][row] = gone_s
        self._eligible_s[row] = gone_s + self._pace.hold_s

    def _start_waiting(self) -> None:
        """What Slurm starts now: by rank, what has none behind those by its priority."""
        may = (self._jobs["state"] == PENDING) & (self._eligible_s <= self.now_s) & ~self._held
        rows = np.flatnonzero(may)
        rank = np.where(self._rank[rows] < 0, np.iinfo(np.int64).max, self._rank[rows])
        order = np.lexsort((rows, -self._jobs["priority"][rows], rank))
        fills = self.now_s >= self._filled_s + self._pace.bf_interval_s
        if fills:
            self._filled_s = self.now_s
        for row in self._floor.starts(
            rows[order].tolist(), self._jobs["start_s"], self.now_s, fills=fills
        ):
            self._start(row, self.now_s)

    def _start(self, row: int, at_s: float) -> None:
        jobs, before_s = self._jobs, self._before_s[row]
        jobs["state"][row] = RUNNING
        jobs["held"][row] = Held.NO
        jobs["start_s"][row] = at_s
        if before_s == self._memory["forgiven_ran_s"][row]:
            self._memory["first_run_s"][row] = at_s
        self.started_s[row] = min(self.started_s[row], at_s)
        self._work_from_s[row] = at_s + (self._pace.restore_s if before_s > 0 else 0.0)
        self._due_s[row] = min(
            self._work_from_s[row] + self._left_s[row], at_s + self._snap.jobs.limit_s[row]
        )

    # What the engine sees.

    def snapshot(self) -> Snapshot:
        """The cluster now, as the daemon would see it."""
        base, now_s = self._snap, self.now_s
        live = self._live = np.flatnonzero(self._jobs["state"] < COMPLETED)
        jobs = {name: column[live] for name, column in self._jobs.items()}
        memory = {name: column[live] for name, column in self._memory.items()}
        waits = jobs["state"] == PENDING
        later = waits & (self._eligible_s[live] > now_s)
        kept = later & ~np.isin(jobs["held"], [Held.NO, Held.BEGIN_TIME])
        jobs["held"] = np.where(
            kept, jobs["held"], np.where(later, Held.BEGIN_TIME, Held.NO)
        ).astype(np.int8)
        run_s = np.where(waits, 0.0, np.maximum(now_s - jobs["start_s"], 0.0))
        memory["ran_s"] = self._before_s[live] + run_s
        memory["attained_gpu_s"] = self._before_gpu_s[live] + run_s * jobs["gpus"]
        memory["waiting_since_s"][later] = now_s
        seen = dataclasses.replace(
            base.seen,
            now_s=now_s,
            jobs=Jobs(**jobs),
            held=self._floor.allocations(live),
            begins=dict(
                zip(
                    map(JobId, jobs["job_id"][later & ~kept].tolist()),
                    self._eligible_s[live][later & ~kept].tolist(),
                    strict=True,
                )
            ),
        )
        ago_s = now_s - _HOUR_S
        self._taken = [t for t in self._taken if t.at_s > ago_s]
        inputs = columns_at(base, live) | {
            "left_s": self._believed_s(live, memory["ran_s"]),
            "progress": self._progress(live, memory["ran_s"]),
            "on_type": None,
        }
        if self._owed is not None:
            inputs["credit_s"] = self._owed.at(seen)
        return dataclasses.replace(
            base,
            seen=seen,
            memory=Remembered(**memory),
            **inputs,
            booked=self._booked,
            handovers=(),
            taken=tuple(self._taken),
            preempted_gpus_last_hour=sum(t.gpus for t in self._taken),
        )

    def _believed_s(self, live: I64, ran_s: F64) -> F64:
        """What the daemon would think is left: what it thought, then what is left of the limit."""
        left_s = self._expected_s[live] - ran_s
        rest_s: F64 = np.maximum(self._snap.jobs.limit_s[live] - ran_s, 0.0)
        return np.where(left_s > 0, left_s, rest_s)

    def _progress(self, live: I64, ran_s: F64) -> F64 | None:
        told = self._snap.progress
        if told is None:
            return None
        before_s, share = self._snap.memory.ran_s[live], told[live]
        with np.errstate(divide="ignore", invalid="ignore"):
            grown = np.where(before_s > 0, share * ran_s / before_s, share)
        return np.asarray(np.minimum(grown, 1.0))
