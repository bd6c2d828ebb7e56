"""The endpoint of one process: where it listens, over reloads, and whose figures it shows.

The HTTP server is the standard library's, with a thread for each connection. A client that is slow,
silent or sends garbage holds one of `MOST_CONNECTIONS` for `TIMEOUT_S` at most, and for `HEADER_S`
without a whole request. Where there is no room, the oldest connection without one is cut for the
new one, of the same address if that has its share: attacker and Prometheus may both be on this
host. Of a request `MOST_BYTES` are read.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from structlog.typing import FilteringBoundLogger

from slurm_dl.config import Config
from slurm_dl.config.daemon_section import split_address
from slurm_dl.daemon.forecast_service import forecasts_of_daemon
from slurm_dl.daemon.metrics import catalogue
from slurm_dl.daemon.metrics.catalogue import Figure, Moment
from slurm_dl.daemon.metrics.counters import MetricsTally
from slurm_dl.daemon.preconditions import Precondition
from slurm_dl.daemon.published_state import Board
from slurm_dl.model.errors import ConfigError

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication


class Endpoint:
    """Listens where the configuration says, or not at all.

    Args:
        config: The configuration to begin with.
        log: For people.

    Raises:
        ConfigError: It cannot listen there, or the library is not installed.
    """

    def __init__(self, config: Config, log: FilteringBoundLogger) -> None:
        self._log = log
        self._config = config
        self._acting: Callable[[], Iterator[Figure]] | None = None
        self._listen = ""
        self._server: MetricsServer | None = None
        self._errors = 0
        self._logged: set[tuple[str, str, int | None]] = set()
        self._move(config.metrics.listen)

    def follow(self, config: Config) -> None:
        """Listen where a new configuration says.

        Where that cannot be done it goes on where it was, with a warning: figures are no reason
        to refuse a configuration that a running daemon was given.
        """
        self._config = config
        if config.metrics.listen == self._listen:
            return
        before = self._listen
        try:
            self._move(config.metrics.listen)
        except ConfigError as err:
            self._log.warning("metrics stay where they were", because=str(err), listen=before)
            with contextlib.suppress(ConfigError):
                self._move(before)

    @contextlib.contextmanager
    def showing(
        self, board: Board, tally: MetricsTally, *, audit: Precondition, pause: Precondition
    ) -> Iterator[None]:
        """Show the figures of a daemon for as long as its turn lasts."""
        of_cycle = functools.lru_cache(maxsize=1)(catalogue.of_cycle)

        def figures() -> Iterator[Figure]:
            now, audit_ok = board.current, not audit.why_not()
            moment = Moment(
                now=now,
                state=catalogue.doing(now, audit_ok=audit_ok, paused=bool(pause.why_not())),
                tally=tally,
                scrape_errors=self._errors,
                problems=frozenset(problem.check for problem in board.problems()),
                score=forecasts_of_daemon().score,
                now_s=time.time(),
            )
            return itertools.chain(catalogue.of_daemon(moment), of_cycle(now))

        self._acting = figures
        try:
            yield
        finally:
            self._acting = None

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def _move(self, listen: str) -> None:
        # The new address may be the old port on more interfaces: only one can have it.
        self.close()
        self._listen = ""
        if not listen:
            return
        try:
            from slurm_dl.daemon.metrics.exposition import wsgi_app  # noqa: PLC0415 - an extra
        except ImportError:
            msg = (
                "metrics.listen: prometheus-client is not installed; install slurm-dl[metrics], "
                "or leave metrics.listen empty"
            )
            raise ConfigError(msg) from None
        self._server = MetricsServer(*split_address(listen), wsgi_app(self.figures, self._bug))
        self._listen = listen
        self._log.info("metrics", listen=listen)

    def figures(self) -> Iterator[Figure]:
        """Every metric that has a value now."""
        if (acting := self._acting) is not None:
            return acting()
        return catalogue.waiting(self._config, self._errors)

    def _bug(self, err: Exception) -> None:
        """Count it; the log has the first of each kind, or there would be one for each scrape."""
        self._errors += 1
        raised = traceback.extract_tb(err.__traceback__)[-1]
        kind = (type(err).__name__, raised.filename, raised.lineno)
        if kind not in self._logged:
            self._logged.add(kind)
            self._log.error("bug in the metrics; said once, then counted", exc_info=err)


MOST_BYTES: Final = 8192
"""The standard library would read 6 MB of headers. Prometheus sends less than 500 bytes."""

MOST_CONNECTIONS: Final = 32
MOST_OF_ADDRESS: Final = 24
HEADER_S: Final = 1.0  # Prometheus sends its request as soon as it is connected

TIMEOUT_S: Final = 10.0
"""A whole connection, request and answer, may take so long; Prometheus gives up by then."""


class _Bounded(io.BufferedReader):
    """Ends after `MOST_BYTES`, though more may be there."""

    left = MOST_BYTES

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(self.left if size is None or size < 0 else min(size, self.left))
        self.left -= len(line)
        return line


@dataclass(slots=True)
class _Connection:
    address: str
    began_s: float
    has_request: bool = False


class _Handler(WSGIRequestHandler):
    server: MetricsServer

    def setup(self) -> None:
        super().setup()
        self.rfile = _Bounded(self.rfile.detach())

    def parse_request(self) -> bool:
        """Read the header."""
        parsed = super().parse_request()
        if (known := self.server.connections.get(self.connection)) is not None:
            known.has_request = True
        return parsed

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
        self.connections: dict[Any, _Connection] = {}
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
        for request in tuple(self.connections):
            _cut(request)

    def server_bind(self) -> None:
        """Bind without the standard library's look-up of the host's name, which can take long."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ANN401 - as there
        """Whether there is room for one more connection, or is made."""
        address = client_address[0]
        same = [r for r, known in self.connections.copy().items() if known.address == address]
        among = same if len(same) >= MOST_OF_ADDRESS else tuple(self.connections)
        if among is same or len(among) >= MOST_CONNECTIONS:
            idle = [r for r in among if (k := self.connections.get(r)) and not k.has_request]
            if not idle:
                return False
            self.connections.pop(idle[0], None)
            _cut(idle[0])
        self.connections[request] = _Connection(address, time.monotonic())
        return True

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - as there
        """Close a connection."""
        self.connections.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut connections that take too long; called ten times a second."""
        now_s = time.monotonic()
        for request, known in self.connections.copy().items():
            if now_s - known.began_s >= (TIMEOUT_S if known.has_request else HEADER_S):
                _cut(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as there
        """A client that resets its connection is not reported."""


def _cut(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)
