"""Contents of the ledger that survive the daemon, and the interface of their store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from slurm_dl.ledger.attained_service import AttainedService, EndedRun
from slurm_dl.ledger.completions import JobEnding
from slurm_dl.ledger.lease_credits import Owed
from slurm_dl.ledger.noted import Noted, ShadowJob
from slurm_dl.model.booking import Entry
from slurm_dl.model.breaker import Breaker, Restart, Taken
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import HandoverId
from slurm_dl.model.steer import Steer

_T = TypeVar("_T", bound=Noted)

HOUR_S = 3600.0
"""GPUs that were taken back are remembered for this long."""


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
