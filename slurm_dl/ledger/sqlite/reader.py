"""The ledger read by somebody else than its daemon's loop: what is known of one job.

The loop writes the file while others ask, so each look is short, on a connection of its own, and
changes nothing.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_dl.json_types import JsonObject
from slurm_dl.ledger.attained_service import EndedRun
from slurm_dl.ledger.clock_adjustment import SLACK_S
from slurm_dl.ledger.completions import GaveWay, JobEnding, PastJob
from slurm_dl.ledger.run_contracts import BROKEN
from slurm_dl.ledger.sqlite.rows import (
    ANY,
    BOOK,
    ENDINGS,
    MINUTES,
    PLANNED,
    RUNS,
    SHADOW_JOBS,
    Only,
    RememberedEnding,
    Table,
    ended_since,
    job_named,
)
from slurm_dl.ledger.sqlite.schema import SCHEMA_VERSION
from slurm_dl.ledger.store_protocol import LONGEST_NAME, ShadowJob, ShadowRecord
from slurm_dl.model.booking import of_kind
from slurm_dl.model.breaker import OWNER_UNKNOWN
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState

_WITHIN_S = 1.0  # So long a look waits for the loop to have written
_PIECE = 10_000  # Rows that are read at once

_JOB = (
    "SELECT attained_gpu_s, ran_s, first_submit_s, last_seen_s, preemptions, incomplete, "
    "over FROM job WHERE job_id = ?"
)

_OF_VICTIM = (
    "(SELECT max(json_extract(value, '$.{}')) FROM json_each(body, '$.victims') "
    "WHERE json_extract(value, '$.run.job_id') = taken.job_id)"
)

_GAVE_WAY = f"""
SELECT taken.at_s, taken.notice_s, taken.gpus, taken.handover_id,
    json_extract(body, '$.purpose'),
    (SELECT group_concat(value) FROM json_each(body, '$.beneficiaries')),
    coalesce({_OF_VICTIM.format("contract.signal")}, ''),
    coalesce({_OF_VICTIM.format("ended")}, 0),
    coalesce({_OF_VICTIM.format("gpus")}, 0),
    {_OF_VICTIM.format("then")}
FROM taken LEFT JOIN handover ON handover.handover_id = taken.handover_id
WHERE taken.job_id = ? AND taken.at_s >= ? ORDER BY taken.at_s
"""  # noqa: S608 - our own names

_CONTRACTS = """
SELECT coalesce(nullif(max(user), ''), uid), account, count(*) AS jobs, max(preemptible)
FROM ending WHERE gpus > 0 AND (partition = '' OR partition IN (SELECT value FROM json_each(?)))
GROUP BY uid, account ORDER BY jobs DESC, uid, account
"""

_OWNERS = "SELECT DISTINCT uid FROM restart WHERE job_id = ? AND requeued_s >= ?"


_GAVE_WAY_ROWS = Table("taken", GaveWay)
_PAST_ROWS = Table("job", PastJob)


class PastError(SlurmDlError):
    """The ledger could not be read; what it knows of a job is not known now."""


@dataclass(frozen=True, slots=True)
class LedgerReader:
    """Reads the ledger *path*; may be asked from many threads.

    Each method raises `PastError` if it is not there, is written for too long, or is no ledger of
    today's.
    """

    path: Path

    def past(self, job_id: JobId) -> PastJob | None:
        """The ledger's record of a job; None if there is none.

        Numbers come round: of several jobs that had this one it is the last.
        """
        with self._reading() as db:
            return _past(db, job_id)

    def named(self, label: str, now_s: float) -> JobId | None:
        """The last job that Slurm listed as *label* and that is over; None if there is none."""
        with self._reading() as db:
            return job_named(db, label, now_s)

    def ended_since(
        self, since_s: float, now_s: float, most: int, only: Only = ANY
    ) -> list[RememberedEnding]:
        """The last *most* jobs first seen over since then, epoch seconds; see `ended_since`."""
        with self._reading() as db:
            return ended_since(db, since_s, now_s, most, only)

    def contract_use(self, partitions: Sequence[str]) -> list[tuple[str, str, int, bool]]:
        """Ended jobs with GPUs of the last week by user and account, most first.

        Args:
            partitions: Jobs of these, and of several at once.

        Returns:
            Login name or uid; account; number of jobs; whether one of them had a contract.
        """
        with self._reading() as db:
            rows = db.execute(_CONTRACTS, (json.dumps(partitions),)).fetchall()
        return [(str(user), str(of), int(jobs), bool(opted)) for user, of, jobs, opted in rows]

    def broken_contracts(self) -> dict[str, JsonObject]:
        """Users who took a run out of its contract, by uid."""
        with self._reading() as db:
            return of_kind(BOOK.read(db, f"WHERE kind = '{BROKEN}'"), BROKEN)

    def shadow_since(self, since_s: float, partitions: Sequence[str]) -> ShadowRecord:
        """What shadow mode has kept since then, epoch seconds.

        Args:
            partitions: Ended jobs of these.
        """
        bad: list[object] = []
        with self._reading() as db:
            if db.execute("PRAGMA user_version").fetchone()[0] < SCHEMA_VERSION:
                msg = "the ledger is of a version before: start dlschedd once"
                raise ValueError(msg)
            endings = _in_pieces(db, ENDINGS, "end_s >= ? AND start_s > 0 AND gpus > 0", since_s)
            ended = {
                ending.job_id: _shadow_job(ending)
                for ending in ENDINGS.sound(endings, bad)
                if ending.partition in partitions
            }
            pieces = _in_pieces(db, SHADOW_JOBS, "(how IN ('', 'W') OR end_s >= ?)", since_s)
            noted = list(SHADOW_JOBS.sound(pieces, bad))
            # Of a version that kept its own; a little more is known of those.
            ended |= {JobId(job.job_id): job for job in noted if job.how in {"C", "F"}}
            rest = [
                job
                for job in noted
                if (end := ended.get(JobId(job.job_id))) is None or end.end_s < job.start_s
            ]
            minutes = MINUTES.rows(db, "WHERE to_s >= ? ORDER BY rowid", since_s)
            known = "WHERE \"end\" = '' OR max(last_s, started_s) >= ? ORDER BY begin_s, key"
            planned = PLANNED.rows(db, known, since_s)
        return ShadowRecord(
            minutes=tuple(MINUTES.sound(minutes, bad)),
            planned=tuple(PLANNED.sound(planned, bad)),
            ended=(*ended.values(), *(job for job in rest if job.how == "V")),
            unfinished=tuple(job for job in rest if job.how in {"", "W"}),
            bad=len(bad),
        )

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        # Not ro: what a daemon that was killed had half written must be undone before a look.
        uri = f"{self.path.absolute().as_uri()}?mode=rw"
        try:
            with closing(sqlite3.connect(uri, uri=True, timeout=_WITHIN_S)) as db:
                yield db
        except (OSError, ArithmeticError, TypeError, ValueError, sqlite3.Error) as err:
            msg = f"{self.path}: {err}"
            raise PastError(msg) from err


def _in_pieces(
    db: sqlite3.Connection, table: Table[Any], which: str, since_s: float
) -> Iterator[Sequence[object]]:
    """The rows of *table* that are *which* since then, epoch seconds, by job.

    A piece at a time: the daemon cannot write while a read goes on.
    """
    rest = f"WHERE job_id > ? AND {which} ORDER BY job_id LIMIT {_PIECE}"
    last = -1
    while rows := table.rows(db, rest, last, since_s):
        yield from rows
        last = int(str(rows[-1][table.names.index("job_id")]))


def _shadow_job(ending: JobEnding) -> ShadowJob:
    # Until schema 11 of all runs only the last one was written down.
    start_s = ending.first_run_s or ending.start_s
    return ShadowJob(
        job_id=ending.job_id,
        uid=max(0, ending.uid),
        account=ending.account[:LONGEST_NAME],
        gpus=ending.gpus,
        submit_s=min(ending.submit_s or start_s, start_s),
        start_s=start_s,
        ran_s=ending.ran_s or max(0.0, ending.end_s - ending.start_s),
        end_s=max(ending.end_s, start_s),
        how="C" if ending.state is JobState.COMPLETED else "F",
        opted_in=ending.preemptible,
    )


def _past(db: sqlite3.Connection, job_id: JobId) -> PastJob | None:
    row = db.execute(_JOB, (job_id,)).fetchone()
    since_s = float(row[2]) if row else 0.0
    ending = next(iter(ENDINGS.read(db, "WHERE job_id = ?", job_id)), None)
    if row and ending and ending.seen_s > (last_seen_s := float(row[3])) + SLACK_S:
        # A later job of this number, which came and ended between two looks.
        row, since_s = None, last_seen_s
    runs = RUNS.read(db, "WHERE job_id = ? AND start_s >= ? ORDER BY start_s", job_id, since_s)
    over = row is None or bool(row[6])
    if ending and not _is_of(ending, since_s, over=over):
        ending = None
    if row is None and not runs:
        return None if ending is None else _unseen(ending)
    gave_way = tuple(map(_GAVE_WAY_ROWS.value, db.execute(_GAVE_WAY, (job_id, since_s))))
    owners = {int(uid) for (uid,) in db.execute(_OWNERS, (job_id, since_s))}
    owners |= {ending.uid} if ending else set()
    # A job that has left Slurm's list unseen is dropped after a week, a little before its runs.
    known = (*_total(runs), 0.0, 0.0, len(gave_way), False) if row is None else row[:-1]
    # A slurmctld that died may have forgotten the end, and the job goes on.
    ended = ending if over else None
    return _PAST_ROWS.value((job_id, *known, runs, gave_way, owners - {OWNER_UNKNOWN}, ended))


def _total(runs: Sequence[EndedRun]) -> tuple[float, float]:
    """GPU-seconds of *runs*, and seconds."""
    return math.fsum(r.gpu_s for r in runs), math.fsum(r.end_s - r.start_s for r in runs)


def _is_of(ending: JobEnding, since_s: float, *, over: bool) -> bool:
    """Whether *ending* is that of a job which was submitted at *since_s*, and of none before it.

    Of a clock that was set back only Slurm's own instants tell it.
    """
    return ending.seen_s >= since_s or (over and ending.end_s >= since_s)


def _unseen(ending: JobEnding) -> PastJob:
    """A job that was over when it was seen first: Slurm told its last run."""
    runs: tuple[EndedRun, ...] = ()
    if 0 < ending.start_s < ending.end_s:
        run = EndedRun(
            job_id=ending.job_id,
            start_s=ending.start_s,
            end_s=ending.end_s,
            gpu_s=ending.last_run_gpu_s,
        )
        runs = (run,)
    return PastJob(
        job_id=ending.job_id,
        attained_gpu_s=ending.last_run_gpu_s,
        ran_s=math.fsum(run.end_s - run.start_s for run in runs),
        incomplete=ending.restarts > 0,
        runs=runs,
        uids=frozenset({ending.uid} - {OWNER_UNKNOWN}),
        ending=ending,
    )
