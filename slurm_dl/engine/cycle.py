"""One cycle: observe, decide, apply. The only place where the three meet.

The cluster, real, simulated or fake, is whatever was passed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from slurm_dl.engine.decide import decide, engine_of
from slurm_dl.engine.fresh_look import LookAgain, with_fresh_look, with_room
from slurm_dl.engine.settings import External, Mode, Settings
from slurm_dl.engine.site_factors import AskByHand, PassGate, UndoneWrites, sift_disturbing
from slurm_dl.engine.write_retries import Effort, Refusals, is_standalone_write
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.booking import Entry, updated
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import Handover, Run, VictimState
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import (
    Action,
    Book,
    ClusterAction,
    Plan,
    SetSiteFactor,
    Signal,
    Unfinished,
    Unseal,
)
from slurm_dl.model.snapshot import Observed, Snapshot
from slurm_dl.policies.base import Policy


class Cluster(Protocol):
    """The cluster that the engine reads and changes."""

    def observe(self) -> Observed:
        """The cluster now.

        Raises:
            ClusterError: It could not be read whole; half a picture is never returned.
        """

    def apply(self, action: ClusterAction, /) -> Unfinished | None:
        """Do one thing; a signal may be begun only, so that many are under way at once.

        Returns:
            How the signal ends; None if it is done.

        Raises:
            ClusterError: Refused or silent; nothing may be assumed about the effect.
        """


@dataclass(frozen=True, slots=True)
class AppliedAction:
    """Result of one action: *error* is empty if it was applied."""

    action: Action
    error: str = ""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Cycle:
    """One cycle, whole: what was seen, decided and done.

    Attributes:
        done: Actions tried, in order; those left over are derived again next time.
        left: Actions not tried: out of budget or of time, behind one that failed, or refused
            before and not yet to be tried again.
        settings: What was decided by; None: external mode, any grace, no costs of stopping.
    """

    snapshot: Snapshot
    plan: Plan
    acting: bool  # Whether the plan was applied at all
    done: tuple[AppliedAction, ...] = ()
    left: tuple[Action, ...] = ()
    settings: Settings | None = None

    @property
    def mode(self) -> Mode:
        """The mode of preemption of this cycle."""
        return External() if self.settings is None else self.settings.mode

    @property
    def booked(self) -> tuple[Entry, ...]:
        """The book after this cycle."""
        written = (a.action for a in self.done if isinstance(a.action, Book) and not a.error)
        return updated(self.snapshot.booked, (e for book in written for e in book.entries))

    @property
    def max_grace_s(self) -> float:
        """A job with a longer grace was not to be preempted, seconds."""
        return math.inf if self.settings is None else self.settings.preemption.max_grace_s


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
    backfilling: Callable[[], bool] = lambda: False,
    carry: Carry | None = None,
    complete: Callable[[Observed], None] = lambda _: None,
    enrich: Callable[[Snapshot], Snapshot] = lambda snap: snap,
    look_again: LookAgain | None = None,
    ask_by_hand: AskByHand = lambda _: {},
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
        backfilling: Whether a backfill pass is under way in Slurm; asked once, before writes.
        carry: What is remembered of earlier cycles; None: each cycle is the first.
        complete: Told what was seen once it is booked; may restore to the ledger what was missed.
        enrich: Adds to a snapshot what is known of its jobs beforehand.
        look_again: Looks at the cluster again before a hand-over begins; None: what `observe` tells
            is all there is, and never old.
        ask_by_hand: Asks of which jobs the priority was set by hand.

    Raises:
        ClusterError: The cluster could not be read; nothing was done.
    """
    carry = carry or Carry()
    steps = _Steps(
        cluster,
        ledger,
        clock=clock,
        on_done=on_done,
        timer=timer,
        carry=carry,
    )
    steps.conclude_signals(0.0)
    seen = cluster.observe()
    ledger.book(seen)
    steps.conclude_acknowledged(seen)
    complete(seen)
    engine = engine_of(settings)
    rewrite: frozenset[JobId] | None = None

    def decided(seen: Observed) -> tuple[Snapshot, Plan]:
        nonlocal rewrite
        snap = enrich(engine.recount(ledger.snapshot(seen, settings.partitions)))
        if rewrite is None:
            rewrite = carry.undone.look(snap, engine.undone(snap), ask_by_hand, acting=acting)
        snap = snap.derived(rewrite=rewrite) if rewrite else snap
        snap = carry.undone.marked(snap)
        return snap, decide(snap, policy, settings)

    snap, plan = decided(seen)
    while carry.undone.look_before(snap, plan, ask_by_hand):
        snap, plan = decided(seen)
    if look_again is not None:
        # What is never done is decided anew in each cycle: one look at it is enough.
        carry.asked = set() if acting else carry.asked & set(seen.texts)
        snap, plan = with_fresh_look(
            snap, plan, look_again, decided, room_for=carry.room_for, asked=carry.asked
        )
        carry.room_for = with_room(plan)
    seen = snap.seen
    ledger.owe(snap, plan)
    if not acting:
        return Cycle(
            snap,
            plan,
            acting=False,
            done=tuple(steps.done),
            left=plan.actions,
            settings=settings,
        )
    effort = Effort(timer=timer, for_s=write_for_s)

    def may_try(action: Action) -> bool:
        return (
            allows(action)
            and effort.allows(action)
            and not carry.under_way.includes(action)
            and (not is_standalone_write(action) or may_write())
        )

    todo, left = carry.refusals.sift(plan.actions)
    steps.in_pass = any(isinstance(a, SetSiteFactor | Unseal) for a in todo) and backfilling()
    if carry.gate.holds(in_pass=steps.in_pass):
        todo, held = sift_disturbing(todo, snap.rewrite)
        left += held
    try:
        for action in todo:
            if not may_try(action):
                left.append(action)
                continue
            before(action)
            steps.do(action, seen, effort)
    finally:
        steps.conclude_signals(_SIGNAL_WAIT_S)
    return Cycle(
        snap,
        plan,
        acting=True,
        done=tuple(steps.done),
        left=tuple(left),
        settings=settings,
    )


_SIGNAL_WAIT_S: Final = 2.0  # A cycle waits this long for the signals that it has begun


class _SignalsUnderWay:
    """Signals that were begun and not answered for yet, from one cycle to the next.

    A slow slurmctld takes longer to answer for a signal than a cycle may take. The cycle goes on,
    and no second signal is sent to that run meanwhile.
    """

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
        self._unacknowledged = {run: s for run, s in waiting if _still_counts(s, handovers)}
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


def _still_counts(signal: Signal, handovers: tuple[Handover, ...]) -> bool:
    """Whether the run is still to be signalled: it may have ended meanwhile."""
    return any(
        victim.run == signal.run and victim.state is VictimState.SIGNALLING
        for handover in handovers
        if handover.handover_id == signal.handover_id
        for victim in handover.victims
    )


@dataclass(slots=True)
class Carry:
    """State kept from cycle to cycle, beside the ledger; lost with the process.

    Attributes:
        under_way: Signals that have not been answered for.
        undone: SiteFactors that Slurm has undone, and priorities that were set by hand.
        gate: Whether the last cycle waited for the end of a backfill pass.
        asked: Jobs that were asked about before a hand-over was to begin.
    """

    refusals: Refusals = field(default_factory=Refusals)  # Writes that failed
    under_way: _SignalsUnderWay = field(default_factory=_SignalsUnderWay)
    undone: UndoneWrites = field(default_factory=UndoneWrites)
    gate: PassGate = field(default_factory=PassGate)
    room_for: frozenset[JobId] = frozenset()  # Jobs for which there was room
    asked: set[JobId] = field(default_factory=set)


class _Steps:
    """The actions of one cycle, and what is written down of them."""

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        *,
        clock: Callable[[], float],
        on_done: Callable[[AppliedAction], None],
        timer: Callable[[], float],
        carry: Carry,
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._clock = clock
        self._on_done = on_done
        self._timer = timer
        self._carry = carry
        self.in_pass = False
        self.done: list[AppliedAction] = []

    def do(self, action: Action, seen: Observed, effort: Effort) -> None:
        """Try one action; a signal that was only begun is concluded later."""
        self._ledger.begin(action)
        error = ""
        if isinstance(action, ClusterAction):
            try:
                finish = self._cluster.apply(action)
            except ClusterError as err:
                error = str(err) or "refused without a word"
            else:
                if isinstance(action, Signal) and finish is not None:
                    self._carry.under_way.add(action, finish, seen)
                    return
        effort.note(action, failed=bool(error))
        self._carry.refusals.note(action, failed=bool(error))
        if isinstance(action, SetSiteFactor) and not error:
            self._carry.undone.wrote(action.job_id, in_pass=self.in_pass)
        self._conclude(action, error)

    def conclude_signals(self, within_s: float) -> None:
        """Book the signals that end within *within_s*, seconds."""
        for signal, error in self._carry.under_way.ended(self._timer, within_s):
            if _still_counts(signal, self._ledger.handovers):
                self._conclude(signal, error)

    def conclude_acknowledged(self, seen: Observed) -> None:
        """Book the signals that are known to have arrived although nobody answered for them."""
        for signal in self._carry.under_way.acknowledged(seen, self._ledger.handovers):
            self._conclude(signal, "")

    def _conclude(self, action: Action, error: str) -> None:
        if not error:
            self._ledger.settle(action, self._clock())
        self.done.append(AppliedAction(action, error))
        self._on_done(self.done[-1])
