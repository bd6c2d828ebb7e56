"""The right to act: of a daemon by itself, and of each of several that share a state directory.

A daemon by itself has it from its start to its end. Where several share a state directory
(``takeover``) a daemon has it while it holds the lease.
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

from slurm_dl.client_config import SOCKET_NAME
from slurm_dl.config import Config
from slurm_dl.config.daemon_section import split_address
from slurm_dl.daemon.assembly import LEDGER_FILE, slurm_of
from slurm_dl.daemon.audit_log import DAEMON, AuditLine, AuditLog
from slurm_dl.daemon.components import Loaded
from slurm_dl.daemon.control.munge import Munge
from slurm_dl.daemon.control.reception import Answer, Reception
from slurm_dl.daemon.control.socket_server import ControlServer, TcpServer
from slurm_dl.daemon.preconditions import Precondition, first_refusal
from slurm_dl.daemon.published_state import PublishedState
from slurm_dl.daemon.rate_limits import LONGEST_BACKOFF_S
from slurm_dl.daemon.takeover.lease import Lease, LeaseWatch, LockedError, held, shared
from slurm_dl.daemon.takeover.standby import ControllerHostCheck, Standby
from slurm_dl.files import why_not_trusted
from slurm_dl.ledger.sqlite.lease_row import LeaseRow
from slurm_dl.model.errors import ConfigError
from slurm_dl.slurm.controller import controllers
from slurm_dl.text import user_name

_COMMANDS = 10
"""More Slurm commands than a cycle needs between two actions, each cut short by timeout_s."""


@dataclass(kw_only=True)
class Leadership:
    """The right of a daemon to act, while it lasts.

    Attributes:
        answering: Serves a handler of requests on the control socket for as long as it lasts.
        on_lost: Called from another thread when another daemon has the lease.
    """

    answering: Callable[[Answer], AbstractContextManager[Reception]]
    preconditions: tuple[Precondition, ...] = ()  # What must allow the daemon to act
    lease: Lease | None = None  # Where several daemons share the state directory, the lease on it
    why: str = ""  # How it came to it, for the audit log; empty: by being started
    on_lost: Callable[[], None] = field(default=lambda: None)

    @property
    def generation(self) -> int | None:
        """Generation to write the ledger with; None: no other daemon writes it."""
        return None if self.lease is None else self.lease.generation

    def begins(self, audit: AuditLog) -> None:
        """Write to the audit log why this daemon acts, where another one may have."""
        if self.why:
            line = AuditLine(
                actor=DAEMON,
                action="take_over",
                reason=self.why,
                details={"host": socket.gethostname(), "generation": self.generation},
            )
            audit.write(line)

    def ends(self, audit: AuditLog, why: str) -> None:
        """Write to the audit log why this daemon stops acting, unless another one acts already."""
        if self.lease is None or (not self.lease.lost and self.lease.left_s() > 0):
            audit.write(AuditLine(actor=DAEMON, action="stand_by", reason=why))

    def sleep(self, for_s: float) -> None:
        """Sleep before the daemon has begun.

        Raises:
            WithdrawnError: It may not act any more.
        """
        time.sleep(for_s)
        first_refusal(self.preconditions)


@contextlib.contextmanager
def sole_leadership(config: Config, log: FilteringBoundLogger) -> Iterator[Leadership]:
    """The right of a daemon that shares its state directory with no other.

    Raises:
        LockedError: Another daemon is there.
        ConfigError: A directory cannot be used.
    """
    _check_state_directory(config.paths.state_dir)
    with held(config.paths.state_dir):
        yield Leadership(answering=lambda answer: _listening(config, answer, log))


class Contender:
    """A daemon among those that share its state directory; see `contending`."""

    def __init__(self, standby: Standby, reception: Reception, log: FilteringBoundLogger) -> None:
        self._standby = standby
        self._reception = reception
        self._log = log

    def wait(self) -> Lease | None:
        """The lease, once it is this daemon's turn; None if a signal came before that."""
        return self._standby.wait()

    @contextlib.contextmanager
    def leadership(self, lease: Lease) -> Iterator[Leadership]:
        """The right to act by *lease*, which is released at the end."""
        check = self._standby.host_check
        leadership = Leadership(
            answering=self._answering,
            # The lease comes last: it looks at the clock when all else has taken its time.
            preconditions=(lease,) if check is None else (check, lease),
            lease=lease,
            why=self._standby.took,
        )
        with lease.kept(lambda: leadership.on_lost(), self._log):  # noqa: PLW0108 - as it is then
            yield leadership

    @contextlib.contextmanager
    def _answering(self, answer: Answer) -> Iterator[Reception]:
        self._reception.answer = answer
        try:
            yield self._reception
        finally:
            self._reception.answer = self._standby.answer


@contextlib.contextmanager
def contending(loaded: Loaded, log: FilteringBoundLogger, *, live: bool) -> Iterator[Contender]:
    """Share the state directory with other daemons; the control socket answers from now on.

    Args:
        live: Whether the daemon will act when its turn comes.

    Raises:
        LockedError: A daemon that shares with no other is there, or one with the same run_dir.
        ConfigError: A directory cannot be used.
        StoreError: The ledger cannot be opened.
    """
    config = loaded.config
    paths = config.paths
    _check_state_directory(paths.state_dir)
    with (
        shared(paths.state_dir),
        _alone_in(paths.run_dir),
        contextlib.closing(LeaseRow(paths.state_dir / LEDGER_FILE)) as row,
    ):
        slurm, check = slurm_of(config), None
        if config.takeover.follow_slurmctld:
            check = ControllerHostCheck(
                lambda: controllers(slurm), every_s=config.daemon.poll_s / 2
            )
        published = PublishedState(
            config=config, config_rows=loaded.rows, started_s=time.time(), live=live
        )
        standby = Standby(_watch(row, config), check, published, log)
        with _listening(config, standby.answer, log) as reception:
            yield Contender(standby, reception, log)


@contextlib.contextmanager
def leadership_for_once(config: Config, log: FilteringBoundLogger) -> Iterator[Leadership]:
    """The right to act for ``--once``: no other daemon may act meanwhile.

    Raises:
        LockedError: Another daemon is there.
    """
    with sole_leadership(config, log) as leadership:
        if not config.takeover.enabled:
            yield leadership
            return
        with contextlib.closing(LeaseRow(config.paths.state_dir / LEDGER_FILE)) as row:
            watch = _watch(row, config)
            while not watch.look() or (lease := watch.take()) is None:
                if watch.moves:
                    msg = f"{watch.seen} acts: stop it, or the daemons of all hosts, first"
                    raise LockedError(msg)
                time.sleep(watch.every_s)
            leadership.preconditions, leadership.lease = (lease,), lease
            with lease.kept(lambda: None, log):
                yield leadership


def _watch(row: LeaseRow, config: Config) -> LeaseWatch:
    section = config.daemon
    # A loop that has asked for no permit for longer than this hangs.
    rest_s = max(section.poll_s, section.slow_poll_s, LONGEST_BACKOFF_S)
    stall_s = rest_s + _COMMANDS * config.cluster.timeout_s
    return LeaseWatch(row, lease_s=config.takeover.lease_s, stall_s=stall_s)


@contextlib.contextmanager
def _listening(config: Config, answer: Answer, log: FilteringBoundLogger) -> Iterator[Reception]:
    """Answer on the control socket and, where it is set, over TCP."""
    reception = Reception(
        admins=[str(a) for a in config.control.admins],
        answer=answer,
        on_bug=lambda err: log.error("bug in an answer", exc_info=err),
    )
    path, mode = config.paths.run_dir / SOCKET_NAME, int(config.control.socket_mode, 8)
    with contextlib.ExitStack() as servers:
        unix = ControlServer(path, mode=mode, reception=reception)
        servers.enter_context(contextlib.closing(unix))
        if config.control.listen:
            munge = Munge(str(config.control.munge_socket))
            tcp = TcpServer(split_address(config.control.listen), munge=munge, reception=reception)
            servers.enter_context(contextlib.closing(tcp))
        yield reception


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
    with held(run_dir, key="paths.run_dir"):
        yield


def _check_state_directory(directory: Path) -> None:
    """Refuse a state directory in which others than root and we could put files.

    Root does not use that of another account either: what it left there that account could not
    write to.

    Raises:
        ConfigError: One line, which says what to do.
    """
    us = os.geteuid()
    try:
        owner = directory.stat().st_uid
    except OSError:
        owner = us  # What is wrong is said where it is used.
    if owner not in {0, us}:
        # sudo takes a number after this sign.
        name, own = user_name(owner, "#"), user_name(us, "#")
        advice = f"run it as that account (sudo -u {name} dlschedd ...), or chown it"
        msg = f"paths.state_dir: {directory}: belongs to {name}, not to {own}: {advice}"
        raise ConfigError(msg)
    try:
        why = why_not_trusted(directory, {us})
    except OSError as err:
        why = f"{err.filename}: {err.strerror}"
    if why:
        msg = f"paths.state_dir: {why}"
        raise ConfigError(msg)
