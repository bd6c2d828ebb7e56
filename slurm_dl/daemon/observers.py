"""Observers of cycles: what keeps figures, forecasts and reports after each cycle.

They are kept apart from the loop because none of them may change what it does or stop it: the loop
has to go on scheduling after a bug in a figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from structlog.typing import FilteringBoundLogger

from slurm_dl.daemon.published_state import PublishedState


class Observer(Protocol):
    """Keeps something that only the sequence of cycles tells. Told by the loop's own thread."""

    def on_cycle(self, now: PublishedState, /) -> None:
        """Take in the cycle that has just come to its end: *now* is what has been published of it.

        The next look waits for it: anything longer than milliseconds belongs into a thread.
        """


@runtime_checkable
class Finishing(Protocol):
    """An observer that has something to finish when the daemon ends."""

    def close(self) -> None:
        """Finish it, within seconds: a stop waits for it."""

    def abandon(self) -> None:
        """Write nothing more: another daemon has taken over what it would write to."""


class Observers:
    """All of them; one that fails is left out from then on, and the log says so."""

    def __init__(self, observers: Sequence[Observer], log: FilteringBoundLogger) -> None:
        self._all = tuple(observers)
        self._observers = list(observers)
        self._log = log

    def tell(self, now: PublishedState) -> None:
        """Tell each of them."""
        for observer in tuple(self._observers):
            try:
                observer.on_cycle(now)
            except Exception:  # noqa: BLE001 - whatever it is, the loop goes on without it
                self._observers.remove(observer)
                name = type(observer).__name__
                self._log.exception("bug in an observer; it is left out from now on", observer=name)

    def close(self) -> None:
        """Let those finish that have something to finish, also those that are not told any more."""
        self._end(lambda observer: observer.close())

    def abandon(self) -> None:
        """End them without a word more, because another daemon acts now."""
        self._end(lambda observer: observer.abandon())

    def _end(self, how: Callable[[Finishing], None]) -> None:
        for observer in self._all:
            if not isinstance(observer, Finishing):
                continue
            try:
                how(observer)
            except Exception:  # noqa: BLE001 - likewise; the others have their own to finish
                name = type(observer).__name__
                self._log.exception("bug in the end of an observer", observer=name)
