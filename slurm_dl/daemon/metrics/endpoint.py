"""The endpoint of one process: where it listens, over reloads, and whose figures it shows."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator
from typing import Final

from structlog.typing import FilteringBoundLogger

from slurm_dl.config import Config
from slurm_dl.config.daemon_section import split_address
from slurm_dl.daemon.forecast_service import forecasts_of
from slurm_dl.daemon.metrics import catalogue, command_counters
from slurm_dl.daemon.metrics.counters import MetricsTally
from slurm_dl.daemon.metrics.http_server import MetricsServer
from slurm_dl.daemon.metrics.samples import (
    ActingDaemonMetrics,
    MetricValue,
    WaitingDaemonMetrics,
    one,
)
from slurm_dl.daemon.preconditions import Precondition
from slurm_dl.daemon.published_state import Board
from slurm_dl.model.errors import ConfigError

MISSING: Final = (
    "metrics.listen: prometheus-client is not installed; install slurm-dl[metrics], "
    "or leave metrics.listen empty"
)


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
        self._waiting = WaitingDaemonMetrics.under(config)
        self._source: ActingDaemonMetrics | WaitingDaemonMetrics = self._waiting
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
        self._waiting = WaitingDaemonMetrics.under(config)
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
        self._source = ActingDaemonMetrics(
            board=board,
            tally=tally,
            audit=audit,
            pause=pause,
            commands=command_counters.RUN,
            score=lambda: forecasts_of(board.current.config.paths.state_dir).score,
            now=time.time,
        )
        try:
            yield
        finally:
            self._source = self._waiting

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
            raise ConfigError(MISSING) from None
        self._server = MetricsServer(*split_address(listen), wsgi_app(self._figures, self._bug))
        self._listen = listen
        self._log.info("metrics", listen=listen)

    def _figures(self) -> Iterator[MetricValue]:
        yield one(catalogue.SCRAPE_ERRORS, self._errors)
        yield from self._source.figures()

    def _bug(self, err: Exception) -> None:
        """Count it; the log has the first of each kind, or there would be one for each scrape."""
        self._errors += 1
        raised = traceback.extract_tb(err.__traceback__)[-1]
        kind = (type(err).__name__, raised.filename, raised.lineno)
        if kind not in self._logged:
            self._logged.add(kind)
            self._log.error("bug in the metrics; said once, then counted", exc_info=err)
