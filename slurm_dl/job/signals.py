"""The signals dlrun takes: blocked, and taken one by one where the code is ready for them."""

from __future__ import annotations

import signal


class Signals:
    """The signals dlrun takes, blocked from construction on.

    Args:
        checkpoint: The signal that asks for a checkpoint.
    """

    def __init__(self, checkpoint: int) -> None:
        self.checkpoint = checkpoint
        # What was ignored when we started (nohup, a background job) stays ignored.
        self._ending = {
            s
            for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
            if s == signal.SIGTERM or signal.getsignal(s) != signal.SIG_IGN
        }
        self._taken = {*self._ending, checkpoint, signal.SIGCHLD}
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, self._taken)
        # The batch script may ignore the signal until dlrun is there. The command must not
        # inherit that: a shell cannot trap a signal that was ignored when it started.
        signal.signal(checkpoint, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def restore(self) -> None:
        """Give a new process its own signal mask back."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before - self._taken)

    def wait(self, timeout_s: float) -> int | None:
        """The next signal; None when *timeout_s* is over."""
        info = signal.sigtimedwait(self._taken, max(timeout_s, 0.0))
        return None if info is None else info.si_signo

    def is_ending(self, signum: int) -> bool:
        """True if the signal means: end now. TERM may be this and the checkpoint signal."""
        return signum in self._ending


def signal_name(signum: int) -> str:
    """The signal's name without ``SIG``."""
    return signal.Signals(signum).name[3:]
