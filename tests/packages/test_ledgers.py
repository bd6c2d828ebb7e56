"""Ledgers as each earlier form of them was written, opened by what an upgrade installs.

``ledgers/schema-N.sql`` is a dump of a file that the code of that time wrote; none is written anew.
In each, job 901 has run and been preempted, and job 902 waits for it.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from slurm_dl.ledger.sqlite.schema import SCHEMA_VERSION
from slurm_dl.ledger.sqlite.store import SqliteStore, StoreError
from slurm_dl.ledger.store_protocol import StoreChange
from slurm_dl.model.handover import VictimState
from slurm_dl.model.ids import JobId

LEDGERS = Path(__file__).parent / "ledgers"
OLDER = range(1, SCHEMA_VERSION)
BEGUN_S = 1_790_000_000.0
FIRST_RUN_SINCE, STEERS_SINCE, RESTARTS_SINCE = 3, 4, 5


def ledger(schema: int, path: Path) -> Path:
    """The file of that schema at *path*."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript((LEDGERS / f"schema-{schema}.sql").read_text("utf-8"))
        assert db.execute("PRAGMA user_version").fetchone() == (schema,)
    return path


def form(path: Path) -> dict[str, object]:
    """Columns of each table, by name, and the indexes."""
    with closing(sqlite3.connect(path)) as db:
        names = db.execute("SELECT name, type FROM sqlite_master ORDER BY name").fetchall()
        return {
            name: sorted((row[1], row[2]) for row in db.execute(f"PRAGMA table_info({name})"))
            if kind == "table"
            else kind
            for name, kind in names
        }


def test_there_is_one_of_every_earlier_form() -> None:
    """Whoever changes the form adds a dump of what the one before wrote."""
    assert {path.name for path in LEDGERS.iterdir()} == {f"schema-{n}.sql" for n in OLDER}


@pytest.mark.parametrize("schema", OLDER)
def test_an_upgrade_keeps_what_the_ledger_remembers(schema: int, tmp_path: Path) -> None:
    """Service, runs, the preemption under way, the last number, and what came with later forms."""
    path = ledger(schema, tmp_path / "ledger.sqlite")
    for _ in range(2):  # The second time it is of today's form already.
        with closing(SqliteStore(path, cluster="deb")) as store:
            memory, runs = store.load(), store.runs_of(JobId(901))
            # It can be gone on with, too.
            store.save(StoreChange(jobs=memory.service))

        jobs = memory.service
        assert jobs.job_id.tolist() == [901, 902]
        assert jobs.attained_gpu_s.tolist() == [23456.5, 0.0]
        assert jobs.ran_s.tolist() == [5864.125, 0.0]
        assert jobs.restarts.tolist() == [2, 0]
        assert jobs.preemptions.tolist() == [1, 0]
        assert jobs.first_submit_s.tolist() == [BEGUN_S, BEGUN_S + 60]
        assert jobs.waiting_since_s.tolist() == [0.0, BEGUN_S + 60]
        assert jobs.queued_s.tolist() == jobs.first_submit_s.tolist()
        # Of what came later it is unknown, as it is of a job that has never run.
        first_run_s = BEGUN_S + 100 if schema >= FIRST_RUN_SINCE else 0.0
        assert jobs.first_run_s.tolist() == [first_run_s, 0.0]
        assert not jobs.incomplete.any()
        assert [(run.start_s, run.gpu_s) for run in runs] == [(BEGUN_S + 100, 15_600.0)]
        (under_way,) = memory.handovers
        (victim,) = under_way.victims
        assert (under_way.handover_id, memory.next_handover_id) == (7, 8)
        assert (victim.run.job_id, victim.state) == (901, VictimState.SIGNALLED)
        assert victim.contract.signal == "USR1"
        assert [(t.job_id, t.gpus, t.handover_id) for t in memory.taken] == [(901, 4.0, 6)]
        steers = [(s.job_id, s.avoid, s.why) for s in memory.steers]
        assert steers == [(902, ("n2",), "so that a gang fits")] * (schema >= STEERS_SINCE)
        fates = [(r.job_id, r.fate) for r in memory.restarts]
        assert fates == [(901, "well")] * (schema >= RESTARTS_SINCE)
        breakers = [(b.name, b.reset_by) for b in memory.breakers]
        assert breakers == [("gpus_per_hour", "user root (0)")] * (schema >= RESTARTS_SINCE)


@pytest.mark.parametrize("schema", OLDER)
def test_after_it_the_form_is_that_of_a_new_ledger(schema: int, tmp_path: Path) -> None:
    """With each column and index; the version is today's, so that older code refuses it."""
    path, new = ledger(schema, tmp_path / "old.sqlite"), tmp_path / "new.sqlite"
    for each in (path, new):
        SqliteStore(each).close()

    assert form(path) == form(new)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_one_of_a_later_form_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """The way back is the copy that docs/start/install.md asks for, not a guess."""
    path = ledger(SCHEMA_VERSION - 1, tmp_path / "ledger.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    before = path.read_bytes()

    with pytest.raises(StoreError, match="newer slurm_dl"):
        SqliteStore(path)

    assert path.read_bytes() == before
