"""How jobs ended, as rows of the ledger; see `engine.endings`."""

from __future__ import annotations

import dataclasses
import sqlite3
from dataclasses import dataclass
from typing import Any

from slurm_dl.engine.endings import Ending
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

_FIELDS = tuple(f.name for f in dataclasses.fields(Ending))
_COLUMNS = ", ".join(f"ending.{name}" for name in _FIELDS)

ENDING_UPSERT = (
    f"INSERT OR REPLACE INTO ending ({', '.join(_FIELDS)}) "  # noqa: S608 - our own names
    f"VALUES ({', '.join('?' * len(_FIELDS))})"
)

_OF = f"SELECT {_COLUMNS} FROM ending WHERE job_id = ? AND seen_s >= ?"  # noqa: S608 - as above

_NAMED = "SELECT job_id FROM ending WHERE label = ? ORDER BY seen_s DESC LIMIT 1"

_SINCE = (
    f"SELECT {_COLUMNS}, job.attained_gpu_s, job.preemptions FROM ending "  # noqa: S608 - as above
    "LEFT JOIN job ON job.job_id = ending.job_id AND job.first_submit_s <= ending.seen_s "
    "WHERE ending.seen_s >= ? ORDER BY ending.seen_s DESC LIMIT ?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """A job that is over, with what the ledger remembers of it.

    Attributes:
        ending: How it ended.
        attained_gpu_s: GPU-seconds over all its runs; 0 if that is not known any more.
        preemptions: How often it was preempted; likewise.
    """

    ending: Ending
    attained_gpu_s: float
    preemptions: int


def ending_row(ending: Ending) -> tuple[object, ...]:
    """Values of *ending* in the order of `ENDING_UPSERT`."""
    values = (getattr(ending, name) for name in _FIELDS)
    return tuple(v.name if isinstance(v, JobState) else v for v in values)


def ending_of(db: sqlite3.Connection, job_id: JobId, since_s: float) -> Ending | None:
    """How a job ended that was first submitted at *since_s*; None if nobody saw it.

    Raises:
        ValueError: The row is not what was written.
        sqlite3.Error: It cannot be read.
    """
    row = db.execute(_OF, (job_id, since_s)).fetchone()
    return None if row is None else _ending(row)


def job_named(db: sqlite3.Connection, label: str) -> JobId | None:
    """The last job that Slurm listed as *label* and that is over; None if there is none.

    Raises:
        sqlite3.Error: It cannot be read.
    """
    row = db.execute(_NAMED, (label,)).fetchone()
    return None if row is None else JobId(int(row[0]))


def ended_since(db: sqlite3.Connection, since_s: float, most: int) -> list[EndedJob]:
    """The jobs that were first seen over since *since_s*, the last *most* of them, those first.

    Raises:
        ValueError: A row is not what was written.
        sqlite3.Error: They cannot be read.
    """
    return [
        EndedJob(
            ending=_ending(row[:-2]),
            attained_gpu_s=float(row[-2] or 0.0),
            preemptions=int(row[-1] or 0),
        )
        for row in db.execute(_SINCE, (since_s, most))
    ]


def _ending(row: tuple[Any, ...]) -> Ending:
    values: dict[str, Any] = dict(zip(_FIELDS, row, strict=True))
    state = _STATES.get(values["state"])
    if state is None:
        msg = f"{str(values['state'])[:40]!r} is no state of a job"
        raise ValueError(msg)
    values["state"], values["preemptible"] = state, bool(values["preemptible"])
    return Ending(**values)


_STATES = dict(JobState.__members__)
"""By their names; looking one up in an enum takes longer than all the rest."""
