"""The loop of dlschedd: signals, timing, back-off and when it may act. Nothing else.

All judgement is in the engine, all talk with Slurm in the backend; both are passed in, so that
tests drive this loop with a cluster of their own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Sequence

from structlog.typing import FilteringBoundLogger

from slurm_dl.config import Config
from slurm_dl.config.engine_settings import settings_of
from slurm_dl.daemon.audit_log import DAEMON, AuditLine, AuditLog, line_of
from slurm_dl.daemon.breaker_resets import RELOAD, Resets
from slurm_dl.daemon.components import Components, Loaded
from slurm_dl.daemon.controller_health import ControllerHealth, is_backfilling
from slurm_dl.daemon.ledger_recovery import LedgerRecovery
from slurm_dl.daemon.observers import CycleLog, Observer, Observers, one_line
from slurm_dl.daemon.preconditions import PauseSwitch, Precondition, WithdrawnError, first_refusal
from slurm_dl.daemon.published_state import Board, Durations, PublishedState, Reloaded, Trouble
from slurm_dl.daemon.rate_limits import (
    LEAST_GAP_S,
    Stopwatch,
    TokenBucket,
    back_off_s,
    delay_after,
    may_have_reservations,
)
from slurm_dl.daemon.reload import Reloading, promises_lost
from slurm_dl.daemon.systemd_notify import notify, watchdog_s
from slurm_dl.daemon.wakeup import Wakeup
from slurm_dl.engine.array_throttles import watched
from slurm_dl.engine.cycle import AppliedAction, Carry, Cycle, run_cycle
from slurm_dl.ledger.sqlite.store import SupersededError
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.breaker import Breaker, BreakerName
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.model.plan import Action
from slurm_dl.slurm.accounting.job_runs import Accounting

LOOKS_AFTER_START = 1
LOOKS_AFTER_SILENCE = 2

_LONGEST_SLEEP_S = 5.0
"""Bounds what a clock step or a lost wake-up can do; shorter if systemd's watchdog asks for it."""


class _CutShortError(SlurmDlError):
    """The cycle ends before its next action: a stop, or a permit that was withdrawn."""


class Daemon:
    """Runs cycles until it is told to stop. One instance, one thread; see `run`.

    Args:
        loaded: The configuration to begin with.
        parts: What it was assembled into.
        reread: Reads the configuration again; raises `ConfigError` if it is bad.
        assemble: Makes parts of a configuration.
        live: Whether a configuration lets it act.
        audit: Where actions are written down.
        pause: The pause switch.
        log: For people.
        accounting: Who knows the runs that nobody saw; None: nobody.
        preconditions: What else must allow it to act, beside the audit log and the pause switch.
        observers: Who is told of each cycle.

    Attributes:
        board: Where the state is published.
        on_reloaded: Told of a new configuration before it takes effect; may refuse it by raising
            `ConfigError`.
        on_first_look: Told once, when the cluster has been seen for the first time.
    """

    def __init__(
        self,
        *,
        loaded: Loaded,
        parts: Components,
        reread: Callable[[], Loaded],
        assemble: Callable[[Config], Components],
        live: Callable[[Config], bool],
        audit: AuditLog,
        pause: PauseSwitch,
        log: FilteringBoundLogger,
        accounting: Accounting | None = None,
        preconditions: Sequence[Precondition] = (),
        observers: Sequence[Observer] = (),
    ) -> None:
        self._reloading = Reloading(
            loaded=loaded, parts=parts, reread=reread, assemble=assemble, audit=audit, log=log
        )
        if lost := promises_lost(parts):
            log.warning("promises are not kept, but stay in the ledger", because=lost)
        self._live = live
        self.board = Board(
            PublishedState(
                config=loaded.config,
                config_rows=loaded.rows,
                started_s=time.time(),
                live=live(loaded.config),
                looks_left=LOOKS_AFTER_START,
            )
        )
        self.on_reloaded: Callable[[Config], None] = lambda _: None
        self.on_first_look: Callable[[], None] = lambda: None
        self._audit = audit
        self._pause = pause
        self._preconditions = preconditions
        self._observers = Observers(observers, log)
        self._log = log
        self._bucket = TokenBucket.of(loaded.config)
        self._carry = Carry()
        self._health = ControllerHealth(log, wall=time.time, monotonic=time.monotonic)
        self._alarm = Wakeup()
        self._soon = False
        self._passed_over = False
        self._resets = Resets()
        self._cycle_log = CycleLog(log)
        # Twice as often as systemd asks: one datagram may come late.
        self._feed_s = (watchdog_s() or math.inf) / 2
        self._rebuilding = LedgerRecovery(accounting, log, within_s=loaded.config.cluster.timeout_s)
        now_s = time.monotonic()
        self._next_poll_s = now_s
        self._next_nodes_s = now_s + loaded.config.daemon.nodes_every_s

    # What other threads may call.

    def wake(self) -> None:
        """Begin the next cycle as soon as the least gap allows."""
        self._soon = True
        self._alarm.ring()

    def reload(self, actor: str) -> Reloaded:
        """Read the configuration again on behalf of *actor*, and wait for what becomes of it."""
        return self._reloading.wait(actor, self._alarm.ring)

    def reset_breaker(self, name: BreakerName, actor: str) -> Breaker:
        """Let a circuit breaker go on behalf of *actor*; see `Resets.wait`."""
        return self._resets.wait(name, actor, self._alarm.ring)

    # The loop.

    @property
    def ledger(self) -> Ledger:
        """The ledger in use, for the loop's own thread; a reload opens another one."""
        return self._parts.ledger

    @property
    def _loaded(self) -> Loaded:
        return self._reloading.loaded

    @property
    def _parts(self) -> Components:
        return self._reloading.parts

    def run(self) -> None:
        """Run cycles until SIGTERM or SIGINT. Must be called from the main thread.

        Raises:
            WithdrawnError: A permit is gone for good; nothing is done or written down any more.
            SupersededError: The ledger belongs to another daemon now; likewise.
        """
        with self._alarm.signals():
            mode = "live" if self.board.current.live else "shadow"
            self._audit.write(AuditLine(actor=DAEMON, action="start", reason=f"{mode} mode"))
            notify("READY=1", "STATUS=starting")
            try:
                while not self._alarm.stop:
                    self._round()
                    self._sleep()
            except (WithdrawnError, SupersededError):
                self._passed_over = True
                raise
            notify("STOPPING=1", "STATUS=stopping")
            self._log.info("stopping", signal=self._alarm.stop)
            self._audit.write(AuditLine(actor=DAEMON, action="stop", reason=self._alarm.stop))

    def cycle_once(self, *, acting: bool) -> Cycle:
        """One cycle now, for ``--once``; errors are the caller's.

        Raises:
            SlurmDlError: It could not be done, or it is to act and may not.
        """
        if acting and (why := self._why_idle()):
            raise _CutShortError(why)
        return self._cycle(acting=acting)

    def close(self) -> None:
        """Let the observers finish, let go of the parts and the pipe; each whatever the others do.

        Observers write the ledger, so they come before it. Once another daemon acts they write no
        more.
        """
        with contextlib.ExitStack() as last_first:
            last_first.callback(self._alarm.close)
            last_first.callback(self._parts.cluster.close)
            last_first.callback(self._parts.ledger.close)
            observers = self._observers
            last_first.callback(observers.abandon if self._passed_over else observers.close)

    def _round(self) -> None:
        notify("WATCHDOG=1")
        # A lease is renewed while the loop turns, however far apart its looks are.
        first_refusal(self._preconditions)
        self._reload_if_asked()
        self._resets.settle(self._parts.ledger, self._audit, self._health.now(), self._show_reset)
        now_s = time.monotonic()
        if now_s >= self._next_poll_s:
            self._poll()
        elif now_s >= self._next_nodes_s:
            self._refresh_nodes()

    def _sleep(self) -> None:
        if self._soon:
            self._soon = False
            self._next_poll_s = min(self._next_poll_s, time.monotonic() + LEAST_GAP_S)
        due_s = min(self._next_poll_s, self._next_nodes_s)
        left_s = min(max(0.0, due_s - time.monotonic()), _LONGEST_SLEEP_S, self._feed_s)
        self._alarm.sleep(left_s)

    def _poll(self) -> None:
        began_s = time.monotonic()
        now = self.board.current
        if not self._audit.healthy:
            self._audit.flush()
        idle = first_refusal(self._preconditions_now())
        if idle != now.idle:
            self._log.warning("only looking" if idle else "may act again", because=idle or None)
        self._publish(idle=idle)
        acting = not self._why_idle() and now.looks_left == 0
        try:
            cycle = self._cycle(acting=acting)
        except (WithdrawnError, SupersededError):
            raise  # Another daemon acts now: see `run`.
        except _CutShortError as err:
            self._log.info("cycle cut short", because=str(err))
            delay_s = LEAST_GAP_S
        except SlurmDlError as err:
            delay_s = self._lost(err)
        except Exception as err:  # noqa: BLE001 - see below
            # The one place: a bug must not leave the queue to nobody, and must not go unseen.
            self._log.exception("bug in a cycle; nothing more is done in it")
            self._note_bug(err, in_a_row=now.bugs_in_a_row + 1)
            delay_s = self._loaded.config.daemon.poll_s
        else:
            self._observers.tell(self.board.current)
            daemon = self._loaded.config.daemon
            delay_s = self._health.slowed(delay_after(cycle, daemon), daemon)
        ended_s = time.monotonic()
        self._next_poll_s = max(began_s + delay_s, ended_s + LEAST_GAP_S)
        next_poll_s = time.time() + self._next_poll_s - ended_s
        self._publish(next_poll_s=next_poll_s, controller_health=self._health.shown())
        notify(f"STATUS={one_line(self.board.current, paused=self._pause.pause is not None)}")

    def _cycle(self, *, acting: bool) -> Cycle:
        parts, before = self._parts, self.board.current
        parts.cluster.watch_reservations = may_have_reservations(before.cycle)
        services = self._loaded.config.replicas.services
        parts.cluster.watch_throttles = bool(services) or watched(parts.policy, parts.ledger.booked)
        timed = Stopwatch(parts.cluster, parts.cluster.look_again)
        self._bucket.refill()
        self._health.begin(parts)
        began_s = time.monotonic()
        cycle = run_cycle(
            timed,
            parts.ledger,
            parts.policy,
            parts.settings,
            clock=self._health.now,
            acting=acting,
            may_write=lambda: self._health.may_write() and self._bucket.take(),
            allows=self._health.allows,
            before=self._before,
            on_done=self._on_done,
            timer=time.monotonic,
            # The next look must come in time; two cycles are further apart in any case.
            write_for_s=max(LEAST_GAP_S, self._loaded.config.daemon.fast_poll_s),
            backfilling=lambda: is_backfilling(parts.cluster),
            carry=self._carry,
            complete=lambda seen: self._rebuilding.complete(parts.ledger, seen),
            enrich=parts.enrich,
            look_again=timed.look_again,
            ask_by_hand=parts.cluster.set_by_hand,
        )
        took_s = time.monotonic() - began_s
        self._health.end(parts.cluster.asked_s)
        now = self.board.current
        self._publish(
            cycle=cycle,
            resets=(),
            policy=parts.policy,
            cycles=now.cycles + 1,
            bugs_in_a_row=0,
            seen_s=time.time(),
            reader=parts.cluster.reader,
            slurm=parts.cluster.config,
            durations=Durations(
                observe_ms=timed.observe_s * 1e3,
                decide_ms=(took_s - timed.observe_s - timed.apply_s) * 1e3,
                apply_ms=timed.apply_s * 1e3,
            ),
            looks_left=max(0, now.looks_left - 1),
            failures=0,
        )
        if not now.cycles:
            self.on_first_look()
        if now.failures:
            self._log.info("polls succeed again", after_failures=now.failures)
        self._cycle_log.say(
            cycle, self.board.current.durations, paused=self._pause.pause is not None
        )
        return cycle

    def _why_idle(self) -> str:
        """The reason why no action may be applied now; empty if actions may."""
        if not self.board.current.live:
            return "shadow mode"
        return self._alarm.stop or first_refusal(
            (self._audit, self._pause, *self._preconditions_now())
        )

    def _preconditions_now(self) -> tuple[Precondition, ...]:
        """Those that were passed in, and the cluster: Slurm must be set up to be ordered."""
        return (*self._preconditions, self._parts.cluster)

    def _before(self, action: Action) -> None:
        if why := self._why_idle() or self._health.why_not(action, self._parts):
            raise _CutShortError(why)

    def _on_done(self, done: AppliedAction) -> None:
        """Write one action down."""
        notify("WATCHDOG=1")
        line = line_of(done, time.time())
        self._audit.write(line)
        now = self.board.current
        if done.error:
            self._publish(failed=now.failed + 1)
            self._log.warning("action failed", action=line.action, job=line.job, error=done.error)
        else:
            self._publish(done=now.done + 1, steers_ended=now.steers_ended_after(done.action))
            self._log.debug("action", action=line.action, job=line.job, why=line.reason)

    def _show_reset(self, breaker: Breaker) -> None:
        if breaker.reset_by == RELOAD:
            self._log.info("a breaker re-armed: its bound was raised", breaker=breaker.name)
        self._publish(resets=(*self.board.current.resets, breaker))

    def _lost(self, err: SlurmDlError) -> float:
        """Note that a poll failed; how long to wait for the next one, seconds."""
        now = self.board.current
        failures = now.failures + 1
        delay_s = back_off_s(failures, self._loaded.config.daemon.poll_s)
        self._health.lost()
        self._log.warning(
            "poll failed", error=str(err), failures=failures, next_in_s=round(delay_s, 1)
        )
        self._publish(
            failures=failures,
            looks_left=LOOKS_AFTER_SILENCE,
            trouble=Trouble(at_s=time.time(), message=str(err)),
        )
        return delay_s

    def _refresh_nodes(self) -> None:
        self._next_nodes_s = time.monotonic() + self._loaded.config.daemon.nodes_every_s
        if self.board.current.failures:
            return  # One way of asking is enough while Slurm is silent.
        try:
            self._parts.cluster.refresh_nodes()
        except SlurmDlError as err:
            self._log.warning("nodes could not be read", error=str(err))
            self._publish(trouble=Trouble(at_s=time.time(), message=str(err)))
        except Exception as err:  # noqa: BLE001 - as in `_poll`: what Slurm says must not end us
            self._log.exception("bug in a look at the nodes; they are taken for what they were")
            self._note_bug(err, in_a_row=self.board.current.bugs_in_a_row)

    def _note_bug(self, err: Exception, *, in_a_row: int) -> None:
        trouble = Trouble(at_s=time.time(), message=f"bug: {type(err).__name__}: {err}")
        bugs = self.board.current.bugs + 1
        self._publish(bugs=bugs, bugs_in_a_row=in_a_row, trouble=trouble)

    def _reload_if_asked(self) -> None:
        if hangup := self._alarm.hangup:
            self._alarm.hangup = False
        self._reloading.settle(hangup=hangup, accept=self.on_reloaded, show=self._take_over)

    def _take_over(self, outcome: Reloaded) -> None:
        """Go by the new configuration, if there is one, and show what became of the reload."""
        if outcome.ok:
            before, config = self.board.current.config, self._loaded.config
            self._resets.raised(*(settings_of(c).breakers for c in (before, config)))
            self._bucket = TokenBucket.of(config)
            self._next_poll_s = min(self._next_poll_s, time.monotonic() + config.daemon.poll_s)
        self._publish(reloaded=outcome)

    def _publish(self, **changes: object) -> None:
        self.board.current = dataclasses.replace(
            self.board.current,
            config=self._loaded.config,
            config_rows=self._loaded.rows,
            live=self._live(self._loaded.config),
            **changes,  # type: ignore[arg-type] # names are those of Published
        )
