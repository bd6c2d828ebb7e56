"""Formats of one job a line: with a header that names the columns, or without one."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from slurm_dl.model.errors import ConfigError
from slurm_dl.traces.builder import BadValue, Gathering, JobLine
from slurm_dl.traces.file_lines import MAX_LINE_BYTES, Head, numbered_lines, opened, words
from slurm_dl.traces.skipped_lines import Reason

ToJob = Callable[[int, Sequence[str]], JobLine]
"""From the number of a line among the jobs, 0 is the first, and its fields."""


class TableRow(NamedTuple):
    """A line in its fields.

    Attributes:
        line: Its number in the file, 1 is the first.
        nth: Its number among the lines that are jobs, 0 is the first.
    """

    line: int
    nth: int
    fields: Sequence[str]


TOO_LONG: Final = BadValue(Reason.TOO_LONG, f"longer than {MAX_LINE_BYTES} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What the header of a format names.

    Attributes:
        name: The format's name.
        columns: What is picked, in this order; each a name, or several of which the first that
            is there is taken. Case does not count.
        optional: Picked after these; an empty string where a file lacks one.
        only: Columns of which at least one is there, to tell it from formats like it; empty: any.
        never: Columns that none of its files has.
        delimiter: Between the fields.
    """

    name: str
    columns: tuple[tuple[str, ...], ...]
    optional: tuple[tuple[str, ...], ...] = ()
    only: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    delimiter: str = ","

    def recognizes(self, head: Head) -> bool:
        """Whether *head* begins with such a header."""
        there = head.columns(self.delimiter)
        return (
            all(there.intersection(names) for names in self.columns)
            and (not self.only or bool(there & self.only))
            and not there & self.never
        )

    def rows(self, stream: BinaryIO, jobs: Gathering) -> Iterator[TableRow]:
        """The columns of each line; lines that have other widths than the header are left out.

        Raises:
            ConfigError: The header lacks a column.
        """
        lines = numbered_lines(stream, jobs.file)
        _, first = next(lines, (0, ""))
        header = words(first or "", self.delimiter)
        pick = itemgetter(*self._places(header, jobs.file))
        for line, nth, fields in rows(lines, jobs, self.delimiter, {len(header)}):
            yield TableRow(line, nth, pick([*fields, ""]))

    def _places(self, header: list[str], file: str) -> tuple[int, ...]:
        """Where each column stands; one past the end for an optional one that is missing."""
        places = []
        for names in (*self.columns, *self.optional):
            found = [header.index(name) for name in names if name in header]
            if not found and names in self.columns:
                msg = (
                    f"{file}:1: no column {' or '.join(names)}; format {self.name!r} needs "
                    f"{', '.join('|'.join(n) for n in self.columns)}"
                )
                raise ConfigError(msg)
            places.append(found[0] if found else len(header))
        return tuple(places)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat(Columns):
    """A format of one job a line, under a header.

    Attributes:
        about: One line for people.
        job: From the columns picked to a job; raises `BadValue`.
    """

    about: str
    job: ToJob

    def read(self, path: Path, jobs: Gathering) -> None:
        """Every job of *path* into *jobs*.

        Raises:
            ConfigError: The header lacks a column.
        """
        with opened(path) as stream:
            gather(self.rows(stream, jobs), jobs, self.job)


def rows(
    lines: Iterable[tuple[int, str | None]], jobs: Gathering, delimiter: str, widths: set[int]
) -> Iterator[TableRow]:
    """The fields of each line; one that has not one of *widths* fields is left out."""
    for nth, (line, text) in enumerate(lines):
        if text is None:
            jobs.leave_out(line, TOO_LONG)
            continue
        try:
            fields = split(text, delimiter)
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


def split(text: str, delimiter: str) -> list[str]:
    """The fields of one line; quotes hold for commas only, and never past the line.

    Raises:
        BadValue: The quotes do not fit.
    """
    if delimiter != "," or '"' not in text:
        return text.split(delimiter)
    try:
        return next(csv.reader([text], strict=True))
    except (csv.Error, StopIteration) as err:
        msg = f"quotes do not fit: {err}"
        raise BadValue(Reason.FIELDS, msg) from err
