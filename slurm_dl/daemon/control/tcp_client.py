"""A client's end of the control socket over TCP; see `socket_server`."""

from __future__ import annotations

import contextlib
import json
import pwd
import socket
import threading
from collections.abc import Iterator, Sequence

from slurm_dl.daemon.control.munge import ANSWER, REQUEST, Munge, MungeError, digest
from slurm_dl.daemon.control.wire_format import RefusalKind
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.text import safe

CONNECT_S = 5.0  # A host that does not answer within so many seconds is not there
_LONGEST_HELLO = 1024
_LONGEST_ANSWER = 1 << 26
REFUSED = b'"error"'


class TcpError(SlurmDlError):
    """The server did not answer, or what it answered is not the daemon's."""


class TcpServers:
    """The daemons of a cluster on their hosts; one of them acts.

    Args:
        addresses: ``HOST:PORT`` of each.
        munge_socket: Socket of munged; empty: the usual one.
        daemon_user: Whose answers are believed, as root's are.
    """

    def __init__(
        self, addresses: Sequence[str], *, munge_socket: str = "", daemon_user: str = "slurm_dl"
    ) -> None:
        self.addresses = tuple(addresses)
        self._munge_socket = munge_socket
        self._daemon_user = daemon_user

    def ask(self, address: str, request: bytes, timeout_s: float) -> bytes:
        """The answer of the daemon at *address*, one line.

        Raises:
            TcpError: There is none, or it is not the daemon's.
        """
        try:
            munge = Munge(self._munge_socket)
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal():
                msg = f"{address}: no server: write HOST:PORT"
                raise TcpError(msg)
            to = (host.strip("[]"), int(port))
            connection = socket.create_connection(to, min(CONNECT_S, timeout_s))
            with connection as sock, sock.makefile("rb") as stream, _ended(sock, timeout_s):
                # A host that stands still takes connections, and says nothing on them.
                hello = stream.readline(_LONGEST_HELLO)
                if not hello or REFUSED in hello:
                    return unsealed(hello, address)
                nonce = nonce_of(hello, address)
                sock.settimeout(timeout_s)
                credential = munge.encode(digest(REQUEST, nonce, request))
                sock.sendall(credential + b" " + request + b"\n")
                answer = stream.readline(_LONGEST_ANSWER)
                sealed = stream.readline(_LONGEST_HELLO).rstrip(b"\n")
            if not sealed:
                return unsealed(answer, address)
            payload, uid = munge.decode(sealed)
        except TimeoutError:
            msg = f"{address} did not answer in time"
            raise TcpError(msg) from None
        except (ConnectionResetError, BrokenPipeError):
            return unsealed(b"", address)
        except (OSError, UnicodeError) as err:
            why = err.strerror if isinstance(err, OSError) else "it is no name of a host"
            msg = f"dlschedd does not listen on {address}: {why or err}"
            raise TcpError(msg) from None
        except MungeError as err:
            msg = f"{address}: {err}"
            raise TcpError(msg) from None
        if uid not in self._believed():
            msg = (
                f"{address}: what answers there runs as uid {uid}, and not as root or "
                f"{self._daemon_user} (daemon_user in client.yaml)"
            )
            raise TcpError(msg)
        if payload != digest(ANSWER, nonce, request, answer):
            msg = f"{address}: the answer was changed on its way"
            raise TcpError(msg)
        return answer

    def _believed(self) -> set[int]:
        try:
            return {0, pwd.getpwnam(self._daemon_user).pw_uid}
        except KeyError:
            return {0}


def unsealed(answer: bytes, address: str) -> bytes:
    """*answer*, if it only says that the server is busy: anybody may have written it.

    A connection that was closed without a word had to make way for others: that is busy as well.

    Raises:
        TcpError: It says something else.
    """
    if not answer:
        words = f"{address} closed the connection: it is busy, or no dlschedd listens there"
        return json.dumps({"ok": False, "kind": RefusalKind.BUSY, "error": words}).encode()
    try:
        said = json.loads(answer)
        kind, words = said["kind"], safe(str(said["error"]), 300)
    except (ValueError, KeyError, TypeError, RecursionError):
        msg = f"{address} closed the connection without an answer; see the log of dlschedd"
        raise TcpError(msg) from None
    if kind == RefusalKind.BUSY:
        return json.dumps({"ok": False, "kind": kind, "error": words}).encode()
    msg = f"{address} refused: {words}"
    raise TcpError(msg)


@contextlib.contextmanager
def _ended(sock: socket.socket, after_s: float) -> Iterator[None]:
    """End the connection after so many seconds, however slowly bytes drip in.

    Raises:
        TimeoutError: It was ended.
    """
    ended = threading.Event()

    def end() -> None:
        ended.set()
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(after_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if ended.is_set():
            raise TimeoutError


def nonce_of(hello: bytes, address: str) -> bytes:
    """The nonce in the server's first line.

    Raises:
        TcpError: There is none.
    """
    try:
        return str(json.loads(hello)["nonce"]).encode()
    except (ValueError, KeyError, TypeError, RecursionError):
        msg = f"{address}: it is no dlschedd that answers there, or it is busy; retry"
        raise TcpError(msg) from None
