"""The project's own format: what `write_trace` writes, every column of a `Trace` but its curves.

Its delimiter is a comma, a semicolon or a tab. Only the columns of `NEEDED` have to be there; the
columns of accounts and deadlines are written only where the trace tells any. Other tables are read
in the same way, with ``--columns`` for the names of their columns.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Ending, Trace
from slurm_dl.text import shown
from slurm_dl.traces.builder import BadValue, Gathering, JobLine, Reason
from slurm_dl.traces.field_values import job_id, lasting_s, moment_s, name, number
from slurm_dl.traces.table_format import TableFormat, TableRow, split, there_are

COLUMNS: Final = ("job_id", "submit_s", "duration_s", "gpus", "user", "model", "ending")
ACCOUNT: Final = "account"
DUE: Final = "due_s"
NEEDED: Final = ("submit_s", "duration_s", "gpus")
_OPTIONAL: Final = ("job_id", "user", "model", "ending", ACCOUNT, DUE)
_SPELLINGS: Final = {DUE: (DUE, "deadline")}


def _job(line: int, fields: Sequence[str]) -> JobLine:
    submit_s, duration_s, gpus, given_id, user, model, ending, account, due_s = fields
    ending = ending.strip().upper() or Ending.COMPLETED.name
    if ending not in Ending.__members__:
        words = ", ".join(Ending.__members__)
        raise BadValue(Reason.STATE, f"ending is {shown(ending)}, not one of {words}")
    return JobLine(
        job_id=job_id(given_id or str(line)),
        submit_s=moment_s(submit_s, "submit_s"),
        duration_s=lasting_s(duration_s, "duration_s"),
        gpus=number(gpus, "gpus"),
        user=name(user, "user"),
        account=name(account, ACCOUNT),
        model=name(model, "model"),
        ending=Ending[ending],
        due_s=moment_s(due_s, DUE) if due_s.strip() else math.inf,
    )


class OwnFormat(TableFormat):
    """A table in which a job without an id is called by the number of its line."""

    __slots__ = ()

    def rows(self, stream: BinaryIO, jobs: Gathering) -> Iterator[TableRow]:
        """See `Columns.rows`."""
        return (row._replace(nth=row.line) for row in super().rows(stream, jobs))


SLURM_DL: Final = OwnFormat(
    name="slurm_dl",
    about="this project's own: " + ",".join(COLUMNS),
    columns=tuple((column,) for column in NEEDED),
    optional=tuple(_SPELLINGS.get(column, (column,)) for column in _OPTIONAL),
    delimiters=",;\t",
    job=_job,
)


def with_columns(text: str) -> OwnFormat:
    """The own format with other names of columns: ``gpus=#GPU,submit_s=Submit``.

    A column of which nothing is said has its own name; one that is named has to be there.

    Raises:
        ConfigError: *text* is no such list, or names a column that the own format has not.
    """
    given: dict[str, str] = {}
    try:
        pairs = split(text, ",")
    except BadValue as bad:
        msg = f"--columns {shown(text)}: {bad.why}"
        raise ConfigError(msg) from bad
    for pair in pairs:
        ours, _, theirs = (part.strip().lower() for part in pair.partition("="))
        if ours not in (*NEEDED, *_OPTIONAL):
            known = there_are(ours, (*NEEDED, *_OPTIONAL))
            msg = f"--columns: {shown(ours)} is no column of ours; {known}"
            raise ConfigError(msg)
        if not theirs or ours in given:
            why = "is named twice" if theirs else f"needs a name: {ours}=NAME"
            msg = f"--columns: {ours} {why}"
            raise ConfigError(msg)
        given[ours] = theirs
    return replace(
        SLURM_DL,
        name="columns",
        columns=tuple((given.get(column, column),) for column in NEEDED),
        optional=tuple(
            (given[column],) if column in given else names
            for column, names in zip(_OPTIONAL, SLURM_DL.optional, strict=True)
        ),
        required=frozenset(given.values()),
    )


def write_trace(trace: Trace, path: Path) -> None:
    """Write *trace* to *path*, in place of what is there.

    Numbers are written so that the same float is read back. Lines that were left out are not
    part of it.

    Raises:
        ConfigError: The file cannot be written.
    """
    accounts = trace.account_names
    times = None if trace.due_s is None else trace.due_s.tolist()
    due = times and ["" if math.isinf(at_s) else at_s for at_s in times]
    try:
        with path.open("w", encoding="utf-8", newline="") as stream:
            out = csv.writer(stream, lineterminator="\n")
            more = {ACCOUNT: accounts, DUE: due}
            columns = {name: column for name, column in more.items() if column is not None}
            out.writerow((*COLUMNS, *columns))
            out.writerows(
                (*row, trace.users[user], model, Ending(ending).name, *rest)
                for *row, user, model, ending, rest in zip(
                    trace.job_id,
                    trace.submit_s.tolist(),
                    trace.duration_s.tolist(),
                    trace.gpus.tolist(),
                    trace.user.tolist(),
                    ["" if m < 0 else trace.models[m] for m in trace.model.tolist()],
                    trace.ending.tolist(),
                    zip(*columns.values(), strict=True) if columns else [()] * len(trace),
                    strict=True,
                )
            )
    except OSError as err:
        msg = f"{path}: cannot be written: {err.strerror}"
        raise ConfigError(msg) from err
