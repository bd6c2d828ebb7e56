"""The ledger on disk: breakers, what became of jobs, and a file of before there were any."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import build

from slurm_dl.engine.circuit_breakers import gpus_taken, trips
from slurm_dl.engine.settings import Breakers, Settings
from slurm_dl.ledger.restarts import FOLLOWED_S
from slurm_dl.ledger.sqlite.schema import SCHEMA_VERSION
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.store_protocol import StoreChange
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.breaker import Restart
from slurm_dl.model.ids import HandoverId, JobId

PARTITIONS = frozenset({"gpu"})
LEDGERS = Path(__file__).parents[1] / "packages" / "ledgers"


def _restart(job_id: int, requeued_s: float = 100.0) -> Restart:
    return Restart(
        job_id=JobId(job_id),
        restarts=2,
        gpus=0.5,
        requeued_s=requeued_s,
        handover_id=HandoverId(3),
        restarted_s=120.25,
        fate="failed",
        settled_s=140.5,
        uid=1001,
    )


def test_what_became_of_a_job_is_dropped_after_a_day(path: Path) -> None:
    """From the file too."""
    with closing(SqliteStore(path)) as store:
        store.save(StoreChange(restarts=[_restart(1, 100.0), _restart(2, 101.0)]))
        store.save(StoreChange(restarts=[_restart(3, 100.0 + FOLLOWED_S)]))
        assert [r.job_id for r in store.load().restarts] == [2, 3]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM restart").fetchone() == (2,)


def test_a_ledger_of_before_there_were_breakers_goes_on(path: Path) -> None:
    """No breaker has tripped, and what was taken back within the hour counts."""
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript((LEDGERS / "schema-4.sql").read_text("utf-8"))
        db.execute("DELETE FROM handover")
        db.execute("DELETE FROM taken")
        db.execute("INSERT INTO taken VALUES (?, 5, 8.0, 4.0, 2)", (build.NOW_S - 60,))
    ledger = Ledger(SqliteStore(path))
    snap = ledger.snapshot(build.observed([]), PARTITIONS)
    how = Settings(partitions=PARTITIONS, breakers=Breakers(gpus_per_hour=7))

    assert snap.breakers == ()
    assert snap.restarts == ()
    assert gpus_taken(snap, how, "gpus_per_hour") == 8.0
    (trip,) = trips(snap, how)
    ledger.begin(trip)
    ledger.close()

    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    (breaker,) = Ledger(SqliteStore(path)).snapshot(build.observed([]), PARTITIONS).breakers
    assert (breaker.name, breaker.why) == ("gpus_per_hour", trip.why)
