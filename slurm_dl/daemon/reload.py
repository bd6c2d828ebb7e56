"""Reloads of the configuration: asked for by the threads that serve people, done by the loop.

A configuration that is bad, or that a part cannot take, changes nothing: the old one stays in
force, with the parts that were made of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from structlog.typing import FilteringBoundLogger

from slurm_dl.config import Config
from slurm_dl.daemon.audit_log import DAEMON, AuditLine, AuditLog
from slurm_dl.daemon.components import Components, Loaded
from slurm_dl.daemon.enrich import Enricher
from slurm_dl.daemon.published_state import Reloaded
from slurm_dl.daemon.systemd_notify import notify
from slurm_dl.engine.explain.promise_reasons import keeps_promises
from slurm_dl.model.errors import ConfigError, SlurmDlError
from slurm_dl.model.promise import promises_in

_WAIT_S = 20.0
_KEPT = "the old configuration stays in force"


@dataclass(slots=True)
class _Ticket:
    """A reload that somebody waits for."""

    actor: str
    settled: threading.Event = field(default_factory=threading.Event)
    outcome: Reloaded | None = None


class Reloading:
    """The configuration and parts in force, and their replacement.

    Args:
        loaded: The configuration to begin with.
        parts: What it was assembled into.
        reread: Reads the configuration again; raises `ConfigError` if it is bad.
        assemble: Makes parts of a configuration.
        audit: Where each reload is written down.
        log: For people.

    Attributes:
        loaded: The configuration in force.
        parts: What it was assembled into.
    """

    def __init__(
        self,
        *,
        loaded: Loaded,
        parts: Components,
        reread: Callable[[], Loaded],
        assemble: Callable[[Config], Components],
        audit: AuditLog,
        log: FilteringBoundLogger,
    ) -> None:
        self.loaded = loaded
        self.parts = parts
        self._reread = reread
        self._assemble = assemble
        self._audit = audit
        self._log = log
        self._open: list[_Ticket] = []
        self._lock = threading.Lock()

    def wait(self, actor: str, poke: Callable[[], None]) -> Reloaded:
        """Ask on behalf of *actor*, *poke* the loop and wait for what becomes of it.

        What other threads may call.
        """
        ticket = _Ticket(actor)
        with self._lock:
            self._open.append(ticket)
        poke()
        if ticket.settled.wait(_WAIT_S) and ticket.outcome is not None:
            return ticket.outcome
        busy = "dlschedd is busy with Slurm; it reloads afterwards: see 'dlctl status'"
        return Reloaded(at_s=time.time(), ok=False, message=busy)

    def settle(
        self, *, hangup: bool, accept: Callable[[Config], None], show: Callable[[Reloaded], None]
    ) -> None:
        """Reload, once, if anybody has asked for it.

        Args:
            hangup: SIGHUP has asked for it.
            accept: Told of the new configuration before it takes effect; refuses it by raising
                `ConfigError`.
            show: Told what became of it, before those who wait for it are.
        """
        with self._lock:
            tickets, self._open = self._open, []
        if hangup:
            tickets.append(_Ticket(f"{DAEMON} (SIGHUP)"))
        if not tickets:
            return
        notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        outcome = self._reload(accept)
        show(outcome)
        notify("READY=1")
        log = self._log.info if outcome.ok else self._log.error
        for line in outcome.message.splitlines():
            log("reload", ok=outcome.ok, message=line)
        for ticket in tickets:
            result = "ok" if outcome.ok else outcome.message
            self._audit.write(AuditLine(actor=ticket.actor, action="reload", result=result))
            ticket.outcome = outcome
            ticket.settled.set()

    def _reload(self, accept: Callable[[Config], None]) -> Reloaded:
        try:
            fresh = self._reread()
            changed = [k for k, v in fresh.fixed.items() if self.loaded.fixed.get(k) != v]
            if changed:
                msg = f"{', '.join(changed)}: cannot change at run time, restart dlschedd; {_KEPT}"
                return Reloaded(at_s=time.time(), ok=False, message=msg)
            parts = self._assemble(fresh.config)
        except (SlurmDlError, ValueError, LookupError, TypeError) as err:
            # ValueError and its like: a value that passed the checks and that a part cannot take.
            return Reloaded(at_s=time.time(), ok=False, message=f"{err}\n{_KEPT}")
        try:
            if keeps_promises(self.parts.policy):
                _check_promises(parts)
            accept(fresh.config)
        except ConfigError as err:
            parts.ledger.close()
            parts.cluster.close()
            return Reloaded(at_s=time.time(), ok=False, message=f"{err}\n{_KEPT}")
        self.parts.ledger.close()
        self.parts.cluster.close()
        before = {row.key: row.text for row in self.loaded.rows}
        after = {row.key: row.text for row in fresh.rows}
        if isinstance(parts.enrich, Enricher) and isinstance(self.parts.enrich, Enricher):
            parts.enrich.go_on(self.parts.enrich)
        keys = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
        self.parts, self.loaded = parts, fresh
        what = f"changed: {', '.join(keys)}" if keys else "nothing changed"
        return Reloaded(at_s=time.time(), ok=True, message=f"configuration reloaded; {what}")


def promises_lost(parts: Components) -> str:
    """The reason why the policy of *parts* cannot keep the ledger's promises; empty if it can."""
    standing = sum(p.is_kept for p in promises_in(parts.ledger.booked).values())
    if not standing or keeps_promises(parts.policy):
        return ""
    stand = "1 promise stands" if standing == 1 else f"{standing} promises stand"
    return (
        f"policy.order: {stand} that jobs are done by their deadlines, and policy "
        f"{parts.policy.name} keeps none: wait until 'dlctl promises' lists none that is waiting "
        "or running, or restart dlschedd to give them up"
    )


def _check_promises(parts: Components) -> None:
    if lost := promises_lost(parts):
        raise ConfigError(lost)
