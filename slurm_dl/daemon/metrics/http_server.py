"""The endpoint's HTTP server: the standard library's, a thread for each connection.

A client that is slow, silent or sends garbage holds one of `MOST_CONNECTIONS` for `TIMEOUT_S` at
most. A connection beyond that number is closed at once. Of a request `MOST_BYTES` are read.
"""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from slurm_dl.model.errors import ConfigError

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

MOST_BYTES: Final = 8192
"""The standard library would read 6 MB of headers. Prometheus sends less than 500 bytes."""

MOST_CONNECTIONS: Final = 32
TIMEOUT_S: Final = 10.0
"""A whole connection, request and answer, may take so long; Prometheus gives up by then."""


class _Bounded(io.BufferedReader):
    """Ends after `MOST_BYTES`, though more may be there."""

    left = MOST_BYTES

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(self.left if size is None or size < 0 else min(size, self.left))
        self.left -= len(line)
        return line


class _Handler(WSGIRequestHandler):
    def setup(self) -> None:
        super().setup()
        self.rfile = _Bounded(self.rfile.detach())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Requests are not logged."""

    def get_stderr(self) -> io.StringIO:
        """Nor are tracebacks: `Endpoint` logs them."""
        return io.StringIO()


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Listens on one address until it is closed; see the module.

    Args:
        address: IP address to listen on.
        port: TCP port; 0 takes any that is free.
        app: Answers the requests, in several threads at once.

    Raises:
        ConfigError: It cannot listen there.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: str, port: int, app: WSGIApplication) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._began_s: dict[Any, float] = {}
        try:
            super().__init__((address, port), _Handler)
        except OSError as err:
            where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
            msg = f"metrics.listen: cannot listen on {where}: {err.strerror}; choose another, or ''"
            raise ConfigError(msg) from err
        self.set_app(app)
        threading.Thread(
            target=self.serve_forever, args=(0.1,), name="metrics", daemon=True
        ).start()

    def close(self) -> None:
        """Stop listening and cut every connection."""
        self.shutdown()
        self.server_close()
        self._cut(begun_by_s=time.monotonic())

    def server_bind(self) -> None:
        """Bind without the standard library's look-up of the host's name, which can take long."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ANN401, ARG002 - as there
        """Whether there is room for one more connection."""
        if len(self._began_s) >= MOST_CONNECTIONS:
            return False
        self._began_s[request] = time.monotonic()
        return True

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - as there
        """Close a connection."""
        self._began_s.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut connections that take too long; called ten times a second."""
        self._cut(begun_by_s=time.monotonic() - TIMEOUT_S)

    def _cut(self, *, begun_by_s: float) -> None:
        for request, began_s in tuple(self._began_s.items()):
            if began_s <= begun_by_s:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as there
        """A client that resets its connection is not reported."""
