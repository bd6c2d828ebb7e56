"""The daemon's log: one event a line, for a terminal, journald or a log collector.

What users wrote is escaped before it is written, so no job name can forge a line or steer a
terminal. A log that cannot be written does not stop the daemon.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import IO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from slurm_dl.text import escaped

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class _Forgiving:
    """A text stream whose failures, such as a full disk, are nobody's problem."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def configure(*, level: str, form: str, stream: IO[str] | None = None) -> None:
    """Set up logging, or set it up anew after a reload.

    Args:
        level: Least severity that is written.
        form: ``console`` or ``json``.
        stream: Where to; standard error if None.
    """
    out = sys.stderr if stream is None else stream
    finish: list[Processor] = [
        structlog.dev.ConsoleRenderer(
            colors=out.isatty(),
            pad_event_to=16,
            sort_keys=False,
            exception_formatter=structlog.dev.plain_traceback,
        )
    ]
    if form == "json":
        finish = [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _escape,
            *finish,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(file=_Forgiving(out)),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    # Libraries that log by themselves say so only when something is wrong.
    logging.basicConfig(level=logging.WARNING, stream=out, force=True)


def logger() -> FilteringBoundLogger:
    """The daemon's logger; it follows later calls of `configure`."""
    log: FilteringBoundLogger = structlog.get_logger()
    return log


def _escape(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {k: escaped(v, 2000) if isinstance(v, str) else v for k, v in event.items()}
