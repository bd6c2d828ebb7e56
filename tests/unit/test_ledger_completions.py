"""How jobs ended, as the ledger books it, and what it drops of jobs that are long gone."""

from __future__ import annotations

import dataclasses
import sqlite3
from contextlib import closing
from pathlib import Path

import build
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_dl.ledger.apply_observation import FORGET_AFTER_S, LEAVE_AFTER_S
from slurm_dl.ledger.attained_service import DTYPES, AttainedService, EndedRun
from slurm_dl.ledger.completions import LONGEST_TEXT, JobEnding
from slurm_dl.ledger.sqlite import sweep as sweep_module
from slurm_dl.ledger.sqlite.reader import LedgerReader, PastError
from slurm_dl.ledger.sqlite.rows import _SINCE, _WHOSE
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.store_protocol import StoreChange
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.breaker import Taken
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.handover import Handover, Purpose, Run, Victim
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.model.snapshot import JobText

NOW_S = build.NOW_S
WEEK_S = FORGET_AFTER_S
DAY_S = 86_400.0


def _over(job_id: int, state: JobState = JobState.FAILED) -> JobRow:
    return JobRow(job_id=job_id, state=state, gpus=4, uid=1001, start_s=NOW_S - 50, end_s=NOW_S + 9)


def test_how_a_job_ended_outlasts_the_daemon(path: Path) -> None:
    """Each field as Slurm listed it in the look that first saw it over, for a later daemon too."""
    text = JobText(
        label="5_3",
        name="train",
        user="ann",
        account="lab",
        qos="q",
        reason="TimeLimit",
        nodes="n1",
        ending="TIMEOUT",
    )
    texts = {JobId(7): text}
    claims = {JobId(7): Claim(contract=Contract())}
    ledger = Ledger(SqliteStore(path))
    ledger.book(build.observed([build.running(7, 4, ran_s=50)], texts=texts, claims=claims))
    assert LedgerReader(path).named("5_3", NOW_S) is None
    ledger.book(build.observed([_over(7)], now_s=NOW_S + 10, texts=texts, claims=claims))
    # Written because of another job; how this one ended was told before.
    ledger.book(build.observed([_over(7), build.pending(9)], now_s=NOW_S + 20))
    ledger.close()

    reader = LedgerReader(path)
    past = reader.past(JobId(7))
    (listed,) = reader.ended_since(NOW_S + 10, NOW_S + 20, 5)

    expected = JobEnding(
        job_id=JobId(7),
        **{f.name: getattr(text, f.name) for f in dataclasses.fields(text)},
        uid=1001,
        partition="gpu",
        state=JobState.FAILED,
        gpus=4.0,
        start_s=NOW_S - 50,
        end_s=NOW_S + 9,
        seen_s=NOW_S + 10,
        preemptible=True,
        submit_s=build.running(7, 4, ran_s=50).submit_s,
        first_run_s=NOW_S - 50,
        ran_s=59.0,
    )
    assert past is not None
    assert past.ending == listed.ending == expected
    assert past.uids == {1001}
    assert listed.attained_gpu_s == past.attained_gpu_s == 4 * 59.0
    assert reader.named("5_3", NOW_S + 20) == 7
    assert reader.ended_since(NOW_S + 10.5, NOW_S + 20, 5) == []
    # A slurmctld that lost its state takes it for running: it has not ended.
    again = Ledger(SqliteStore(path))
    again.book(build.observed([build.running(7, 4, ran_s=50)], now_s=NOW_S + 30))
    again.close()
    past = reader.past(JobId(7))
    assert past is not None
    assert past.ending is None


def test_texts_are_bounded_whatever_users_write(path: Path) -> None:
    """Nothing stops the loop: no length, no byte, no half of a character."""
    hostile = JobText(label="5_3", name="\ud800\x00'); DROP TABLE ending;--" * 1000, user="\x1b[2J")
    ledger = Ledger(SqliteStore(path))
    ledger.book(build.observed([build.running(7, 4)]))
    ledger.book(build.observed([_over(7)], now_s=NOW_S + 10, texts={JobId(7): hostile}))
    ledger.close()

    past = LedgerReader(path).past(JobId(7))

    assert past is not None
    assert past.ending is not None
    assert len(past.ending.name) == LONGEST_TEXT
    assert past.ending.name.startswith("?\x00'); DROP TABLE ending;--?")
    assert past.ending.user == "\x1b[2J"
    with pytest.raises(PastError):
        LedgerReader(path).named("\ud800", NOW_S)


def test_the_last_job_of_a_name_is_meant(path: Path) -> None:
    """Numbers come round; the owner of the one before is not this one's."""
    old = JobEnding(job_id=JobId(7), label="5_3", uid=1, state=JobState.COMPLETED, seen_s=100.0)
    new = dataclasses.replace(old, job_id=JobId(8), seen_s=200.0)
    with closing(SqliteStore(path)) as store:
        store.save(StoreChange(jobs=_rows([(7, 150.0, 300.0, True)]), endings=[old, new]))

    reader = LedgerReader(path)

    assert reader.named("5_3", 300.0) == 8
    past = reader.past(JobId(7))
    assert past is not None
    assert (past.ending, past.uids) == (None, frozenset())
    assert [one.ending.job_id for one in reader.ended_since(0.0, 300.0, 1)] == [8]


def test_a_row_that_nobody_wrote_is_no_ending(path: Path) -> None:
    """A damaged ledger is said to be one."""
    ending = JobEnding(job_id=JobId(7), label="7", uid=1, state=JobState.FAILED, seen_s=NOW_S)
    with closing(SqliteStore(path)) as store:
        store.save(StoreChange(jobs=_rows([(7, 1.0, NOW_S, True)]), endings=[ending]))
    for wrong in ("state = 'GONE'", "state = x'00'"):
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(f"UPDATE ending SET {wrong}")  # noqa: S608 - of the list above
        with pytest.raises(PastError, match=r"ending\.state"):
            LedgerReader(path).past(JobId(7))


# What is dropped.


def _rows(jobs: list[tuple[int, float, float, bool]]) -> AttainedService:
    """Rows of the ledger: id, first submit, last seen, over."""
    columns = {name: np.zeros(len(jobs), dtype=dt) for name, dt in DTYPES.items()}
    ids, submits, seens, overs = zip(*sorted(jobs), strict=True) if jobs else ((), (), (), ())
    values = {"job_id": ids, "first_submit_s": submits, "last_seen_s": seens, "over": overs}
    for name, value in values.items():
        columns[name] = np.array(value, dtype=DTYPES[name])
    return AttainedService(**columns)


def _handover(number: int, opened_s: float, purpose: Purpose = "preempt") -> Handover:
    return Handover(
        handover_id=HandoverId(number),
        opened_s=opened_s,
        beneficiaries=(JobId(99),),
        victims=(Victim(run=Run(JobId(1), 2.5, 0), gpus=1.0, contract=Contract()),),
        nodes=("n1",),
        purpose=purpose,
        apart=("a", "b") if purpose == "split" else (),
    )


def _count(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as db:
        tables = ("job", "run", "taken", "ending", "handover")
        return {t: db.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables}  # noqa: S608


_AGES_D = st.integers(0, 30)
_JOBS = st.lists(
    st.tuples(st.integers(1, 6), _AGES_D, st.integers(0, 5), st.booleans()), max_size=6
)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A ledger with nothing in it: to make one anew takes longer than all the rest."""
    path = tmp_path_factory.mktemp("empty") / "ledger.sqlite"
    SqliteStore(path).close()
    return path.read_bytes()


@given(jobs=_JOBS, least_d=st.integers(1, 20))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_known_of_a_job_does_not_change_while_it_is_kept(
    path: Path, empty: bytes, jobs: list[tuple[int, int, int, bool]], least_d: int
) -> None:
    """Of those that live all of it, of those that are over a week; of the others nothing stays.

    Jobs are told by id, age at their end in days, times that they ran, and whether they live.
    Numbers come round: the last job of a number is the one that counts.
    """
    path.write_bytes(empty)
    before_s = NOW_S - least_d * DAY_S
    jobs = sorted(jobs, key=lambda j: -j[1])
    change = _changes(jobs)
    last = {job_id: (NOW_S - age_d * DAY_S, lives) for job_id, age_d, _, lives in jobs}
    stays = {job_id: lives or end_s >= before_s for job_id, (end_s, lives) in last.items()}
    reader = LedgerReader(path)
    with closing(SqliteStore(path)) as store:
        store._db.execute("PRAGMA synchronous=OFF")
        store.save(change)
        before = {job_id: reader.past(JobId(job_id)) for job_id in stays}
        next_id = store.load().next_handover_id

        store.save(StoreChange(over_before_s=before_s))

        assert {job_id: reader.past(JobId(job_id)) for job_id in stays} == {
            job_id: past if stays[job_id] else None for job_id, past in before.items()
        }
        assert not jobs or store.load().next_handover_id == next_id
    assert None not in before.values()
    left = _count(path)
    assert left["job"] == sum(stays.values())
    if not any(stays.values()):
        assert [left[table] for table in ("run", "taken", "ending")] == [0, 0, 0]


def _changes(jobs: list[tuple[int, int, int, bool]]) -> StoreChange:
    """All that is written of *jobs*, the oldest first."""
    rows, runs, taken, handovers, endings = [], [], [], [], []
    for number, (job_id, age_d, times, lives) in enumerate(jobs, start=1):
        end_s = NOW_S - age_d * DAY_S
        first_s = end_s - times * DAY_S
        rows.append((job_id, first_s, NOW_S if lives else end_s, not lives))
        handovers.append((_handover(number, first_s), "served"))
        if not lives:
            state, label = JobState.FAILED, f"{job_id}_1"
            endings.append(
                # Slurm may go on listing it, for as long as a site wants.
                JobEnding(job_id=JobId(job_id), label=label, uid=1, state=state, seen_s=end_s - 60)
            )
        for at_s in (first_s + (i + 0.5) * DAY_S for i in range(times)):
            runs.append(EndedRun(job_id=job_id, start_s=at_s - 60, end_s=at_s, gpu_s=1.0))
            taken.append(
                Taken(
                    at_s=at_s,
                    job_id=JobId(job_id),
                    gpus=1.0,
                    notice_s=1.0,
                    handover_id=HandoverId(number),
                )
            )
    of_last = {row[0]: row for row in rows}
    return StoreChange(
        jobs=_rows([*of_last.values()]),
        ended=runs,
        taken=taken,
        handovers=handovers,
        endings=endings,
    )


def test_hand_overs_go_with_what_was_taken_by_them(path: Path) -> None:
    """Not those that are open, that are the last, or that keep models apart for a week."""
    old_s, new_s = NOW_S - 9 * DAY_S, NOW_S - DAY_S
    taken = [
        Taken(at_s=old_s, job_id=JobId(1), gpus=1.0, notice_s=1.0, handover_id=HandoverId(1)),
        Taken(at_s=old_s, job_id=JobId(2), gpus=1.0, notice_s=1.0, handover_id=HandoverId(2)),
        Taken(at_s=new_s, job_id=JobId(3), gpus=1.0, notice_s=1.0, handover_id=HandoverId(7)),
    ]
    handovers = [
        (_handover(1, old_s), "served"),
        (_handover(2, old_s), "served"),
        (_handover(3, old_s), ""),
        (_handover(4, old_s), "served"),
        (_handover(5, new_s, "split"), "served"),
        (_handover(6, old_s, "split"), "served"),
        (_handover(7, new_s), "served"),
        (_handover(8, new_s), "served"),
    ]
    with closing(SqliteStore(path)) as store:
        store.save(
            StoreChange(jobs=_rows([(2, 1.0, NOW_S, False)]), taken=taken, handovers=handovers)
        )
        store.save(StoreChange(over_before_s=NOW_S - WEEK_S))
        memory = store.load()

    with closing(sqlite3.connect(path)) as db:
        left = [row[0] for row in db.execute("SELECT handover_id FROM handover ORDER BY 1")]
    assert left == [2, 3, 5, 7, 8]
    assert _count(path)["taken"] == 2
    assert dict(memory.lost_pairs) == {("a", "b"): new_s}
    assert memory.next_handover_id == 9


def test_what_was_of_an_earlier_job_of_a_number_goes(path: Path) -> None:
    """Nobody is told of it: the number is another job's by now."""
    old = EndedRun(job_id=7, start_s=NOW_S - 20 * DAY_S, end_s=NOW_S - 19 * DAY_S, gpu_s=1.0)
    own = EndedRun(job_id=7, start_s=NOW_S - 9 * DAY_S, end_s=NOW_S - 8 * DAY_S, gpu_s=1.0)
    with closing(SqliteStore(path)) as store:
        store.save(
            StoreChange(jobs=_rows([(7, NOW_S - 10 * DAY_S, NOW_S, False)]), ended=[old, own])
        )
        store.save(StoreChange(over_before_s=NOW_S - WEEK_S))
        assert store.runs_of(JobId(7)) == (own,)


def test_a_ledger_of_years_is_caught_up_with_bit_by_bit(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop waits for it: no sweep drops more than so many rows of a kind."""
    monkeypatch.setattr(sweep_module, "MOST_ROWS", 3)
    state, number = JobState.FAILED, HandoverId(99)
    change = StoreChange(
        jobs=_rows([(j, 1.0, 3.0, True) for j in range(100, 107)]),
        ended=[EndedRun(job_id=j, start_s=1.0, end_s=2.0, gpu_s=1.0) for j in range(7)],
        endings=[
            JobEnding(job_id=JobId(j), label=str(j), uid=1, state=state, seen_s=2.0)
            for j in range(7)
        ],
        taken=[
            Taken(at_s=2.0, job_id=JobId(j), gpus=1.0, notice_s=1.0, handover_id=number)
            for j in range(7)
        ],
        handovers=[(_handover(j, 1.0), "served") for j in range(1, 9)],
    )
    with closing(SqliteStore(path)) as store:
        store.save(change)
        left = []
        for _ in range(3):
            store.save(StoreChange(over_before_s=NOW_S))
            left.append(_count(path))

    each = {"job": 4, "run": 4, "taken": 4, "ending": 4, "handover": 5}
    assert left[0] == each
    assert left[1] == {**dict.fromkeys(each, 1), "handover": 2}
    assert left[2] == {**dict.fromkeys(each, 0), "handover": 1}


def test_the_loop_drops_what_is_a_week_old(path: Path) -> None:
    """With the sweep that it does anyway, as the time of the looks goes on."""
    ledger = Ledger(SqliteStore(path))
    ledger.book(build.observed([build.running(7, 4, ran_s=50)]))
    ledger.book(build.observed([_over(7)], now_s=NOW_S + 10))
    counts = []
    for now_s in (NOW_S + WEEK_S, NOW_S + WEEK_S + 2 * LEAVE_AFTER_S):
        ledger.book(build.observed([], now_s=now_s))
        counts.append(_count(path))
    ledger.close()

    kept = {"job": 1, "run": 1, "taken": 0, "ending": 1, "handover": 0}
    assert counts == [kept, {**kept, "job": 0, "run": 0, "ending": 0}]
    assert LedgerReader(path).past(JobId(7)) is None


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("SELECT * FROM taken WHERE job_id = 1 AND at_s >= 0 ORDER BY at_s", "taken_of"),
        ("SELECT * FROM taken WHERE at_s > (SELECT max(at_s) FROM taken) - 9", "taken_at"),
        ("SELECT * FROM ending WHERE label = '7_1'", "ending_named"),
        ("SELECT * FROM ending WHERE seen_s >= 1 ORDER BY seen_s DESC", "ending_seen"),
        ("SELECT * FROM run WHERE end_s < 1", "run_ended"),
        (_SINCE.format(which=_WHOSE), "ending_of_uid"),
        (_SINCE.format(which=_WHOSE), "ending_of_user"),
    ],
)
def test_what_is_asked_for_has_an_index(path: Path, query: str, index: str) -> None:
    """`why` of one job reads its rows, whatever else there is."""
    SqliteStore(path).close()
    with closing(sqlite3.connect(path)) as db:
        given = dict.fromkeys(("users", "uids", "since_s", "until_s", "most"), 1)
        plan = "\n".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {query}", given))

    assert index in plan
    assert "SCAN taken" not in plan.replace("SCAN taken USING", "")
