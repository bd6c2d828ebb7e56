"""The daemon while another one acts: it watches the lease, answers, and takes over when it may.

It asks Slurm for nothing (but who its controller is, see `Beside`), writes nothing to the state
directory, and holds nothing of the ledger in memory: whoever takes over begins like a daemon that
was started anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from slurm_dl.daemon.audit_log import AuditLog
from slurm_dl.daemon.control.context import ControlContext
from slurm_dl.daemon.control.request_handlers import RequestHandlers
from slurm_dl.daemon.control.requests import ConfigRequest, StatusRequest, parse
from slurm_dl.daemon.control.socket_server import Answer, Peer, RequestError
from slurm_dl.daemon.control.wire_format import RefusalKind
from slurm_dl.daemon.pause import PauseSwitch
from slurm_dl.daemon.preconditions import WithdrawnError
from slurm_dl.daemon.published_state import Board, Reloaded
from slurm_dl.daemon.systemd_notify import notify
from slurm_dl.daemon.takeover.lease import Lease, LeaseWatch
from slurm_dl.daemon.wakeup import Wakeup
from slurm_dl.json_types import JsonObject
from slurm_dl.ledger.sqlite.store import StoreError
from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.controller_status import ControllerHost, acting, controllers, same_host
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import ago, safe

SURE_AFTER = 2
"""A daemon gives its lease up when slurmctld was found elsewhere so many times in a row: one ping
that is not answered in time must not move the daemon."""


class Beside:
    """Lets a daemon act only on the host of the acting slurmctld. It is a `Precondition`.

    Args:
        ask: Gives the controllers; see `controllers`.
        host: This host.
        every_s: How often to ask at most, seconds.
        clock: Seconds that only go forward.
    """

    def __init__(
        self,
        ask: Callable[[], tuple[ControllerHost, ...]],
        *,
        host: str,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._host = host
        self._every_s = every_s
        self._clock = clock
        self._asked_s = -every_s
        self._elsewhere = ""
        self._times = 0

    @classmethod
    def of(cls, slurm: Slurm, *, host: str, poll_s: float) -> Beside:
        """One that asks *slurm*, twice in each poll."""
        return cls(lambda: controllers(slurm), host=host, every_s=poll_s / 2)

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
        """Where slurmctld acts, in words; empty if here, or if nobody answers."""
        if self._clock() - self._asked_s < self._every_s:
            return self._elsewhere
        try:
            found = self._ask()
        except ClusterError:
            # None answers: then nothing can be done from anywhere.
            self._asked_s = self._clock()
            return self._elsewhere
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
    """Waits for the lease; one thread waits, others may ask what for.

    Args:
        watch: Watches it.
        beside: Who says whether this is the host to act on; None: any is.
        host: This host.
        pid: This process.
        stall_s: See `Lease`.
        log: For people.

    Attributes:
        took: How the last lease came to be taken.
    """

    def __init__(
        self,
        watch: LeaseWatch,
        beside: Beside | None,
        *,
        host: str,
        pid: int,
        stall_s: float,
        log: FilteringBoundLogger,
    ) -> None:
        self._watch = watch
        self._beside = beside
        self._host = host
        self._pid = pid
        self._stall_s = stall_s
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
        """What it does, as `doing` of a daemon that acts."""
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

    @property
    def acts(self) -> JsonObject:
        """Who acts, for programs."""
        seen = self._watch.seen
        return {
            "host": seen.host or None,
            "pid": seen.pid or None,
            "generation": seen.generation,
            "still_s": round(self._watch.still_s, 1),
        }

    def _try(self) -> Lease | None:
        """Look once; the lease if it could be taken."""
        notify("WATCHDOG=1")
        try:
            lease, self._trouble = self._look(), ""
        except StoreError as err:
            self._trouble = str(err)
            return None
        return lease

    def _look(self) -> Lease | None:
        may = self._watch.look()
        self._elsewhere = self._beside.elsewhere() if may and self._beside is not None else ""
        if not may or self._elsewhere:
            return None
        before = self._watch.seen
        lease = self._watch.take(host=self._host, pid=self._pid, stall_s=self._stall_s)
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


class Desk:
    """Who answers on the control socket: the daemon while it acts, `StandbyAnswers` otherwise."""

    def __init__(self, first: Answer) -> None:
        self.now = first

    def __call__(self, request: JsonObject, peer: Peer) -> JsonObject:
        """The answer of whoever is there now.

        Raises:
            RequestError: There is none.
        """
        return self.now(request, peer)


class StandbyAnswers:
    """What a daemon that stands by answers: how it is, and its configuration.

    Args:
        standby: Says what it does.
        board: With the configuration, and no cycle.
    """

    def __init__(self, standby: Standby, board: Board) -> None:
        self._standby = standby
        self._board = board
        self._audit = AuditLog(board.current.config.paths.audit_log)

    def __call__(self, request: JsonObject, peer: Peer) -> JsonObject:
        """The answer to *request*.

        Raises:
            RequestError: Malformed, or nothing that it could know or do.
        """
        parsed = parse(request)
        if not isinstance(parsed, StatusRequest | ConfigRequest):
            msg = f"{self._standby.doing}; ask, or tell, the one that acts"
            raise RequestError(RefusalKind.NOT_READY, msg)
        context = ControlContext(
            board=self._board,
            # Neither is written here. The pause is read anew: the one that acts may have begun it.
            audit=self._audit,
            pause=PauseSwitch(self._board.current.config.paths.state_dir),
            reload=_refuse,
            wake=lambda: None,
        )
        answer = RequestHandlers(context)(request, peer)
        if isinstance(parsed, StatusRequest):
            answer |= {"doing": self._standby.doing, "standby": self._standby.acts}
        return answer


def _stopped(alarm: Wakeup) -> bool:
    """Whether a signal has come by now."""
    return bool(alarm.stop)


def _refuse(_: str) -> Reloaded:
    return Reloaded(at_s=time.time(), ok=False, message="this dlschedd stands by")
