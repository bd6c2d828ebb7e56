"""One cycle: observe, decide, apply. The only place where the three meet.

The cluster, real, simulated or fake, is whatever was passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from slurm_dl.engine.decide import decide
from slurm_dl.engine.ledger import Ledger
from slurm_dl.engine.settings import Settings
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import HandoverId
from slurm_dl.model.plan import Action, ClusterAction, Plan, handover_of
from slurm_dl.model.snapshot import Observed, Snapshot
from slurm_dl.policies.base import Policy


class Cluster(Protocol):
    """What is scheduled, as the engine needs it."""

    def observe(self) -> Observed:
        """The cluster now.

        Raises:
            ClusterError: It could not be read whole; half a picture is never returned.
        """

    def apply(self, action: ClusterAction, /) -> None:
        """Do one thing.

        Raises:
            ClusterError: Refused or silent; nothing may be assumed about the effect.
        """


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one action: *error* is empty if it was applied."""

    action: Action
    error: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Cycle:
    """One cycle, whole: what was seen, decided and done.

    Attributes:
        acting: Whether the plan was applied at all.
        done: Actions tried, in order; those left over are derived again next time.
        left: Actions not tried: out of budget, or behind one that failed.
    """

    snapshot: Snapshot
    plan: Plan
    acting: bool
    done: tuple[Done, ...] = ()
    left: tuple[Action, ...] = ()


def run_cycle(
    cluster: Cluster,
    ledger: Ledger,
    policy: Policy,
    settings: Settings,
    *,
    clock: Callable[[], float],
    acting: bool,
    may_write: Callable[[], bool] = lambda: True,
    on_done: Callable[[Done], None] = lambda _: None,
) -> Cycle:
    """Observe, decide and, if *acting*, apply.

    Args:
        clock: Epoch seconds now; waits of a hand-over count from when a step was really done.
        may_write: Asked before each standalone write to the cluster; False leaves it for the next
            cycle. Steps of a hand-over are not asked about: they are few, and half of one would
            be worse than all of it.
        on_done: Told of each action as soon as its result is known.

    Raises:
        ClusterError: The cluster could not be read; nothing was done.
    """
    seen = cluster.observe()
    ledger.book(seen)
    snap = ledger.snapshot(seen, settings.partitions)
    plan = decide(snap, policy, settings)
    if not acting:
        return Cycle(snap, plan, acting=False, left=plan.actions)
    ledger.doubt(plan.unhonoured)
    done: list[Done] = []
    left: list[Action] = []
    broken: set[HandoverId] = set()
    for action in plan.actions:
        handover_id = handover_of(action)
        if handover_id in broken or (
            handover_id is None and isinstance(action, ClusterAction) and not may_write()
        ):
            left.append(action)
            continue
        error = ""
        ledger.begin(action)
        if isinstance(action, ClusterAction):
            try:
                cluster.apply(action)
            except ClusterError as err:
                error = str(err)
        if not error:
            ledger.settle(action, clock())
        elif handover_id is not None:
            broken.add(handover_id)
        done.append(Done(action, error))
        on_done(done[-1])
    return Cycle(snap, plan, acting=True, done=tuple(done), left=tuple(left))
