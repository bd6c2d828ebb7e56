"""Receivers of the checkpoint signal among the command's processes: the topmost handlers.

A shell, torchrun's agent or ``conda run`` around the training passes no signal on, and USR1 ends
it. A data loader's worker inherits the handler of the training and must not act on it. So each
process with a handler gets the signal, unless one stands above it that has a handler too.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from slurm_dl.job.child import OWN_USE, Child, Process
from slurm_dl.job.handler_watch import SHELLS

ALL_TASKS_S = 10.0
"""After the request: how long the tasks of an srun may take until all of them have a handler."""


class Forwarding:
    """Processes that have had the signal in one start of the command.

    Args:
        command: Number of the command's own process.
    """

    def __init__(self, command: int) -> None:
        self._command = command
        self._has_it: set[int] = set()
        """They were sent it, or stand below one that was: a worker may outlive its parent."""

    def left(self, family: Sequence[Process]) -> bool:
        """True while one of those that had the signal lives."""
        return any(p.pid in self._has_it for p in family)

    def above(self, receivers: Sequence[Process], family: Sequence[Process]) -> set[int]:
        """Processes that stand above one of *receivers*, and have not had the signal."""
        above = _above(family, self._command)
        return set().union(*(above[p.pid] for p in receivers)) - self._has_it

    def receivers(
        self, family: Sequence[Process], *, by_srun: bool, asked_s: float
    ) -> list[Process]:
        """Processes to be sent the signal now; none of them twice.

        Args:
            family: The living processes of the command on this node.
            by_srun: Tasks may run on other nodes, so srun is sent it where its tasks can bear that:
                it passes the signal to every process of each task.
            asked_s: Seconds since the request.
        """
        above = _above(family, self._command)
        has_it = self._has_it
        has_it |= {pid for pid, over in above.items() if over & has_it}
        takers = {p.pid for p in family if p.takes and p.program != "srun"}
        found = [p for p in family if p.pid in takers - has_it and not above[p.pid] & takers]
        sruns = {p.pid for p in family if p.program == "srun" and not p.is_fork}
        in_tasks = {p.pid for p in found if above[p.pid] & sruns}
        if by_srun and in_tasks and not any(above.get(pid, set()) & sruns for pid in has_it):
            tops = {p.pid for p in family if p.parent not in above} - {self._command}
            deaf = tops - takers
            if not deaf:
                told = {p.pid for p in found} - in_tasks | sruns
                found = [p for p in family if p.pid in told]
            elif asked_s < ALL_TASKS_S and not any(above[pid] & deaf for pid in in_tasks):
                found = [p for p in found if p.pid not in in_tasks]
        has_it |= {p.pid for p in found}
        has_it |= {pid for pid, over in above.items() if over & has_it}
        return found


def _above(family: Sequence[Process], command: int) -> dict[int, set[int]]:
    """The processes above each one. The tasks of an srun, children of Slurm's, are put below it."""
    parents = {p.pid: p.parent for p in family if p.pid != command}

    def chain(pid: int) -> set[int]:
        found: set[int] = set()
        while (pid := parents.get(pid, 0)) in parents or pid == command:
            found.add(pid)
        return found

    own = {pid for pid in parents if command in chain(pid)} | {command}
    host = next((p.pid for p in family if p.program == "srun" and p.pid in own), command)
    parents.update({pid: host for pid in parents.keys() - own if parents[pid] not in parents})
    return {p.pid: chain(p.pid) for p in family}


GO_ON = SHELLS | OWN_USE  # Programs that go on with something else when what they have started ends


class ScriptHold:
    """The stopped shells of one start of the command: nothing follows as after the end.

    A script goes on when the training ends, also where it ends because it was asked to: it would
    mark the work as complete, or clear its files away. So the shells above the training are stopped
    when the signal is sent, and killed once the training has ended: the next run does the rest. A
    trap of theirs does not run, as it may be what clears away.

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
