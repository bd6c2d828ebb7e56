"""Promises that jobs are done by their deadlines, as they stand in the book.

An entry of the kind ``promise`` is of one job, by its id; the entry of the kind ``promises`` counts
those that are settled. Times are whole epoch seconds: equal promises have equal text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

from slurm_dl.json_types import JsonObject
from slurm_dl.model import booking
from slurm_dl.model.booking import Entry
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64

KIND: Final = "promise"
TOTALS_KIND: Final = "promises"

Cause = Literal["estimate", "node", "preemption_off", "room"]
"""Why a promise is broken.

``estimate``: the job runs longer than was expected. ``node``: too few nodes are up. ``room``: other
jobs hold its GPUs, and these cannot be taken back. ``preemption_off``: as ``room``, while no GPUs
are taken back at all.
"""

CAUSES: Final[tuple[Cause, ...]] = ("estimate", "node", "preemption_off", "room")

Estimate = Literal["limit", "history"]
"""The run time that promises rest on: the time limit, or the best that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The answer to one deadline."""

    says: Literal["yes", "no"]  # Never changed by what is promised to others later
    due_s: int  # The deadline, epoch seconds
    at_s: int  # When it was answered, epoch seconds
    gpus: float  # GPUs that were counted: whole nodes, or a power of two on one node
    needs_s: int  # Seconds of running that it was expected to need then
    rests_on: Estimate  # What *needs_s* is from
    begin_s: int | None = None  # The window: it needs its GPUs from here, epoch seconds
    end_s: int | None = None  # To here; not after the deadline
    nearest_s: int | None = None  # Of a no: the earliest end that could be promised then
    why: str = ""  # Of a no: the reason, a clause without other jobs or users
    broken: Cause | Literal[""] = ""  # Why a yes does not hold any more
    missed: bool = False  # It was not done by its deadline, and is counted as broken

    @property
    def is_kept(self) -> bool:
        """Whether it is a yes that still holds."""
        return self.says == "yes" and not self.broken and not self.missed

    def entry(self, job_id: int) -> Entry:
        """It as an entry of the book."""
        return booking.entry(KIND, job_id, dataclasses.asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Promises that are settled, since the ledger began."""

    kept: int = 0  # Over by the deadline
    withdrawn: int = 0  # Cancelled before it
    broken: Mapping[str, int] = field(default_factory=dict)  # Not over by it, by `Cause`

    def entry(self) -> Entry:
        """They as the entry of the book."""
        body: JsonObject = {
            "kept": self.kept,
            "withdrawn": self.withdrawn,
            "broken": dict(sorted(self.broken.items())),
        }
        return booking.entry(TOTALS_KIND, "", body)

    def with_kept(self, kept: int, withdrawn: int, broken: Iterable[str]) -> Self:
        """They and some more."""
        more = dict(self.broken)
        for cause in broken:
            more[cause] = more.get(cause, 0) + 1
        return type(self)(kept=self.kept + kept, withdrawn=self.withdrawn + withdrawn, broken=more)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromiseTerms:
    """Bounds within which a decision may promise; the engine sets them.

    The defaults are those of the papers' ideal cluster.
    """

    share: float = 1.0  # Share of a pool's GPUs that may be promised together at any time
    account_share: float = 1.0  # Share of one account, and of one user
    lead_s: float = 0.0  # GPUs are taken back this long before they are needed, seconds
    estimate: Estimate = "history"
    returns_s: F64 | None = None  # ``(n,)`` seconds until GPUs of each running job can be taken
    # back; inf: only its end gives them back. None: at once, all of them
    is_preempting: bool = True  # False: nothing is taken back now, whatever *returns_s*


def promises_in(booked: Iterable[Entry]) -> dict[JobId, Promise]:
    """The promises of the book, by job."""
    found = booking.of_kind(booked, KIND)
    return {JobId(int(key)): _promise(body) for key, body in found.items()}


def totals_in(booked: Iterable[Entry]) -> Totals:
    """The promises that are settled."""
    body: Any = booking.of_kind(booked, TOTALS_KIND).get("", {})
    return Totals(**body)


def _promise(body: Any) -> Promise:  # noqa: ANN401 - of the ledger, which nobody else writes
    return Promise(**body)
