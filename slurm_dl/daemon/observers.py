"""Observers of cycles, which keep figures, forecasts and reports, and the log's line on each.

Observers are kept apart from the loop because none of them may change what it does or stop it: the
loop has to go on scheduling after a bug in a figure.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from structlog.typing import FilteringBoundLogger

from slurm_dl.daemon.control.status_answer import tiers_of
from slurm_dl.daemon.published_state import Durations, PublishedState
from slurm_dl.engine.circuit_breakers import tripped
from slurm_dl.engine.cycle import Cycle
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import Action, ClearSteer, ForgetSteer, SetSteer, TripBreaker


class Observer(Protocol):
    """Keeps something that only the sequence of cycles tells. Told by the loop's own thread."""

    def on_cycle(self, now: PublishedState, /) -> None:
        """Take in the cycle that has just come to its end: *now* is what has been published of it.

        The next look waits for it: anything longer than milliseconds belongs into a thread.
        """


@runtime_checkable
class Finishing(Protocol):
    """An observer that has something to finish when the daemon ends."""

    def close(self) -> None:
        """Finish it, within seconds: a stop waits for it."""

    def abandon(self) -> None:
        """Write nothing more: another daemon has taken over what it would write to."""


class Observers:
    """All of them; one that fails is left out from then on, and the log says so."""

    def __init__(self, observers: Sequence[Observer], log: FilteringBoundLogger) -> None:
        self._all = tuple(observers)
        self._observers = list(observers)
        self._log = log

    def tell(self, now: PublishedState) -> None:
        """Tell each of them."""
        for observer in tuple(self._observers):
            try:
                observer.on_cycle(now)
            except Exception:  # noqa: BLE001 - whatever it is, the loop goes on without it
                self._observers.remove(observer)
                name = type(observer).__name__
                self._log.exception("bug in an observer; it is left out from now on", observer=name)

    def close(self) -> None:
        """Let those finish that have something to finish, also those that are not told any more."""
        self._end(lambda observer: observer.close())

    def abandon(self) -> None:
        """End them without a word more, because another daemon acts now."""
        self._end(lambda observer: observer.abandon())

    def _end(self, how: Callable[[Finishing], None]) -> None:
        for observer in self._all:
            if not isinstance(observer, Finishing):
                continue
            try:
                how(observer)
            except Exception:  # noqa: BLE001 - likewise; the others have their own to finish
                name = type(observer).__name__
                self._log.exception("bug in the end of an observer", observer=name)


QUIET_S = 600.0  # A daemon to whom nothing happens says so this often

_KINDS = {"spot": "to nodes", "wait": "to wait", "over": "let go", "started": "let go"}


class CycleLog:
    """One line a cycle: aloud if something happened or nothing was said for long."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._logged_s = -math.inf
        self._standing: tuple[object, ...] = ()
        self._tripped: frozenset[str] = frozenset()

    def say(self, cycle: Cycle, durations: Durations, *, paused: bool) -> None:
        """Say what the cycle saw and did."""
        self._warn(cycle)
        numbers = _numbers(cycle)
        failed = sum(bool(d.error) for d in cycle.done)
        standing = (cycle.acting, paused, numbers["handovers"], numbers["steers"])
        quiet = not cycle.done and standing == self._standing
        if quiet and time.monotonic() - self._logged_s < QUIET_S:
            log = self._log.debug
        else:
            log = self._log.info
            self._logged_s = time.monotonic()
        self._standing = standing
        log(
            "cycle",
            acting=cycle.acting,
            **numbers,
            done=len(cycle.done) - failed,
            failed=failed,
            left=len(cycle.left),
            **({"left_out": unread} if (unread := cycle.snapshot.seen.unreadable) else {}),
            **_steered(cycle),
            observe_ms=round(durations.observe_ms, 1),
            decide_ms=round(durations.decide_ms, 1),
            apply_ms=round(durations.apply_ms, 1),
        )

    def _warn(self, cycle: Cycle) -> None:
        """Say once of each circuit breaker that it has tripped, and once that it was reset."""
        now: dict[str, str] = {b.name: b.why for b in tripped(cycle.snapshot)}
        now |= {a.breaker: a.why for a in cycle.plan.actions if isinstance(a, TripBreaker)}
        for name in now.keys() - self._tripped:
            self._log.warning(
                "a breaker stops preemption", breaker=name, because=now[name], see="dlctl breakers"
            )
        for name in self._tripped - now.keys():
            self._log.info("a breaker does not stop preemption any more", breaker=name)
        self._tripped = frozenset(now)


def one_line(now: PublishedState, *, paused: bool) -> str:
    """The status, for ``systemctl status``."""
    if now.failures and now.trouble:
        return f"{now.failures} polls failed: {now.trouble.message}"
    if now.cycle is None:
        return "starting"
    numbers = _numbers(now.cycle)
    mode = "paused" if paused else "live" if now.live else "shadow"
    return (
        f"{mode}: {numbers['running']} running, {numbers['pending']} pending, "
        f"{numbers['handovers']} hand-overs"
    )


def _numbers(cycle: Cycle) -> dict[str, object]:
    state = cycle.snapshot.jobs.state
    return {
        "jobs": len(state),
        "pending": int((state == JobState.PENDING).sum()),
        "running": int((state == JobState.RUNNING).sum()),
        "tiers": "/".join(str(pending + running) for _, pending, running in tiers_of(cycle)),
        "handovers": len(cycle.snapshot.handovers),
        "steers": sum(s.kind != "started" for s in cycle.snapshot.steers.values()),
    }


def _steered(cycle: Cycle) -> dict[str, object]:
    """Counts of steers that were written, in words; empty if there are none."""
    counts = Counter(_word(d.action) for d in cycle.done if not d.error)
    del counts[""]
    return {"steered": ", ".join(f"{n} {word}" for word, n in counts.items())} if counts else {}


def _word(action: Action) -> str:
    match action:
        case SetSteer(steer=steer):
            return _KINDS[steer.kind]
        case ClearSteer():
            return "undone"
        case ForgetSteer(outcome=outcome):
            return outcome
        case _:
            return ""
