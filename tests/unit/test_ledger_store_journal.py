"""The ledger's file among several processes: its journal, old files, readers and killed writers."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_dl.ledger.sqlite.lease_row import LeaseRow
from slurm_dl.ledger.sqlite.store import SqliteStore, StoreError, SupersededError, stored_steers
from slurm_dl.ledger.store_protocol import StoreChange
from slurm_dl.model.ids import JobId
from slurm_dl.model.steer import Steer

STEER = Steer(
    job_id=JobId(7), kind="spot", avoid=("n1",), own=(), left=(), since_s=1.0, until_s=9.0, why="w"
)

KILLED = """
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA journal_mode=TRUNCATE")
db.execute("PRAGMA cache_size=1")
db.execute("BEGIN IMMEDIATE")
db.execute("DELETE FROM steer")
db.executemany("INSERT INTO taken VALUES (?, 1, 1, 1, 1)", [(float(i),) for i in range(20000)])
os.kill(os.getpid(), 9)
"""
"""A daemon that dies when half of a change is in the file."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with one steer in it."""
    path = tmp_path / "ledger.sqlite"
    store = SqliteStore(path)
    store.save(StoreChange(steers=[STEER]))
    store.close()
    return path


def test_no_write_ahead_log(path: Path) -> None:
    """Which other hosts could not read; what is left when nobody writes is the file itself."""
    store = SqliteStore(path)
    with sqlite3.connect(path) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() != ("wal",)
    other.close()
    store.close()
    assert not list(path.parent.glob("*-wal"))
    assert not list(path.parent.glob("*-shm"))


def test_a_ledger_of_before_is_converted(path: Path) -> None:
    """With all that was in it; while somebody has it open it is refused, not half converted."""
    before = sqlite3.connect(path, isolation_level=None)
    assert before.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    before.execute("UPDATE steer SET why = 'in the log'")
    with pytest.raises(StoreError, match="locked"):
        SqliteStore(path)
    before.close()

    SqliteStore(path).close()

    assert [s.why for s in stored_steers(path)] == ["in the log"]
    assert not list(path.parent.glob("*-wal"))


def test_what_a_killed_daemon_had_half_written_is_undone_for_readers(path: Path) -> None:
    """Release-all reads the ledger right after a crash, when no daemon has opened it yet."""
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=60)
    journal = path.with_name("ledger.sqlite-journal")
    assert journal.stat().st_size > 0

    assert stored_steers(path) == (STEER,)


def test_a_reader_in_the_way_of_a_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write fails as a whole, and the next one is not spoilt by it."""
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda p, **options: connect(p, timeout=0.1, **options))
    store, row = SqliteStore(path), LeaseRow(path)
    reader = connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM steer").fetchall()
    with pytest.raises(StoreError, match="locked"):
        store.save(StoreChange(let_go=[STEER.job_id]))
    seen = row.read()
    with pytest.raises(StoreError, match="locked"):
        row.take(seen, 5.0)
    reader.execute("COMMIT")

    assert row.take(seen, 5.0) is not None
    store.save(StoreChange(let_go=[STEER.job_id]))
    assert stored_steers(path) == ()
    for thing in (store, row, reader):
        thing.close()


def test_the_lease_is_what_the_ledger_is_written_with(path: Path) -> None:
    """Whoever takes the lease shuts the one before out, in the middle of what it was doing."""
    row = LeaseRow(path)
    first = row.take(row.read(), 5.0)
    assert first is not None
    store = SqliteStore(path, generation=first.generation)
    store.save(StoreChange(let_go=[STEER.job_id]))
    row.release(first)
    # Released, and nobody else yet: what is under way may still be written down.
    store.save(StoreChange(steers=[STEER]))

    assert row.take(row.read(), 5.0) is not None
    with pytest.raises(SupersededError):
        store.save(StoreChange(let_go=[STEER.job_id]))
    assert stored_steers(path) == (STEER,)
    store.close()
    row.close()
