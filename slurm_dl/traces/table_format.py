"""Formats of one job a line: with a header that names the columns, or without one."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from slurm_dl.model.errors import ConfigError
from slurm_dl.text import safe
from slurm_dl.traces.builder import BadValue, Gathering, JobLine, Reason
from slurm_dl.traces.file_lines import MAX_LINE_BYTES, Head, numbered_lines, opened, words

ToJob = Callable[[int, Sequence[str]], JobLine]
"""From the number of a line among the jobs, 0 is the first, and its fields."""


class TableRow(NamedTuple):
    """A line in its fields."""

    line: int  # Its number in the file, 1 is the first
    nth: int  # Its number among the lines that are jobs, 0 is the first
    fields: Sequence[str]


_SHOWN: Final = 40
_MOST_SHOWN: Final = 40
TOO_LONG: Final = BadValue(Reason.TOO_LONG, f"longer than {MAX_LINE_BYTES} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What the header of a format names.

    Attributes:
        columns: What is picked, in this order; each a name, or several of which the first that
            is there is taken. Case does not count.
        optional: Picked after these; an empty string where a file lacks one.
        only: Columns of which at least one is there, to tell it from formats like it; empty: any.
    """

    name: str  # The format's name
    columns: tuple[tuple[str, ...], ...]
    optional: tuple[tuple[str, ...], ...] = ()
    required: frozenset[str] = frozenset()  # Of these, the names that have to be there all the same
    only: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()  # Columns that none of its files has
    delimiters: str = ","  # What may stand between the fields; the header tells which it is

    def header(self, line: str) -> tuple[str, list[str]]:
        """The delimiter of the header *line*, and its names in lower case."""
        named = {name for names in (*self.columns, *self.optional) for name in names}
        read = {delimiter: words(line, delimiter) for delimiter in self.delimiters}
        known = {d: (len(named.intersection(names)), len(names)) for d, names in read.items()}
        delimiter = max(read, key=known.__getitem__)
        return delimiter, read[delimiter]

    def faults(self, there: frozenset[str]) -> tuple[list[str], list[str]]:
        """The columns that are missing among *there*, and those of them that are too many."""
        lacking = [" or ".join(names) for names in self.columns if not there.intersection(names)]
        if self.only and not there & self.only:
            lacking.append(" or ".join(sorted(self.only)))
        return lacking, sorted(there & self.never)

    def recognizes(self, head: Head) -> bool:
        """Whether *head* begins with such a header."""
        _, names = self.header(head.first_line)
        return not any(self.faults(frozenset(names)))

    def rows(self, stream: BinaryIO, jobs: Gathering) -> Iterator[TableRow]:
        """The columns of each line; lines that have other widths than the header are left out.

        Raises:
            ConfigError: The header lacks a column.
        """
        lines = numbered_lines(stream, jobs.file)
        _, first = next(lines, (0, ""))
        delimiter, header = self.header(first or "")
        pick = itemgetter(*self._places(header, jobs.file))
        for line, nth, fields in rows(lines, jobs, delimiter, {len(header)}, quoted=",;\t"):
            yield TableRow(line, nth, pick([*fields, ""]))

    def _places(self, header: list[str], file: str) -> tuple[int, ...]:
        """Where each column stands; one past the end for an optional one that is missing."""
        places = []
        for names in (*self.columns, *self.optional):
            found = [header.index(name) for name in names if name in header]
            if not found and (names in self.columns or self.required.intersection(names)):
                needs = ", ".join("|".join(n) for n in self.columns)
                msg = (
                    f"{file}:1: no column {' or '.join(map(safe, names))}; "
                    f"format {self.name!r} needs {safe(needs)}; {there_are(names[0], header)}"
                )
                raise ConfigError(msg)
            places.append(found[0] if found else len(header))
        return tuple(places)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat(Columns):
    """A format of one job a line, under a header."""

    about: str  # One line for people
    job: ToJob  # From the columns picked to a job; raises `BadValue`

    def read(self, path: Path, jobs: Gathering) -> None:
        """Every job of *path* into *jobs*.

        Raises:
            ConfigError: The header lacks a column.
        """
        with opened(path) as stream:
            gather(self.rows(stream, jobs), jobs, self.job)


def there_are(wanted: str, names: Sequence[str]) -> str:
    """The names that there are, and which is the nearest to *wanted*."""
    listed = ", ".join(safe(name, _SHOWN) for name in names[:_MOST_SHOWN])
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    near = difflib.get_close_matches(wanted[:_SHOWN], [n[:_SHOWN] for n in names], n=1, cutoff=0.4)
    return f"there are {listed}{more}" + "".join(f"; nearest: {safe(name)}" for name in near)


def rows(
    lines: Iterable[tuple[int, str | None]],
    jobs: Gathering,
    delimiter: str,
    widths: set[int],
    *,
    quoted: str = ",",
) -> Iterator[TableRow]:
    """The fields of each line; one that has not one of *widths* fields is left out.

    Args:
        quoted: Delimiters between which quotes hold.
    """
    for nth, (line, text) in enumerate(lines):
        if text is None:
            jobs.leave_out(line, TOO_LONG)
            continue
        try:
            fields = split(text, delimiter, quoted)
        except BadValue as bad:
            jobs.leave_out(line, bad)
            continue
        if len(fields) in widths:
            yield TableRow(line, nth, fields)
        else:
            expected = " or ".join(map(str, sorted(widths)))
            why = f"{len(fields)} fields, expected {expected}"
            jobs.leave_out(line, BadValue(Reason.FIELDS, why))


def gather(found: Iterable[TableRow], jobs: Gathering, job: ToJob) -> None:
    """One job from each row."""
    for line, nth, fields in found:
        try:
            made = job(nth, fields)
        except BadValue as bad:
            jobs.leave_out(line, bad)
        else:
            jobs.add(line, made)


def split(text: str, delimiter: str, quoted: str = ",") -> list[str]:
    """The fields of one line; quotes hold for the delimiters *quoted*, and never past the line.

    Raises:
        BadValue: The quotes do not fit.
    """
    if delimiter not in quoted or '"' not in text:
        return text.split(delimiter)
    try:
        return next(csv.reader([text], delimiter=delimiter, strict=True))
    except (csv.Error, StopIteration) as err:
        msg = f"quotes do not fit: {err}"
        raise BadValue(Reason.FIELDS, msg) from err
