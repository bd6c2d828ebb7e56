"""Circuit breakers as others see them: where they stand, and resets on an admin's behalf.

A reset is asked for in a thread that serves people and done by the loop, which alone writes to
the ledger.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from slurm_dl.daemon.audit_log import OK, AuditLine, AuditLog
from slurm_dl.engine.circuit_breakers import standing
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.settings import Breakers
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.ledger.sqlite.store import SupersededError
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.breaker import BREAKERS, Breaker, BreakerName
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.model.plan import TripBreaker

_WAIT_S = 20.0
RELOAD = "reload"  # Who resets a breaker whose bound a reload has raised


class NotResetError(SlurmDlError):
    """The breaker is as it was; says why."""


def not_here(_name: BreakerName, _actor: str) -> Breaker:
    """Refuse a reset where no loop runs that could write to the ledger."""
    msg = "this dlschedd does not act; ask the one that does"
    raise NotResetError(msg)


@dataclass(slots=True)
class _Asked:
    """A reset that somebody waits for, or a reload wants if it has tripped."""

    name: BreakerName
    actor: str
    settled: threading.Event = field(default_factory=threading.Event)
    was: Breaker | None = None
    error: str = ""


class Resets:
    """Resets that were asked for and not done yet."""

    def __init__(self) -> None:
        self._open: list[_Asked] = []
        self._lock = threading.Lock()

    def wait(self, name: BreakerName, actor: str, poke: Callable[[], None]) -> Breaker:
        """Ask on behalf of *actor*, *poke* the loop and wait until it is done.

        Returns:
            The breaker as it was.

        Raises:
            NotResetError: It could not be written down, or the loop has no time for it now.
        """
        asked = _Asked(name, actor)
        with self._lock:
            self._open.append(asked)
        poke()
        if not asked.settled.wait(_WAIT_S):
            msg = "dlschedd is busy with Slurm; it resets afterwards: see 'dlctl breakers'"
            raise NotResetError(msg)
        if asked.was is None:
            raise NotResetError(asked.error)
        return asked.was

    def raised(self, before: Breakers, after: Breakers) -> None:
        """Let go, at the next `settle`, what has tripped by a bound of *before* that was raised."""
        old, new = _bounds(before), _bounds(after)
        with self._lock:
            self._open += [
                _Asked(name, RELOAD) for name in BREAKERS if _is_raised(old[name], new[name])
            ]

    def settle(
        self, ledger: Ledger, audit: AuditLog, now_s: float, show: Callable[[Breaker], None]
    ) -> None:
        """Do what was asked for; for the loop.

        Args:
            show: Called with each breaker as it is now, before whoever asked goes on.

        Raises:
            SlurmDlError: The ledger could not be written.
        """
        with self._lock:
            taken, self._open = self._open, []
        for asked in taken:
            if asked.actor == RELOAD and not ledger.has_tripped(asked.name, now_s):
                continue
            try:
                asked.was = ledger.reset(asked.name, by=asked.actor, now_s=now_s)
                show(Breaker(name=asked.name, reset_s=now_s, reset_by=asked.actor))
            except SlurmDlError as err:
                # Whoever asked is told. What is wrong with the ledger the next cycle finds out.
                asked.error = str(err)
                if isinstance(err, SupersededError):
                    raise
            finally:
                audit.write(_line(asked))
                asked.settled.set()


def _line(asked: _Asked) -> AuditLine:
    was = asked.was
    why = was.why if was is not None and was.tripped_s else ""
    reason = f"it had tripped: {why}" if why else "it had not tripped"
    return AuditLine(
        actor=asked.actor,
        action="reset_breaker",
        reason=f"{asked.name}: {reason}",
        result=asked.error or OK,
        details={"breaker": asked.name},
    )


def breakers_of(cycle: Cycle, limits: Breakers, resets: Iterable[Breaker] = ()) -> list[Json]:
    """Each breaker as plain values, for the status.

    One that tripped in this very cycle counts as tripped: it does so in shadow mode too, where it
    is not written down and holds only as long as its reason.

    Args:
        resets: Breakers that were reset since the cycle.
    """
    known = {breaker.name: breaker for breaker in standing(cycle.snapshot)}
    for trip in cycle.plan.actions:
        if isinstance(trip, TripBreaker):
            known[trip.breaker] = trip.of(Breaker(name=trip.breaker))
    known |= {breaker.name: breaker for breaker in resets}
    return [
        _plain(known.get(name, Breaker(name=name)), _bounds(limits)[name][0]) for name in BREAKERS
    ]


def _bounds(limits: Breakers) -> dict[BreakerName, tuple[float, float]]:
    """The bound of each breaker, 0 if it is off, and the least at which it counts."""
    return {
        "gpus_per_hour": (limits.gpus_per_hour, 0),
        "cluster_share": (limits.cluster_share, limits.cluster_least),
        "failed_restarts": (limits.failed_share, limits.failed_least),
    }


def _is_raised(old: tuple[float, float], new: tuple[float, float]) -> bool:
    is_off = bool(old[0]) and not new[0]
    return is_off or (new[0] >= old[0] > 0 and new[1] >= old[1] and new != old)


def _plain(breaker: Breaker, bound: float) -> JsonObject:
    return {
        "breaker": breaker.name,
        "bound": bound or None,
        "tripped_s": breaker.tripped_s or None,
        "why": breaker.why or None,
        "jobs": list(breaker.jobs),
        "rearms_at_s": breaker.rearms_at_s if math.isfinite(breaker.rearms_at_s) else None,
        "reset_s": breaker.reset_s or None,
        "reset_by": breaker.reset_by or None,
    }
