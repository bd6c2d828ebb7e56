"""Signals that were begun and not answered for yet, from one cycle to the next.

A slow slurmctld takes longer to answer for a signal than a cycle may take. The cycle goes on, and
no second signal is sent to that run meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import Handover, Run, VictimState
from slurm_dl.model.plan import Action, Signal, Unfinished
from slurm_dl.model.snapshot import Observed

WAIT_S: Final = 2.0
"""A cycle waits this long for the signals that it has begun."""


class SignalsUnderWay:
    """Kept by who runs the cycles."""

    def __init__(self) -> None:
        self._begun: list[tuple[Signal, Unfinished]] = []
        self._unacknowledged: dict[Run, Signal] = {}

    def add(self, signal: Signal, finish: Unfinished, seen: Observed) -> None:
        """*signal* was begun after the look *seen*; *finish* tells how it ends."""
        self._begun.append((signal, finish))
        # An older acknowledgement of this run says nothing of this signal.
        if not seen.has_acknowledged(signal.run):
            self._unacknowledged[signal.run] = signal

    def acknowledged(self, seen: Observed, handovers: tuple[Handover, ...]) -> Iterator[Signal]:
        """Those that were not answered for, but are acknowledged since: they have arrived."""
        waiting = self._unacknowledged.items()
        self._unacknowledged = {run: s for run, s in waiting if still_counts(s, handovers)}
        yield from [s for s in self._unacknowledged.values() if seen.has_acknowledged(s.run)]

    def includes(self, action: Action) -> bool:
        """Whether *action* is a signal to a run that one is under way to."""
        return isinstance(action, Signal) and any(s.run == action.run for s, _ in self._begun)

    def ended(self, timer: Callable[[], float], within_s: float) -> Iterator[tuple[Signal, str]]:
        """Those that have ended within *within_s*, seconds by *timer*; why each failed, or nothing.

        All of them are asked before the first is given: what is done with it may raise.
        """
        until_s = timer() + within_s
        before, self._begun = self._begun, []
        ended = []
        for signal, finish in before:
            try:
                if not finish(max(0.0, until_s - timer())):
                    self._begun.append((signal, finish))
                    continue
                ended.append((signal, ""))
            except ClusterError as err:
                ended.append((signal, str(err)))
        yield from ended


def still_counts(signal: Signal, handovers: tuple[Handover, ...]) -> bool:
    """Whether the run is still to be signalled: it may have ended meanwhile."""
    return any(
        victim.run == signal.run and victim.state is VictimState.SIGNALLING
        for handover in handovers
        if handover.handover_id == signal.handover_id
        for victim in handover.victims
    )
