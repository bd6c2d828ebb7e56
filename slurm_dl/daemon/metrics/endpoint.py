"""The endpoint of one process: where it listens, over reloads, and whose figures it shows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from slurm_dl.config import Config
from slurm_dl.config.metrics_section import split_address
from slurm_dl.daemon.forecast_service import forecasts_of
from slurm_dl.daemon.metrics import catalogue, command_counters
from slurm_dl.daemon.metrics.counters import MetricsTally
from slurm_dl.daemon.metrics.exposition import Exposition
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

_MOST_KINDS: Final = 100
"""Kinds of errors that are told apart; those beyond are counted and not said."""


class Source(Protocol):
    """Whoever has figures to show."""

    def figures(self) -> Iterator[MetricValue]:
        """Every metric that has a value now."""


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
        self._source: Source = self._waiting
        self._exposition: Exposition | None = None
        self._listen = ""
        self._server: MetricsServer | None = None
        self._errors = 0
        self._logged: set[tuple[str, str, int]] = set()
        self._move(config.metrics.listen)

    @property
    def port(self) -> int | None:
        """The port it listens on; None if it does not."""
        return None if self._server is None else self._server.port

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
        self._show(
            ActingDaemonMetrics(
                board=board,
                tally=tally,
                audit=audit,
                pause=pause,
                commands=command_counters.RUN,
                score=lambda: forecasts_of(board.current.config.paths.state_dir).score,
                now=time.time,
            )
        )
        try:
            yield
        finally:
            self._show(self._waiting)

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
        # Before it listens: it may be what is missing.
        self._exposition = Exposition(self._figures)
        address, port = split_address(listen)
        self._server = MetricsServer(address, port, text=self._text, on_bug=self._bug)
        self._listen = listen
        self._log.info("metrics", listen=listen)

    def _show(self, source: Source) -> None:
        self._source = source
        if self._exposition is not None:
            # A new one: what the last source had written is not what this one says.
            self._exposition = Exposition(self._figures)

    def _figures(self) -> Iterator[MetricValue]:
        yield one(catalogue.SCRAPE_ERRORS, self._errors)
        yield from self._source.figures()

    def _text(self, accept: str) -> tuple[bytes, str]:
        assert self._exposition is not None  # noqa: S101 - it is made before the server is
        return self._exposition.text(accept)

    def _bug(self, err: Exception) -> None:
        """Count it; the log has the first of each kind, or there would be one for each scrape."""
        self._errors += 1
        kind = _kind_of(err)
        if kind not in self._logged and len(self._logged) < _MOST_KINDS:
            self._logged.add(kind)
            self._log.error("bug in the metrics; said once, then counted", exc_info=err)


def _kind_of(err: Exception) -> tuple[str, str, int]:
    """What makes two errors the same: the class, and where it was raised; not what it says."""
    raised = err.__traceback__
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    if raised is None:
        return type(err).__name__, "", 0
    return type(err).__name__, raised.tb_frame.f_code.co_filename, raised.tb_lineno
