"""Rows of the ledger that are dropped once they are old, a bounded number at a time."""

from __future__ import annotations

import sqlite3

MOST_ROWS = 20_000
"""Dropped of one kind at a time: the loop waits. A ledger of years is caught up with in a day."""

_JOBS = (
    "DELETE FROM job WHERE job_id IN (SELECT job_id FROM job "
    "WHERE over AND last_seen_s < :before_s LIMIT :most)"
)

_OF_NOBODY = tuple(
    f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} "  # noqa: S608 - our own names
    f"WHERE {old_s} < :before_s AND NOT EXISTS (SELECT 1 FROM job WHERE job.job_id = {table}.job_id"
    f" AND job.first_submit_s <= {table}.{at_s}) LIMIT :most)"
    for table, key, old_s, at_s in (
        ("run", "job_id, start_s", "end_s", "start_s"),
        ("taken", "rowid", "at_s", "at_s"),
        ("ending", "job_id", "seen_s", "seen_s"),
    )
)
"""No job that is known had it; of a number that came round the last job that had it counts."""

_HANDOVERS = """
DELETE FROM handover WHERE handover_id IN (
    SELECT handover_id FROM handover
    WHERE handover_id < coalesce(
            (SELECT min(handover_id) FROM taken WHERE at_s >= :before_s),
            (SELECT max(handover_id) FROM handover))
        AND handover_id < (SELECT max(handover_id) FROM handover)
        AND closed != ''
        AND NOT EXISTS (SELECT 1 FROM taken WHERE taken.handover_id = handover.handover_id)
        AND iif(json_valid(body), json_extract(body, '$.opened_s') < :before_s, 0)
    LIMIT :most)
"""
"""Closed ones of which nobody remembers that he gave way. Their numbers ascend, so only those below
the ones of this week need be looked at; the last number is kept, the next one goes by it. Models
that lost on a GPU are kept apart for as long, and go by the ones opened since."""

_NOTED = tuple(
    f"DELETE FROM {table} WHERE {at_s} < :before_s"  # noqa: S608 - our own names
    for table, at_s in (("planned", "last_s"), ("minute", "to_s"), ("shadow_job", "end_s"))
)

_FORECASTS = """
DELETE FROM forecast WHERE asked_s < :before_s AND judged_s < coalesce(
    (SELECT min(judged_s) FROM (SELECT judged_s FROM forecast WHERE held IS NOT NULL
        ORDER BY judged_s DESC LIMIT 200)), 9e99)
"""
"""The last verdicts are the score, however old."""


def sweep(db: sqlite3.Connection, before_s: float) -> None:
    """Drop what is of jobs that were over, and seen last, before *before_s*, epoch seconds.

    A job that is over stays that long after Slurm listed it last, with its runs, the times it gave
    way and how it ended, for ``dlqueue why``. Of a job that lives all of it stays, however old.

    Raises:
        sqlite3.Error: It cannot be written.
    """
    for statement in (_JOBS, *_OF_NOBODY, _HANDOVERS, *_NOTED, _FORECASTS):
        db.execute(statement, {"before_s": before_s, "most": MOST_ROWS})
