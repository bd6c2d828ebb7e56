"""A terminal that is ours for a while: keys one by one, the alternate screen, signals.

Whatever ends it (a key, a signal, an exception, a stop by Ctrl-Z), the terminal is put back as it
was first.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
import tty
from collections.abc import Iterator, Sequence
from types import FrameType

from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live
from rich.text import Text

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Terminal:
    """One terminal, held by `held`.

    Args:
        keyboard: Descriptor that keys are read from.
        console: What is written to.
    """

    def __init__(self, keyboard: int, console: Console) -> None:
        self._keyboard = keyboard
        self._console = console
        self._before = termios.tcgetattr(keyboard)
        self._live = Live(
            console=console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._came: list[int] = []
        self._wake_r, self._wake_w = os.pipe()
        for end in (self._wake_r, self._wake_w):
            os.set_blocking(end, False)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now."""
        size = os.get_terminal_size(self._keyboard)
        return max(1, size.columns), max(1, size.lines)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Have the terminal; a signal that ends programs ends this one once it is given back."""
        handled = (*_ENDING, signal.SIGINT, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
        old = {number: signal.signal(number, self._note) for number in handled}
        old_fd = signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        try:
            self._take()
            yield
        finally:
            self._give_back()
            signal.set_wakeup_fd(old_fd)
            for number, handler in old.items():
                signal.signal(number, handler)
            os.close(self._wake_r)
            os.close(self._wake_w)
            for number in _ENDING:
                if number in self._came:
                    os.kill(os.getpid(), number)

    def wake(self) -> None:
        """Let `wait` return; for other threads."""
        # Full: it returns anyway. Closed: nobody waits any more.
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"\0")

    def wait(self, seconds: float) -> bytes:
        """What keys have sent; nothing once something else has happened, or the time is over.

        Raises:
            EOFError: The terminal is gone, or a signal says that this is the end.
        """
        ready, _, _ = select.select([self._keyboard, self._wake_r], [], [], max(0.0, seconds))
        if self._wake_r in ready:
            os.read(self._wake_r, 4096)
        self._obey()
        if self._keyboard not in ready:
            return b""
        try:
            raw = os.read(self._keyboard, 4096)
        except OSError:
            raw = b""
        if not raw:
            raise EOFError
        return raw

    def draw(self, lines: Sequence[Text]) -> None:
        """Show these lines; there must be as many as the screen has."""
        # The console asks another descriptor, or an environment that does not know of a resize.
        self._console.size = ConsoleDimensions(*self.size)
        self._live.update(Group(*lines), refresh=True)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._came.append(number)

    def _obey(self) -> None:
        if any(number in self._came for number in (*_ENDING, signal.SIGINT)):
            raise EOFError
        came, self._came = self._came, []
        if signal.SIGTSTP in came:
            self._stop()
        elif signal.SIGCONT in came:
            # Somebody stopped us who cannot be heard; the shell may have used the terminal since.
            self._give_back()
            self._take()

    def _stop(self) -> None:
        """Stop as any program does on Ctrl-Z; go on when the shell says so."""
        self._give_back()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._came = [number for number in self._came if number != signal.SIGCONT]
        self._take()

    def _take(self) -> None:
        tty.setcbreak(self._keyboard)
        self._live.start()

    def _give_back(self) -> None:
        # What is shown is not to stay in the scroll-back.
        try:
            self._live.stop()
        finally:
            # The terminal may be gone.
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._before)
