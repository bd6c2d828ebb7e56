"""The form of what goes over the control socket: JSON lines, the request for the queue, refusals.

Commands import it at every prompt, so it is light: no pydantic, no numpy. The server alone checks
requests, with pydantic against the types and bounds here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from slurm_dl.json_types import JsonObject
from slurm_dl.model.bounds import Bound

PROTOCOL = 1  # Raised when an answer changes in a way that an older command could misread
MAX_REQUEST_BYTES = 256 * 1024  # Longest request line; a node list of some ten thousand names fits


class RefusalKind(StrEnum):
    """Reason of a refusal, as a word that a program can test."""

    BAD_REQUEST = "bad_request"
    DENIED = "denied"
    BUSY = "busy"  # Too many connections; worth another try
    NOT_FOUND = "not_found"
    NOT_READY = "not_ready"  # The daemon has not seen the cluster yet
    FAILED = "failed"
    INTERNAL = "internal"


SORTS = (
    "rank",
    "running",
    "attained",
    "job",
    "user",
    "account",
    "partition",
    "name",
    "gpus",
    "tier",
    "time",
    "restarts",
)
"""What a word of `QueueRequest.sort` may be.

``running``: by state, running jobs first. Numbers ascend, names go by the alphabet; jobs without a
rank or a tier come last either way."""

_Word = Annotated[str, Bound(max_length=256)]
_Words = Annotated[tuple[_Word, ...], Bound(max_length=1000)]
# Strict: pydantic takes no text and no truth value for a number.
_Jobs = Annotated[int, Bound(strict=True, ge=0, le=100_000_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRequest:
    """The jobs that pass all filters that are given; all of them, or a part in some order.

    Attributes:
        partition, account, qos, name: Exact names.
        state: Slurm's words for states, short or long, or ``all``; empty: all that are not over.
        node: Node names; jobs that hold any of them.
        job: Job ids; ``123`` is all of an array or het job, ``123_7`` and ``123+1`` one part.
        search: Only jobs with this text in their id, name, user, account, partition or state;
            upper and lower case are the same.
        sort: Words of `SORTS`, each reversed by a ``-`` before it; the first one weighs most.
            Ties, and a queue without any word, go by rank.
        locate: Id of a job whose place is asked for; None: of no job.

    Raises:
        ValueError: Nothing is sorted by one of the words.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    request: Literal["queue"] = "queue"
    user: _Words = ()  # Login names or uids
    partition: _Words = ()
    state: Annotated[tuple[_Word, ...], Bound(max_length=100)] = ()
    node: Annotated[tuple[_Word, ...], Bound(max_length=20_000)] = ()
    account: _Words = ()
    qos: _Words = ()
    name: _Words = ()
    job: _Words = ()
    search: _Word = ""
    sort: Annotated[tuple[_Word, ...], Bound(max_length=len(SORTS))] = ()
    offset: _Jobs = 0  # Jobs to leave out at the beginning
    limit: _Jobs | None = None  # Most jobs to show; None: all
    locate: Annotated[int, Bound(strict=True, ge=0, le=2**32)] | None = None

    def __post_init__(self) -> None:
        for word in self.sort:
            if word.removeprefix("-") not in SORTS:
                msg = f"nothing is sorted by {word[:40]!r}: use {', '.join(SORTS)}, or -WORD"
                raise ValueError(msg)

    def fields(self) -> JsonObject:
        """The fields that are set, for `Client.ask`: older daemons may lack the others."""
        return {
            field.name: list(value) if isinstance(value, tuple) else value
            for field in dataclasses.fields(self)
            if field.name != "request" and (value := getattr(self, field.name)) != field.default
        }
