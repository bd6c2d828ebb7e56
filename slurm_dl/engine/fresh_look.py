"""Nodes and jobs read again before a costly act: nobody is stopped by a picture that is old.

Nodes are read every few minutes, and not all of what a job asks for is read while it only waits. So
a decision that would begin a hand-over, or says for the first time that there is room for a job, is
made again from a look that is fresh.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final, Protocol

from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import OpenHandover, Plan, handover_of
from slurm_dl.model.snapshot import Observed, Snapshot

THERE_IS_ROOM: Final = "there is room for it: Slurm is to start it in its next pass"
"""Why no GPUs are taken back for a waiting job that fits beside those that run."""

_MOST_ROUNDS: Final = 3


class LookAgain(Protocol):
    """A second look at the cluster within one cycle."""

    def __call__(self, seen: Observed, jobs: frozenset[JobId], *, nodes: bool) -> Observed:
        """*seen*, the last look, with all that is to be known of *jobs* and fresh nodes if *nodes*.

        It lists the same jobs in the same order.

        Raises:
            ClusterError: It could not be read whole.
        """


def with_fresh_look(
    snap: Snapshot,
    plan: Plan,
    look_again: LookAgain,
    decide: Callable[[Observed], tuple[Snapshot, Plan]],
    *,
    room_for: frozenset[JobId],
    asked: set[JobId],
) -> tuple[Snapshot, Plan]:
    """The decision, made again until all whom it stops, and for whom, were asked about.

    What is found is remembered by the cluster: hand-overs that are still in question after a few
    rounds are left to the next cycle.

    Args:
        decide: Makes a snapshot and a decision of what was seen.
        room_for: Jobs for which there was room by the last fresh look.
        asked: Jobs that need not be asked about again; those that are asked about are added.
    """
    for turn in range(_MOST_ROUNDS):
        new = frozenset().union(*map(_concerned, _opened(plan))) - asked
        if not (new or (turn == 0 and with_room(plan) - room_for)):
            return snap, plan
        asked |= new
        snap, plan = decide(look_again(snap.seen, new, nodes=turn == 0))
    unsure = {h.handover_id for h in _opened(plan) if _concerned(h) - asked}
    actions = tuple(a for a in plan.actions if handover_of(a) not in unsure)
    return snap, dataclasses.replace(plan, actions=actions)


def _opened(plan: Plan) -> list[Handover]:
    return [action.handover for action in plan.actions if isinstance(action, OpenHandover)]


def _concerned(handover: Handover) -> frozenset[JobId]:
    return frozenset((*handover.beneficiaries, *(v.run.job_id for v in handover.victims)))


def with_room(plan: Plan) -> frozenset[JobId]:
    """The waiting jobs that fit beside those that run."""
    return frozenset(job for job, why in plan.notes.items() if why == THERE_IS_ROOM)
