"""Ends of jobs, as rows of the ledger; see `ledger.completions`."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass

from slurm_dl.ledger.clock_adjustment import SLACK_S
from slurm_dl.ledger.completions import JobEnding
from slurm_dl.ledger.sqlite.rows import ENDINGS
from slurm_dl.model.ids import JobId, has_task

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

_MOST_DIGITS = 18
"""No uid has more, and SQLite takes no number of more."""


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


ANY = Only()
"""All of them."""


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
