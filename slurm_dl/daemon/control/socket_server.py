"""The daemon's control sockets: a Unix socket, on which the kernel names the user, and TCP.

Each connection has a thread of its own, so a client that reads slowly, or never, holds up neither
the others nor the loop.

Over TCP, for clients on other hosts, MUNGE names the user. A connection has one request. The server
sends a nonce; the client a MUNGE credential and, after a space, the request. The payload of the
credential is a digest of nonce and request, so a credential that is seen on its way is good for
nothing else. Below the answer stands a credential of the daemon, over nonce, request and answer,
which the client's user alone can decode. Nothing is encrypted, as in Slurm's own protocol.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import select
import socket
import socketserver
import stat
import struct
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from slurm_dl.daemon.control.munge import ANSWER, REQUEST, Munge, MungeError, digest
from slurm_dl.daemon.control.reception import Connection, Peer, Reception, RequestError, refusal
from slurm_dl.daemon.control.wire_format import MAX_REQUEST_BYTES, PROTOCOL, RefusalKind
from slurm_dl.model.errors import ConfigError

READ_S = 10.0  # A request must have arrived whole within this many seconds
SEND_S = 20.0  # An answer must have been taken within this many seconds
_LOOK_S = 0.2  # Late requests, and the end, are looked for so often
_LONGEST_PATH = 107  # ``sun_path`` holds 108 bytes, the last of them NUL


class Serving(socketserver.ThreadingMixIn, socketserver.BaseServer):
    """The part that the servers of all sockets share: a thread for each client, in bounds."""

    daemon_threads = True
    request_queue_size = 128
    reception: Reception  # Users and their connections

    def begin(self) -> None:
        """Serve from a thread of its own."""
        threading.Thread(target=self.serve_forever, args=(_LOOK_S,), daemon=True).start()

    def converse(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - socketserver's
        """Converse with a client in a thread of its own, or tell it to retry."""
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            self.turn_away(request, "this host has no threads left for dlschedd; retry")

    def service_actions(self) -> None:
        """Drop the connections whose request is late, however slowly it drips in."""
        now_s = time.monotonic()
        self.reception.drop(lambda connection: connection.until_s < now_s)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - socketserver's
        """Close a connection, served or not."""
        with self.reception.lock:
            self.reception.open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is gone, or too slow, is no bug."""
        del request, client_address
        err = sys.exception()
        if isinstance(err, Exception) and not isinstance(err, OSError):
            self.reception.on_bug(err)

    def turn_away(self, sock: socket.socket, why: str) -> None:
        """Refuse a client before it has asked anything."""
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.send(refusal(RequestError(RefusalKind.BUSY, why)))
        self.shutdown_request(sock)


class ControlServer(Serving, socketserver.UnixStreamServer):
    """Listens on a unix socket and passes requests on, from threads of its own.

    Args:
        path: The socket; an old one in its place is removed.
        mode: Permissions of the socket: who may connect at all.
        reception: Who may ask, and how much.

    Raises:
        ConfigError: The socket cannot be made.
    """

    def __init__(self, path: Path, *, mode: int, reception: Reception) -> None:
        self.reception = reception
        self._path = path
        self._mode = mode
        super().__init__(str(path), _Conversation)
        self._inode = path.stat().st_ino
        self.begin()

    def close(self) -> None:
        """Stop listening, drop every connection, remove the socket."""
        self.shutdown()
        self.server_close()
        self.reception.drop(lambda _: True)
        with contextlib.suppress(OSError):
            # Not a successor's socket of the same name.
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def server_bind(self) -> None:
        """Make the socket, with its mode, in place of one that is left over."""
        path = self._path
        if len(os.fsencode(path)) > _LONGEST_PATH:
            msg = (
                f"paths.run_dir: {path} is longer than the {_LONGEST_PATH} bytes a socket may have"
            )
            raise ConfigError(msg)
        try:
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True)
                # Whatever our umask: the socket's own mode says who may connect.
                path.parent.chmod(0o755)
            _clear(path)
            # Nobody may connect before the mode is what it should be.
            old_umask = os.umask(0o177)
            try:
                super().server_bind()
            finally:
                os.umask(old_umask)
            path.chmod(self._mode)
        except OSError as err:
            msg = f"cannot listen on {path}: {err.strerror}; see paths.run_dir"
            raise ConfigError(msg) from err

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - socketserver's
        """Converse with a client in a thread of its own, or tell it to retry."""
        raw = request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", raw)
        # The kernel's uid is unsigned.
        if self.reception.admit(request, self.reception.peer(uid % (1 << 32))):
            self.converse(request, client_address)
        else:
            self.turn_away(request, "too many connections; retry")


class _Conversation(socketserver.StreamRequestHandler):
    """One connection: request lines, each answered before the next is read."""

    server: ControlServer

    def handle(self) -> None:
        reception = self.server.reception
        mine = reception.open[self.request]
        peer = mine.peer
        assert peer is not None  # noqa: S101 - the kernel names it
        self.connection.settimeout(SEND_S)
        is_whole = True
        while is_whole:
            mine.until_s = time.monotonic() + READ_S
            line = self.rfile.readline(MAX_REQUEST_BYTES + 1)
            mine.until_s = math.inf
            is_whole = line.endswith(b"\n")
            if not is_whole and len(line) <= MAX_REQUEST_BYTES:
                return
            answer, stream = reception.reply(line.removesuffix(b"\n"), peer)
            try:
                self.wfile.write(answer)
            finally:
                reception.sent(peer, answer)
            if stream is not None:
                stream(self.wfile, self._has_hung_up)
                return

    def _has_hung_up(self) -> bool:
        poll = select.poll()
        poll.register(self.connection, 0)
        # A client that only has no more to say is no POLLHUP.
        return any(event & select.POLLHUP for _, event in poll.poll(0))


def _clear(path: Path) -> None:
    """Remove the socket of a daemon that is gone: the caller holds the lock it would hold."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        msg = f"{path} is in the way and is no socket: move it, or set paths.run_dir"
        raise ConfigError(msg)
    path.unlink()


STRANGERS: Final = 128
"""Connections whose user is not known yet; one more, and the oldest of the host with most ends."""

MOST: Final = 400  # Sockets that are open at once, those that are about to end included
ARRIVAL_S: Final = 5.0  # A request must have arrived whole within so many seconds
_LONGEST_CREDENTIAL: Final = 4096


class TcpServer(Serving, socketserver.TCPServer):
    """Listens on an address, for requests with a MUNGE credential.

    Args:
        address: IP address and port.
        munge: Of the cluster.
        reception: Who may ask, and how much.

    Raises:
        ConfigError: It cannot listen there, or munged does not answer.
    """

    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], *, munge: Munge, reception: Reception) -> None:
        self.munge = munge
        self._sockets = set[socket.socket]()
        self.reception = reception
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        try:
            munge.decode(munge.encode(b""))
            super().__init__(address, _TcpConversation)
        except (OSError, MungeError) as err:
            msg = f"control.listen: cannot listen on {address[0]} port {address[1]}: {err}"
            raise ConfigError(msg) from None
        self.begin()

    def close(self) -> None:
        """Stop listening, drop every connection."""
        self.shutdown()
        self.server_close()
        self.reception.drop(lambda connection: bool(connection.address))

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - socketserver's
        """Converse with a client that nobody knows yet in a thread of its own."""
        with self.reception.lock:
            strangers = [(s, c) for s, c in self.reception.open.items() if c.peer is None]
            if len(strangers) >= STRANGERS:
                most = Counter(c.address for _, c in strangers).most_common(1)[0][0]
                oldest = next(s for s, c in strangers if c.address == most)
                # Off the list at once: its thread may have no time yet, and more come.
                del self.reception.open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self.reception.open[request] = Connection(None, str(client_address[0]))
            self._sockets.add(request)
            full = len(self._sockets) > MOST
        if full:
            self.turn_away(request, "too many connections; retry")
        else:
            self.converse(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - socketserver's
        """Close a connection, served or not."""
        with self.reception.lock:
            self._sockets.discard(request)
        super().shutdown_request(request)


class _TcpConversation(socketserver.StreamRequestHandler):
    """One connection: one request."""

    server: TcpServer

    def handle(self) -> None:
        mine = self.server.reception.open.get(self.request)
        if mine is None:
            return
        self.connection.settimeout(SEND_S)
        mine.until_s = time.monotonic() + ARRIVAL_S
        nonce = secrets.token_hex(16).encode()
        hello = {"slurm_dl": PROTOCOL, "nonce": nonce.decode()}
        self.wfile.write(json.dumps(hello).encode() + b"\n")
        line = self.rfile.readline(_LONGEST_CREDENTIAL + MAX_REQUEST_BYTES + 1)
        mine.until_s = math.inf
        if line.endswith(b"\n"):
            credential, _, request = line[:-1].partition(b" ")
            try:
                peer = self._peer(credential, request, nonce)
            except RequestError as err:
                self.wfile.write(refusal(err))
            else:
                self._answer(peer, request, nonce)

    def _peer(self, credential: bytes, request: bytes, nonce: bytes) -> Peer:
        """The user who asks, once they have a place.

        Raises:
            RequestError: The credential is none, or not of this request; or there is no place.
        """
        reception = self.server.reception
        try:
            payload, uid = self.server.munge.decode(credential)
        except MungeError as err:
            raise RequestError(RefusalKind.DENIED, str(err)) from None
        if not secrets.compare_digest(payload, digest(REQUEST, nonce, request)):
            msg = "the credential is of another request"
            raise RequestError(RefusalKind.DENIED, msg)
        peer = reception.peer(uid, str(self.client_address[0]))
        # One that had to make way is not on the list.
        if self.request not in reception.open or not reception.admit(self.request, peer):
            raise RequestError(RefusalKind.BUSY, "too many connections; retry")
        return peer

    def _answer(self, peer: Peer, request: bytes, nonce: bytes) -> None:
        answer, _ = self.server.reception.reply(request, peer, streams=False)
        try:
            whole = digest(ANSWER, nonce, request, answer)
            self.wfile.write(answer + self.server.munge.encode(whole, for_uid=peer.uid) + b"\n")
        except MungeError as err:
            msg = f"it is done, but the answer could not be signed: {err}"
            self.wfile.write(refusal(RequestError(RefusalKind.INTERNAL, msg)))
        finally:
            self.server.reception.sent(peer, answer)
