"""The form of the ledger's file, and how one of an older form gets it.

What came since is added, and only what nobody reads any more is taken away, so an upgrade keeps
everything. A file of a newer form than `SCHEMA_VERSION` is refused by whoever opens it.
"""

from __future__ import annotations

import sqlite3

import numpy as np

from slurm_dl.ledger.attained_service import DTYPES
from slurm_dl.ledger.sqlite.rows import BOOK, BREAKERS, ENDINGS, RESTARTS, RUNS, STEERS, TAKEN
from slurm_dl.model.breaker import OWNER_UNKNOWN

SCHEMA_VERSION = 10


def _sql_type(dtype: type[np.generic]) -> str:
    return "REAL" if dtype is np.float64 else "INTEGER"


META = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
"""Facts about the ledger itself: whose it is, and who may write it."""

_TABLES = f"""
CREATE TABLE IF NOT EXISTS job (
    {", ".join(f"{name} {_sql_type(dt)} NOT NULL" for name, dt in DTYPES.items())},
    PRIMARY KEY (job_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS run ({RUNS.definition}, PRIMARY KEY (job_id, start_s)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS handover (
    handover_id INTEGER PRIMARY KEY, body TEXT NOT NULL, closed TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS taken ({TAKEN.definition});
CREATE TABLE IF NOT EXISTS steer ({STEERS.definition}, PRIMARY KEY (job_id));
CREATE TABLE IF NOT EXISTS restart (
    {RESTARTS.definition}, PRIMARY KEY (job_id, restarts)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS breaker ({BREAKERS.definition}, PRIMARY KEY (name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS book ({BOOK.definition}, PRIMARY KEY (kind, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ending ({ENDINGS.definition}, PRIMARY KEY (job_id));
"""

_INDEXES = {
    "taken_of": "taken (job_id, at_s)",
    "taken_at": "taken (at_s)",
    "taken_for": "taken (handover_id)",
    "run_ended": "run (end_s)",
    "ending_named": "ending (label)",
    "ending_seen": "ending (seen_s)",
    "ending_of_uid": "ending (uid, seen_s)",
    "ending_of_user": "ending (user, seen_s)",
}
"""For `why` of one job, for a user's list, and for what is dropped by its age: all while somebody
waits."""

_GONE = {"job": ("promoted_s",)}
"""Columns of schema 2 that no row is written with since: each wants a value, so none could be.

Their tables have no index that would go with them."""


def upgrade(db: sqlite3.Connection) -> None:
    """Give *db* the form of today, all of it or nothing; one that has it is not written.

    While somebody else writes it is waited for, as for every change.

    Raises:
        sqlite3.Error: It cannot be written, or is no ledger.
    """
    if not _missing(db):
        return
    try:
        # A BEGIN that becomes a write later on would fail at once if anybody writes.
        db.execute("BEGIN IMMEDIATE")
        # Another one may have done it meanwhile. One transaction, as each waits for the disk.
        for statement in _missing(db):
            db.execute(statement)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _missing(db: sqlite3.Connection) -> list[str]:
    """The statements that *db* lacks to be of today's form; of new columns 0 is "never"."""
    there = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    statements = [create for name, create in _CREATE.items() if name not in there]
    columns = {
        "job": {name: f"{_sql_type(dtype)} NOT NULL DEFAULT 0" for name, dtype in DTYPES.items()},
        "restart": {"uid": f"INTEGER NOT NULL DEFAULT {OWNER_UNKNOWN}"},
        "breaker": {"rearm_s": "REAL NOT NULL DEFAULT 0"},
    }
    for table, wanted in columns.items():
        # A table that is not there is made with all of its columns.
        has = {row[1] for row in db.execute(f"PRAGMA table_info({table})")} or wanted
        statements += [
            f"ALTER TABLE {table} ADD COLUMN {name} {form}"
            for name, form in wanted.items()
            if name not in has
        ]
        if "queued_s" in wanted.keys() - has:
            # Before schema 10 the place in the queue was by submission.
            statements.append("UPDATE job SET queued_s = first_submit_s")
        if set(has) & set(_GONE.get(table, ())):
            # SQLite drops columns from 3.35 on, and supported systems have older ones.
            kept = ", ".join(wanted)
            statements += [
                f"ALTER TABLE {table} RENAME TO {table}_before",
                _CREATE[table],
                f"INSERT INTO {table} ({kept}) SELECT {kept} FROM {table}_before",  # noqa: S608
                f"DROP TABLE {table}_before",
            ]
    statements += [
        f"CREATE INDEX {name} ON {on}" for name, on in _INDEXES.items() if name not in there
    ]
    if db.execute("PRAGMA user_version").fetchone()[0] != SCHEMA_VERSION:
        statements.append(f"PRAGMA user_version={SCHEMA_VERSION}")
    return statements


_CREATE = {
    create.split("(")[0].split()[-1]: create
    for create in f"{META}{_TABLES}".split(";")
    if create.strip()
}
"""How each table is made, by its name."""
