"""Recorded instants after slurmctld's clock was set: none stays in the future.

Else a grace would last as long as the clock was set back. Instants that Slurm reports, such as the
start of a run, are left as they are: they say which run is meant.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TypeVar

import numpy as np

from slurm_dl.ledger.attained_service import AttainedService
from slurm_dl.model.breaker import Breaker, Restart, Taken
from slurm_dl.model.handover import Handover, Victim, VictimState
from slurm_dl.model.jobs import Bool
from slurm_dl.model.steer import Steer

SLACK_S = 5.0
"""slurmctld's time is known to a second or two; an instant this far ahead is not in the future."""

_INSTANTS = (*("counted_to_s", "last_seen_s", "last_preempted_s", "last_fruitless_s", "queued_s"),)

Record = TypeVar("Record", bound=Handover | Victim | Restart | Breaker | Taken)


def cut(record: Record, now_s: float, *instants: str) -> Record:
    """*record* with its fields *instants* set to *now_s* where they are later."""
    late = {name: now_s for name in instants if getattr(record, name) > now_s + SLACK_S}
    return dataclasses.replace(record, **late) if late else record  # type: ignore[arg-type]


def cut_service(service: AttainedService, now_s: float) -> tuple[AttainedService, Bool]:
    """*service* with its late instants set to *now_s*, and ``(k,)`` which rows that changed."""
    late = {name: getattr(service, name) > now_s + SLACK_S for name in _INSTANTS}
    columns = {name: np.where(rows, now_s, getattr(service, name)) for name, rows in late.items()}
    return dataclasses.replace(service, **columns), np.logical_or.reduce([*late.values()])


def cut_handover(handover: Handover, now_s: float, *, grace_anew: bool) -> Handover:
    """*handover* with its late instants set to *now_s*.

    Args:
        grace_anew: Whether its own time, and the grace of jobs that were signalled, start again.
    """
    victims = tuple(
        dataclasses.replace(victim, signalled_s=now_s)
        if grace_anew and victim.state is VictimState.SIGNALLED
        else cut(victim, now_s, "signalled_s", "gone_s")
        for victim in handover.victims
    )
    opened_s = now_s if grace_anew else cut(handover, now_s, "opened_s").opened_s
    return dataclasses.replace(handover, victims=victims, opened_s=opened_s)


def cut_steer(steer: Steer, now_s: float) -> Steer:
    """*steer*, to end no later than its whole duration after *now_s*, if it began in the future."""
    if math.isinf(steer.until_s) or steer.since_s <= now_s + SLACK_S:
        return steer
    duration_s = max(0.0, steer.until_s - steer.since_s)
    return dataclasses.replace(steer, until_s=min(steer.until_s, now_s + duration_s))
