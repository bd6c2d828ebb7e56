"""The form of the ledger's file: the list of changes that made it, one after the other.

An older file gets those that it lacks, so an upgrade keeps everything; a new one gets all of them.
A file of a newer form than `SCHEMA_VERSION` is refused by whoever opens it.
"""

from __future__ import annotations

import sqlite3

META = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID
"""
"""Facts about the ledger itself: whose it is, and who may write it."""

_JOB = """
job_id INTEGER NOT NULL, first_submit_s REAL NOT NULL, restarts INTEGER NOT NULL,
run_start_s REAL NOT NULL, counted_to_s REAL NOT NULL, run_gpus REAL NOT NULL,
run_gpu_s REAL NOT NULL, attained_gpu_s REAL NOT NULL, ran_s REAL NOT NULL,
forgiven_gpu_s REAL NOT NULL, forgiven_ran_s REAL NOT NULL, waiting_since_s REAL NOT NULL,
preemptions INTEGER NOT NULL, last_preempted_s REAL NOT NULL, fruitless INTEGER NOT NULL,
last_fruitless_s REAL NOT NULL, site_factor INTEGER NOT NULL, last_seen_s REAL NOT NULL,
over INTEGER NOT NULL"""

_NAMES = ", ".join(line.split()[0] for line in _JOB.split(","))

_FORMS = (
    # 1
    (
        f"CREATE TABLE job ({_JOB}, PRIMARY KEY (job_id)) WITHOUT ROWID",
        """CREATE TABLE run (
            job_id INTEGER NOT NULL, start_s REAL NOT NULL, end_s REAL NOT NULL,
            gpu_s REAL NOT NULL, PRIMARY KEY (job_id, start_s)) WITHOUT ROWID""",
        """CREATE TABLE handover (
            handover_id INTEGER PRIMARY KEY, body TEXT NOT NULL, closed TEXT NOT NULL)""",
        """CREATE TABLE taken (
            at_s REAL NOT NULL, job_id INTEGER NOT NULL, gpus REAL NOT NULL,
            notice_s REAL NOT NULL, handover_id INTEGER NOT NULL)""",
    ),
    # 2: a column that 3 has taken away again. SQLite drops columns from 3.35 on, and supported
    # systems have older ones.
    (),
    # 3
    (
        "ALTER TABLE job RENAME TO job_before",
        f"""CREATE TABLE job ({_JOB}, first_run_s REAL NOT NULL DEFAULT 0,
            incomplete INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (job_id)) WITHOUT ROWID""",
        f"INSERT INTO job ({_NAMES}) SELECT {_NAMES} FROM job_before",  # noqa: S608 - our own names
        "DROP TABLE job_before",
    ),
    # 4
    (
        """CREATE TABLE steer (
            job_id INTEGER PRIMARY KEY, kind TEXT NOT NULL, avoid TEXT NOT NULL,
            own TEXT NOT NULL, "left" TEXT NOT NULL, since_s REAL NOT NULL, until_s REAL NOT NULL,
            not_before_s REAL NOT NULL, why TEXT NOT NULL, expected_start_s REAL)""",
    ),
    # 5
    (
        META,
        """CREATE TABLE restart (
            job_id INTEGER NOT NULL, restarts INTEGER NOT NULL, gpus REAL NOT NULL,
            requeued_s REAL NOT NULL, handover_id INTEGER NOT NULL, restarted_s REAL NOT NULL,
            fate TEXT NOT NULL, settled_s REAL NOT NULL, uid INTEGER NOT NULL DEFAULT -1,
            PRIMARY KEY (job_id, restarts)) WITHOUT ROWID""",
        """CREATE TABLE breaker (
            name TEXT PRIMARY KEY, tripped_s REAL NOT NULL, why TEXT NOT NULL, jobs TEXT NOT NULL,
            reset_s REAL NOT NULL, reset_by TEXT NOT NULL, counts_from INTEGER NOT NULL
            ) WITHOUT ROWID""",
    ),
    # 6. The indexes are for `why` of one job, for a user's list, and for what is dropped by its
    # age: all while somebody waits.
    (
        """CREATE TABLE ending (
            job_id INTEGER PRIMARY KEY, label TEXT NOT NULL, name TEXT NOT NULL,
            user TEXT NOT NULL, account TEXT NOT NULL, qos TEXT NOT NULL, reason TEXT NOT NULL,
            nodes TEXT NOT NULL, ending TEXT NOT NULL, uid INTEGER NOT NULL,
            partition TEXT NOT NULL, state TEXT NOT NULL, tasks INTEGER NOT NULL,
            n_nodes INTEGER NOT NULL, gpus REAL NOT NULL, restarts INTEGER NOT NULL,
            start_s REAL NOT NULL, end_s REAL NOT NULL, seen_s REAL NOT NULL,
            preemptible INTEGER NOT NULL)""",
        "CREATE INDEX taken_of ON taken (job_id, at_s)",
        "CREATE INDEX taken_at ON taken (at_s)",
        "CREATE INDEX taken_for ON taken (handover_id)",
        "CREATE INDEX run_ended ON run (end_s)",
        "CREATE INDEX ending_named ON ending (label)",
        "CREATE INDEX ending_seen ON ending (seen_s)",
        "CREATE INDEX ending_of_uid ON ending (uid, seen_s)",
        "CREATE INDEX ending_of_user ON ending (user, seen_s)",
    ),
    # 7
    ("ALTER TABLE breaker ADD COLUMN rearm_s REAL NOT NULL DEFAULT 0",),
    # 8
    ("ALTER TABLE job ADD COLUMN last_answer INTEGER NOT NULL DEFAULT 0",),
    # 9
    (
        """CREATE TABLE book (kind TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL,
            PRIMARY KEY (kind, key)) WITHOUT ROWID""",
    ),
    # 10. Before it the place in the queue was by submission.
    (
        "ALTER TABLE job ADD COLUMN run_terms INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE job ADD COLUMN run_grace_s REAL NOT NULL DEFAULT 0",
        "ALTER TABLE job ADD COLUMN run_until REAL NOT NULL DEFAULT 0",
        "ALTER TABLE job ADD COLUMN queued_s REAL NOT NULL DEFAULT 0",
        "UPDATE job SET queued_s = first_submit_s",
    ),
    # 11
    (
        "ALTER TABLE ending ADD COLUMN submit_s REAL NOT NULL DEFAULT 0",
        "ALTER TABLE ending ADD COLUMN first_run_s REAL NOT NULL DEFAULT 0",
        "ALTER TABLE ending ADD COLUMN ran_s REAL NOT NULL DEFAULT 0",
        """CREATE TABLE planned (
            key TEXT PRIMARY KEY, purpose TEXT NOT NULL, lead INTEGER NOT NULL,
            lead_uid INTEGER NOT NULL, lead_account TEXT NOT NULL, lead_gpus REAL NOT NULL,
            beneficiaries TEXT NOT NULL, victims TEXT NOT NULL, gpus REAL NOT NULL,
            why TEXT NOT NULL, begin_s REAL NOT NULL, last_s REAL NOT NULL,
            others INTEGER NOT NULL, "end" TEXT NOT NULL, started_s REAL NOT NULL)""",
        """CREATE TABLE minute (
            from_s REAL PRIMARY KEY, to_s REAL NOT NULL, looks INTEGER NOT NULL,
            missed INTEGER NOT NULL, policy TEXT NOT NULL, mode TEXT NOT NULL, gpus REAL NOT NULL,
            held REAL NOT NULL, waiting REAL NOT NULL, compared INTEGER NOT NULL,
            first_other INTEGER NOT NULL, others REAL NOT NULL, wishes INTEGER NOT NULL,
            tripped INTEGER NOT NULL, shape TEXT NOT NULL, never_ran INTEGER NOT NULL)""",
        """CREATE TABLE shadow_job (
            job_id INTEGER PRIMARY KEY, uid INTEGER NOT NULL, account TEXT NOT NULL,
            gpus REAL NOT NULL, submit_s REAL NOT NULL, start_s REAL NOT NULL,
            ran_s REAL NOT NULL, end_s REAL NOT NULL, how TEXT NOT NULL,
            opted_in INTEGER NOT NULL)""",
        """CREATE TABLE forecast (
            job_id INTEGER NOT NULL, asked_s REAL NOT NULL, low_s REAL NOT NULL,
            median_s REAL NOT NULL, high_s REAL NOT NULL, held INTEGER, error_s REAL,
            judged_s REAL NOT NULL,
            PRIMARY KEY (job_id, asked_s))""",
    ),
)
"""Statements that make of each form the next one, from an empty file on; of new columns 0 is
"never"."""

SCHEMA_VERSION = len(_FORMS)


def upgrade(db: sqlite3.Connection) -> None:
    """Give *db* the form of today, all of it or nothing; one that has it is not written.

    While somebody else writes it is waited for, as for every change.

    Raises:
        sqlite3.Error: It cannot be written, or is no ledger.
    """
    if _version(db) >= SCHEMA_VERSION:
        return
    try:
        # A BEGIN that becomes a write later on would fail at once if anybody writes.
        db.execute("BEGIN IMMEDIATE")
        # Another one may have done it meanwhile. One transaction, as each waits for the disk.
        for statements in _FORMS[_version(db) :]:
            for statement in statements:
                db.execute(statement)
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])
