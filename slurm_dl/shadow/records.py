"""What is kept of shadow mode, as lines: one JSON array for each job that ended, wish and look-out.

A line is whole or it is nothing: what cannot be understood is left out and counted by the reader.
Nothing of a user's job is kept but numbers and the account's name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LONGEST_LINE = 128 * 1024
"""Bytes; a longer one is none of ours: a character is 12 bytes at most, a wish has 101 accounts."""

LONGEST_NAME = 64
"""Characters of an account that are kept, and of a GPU type."""

MOST_VICTIMS = 100
"""Victims and beneficiaries of one wish that are kept; the rest is counted."""

LONGEST_WHY = 300

UNSEEN = "unseen"
"""The end of a wish whose job was gone when somebody looked again."""

LARGEST = 1e13
"""No number of ours is so large."""

_SMALL = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJobRecord:
    """A job whose end was seen, or that vanished."""

    job_id: int
    uid: int
    account: str  # Its account, cut to `LONGEST_NAME`
    gpus: float  # GPUs it held
    submit_s: float  # First submission, epoch seconds
    start_s: float  # First start, epoch seconds
    ran_s: float  # Seconds it ran, over all its runs
    end_s: float  # When it ended; when it was missed, for one that vanished. Epoch seconds.
    how: str  # ``C`` with success, ``F`` without, ``V`` nobody saw how
    opted_in: bool  # It had declared a preemption contract


@dataclass(frozen=True, slots=True, kw_only=True)
class WishedVictim:
    """A run that would have been stopped."""

    job_id: int
    restarts: int
    uid: int
    account: str
    gpus: float
    ran_s: float  # Seconds since the run's start when it was first wished for
    grace_s: float  # Longest wait between signal and requeue that it asks for


@dataclass(frozen=True, slots=True, kw_only=True)
class WishedHandover:
    """A hand-over that would have begun; one for one wait of the job that it is for.

    Attributes:
        key: What makes it the same wish at the next look, and after a restart.
        purpose: As in `Handover`.
        lead: The best beneficiary; 0 if there is none.
        lead_uid, lead_account, lead_gpus: Whose it is, and GPUs of one task.
        beneficiaries: All of them as they were first, `MOST_VICTIMS` at most.
        victims: As they were first, `MOST_VICTIMS` at most.
        gpus: GPUs of all victims.
        why: The engine's reason.
        begin_s, last_s: First and last look that had it in its plan, epoch seconds.
        others: How often a look wanted other victims than the look before that had it; one too
            few after a restart of the daemon.
        end: Empty while it is not over; ``started``, ``gone`` (without a start), ``over`` (there
            is no lead, and no victim is left), or `UNSEEN`.
        started_s: When the lead started in reality, epoch seconds; 0 if it has not.
    """

    key: str
    purpose: str
    lead: int
    lead_uid: int
    lead_account: str
    lead_gpus: float
    beneficiaries: tuple[int, ...]
    victims: tuple[WishedVictim, ...]
    gpus: float
    why: str
    begin_s: float
    last_s: float
    others: int = 0
    end: str = ""
    started_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookout:
    """Some minutes of looks, added up.

    Attributes:
        from_s, to_s: First and last look, epoch seconds.
        looks: How many.
        missed: Looks that were not taken in, and lines that could not be written, since the last.
        policy: What ordered the queue.
        mode: Who was to take GPUs back: ``external``, ``native``, or ``off``.
        gpus, held: GPUs that were up in managed partitions, and of those held, at the last look.
        waiting: Waiting jobs of managed partitions, tasks of arrays one by one; mean over looks.
        compared: Looks with at least two jobs that could start.
        first_other: Of those, looks where another job would be first than in Slurm's order.
        others: Of the first jobs, share that would not be there in Slurm's order; mean over
            *compared*.
        wishes: Most hand-overs in one plan.
        tripped: Looks in which a circuit breaker would have tripped.
        shape: Nodes that were up, as (nodes, GPUs of each, type).
    """

    from_s: float
    to_s: float
    looks: int
    missed: int
    policy: str
    mode: str
    gpus: float
    held: float
    waiting: float
    compared: int
    first_other: int
    others: float
    wishes: int
    tripped: int
    shape: tuple[tuple[int, int, str], ...]


Line = EndedJobRecord | WishedHandover | Lookout


def written(line: Line) -> bytes:
    """*line* as it stands in the file."""
    match line:
        case EndedJobRecord():
            fields: list[object] = [
                "job",
                line.job_id,
                line.uid,
                line.account[:LONGEST_NAME],
                _short(line.gpus),
                _short(line.submit_s),
                _short(line.start_s),
                _short(line.ran_s),
                _short(line.end_s),
                line.how,
                int(line.opted_in),
            ]
        case WishedHandover():
            fields = _wish_fields(line)
        case Lookout():
            fields = [
                "looks",
                *(_short(v) for v in (line.from_s, line.to_s)),
                line.looks,
                line.missed,
                line.policy[:LONGEST_NAME],
                line.mode,
                *(_short(v) for v in (line.gpus, line.held, line.waiting)),
                line.compared,
                line.first_other,
                round(line.others, 4),
                line.wishes,
                line.tripped,
                [[n, g, t[:LONGEST_NAME]] for n, g, t in line.shape],
            ]
    return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def _wish_fields(wish: WishedHandover) -> list[object]:
    return [
        "wish",
        wish.key,
        wish.purpose,
        wish.lead,
        wish.lead_uid,
        wish.lead_account[:LONGEST_NAME],
        _short(wish.lead_gpus),
        list(wish.beneficiaries[:MOST_VICTIMS]),
        [
            [
                v.job_id,
                v.restarts,
                v.uid,
                v.account[:LONGEST_NAME],
                _short(v.gpus),
                _short(v.ran_s),
                _short(v.grace_s),
            ]
            for v in wish.victims[:MOST_VICTIMS]
        ],
        _short(wish.gpus),
        wish.why[:LONGEST_WHY],
        _short(wish.begin_s),
        _short(wish.last_s),
        wish.others,
        wish.end,
        _short(wish.started_s),
    ]


def parsed(raw: bytes) -> Line | None:
    """The line that *raw* is; None if it is none."""
    if len(raw) > LONGEST_LINE:
        return None
    try:
        fields = json.loads(raw)
        if not isinstance(fields, list) or not fields or not isinstance(fields[0], str):
            return None
        read = _READERS.get(fields[0])
        return None if read is None else read(fields[1:])
    except (ValueError, RecursionError):
        # UnicodeDecodeError and JSONDecodeError are ValueErrors, and so is what `_Fields` raises.
        return None


class _Fields:
    """The fields of one line, taken one by one; ValueError if one is not what it should be."""

    def __init__(self, fields: Sequence[object], count: int) -> None:
        if len(fields) != count:
            raise ValueError
        self._left = iter(fields)

    def number(self) -> float:
        """At least 0, finite and not absurd."""
        value = next(self._left)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError  # noqa: TRY004 - one error for everything that is no line of ours
        if not 0 <= value < LARGEST:
            raise ValueError
        return float(value)

    def whole(self) -> int:
        """At least 0."""
        value = self.number()
        if not value.is_integer():
            raise ValueError
        return int(value)

    def word(self, longest: int = LONGEST_NAME) -> str:
        """A text of at most *longest* characters."""
        value = next(self._left)
        if not isinstance(value, str) or len(value) > longest:
            raise ValueError
        return value

    def items(self) -> Sequence[object]:
        """A list of at most `MOST_VICTIMS`."""
        value = next(self._left)
        if not isinstance(value, list) or len(value) > MOST_VICTIMS:
            raise ValueError
        return value


def _job(fields: Sequence[object]) -> EndedJobRecord:
    take = _Fields(fields, 10)
    job = EndedJobRecord(
        job_id=take.whole(),
        uid=take.whole(),
        account=take.word(),
        gpus=take.number(),
        submit_s=take.number(),
        start_s=take.number(),
        ran_s=take.number(),
        end_s=take.number(),
        how=take.word(1),
        opted_in=bool(take.whole()),
    )
    if not job.submit_s <= job.start_s <= job.end_s or job.gpus <= 0 or job.how not in "CFV":
        raise ValueError
    return job


def _wish(fields: Sequence[object]) -> WishedHandover:
    take = _Fields(fields, 15)
    return WishedHandover(
        key=take.word(2 * LONGEST_WHY),
        purpose=take.word(),
        lead=take.whole(),
        lead_uid=take.whole(),
        lead_account=take.word(),
        lead_gpus=take.number(),
        beneficiaries=tuple(_Fields([b], 1).whole() for b in take.items()),
        victims=tuple(_victim(v) for v in take.items()),
        gpus=take.number(),
        why=take.word(LONGEST_WHY),
        begin_s=take.number(),
        last_s=take.number(),
        others=take.whole(),
        end=take.word(),
        started_s=take.number(),
    )


def _victim(fields: object) -> WishedVictim:
    take = _Fields(_listed(fields), 7)
    return WishedVictim(
        job_id=take.whole(),
        restarts=take.whole(),
        uid=take.whole(),
        account=take.word(),
        gpus=take.number(),
        ran_s=take.number(),
        grace_s=take.number(),
    )


def _lookout(fields: Sequence[object]) -> Lookout:
    take = _Fields(fields, 15)
    return Lookout(
        from_s=take.number(),
        to_s=take.number(),
        looks=take.whole(),
        missed=take.whole(),
        policy=take.word(),
        mode=take.word(),
        gpus=take.number(),
        held=take.number(),
        waiting=take.number(),
        compared=take.whole(),
        first_other=take.whole(),
        others=take.number(),
        wishes=take.whole(),
        tripped=take.whole(),
        shape=tuple(_group(g) for g in take.items()),
    )


def _group(fields: object) -> tuple[int, int, str]:
    take = _Fields(_listed(fields), 3)
    return take.whole(), take.whole(), take.word()


def _listed(fields: object) -> Sequence[object]:
    if not isinstance(fields, list):
        raise ValueError  # noqa: TRY004 - as in `_Fields`
    return fields


_READERS: Final[Mapping[str, Callable[[Sequence[object]], Line]]] = {
    "job": _job,
    "wish": _wish,
    "looks": _lookout,
}


def _short(value: float) -> float | int:
    """A number without digits that nobody needs: thousandths of small ones, else tenths."""
    kept = round(float(value), 3 if value < _SMALL else 1)
    return int(kept) if kept.is_integer() else kept
