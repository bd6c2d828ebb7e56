"""Ends of jobs, as rows of the ledger; see `ledger.completions`."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from slurm_dl.ledger.clock_adjustment import SLACK_S
from slurm_dl.ledger.completions import JobEnding
from slurm_dl.model.array_labels import has_task
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState

ENDING_TABLE = """
CREATE TABLE IF NOT EXISTS ending (
    job_id INTEGER PRIMARY KEY, label TEXT NOT NULL, name TEXT NOT NULL, user TEXT NOT NULL,
    account TEXT NOT NULL, qos TEXT NOT NULL, reason TEXT NOT NULL, nodes TEXT NOT NULL,
    ending TEXT NOT NULL, uid INTEGER NOT NULL, partition TEXT NOT NULL, state TEXT NOT NULL,
    tasks INTEGER NOT NULL, n_nodes INTEGER NOT NULL, gpus REAL NOT NULL,
    restarts INTEGER NOT NULL, start_s REAL NOT NULL, end_s REAL NOT NULL, seen_s REAL NOT NULL,
    preemptible INTEGER NOT NULL
);
"""

_FIELDS = tuple(f.name for f in dataclasses.fields(JobEnding))
_COLUMNS = ", ".join(f"ending.{name}" for name in _FIELDS)

ENDING_UPSERT = (
    f"INSERT INTO ending ({', '.join(_FIELDS)}) "  # noqa: S608 - our own names
    f"VALUES ({', '.join('?' * len(_FIELDS))}) ON CONFLICT (job_id) DO UPDATE SET "
    f"{', '.join(f'{name} = excluded.{name}' for name in _FIELDS)} WHERE "
    "(uid, label, start_s, end_s) "
    "IS NOT (excluded.uid, excluded.label, excluded.start_s, excluded.end_s)"
)
"""The same end once more is not news: what counts is when it was seen first."""

_OF = f"SELECT {_COLUMNS} FROM ending WHERE job_id = ?"  # noqa: S608 - as above

_NAMED = "SELECT job_id FROM ending WHERE label = ? AND seen_s <= ? ORDER BY seen_s DESC LIMIT 1"

_PARTS = (
    "SELECT job_id, label FROM ending WHERE label >= ? AND label < ? AND seen_s <= ? "
    "ORDER BY seen_s DESC LIMIT 1000"
)

_SINCE = (
    f"SELECT {_COLUMNS}, job.attained_gpu_s, job.preemptions FROM ending "  # noqa: S608 - as above
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

_MOST_DIGITS = 18
"""No uid has more, and SQLite takes no number of more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Only:
    """Filter on jobs that are over; an empty field lets all pass.

    Attributes:
        users: Login names or uids; None: everybody's.
        accounts, qos, partitions, names: Of those alone.
        jobs: Labels; ``123`` is all of an array or het job, ``123_7`` a task of it.
        states: Names of what a `JobState` is for a job that is over.
    """

    users: tuple[str, ...] | None = None
    accounts: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    states: tuple[str, ...] = ()

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


ANY = Only()
"""All of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedEnding:
    """A job that is over, with what the ledger remembers of it."""

    ending: JobEnding  # How it ended
    attained_gpu_s: float  # GPU-seconds over all its runs; of the last one if no more is known
    preemptions: int  # How often it was preempted; 0 if that is not known


def ending_row(ending: JobEnding) -> tuple[object, ...]:
    """Values of *ending* in the order of `ENDING_UPSERT`."""
    values = (getattr(ending, name) for name in _FIELDS)
    return tuple(v.name if isinstance(v, JobState) else v for v in values)


def ending_of(db: sqlite3.Connection, job_id: JobId) -> JobEnding | None:
    """The end of the last finished job of this number; None if it was not seen.

    Raises:
        ValueError: The row is not what was written.
        sqlite3.Error: It cannot be read.
    """
    row = db.execute(_OF, (job_id,)).fetchone()
    return None if row is None else _ending(row)


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
        ending = _ending(row[:-2])
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


def _ending(row: tuple[Any, ...]) -> JobEnding:
    values: dict[str, Any] = dict(zip(_FIELDS, row, strict=True))
    state = _STATES.get(values["state"])
    if state is None:
        msg = f"{str(values['state'])[:40]!r} is no state of a job"
        raise ValueError(msg)
    values["state"], values["preemptible"] = state, bool(values["preemptible"])
    return JobEnding(**values)


_STATES = dict(JobState.__members__)
"""By their names; looking one up in an enum takes longer than all the rest."""
