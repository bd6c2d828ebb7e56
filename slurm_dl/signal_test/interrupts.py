"""Ctrl-C, SIGTERM and SIGHUP while a trial runs: it ends, and nothing of it is left.

A stop is an exception only where `stoppable` says so; elsewhere, as between the start of a
process and the note of its number, or while it is ended, the stop waits.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Stops:
    def __init__(self) -> None:
        self.came = False
        self.may_raise = False

    def take(self, _number: int, _frame: FrameType | None) -> None:
        self.came = True
        self.raise_if_any()

    def raise_if_any(self) -> None:
        if self.came and self.may_raise:
            # What cleans up must not be stopped in its turn.
            self.may_raise = False
            raise KeyboardInterrupt


_stops = _Stops()


@contextmanager
def stops_are_held() -> Iterator[None]:
    """Take the signals, in the main thread, and hold them back; one that came ends this.

    One that was ignored before, as under nohup, still is.

    Raises:
        KeyboardInterrupt: At the end, if one came.
    """
    _stops.came = _stops.may_raise = False
    before = {number: signal.getsignal(number) for number in SIGNALS}
    taken = {n: handler for n, handler in before.items() if handler is not signal.SIG_IGN}
    for number in taken:
        signal.signal(number, _stops.take)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)
    if _stops.came:
        raise KeyboardInterrupt


@contextmanager
def stoppable() -> Iterator[None]:
    """Let a stop raise in here, also one that has been held back; once.

    Raises:
        KeyboardInterrupt: At any place inside.
    """
    _stops.may_raise = True
    try:
        _stops.raise_if_any()
        yield
    finally:
        _stops.may_raise = False


@contextmanager
def unstopped() -> Iterator[None]:
    """Inside `stoppable`: hold a stop back until this is over. Elsewhere nothing changes."""
    before, _stops.may_raise = _stops.may_raise, False
    try:
        yield
    finally:
        _stops.may_raise = before
    _stops.raise_if_any()
