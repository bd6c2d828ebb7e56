"""The ledger on disk: what is written comes back, and what cannot be written is said."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import build
import numpy as np
import pytest
from superseding import supersede

from slurm_dl.ledger.apply_observation import FORGET_AFTER_S, LEAVE_AFTER_S
from slurm_dl.ledger.attained_service import AttainedService
from slurm_dl.ledger.sqlite.store import SqliteStore, StoreError, SupersededError
from slurm_dl.ledger.store_protocol import LedgerContents, StoreChange
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Contract
from slurm_dl.model.handover import Handover, Run, Seal, Victim, VictimState
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.model.plan import (
    Attach,
    CloseHandover,
    MarkGone,
    OpenHandover,
    Promote,
    Reserve,
    SetSiteFactor,
    Signal,
)


def _handover(number: int = 3) -> Handover:
    return Handover(
        handover_id=HandoverId(number),
        opened_s=5.5,
        beneficiaries=(JobId(8), JobId(9)),
        victims=(
            Victim(
                run=Run(JobId(1), 2.5, 4),
                gpus=2.0,
                contract=Contract(signal="USR2", target="steps", grace_s=9.0, requeued_by="job"),
                state=VictimState.SIGNALLED,
                signalled_s=6.0,
            ),
        ),
        nodes=("n1", "n[2"),
        attached=(JobId(8),),
        seal=Seal.STANDING,
    )


def test_jobs_come_back_as_they_were(path: Path) -> None:
    """Each column with its type."""
    service = build.folded(
        AttainedService.empty(), build.observed([build.running(7, 3), build.pending(2)])
    ).service
    with closing(SqliteStore(path)) as store:
        store.save(StoreChange(jobs=service))

    for name, column in _load(path).service.columns().items():
        assert column.dtype == service.columns()[name].dtype
        assert np.array_equal(column, service.columns()[name]), name


def test_a_closed_hand_over_does_not_come_back_nor_does_its_number(path: Path) -> None:
    """Numbers name reservations in Slurm, so none is used twice."""
    store = SqliteStore(path)
    store.save(StoreChange(handovers=[(_handover(), "served")]))
    memory = store.load()
    store.close()

    assert memory.handovers == ()
    assert memory.next_handover_id == 4


def test_forgotten_jobs_go(path: Path) -> None:
    """The file does not grow without end."""
    service = build.folded(
        AttainedService.empty(), build.observed([build.pending(2), build.pending(3)])
    ).service
    store = SqliteStore(path)
    store.save(StoreChange(jobs=service))
    store.save(StoreChange(forgotten=[2]))

    assert store.load().service.job_id.tolist() == [3]
    store.close()


def test_jobs_that_are_over_go_from_the_file_after_a_week(path: Path) -> None:
    """They have left memory long before. Others stay."""
    ends = build.NOW_S + 10
    over = JobRow(job_id=2, state=JobState.COMPLETED, gpus=1, start_s=ends - 20, end_s=ends)
    alive = [build.running(2, ran_s=10), build.pending(3)]
    ledger = Ledger(SqliteStore(path))
    for now_s, rows in ((build.NOW_S, alive), (ends, [over, alive[1]]), (ends + LEAVE_AFTER_S, [])):
        ledger.book(build.observed(rows, now_s=now_s))
    ledger.book(build.observed([alive[1]], now_s=ends + LEAVE_AFTER_S + 1))
    assert ledger.service.job_id.tolist() == [3]

    def stored() -> list[int]:
        other = SqliteStore(path)
        ids = other.load().service.job_id.tolist()
        other.close()
        return [int(job_id) for job_id in ids]

    assert stored() == [2, 3]
    ledger.book(build.observed([alive[1]], now_s=ends + FORGET_AFTER_S))
    assert stored() == [2, 3]
    ledger.book(build.observed([alive[1]], now_s=ends + FORGET_AFTER_S + LEAVE_AFTER_S))
    assert stored() == [3]
    ledger.close()


def test_the_file_is_private(path: Path) -> None:
    """Others' job history is nobody's business."""
    SqliteStore(path).close()

    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"\0" * 5000])
def test_a_file_that_is_no_ledger_is_refused_and_kept(path: Path, content: bytes) -> None:
    """A clear error, and nothing is lost."""
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"ledger\.sqlite"):
        SqliteStore(path).load()
    assert path.read_bytes() == content


def test_a_newer_ledger_is_refused(path: Path) -> None:
    """An older program does not write into what it does not understand."""
    SqliteStore(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(StoreError, match="newer"):
        SqliteStore(path)


def test_a_write_that_fails_says_so_and_leaves_the_old_state(path: Path) -> None:
    """Another program holds the file: the caller learns it before it acts."""
    store = SqliteStore(path)
    store.save(StoreChange(handovers=[(_handover(), "")]))
    store._db.execute("PRAGMA busy_timeout=50")
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="locked"):
            store.save(StoreChange(handovers=[(_handover(), "served")]))
        other.execute("ROLLBACK")
    other.close()

    assert store.load().handovers == (_handover(),)
    store.close()


def test_each_step_is_on_disk_as_soon_as_it_is_taken(path: Path) -> None:
    """After every begin and settle another process reads the same state from the file."""
    seen = build.observed([build.running(1, 2)])
    ledger = Ledger(SqliteStore(path))
    ledger.book(seen)
    run = Run(JobId(1), build.NOW_S - 5000, 0)
    handover = Handover(
        handover_id=HandoverId(1),
        opened_s=1.0,
        beneficiaries=(JobId(9),),
        victims=(Victim(run=run, gpus=2.0, contract=Contract()),),
        nodes=("n1",),
    )
    one = HandoverId(1)
    steps = [
        OpenHandover(handover=handover, why=""),
        SetSiteFactor(job_id=JobId(1), value=5, why="", handover_id=one),
        Reserve(handover_id=one, nodes=("n1",), uids=(1,), duration_s=9, why=""),
        Attach(handover_id=one, job_id=JobId(9), why=""),
        Signal(handover_id=one, run=run, signal="USR1", target="batch", why=""),
        MarkGone(handover_id=one, job_id=JobId(1), outcome="requeued", why=""),
        Promote(job_id=JobId(1), why=""),
    ]
    seals, states = [], []
    for step in steps:
        ledger.begin(step)
        [stored] = _load(path).handovers
        states.append(stored.victims[0].state)
        ledger.settle(step, 100.0)
        [stored] = _load(path).handovers
        assert (stored,) == ledger.handovers
        seals.append(stored.seal)
    memory = _load(path)
    ledger.settle(CloseHandover(handover_id=one, outcome="served", why=""), 101.0)

    assert states[4] is VictimState.SIGNALLING
    assert seals[1:3] == [Seal.WANTED, Seal.STANDING]
    assert memory.service.site_factor.tolist() == [5]
    assert memory.service.preemptions.tolist() == [1]
    assert memory.service.last_preempted_s.tolist() == [100.0]
    assert memory.service.forgiven_gpu_s.tolist() == [10000.0]
    assert [(t.job_id, t.gpus) for t in memory.taken] == [(1, 2.0)]
    assert _load(path).handovers == ()
    ledger.close()


def _load(path: Path) -> LedgerContents:
    store = SqliteStore(path)
    memory = store.load()
    store.close()
    return memory


def test_a_ledger_remembers_its_cluster(path: Path) -> None:
    """It takes the first name it is told, and no other after that; without a name nobody asks."""
    SqliteStore(path).close()
    SqliteStore(path, cluster="alpha").close()
    SqliteStore(path, cluster="alpha").close()
    SqliteStore(path).close()

    with pytest.raises(StoreError, match=r"ledger of cluster 'alpha', and this is 'beta'"):
        SqliteStore(path, cluster="beta")


def test_who_was_superseded_writes_nothing_more(path: Path) -> None:
    """Not even what it had begun: the newer one's ledger stays as it is."""
    first = SqliteStore(path, generation=supersede(path))
    first.save(StoreChange(handovers=[(_handover(3), "")]))

    second = SqliteStore(path, generation=supersede(path))
    with pytest.raises(SupersededError, match=r"taken over by another dlschedd \(generation 2"):
        first.save(StoreChange(handovers=[(_handover(3), "done")]))
    second.save(StoreChange(handovers=[(_handover(4), "")]))

    assert [h.handover_id for h in second.load().handovers] == [3, 4]


def test_a_ledger_of_today_is_opened_without_being_written(path: Path) -> None:
    """A daemon that starts on a full disk must come to say so, and not end again and again."""
    SqliteStore(path, cluster="alpha").close()
    before = path.read_bytes()
    with closing(sqlite3.connect(path)) as other:
        # Nobody else can write now.
        other.execute("BEGIN IMMEDIATE")
        SqliteStore(path, cluster="alpha").close()
    assert path.read_bytes() == before
