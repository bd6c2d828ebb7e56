"""The endpoint's HTTP server: one thread, many connections, none of which can hold up another.

One thread looks after all connections and blocks on none of them, so a client that is slow, sends
garbage or nothing costs a descriptor for a few seconds. There is one answer to a connection, then
it is closed. Requests are bounded in size and time, connections in number: where there are too
many the oldest goes, so that a scrape gets in.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from slurm_dl.daemon.metrics.http_request import HttpRequest, RefusedError, parse
from slurm_dl.model.errors import ConfigError

MOST_CONNECTIONS: Final = 128

READ_S: Final = 5.0
"""A request must be there by then."""

ANSWER_S: Final = 10.0
"""An answer must have been taken by then; Prometheus itself gives up after as long."""

_BACKLOG: Final = 128
_CHUNK: Final = 65536
_PLAIN: Final = "text/plain; charset=utf-8"

Text = Callable[[str], tuple[bytes, str]]
"""Gives the metrics, and the name of their format, for a header ``Accept``."""


@dataclass(slots=True, eq=False)
class _Connection:
    """One connection: what it has sent, then what it has yet to take."""

    sock: socket.socket
    until_s: float
    received: bytearray = field(default_factory=bytearray)
    answer: memoryview | None = None


class MetricsServer:
    """Listens on one address; see the module.

    Args:
        address: IP address to listen on.
        port: TCP port; 0 takes any that is free.
        text: Asked at each scrape, by the server's thread.
        on_bug: Told of an exception nobody expected.

    Attributes:
        port: The port it listens on.

    Raises:
        ConfigError: It cannot listen there.
    """

    def __init__(
        self, address: str, port: int, *, text: Text, on_bug: Callable[[Exception], None]
    ) -> None:
        self._text = text
        self._on_bug = on_bug
        self._listener = _listen(address, port)
        self.port = int(self._listener.getsockname()[1])
        self._open: dict[int, _Connection] = {}
        self._stop_r, self._stop_w = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and drop every connection."""
        os.write(self._stop_w, b"x")
        self._thread.join()
        self._listener.close()
        os.close(self._stop_r)
        os.close(self._stop_w)

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._stop_r, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(self._patience_s()):
                    if key.fileobj == self._stop_r:
                        self._drop_all(selector)
                        return
                    connection = key.data
                    if connection is None:
                        self._welcome(selector)
                    elif connection.sock.fileno() >= 0:  # It may have gone to make room.
                        self._go_on(selector, connection)
                now_s = time.monotonic()
                for late in [c for c in self._open.values() if c.until_s <= now_s]:
                    self._drop(selector, late)

    def _patience_s(self) -> float | None:
        """Until the next connection is too late, seconds; None while there is none."""
        due_s = min((c.until_s for c in self._open.values()), default=None)
        return None if due_s is None else max(0.0, due_s - time.monotonic())

    def _welcome(self, selector: selectors.BaseSelector) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            # Gone already, or there are no descriptors: those that are open have to end first.
            if self._open:
                self._drop(selector, next(iter(self._open.values())))
            else:
                time.sleep(0.05)
            return
        sock.setblocking(False)
        if len(self._open) >= MOST_CONNECTIONS:
            self._drop(selector, next(iter(self._open.values())))
        connection = _Connection(sock, time.monotonic() + READ_S)
        self._open[sock.fileno()] = connection
        selector.register(sock, selectors.EVENT_READ, connection)

    def _go_on(self, selector: selectors.BaseSelector, connection: _Connection) -> None:
        try:
            if connection.answer is None:
                self._read(selector, connection)
            if connection.answer is not None:
                self._write(selector, connection)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._drop(selector, connection)

    def _read(self, selector: selectors.BaseSelector, connection: _Connection) -> None:
        data = connection.sock.recv(_CHUNK)
        if not data:
            self._drop(selector, connection)
            return
        connection.received += data
        try:
            request = parse(bytes(connection.received))
            if request is None:
                return
            answer = self._answer(request)
        except RefusedError as err:
            answer = _response(err.status)
        connection.answer = memoryview(answer)
        connection.until_s = time.monotonic() + ANSWER_S
        selector.modify(connection.sock, selectors.EVENT_WRITE, connection)

    def _write(self, selector: selectors.BaseSelector, connection: _Connection) -> None:
        if connection.answer:
            sent = connection.sock.send(connection.answer[:_CHUNK])
            connection.answer = connection.answer[sent:]
        if not connection.answer:
            # What was sent and not read would make the kernel take our answer back.
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_WR)
                connection.sock.recv(_CHUNK)
            self._drop(selector, connection)

    def _answer(self, request: HttpRequest) -> bytes:
        body = request.method != "HEAD"
        if request.path not in ("/metrics", "/-/healthy"):
            return _response(404, body=body)
        if request.method not in ("GET", "HEAD"):
            return _response(405)
        if request.path == "/-/healthy":
            return _response(200, b"dlschedd answers\n", body=body)
        try:
            text, content_type = self._text(request.accept)
        except Exception as err:  # noqa: BLE001 - one bug must not end the thread unseen
            self._on_bug(err)
            return _response(500, body=body)
        return _response(200, text, content_type, body=body)

    def _drop(self, selector: selectors.BaseSelector, connection: _Connection) -> None:
        if self._open.pop(connection.sock.fileno(), None) is not None:
            selector.unregister(connection.sock)
        connection.sock.close()

    def _drop_all(self, selector: selectors.BaseSelector) -> None:
        for connection in tuple(self._open.values()):
            self._drop(selector, connection)


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Connections of a daemon that has just ended linger, and do not count.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as err:
        listener.close()
        where = f"[{address}]:{port}" if family == socket.AF_INET6 else f"{address}:{port}"
        msg = f"metrics.listen: cannot listen on {where}: {err.strerror}; choose another, or ''"
        raise ConfigError(msg) from err
    return listener


def _response(
    status: int, text: bytes | None = None, content_type: str = _PLAIN, *, body: bool = True
) -> bytes:
    """A whole answer; without *text* its own phrase is the text."""
    phrase = HTTPStatus(status).phrase
    text = f"{phrase}\n".encode("ascii") if text is None else text
    head = [
        f"HTTP/1.1 {status} {phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(text)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(["Allow: GET, HEAD"] if status == HTTPStatus.METHOD_NOT_ALLOWED else []),
    ]
    return "\r\n".join([*head, "", ""]).encode("ascii") + (text if body else b"")
