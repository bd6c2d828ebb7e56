"""The facts that the checks ask for, the registry of checks, and the result of one.

Facts come from files, a handful of Slurm commands and the daemon. A fact is read when a check first
asks for it. One that cannot be read raises a `SlurmDlError` with the reason, each time.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from slurm_dl.client_config import SOCKET_ENV, SOCKET_NAME
from slurm_dl.config import Config, load_with_origins
from slurm_dl.daemon import assembly
from slurm_dl.daemon.control.client import (
    CONFIG_ENV,
    DEFAULT_CONFIG,
    DEFAULT_RUN_DIR,
    Client,
)
from slurm_dl.doctor.controller_config import CannotTellError, ControllerConfig, PartitionRecord
from slurm_dl.json_types import JsonObject
from slurm_dl.model.errors import ConfigError, SlurmDlError
from slurm_dl.slurm.controller import config_values, partition_values
from slurm_dl.slurm.read.grammar import words_of
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import user_name

SERVICE_ACCOUNT = "slurm_dl"  # Of etc/sysusers.d and etc/systemd
_DAEMON_TIMEOUT_S = 10.0
_AS_OF = re.compile(r"Configuration data as of ([0-9]{1,12})\s")

T = TypeVar("T")


class fact(cached_property[T]):  # noqa: N801 - a decorator, as cached_property is
    """A cached property whose `SlurmDlError` is kept as well: no command is run twice."""

    def __get__(self, instance: Site, owner: type[Any] | None = None) -> T:  # type: ignore[override]
        """The value; cached_property puts it where the next look finds it first."""
        name = str(self.attrname)
        if name in instance.failed:
            raise instance.failed[name]
        try:
            return super().__get__(instance, owner)
        except SlurmDlError as err:
            instance.failed[name] = err
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account of this host."""

    name: str
    uid: int
    gids: frozenset[int]  # All its groups
    why: str  # How we came to think that dlschedd runs, or will run, as this one


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerReply:
    """What slurmctld answered, and our clock then.

    Attributes:
        as_of_s: The controller's clock when it answered, epoch seconds; None if it does not say.
    """

    controller: ControllerConfig
    as_of_s: float | None
    before_s: float  # Epoch seconds before the question
    after_s: float  # After the answer


class Site:
    """One cluster, this host, and the configuration and daemon that are meant.

    Attributes:
        in_force: The configuration of the daemon that asks; None: that of the file counts.
        failed: The facts that could not be read, each with its error.
    """

    def __init__(
        self,
        *,
        config: Path | None = None,
        settings: Sequence[str] = (),
        socket: Path | None = None,
        account: str | None = None,
        in_force: Config | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Read nothing yet.

        Args:
            account: Whose rights are meant; None: found out.

        Raises:
            ConfigError: There is no such account.
        """
        self.config_path = config or Path(environ.get(CONFIG_ENV) or DEFAULT_CONFIG)
        self.settings = settings
        self.in_force = in_force
        self.environ = environ
        self._socket = socket
        if config is None and socket is None and environ.get(SOCKET_ENV):
            self._socket = Path(environ[SOCKET_ENV])
        self.failed: dict[str, SlurmDlError] = {}
        if account is not None:
            try:
                self.account = _account_of(pwd.getpwnam(account), "--account")
            except KeyError:
                msg = f"--account: there is no account {account[:80]!r} on this host"
                raise ConfigError(msg) from None

    @fact
    def file(self) -> Config | tuple[str, ...]:
        """The configuration, or its mistakes, a line each."""
        path = self.config_path
        try:
            with path.open("rb"):
                pass
        except PermissionError:
            msg = f"{path} may not be read by {user_name(os.geteuid(), 'uid ')}"
            raise CannotTellError(msg) from None
        except (OSError, ValueError):
            pass  # What is wrong with it is said below.
        try:
            # As dlschedd reads it: it trusts no file that others may write to.
            config, _ = load_with_origins(
                path, overrides=self.settings, require_private=True, environ=self.environ
            )
        except ConfigError as err:
            return tuple(str(err).splitlines()) or ("unreadable",)
        return config

    @property
    def config(self) -> Config:
        """The configuration."""
        if self.in_force is not None:
            return self.in_force
        if isinstance(self.file, tuple):
            msg = "the configuration has mistakes: no valid configuration is known"
            raise CannotTellError(msg)
        return self.file

    @property
    def known_config(self) -> Config | None:
        """The configuration; None if it is not known, for checks that can do without."""
        with contextlib.suppress(CannotTellError):
            return self.config
        return None

    @property
    def socket(self) -> Path:
        """Where the daemon listens."""
        config = self.known_config
        return self._socket or (config.paths.run_dir if config else DEFAULT_RUN_DIR) / SOCKET_NAME

    @fact
    def status(self) -> JsonObject:
        """The running daemon's answer."""
        return Client(self.socket, _DAEMON_TIMEOUT_S).ask("status")

    @fact
    def slurm(self) -> Slurm:
        """Slurm's tools."""
        return assembly.slurm_of(self.known_config) if self.known_config else Slurm()

    @fact
    def reply(self) -> ControllerReply:
        """The controller's answer."""
        slurm, before_s = self.slurm, time.time()
        text = slurm.run("scontrol", "show", "config")
        found = _AS_OF.match(text)
        return ControllerReply(
            controller=ControllerConfig(config_values(text)),
            as_of_s=float(found[1]) if found else None,
            before_s=before_s,
            after_s=time.time(),
        )

    @property
    def controller(self) -> ControllerConfig:
        """The controller's configuration."""
        try:
            return self.reply.controller
        except SlurmDlError:
            # Why is told once, where that is asked.
            msg = "Slurm was not reached"
            raise CannotTellError(msg) from None

    def ask(self, tool: str, *args: str) -> str:
        """What a command prints; it is not run where slurmctld has not answered."""
        _ = self.controller
        return self.slurm.run(tool, *args)

    @fact
    def partitions(self) -> Mapping[str, PartitionRecord]:
        """All partitions, by their names."""
        shown = partition_values(self.ask("scontrol", "--all", "show", "partition", "--oneliner"))
        return {name: PartitionRecord(name, values) for name, values in shown.items()}

    @property
    def managed(self) -> tuple[PartitionRecord, ...]:
        """The managed partitions that there are; at least one."""
        there = self.partitions
        found = tuple(there[n] for n in self.config.manage.partitions if n in there)
        if not found:
            msg = "none of the managed partitions exists"
            raise CannotTellError(msg)
        return found

    @fact
    def nodes(self) -> Mapping[str, Mapping[str, str]]:
        """What Slurm says of each node of managed partitions, by its name; see `words_of`."""
        managed = {partition.name for partition in self.managed}
        shown = words_of(self.ask("scontrol", "show", "node", "--all", "--oneliner"))
        return {
            n: of for n, of in shown.items() if managed & {*of.get("Partitions", "").split(",")}
        }

    @fact
    def admin_level(self) -> str:
        """AdminLevel of the account in slurmdbd; empty: it is no user of it."""
        shown = self.ask("sacctmgr", "-nP", "show", "user", "format=User,AdminLevel")
        levels = dict(line.split("|")[:2] for line in shown.split("\n") if line.count("|") == 1)
        name = self.account.name
        if name not in levels and os.geteuid() not in {0, self.account.uid}:
            # PrivateData=users hides others; root and the account itself see it.
            msg = f"slurmdbd shows {user_name(os.geteuid(), 'uid ')} no user {name}"
            raise CannotTellError(msg)
        return levels.get(name, "")

    @fact
    def account(self) -> Account:
        """Who dlschedd runs as."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            owner = self.socket.lstat().st_uid
            return _account_of(pwd.getpwuid(owner), "owner of the running daemon")
        with contextlib.suppress(KeyError):
            return _account_of(pwd.getpwnam(SERVICE_ACCOUNT), "the service's account")
        if self.known_config is not None:
            with contextlib.suppress(OSError, ValueError, KeyError):
                owner = self.known_config.paths.state_dir.stat().st_uid
                return _account_of(pwd.getpwuid(owner), "owner of paths.state_dir")
        try:
            return _account_of(pwd.getpwuid(os.geteuid()), "you")
        except KeyError:
            msg = f"uid {os.geteuid()} has no account on this host"
            raise CannotTellError(msg) from None


def _account_of(entry: pwd.struct_passwd, why: str) -> Account:
    gids = frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(name=entry.pw_name, uid=entry.pw_uid, gids=gids, why=why)


class Severity(StrEnum):
    """How things are."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    SKIPPED = "skipped"  # The check could not be made


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check."""

    level: Severity
    found: str  # What was found; in one line, or why nothing was
    advice: str = ""  # What to do about it; empty if there is nothing to do


ok = partial(CheckResult, Severity.OK)
warning = partial(CheckResult, Severity.WARNING)
"""It works, and costs something or is not what was meant."""
error = partial(CheckResult, Severity.ERROR)  # It does not work
skipped = partial(CheckResult, Severity.SKIPPED)

CheckFunction = Callable[[Site], CheckResult]

REGISTERED: defaultdict[str, dict[str, CheckFunction]] = defaultdict(dict)
"""The checks of each module by their names, which are stable for programs, in their order.

A check may raise a `SlurmDlError` or an `OSError`: it could not be made.
"""


def check(name: str) -> Callable[[CheckFunction], CheckFunction]:
    """Register the decorated function as the next check of its module."""

    def register(run: CheckFunction) -> CheckFunction:
        REGISTERED[run.__module__][name] = run
        return run

    return register
