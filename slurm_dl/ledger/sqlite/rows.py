"""Rows of the ledger's tables as frozen dataclasses, and back: a field is a column of its name.

Pydantic checks what is read, because a damaged file holds anything. Writing checks nothing: it is
what the daemon waits for.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from enum import EnumType
from operator import attrgetter
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from slurm_dl.ledger.attained_service import EndedRun
from slurm_dl.ledger.clock_adjustment import SLACK_S
from slurm_dl.ledger.completions import JobEnding
from slurm_dl.ledger.store_protocol import ForecastRange, MinuteTotals, PlannedHandover, ShadowJob
from slurm_dl.model.booking import Entry
from slurm_dl.model.breaker import Breaker, Restart, Taken
from slurm_dl.model.ids import JobId, has_task
from slurm_dl.model.steer import Steer
from slurm_dl.text import shown

_T = TypeVar("_T")

_TUPLES = TypeAdapter(tuple[Any, ...])


class Table(Generic[_T]):
    """One table, or the result of a query, whose rows are values of a dataclass.

    Tuples of words or numbers stand as words with commas between, other tuples as JSON, members of
    an enum as their names.

    Args:
        name: Name of the table.
        kind: The dataclass; its fields are columns in their order.
        changes: Of a row that is there already these columns alone are written; none: all. The
            first column is its key then.
    """

    def __init__(self, name: str, kind: type[_T], changes: Sequence[str] = ()) -> None:
        hints = get_type_hints(kind)
        self.name, self.kind = name, kind
        self.names = tuple(hints)
        # In full: SQLite takes "left" alone for the word of a join.
        self.columns = ", ".join(f'{name}."{field}"' for field in hints)
        fields = ", ".join(f'"{field}"' for field in hints)
        self.insert = f"INTO {name} ({fields}) VALUES ({', '.join('?' * len(hints))})"
        self._write = f"INSERT OR REPLACE {self.insert}"
        if changes:
            news = ", ".join(f'"{field}" = excluded."{field}"' for field in changes)
            self._write = f"INSERT {self.insert} ON CONFLICT ({self.names[0]}) DO UPDATE SET {news}"
        codecs = {field: codec for field, hint in hints.items() if (codec := _codec(hint))}
        self._writes = [(self.names.index(field), write) for field, (write, _) in codecs.items()]
        self._reads = [(field, read) for field, (_, read) in codecs.items()]
        self._fields = attrgetter(*hints)
        self._checked: Callable[[object], _T] = TypeAdapter(kind).validator.validate_python

    def row(self, value: _T) -> Sequence[object]:
        """*value* in the order of the columns."""
        row = list(self._fields(value))
        for i, write in self._writes:
            row[i] = write(row[i])
        return row

    def value(self, row: Sequence[object]) -> _T:
        """The value that `row` was made of.

        Raises:
            ValueError: It was made of none.
        """
        fields = dict(zip(self.names, row, strict=True))
        for field, read in self._reads:
            fields[field] = read(fields[field])
        try:
            return self._checked(fields)
        except ValidationError as err:
            first = err.errors(include_url=False)[0]
            place = ".".join(map(str, (self.name, *first["loc"])))
            msg = f"{place}: {first['msg']} (got {shown(first['input'])})"
            raise ValueError(msg) from None

    def write(self, db: sqlite3.Connection, values: Iterable[_T]) -> None:
        """Insert *values*, in place of the rows that have their keys; see *changes*."""
        db.executemany(self._write, map(self.row, values))

    def sound(self, rows: Iterable[Sequence[object]], bad: list[object]) -> Iterator[_T]:
        """The values of *rows*; those that are damaged are added to *bad* instead."""
        for row in rows:
            try:
                yield self.value(row)
            except ValueError:
                bad.append(row)

    def read(self, db: sqlite3.Connection, rest: str, *values: float) -> tuple[_T, ...]:
        """The values of `rows`.

        Raises:
            ValueError: A row is not what was written.
            sqlite3.Error: They cannot be read.
        """
        return tuple(map(self.value, self.rows(db, rest, *values)))

    def rows(self, db: sqlite3.Connection, rest: str, *values: object) -> list[Sequence[object]]:
        """The rows that a SELECT with *rest* behind the name of the table finds."""
        return db.execute(f"SELECT {self.columns} FROM {self.name} {rest}", values).fetchall()  # noqa: S608 - our own names


def _codec(hint: Any) -> tuple[Callable[[Any], object], Callable[[Any], object]] | None:  # noqa: ANN401
    """Writer and reader of a field that SQLite has no type for; they check nothing."""
    if get_origin(hint) is tuple:
        if get_origin(item := get_args(hint)[0]) is tuple or is_dataclass(item):
            return (lambda value: _TUPLES.dump_json(value).decode()), _from_json
        return _joined, _split
    if isinstance(hint, EnumType):
        # A dict, because to look a name up in the enum takes longer than all else.
        return attrgetter("name"), dict(hint.__members__).get
    return None


def _from_json(text: object) -> object:
    """The value of *text*; what is no JSON is left to the check."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return text


def _joined(words: Iterable[object]) -> str:
    return ",".join(map(str, words))  # Names of nodes have no commas.


def _split(text: object) -> object:
    return text.split(",") if isinstance(text, str) and text else text or ()


RUNS = Table("run", EndedRun)
TAKEN = Table("taken", Taken)
STEERS = Table("steer", Steer)
RESTARTS = Table("restart", Restart)
BREAKERS = Table("breaker", Breaker)
BOOK = Table("book", Entry)
ENDINGS = Table("ending", JobEnding)
PLANNED = Table("planned", PlannedHandover, ("last_s", "others", "end", "started_s"))
MINUTES = Table("minute", MinuteTotals)
SHADOW_JOBS = Table("shadow_job", ShadowJob)
FORECASTS = Table("forecast", ForecastRange)
NOTED: dict[type, Table[Any]] = {t.kind: t for t in (PLANNED, MINUTES, SHADOW_JOBS, FORECASTS)}
"""Tables of what the ledger keeps for others, by the dataclass of their rows."""


ENDING_UPSERT = (
    f"INSERT {ENDINGS.insert} ON CONFLICT (job_id) DO UPDATE SET "
    f"{', '.join(f'{name} = excluded.{name}' for name in ENDINGS.names)} WHERE "
    "(uid, label, start_s, end_s) "
    "IS NOT (excluded.uid, excluded.label, excluded.start_s, excluded.end_s)"
)
"""The same end once more is not news: what counts is when it was seen first."""

_NAMED = "SELECT job_id FROM ending WHERE label = ? AND seen_s <= ? ORDER BY seen_s DESC LIMIT 1"

_PARTS = (
    "SELECT job_id, label FROM ending WHERE label >= ? AND label < ? AND seen_s <= ? "
    "ORDER BY seen_s DESC LIMIT 1000"
)

_SINCE = (
    f"SELECT {ENDINGS.columns}, job.attained_gpu_s, job.preemptions FROM ending "  # noqa: S608 - our own names
    "LEFT JOIN job ON job.job_id = ending.job_id AND (job.first_submit_s <= ending.seen_s "
    "OR job.over AND job.first_submit_s <= ending.end_s) "
    "WHERE ending.seen_s BETWEEN :since_s AND :until_s {which}"
    "ORDER BY ending.seen_s DESC LIMIT :most"
)

_WHOSE = (
    "AND (ending.uid IN (SELECT value FROM json_each(:uids)) "
    "OR ending.user IN (SELECT value FROM json_each(:users))) "
)

_NAMED_IN = "AND ending.{column} IN (SELECT value FROM json_each(:{column})) "

# "`", "," and "\\" are the characters after "_", "+" and "[".
_LABELLED = (
    "AND (ending.label IN (SELECT value FROM json_each(:label)) "
    "OR EXISTS (SELECT 1 FROM json_each(:whole) WHERE "
    "ending.label >= value || '_' AND ending.label < value || '`' "
    "OR ending.label >= value || '+' AND ending.label < value || ',') "
    "OR EXISTS (SELECT 1 FROM json_each(:array) WHERE "
    "ending.label >= value || '_[' AND ending.label < value || '_\\')) "
)
"""Of what is named ``123`` all parts, of ``123_7`` also the record of tasks that ended together."""

_MOST_DIGITS = 18  # No uid has more, and SQLite takes no number of more


@dataclass(frozen=True, slots=True, kw_only=True)
class Only:
    """Filter on jobs that are over; an empty field lets all pass.

    Attributes:
        accounts, qos, partitions, names: Of those alone.
        jobs: Labels; ``123`` is all of an array or het job, ``123_7`` a task of it.
    """

    users: tuple[str, ...] | None = None  # Login names or uids; None: everybody's
    accounts: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    states: tuple[str, ...] = ()  # Names of what a `JobState` is for a job that is over

    def asked(self) -> tuple[str, dict[str, str]]:
        """The condition in SQL, and the values of what it names."""
        which, values = "", {}
        if self.users is not None:
            which += _WHOSE
            values["users"] = json.dumps(sorted(self.users))
            values["uids"] = json.dumps(sorted(int(u) for u in self.users if _is_number(u)))
        columns = {
            "account": self.accounts,
            "qos": self.qos,
            "partition": self.partitions,
            "name": self.names,
            "state": self.states,
        }
        for column, names in columns.items():
            if names:
                which += _NAMED_IN.format(column=column)
                values[column] = json.dumps(sorted(names))
        if self.jobs:
            which += _LABELLED
            whole = {job for job in self.jobs if not {"_", "+"} & set(job)}
            values["label"] = json.dumps(sorted(self.jobs))
            values["whole"] = json.dumps(sorted(whole))
            tasks = {job.partition("_")[0] for job in self.jobs if "_" in job}
            values["array"] = json.dumps(sorted(tasks))
        return which, values


ANY = Only()  # All of them


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedEnding:
    """A job that is over, with what the ledger remembers of it."""

    ending: JobEnding  # How it ended
    attained_gpu_s: float  # GPU-seconds over all its runs; of the last one if no more is known
    preemptions: int  # How often it was preempted; 0 if that is not known


def job_named(db: sqlite3.Connection, label: str, now_s: float) -> JobId | None:
    """The last job that Slurm listed as *label* and that is over; None if there is none.

    A task of an array that never had a record of its own is in the record of the array.

    Raises:
        sqlite3.Error: It cannot be read.
    """
    until_s = now_s + SLACK_S
    row = db.execute(_NAMED, (label, until_s)).fetchone()
    if row is not None:
        return JobId(int(row[0]))
    array, _, task = label.partition("_")
    if not (_is_number(array) and _is_number(task)):
        return None
    # "\\" is the character after "[".
    parts = db.execute(_PARTS, (f"{array}_[", f"{array}_\\", until_s))
    return next((JobId(int(job)) for job, part in parts if has_task(str(part), int(task))), None)


def ended_since(
    db: sqlite3.Connection,
    since_s: float,
    now_s: float,
    most: int,
    only: Only = ANY,
) -> list[RememberedEnding]:
    """The jobs that were first seen over since *since_s*, the last *most* of them, those first.

    Raises:
        ValueError: A row is not what was written.
        sqlite3.Error: They cannot be read.
    """
    asked: dict[str, object] = {"since_s": since_s, "until_s": now_s + SLACK_S, "most": most}
    which, values = only.asked()
    rows = db.execute(_SINCE.format(which=which), asked | values)
    ended = []
    for row in rows:
        ending = ENDINGS.value(row[:-2])
        ended.append(
            RememberedEnding(
                ending=ending,
                attained_gpu_s=ending.last_run_gpu_s if row[-2] is None else float(row[-2]),
                preemptions=int(row[-1] or 0),
            )
        )
    return ended


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= _MOST_DIGITS
