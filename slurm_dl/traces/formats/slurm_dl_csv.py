"""The project's own format: what `write_trace` writes, every column of a `Trace`.

Its delimiter is a comma, a semicolon or a tab. Only the columns of `NEEDED` have to be there; the
columns of accounts and deadlines are written only where the trace tells any. Other tables are read
in the same way, with ``--columns`` for the names of their columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO, Final

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Ending
from slurm_dl.text import shown
from slurm_dl.traces.builder import BadValue, Gathering, JobLine
from slurm_dl.traces.field_values import job_id, lasting_s, moment_s, name, number
from slurm_dl.traces.skipped_lines import Reason
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
