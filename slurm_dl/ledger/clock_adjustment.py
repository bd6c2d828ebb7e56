"""What is remembered, after the clock it was told by has been set.

Every instant that we write down ourselves is told by slurmctld's clock as it stood then. Once that
has jumped they are moved with it: a grace goes on counting where it was, neither over at once nor
longer by a day. Where it is not known by how much, because nobody looked, no instant may at least
stand in the future: cut to now it counts from now, and nobody gets less than was promised.

Times that Slurm tells, and those that say which run or wait is meant, are left as they are.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from slurm_dl.ledger.attained_service import AttainedService, Column
from slurm_dl.model.breaker import Breaker, Restart
from slurm_dl.model.handover import Handover
from slurm_dl.model.jobs import F64, Bool
from slurm_dl.model.steer import Steer

SLACK_S = 5.0
"""slurmctld tells whole seconds, and its clock is known to a second or two."""

_INSTANTS = ("counted_to_s", "last_seen_s", "last_preempted_s", "last_fruitless_s")


@dataclass(frozen=True, slots=True)
class Shift:
    """The clock has jumped by *by_s* seconds; above 0 is forward."""

    by_s: float

    def of(self, at_s: F64) -> F64:
        """Instants as the clock tells them now; 0 is none."""
        return np.where(at_s > 0, at_s + self.by_s, at_s)

    def end_of(self, steer: Steer) -> float:
        """Until when *steer* lasts."""
        return steer.until_s + self.by_s


@dataclass(frozen=True, slots=True)
class Cut:
    """The clock stands at *now_s*, and may have been set back."""

    now_s: float

    def of(self, at_s: F64) -> F64:
        """Instants of which none is in the future."""
        return np.where(at_s > self.now_s + SLACK_S, self.now_s, at_s)

    def end_of(self, steer: Steer) -> float:
        """Until when *steer* lasts: no longer from now on than it was to last in all."""
        if math.isinf(steer.until_s) or steer.since_s <= self.now_s + SLACK_S:
            return steer.until_s
        longest_s = max(0.0, steer.until_s - steer.since_s)
        return min(steer.until_s, self.now_s + longest_s)


ClockAdjustment = Shift | Cut
"""How instants are to be moved."""


def retimed_service(service: AttainedService, how: ClockAdjustment) -> tuple[AttainedService, Bool]:
    """*service* with its instants moved, and ``(k,)`` which rows that changed."""
    moved: dict[str, Column] = {name: how.of(getattr(service, name)) for name in _INSTANTS}
    changed = np.zeros(len(service), dtype=np.bool_)
    for name, column in moved.items():
        changed |= column != getattr(service, name)
    return dataclasses.replace(service, **moved), changed


def retimed_handover(handover: Handover, how: ClockAdjustment) -> Handover:
    """*handover* with its instants moved; equal to it if there is nothing to move."""
    victims = tuple(
        dataclasses.replace(
            victim,
            signalled_s=_moved(victim.signalled_s, how),
            gone_s=_moved(victim.gone_s, how),
        )
        for victim in handover.victims
    )
    opened_s = _moved(handover.opened_s, how)
    return dataclasses.replace(handover, victims=victims, opened_s=opened_s)


def retimed_steer(steer: Steer, how: ClockAdjustment) -> Steer:
    """*steer* with its end moved; equal to it if there is nothing to move.

    When it began is left: a job that was submitted later than that has been requeued. So is what
    was written into Slurm.
    """
    return dataclasses.replace(steer, until_s=how.end_of(steer))


def retimed_restart(restart: Restart, how: ClockAdjustment) -> Restart:
    """*restart* with the instants that are ours moved."""
    return dataclasses.replace(
        restart,
        requeued_s=_moved(restart.requeued_s, how),
        settled_s=_moved(restart.settled_s, how),
    )


def retimed_breaker(breaker: Breaker, how: ClockAdjustment) -> Breaker:
    """*breaker* with its instants moved: one that was reset goes on counting from then."""
    return dataclasses.replace(
        breaker,
        tripped_s=_moved(breaker.tripped_s, how),
        reset_s=_moved(breaker.reset_s, how),
    )


def _moved(at_s: float, how: ClockAdjustment) -> float:
    return float(how.of(np.array([at_s]))[0])
