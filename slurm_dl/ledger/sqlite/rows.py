"""Rows of the ledger's tables as frozen dataclasses, and back: a field is a column of its name.

Pydantic checks what is read, because a damaged file holds anything. Writing checks nothing: it is
what the daemon waits for.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from enum import EnumType
from operator import attrgetter
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from slurm_dl.ledger.attained_service import EndedRun
from slurm_dl.ledger.completions import JobEnding
from slurm_dl.ledger.noted import ForecastRange, MinuteTotals, PlannedHandover, ShadowJob
from slurm_dl.model.booking import Entry
from slurm_dl.model.breaker import Breaker, Restart, Taken
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
        """The rows that a SELECT with *rest* behind the name of the table finds.

        Raises:
            ValueError: A row is not what was written.
            sqlite3.Error: They cannot be read.
        """
        rows = db.execute(f"SELECT {self.columns} FROM {self.name} {rest}", values)  # noqa: S608 - our own names
        return tuple(map(self.value, rows))


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
