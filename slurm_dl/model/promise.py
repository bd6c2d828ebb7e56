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
from slurm_dl.model.jobs import F64, I64, Bool

KIND: Final = "promise"
TOTALS_KIND: Final = "promises"

Cause = Literal["estimate", "node", "preemption_off", "room"]
"""Causes of a broken promise.

``estimate``: the job runs longer than was expected. ``node``: too few nodes are up. ``room``: other
jobs hold its GPUs, and these cannot be taken back. ``preemption_off``: as ``room``, while no GPUs
are taken back at all.
"""

CAUSES: Final[tuple[Cause, ...]] = ("estimate", "node", "preemption_off", "room")

Estimate = Literal["limit", "history"]
"""The run time that promises rest on: the time limit, or the best that is known."""


Piece = tuple[int, int, float]
"""Part of a plan: begin and end, epoch seconds, and the GPUs of the job meanwhile."""


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
    plan: tuple[Piece, ...] = ()  # Of one that is no single window: its parts, in their order
    nearest_s: int | None = None  # Of a no: the earliest end that could be promised then
    why: str = ""  # Of a no: the reason, a clause without other jobs or users
    broken: Cause | Literal[""] = ""  # Why a yes does not hold any more
    missed: bool = False  # It was not done by its deadline, and is counted as broken

    @property
    def is_kept(self) -> bool:
        """True for a yes that still holds."""
        return self.says == "yes" and not self.broken and not self.missed

    def entry(self, job_id: int) -> Entry:
        """It as an entry of the book."""
        body = {name: getattr(self, name) for name in _FIELDS if name != "plan" or self.plan}
        return booking.entry(KIND, job_id, body)


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

    def with_more(self, ended: Mapping[str, int]) -> Self:
        """They and some more: ``kept``, ``withdrawn``, and causes."""
        causes = {cause: self.broken.get(cause, 0) + ended.get(cause, 0) for cause in CAUSES}
        return type(self)(
            kept=self.kept + ended.get("kept", 0),
            withdrawn=self.withdrawn + ended.get("withdrawn", 0),
            broken={cause: n for cause, n in causes.items() if n},
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeGroup:
    """Nodes that can be promised to some jobs.

    Attributes:
        each: GPUs that its jobs need together on each node; what is left over of a node is not
            counted.
    """

    nodes: Bool  # ``(m,)`` bool, those that are up, or are reserved now and come back
    kind: int  # The type of GPUs that counts, an index into `Observed.gpu_types`; -1: all
    each: float = 1.0
    is_short: bool = False  # Some nodes that would belong to it are down


@dataclass(frozen=True, slots=True, eq=False)
class SharePlace:
    """Nodes whose GPUs are shared out among promises."""

    jobs: Bool | None  # ``(n,)`` bool, the jobs that count here; None: all
    gpus: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromiseTerms:
    """All that a decision has to know before it promises anything.

    Attributes:
        refused: The reason why a job is promised nothing, by row.
        owners: The account of each job, by row; of those without one nothing.
        returns_s: ``(n,)`` seconds until GPUs of each running job can be taken back; inf: only its
            end gives them back.
    """

    groups: tuple[NodeGroup, ...]  # The g groups of nodes
    group: I64  # ``(n,)`` int64, the group each job with a deadline could run in; -1: none
    meets: Bool  # ``(n, g)`` bool, whether each job could run on a node of each group, or does
    places: tuple[SharePlace, ...]  # Where shares are counted
    refused: Mapping[int, str] = field(default_factory=dict)
    owners: Mapping[int, str] = field(default_factory=dict)
    returns_s: F64
    holds_s: F64  # ``(n,)`` seconds for which each waiting job would keep its GPUs once it started
    is_preempting: bool = True  # False: no GPUs are taken back now
    share: float = 1.0  # Share of a place's GPUs that may be promised together at any time
    account_share: float = 1.0  # Share of one account, and of one user
    lead_s: float = 0.0  # GPUs are taken back this long before they are needed, seconds
    estimate: Estimate = "history"  # The run time that promises rest on
    most_per_hour: float = float("inf")  # GPUs that may be taken back within an hour


def promises_in(booked: Iterable[Entry]) -> dict[JobId, Promise]:
    """The promises of the book, by job."""
    found = booking.of_kind(booked, KIND)
    return {JobId(int(key)): _promise(body) for key, body in found.items()}


def note_answers(answers: dict[JobId, Promise], news: Iterable[Entry]) -> None:
    """Add the promises in *news* to jobs without an answer: later ones do not count."""
    for job_id, promise in promises_in(news).items():
        answers.setdefault(job_id, promise)


def totals_in(booked: Iterable[Entry]) -> Totals:
    """The promises that are settled."""
    body: Any = booking.of_kind(booked, TOTALS_KIND).get("", {})
    return Totals(**body)


def _promise(body: Any) -> Promise:  # noqa: ANN401 - of the ledger, which nobody else writes
    # A later release may have written more.
    known = {key: value for key, value in body.items() if key in _FIELDS}
    return Promise(**known | {"plan": tuple(map(tuple, body.get("plan", ())))})


_FIELDS: Final = frozenset(one.name for one in dataclasses.fields(Promise))
