"""One cycle: observe, decide, apply. The only place where the three meet.

The cluster, real, simulated or fake, is whatever was passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from slurm_dl.engine.decide import Settings, decide
from slurm_dl.engine.ledger import Ledger
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import HandoverId
from slurm_dl.model.plan import Action, ClusterAction, LedgerAction, Plan, handover_of
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
    acting: bool,
    may_write: Callable[[], bool] = lambda: True,
    on_done: Callable[[Done], None] = lambda _: None,
) -> Cycle:
    """Observe, decide and, if *acting*, apply.

    Args:
        may_write: Asked before each action that reaches the cluster; False ends the
            standalone writes of this cycle. Steps of a hand-over are never cut by it half-way.
        on_done: Told of each action as soon as its result is known.

    Raises:
        ClusterError: The cluster could not be read; nothing was done.
    """
    raise ClusterError
