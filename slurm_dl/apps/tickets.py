"""Reloads that somebody asked for, handed from the threads that serve people to the loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from slurm_dl.apps.published import Reloaded

_WAIT_S = 20.0


@dataclass(slots=True)
class Ticket:
    """A reload that somebody waits for."""

    actor: str
    settled: threading.Event = field(default_factory=threading.Event)
    outcome: Reloaded | None = None


class Tickets:
    """The tickets nobody has taken yet."""

    def __init__(self) -> None:
        self._open: list[Ticket] = []
        self._lock = threading.Lock()

    def wait(self, actor: str, poke: Callable[[], None]) -> Reloaded:
        """Ask on behalf of *actor*, *poke* the loop and wait for what becomes of it."""
        ticket = Ticket(actor)
        with self._lock:
            self._open.append(ticket)
        poke()
        if ticket.settled.wait(_WAIT_S) and ticket.outcome is not None:
            return ticket.outcome
        busy = "dlschedd is busy with Slurm; it reloads afterwards: see 'dlctl status'"
        return Reloaded(at_s=time.time(), ok=False, message=busy)

    def take(self) -> list[Ticket]:
        """The open tickets; they are the caller's to settle."""
        with self._lock:
            taken, self._open = self._open, []
        return taken
