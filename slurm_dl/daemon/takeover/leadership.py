"""One turn of a daemon at acting: what it is given for that, and how it comes and goes.

A daemon by itself has one turn, from its start to its end. Where several share a state directory
(``takeover``) each has a turn whenever it gets the lease.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from slurm_dl.config import Config
from slurm_dl.daemon import state_directory
from slurm_dl.daemon.assembly import LEDGER_FILE, slurm_of
from slurm_dl.daemon.audit_log import DAEMON, AuditLine, AuditLog
from slurm_dl.daemon.components import Loaded
from slurm_dl.daemon.control.socket_server import Answer, ControlServer
from slurm_dl.daemon.control.wire_format import SOCKET_NAME
from slurm_dl.daemon.preconditions import Precondition, first_refusal
from slurm_dl.daemon.published_state import Board, PublishedState
from slurm_dl.daemon.rate_limits import LONGEST_BACKOFF_S
from slurm_dl.daemon.takeover import lock
from slurm_dl.daemon.takeover.lease import Lease, LeaseWatch, Renewing
from slurm_dl.daemon.takeover.lock import LockedError
from slurm_dl.daemon.takeover.standby import Beside, Desk, Standby, StandbyAnswers
from slurm_dl.ledger.sqlite.lease_row import LeaseRow
from slurm_dl.ledger.sqlite.store import StoreError

_COMMANDS = 10
"""More Slurm commands than a cycle needs between two actions, each cut short by timeout_s."""


def stall_s(config: Config) -> float:
    """A loop that has asked for no permit for so long hangs, seconds."""
    section = config.daemon
    rest_s = max(section.poll_s, section.slow_poll_s, LONGEST_BACKOFF_S)
    return rest_s + _COMMANDS * config.cluster.timeout_s


def listen(config: Config, answer: Answer, log: FilteringBoundLogger) -> ControlServer:
    """The control socket.

    Raises:
        ConfigError: It cannot be made.
    """
    return ControlServer(
        config.paths.run_dir / SOCKET_NAME,
        mode=int(config.control.socket_mode, 8),
        admins=[str(a) for a in config.control.admins],
        answer=answer,
        on_bug=lambda err: log.error("bug in an answer", exc_info=err),
    )


@dataclass(kw_only=True)
class Leadership:
    """One turn.

    Attributes:
        answering: Puts an answer on the control socket for as long as it lasts.
        preconditions: What must allow the daemon to act.
        generation: What it writes the ledger with; None: nobody asks.
        why: How it came to it, for the audit log; empty: by being started.
        holds: Whether nobody else has begun yet.
        on_lost: Called from another thread when somebody else has begun.
    """

    answering: Callable[[Answer], AbstractContextManager[ControlServer]]
    preconditions: tuple[Precondition, ...] = ()
    generation: int | None = None
    why: str = ""
    holds: Callable[[], bool] = field(default=lambda: True)
    on_lost: Callable[[], None] = field(default=lambda: None)

    def begins(self, audit: AuditLog) -> None:
        """Write down that it begins, where somebody may ask why."""
        if self.why:
            line = AuditLine(
                actor=DAEMON,
                action="take_over",
                reason=self.why,
                details={"host": socket.gethostname(), "generation": self.generation},
            )
            audit.write(line)

    def ends(self, audit: AuditLog, why: str) -> None:
        """Write down that it ends of its own will; nothing where somebody else writes already."""
        if self.holds():
            audit.write(AuditLine(actor=DAEMON, action="stand_by", reason=why))

    def sleep(self, for_s: float) -> None:
        """Sleep before it has begun.

        Raises:
            WithdrawnError: It is over already.
        """
        time.sleep(for_s)
        first_refusal(self.preconditions)


@contextlib.contextmanager
def sole_leadership(config: Config, log: FilteringBoundLogger) -> Iterator[Leadership]:
    """The turn of a daemon that shares its state directory with nobody.

    Raises:
        LockedError: Another daemon is there.
        ConfigError: A directory cannot be used.
    """

    @contextlib.contextmanager
    def answering(answer: Answer) -> Iterator[ControlServer]:
        control = listen(config, answer, log)
        try:
            yield control
        finally:
            control.close()

    state_directory.check(config.paths.state_dir)
    with lock.held(config.paths.state_dir):
        yield Leadership(answering=answering)


class StateDirectory:
    """A daemon's place among those that share its state directory; see `shared_place`.

    Args:
        standby: Waits for its turns.
        desk: Who answers on the socket.
        control: The socket.
        beside: See `Beside`; None: it may act on any host.
        log: For people.
    """

    def __init__(
        self,
        *,
        standby: Standby,
        desk: Desk,
        control: ControlServer,
        beside: Beside | None,
        log: FilteringBoundLogger,
    ) -> None:
        self._standby = standby
        self._desk = desk
        self._control = control
        self._beside = beside
        self._log = log

    def wait(self) -> Lease | None:
        """The lease for the next turn; None if a signal came before that."""
        return self._standby.wait()

    @contextlib.contextmanager
    def leadership(self, lease: Lease) -> Iterator[Leadership]:
        """The turn that *lease* is for; at its end the next one may begin."""

        @contextlib.contextmanager
        def answering(answer: Answer) -> Iterator[ControlServer]:
            before, self._desk.now = self._desk.now, answer
            try:
                yield self._control
            finally:
                self._desk.now = before

        # The lease comes last: it looks at the clock when all else has taken its time.
        preconditions = (lease,) if self._beside is None else (self._beside, lease)
        leadership = Leadership(
            answering=answering,
            preconditions=preconditions,
            generation=lease.generation,
            why=self._standby.took,
            holds=lambda: not lease.lost and lease.left_s() > 0,
        )
        renewing = Renewing(
            lease,
            on_lost=lambda: leadership.on_lost(),  # noqa: PLW0108 - as it is then
            warn=self._log.warning,
        )
        try:
            yield leadership
        finally:
            renewing.stop()
            _release(lease, self._log)


@contextlib.contextmanager
def shared_place(
    loaded: Loaded, log: FilteringBoundLogger, *, live: bool
) -> Iterator[StateDirectory]:
    """A place beside other daemons, with a control socket that answers from now on.

    Args:
        live: Whether it will act when its turn comes.

    Raises:
        LockedError: A daemon that shares with nobody is there, or one with the same run_dir.
        ConfigError: A directory cannot be used.
        StoreError: The ledger cannot be opened.
    """
    config, host = loaded.config, socket.gethostname()
    path = config.paths.state_dir / LEDGER_FILE
    state_directory.check(config.paths.state_dir)
    with (
        lock.shared(config.paths.state_dir),
        _alone_in(config.paths.run_dir),
        contextlib.closing(LeaseRow(path)) as row,
    ):
        beside = None
        if config.takeover.follow_slurmctld:
            beside = Beside.of(slurm_of(config), host=host, poll_s=config.daemon.poll_s)
        standby = Standby(
            LeaseWatch(row, lease_s=config.takeover.lease_s),
            beside,
            host=host,
            pid=os.getpid(),
            stall_s=stall_s(config),
            log=log,
        )
        published = PublishedState(
            config=config, config_rows=loaded.rows, started_s=time.time(), live=live
        )
        desk = Desk(StandbyAnswers(standby, Board(published)))
        control = listen(config, desk, log)
        try:
            yield StateDirectory(
                standby=standby, desk=desk, control=control, beside=beside, log=log
            )
        finally:
            control.close()


@contextlib.contextmanager
def leadership_for_once(config: Config, log: FilteringBoundLogger) -> Iterator[Leadership]:
    """A turn for ``--once``: nobody else may act meanwhile.

    Raises:
        LockedError: Another daemon is there.
    """
    with sole_leadership(config, log) as leadership:
        if not config.takeover.enabled:
            yield leadership
            return
        with contextlib.closing(LeaseRow(config.paths.state_dir / LEDGER_FILE)) as row:
            watch = LeaseWatch(row, lease_s=config.takeover.lease_s)
            lease = None
            while lease is None:
                if watch.look():
                    lease = watch.take(
                        host=socket.gethostname(), pid=os.getpid(), stall_s=stall_s(config)
                    )
                elif watch.moves:
                    msg = f"{watch.seen} acts: stop it, or the daemons of all hosts, first"
                    raise LockedError(msg)
                else:
                    time.sleep(watch.every_s)
            renewing = Renewing(lease, on_lost=lambda: None, warn=log.warning)
            leadership.preconditions, leadership.generation = (lease,), lease.generation
            try:
                yield leadership
            finally:
                renewing.stop()
                _release(lease, log)


def _release(lease: Lease, log: FilteringBoundLogger) -> None:
    try:
        lease.release()
    except StoreError as err:
        log.warning("the lease could not be given back: the next daemon waits", error=str(err))


@contextlib.contextmanager
def _alone_in(run_dir: Path) -> Iterator[None]:
    """Keep a second daemon of this host from the socket, as the state directory's lock does not."""
    if not run_dir.is_dir():
        try:
            run_dir.mkdir(parents=True)
            # Users reach the socket in it, whatever our umask.
            run_dir.chmod(0o755)
        except OSError:
            pass  # The lock cannot be made either, and says why.
    with lock.held(run_dir, key="paths.run_dir"):
        yield
