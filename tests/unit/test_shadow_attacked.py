"""Faults of shadow mode and of the forecasts' score in the ledger, each as it should not be."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import build
import pytest

from slurm_dl.forecast import calibration
from slurm_dl.forecast.calibration import ForecastBook
from slurm_dl.ledger.sqlite.reader import LedgerReader, PastError
from slurm_dl.ledger.sqlite.store import SqliteStore, StoreError
from slurm_dl.ledger.store_protocol import ForecastRange, StoreChange
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.jobs import JobState
from slurm_dl.shadow import recorder
from slurm_dl.shadow.recorder import import_segments

sys.path.insert(0, str(Path(__file__).parent))
from test_shadow import NOW_S, ONE, TWO, Watch, look, over


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The ledger."""
    return tmp_path / "ledger.sqlite"


LOOKS = [NOW_S, NOW_S + 5, 2, 0, "las", "native", 8.0, 8.0, 1.0, 0, 0, 0.0, 0, 0, [[1, 8, "h100"]]]
JOB = [1, 1000, "vision", 1.0, NOW_S, NOW_S, 60.0, NOW_S + 60, "C", False]
NAMES = "000000000001.jsonl"


def _too_long(directory: Path) -> None:
    directory.joinpath(NAMES).write_text(json.dumps(["job", 10**30, *JOB[1:]]) + "\n")


def _no_number(directory: Path) -> None:
    directory.joinpath(NAMES).write_text(json.dumps(["job", *JOB[:3], math.nan, *JOB[4:]]) + "\n")


def _a_folder(directory: Path) -> None:
    directory.joinpath(NAMES).mkdir()


def _a_broken_link(directory: Path) -> None:
    directory.joinpath(NAMES).symlink_to("gone")


def _half_a_character(directory: Path) -> None:
    """What the ledger cannot store stays; the daemon starts."""
    directory.joinpath(NAMES).write_text(json.dumps(["job", 1, 2, "\ud800", *JOB[3:]]) + "\n")


def test_what_cannot_be_stored_stops_no_start(tmp_path: Path, path: Path) -> None:
    """It is logged, and tried again at the next start."""
    directory = tmp_path / "shadow"
    directory.mkdir()
    _half_a_character(directory)

    import_segments(tmp_path, Ledger(SqliteStore(path)))


@pytest.mark.parametrize("damage", [_too_long, _no_number, _a_folder, _a_broken_link])
def test_old_files_that_cannot_be_read_stop_no_start(
    tmp_path: Path, path: Path, damage: Callable[[Path], None]
) -> None:
    """The report is less than the daemon: before, each of these cost itself and was counted."""
    directory = tmp_path / recorder.DIRECTORY
    directory.mkdir()
    damage(directory)
    with (directory / "000000000002.jsonl").open("w") as file:
        file.write(json.dumps(["job", *JOB]) + "\n")

    import_segments(tmp_path, Ledger(SqliteStore(path)))

    assert LedgerReader(path).shadow_since(0.0, ("gpu",)).ended


_KILLED = """
import os, signal, sys
from slurm_dl.ledger.sqlite.store import connect
from pathlib import Path
db = connect(Path(sys.argv[1]))
db.execute("PRAGMA cache_size=1")
db.execute("BEGIN IMMEDIATE")
for i in range(3000):
    db.execute("INSERT OR REPLACE INTO run VALUES (?, 1, 2, 3)", (i,))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_report_after_a_daemon_was_killed_while_it_wrote(path: Path) -> None:
    """The command "works without a running daemon"."""
    watch = Watch(path)
    watch.take(look([ONE, TWO]))
    watch.end()
    done = subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL

    assert watch.kept.minutes


@pytest.mark.parametrize("table", ["minute", "shadow_job", "planned"])
def test_a_damaged_row_costs_itself(path: Path, table: str) -> None:
    """Before, a damaged line was left out."""
    watch = Watch(path)
    watch.take(look([ONE, TWO]))
    watch.end()
    with sqlite3.connect(path) as db:
        columns = [row[1:3] for row in db.execute(f"PRAGMA table_info({table})")]
        values = {"end": "", "how": "", "shape": "{"}
        db.execute(
            f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})",  # noqa: S608
            [values.get(name, "x" if kind == "TEXT" else 7e9) for name, kind in columns],
        )
        db.execute(f"UPDATE {table} SET gpus = 'x' WHERE gpus = 7e9")  # noqa: S608
    db.close()
    again = Watch(path)
    again.take(look([ONE, TWO], at_s=120))  # Raises; the daemon leaves the observer out for good.
    again.end()

    assert len(again.kept.minutes) == 2


def test_a_clock_that_was_set_back_leaves_the_cluster_as_it_is(path: Path) -> None:
    """The last look is the one made last: its nodes are what is reported and simulated."""
    watch = Watch(path)
    watch.take(look([ONE, TWO], at_s=86_400))
    watch.take(look([ONE], at_s=0), look([ONE], at_s=70))
    watch.end()

    assert watch.kept.minutes[-1].to_s == NOW_S + 70


def test_the_unfinished_of_the_last_minutes(path: Path) -> None:
    """As ``dlctl shadow-report --since 3m`` of a running daemon."""
    watch = Watch(path)
    watch.take(*(look([ONE, TWO], at_s=10.0 * i) for i in range(29)))

    kept = LedgerReader(path).shadow_since(NOW_S + 100, ("gpu",))

    assert kept.minutes
    assert [job.job_id for job in kept.unfinished] == [1]


def test_a_job_of_no_managed_partition_is_not_counted(path: Path) -> None:
    """It named several, or an unknown one, and was cancelled while it waited.

    Slurm tells its end as its start.
    """
    other = dataclasses.replace(build.pending(7), partition=-1)
    ended = over(dataclasses.replace(other, start_s=NOW_S + 50), 50, JobState.FAILED)
    watch = Watch(path)
    watch.take(look([ONE, other]), look([ONE, ended], at_s=60))
    watch.end()

    assert [job.job_id for job in watch.kept.ended] == []


def test_a_waiting_job_that_left_between_two_daemons_has_not_vanished(path: Path) -> None:
    """Only a running job vanishes; within one daemon the same job is not counted."""
    waits = dataclasses.replace(build.pending(2), restarts=1)
    watch = Watch(path)
    watch.take(look([ONE, build.running(2)]), look([ONE, waits], at_s=60))
    watch.end()
    again = Watch(path)
    again.take(look([ONE], at_s=120))
    again.end()

    assert [(job.job_id, job.how) for job in again.kept.ended] == []


def _said(job_id: int, asked_s: float = NOW_S) -> ForecastRange:
    return ForecastRange(
        job_id=job_id, asked_s=asked_s, low_s=NOW_S, median_s=NOW_S + 1, high_s=NOW_S + 5
    )


def _see(book: ForecastBook, *rows: object) -> None:
    book.see(build.snapshot(build.observed(rows, now_s=NOW_S + 9)))  # type: ignore[arg-type]


STARTED = dataclasses.replace(build.running(1), start_s=NOW_S + 3)


def test_a_verdict_outlives_a_write_that_failed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that was in the way for five seconds is enough; before, all was written again."""
    ledger = Ledger(SqliteStore(path))
    book = ForecastBook(lambda: ledger)
    book.say(_said(1))
    _see(book, build.pending(1))

    def locked(*_: object) -> None:
        msg = "database is locked"
        raise StoreError(msg)

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "note", locked)
        _see(book, STARTED)
    book.say(_said(2))
    _see(book, build.pending(2))

    assert book.score.ranges == 2
    again = ForecastBook(lambda: ledger)
    _see(again, build.pending(2))
    assert again.score == book.score


def test_a_range_that_was_let_go_is_not_judged_after_a_restart(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each job one range counts, once."""
    monkeypatch.setattr(calibration, "MOST_OPEN", 2)
    ledger = Ledger(SqliteStore(path))
    book = ForecastBook(lambda: ledger)
    waits = [build.pending(j) for j in (1, 2, 3)]
    for job_id in (1, 2, 3):  # The third lets the first one go.
        book.say(_said(job_id, NOW_S + job_id))
    _see(book, *waits)
    book.say(_said(1, NOW_S + 4))  # It is sampled again.
    rows = [dataclasses.replace(row, state=JobState.RUNNING, start_s=NOW_S + 3) for row in waits]
    _see(book, *rows)
    told = book.score.ranges

    again = ForecastBook(lambda: ledger)
    _see(again, *rows)

    assert again.score.ranges == told


def test_the_last_verdicts_are_the_last_after_a_restart(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that waits for long is judged late; a restart changes no figure."""
    monkeypatch.setattr(calibration, "LAST", 1)
    ledger = Ledger(SqliteStore(path))
    book = ForecastBook(lambda: ledger)
    book.say(_said(1, NOW_S))
    book.say(_said(2, NOW_S + 1))
    two = dataclasses.replace(build.running(2), start_s=NOW_S + 3)
    far = build.snapshot(build.observed([build.pending(1), two], now_s=NOW_S + 4))
    book.see(far)
    _see(book, dataclasses.replace(STARTED, start_s=NOW_S + 8), two)
    assert (book.score.ranges, book.score.held) == (1, 0)

    assert ForecastBook(lambda: ledger).score == book.score


def test_a_quiet_week_costs_no_verdict(path: Path) -> None:
    """The score is of the last `LAST` ranges, however old; so the docs have it."""
    store = SqliteStore(path)
    ledger = Ledger(store)
    judged = dataclasses.replace(_said(1), held=True, error_s=1.0)
    ledger.note([judged])
    told = ForecastBook(lambda: ledger).score
    store.save(StoreChange(over_before_s=NOW_S + 1))

    assert ForecastBook(lambda: ledger).score == told


def test_a_ledger_that_no_daemon_has_opened_since_the_upgrade_says_so(path: Path) -> None:
    """The packages are new, and the daemon was not started again yet."""
    old = Path(__file__).parents[1] / "packages" / "ledgers" / "schema-10.sql"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(old.read_text())

    with pytest.raises(PastError) as failed:
        LedgerReader(path).shadow_since(0.0, ("gpu",))

    assert "no such" not in str(failed.value)
