"""A batch script is stopped while its training saves, so that nothing follows as after the end.

A script goes on when the training ends, also where it ends because it was asked to: it would mark
the work as complete, or clear its files away. So the shells above the training are stopped when the
signal is sent, and killed once the training has ended: the next run does the rest. A trap of theirs
does not run, as it may be what clears away.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from slurm_dl.job.child import OWN_USE, Child, Process
from slurm_dl.job.forwarding import Forwarding
from slurm_dl.job.handler_watch import SHELLS

GO_ON = SHELLS | OWN_USE
"""Programs that go on with something else when what they have started ends."""


class ScriptHold:
    """The stopped shells of one start of the command.

    Attributes:
        held: Numbers of the shells; none before the signal is sent.
        is_over: They have been killed.
    """

    def __init__(self, child: Child, forwarding: Forwarding, log: Callable[[str], None]) -> None:
        self.held: set[int] = set()
        self.is_over = False
        self._child = child
        self._forwarding = forwarding
        self._log = log

    def stop(self, receivers: Sequence[Process], family: Sequence[Process]) -> None:
        """Stop the shells above *receivers*, before these are sent the signal."""
        above = self._forwarding.above(receivers, family)
        self.held |= {p.pid for p in family if p.pid in above and p.program in GO_ON}
        self._send(signal.SIGSTOP)

    def look(self, signum: int, *, is_late: bool) -> None:
        """Kill the shells once all that had the signal have ended; let them go on if that is late.

        Who saves and trains on may outlive the hand-over.
        """
        if is_late:
            self.go_on()
            self.held = set()
        if self.held and not self._forwarding.left(self._child.processes(signum)):
            self._log("what follows the training in the script is left to the next run")
            self._send(signal.SIGKILL)
            self.held, self.is_over = set(), True

    def go_on(self) -> None:
        """Let them go on, for a signal that ends them."""
        self._send(signal.SIGCONT)

    def _send(self, signum: int) -> None:
        for pid in self.held:
            self._child.send(signum, pid)
