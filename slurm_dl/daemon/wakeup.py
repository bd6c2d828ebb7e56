"""Early ends of the loop's sleep: by signals to the process, and by other threads."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from types import FrameType


class Wakeup:
    """A pipe to sleep on, and what signals asked for.

    Attributes:
        stop: Name of the signal that ends the daemon; empty while none came.
        hangup: SIGHUP came, and nobody has taken it yet.
    """

    def __init__(self) -> None:
        self.stop = ""
        self.hangup = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def ring(self) -> None:
        """End the sleep, or the next one; may be called from any thread."""
        # A full pipe wakes just as well; a closed one has nobody to wake.
        with contextlib.suppress(OSError):
            os.write(self._write, b"x")

    def sleep(self, for_s: float) -> None:
        """Sleep for so many seconds, or until it rings; not at all once a signal came."""
        if self.stop or self.hangup:
            return
        select.select([self._read], [], [], for_s)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 512):
                pass

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Take SIGTERM, SIGINT and SIGHUP; in the main thread only."""
        handlers = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        }
        # The byte it writes ends the sleep; without it a signal between the test and the
        # select would be noticed one sleep late.
        old = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old)
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def close(self) -> None:
        """Let go of the pipe."""
        read, write, self._read, self._write = self._read, self._write, -1, -1
        os.close(read)
        os.close(write)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self.hangup = True
        else:
            self.stop = signal.Signals(number).name
