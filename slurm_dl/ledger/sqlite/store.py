"""The ledger on disk: one SQLite file with a rollback journal.

Every call is one transaction and is on the disk when it returns: `synchronous=FULL`, because what
is written here says what may already have been done to other people's jobs. No write-ahead log:
several hosts may share the directory (see `lease_row`), and that needs memory in common.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import TypeAdapter

from slurm_dl.ledger.attained_service import DTYPES, AttainedService, EndedRun
from slurm_dl.ledger.clock_adjustment import SLACK_S
from slurm_dl.ledger.lease_credits import OWED, Owed
from slurm_dl.ledger.restarts import FOLLOWED_S
from slurm_dl.ledger.sqlite.rows import (
    BOOK,
    BREAKERS,
    ENDING_UPSERT,
    ENDINGS,
    NOTED,
    RESTARTS,
    RUNS,
    SHADOW_JOBS,
    STEERS,
    TAKEN,
    Table,
)
from slurm_dl.ledger.sqlite.schema import SCHEMA_VERSION, upgrade
from slurm_dl.ledger.sqlite.sweep import sweep
from slurm_dl.ledger.store_protocol import HOUR_S, LedgerContents, Noted, StoreChange
from slurm_dl.model.booking import of_kind
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.steer import Steer
from slurm_dl.model.throttle import Throttled, throttles_in

_T = TypeVar("_T", bound=Noted)
_R = TypeVar("_R")

_NOT_WRITTEN_BY_US = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)
"""What comes of rows that hold something else than was put into them."""


class StoreError(SlurmDlError):
    """The ledger cannot be read or written; nothing may be done until it can."""


class SupersededError(StoreError):
    """Another daemon has taken the ledger over; this one may do nothing more."""


_CHUNK = 4_000

_HANDOVER = TypeAdapter(Handover)
"""Bodies of hand-overs, also of those from before there were all fields."""

_JOB_UPSERT = (
    f"INSERT OR REPLACE INTO job ({', '.join(DTYPES)}) "  # noqa: S608 - our own names
    f"VALUES ({', '.join('?' * len(DTYPES))})"
)

_CUT = (
    "UPDATE taken SET at_s = ? WHERE at_s > ?",
    "UPDATE ending SET seen_s = ? WHERE seen_s > ?",
    "UPDATE job SET last_seen_s = ? WHERE over AND last_seen_s > ?",
)


class SqliteStore:
    """A `Store` in one file.

    Args:
        path: The file; it is created with mode 0600 if it is not there.
        cluster: Name of the cluster whose jobs it remembers; empty does not ask. A new ledger, and
            one of before there were names, takes it.
        generation: Fencing token of the daemon that writes, see `LeaseState`; None does not ask.
            Once the lease has another one, nothing more is written.

    Raises:
        StoreError: It cannot be opened, is no ledger, of a newer version or of another cluster. A
            ledger of today's version is opened without being written: also on a full disk.
    """

    def __init__(self, path: Path, *, cluster: str = "", generation: int | None = None) -> None:
        self._path = path
        self._generation = generation
        try:
            self._db = connect(path)
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA_VERSION:
                msg = f"{path}: written by a newer slurm_dl (schema {version}); upgrade slurm_dl"
                raise StoreError(msg)
            upgrade(self._db)
            self._check_cluster(cluster)
        except (OSError, sqlite3.Error) as err:
            msg = f"{path}: cannot open the ledger: {err}"
            raise StoreError(msg) from err

    def _check_cluster(self, cluster: str) -> None:
        if not cluster:
            return
        known = self._db.execute("SELECT value FROM meta WHERE key = 'cluster'").fetchone()
        if known is None:
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('cluster', ?)", (cluster,))
        of = known[0] if known else cluster
        if of != cluster:
            msg = (
                f"{self._path}: the ledger of cluster {of!r}, and this is {cluster!r}; "
                "set paths.state_dir to a directory of this cluster's own"
            )
            raise StoreError(msg)

    def load(self) -> LedgerContents:
        """All that is stored.

        Raises:
            StoreError: It cannot be read, or is not what was written.
        """
        try:
            return self._load()
        except sqlite3.Error as err:
            raise self._error(err) from err
        except _NOT_WRITTEN_BY_US as err:
            raise self._damaged(err) from err

    def _load(self) -> LedgerContents:
        db = self._db
        bodies = db.execute("SELECT body FROM handover WHERE closed = '' ORDER BY handover_id")
        splits = db.execute(
            "SELECT body FROM handover WHERE json_extract(body, '$.purpose') = 'split' "
            "ORDER BY handover_id"
        )
        last = db.execute("SELECT max(handover_id) FROM handover").fetchone()[0]
        booked = BOOK.read(db, "ORDER BY kind, key")
        for kind in {e.kind for e in booked}:
            if not all(isinstance(body, dict) for body in of_kind(booked, kind).values()):
                msg = f"an entry of kind {kind} is no JSON object"
                raise ValueError(msg)
        distrust = db.execute("SELECT value FROM meta WHERE key = 'distrust_until_s'").fetchone()
        return LedgerContents(
            service=self._jobs(),
            handovers=tuple(_HANDOVER.validate_json(body) for (body,) in bodies),
            # Numbers name reservations. After the loss of a ledger none of the old ones, which
            # may still stand in Slurm, must come back, so a new ledger begins at the clock.
            next_handover_id=HandoverId((last or int(time.time())) + 1),
            taken=TAKEN.read(
                db, "WHERE at_s > (SELECT max(at_s) FROM taken) - ? ORDER BY at_s", HOUR_S
            ),
            steers=STEERS.read(db, "ORDER BY job_id"),
            lost_pairs={
                split.apart: split.opened_s
                for split in (_HANDOVER.validate_json(body) for (body,) in splits)
            },
            restarts=RESTARTS.read(
                db,
                "WHERE requeued_s > (SELECT max(requeued_s) FROM restart) - ? "
                "ORDER BY requeued_s, job_id",
                FOLLOWED_S,
            ),
            breakers=BREAKERS.read(db, "ORDER BY name"),
            booked=tuple(e for e in booked if e.kind != OWED),
            owed=Owed.stored(booked),
            distrust_until_s=float(distrust[0]) if distrust else 0.0,
        )

    def _jobs(self) -> AttainedService:
        """The rows of all jobs, with no more of them as Python objects at a time than `_CHUNK`."""
        found = self._db.execute(
            f"SELECT {', '.join(DTYPES)} FROM job ORDER BY job_id"  # noqa: S608 - our own names
        )
        parts = [tuple(AttainedService.empty().columns().values())]
        while rows := found.fetchmany(_CHUNK):
            columns = zip(*rows, strict=True)
            parts.append(
                tuple(np.array(c, dtype=dt) for c, dt in zip(columns, DTYPES.values(), strict=True))
            )
        whole = map(np.concatenate, zip(*parts, strict=True))
        return AttainedService(**dict(zip(DTYPES, whole, strict=True)))

    def save(self, change: StoreChange, /) -> None:
        """Write *change*, all of it or nothing."""
        columns = change.jobs.columns().values() if change.jobs is not None else ()
        with self._transaction() as db:
            if change.cut_to_s is not None:
                for statement in _CUT:
                    db.execute(statement, (change.cut_to_s, change.cut_to_s + SLACK_S))
            db.executemany(_JOB_UPSERT, zip(*(c.tolist() for c in columns), strict=True))
            RUNS.write(db, change.ended)
            db.executemany("DELETE FROM job WHERE job_id = ?", [(j,) for j in change.forgotten])
            db.executemany(
                "INSERT OR REPLACE INTO handover VALUES (?, ?, ?)",
                [
                    (h.handover_id, _HANDOVER.dump_json(h).decode(), closed)
                    for h, closed in change.handovers
                ],
            )
            if change.distrust_until_s is not None:
                db.execute(
                    "INSERT OR REPLACE INTO meta VALUES ('distrust_until_s', ?)",
                    (str(change.distrust_until_s),),
                )
            TAKEN.write(db, change.taken)
            STEERS.write(db, change.steers)
            db.executemany("DELETE FROM steer WHERE job_id = ?", [(j,) for j in change.let_go])
            RESTARTS.write(db, change.restarts)
            if change.restarts:
                oldest_s = max(r.requeued_s for r in change.restarts) - FOLLOWED_S
                db.execute("DELETE FROM restart WHERE requeued_s <= ?", (oldest_s,))
            BREAKERS.write(db, change.breakers)
            BOOK.write(db, (e for e in change.booked if e.body))
            db.executemany(
                "DELETE FROM book WHERE kind = ? AND key = ?",
                [(e.kind, e.key) for e in change.booked if not e.body],
            )
            db.executemany(ENDING_UPSERT, map(ENDINGS.row, change.endings))
            if change.unfinished is not None:
                db.execute("DELETE FROM shadow_job WHERE how IN ('', 'W')")
                SHADOW_JOBS.write(db, change.unfinished)
            for kind in {type(row) for row in change.noted}:
                NOTED[kind].write(db, (row for row in change.noted if type(row) is kind))
            if change.over_before_s is not None:
                sweep(db, change.over_before_s)

    def runs_of(self, job_id: JobId) -> tuple[EndedRun, ...]:
        """The runs of one job that are over, oldest first."""
        return RUNS.read(self._db, "WHERE job_id = ? ORDER BY start_s", job_id)

    def noted(self, kind: type[_T], /, **fields: str) -> tuple[_T, ...]:
        """See `Store`; damaged rows are left out.

        Raises:
            StoreError: They cannot be read.
        """
        table, which = NOTED[kind], " AND ".join(f'"{name}" = ?' for name in fields)
        try:
            rows = table.rows(self._db, f"WHERE {which or 'true'}", *fields.values())
            return tuple(table.sound(rows, []))
        except sqlite3.Error as err:
            raise self._error(err) from err

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._check_generation()
                yield self._db
                # A reader can be in its way: it waits for 5 s and then fails.
                self._db.execute("COMMIT")
            except BaseException:
                # SQLite has done so itself after some errors.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as err:
            raise self._error(err) from err

    def _check_generation(self) -> None:
        """Compare in the same transaction that writes: no other daemon can come between."""
        if self._generation is None:
            return
        lease = lease_in(self._db)
        if lease.generation != self._generation:
            what = f"generation {lease.generation}, ours is {self._generation}"
            msg = f"{self._path}: taken over by another dlschedd ({what})"
            raise SupersededError(msg)

    def _damaged(self, err: Exception) -> StoreError:
        return StoreError(
            f"{self._path}: the ledger is damaged ({type(err).__name__}): restore it, or move it "
            "away, and what jobs have received is rebuilt from Slurm's accounting"
        )

    def _error(self, err: sqlite3.Error) -> StoreError:
        return StoreError(f"{self._path}: {err}; nothing is done until the ledger can be written")


def connect(path: Path) -> sqlite3.Connection:
    """Open the ledger *path*, which is created with mode 0600 if it is not there.

    Raises:
        OSError: The file cannot be made.
        sqlite3.Error: It is no database, or somebody uses it.
    """
    path.touch(mode=0o600)
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        # One of before, with a write-ahead log, is converted; not while anybody has it open.
        db.execute("PRAGMA journal_mode=TRUNCATE")
        db.execute("PRAGMA synchronous=FULL")
        # KiB, as it is below 0. What is read is read once, at the start; 2,000 would fill slowly.
        db.execute("PRAGMA cache_size=-512")
    except BaseException:
        db.close()
        raise
    return db


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeaseState:
    """State of the lease: the daemon that may write the ledger, and its renewals."""

    generation: int = 0  # Fencing token: goes up each time that the lease is taken; 0: it never was
    host: str = ""  # Where its holder runs; empty while no daemon holds it
    pid: int = 0  # The holder's process there
    count: int = 0  # How often it was renewed
    lease_s: float = 0.0  # How long the row may stand still before the lease may be taken, seconds

    @property
    def is_free(self) -> bool:
        """No daemon holds it."""
        return not self.host

    def __str__(self) -> str:
        return f"{self.host} (pid {self.pid})" if self.host else "nobody"


def lease_in(db: sqlite3.Connection) -> LeaseState:
    """The lease as it stands in the ledger.

    Raises:
        sqlite3.Error: It cannot be read.
        ValueError: It is not what was written.
        TypeError: Likewise.
    """
    row = db.execute("SELECT value FROM meta WHERE key = 'lease'").fetchone()
    fields = json.loads(row[0]) if row else {}
    fields.pop("renewed_s", None)  # Of a version before this one.
    return LeaseState(**fields)


def stored_steers(path: Path) -> tuple[Steer, ...]:
    """The steers in the ledger *path*; see `_stored`."""
    return _stored(path, STEERS)


def stored_throttles(path: Path) -> dict[JobId, Throttled]:
    """The throttles of ours in the ledger *path*; see `_stored`."""
    return throttles_in(_stored(path, BOOK))


def _stored(path: Path, table: Table[_R]) -> tuple[_R, ...]:
    """All rows of *table* in the ledger *path*; none in one of before there were any.

    It is only read. What a daemon that was killed had half written is undone first, as it would be
    at a start.

    Raises:
        StoreError: It is not there, or cannot be read.
    """
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)
        with closing(db):
            if not db.execute(f"PRAGMA table_info({table.name})").fetchall():
                return ()
            return table.read(db, "ORDER BY 1")
    except (OSError, ValueError, sqlite3.Error) as err:
        msg = f"{path}: {err}"
        raise StoreError(msg) from err
