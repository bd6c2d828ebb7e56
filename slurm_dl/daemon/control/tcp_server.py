"""The control socket over TCP, for clients on other hosts: MUNGE names the user.

A connection has one request. The server sends a nonce; the client a MUNGE credential and, after a
space, the request. The payload of the credential is a digest of nonce and request, so a credential
that is seen on its way is good for nothing else. Below the answer stands a credential of the
daemon, over nonce, request and answer, which the client's user alone can decode. Nothing is
encrypted, as in Slurm's own protocol.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import socket
import socketserver
import time
from collections import Counter
from typing import Any, Final

from slurm_dl.daemon.control.munge import ANSWER, REQUEST, Munge, MungeError, digest
from slurm_dl.daemon.control.reception import Connection, Peer, Reception, RequestError, refusal
from slurm_dl.daemon.control.socket_server import SEND_S, Serving
from slurm_dl.daemon.control.wire_format import MAX_REQUEST_BYTES, PROTOCOL, RefusalKind
from slurm_dl.model.errors import ConfigError

STRANGERS: Final = 128
"""Connections whose user is not known yet; one more, and the oldest of the host with most ends."""

MOST: Final = 400
"""Sockets that are open at once, those that are about to end included."""

ARRIVAL_S: Final = 5.0
"""A request must have arrived whole within so many seconds."""

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
            super().__init__(address, _Conversation)
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


class _Conversation(socketserver.StreamRequestHandler):
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
