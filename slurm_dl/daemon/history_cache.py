"""Jobs that are over, kept up to date beside the daemon's loop: no cycle waits for accounting.

A read runs in a thread of its own. Until it is done, and when it fails, what was read last stands.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.accounting.past_jobs import PastReader
from slurm_dl.slurm.accounting.query import NoAccountingError

LONGEST_PAUSE_S = 600.0
"""After a read that failed the next one comes no later than this, if it may come at all."""

FIRST_WAIT_S = 10.0
"""The first look waits for so long, so that a first plan need not do without."""

NO_HISTORY = "run times are not predicted from history"


class HistoryCache:
    """The jobs that are over, read again now and then.

    Args:
        reader: Reads them; called by one thread at a time.
        log: For people.
        every_s: Seconds from one read to the next.
        clock: Seconds that only go forward.
        first_wait_s: The first look waits for the first read so long, seconds.
    """

    def __init__(
        self,
        reader: PastReader,
        log: FilteringBoundLogger,
        *,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        self._reader = reader
        self._log = log
        self._every_s = every_s
        self._clock = clock
        self._wait_s = first_wait_s
        self._past = NO_PAST
        self._next_s = -math.inf
        self._thread: threading.Thread | None = None
        self._failing = False

    def look(self, prepare: Callable[[Past], None] = lambda _: None) -> Past:
        """The jobs that are over, as of the last read; begins another one if it is time to.

        Args:
            prepare: Called with what a read that begins now finds, before anybody else sees it,
                in the thread that reads.
        """
        if self._clock() >= self._next_s and (self._thread is None or not self._thread.is_alive()):
            self._next_s = self._clock() + self._every_s
            # It only reads: the process need not wait for it to end.
            self._thread = threading.Thread(
                target=self._read, args=(prepare,), name="history", daemon=True
            )
            self._thread.start()
            self._thread.join(self._wait_s)
            self._wait_s = 0.0
        return self._past

    def wait(self, within_s: float) -> None:
        """Wait for a read that is under way, seconds at most."""
        if self._thread is not None:
            self._thread.join(within_s)

    def _read(self, prepare: Callable[[Past], None]) -> None:
        began_s = self._clock()
        try:
            past = self._reader.read()
            prepare(past)
        except ClusterError as err:
            self._failed(err)
        except Exception as err:  # noqa: BLE001 - see below
            # The thread must not end without a word, nor with it all later reads.
            self._log.exception("bug in reading history", because=NO_HISTORY)
            self._failed(err)
        else:
            news = self._failing or not len(self._past) or not len(past)
            self._past, self._failing = past, False
            say = self._log.info if news else self._log.debug
            say(
                "history read from accounting",
                jobs=len(past),
                users=len(past.users),
                took_s=round(self._clock() - began_s, 1),
            )

    def _failed(self, err: Exception) -> None:
        never = isinstance(err, NoAccountingError)
        if not never:
            self._next_s = min(self._next_s, self._clock() + LONGEST_PAUSE_S)
        first, self._failing = not self._failing, True
        say = self._log.warning if first else self._log.debug
        say(
            "no accounting" if never else "accounting does not answer",
            error=str(err),
            because=NO_HISTORY if not len(self._past) else "the history read last is kept",
            jobs=len(self._past),
            next_in_s=round(self._next_s - self._clock()),
        )
