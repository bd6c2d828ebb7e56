"""The lease on the ledger: one row that says which daemon may write, and whether it still lives.

Daemons on several hosts share the file. Whoever holds the lease counts it up again and again; the
others watch whether it moves. Each step is one transaction that compares before it writes, so of
two that want the lease one gets it, and a holder that was passed over learns it at its next step.
With the lease goes the generation that `SqliteStore` asks for: the same transaction that takes the
one away from a daemon shuts it out of the ledger.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slurm_dl.ledger.sqlite.schema import META
from slurm_dl.ledger.sqlite.store import StoreError, SupersededError, connect, generation_in

_KEY = "lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseState:
    """The lease as it stands in the row.

    Attributes:
        generation: Goes up each time that the lease is taken; 0: it never was.
        host: Where its holder runs; empty while nobody holds it.
        pid: The holder's process there.
        count: How often it was renewed.
        lease_s: How long the row may stand still before the lease may be taken, seconds.
        renewed_s: When it was renewed last by its holder's clock, epoch seconds; for people only.
    """

    generation: int = 0
    host: str = ""
    pid: int = 0
    count: int = 0
    lease_s: float = 0.0
    renewed_s: float = 0.0

    @property
    def is_free(self) -> bool:
        """Nobody holds it."""
        return not self.host

    def __str__(self) -> str:
        return f"{self.host} (pid {self.pid})" if self.host else "nobody"


class LeaseRow:
    """The row in the ledger *path*; may be used from any thread.

    Raises:
        StoreError: The ledger cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._db = connect(path)
            self._db.executescript(META)
        except (OSError, sqlite3.Error) as err:
            raise self._error(err) from err

    def read(self) -> LeaseState:
        """The lease as it stands now.

        Raises:
            StoreError: It cannot be read.
        """
        with self._transaction("BEGIN") as db:
            return _standing(db)

    def take(self, seen: LeaseState, *, host: str, pid: int, lease_s: float) -> LeaseState | None:
        """Take the lease with a higher generation, if it still stands as it was *seen*.

        Returns:
            What stands there now; None if somebody came first, or its holder renewed it.

        Raises:
            StoreError: It cannot be written.
        """
        mine = LeaseState(
            generation=seen.generation + 1,
            host=host,
            pid=pid,
            lease_s=lease_s,
            renewed_s=time.time(),
        )
        with self._transaction("BEGIN IMMEDIATE") as db:
            if _standing(db) != seen:
                return None
            _write(db, "generation", str(mine.generation))
            _write(db, _KEY, _text(mine))
        return mine

    def renew(self, mine: LeaseState) -> LeaseState:
        """Count on; what stands there then.

        Raises:
            SupersededError: It is not ours any more.
            StoreError: It cannot be written.
        """
        renewed = dataclasses.replace(mine, count=mine.count + 1, renewed_s=time.time())
        with self._transaction("BEGIN IMMEDIATE") as db:
            self._check(db, mine)
            _write(db, _KEY, _text(renewed))
        return renewed

    def check(self, mine: LeaseState) -> None:
        """Nothing, if the lease is still ours.

        Raises:
            SupersededError: It is not.
            StoreError: It cannot be read.
        """
        with self._transaction("BEGIN") as db:
            self._check(db, mine)

    def release(self, mine: LeaseState) -> None:
        """Let the next one have it at once; nothing if it is not ours any more.

        Raises:
            StoreError: It cannot be written.
        """
        with self._transaction("BEGIN IMMEDIATE") as db:
            if generation_in(db) == mine.generation:
                _write(db, _KEY, _text(LeaseState(generation=mine.generation)))

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._db.close()

    def _check(self, db: sqlite3.Connection, mine: LeaseState) -> None:
        now = _standing(db)
        if now.generation != mine.generation:
            msg = f"{now} has taken over (generation {now.generation}, ours is {mine.generation})"
            raise SupersededError(msg)

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._db.execute(begin)
                try:
                    yield self._db
                    self._db.execute("COMMIT")
                except BaseException:
                    # Also after a COMMIT that failed: without this no other could begin.
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
            except (sqlite3.Error, ValueError, TypeError, RecursionError) as err:
                raise self._error(err) from err

    def _error(self, err: Exception) -> StoreError:
        return StoreError(f"{self._path}: the lease cannot be read or written: {err}")


def _standing(db: sqlite3.Connection) -> LeaseState:
    row = db.execute("SELECT value FROM meta WHERE key = ?", (_KEY,)).fetchone()
    fields = json.loads(row[0]) if row else {}
    return LeaseState(**{**fields, "generation": generation_in(db)})


def _write(db: sqlite3.Connection, key: str, value: str) -> None:
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def _text(standing: LeaseState) -> str:
    return json.dumps(dataclasses.asdict(standing))
