"""What the ledger knows of jobs that are over: when clocks are set, and of jobs hardly seen."""

from __future__ import annotations

import dataclasses
import gc
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import build
import pytest
from watched import POLICY, SETTINGS

from slurm_dl.daemon.control.job_history import JobHistory, users_shown
from slurm_dl.daemon.control.privacy import Own
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.explain.past_reasons import Everything, why_gone
from slurm_dl.ledger import completions
from slurm_dl.ledger.apply_observation import FORGET_AFTER_S, LEAVE_AFTER_S
from slurm_dl.ledger.attained_service import EndedRun
from slurm_dl.ledger.completions import LONGEST_TEXT, JobEnding
from slurm_dl.ledger.sqlite.reader import LedgerReader
from slurm_dl.ledger.sqlite.rows import Only
from slurm_dl.ledger.sqlite.schema import upgrade
from slurm_dl.ledger.sqlite.store import SqliteStore, connect
from slurm_dl.ledger.store_protocol import StoreChange
from slurm_dl.ledger.write_ahead import STEADY_S, Ledger
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.model.snapshot import JobText

LEDGERS = Path(__file__).parents[1] / "packages" / "ledgers"
NOW_S = build.NOW_S
YEAR_S = 365 * 86_400.0
OTHER = build.pending(9)


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    """One that has seen job 7 run and end, and has it in the file alone; now is `LATER_S`.

    Of job 5, which it has never seen to end, it knows a run alone.
    """
    store = SqliteStore(path)
    run = EndedRun(job_id=5, start_s=NOW_S - 9, end_s=NOW_S, gpu_s=9.0)
    store.save(StoreChange(ended=[run]))
    made = Ledger(store)
    made.book(build.observed([build.running(7, 4, ran_s=50), OTHER]))
    made.book(build.observed([_over(7), OTHER], now_s=NOW_S + 10))
    made.book(build.observed([OTHER], now_s=LATER_S))
    assert made.service.job_id.tolist() == [9]
    yield made
    made.close()


LATER_S = NOW_S + 2 * LEAVE_AFTER_S


def _over(job_id: int, **more: object) -> JobRow:
    values = {"state": JobState.FAILED, "gpus": 4, "uid": 1001, "submit_s": NOW_S - 60, **more}
    values = {"start_s": NOW_S - 50, "end_s": NOW_S + 9, **values}
    return JobRow(job_id=job_id, **values)  # type: ignore[arg-type]


def _ending(job_id: int, seen_s: float, **more: object) -> JobEnding:
    values = {"label": str(job_id), "uid": 1001, "state": JobState.FAILED, **more}
    return JobEnding(job_id=JobId(job_id), seen_s=seen_s, **values)  # type: ignore[arg-type]


# Clocks.


@pytest.mark.parametrize("first", ["start", "jump"])
def test_nothing_is_dropped_within_an_hour_of_a_start_or_a_jump(
    path: Path, ledger: Ledger, first: str
) -> None:
    """So a clock that is a year ahead for less than that costs no history."""
    ahead_s = LATER_S + YEAR_S
    if first == "start":
        ledger.close()
        ledger = Ledger(SqliteStore(path))
    else:
        ledger.book(build.observed([OTHER], now_s=LATER_S + STEADY_S))
        ledger.clock_was_set(ahead_s, grace_anew=True)
    for after_s in (0.0, STEADY_S - 1.0):
        ledger.book(build.observed([OTHER], now_s=ahead_s + after_s))
        assert LedgerReader(path).past(JobId(5)) is not None
        assert LedgerReader(path).past(JobId(7)) is not None
    ledger.book(build.observed([OTHER], now_s=ahead_s + STEADY_S))

    assert LedgerReader(path).past(JobId(7)) is None


def test_the_end_of_a_short_job_is_told_when_the_clock_was_set_back(
    path: Path, ledger: Ledger
) -> None:
    """It was first seen over before it was submitted then, by our clock, and not by Slurm's."""
    ledger.clock_was_set(NOW_S + 10 - 200_000.0)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE job SET attained_gpu_s = 999, preemptions = 3 WHERE job_id = 7")

    past = LedgerReader(path).past(JobId(7))
    (listed,) = LedgerReader(path).ended_since(0.0, LATER_S, 5)

    assert past.ending.seen_s == NOW_S + 10 - 200_000.0
    assert past.uids == {1001}
    assert (listed.attained_gpu_s, listed.preemptions) == (999, 3)


def test_no_end_is_in_the_future(path: Path) -> None:
    """Nobody looked when the clock was set back: they count from now, and once they did not."""
    with closing(SqliteStore(path)) as store:
        store.save(StoreChange(endings=[_ending(7, NOW_S + YEAR_S), _ending(8, NOW_S - 60)]))
    reader = LedgerReader(path)
    assert reader.named("7", NOW_S) is None
    assert [e.ending.job_id for e in reader.ended_since(NOW_S - 99, NOW_S, 5)] == [8]

    with closing(Ledger(SqliteStore(path))) as ledger:
        ledger.clock_was_set(NOW_S)

    assert reader.named("7", NOW_S) == 7
    found = reader.ended_since(NOW_S - 99, NOW_S, 5)
    assert [(e.ending.job_id, e.ending.seen_s) for e in found] == [(7, NOW_S), (8, NOW_S - 60)]


def test_a_job_that_the_file_alone_has_is_kept_no_longer_than_a_week(
    path: Path, ledger: Ledger
) -> None:
    """Also by a clock that was far ahead while it was seen."""
    ledger.clock_was_set(NOW_S - YEAR_S)

    past = LedgerReader(path).past(JobId(7))

    assert past.last_seen_s == past.ending.seen_s == NOW_S - YEAR_S


def test_an_end_of_before_is_no_owner_of_a_job_that_lives(path: Path) -> None:
    """Nor is one that was written by a clock far ahead, once that is cut."""
    with closing(SqliteStore(path)) as store:
        ended = _ending(7, NOW_S + YEAR_S, uid=1002, end_s=NOW_S + YEAR_S)
        store.save(StoreChange(endings=[ended]))
    with closing(Ledger(SqliteStore(path))) as ledger:
        ledger.clock_was_set(NOW_S)
        ledger.book(build.observed([build.pending(7, submit_s=NOW_S + 30)], now_s=NOW_S + 60))

    past = LedgerReader(path).past(JobId(7))

    assert (past.ending, past.uids) == (None, frozenset())


# Jobs that were over when they were seen first.


def test_a_job_that_came_and_ended_between_two_looks_has_an_end(path: Path) -> None:
    """Told once: neither by the next look nor by the next daemon; and anew for the next job."""
    reader = LedgerReader(path)
    for now_s in (NOW_S + 10, NOW_S + 40):
        # The second turn is another daemon.
        with closing(Ledger(SqliteStore(path))) as ledger:
            for after_s in (0.0, 10.0):
                ledger.book(build.observed([_over(7)], now_s=now_s + after_s))
            assert len(ledger.service) == 0
    past = reader.past(JobId(7))
    (listed,) = reader.ended_since(NOW_S, NOW_S + 99, 5)

    assert past.ending.seen_s == NOW_S + 10
    assert past.uids == {1001}
    assert past.attained_gpu_s == listed.attained_gpu_s == 4 * 59.0
    said = why_gone(past, Everything())
    assert "failed" in said[1]
    assert "It ran once" in said[2]
    with closing(Ledger(SqliteStore(path))) as ledger:
        again = _over(7, uid=1002, start_s=0.0, end_s=NOW_S + 90, submit_s=NOW_S + 80)
        ledger.book(build.observed([again], now_s=NOW_S + 99))
    past = reader.past(JobId(7))
    assert (past.runs, past.attained_gpu_s) == ((), 0.0)
    assert past.uids == {1002}


def test_each_stranger_is_written_once_and_so_many_in_a_look(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first look at a large cluster finds a lot of them, and the loop waits."""
    monkeypatch.setattr(completions, "MOST_STRANGERS", 3)
    written: list[list[int]] = []

    class Watched(SqliteStore):
        def save(self, change: StoreChange, /) -> None:
            written.append([int(e.job_id) for e in change.endings])
            super().save(change)

    with closing(Ledger(Watched(path))) as ledger:
        for look in range(4):
            listed = [_over(j) for j in range(1, 6)]
            ledger.book(build.observed(listed, now_s=NOW_S + 10 + look))

    assert written == [[1, 2, 3], [4, 5]]


def test_what_was_of_an_earlier_job_is_not_told_of_a_stranger(path: Path, ledger: Ledger) -> None:
    """Nor to its owner: job 7 that is known was somebody else's."""
    stranger = _over(7, uid=1002, submit_s=LATER_S, start_s=LATER_S + 1, end_s=LATER_S + 3)
    ledger.book(build.observed([stranger, OTHER], now_s=LATER_S + 30))

    past = LedgerReader(path).past(JobId(7))

    assert past.uids == {1002}
    assert [run.start_s for run in past.runs] == [LATER_S + 1]
    assert past.attained_gpu_s == 8.0


# Arrays that never started.


@pytest.mark.parametrize(
    ("tasks", "found", "not_found"),
    [
        ("5-900", ["123_5", "123_900", "123_[5-900]"], ["123_4", "123_901", "124_5", "12_5"]),
        ("5-900:5%4", ["123_10"], ["123_11"]),
        (",".join(str(n) for n in range(1, 999, 2)), ["123_1", "123_15", "123_901"], ["124_1"]),
    ],
)
def test_a_task_of_an_array_that_was_cancelled_is_found(
    path: Path, tasks: str, found: list[str], not_found: list[str]
) -> None:
    """In the record that they share; a long list is cut as squeue does, and still is one."""
    texts = {JobId(7): JobText(label=f"123_[{tasks}]")}
    row = _over(7, start_s=0.0)
    with closing(Ledger(SqliteStore(path))) as ledger:
        ledger.book(build.observed([row], now_s=NOW_S + 10, texts=texts))
    reader = LedgerReader(path)

    assert [reader.named(name, NOW_S + 10) for name in found] == [7] * len(found)
    for name in (*not_found, "123_", "123_x", "_5", f"123_{'9' * 30}"):
        assert reader.named(name, NOW_S + 10) is None
    assert reader.named(found[0], NOW_S - 60) is None
    past = reader.past(JobId(7))
    assert len(past.ending.label) <= LONGEST_TEXT
    assert past.ending.label.endswith("]")


# Whose.


def test_others_leave_room_for_a_users_jobs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones of a user are listed, however many others' ended since."""
    monkeypatch.setattr("slurm_dl.daemon.control.job_history.MOST_LISTED", 3)
    mine = [_ending(i, NOW_S - 1000 + i, user="ann") for i in (1, 2)]
    others = [_ending(i, NOW_S - 100 + i, user="bob", uid=1002) for i in range(10, 20)]
    with closing(SqliteStore(path)) as store:
        store.save(StoreChange(endings=[*mine, *others]))
    pasts, cycle = JobHistory(LedgerReader(path)), _cycle()

    def listed(users: list[str] | None) -> list[int]:
        return sorted(
            pasts.listed(
                cycle, Only(users=None if users is None else tuple(users))
            ).snapshot.jobs.job_id.tolist()
        )

    assert listed(None) == [9, 17, 18, 19]
    assert listed(["eve", "'; --", "9" * 40, "\ud800"]) == [9]
    for users in (["ann"], ["1001"]):
        assert listed(users) == [1, 2, 9]
        assert listed(["ann", "bob"]) == listed(None) == [9, 17, 18, 19]
        assert listed(users) == [1, 2, 9]
    assert listed(None) == [9, 17, 18, 19]
    assert users_shown(Own(1001, frozenset()), ["bob"]) == ("1001",)
    assert users_shown(Everything(), ["bob"]) == ("bob",)
    assert users_shown(Everything(), []) is None


def test_jobs_that_are_not_asked_for_leave_room_for_those_that_are(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever they are chosen by: what fits it is what the list itself would let through."""
    monkeypatch.setattr("slurm_dl.daemon.control.job_history.MOST_LISTED", 3)
    hostile = "'; --"
    mine = [
        _ending(1, NOW_S - 1000, label="1", account="vision", qos="high", name="train"),
        _ending(2, NOW_S - 999, label="20_7", account="vision", partition="big"),
        _ending(3, NOW_S - 998, label="20_[8-9]", name=hostile),
        _ending(4, NOW_S - 997, label="30+1", qos="high"),
        _ending(5, NOW_S - 996, label="5", state=JobState.COMPLETED),
    ]
    others = [_ending(i, NOW_S - 100 + i, label=f"200_{i}") for i in range(10, 20)]
    with closing(SqliteStore(path)) as store:
        store.save(StoreChange(endings=[*mine, *others]))
    pasts, cycle = JobHistory(LedgerReader(path)), _cycle()

    def listed(**only: list[str]) -> list[int]:
        asked = Only(**{field: tuple(words) for field, words in only.items()})
        return sorted({*pasts.listed(cycle, asked).snapshot.jobs.job_id.tolist()} - {9})

    assert listed() == [17, 18, 19]
    assert listed(accounts=["vision"]) == [1, 2]
    assert listed(accounts=["vision", "x"], qos=["high"]) == [1]
    assert listed(partitions=["big"]) == [2]
    assert listed(names=["train", hostile]) == [1, 3]
    assert listed(names=["tra%", "*"]) == []
    assert listed(jobs=["20"]) == [2, 3]
    assert listed(jobs=["20_7"]) == [2, 3]
    assert listed(jobs=["20_8", "1"]) == [1, 3]
    assert listed(jobs=["30"]) == listed(jobs=["30+1"]) == [4]
    assert listed(jobs=["200_12"]) == [12]
    assert listed(jobs=["2", "%", "20["]) == []
    assert listed(states=["COMPLETED"]) == [5]
    assert listed(states=["FAILED", "COMPLETED"]) == [17, 18, 19]


def _cycle() -> Cycle:
    snap = build.snapshot(build.observed([OTHER]))
    return Cycle(snapshot=snap, plan=decide(snap, POLICY, SETTINGS), acting=False)


def test_a_list_that_nobody_asks_for_any_more_goes(path: Path) -> None:
    """With the cycle that it was made of: either may be large."""
    with closing(SqliteStore(path)) as store:
        store.save(StoreChange(endings=[_ending(1, NOW_S - 9)]))
    pasts, cycle = JobHistory(LedgerReader(path)), _cycle()
    longer = pasts.listed(cycle)
    assert longer is not cycle
    assert pasts.listed(cycle) is longer
    kept = [weakref.ref(cycle), weakref.ref(longer)]

    del cycle, longer
    gc.collect()

    assert [of() for of in kept] == [None, None]


# The form of the file.


def test_an_upgrade_waits_for_who_writes(path: Path) -> None:
    """Half a second of another's write must not be the end of a start."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript((LEDGERS / "schema-5.sql").read_text("utf-8"))
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    letting_go = threading.Timer(0.05, lambda: other.execute("COMMIT"))
    begun: list[str] = []

    def heard(statement: str) -> None:
        # It tries to write: not before that does the other one come to its end.
        if statement.startswith(("BEGIN IMMEDIATE", "CREATE INDEX")) and not begun:
            begun.append(statement)
            letting_go.start()

    with closing(connect(path)) as db:
        db.set_trace_callback(heard)
        upgrade(db)
        db.set_trace_callback(None)
        assert db.execute("SELECT 1 FROM sqlite_master WHERE name = 'ending_of_uid'").fetchone()
    letting_go.join()
    other.close()
    assert begun == ["BEGIN IMMEDIATE"]


def test_hand_overs_go_when_nothing_was_taken_for_a_week(path: Path) -> None:
    """All of them but the last, which has the number that the next one goes by."""
    with closing(SqliteStore(path)) as store, closing(sqlite3.connect(path)) as db:
        for number in (1, 2, 3):
            body = f'{{"opened_s": {NOW_S - 9 * 86_400}, "purpose": "preempt"}}'
            db.execute("INSERT INTO handover VALUES (?, ?, 'served')", (number, body))
        db.commit()
        store.save(StoreChange(over_before_s=NOW_S - FORGET_AFTER_S))
        assert db.execute("SELECT handover_id FROM handover").fetchall() == [(3,)]


def test_an_end_that_is_told_again_keeps_its_time(path: Path) -> None:
    """Anything else of it is another end."""
    first = _ending(7, NOW_S, end_s=NOW_S - 5)
    with closing(SqliteStore(path)) as store:
        store.save(StoreChange(endings=[first]))
        store.save(StoreChange(endings=[dataclasses.replace(first, seen_s=NOW_S + 9, reason="x")]))
    assert LedgerReader(path).ended_since(0.0, NOW_S + 99, 5)[0].ending == first
    for change in ({"uid": 5}, {"label": "8_1"}, {"start_s": 1.0}, {"end_s": 2.0}):
        first = dataclasses.replace(first, **change, seen_s=first.seen_s + 1)
        with closing(SqliteStore(path)) as store:
            store.save(StoreChange(endings=[first]))
        assert LedgerReader(path).ended_since(0.0, NOW_S + 99, 5)[0].ending == first
