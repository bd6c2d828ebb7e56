"""The commands' end of the control socket: ask the daemon one thing, get its answer or an error.

Commands never ask slurmctld. When the daemon does not answer they say so, and what to do.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_dl.backoff import Backoff
from slurm_dl.client_config import (
    SERVER_ENV,
    SOCKET_ENV,
    SOCKET_NAME,
    ClientConfig,
    read_client_config,
)
from slurm_dl.daemon.control.wire_format import RefusalKind
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.model.errors import ElsewhereError, SlurmDlError
from slurm_dl.text import ago, safe

if TYPE_CHECKING:
    from slurm_dl.daemon.control.tcp_client import TcpServers

DEFAULT_CONFIG = Path("/etc/slurm_dl/slurm_dl.yaml")
DEFAULT_RUN_DIR = Path("/run/slurm_dl")
CONFIG_ENV = "SLURM_DL_CONFIG"
BY_SSH = "ssh:"  # In place of ``HOST:PORT``: the command itself runs on that host
BY_SSH_ENV = "SLURM_DL_BY_SSH"
"""Set there: its client.yaml may be the same, and the daemon is on this host."""

_BUSY_TRIES = 5
_BUSY = Backoff(0.2, 2.0, 3.2)


class DaemonError(SlurmDlError):
    """The daemon did not answer, or refused; commands end with exit status 1."""


def daemon_at(
    socket_option: Path | None = None, config: ClientConfig | None = None
) -> Path | TcpServers:
    """The daemon to ask: option, environment, client.yaml, the usual socket.

    Args:
        config: The client.yaml, if it has been read.

    Raises:
        ElsewhereError: Users of this host ask it by ssh.
    """
    if socket_option is not None:
        return socket_option
    config = config or read_client_config()
    is_by_ssh = bool(config.server) and config.server[0].startswith(BY_SSH)
    if not config.server or (is_by_ssh and BY_SSH_ENV in os.environ):
        return Path(config.socket)
    if is_by_ssh:
        raise ElsewhereError(config.server[0].removeprefix(BY_SSH))
    from slurm_dl.daemon.control.tcp_client import TcpServers  # noqa: PLC0415 - not on each host

    return TcpServers(
        config.server, munge_socket=config.munge_socket, daemon_user=config.daemon_user
    )


def admins_daemon(
    socket_option: Path | None = None, config_option: Path | None = None
) -> Path | TcpServers:
    """The daemon to ask, for commands of admins: a configuration that is named tells it, too.

    Raises:
        ConfigError: That configuration is wrong.
    """
    named = config_option or (Path(os.environ[CONFIG_ENV]) if CONFIG_ENV in os.environ else None)
    is_set = SOCKET_ENV in os.environ or SERVER_ENV in os.environ
    is_said = socket_option is not None or (config_option is None and is_set)
    if named is None or is_said:
        return daemon_at(socket_option)
    from slurm_dl.config import load  # noqa: PLC0415 - pydantic and YAML cost 0.1 s

    return load(named).paths.run_dir / SOCKET_NAME


def stale_note(answer: JsonObject) -> str:
    """That what *answer* shows is old, and why; empty if it is not. It is safe to print."""
    age_s = answer.get("age_s")
    if not answer.get("stale") or not isinstance(age_s, int | float):
        return ""
    error = answer.get("last_error")
    why = f"dlschedd is {answer.get('doing')} ({error})" if error else "the next look has not ended"
    return safe(f"as of {ago(age_s)} ago: {why}", 500)


class Client:
    """One question at a time, each over its own connection.

    Args:
        at: The daemon's socket, or the hosts where it may be; the first that can answer does.
        timeout_s: Longest wait for an answer.
    """

    def __init__(self, at: Path | TcpServers, timeout_s: float = 30.0) -> None:
        self._at = at
        self._timeout_s = timeout_s

    def ask(self, request: str, **fields: Json) -> JsonObject:
        """The result of *request*.

        Raises:
            DaemonError: Not running, no permission, no answer, or the request was refused.
        """
        until = time.monotonic() + self._timeout_s
        for attempt in range(1, _BUSY_TRIES + 1):
            answer = self._answer(self._line({"request": request, **fields}))
            pause_s = _BUSY.pause_s(attempt) * random.uniform(0.25, 1.0)  # noqa: S311 - no secret
            if answer.get("kind") != RefusalKind.BUSY or time.monotonic() + pause_s > until:
                break
            time.sleep(pause_s)
        return self._result(answer)

    @contextlib.contextmanager
    def stream(self, request: str) -> Iterator[tuple[BufferedReader, Callable[[], None]]]:
        """What the daemon sends after it has granted *request*, and what ends that.

        Raises:
            DaemonError: As in `ask`.
        """
        if not isinstance(self._at, Path):
            msg = f"{request}: only on the daemon's host"
            raise DaemonError(msg)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            first, more = self._sent(sock, {"request": request})
            with more:
                self._result(self._answer(first))
                sock.settimeout(None)
                yield more, partial(sock.shutdown, socket.SHUT_RDWR)

    def _result(self, answer: JsonObject) -> JsonObject:
        result = answer.get("result")
        if answer.get("ok") is True and isinstance(result, dict):
            return result
        raise DaemonError(str(answer.get("error") or f"{self._where}: answer not understood"))

    def _answer(self, raw: bytes) -> JsonObject:
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            msg = f"dlschedd closed {self._where} without an answer; see its log"
            raise DaemonError(msg)
        return answer

    @property
    def _where(self) -> str:
        return str(self._at) if isinstance(self._at, Path) else " and ".join(self._at.addresses)

    def _line(self, request: JsonObject) -> bytes:
        if isinstance(self._at, Path):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                return self._sent(sock, request)[0]
        raw, troubles, answer = json.dumps(request).encode("ascii"), [], b""
        for address in self._at.addresses:
            try:
                answer = self._at.ask(address, raw, self._timeout_s)
            except SlurmDlError as err:
                troubles.append(str(err))
                continue
            # A daemon that stands by has no answer, and another one may have.
            if self._answer(answer).get("kind") != RefusalKind.NOT_READY:
                return answer
        if not answer:
            raise DaemonError("; ".join(troubles))
        return answer

    def _sent(self, sock: socket.socket, request: JsonObject) -> tuple[bytes, BufferedReader]:
        """The first line of the answer, and what is to be read after it."""
        try:
            sock.settimeout(self._timeout_s)
            sock.connect(str(self._at))
            sock.sendall(json.dumps(request).encode("ascii") + b"\n")
            sock.shutdown(socket.SHUT_WR)
            stream = sock.makefile("rb")
            return stream.readline(), stream
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            msg = (
                f"dlschedd does not listen on {self._at}: start it (systemctl start dlschedd), "
                "or name its socket (--socket)"
            )
            raise DaemonError(msg) from None
        except PermissionError:
            msg = f"no permission to use {self._at}: ask the admin for it (control.socket_mode)"
            raise DaemonError(msg) from None
        except TimeoutError:
            msg = f"dlschedd did not answer on {self._at} within {self._timeout_s:g} s"
            raise DaemonError(msg) from None
        except OSError as err:
            msg = f"{self._at}: {err.strerror or err}"
            raise DaemonError(msg) from None
