"""One cycle: observe, decide, apply. The only place where the three meet.

The cluster, real, simulated or fake, is whatever was passed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from slurm_dl.engine.decide import decide, engine_of
from slurm_dl.engine.settings import External, Mode, Settings
from slurm_dl.engine.write_retries import Effort, Refusals, is_standalone_write
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.plan import Action, ClusterAction, Plan
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
class AppliedAction:
    """What became of one action: *error* is empty if it was applied."""

    action: Action
    error: str = ""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Cycle:
    """One cycle, whole: what was seen, decided and done.

    Attributes:
        acting: Whether the plan was applied at all.
        done: Actions tried, in order; those left over are derived again next time.
        left: Actions not tried: out of budget or of time, behind one that failed, or refused
            before and not yet to be tried again.
        mode: Who was to take GPUs back.
        max_grace_s: A job with a longer grace was not to be preempted, seconds.
    """

    snapshot: Snapshot
    plan: Plan
    acting: bool
    done: tuple[AppliedAction, ...] = ()
    left: tuple[Action, ...] = ()
    mode: Mode = field(default_factory=External)
    max_grace_s: float = math.inf


def run_cycle(
    cluster: Cluster,
    ledger: Ledger,
    policy: Policy,
    settings: Settings,
    *,
    clock: Callable[[], float],
    acting: bool,
    may_write: Callable[[], bool] = lambda: True,
    allows: Callable[[Action], bool] = lambda _: True,
    before: Callable[[Action], None] = lambda _: None,
    on_done: Callable[[AppliedAction], None] = lambda _: None,
    timer: Callable[[], float] = lambda: 0.0,
    write_for_s: float = math.inf,
    refusals: Refusals | None = None,
    complete: Callable[[Observed], None] = lambda _: None,
    enrich: Callable[[Snapshot], Snapshot] = lambda snap: snap,
) -> Cycle:
    """Observe, decide and, if *acting*, apply.

    Args:
        clock: Epoch seconds now; waits of a hand-over count from when a step was really done.
        may_write: Asked before each standalone write to the cluster; False leaves it for the next
            cycle. Steps of a hand-over are not asked about: they are few, and half of one would
            be worse than all of it.
        allows: Asked about each action; False leaves it for a later cycle. A step of a
            hand-over is right only if those before it were done.
        before: Told of each action before it is written down or tried; may raise to end the cycle
            with this action undone.
        on_done: Told of each action as soon as its result is known.
        timer: Seconds that only go forward.
        write_for_s: No standalone write is begun later than this after the first action was, by
            *timer*; see `Effort`.
        refusals: What is remembered of earlier cycles; None: each cycle tries everything.
        complete: Told what was seen once it is booked; may restore to the ledger what was missed.
        enrich: Adds to a snapshot what is known of its jobs beforehand.

    Raises:
        ClusterError: The cluster could not be read; nothing was done.
    """
    mode, max_grace_s = settings.mode, settings.preemption.max_grace_s
    seen = cluster.observe()
    ledger.book(seen)
    complete(seen)

    def plan_now() -> tuple[Snapshot, Plan]:
        snap = enrich(engine_of(settings).recount(ledger.snapshot(seen, settings.partitions)))
        return snap, decide(snap, policy, settings)

    snap, plan = plan_now()
    ledger.owe(snap, plan)
    if not acting:
        return Cycle(
            snap, plan, acting=False, left=plan.actions, mode=mode, max_grace_s=max_grace_s
        )
    if ledger.doubt(plan.unhonoured):
        # What is written again has its place in the order of writing.
        snap, plan = plan_now()
    refusals = refusals or Refusals()
    todo, left = refusals.sift(plan.actions)
    effort = Effort(timer=timer, for_s=write_for_s)
    done: list[AppliedAction] = []
    for action in todo:
        if (
            not allows(action)
            or not effort.allows(action)
            or (is_standalone_write(action) and not may_write())
        ):
            left.append(action)
            continue
        before(action)
        ledger.begin(action)
        error = _apply(cluster, action)
        if not error:
            ledger.settle(action, clock())
        effort.note(action, failed=bool(error))
        refusals.note(action, failed=bool(error))
        done.append(AppliedAction(action, error))
        on_done(done[-1])
    return Cycle(
        snap,
        plan,
        acting=True,
        done=tuple(done),
        left=tuple(left),
        mode=mode,
        max_grace_s=max_grace_s,
    )


def _apply(cluster: Cluster, action: Action) -> str:
    """Do one thing; why it failed, or nothing."""
    if isinstance(action, ClusterAction):
        try:
            cluster.apply(action)
        except ClusterError as err:
            return str(err) or "refused without a word"
    return ""
