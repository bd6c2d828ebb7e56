"""The life of one command under dlrun: start, ask, wait, acknowledge, be requeued.

Signals are blocked and taken one by one by `Signals.wait`, so nothing here runs at an arbitrary
moment and no signal is lost between two steps. Whatever happens the work goes on: if nobody
requeues the job it requeues itself, and if Slurm refuses that the command starts again in place.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from slurm_dl.job.child import Child, Signals, signal_name
from slurm_dl.job.command_end import End, judge
from slurm_dl.job.comment_report import PROGRESS, RATE, SAVED, STEPS, CommentReport
from slurm_dl.job.controller import CallFailedError, JobController
from slurm_dl.job.failure_class import OwnLog, failure_of
from slurm_dl.job.forwarding import Forwarding, ScriptHold
from slurm_dl.job.gpu_load import GpuLoad
from slurm_dl.job.handler_watch import HandlerWatch
from slurm_dl.job.in_place import Ranks, may_shrink, wait_for_fewer
from slurm_dl.job.options import ACK_MARGIN_S, DlrunOptions
from slurm_dl.job.run_files import (
    ATTEMPT_VARIABLE,
    IMPORTED_FILE,
    LISTENING_FILE,
    REQUEST_FILE,
    RESTART_VARIABLE,
    RUN_DIR_VARIABLE,
    SIGNAL_VARIABLE,
    STOPPED_FILE,
    RunId,
    is_marked,
    write_mark,
)

LOOK_EVERY_S = 0.5  # While a signal is owed: how often to look whether there is a handler now

WARNING_SPREAD_S = 65.0  # Slurm warns up to a minute early (sbatch(1), --signal)

TERM_SPREAD_S = 2.0
"""Slurm sends SIGTERM to every process of a job. Only if the command still runs this long after,
and Slurm says the job is RUNNING, was the signal for dlrun alone and has to be passed on. A
second SIGTERM could break the checkpoint that the first one started."""

LIMIT_MARGIN_S = 15.0  # Requeue at least this long before the time limit

LIMIT_WAIT_S = 30.0  # Near the time limit: how long a daemon gets before the job requeues itself

REQUEUE_WAIT_S = 60.0  # Most a requeue of our own may take until Slurm's SIGTERM arrives
REQUEUE_TRIES = 3
BACKOFF_MAX_S = 30.0


class Supervisor:
    """Runs the command until it is done, the job is requeued, or somebody ends it.

    Args:
        options: What to run and how.
        environ: dlrun's environment.
        restart: Slurm's restart count.
        signals: Where signals come from.
        controller: The job as Slurm knows it; None if Slurm cannot be reached from here.
        outside: True if this is no Slurm job at all.
        ranks: How to tell the order of the ranks where the job has fewer nodes than before.
    """

    def __init__(
        self,
        options: DlrunOptions,
        *,
        environ: Mapping[str, str],
        restart: int,
        signals: Signals,
        controller: JobController | None,
        outside: bool,
        ranks: Ranks = lambda _: {},
    ) -> None:
        self._options = options
        self._environ = dict(environ)
        self._signals = signals
        self._controller = controller
        self._outside = outside
        self._ranks = ranks
        self._may_shrink = False
        self._run = RunId(restart, 0)
        self._asked_s: float | None = None  # When it was asked for a checkpoint, monotonic
        self._owes_signal = False
        self._is_sent = False  # In this start
        self._is_warned = False  # The request was Slurm's own warning before the time limit
        self._ended_by: int | None = None  # The signal that told dlrun itself to end
        self._pass_on_s: float | None = None  # When to look whether it has to be passed on
        self._ack_may_stand = False
        self._handlers = HandlerWatch(options, controller, log)
        every_s = dict.fromkeys((SAVED, PROGRESS, STEPS), options.saved_every_s)
        load = GpuLoad(options.run_dir, environ, log)
        if options.rate_every_s is not None:
            every_s.update({RATE: options.rate_every_s, load.kind: options.saved_every_s})
        self._reports: list[GpuLoad | CommentReport] = [load] if options.sample else []
        self._reports += [
            CommentReport(kind, options.run_dir, controller, every_s=seconds, log=log)
            for kind, seconds in every_s.items()
            if controller is not None
        ]

    def run(self) -> int:
        """Exit status for the batch script."""
        while True:
            end = self._run_command()
            if not end.stopped:
                return end.code
            self._stand_by(end)
            if self._ended_by is not None:
                log(f"ended by {signal_name(self._ended_by)}")
                return 128 + self._ended_by
            self._run = RunId(self._run.restart, self._run.attempt + 1)
            log("starting the command again in place")

    # --- while the command runs

    def _run_command(self) -> End:
        self._asked_s = None
        self._owes_signal = self._is_sent = self._is_warned = False
        for name in (REQUEST_FILE, LISTENING_FILE, IMPORTED_FILE, STOPPED_FILE):
            (self._options.run_dir / name).unlink(missing_ok=True)
        self._log_of_run = OwnLog()
        try:
            child = Child(self._options.command, self._child_environ(), self._signals.restore)
        except OSError as err:
            log(f"cannot start {self._options.command[0]}: {err.strerror or err}")
            return End(127 if isinstance(err, FileNotFoundError) else 126, stopped=False)
        log(f"run {self._run.restart} of {self._options.command[0]} in {self._options.run_dir}")
        self._handlers.start(time.monotonic())
        forwarding = Forwarding(child.pid)
        self._hold = ScriptHold(child, forwarding, log)
        for report in self._reports:
            report.start(time.monotonic(), time.time())
        while not child.has_exited():
            signum = self._signals.wait(self._next_look_s())
            if signum is not None:
                self._take(signum, child)
            if self._owes_signal:
                self._forward(child, forwarding)
            self._hold.look(self._options.signum, is_late=self._is_late())
            if self._pass_on_s is not None and time.monotonic() >= self._pass_on_s:
                self._pass_on(child)
            if self._ended_by is None:
                self._look(child)
        # A signal that came while the command was ending decides how its end is read.
        while (signum := self._signals.wait(0)) is not None:
            self._take(signum, child)
        return self._judge(child.finish())

    def _child_environ(self) -> dict[str, str]:
        return {
            **self._environ,
            RUN_DIR_VARIABLE: str(self._options.run_dir),
            RESTART_VARIABLE: str(self._run.restart),
            ATTEMPT_VARIABLE: str(self._run.attempt),
            SIGNAL_VARIABLE: signal_name(self._options.signum),
        }

    def _next_look_s(self) -> float:
        if self._owes_signal or self._hold.held:
            return LOOK_EVERY_S
        if self._pass_on_s is not None:
            return self._pass_on_s - time.monotonic()
        now_s = time.monotonic()
        due_s = min(60.0, self._handlers.due_in_s(now_s))
        return min([due_s, *(report.due_in_s(now_s) for report in self._reports)])

    def _look(self, child: Child) -> None:
        self._handlers.look(child, self._run, is_sent=self._is_sent, now_s=time.monotonic())
        for report in self._reports:
            report.look(self._run, time.monotonic())

    def _take(self, signum: int, child: Child) -> None:
        ends = self._signals.is_ending(signum)
        if signum == self._signals.checkpoint and (self._asked_s is None or not ends):
            self._ask()
        elif ends:
            self._end(signum, child)

    def _ask(self) -> None:
        if self._asked_s is None:
            self._asked_s = time.monotonic()
            self._is_warned = self._is_near_limit()
        self._handlers.ask(self._asked_s)
        self._owes_signal = True
        log(f"checkpoint asked for by {signal_name(self._options.signum)}")
        try:
            write_mark(
                self._options.run_dir / REQUEST_FILE,
                self._run,
                time_s=time.time(),
                signal=signal_name(self._options.signum),
            )
        except OSError as err:
            log(f"cannot write the request, the command gets the signal only: {err}")

    def _forward(self, child: Child, forwarding: Forwarding) -> None:
        """Send the owed signal, or wait until the command can take it."""
        options = self._options
        forward, is_announced = options.forward, self._is_announced()
        if forward is None:
            if options.launcher == "plain":
                self._forward_to_handlers(child, forwarding, is_announced=is_announced)
                return
            if options.launcher == "torchrun" or is_announced:
                # srun would signal every process of its tasks, and loader workers die of it.
                forward = 0
            elif child.listens_for(options.signum):
                forward = options.signum
            else:
                return
        self._owes_signal, self._is_sent = False, bool(forward)
        if forward:
            child.send(forward)
            log(f"sent {signal_name(forward)} to the command")

    def _forward_to_handlers(
        self, child: Child, forwarding: Forwarding, *, is_announced: bool
    ) -> None:
        signum, asked_s = self._options.signum, time.monotonic() - (self._asked_s or 0.0)
        by_srun = not is_announced and self._environ.get("SLURM_JOB_NUM_NODES", "1") != "1"
        family = child.processes(signum)
        receivers = forwarding.receivers(family, by_srun=by_srun, asked_s=asked_s)
        if self._options.hold and not (self._is_warned or self._is_late()):
            self._hold.stop(receivers, family)
        for process in receivers:
            child.send(signum, process.pid)
            is_own = process.pid == child.pid
            to = "the command" if is_own else f"{process.program}, process {process.pid}"
            log(f"sent {signal_name(signum)} to {to}")
            self._is_sent = True
            self._owes_signal &= not is_own
        self._owes_signal &= not is_announced

    def _is_late(self) -> bool:
        """True so long after the request that nobody waits for the command's end any more."""
        asked_s = self._asked_s or math.inf
        return time.monotonic() > asked_s + self._options.grace_s + ACK_MARGIN_S

    def _is_near_limit(self) -> bool:
        """True of a batch script that is so near to its time limit that Slurm warns it."""
        lead_s, controller = self._options.script_lead_s, self._controller
        if lead_s is None or controller is None:
            return False
        try:
            left_s = controller.standing().left_s
        except CallFailedError as err:
            log(f"the time limit is not known: {err}")
            return False
        return left_s is not None and left_s <= lead_s + WARNING_SPREAD_S

    def _is_announced(self) -> bool:
        return is_marked(self._options.run_dir / LISTENING_FILE, self._run)

    def _end(self, signum: int, child: Child) -> None:
        again = self._ended_by is not None
        self._ended_by = signum
        if signum != signal.SIGTERM or self._controller is None or again:
            child.send(signum)
            self._hold.go_on()
        else:
            self._pass_on_s = time.monotonic() + TERM_SPREAD_S

    def _pass_on(self, child: Child) -> None:
        self._pass_on_s = None
        if self._controller is None or self._ended_by is None:
            return
        try:
            standing = self._controller.standing()
        except CallFailedError as err:
            log(f"not passing on {signal_name(self._ended_by)}: {err}")
            return
        if not standing.is_ending:
            child.send(self._ended_by)
            self._hold.go_on()
            log(f"sent {signal_name(self._ended_by)} to the command")

    # --- when it has ended

    def _judge(self, code: int) -> End:
        if self._ended_by is not None:
            return End(code, stopped=False)
        asked = self._asked_s is not None
        # Where nothing has heard of the request, an end with such a status is an end.
        heard = self._is_sent or self._is_announced() or self._options.launcher == "torchrun"
        is_script = self._options.script_lead_s is not None
        heard = heard and not (self._is_warned or (is_script and self._is_late()))
        held = self._hold.is_over
        end = judge(code, self._options, self._run, asked=asked, heard=heard, held=held, log=log)
        if code in self._options.never_requeue:
            # The daemon requeues who fails when it is asked, and knows of no status but 93. It may
            # have asked without our hearing of it yet.
            self._tell("final", self._run.restart)
        elif code and not asked and not end.stopped:
            found = failure_of(code, self._log_of_run.tail(), self._environ, log)
            if found is not None:
                self._tell("failed", (found.kind, found.mark, self._run.restart))
        return end

    def _tell(self, key: Literal["final", "failed"], value: int | Sequence[str | int]) -> None:
        if self._controller is not None:
            self._controller.insist(key, value, self._pause, log)

    def _stand_by(self, end: End) -> None:
        """Returns when dlrun has been told to end, or when the command is to start again."""
        if self._controller is None:
            if self._outside:
                return
            log("waiting for the requeue")
            self._pause(self._options.ack_wait_s)
            return
        if end.solicited and end.may_requeue and self._is_preempted(self._controller):
            # Slurm would wait out the whole grace for a job that has nothing left to do.
            log("preempted by Slurm: requeueing itself at once")
        elif end.solicited:
            left_s = self._acknowledge(self._controller)
            until_s = time.monotonic() + self._patience_s(left_s, end)
            if self._has_shrunk(self._controller, until_s):
                self._withdraw(self._controller)
                return
            if self._pause(until_s - time.monotonic()):
                return
            log("nobody has requeued this job")
        if end.may_requeue and self._requeue(self._controller):
            return
        self._withdraw(self._controller)

    def _has_shrunk(self, controller: JobController, until_s: float) -> bool:
        after = self._may_shrink and wait_for_fewer(
            controller, self._environ, self._ranks, until_s=until_s, pause=self._pause, log=log
        )
        self._environ = after or self._environ
        return bool(after)

    def _is_preempted(self, controller: JobController) -> bool:
        try:
            return controller.is_preempted()
        except CallFailedError as err:
            log(f"whether Slurm is preempting this job is not known: {err}")
            return False

    def _acknowledge(self, controller: JobController) -> float | None:
        """Tell the daemon that the job may be requeued; seconds to the time limit, if known."""
        deadline_s = (self._asked_s or time.monotonic()) + self._options.grace_s
        left_s, delay_s = None, 1.0
        while self._ended_by is None:
            try:
                standing = controller.standing()
                left_s = standing.left_s
                self._may_shrink = may_shrink(standing, self._environ)
                if standing.is_ending:
                    self._ended_by = signal.SIGTERM
                    break
                self._ack_may_stand = True
                if controller.set_ack(standing, self._run.restart):
                    log(f"acknowledged run {self._run.restart}")
                else:
                    self._ack_may_stand = False
                    log("the job's comment is not slurm_dl's, nothing to acknowledge to")
                break
            except CallFailedError as err:
                log(f"acknowledgement failed: {err}")
            if time.monotonic() + delay_s > deadline_s:
                log("acknowledgement given up: the grace is over")
                break
            self._pause(delay_s)
            delay_s = min(delay_s * 2, BACKOFF_MAX_S)
        return left_s

    def _patience_s(self, left_s: float | None, end: End) -> float:
        """How long to wait for somebody else's requeue."""
        end_time = self._environ.get("SLURM_JOB_END_TIME", "")
        if left_s is None and end_time.isascii() and end_time.isdigit():
            left_s = int(end_time) - time.time()
        wait_s = self._options.ack_wait_s
        if end.may_requeue and left_s is not None and left_s < wait_s + LIMIT_MARGIN_S:
            # Probably Slurm's own warning before the limit. Nobody requeues a job that runs
            # into its limit, and there is nothing to lose by being early. Nor is there a second
            # warning in this run.
            self._may_shrink = False
            wait_s = max(0.0, min(LIMIT_WAIT_S, left_s - LIMIT_MARGIN_S, wait_s))
            log(f"time limit in {left_s:.0f} s: requeueing itself in {wait_s:.0f} s")
        return wait_s

    def _requeue(self, controller: JobController) -> bool:
        """Requeue the job; true once Slurm has told dlrun to end."""
        for attempt in range(REQUEUE_TRIES):
            if attempt and self._pause(float(attempt)):
                return True
            try:
                controller.requeue()
            except CallFailedError as err:
                log(f"requeue failed: {err}")
                continue
            log("requeued itself")
            if self._pause(min(REQUEUE_WAIT_S, self._options.ack_wait_s)):
                return True
            log("Slurm accepted the requeue and has not ended the job")
            break
        return self._ended_by is not None

    def _withdraw(self, controller: JobController) -> None:
        """Take the acknowledgement back, however long it takes.

        A job that still has one may be requeued at any moment, so its command must not start.
        """
        delay_s = 1.0
        while self._ack_may_stand and self._ended_by is None:
            try:
                controller.set_ack(controller.standing(), None)
            except CallFailedError as err:
                log(f"cannot take the acknowledgement back yet: {err}")
                self._pause(delay_s)
                delay_s = min(delay_s * 2, BACKOFF_MAX_S)
            else:
                self._ack_may_stand = False

    def _pause(self, seconds: float) -> bool:
        """Wait; true, and at once, when dlrun is told to end."""
        deadline_s = time.monotonic() + seconds
        while self._ended_by is None:
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                break
            if (signum := self._signals.wait(remaining_s)) and self._signals.is_ending(signum):
                self._ended_by = signum
        return self._ended_by is not None


def log(text: str) -> None:
    """One line on stderr, with the time; what is not printable is escaped."""
    safe = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    line = f"dlrun: {time.strftime('%Y-%m-%dT%H:%M:%S%z')} {safe}\n"
    try:
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, line.encode())
    except OSError:
        return  # nobody reads it: no reason to let the job down
