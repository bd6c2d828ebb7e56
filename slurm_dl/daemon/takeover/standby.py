"""The daemon while another one acts: it watches the lease, answers requests, and takes over.

It asks Slurm for nothing but the host of its controller, writes nothing to the state directory, and
keeps nothing of the ledger in memory. A daemon that takes over begins as after a start.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from slurm_dl.daemon.audit_log import AuditLog
from slurm_dl.daemon.control.reception import Peer, RequestError, Stream
from slurm_dl.daemon.control.request_handlers import RequestHandlers
from slurm_dl.daemon.control.requests import ConfigRequest, StatusRequest, parse
from slurm_dl.daemon.control.status_answer import ControlContext
from slurm_dl.daemon.control.wire_format import RefusalKind
from slurm_dl.daemon.preconditions import PauseSwitch, WithdrawnError
from slurm_dl.daemon.published_state import Board, PublishedState, Reloaded
from slurm_dl.daemon.systemd_notify import notify
from slurm_dl.daemon.takeover.lease import Lease, LeaseWatch
from slurm_dl.daemon.wakeup import Wakeup
from slurm_dl.json_types import JsonObject
from slurm_dl.ledger.sqlite.store import StoreError
from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.controller import ControllerHost, acting, same_host
from slurm_dl.text import ago, safe

SURE_AFTER = 2
"""A daemon gives its lease up when slurmctld was found elsewhere so many times in a row: one ping
that is not answered in time must not move the daemon."""


class ControllerHostCheck:
    """Lets a daemon act only on the host of the acting slurmctld. It is a `Precondition`.

    Args:
        ask: Gives the controllers; see `controllers`.
        every_s: How often to ask at most, seconds.
        host: This host.
        clock: Seconds that only go forward.
    """

    def __init__(
        self,
        ask: Callable[[], tuple[ControllerHost, ...]],
        *,
        every_s: float,
        host: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._host = host or socket.gethostname()
        self._every_s = every_s
        self._clock = clock
        self._asked_s = -every_s
        self._elsewhere = ""
        self._times = 0

    def why_not(self) -> str:
        """See `Precondition`.

        Raises:
            WithdrawnError: slurmctld was found elsewhere `SURE_AFTER` times.
        """
        why = self.elsewhere()
        if self._times >= SURE_AFTER:
            raise WithdrawnError(why)
        return why

    def elsewhere(self) -> str:
        """The other host on which slurmctld acts; empty if it acts here or none answers."""
        if self._clock() - self._asked_s < self._every_s:
            return self._elsewhere
        try:
            found = self._ask()
        except ClusterError:
            # None answers: then nothing can be done from anywhere.
            return self._elsewhere
        finally:
            self._asked_s = self._clock()
        where = acting(found)
        if not where or same_host(where, self._host):
            self._elsewhere, self._times = "", 0
            return ""
        self._elsewhere = f"slurmctld acts on {safe(where)}, and this is {self._host}"
        if not any(same_host(c.host, self._host) for c in found):
            self._elsewhere += ", which is none of its hosts"
        self._times += 1
        return self._elsewhere


class Standby:
    """Waits for the lease, and answers requests meanwhile.

    Args:
        watch: Watches the lease.
        host_check: Whether this is the host to act on; None: any is.
        published: The configuration, without a cycle.
        log: For people.

    Attributes:
        host_check: As it was given.
        took: How the last lease came to be taken.
    """

    def __init__(
        self,
        watch: LeaseWatch,
        host_check: ControllerHostCheck | None,
        published: PublishedState,
        log: FilteringBoundLogger,
    ) -> None:
        self._watch = watch
        self.host_check = host_check
        self._published = published
        self._audit = AuditLog(published.config.paths.audit_log)
        self._log = log
        self.took = ""
        self._elsewhere = ""
        self._trouble = ""
        self._logged = ""

    def wait(self) -> Lease | None:
        """The lease, as soon as it may be taken; None if a signal ends the daemon before that.

        Must be called from the main thread.
        """
        self._logged, lease = "", None
        alarm = Wakeup()
        try:
            with alarm.signals():
                while lease is None and not _stopped(alarm):
                    lease = self._try()
                    if lease is None:
                        self._say()
                        notify("READY=1")
                        alarm.sleep(self._watch.every_s)
                    if alarm.hangup:
                        alarm.hangup = False
                        self._log.info("the configuration is read again when this daemon acts")
        finally:
            alarm.close()
        if not _stopped(alarm):
            return lease
        if lease is not None:
            lease.release()
        notify("STOPPING=1", "STATUS=stopping")
        self._log.info("stopping", signal=alarm.stop)
        return None

    @property
    def doing(self) -> str:
        """State for ``dlctl status``, there ``doing``."""
        seen = self._watch.seen
        if self._trouble:
            return f"stand-by: {self._trouble}"
        if self._elsewhere:
            return f"stand-by: {self._elsewhere}"
        if seen.is_free:
            return "stand-by: nobody acts"
        return (
            f"stand-by: {seen.host} acts (pid {seen.pid}, renewed {ago(self._watch.still_s)} ago)"
        )

    def answer(self, request: JsonObject, peer: Peer) -> JsonObject | Stream:
        """The answer to *request*: its own status, or its configuration.

        Raises:
            RequestError: The request is malformed, or for the daemon that acts.
        """
        parsed = parse(request)
        if not isinstance(parsed, StatusRequest | ConfigRequest):
            msg = f"{self.doing}; ask, or tell, the one that acts"
            raise RequestError(RefusalKind.NOT_READY, msg)
        context = ControlContext(
            board=Board(self._published),
            # Neither is written here. The daemon that acts may have paused: it is read each time.
            audit=self._audit,
            pause=PauseSwitch(self._published.config.paths.state_dir),
            reload=_refuse,
            wake=lambda: None,
        )
        answer = RequestHandlers(context)(request, peer)
        if isinstance(parsed, StatusRequest) and isinstance(answer, dict):
            seen = self._watch.seen
            answer |= {
                "doing": self.doing,
                "standby": {
                    "host": seen.host or None,
                    "pid": seen.pid or None,
                    "generation": seen.generation,
                    "still_s": round(self._watch.still_s, 1),
                },
            }
        return answer

    def _try(self) -> Lease | None:
        notify("WATCHDOG=1")
        try:
            lease, self._trouble = self._look(), ""
        except StoreError as err:
            self._trouble = str(err)
            return None
        return lease

    def _look(self) -> Lease | None:
        may = self._watch.look()
        self._elsewhere = self.host_check.elsewhere() if may and self.host_check is not None else ""
        if not may or self._elsewhere:
            return None
        before = self._watch.seen
        lease = self._watch.take()
        if lease is None:
            return None
        self.took = "nobody held the lease"
        if not before.is_free:
            silent_s = round(self._watch.still_s, 1)
            self.took = f"{before} was silent for {silent_s:g} s"
            self._log.warning("takes over", of=str(before), silent_s=silent_s)
        return lease

    def _say(self) -> None:
        """Say what it waits for where that has changed; the service manager hears each time."""
        notify(f"STATUS={self.doing}")
        what = self._trouble or self._elsewhere or str(self._watch.seen)
        if what != self._logged:
            self._logged = what
            self._log.info("stands by", because=self.doing.removeprefix("stand-by: "))


def _stopped(alarm: Wakeup) -> bool:
    return bool(alarm.stop)


def _refuse(_: str) -> Reloaded:
    return Reloaded(at_s=time.time(), ok=False, message="this dlschedd stands by")
