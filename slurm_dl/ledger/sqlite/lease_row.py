"""The lease on the ledger: one row with the fencing token of the daemon that may act.

Daemons on several hosts share the file. The holder of the lease counts the row up; the others watch
whether it changes. Each step is one transaction that compares before it writes, so of two daemons
that want the lease one gets it. `SqliteStore` compares the token in each of its own transactions:
the transaction that takes the lease shuts the former holder out of the ledger.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_dl.ledger.sqlite.schema import META
from slurm_dl.ledger.sqlite.store import (
    LeaseState,
    StoreError,
    SupersededError,
    connect,
    lease_in,
)


class LeaseRow:
    """The row in the ledger *path*; may be used from any thread.

    Raises:
        StoreError: The ledger cannot be opened, or, of each method, not be read or written.
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
        """The lease as it stands now."""
        with self._transaction("BEGIN") as db:
            return lease_in(db)

    def take(self, seen: LeaseState, lease_s: float) -> LeaseState | None:
        """Take the lease with the next generation, if it still stands as it was *seen*.

        Returns:
            What stands there now; None if another daemon took it first, or its holder renewed it.
        """
        mine = LeaseState(
            generation=seen.generation + 1,
            host=socket.gethostname(),
            pid=os.getpid(),
            lease_s=lease_s,
        )
        with self._transaction("BEGIN IMMEDIATE") as db:
            if lease_in(db) != seen:
                return None
            _write(db, mine)
        return mine

    def renew(self, mine: LeaseState) -> LeaseState:
        """Count the row up, and return what stands there then.

        Raises:
            SupersededError: Another daemon has the lease.
        """
        renewed = dataclasses.replace(mine, count=mine.count + 1)
        with self._transaction("BEGIN IMMEDIATE") as db:
            _check(db, mine)
            _write(db, renewed)
        return renewed

    def check(self, mine: LeaseState) -> None:
        """Return if the lease is still ours.

        Raises:
            SupersededError: Another daemon has it.
        """
        with self._transaction("BEGIN") as db:
            _check(db, mine)

    def release(self, mine: LeaseState) -> None:
        """Let the next daemon have it at once; no change if it is not ours any more."""
        with self._transaction("BEGIN IMMEDIATE") as db:
            if lease_in(db).generation == mine.generation:
                _write(db, LeaseState(generation=mine.generation))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

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


def _check(db: sqlite3.Connection, mine: LeaseState) -> None:
    now = lease_in(db)
    if now.generation != mine.generation:
        msg = f"{now} has taken over (generation {now.generation}, ours is {mine.generation})"
        raise SupersededError(msg)


def _write(db: sqlite3.Connection, lease: LeaseState) -> None:
    text = json.dumps(dataclasses.asdict(lease))
    db.execute("INSERT OR REPLACE INTO meta VALUES ('lease', ?)", (text,))
    # Daemons of the version before read the generation here: one of them that acts is shut out.
    generation = str(lease.generation)
    db.execute("INSERT OR REPLACE INTO meta VALUES ('generation', ?)", (generation,))
