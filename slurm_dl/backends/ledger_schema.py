"""The form of the ledger's file, and how one of an older form gets it.

What came since is added, nothing is taken away, so an upgrade keeps everything. A file of a newer
form than `SCHEMA_VERSION` is refused by whoever opens it.
"""

from __future__ import annotations

import sqlite3

import numpy as np

from slurm_dl.backends.ending_rows import ENDING_TABLE
from slurm_dl.engine.service import DTYPES
from slurm_dl.model.breaker import OWNER_UNKNOWN

SCHEMA_VERSION = 6


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
CREATE TABLE IF NOT EXISTS run (
    job_id INTEGER NOT NULL, start_s REAL NOT NULL, end_s REAL NOT NULL, gpu_s REAL NOT NULL,
    PRIMARY KEY (job_id, start_s)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS handover (
    handover_id INTEGER PRIMARY KEY, body TEXT NOT NULL, closed TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS taken (
    at_s REAL NOT NULL, job_id INTEGER NOT NULL, gpus REAL NOT NULL, notice_s REAL NOT NULL,
    handover_id INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS steer (
    job_id INTEGER PRIMARY KEY, kind TEXT NOT NULL, avoid TEXT NOT NULL, own TEXT NOT NULL,
    "left" TEXT NOT NULL, since_s REAL NOT NULL, until_s REAL NOT NULL, not_before_s REAL NOT NULL,
    why TEXT NOT NULL, expected_start_s REAL
);
CREATE TABLE IF NOT EXISTS restart (
    job_id INTEGER NOT NULL, restarts INTEGER NOT NULL, gpus REAL NOT NULL,
    requeued_s REAL NOT NULL, handover_id INTEGER NOT NULL, restarted_s REAL NOT NULL,
    fate TEXT NOT NULL, settled_s REAL NOT NULL, uid INTEGER NOT NULL DEFAULT {OWNER_UNKNOWN},
    PRIMARY KEY (job_id, restarts)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS breaker (
    name TEXT PRIMARY KEY, tripped_s REAL NOT NULL, why TEXT NOT NULL, jobs TEXT NOT NULL,
    reset_s REAL NOT NULL, reset_by TEXT NOT NULL, counts_from INTEGER NOT NULL
) WITHOUT ROWID;
"""

_INDEXES = (
    "CREATE INDEX IF NOT EXISTS taken_of ON taken (job_id, at_s)",
    "CREATE INDEX IF NOT EXISTS taken_at ON taken (at_s)",
    "CREATE INDEX IF NOT EXISTS taken_for ON taken (handover_id)",
    "CREATE INDEX IF NOT EXISTS run_ended ON run (end_s)",
    "CREATE INDEX IF NOT EXISTS ending_named ON ending (label)",
    "CREATE INDEX IF NOT EXISTS ending_seen ON ending (seen_s)",
)
"""For `why` of one job, and for what is dropped by its age; both while the daemon waits."""


def upgrade(db: sqlite3.Connection) -> None:
    """Give *db* the form of today, all of it or nothing; one that has it is not written.

    Raises:
        sqlite3.Error: It cannot be written, or is no ledger.
    """
    try:
        # Not IMMEDIATE: that would be a write. One transaction, as each waits for the disk.
        db.executescript("BEGIN;" + META + _TABLES + ENDING_TABLE)
        _add_columns(db)
        for index in _INDEXES:
            db.execute(index)
        if db.execute("PRAGMA user_version").fetchone()[0] != SCHEMA_VERSION:
            db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _add_columns(db: sqlite3.Connection) -> None:
    """Add the columns that came since; 0 is "never"."""
    there = {row[1] for row in db.execute("PRAGMA table_info(job)")}
    for name, dtype in DTYPES.items():
        if name not in there:
            db.execute(f"ALTER TABLE job ADD COLUMN {name} {_sql_type(dtype)} NOT NULL DEFAULT 0")
    if not any(row[1] == "uid" for row in db.execute("PRAGMA table_info(restart)")):
        db.execute(f"ALTER TABLE restart ADD COLUMN uid INTEGER NOT NULL DEFAULT {OWNER_UNKNOWN}")
