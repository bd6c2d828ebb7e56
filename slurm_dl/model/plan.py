"""A decision as data: what to do, in which order, and why.

`Action` is a closed union; a backend that applies actions matches on all of them. Every action is
idempotent or carries what must still be true for it to be right.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from slurm_dl.model.booking import Entry
from slurm_dl.model.breaker import Breaker, BreakerName
from slurm_dl.model.contract import SignalTarget
from slurm_dl.model.handover import Handover, Run
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import F64, I16, I32
from slurm_dl.model.json_marks import OneOf
from slurm_dl.model.shape import Shape
from slurm_dl.model.steer import Steer


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSiteFactor:
    """Write Slurm's SiteFactor of a job; the record as a whole for a pending array.

    *handover_id* is set where the write is the first step of a preemption.
    """

    job_id: JobId
    value: int
    why: str
    handover_id: HandoverId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote:
    """Take the service so far out of a starving job's ranking. Only the ledger changes."""

    job_id: JobId
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TripBreaker:
    """Write down that nothing new is begun until *breaker* re-arms or is reset. Only the ledger.

    *why* goes to everybody who waits, so it names no job; *jobs* does. *at_s* is when, epoch
    seconds; *rearm_s* is the time until it re-arms, seconds; 0: only a reset ends it.
    """

    breaker: BreakerName
    at_s: float
    why: str
    jobs: tuple[JobId, ...] = ()
    rearm_s: float = 0.0

    def of(self, before: Breaker) -> Breaker:
        """*before*, tripped."""
        return dataclasses.replace(
            before, tripped_s=self.at_s, why=self.why, jobs=self.jobs, rearm_s=self.rearm_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """Write down what the policy is to find at its next decisions. Only the ledger changes.

    One action carries all entries of a decision, so that no part of a change is stored alone.
    """

    entries: tuple[Entry, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenHandover:
    """Write a hand-over down before anything of it is done. Only the ledger changes."""

    handover: Handover
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Create the reservation that keeps *nodes* for the owners *uids*; ours already: nothing."""

    handover_id: HandoverId
    nodes: tuple[str, ...]
    uids: tuple[int, ...]
    duration_s: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """Let a pending beneficiary use the hand-over's reservation."""

    handover_id: HandoverId
    job_id: JobId
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Detach:
    """Clear a pending job's ReservationName, which was one of ours."""

    job_id: JobId
    why: str
    handover_id: HandoverId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Ask a victim to save its work. Right only while *run* is still the job's run.

    Attributes:
        preemptions: How often the job will have been preempted once this run is over, which it is
            told; None: it is not told.
    """

    handover_id: HandoverId
    run: Run
    signal: str
    target: SignalTarget
    why: str
    preemptions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """Put a victim back into the queue. Right only while *run* is still the job's run.

    *ended* is the exit status of the run, as a shell has it, if it has failed already; else 0.
    """

    handover_id: HandoverId
    run: Run
    why: str
    ended: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Put a job that has failed back into the queue; right only while *run* is its last run."""

    run: Run
    hold: bool  # It stays held until its owner releases it
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrink:
    """Take all nodes but *nodes* from a running victim. Right only while *run* is still its run."""

    handover_id: HandoverId
    run: Run
    nodes: tuple[str, ...]  # Names; the node of the batch script is one of them
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkGone:
    """Write down that a victim's run has ended. Only the ledger changes."""

    handover_id: HandoverId
    job_id: JobId
    outcome: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseal:
    """Delete a reservation of ours, or let it lapse while jobs run in it; gone already: nothing."""

    name: str
    handover_id: HandoverId | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseHandover:
    """Write down that a hand-over is over. Only the ledger changes.

    *fruitless* names the beneficiaries that it was in vain for: they are not tried again at once.
    """

    handover_id: HandoverId
    outcome: str
    why: str
    fruitless: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSteer:
    """Keep a pending job from some nodes, and from starting too early, for a while.

    *lift* is set where it was put off by us before and is not any more.
    """

    steer: Steer
    why: str
    lift: bool = False
    handover_id: HandoverId | None = None

    @property
    def job_id(self) -> JobId:
        """The job."""
        return self.steer.job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearSteer:
    """Let a pending job go wherever its owner lets it; *own* is what the owner excludes."""

    job_id: JobId
    own: tuple[str, ...]
    why: str
    lift: bool = False
    handover_id: HandoverId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trim:
    """Cut a pending job's CPUs and memory to what its owner said it can do with.

    *cpus* and *mem_mb* are for each of its nodes; 0 leaves them as they are.
    """

    job_id: JobId
    cpus: int
    mem_mb: int
    why: str
    handover_id: HandoverId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshape:
    """Give a pending job another size; the whole request is written, whatever Slurm shows."""

    job_id: JobId
    shape: Shape  # Nodes, and GPUs on each
    cpus: int  # CPUs on each node; 0 leaves them as they are
    mem_mb: int  # Memory on each node, MB; 0 leaves it as it is
    why: str
    handover_id: HandoverId | None = None
    gpu_type: str = ""  # GPUs of this type from now on; empty: of that which it asks for, if any


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """Set ArrayTaskThrottle: *tasks* of the array may run at once; 0: no bound."""

    job_id: JobId
    tasks: int
    why: str
    handover_id: HandoverId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetSteer:
    """Write down that a steer is over, and how it ended. Only the ledger changes.

    *outcome* is one of ``honoured`` (it started where it should), ``not honoured``, ``let go`` (it
    started after its steer was over) and ``gone``. Of a job that has started, what stands in its
    ExcNodeList is still remembered.
    """

    job_id: JobId
    outcome: str
    why: str
    late_s: float | None = None  # Its start after the expected one, seconds; None: none is known


ClusterAction = (
    SetSiteFactor
    | Reserve
    | Attach
    | Detach
    | Signal
    | Requeue
    | Retry
    | Shrink
    | Unseal
    | SetSteer
    | ClearSteer
    | Trim
    | Reshape
    | Throttle
)
"""Actions that reach the cluster."""

Unfinished = Callable[[float], bool]
"""How a signal that was begun ends: waits so many seconds at most, and is True once it has ended.

It raises `ClusterError` if the signal was refused, or was not answered for in time.
"""

LedgerAction = Promote | TripBreaker | Book | OpenHandover | MarkGone | CloseHandover | ForgetSteer
"""Actions that only change what we remember."""

Action = ClusterAction | LedgerAction


def handover_of(action: Action) -> HandoverId | None:
    """The hand-over an action is a step of; None if it stands alone."""
    match action:
        case OpenHandover(handover=handover):
            return handover.handover_id
        case Promote() | TripBreaker() | Book() | ForgetSteer() | Retry():
            return None
        case _:
            return action.handover_id


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """Everything one cycle decided.

    Attributes:
        rank: ``(n,)`` int32, place in the order over all managed live jobs, 0 is first; -1 if none.
        share: ``(n, t)`` the share of time each job deserves on each GPU type, 0 for those that are
            not managed; None if the policy gives no shares.
        sizes: Sizes that elastic jobs of the target should have.
        notes: Why something was not done, by job; for ``why``.
        unhonoured: Jobs whose SiteFactor was written and is not in their priority.
        wake_at_s: Earliest instant at which the plan changes by itself, epoch seconds; inf if none.
    """

    tier: I16  # ``(n,)`` int16, the queue of each job, 0 is best; -1 if it is not managed
    rank: I32
    key: F64  # ``(n,)`` float64, the policy's key inside the tier
    target: frozenset[JobId]  # Job ids that would hold GPUs if the policy alone decided
    actions: tuple[Annotated[Action, OneOf()], ...]  # What to do, in this order
    notes: Mapping[JobId, str] = field(default_factory=dict)
    unhonoured: tuple[JobId, ...] = ()
    wake_at_s: float = float("inf")
    share: F64 | None = None
    lease_s: float = 0.0  # Length of the leases that jobs have, seconds; 0 if none
    held: frozenset[JobId] = frozenset()  # Jobs that are put off because the policy bars them
    sizes: Mapping[JobId, Shape] = field(default_factory=dict)
