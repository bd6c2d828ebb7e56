"""Contents of the ledger that survive the daemon, and the interface of their store.

Shadow mode and forecasts keep rows there that the ledger does not use: of a user's job nothing but
numbers and the account's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from slurm_dl.ledger.attained_service import AttainedService, EndedRun
from slurm_dl.ledger.completions import JobEnding
from slurm_dl.ledger.lease_credits import Owed
from slurm_dl.model.booking import Entry
from slurm_dl.model.breaker import Breaker, Restart, Taken
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import HandoverId
from slurm_dl.model.steer import Steer

LONGEST_NAME = 64  # Characters of an account that are kept, and of a GPU type

MOST_VICTIMS = 100
"""Victims and beneficiaries of one planned hand-over that are kept; the rest is counted."""

LONGEST_WHY = 300
UNSEEN = "unseen"  # The end of a planned hand-over whose job was gone when the next daemon looked


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowJob:
    """A job that has run: one that ended, one that vanished, or one that is not over yet."""

    job_id: int
    uid: int
    account: str  # Its account, cut to `LONGEST_NAME`
    gpus: float  # GPUs it held
    submit_s: float  # First submission, epoch seconds
    start_s: float  # First start, epoch seconds
    ran_s: float  # Seconds it ran, over all its runs
    end_s: float  # Its end; of others the last look that listed it, epoch seconds
    how: str  # ``C`` ended with success, ``F`` without, ``V`` vanished; empty: runs, ``W``: waits
    opted_in: bool  # It had declared a preemption contract


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedVictim:
    """A run that would have been stopped."""

    job_id: int
    restarts: int
    uid: int
    account: str
    gpus: float
    ran_s: float  # Seconds since the run's start when the hand-over was planned first
    grace_s: float  # Longest wait between signal and requeue that it asks for


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedHandover:
    """A hand-over that would have begun; one for one wait of the job that it is for.

    Attributes:
        lead_uid, lead_account, lead_gpus: Whose it is, and GPUs of one task.
        begin_s, last_s: First and last look that had it in its plan, epoch seconds.
        others: How often a look wanted other victims than the look before that had it; one too
            few after a restart of the daemon.
        end: Empty while it is not over; ``started``, ``gone`` (without a start), ``over`` (there
            is no lead, and no victim is left), or `UNSEEN`.
    """

    key: str  # What makes it the same one at the next look, and after a restart
    purpose: str  # As in `Handover`
    lead: int  # The best beneficiary; 0 if there is none
    lead_uid: int
    lead_account: str
    lead_gpus: float
    beneficiaries: tuple[int, ...]  # All of them as they were first, `MOST_VICTIMS` at most
    victims: tuple[PlannedVictim, ...]  # As they were first, `MOST_VICTIMS` at most
    gpus: float  # GPUs of all victims
    why: str  # The engine's reason
    begin_s: float
    last_s: float
    others: int = 0
    end: str = ""
    started_s: float = 0.0  # When the lead started in reality, epoch seconds; 0 if it has not


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteTotals:
    """The looks of a minute of shadow mode, added up.

    Attributes:
        from_s, to_s: First and last look, epoch seconds.
        gpus, held: GPUs that were up in managed partitions, and of those held, at the last look.
        waiting: Waiting jobs of managed partitions, tasks of arrays one by one; mean over looks.
        others: Of the first jobs, share that would not be there in Slurm's order; mean over
            *compared*.
        never_ran: Waiting jobs that have never run, tasks of arrays one by one, at the last look.
    """

    from_s: float
    to_s: float
    looks: int  # How many
    missed: int  # Planned hand-overs and rows that could not be kept, since the last
    policy: str  # What ordered the queue
    mode: str  # Who was to take GPUs back: ``external``, ``native``, or ``off``
    gpus: float
    held: float
    waiting: float
    compared: int  # Looks with at least two jobs that could start
    first_other: int  # Of those, looks where another job would be first than in Slurm's order
    others: float
    wishes: int  # Most hand-overs in one plan
    tripped: int  # Looks in which a circuit breaker would have tripped
    shape: tuple[tuple[int, int, str], ...]  # Nodes that were up, as (nodes, GPUs of each, type)
    never_ran: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRange:
    """A range that was forecast of a waiting job's start, and what became of it; epoch seconds."""

    job_id: int
    asked_s: float
    low_s: float
    median_s: float  # Inf if more than half of the runs did not come to a start
    high_s: float  # Inf if it has no end within the horizon
    held: bool | None = None  # The job started inside it; None: not judged yet
    error_s: float | None = None  # Start less median, seconds; None where either is unknown
    judged_s: float = 0.0  # When it was judged, or let go without a verdict; 0: it is waited for


Noted = ShadowJob | PlannedHandover | MinuteTotals | ForecastRange


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRecord:
    """All that is known of shadow mode since some instant."""

    minutes: tuple[MinuteTotals, ...]  # As they were written
    planned: tuple[PlannedHandover, ...]  # In the order of their begin
    ended: tuple[ShadowJob, ...]  # Jobs that have run and ended, or vanished
    unfinished: tuple[ShadowJob, ...]  # Jobs that have run and were not over at the last look
    bad: int = 0  # Rows that could not be read


_T = TypeVar("_T", bound=Noted)

HOUR_S = 3600.0  # GPUs that were taken back are remembered for this long


@dataclass(frozen=True, slots=True, eq=False)
class LedgerContents:
    """Everything a store holds."""

    service: AttainedService
    handovers: tuple[Handover, ...]
    next_handover_id: HandoverId
    taken: tuple[Taken, ...]
    steers: tuple[Steer, ...] = ()
    lost_pairs: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    restarts: tuple[Restart, ...] = ()
    breakers: tuple[Breaker, ...] = ()
    booked: tuple[Entry, ...] = ()
    owed: Owed | None = None
    distrust_until_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoreChange:
    """A change that a store writes as a whole or not at all.

    Attributes:
        over_before_s: Drop jobs that are over and were seen last before this, epoch seconds, and
            what is remembered of jobs that are gone by then; None drops nothing.
        handovers: Hand-overs to insert or replace, each with why it is closed; empty if it is not.
        cut_to_s: Before all else, set later instants of what the store alone remembers to this,
            epoch seconds: GPUs that were taken, and jobs that are over and how they ended.
        distrust_until_s: Until when the clock is not believed; None leaves that as it is.
    """

    jobs: AttainedService | None = None  # Jobs to insert or replace
    ended: Sequence[EndedRun] = ()  # Runs that are over
    forgotten: Sequence[int] = ()  # Ids of jobs to drop
    endings: Sequence[JobEnding] = ()  # Jobs that are over as of this look
    over_before_s: float | None = None
    handovers: Sequence[tuple[Handover, str]] = ()
    taken: Sequence[Taken] = ()  # GPUs that were taken back
    steers: Sequence[Steer] = ()  # Steers to insert or replace
    let_go: Sequence[int] = ()  # Ids of jobs whose steers are over
    restarts: Sequence[Restart] = ()  # What became of jobs that were put back, to insert or replace
    breakers: Sequence[Breaker] = ()  # Breakers to insert or replace
    booked: Sequence[Entry] = ()  # Entries of the book to insert or replace, and to strike out
    noted: Sequence[Noted] = ()  # Rows that are kept for others, to insert or replace
    unfinished: Sequence[ShadowJob] | None = None  # Of shadow mode, in place of all
    cut_to_s: float | None = None
    distrust_until_s: float | None = None


class Store(Protocol):
    """Storage of the ledger beyond the daemon's life. Every call is durable when it returns."""

    def load(self) -> LedgerContents:
        """All that is stored."""

    def save(self, change: StoreChange, /) -> None:
        """Write *change*."""

    def noted(self, kind: type[_T], /, **fields: str) -> tuple[_T, ...]:
        """The rows of *kind* that are kept for others, those with these values in *fields*."""

    def close(self) -> None:
        """Let go of the file."""


# A `Store` that keeps nothing: the ledger of a simulation lives as long as the simulation.
class MemoryStore:
    """Begins empty, and lets everything that is written go; see `Store`."""

    def load(self) -> LedgerContents:
        """Nothing is remembered."""
        return LedgerContents(
            service=AttainedService.empty(), handovers=(), next_handover_id=HandoverId(1), taken=()
        )

    def save(self, change: StoreChange, /) -> None:
        """The ledger has it in memory already."""

    def noted(self, _: type[_T], /, **fields: str) -> tuple[_T, ...]:  # noqa: ARG002 - there are none
        """Nothing is remembered."""
        return ()

    def close(self) -> None:
        """There is nothing to let go of."""
