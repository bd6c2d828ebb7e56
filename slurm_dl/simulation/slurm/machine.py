"""The simulated cluster itself: jobs come, start, work, save and end; nodes break; time goes on.

Time moves by events, and only when told to. No event looks at jobs that have not come yet or are
over.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from typing import Final

import numpy as np

from slurm_dl.model.jobs import I64, Bool, JobState
from slurm_dl.model.trace import Ending
from slurm_dl.simulation.outcome import NodeJournal, SimulationError
from slurm_dl.simulation.slurm.events import Agenda, Event, EventKind
from slurm_dl.simulation.slurm.job_columns import Breakage, JobColumns, NodeFailures, OnSignal
from slurm_dl.simulation.slurm.node_pool import NodePool, SimulatedQueue
from slurm_dl.simulation.slurm.overheads import SlurmCosts
from slurm_dl.simulation.slurm.scheduler import Backfill, Reserved, Start
from slurm_dl.simulation.slurm.scheduling_passes import Dispatch, Phases

_ROUNDING_S: Final = 1e-6
MOST_RESTARTS: Final = 1000  # Of one job; one that has not got to its end by then never will


class Machine:
    """Nodes, jobs and Slurm's schedulers.

    Args:
        jobs: The jobs; none is submitted yet.
        due_s: When Slurm has each of them, seconds.
        ending, on_signal: ``(n,)`` an `Ending` and an `OnSignal` for each job.
        gpus: ``(m,)`` GPUs of each node.
        how: How backfill plans.
        failures: When nodes break; None: never.
        phases: Where the schedulers' clocks stand; None: drawn.
        rng: Draws what is to be drawn.
        journal: Is told which nodes each run held; None: nobody wants to know.

    Attributes:
        now_s: Seconds since the trace's zero.
        changes: Grows whenever something changes that Slurm would show.
        events: Instants at which something happened.
        left: Jobs that have not ended.
        listed: Rows of the jobs that Slurm lists, ascending.
        acked: Of the jobs that acknowledged, their restart count then.
        reserved: Reservations by name.
        room: The nodes and who holds them.
        queue: The jobs that may start.
    """

    def __init__(
        self,
        jobs: JobColumns,
        *,
        due_s: list[float],
        ending: np.ndarray[tuple[int], np.dtype[np.int8]],
        on_signal: np.ndarray[tuple[int], np.dtype[np.int8]],
        grace_s: float,
        gpus: I64,
        costs: SlurmCosts,
        how: Backfill,
        failures: NodeFailures | None,
        phases: Phases | None,
        rng: np.random.Generator,
        journal: NodeJournal | None = None,
    ) -> None:
        self.jobs = jobs
        self.now_s = due_s[0] if due_s else 0.0
        self.changes = self.events = 0
        self.left = len(due_s)
        self.listed: list[int] = []
        self.acked: dict[int, int] = {}
        self.reserved: dict[str, Reserved] = {}
        self.room = NodePool(gpus, journal)
        self.queue = SimulatedQueue(jobs)
        self._ending, self._on_signal, self._grace_s = ending, on_signal, grace_s
        self._costs, self._how = costs, how
        self._turn = [0] * len(due_s)
        self._gone_to: dict[int, str] = {}
        """Of the jobs that are COMPLETING, what their last seconds are lost to."""
        self._done: set[int] = set()
        """Jobs whose code has ended by itself and of which Slurm does not know it yet."""
        self._agenda = Agenda()
        lost_after_s = costs.slurmd_timeout_s
        self._breakage = Breakage(failures, self._agenda, lost_after_s=lost_after_s, rng=rng)
        # Drawn in any case: what is drawn next must not depend on it.
        drawn = Phases.drawn(self.now_s, costs, rng)
        self._dispatch = Dispatch(
            *(jobs, self.queue, self.room, self._agenda),
            start_all=self._start_all,
            costs=costs,
            how=how,
            phases=phases or drawn,
        )
        for row, at_s in enumerate(due_s):
            self._agenda.add(at_s, EventKind.SUBMIT, subject=row)
        for node in range(len(gpus)):
            self._breakage.begins(node, 0.0)
        self._on_event: dict[EventKind, Callable[[Event], None]] = {
            EventKind.NODE_DIES: self._node_dies,
            EventKind.NODE_LOST: self._node_lost,
            EventKind.NODE_BACK: self._node_back,
            EventKind.WORK_DONE: self._work_done,
            EventKind.SIGNALLED: self._signalled,
            EventKind.SAVED: self._saved,
            EventKind.ACKNOWLEDGED: self._acknowledged,
            EventKind.REQUEUES_ITSELF: self._requeues_itself,
            EventKind.LIMIT: self._limit,
            EventKind.COMPLETE: self._complete,
            EventKind.FREE: self._freed,
            EventKind.LAPSE: self._lapse,
            EventKind.ELIGIBLE: self._eligible,
            EventKind.SUBMIT: self._submit,
            EventKind.MAIN_PASS: self._main_pass,
            EventKind.BACKFILL_PASS: self._backfill_pass,
            EventKind.FORGET: self._forget,
        }

    # Time.

    def next_event_s(self) -> float:
        """When something happens next, seconds; inf if nothing will."""
        return self._agenda.next_s()

    def advance_to(self, at_s: float) -> None:
        """Let everything happen up to and including *at_s*; time never goes back."""
        while self._agenda.next_s() <= at_s:
            event = self._agenda.pop()
            if event.at_s > self.now_s or not self.events:
                self.now_s = max(self.now_s, event.at_s)
                self.events += 1
            if (
                event.subject < 0
                or event.kind < EventKind.WORK_DONE
                or event.turn == self._turn[event.subject]
            ):
                self._on_event[event.kind](event)
        self.now_s = max(self.now_s, at_s)

    def advance_to_end(self) -> None:
        """Let everything happen until all jobs have ended or nothing more can happen."""
        while self.left and self._agenda.next_s() < math.inf:
            self.advance_to(self._agenda.next_s())

    def _after(self, delay_s: float, kind: EventKind, row: int) -> None:
        self._agenda.add(self.now_s + delay_s, kind, subject=row, turn=self._turn[row])

    # What the daemon can do.

    def set_site_factor(self, row: int, value: int) -> None:
        """Change a job's place in the queue."""
        self.queue.rank(row, value)
        self._touch(asked=True)

    def reserve(self, name: str, nodes: Bool, duration_s: float) -> None:
        """Keep *nodes* for the jobs that belong to the reservation."""
        end_s = self.now_s + duration_s
        self.reserved[name] = Reserved(name=name, nodes=nodes, end_s=end_s)
        self._agenda.add(end_s, EventKind.LAPSE, name=name)
        self._touch(asked=True)

    def attach(self, row: int, name: str) -> None:
        """Let a job use a reservation; an empty name: none."""
        self.queue.reservation.pop(row, None)
        if name:
            self.queue.reservation[row] = name
        self._touch(asked=True)

    def unseal(self, name: str) -> None:
        """End a reservation; who runs in it runs on."""
        if self.reserved.pop(name, None) is not None:
            self.queue.release(name)
            self._touch(asked=True)

    def exclude(self, row: int, nodes: Bool) -> None:
        """Keep a waiting job from *nodes*, and from no others."""
        self.queue.excluded.pop(row, None)
        if nodes.any():
            nodes.setflags(write=False)
            self.queue.excluded[row] = nodes
        self._touch(asked=True)

    def put_off(self, row: int, at_s: float) -> None:
        """Let a waiting job start at *at_s* and not before."""
        self.queue.remove(row)
        self.jobs.eligible_s[row] = at_s
        self._after(max(0.0, at_s - self.now_s), EventKind.ELIGIBLE, row)
        self._touch(asked=True)

    def reshape(self, row: int, n_nodes: int, share: int, speed: float) -> None:
        """Give a job that waits another size; one that no nodes have is taken, and never starts."""
        self.jobs.reshape(row, n_nodes, share, speed)
        self.queue.reshape(row)
        self._touch(asked=True)

    def signal(self, row: int) -> None:
        """Ask a running job to save; a second time changes nothing."""
        if math.isnan(self.jobs.asked_s[row]):
            self.jobs.asked_s[row] = self.now_s
            self._after(self._costs.signal_s, EventKind.SIGNALLED, row)

    def requeue(self, row: int) -> None:
        """Put a running job back into the queue, once its processes are gone."""
        if row in self._done:
            return  # requeue Incomplete: a job that completes at this moment is not run again.
        self.jobs.preemptions[row] += 1
        self._leave(row, self._leaves_s(row), rest="stopping")
        self._touch(asked=True)

    # A job's life.

    def _submit(self, event: Event) -> None:
        row, jobs = event.subject, self.jobs
        jobs.state[row] = JobState.PENDING
        jobs.submit_s[row] = jobs.first_submit_s[row] = jobs.eligible_s[row] = self.now_s
        self.listed.append(row)
        self.queue.add(row)
        self._touch(asked=True)

    def _start(self, start: Start) -> None:
        row, nodes = start
        jobs = self.jobs
        self.queue.remove(row)
        self.room.take(row, nodes, int(jobs.share[row]))
        self._turn[row] += 1
        done_s = jobs.begin_run(row, self.now_s)
        self._after(float(jobs.limit_s[row]), EventKind.LIMIT, row)
        if self.room.dead[nodes].any():
            jobs.stop_work(row, self.now_s)
        else:
            self._after(done_s - self.now_s, EventKind.WORK_DONE, row)

    def _work_done(self, event: Event) -> None:
        row = event.subject
        if math.isnan(self.jobs.stopped_s[row]):
            self.jobs.stop_work(row, self.now_s)
            self._done.add(row)
            self._after(self._costs.finish_s, EventKind.COMPLETE, row)

    def _signalled(self, event: Event) -> None:
        row = event.subject
        if self._on_signal[row] == OnSignal.IGNORE or not math.isnan(self.jobs.stopped_s[row]):
            return
        self.jobs.stop_work(row, self.now_s)
        self._after(self._costs.save_s, EventKind.SAVED, row)

    def _saved(self, event: Event) -> None:
        row = event.subject
        if self._on_signal[row] == OnSignal.FINISH:
            self._done.add(row)
            self._after(self._costs.finish_s, EventKind.COMPLETE, row)
            return
        self.jobs.stored_s[row] = self.now_s
        if self._on_signal[row] == OnSignal.REQUEUE_ITSELF:
            self._after(self._costs.ack_s, EventKind.REQUEUES_ITSELF, row)
        else:
            self._after(self._costs.ack_s, EventKind.ACKNOWLEDGED, row)

    def _acknowledged(self, event: Event) -> None:
        row = event.subject
        self.acked[row] = int(self.jobs.restarts[row])
        self.changes += 1
        self._after(self._grace_s + self._costs.ack_wait_s, EventKind.REQUEUES_ITSELF, row)

    def _complete(self, event: Event) -> None:
        """Slurm knows that the job has ended by itself."""
        self.jobs.end_s[event.subject] = self.now_s
        self._leave(event.subject, self._costs.epilog_s, rest="ending")
        self.changes += 1

    def _requeues_itself(self, event: Event) -> None:
        self.requeue(event.subject)

    def _limit(self, event: Event) -> None:
        """Its time is over: it is told to end, and killed if it does not."""
        if event.subject not in self._done:
            self.jobs.end_s[event.subject] = self.now_s
            self._leave(event.subject, self._leaves_s(event.subject), rest="limit")
            self.changes += 1

    def _leaves_s(self, row: int) -> float:
        stays = self._on_signal[row] == OnSignal.IGNORE
        return self._costs.epilog_s + (self._costs.kill_wait_s if stays else self._costs.stop_s)

    def _leave(self, row: int, delay_s: float, *, rest: str) -> None:
        """The run is over, its GPUs are free after *delay_s*; see `_gone_to` for *rest*."""
        self.jobs.stop_work(row, self.now_s)
        self.jobs.state[row] = JobState.COMPLETING
        self._gone_to[row] = rest
        self._turn[row] += 1
        self._after(delay_s, EventKind.FREE, row)

    def _freed(self, event: Event) -> None:
        row, jobs = event.subject, self.jobs
        self.room.give_back(row, int(jobs.share[row]))
        rest = self._gone_to.pop(row)
        jobs.end_run(row, self.now_s, rest="stopping" if rest == "limit" else rest)
        self.acked.pop(row, None)
        self.queue.reservation.pop(row, None)
        self._done.discard(row)
        if rest in {"ending", "limit"}:
            self._over(row, success=rest == "ending" and self._ending[row] == Ending.COMPLETED)
        else:
            self._back_in_queue(row)
        # A run that was ended tells slurmctld when it is gone, which runs the scheduler at once.
        # One that ended by itself is only noted, and the next tick sees it (22.05.8).
        self._touch(asked=True, at_once=rest != "ending")

    def _over(self, row: int, *, success: bool) -> None:
        self.jobs.state[row] = JobState.COMPLETED if success else JobState.FAILED
        self.jobs.success[row] = success
        self.left -= 1
        self.queue.excluded.pop(row, None)
        self._after(self._costs.min_job_age_s, EventKind.FORGET, row)

    def _back_in_queue(self, row: int) -> None:
        jobs = self.jobs
        jobs.state[row] = JobState.PENDING
        jobs.restarts[row] += 1
        if jobs.restarts[row] > MOST_RESTARTS:
            msg = (
                f"at {self.now_s:g} s: the job at row {row} of the trace has been restarted "
                f"{MOST_RESTARTS} times and gets nowhere; let it checkpoint, or nodes break less"
            )
            raise SimulationError(msg)
        jobs.submit_s[row] = self.now_s
        jobs.start_s[row] = math.nan
        hold_s = self._costs.hold_s
        eligible_s = self._how.whole(self.now_s) + hold_s if hold_s else self.now_s
        jobs.eligible_s[row] = eligible_s
        self._after(eligible_s - self.now_s, EventKind.ELIGIBLE, row)

    def _eligible(self, event: Event) -> None:
        row = event.subject
        # It may have been put off again, or be there already.
        if self.jobs.eligible_s[row] > self.now_s + _ROUNDING_S or self.queue.has(row):
            return
        self.queue.add(row)
        # Nobody tells the scheduler; its next pass sees it.
        self._touch(asked=False)

    def _forget(self, event: Event) -> None:
        del self.listed[bisect.bisect_left(self.listed, event.subject)]

    def _lapse(self, event: Event) -> None:
        reserved = self.reserved.get(event.name)
        if reserved is not None and reserved.end_s <= self.now_s:
            self.unseal(event.name)

    # Nodes that break.

    def _node_dies(self, event: Event) -> None:
        node = event.subject
        self.room.dead[node] = True
        for row in self.room.on(node):
            # What is ending already is gone with the node.
            if self.jobs.state[row] == JobState.RUNNING:
                self.jobs.stop_work(row, self.now_s)
                self._done.discard(row)
                self._turn[row] += 1
        self._breakage.died(node, self.now_s)

    def _node_lost(self, event: Event) -> None:
        self.room.set_up(event.subject, up=False)
        for row in self.room.on(event.subject):
            if self.jobs.state[row] == JobState.RUNNING:
                self._leave(row, 0.0, rest="failure")
        self._touch(asked=True)

    def _node_back(self, event: Event) -> None:
        self.room.set_up(event.subject, up=True)
        self.room.dead[event.subject] = False
        self._breakage.begins(event.subject, self.now_s)
        self._touch(asked=True)

    # Slurm's schedulers.

    def _touch(self, *, asked: bool, at_once: bool = False) -> None:
        """Something has changed: see to it that the passes that could see it come."""
        self.changes += 1
        self._dispatch.expect(self.now_s, asked=asked, at_once=at_once)

    def _main_pass(self, event: Event) -> None:
        self._dispatch.main_pass(event, [*self.reserved.values()])

    def _backfill_pass(self, event: Event) -> None:
        self._dispatch.backfill_pass(event, [*self.reserved.values()])

    def _start_all(self, starts: list[Start]) -> None:
        for start in starts:
            self._start(start)
        if starts:
            self._touch(asked=False)
