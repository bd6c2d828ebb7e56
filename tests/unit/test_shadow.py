"""Shadow mode in the ledger: planned hand-overs, ends, totals, full disks, restarts, old files."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import build
import numpy as np
import pytest

from slurm_dl import logging_setup
from slurm_dl.config import Config
from slurm_dl.daemon.published_state import PublishedState
from slurm_dl.engine.cycle import Cycle
from slurm_dl.ledger.sqlite.reader import LedgerReader
from slurm_dl.ledger.sqlite.store import SqliteStore, StoreError
from slurm_dl.ledger.store_protocol import (
    Noted,
    PlannedVictim,
    ShadowRecord,
)
from slurm_dl.ledger.write_ahead import FORGET_AFTER_S, STEADY_S, Ledger
from slurm_dl.model.contract import Contract
from slurm_dl.model.handover import Handover, Run, Victim
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.model.plan import Action, OpenHandover, Plan, SetSiteFactor, TripBreaker
from slurm_dl.model.snapshot import JobText
from slurm_dl.shadow import planned_handovers
from slurm_dl.shadow.recorder import ShadowRecorder, import_segments, order_distance, row_of

CONFIG = Config.model_validate({"manage": {"partitions": ["gpu"]}})
NOW_S = build.NOW_S
CONTRACT = Contract(grace_s=90)


def handover(lead: int, *victims: int, purpose: str = "preempt") -> OpenHandover:
    """A hand-over of one GPU from each of *victims*."""
    return OpenHandover(
        handover=Handover(
            handover_id=HandoverId(1),
            opened_s=NOW_S,
            beneficiaries=(JobId(lead),) if lead else (),
            victims=tuple(
                Victim(run=Run(JobId(v), NOW_S - 5000, 0), gpus=1, contract=CONTRACT)
                for v in victims
            ),
            nodes=("n1",),
            purpose=purpose,  # type: ignore[arg-type] # one of the words
        ),
        why="it is for a better tier",
    )


@dataclasses.dataclass(frozen=True)
class Look:
    """One look: the jobs, what was planned, and when."""

    rows: Sequence[JobRow]
    actions: tuple[Action, ...] = ()
    at_s: float = 0.0
    more: dict[str, Any] = dataclasses.field(default_factory=dict)
    accounts: dict[int, str] = dataclasses.field(default_factory=dict)


def look(rows: Sequence[JobRow], *actions: Action, at_s: float = 0.0, **more: Any) -> Look:  # noqa: ANN401
    """A look *at_s* seconds after the first, that planned *actions*."""
    return Look(rows, actions, at_s, more)


class Watch:
    """A daemon in shadow mode on the ledger *path*, from its start on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = Ledger(SqliteStore(path))
        self.recorder = ShadowRecorder(lambda: self.ledger)

    def take(self, *looks: Look, live: bool = False) -> None:
        """Cycles that see *looks* and do nothing."""
        for one in looks:
            texts = build.texts(account={r.job_id: "vision" for r in one.rows})
            texts |= {JobId(j): JobText(label=str(j), account=a) for j, a in one.accounts.items()}
            seen = build.observed(one.rows, now_s=NOW_S + one.at_s, texts=texts, **one.more)
            self.ledger.book(seen)
            n = len(one.rows)
            plan = Plan(
                tier=np.zeros(n, np.int16),
                rank=np.arange(n, dtype=np.int32),
                key=np.zeros(n),
                target=frozenset(),
                actions=one.actions,
            )
            snap = self.ledger.snapshot(seen, frozenset({"gpu"}))
            self.recorder.on_cycle(
                PublishedState(
                    config=CONFIG,
                    config_rows=(),
                    started_s=0.0,
                    live=live,
                    cycle=Cycle(snap, plan, acting=False, left=one.actions),
                )
            )

    def kill(self) -> None:
        """End it without a word."""
        self.ledger.close()

    def end(self) -> None:
        """End it as a signal does."""
        self.recorder.close()
        self.ledger.close()

    @property
    def kept(self) -> ShadowRecord:
        """All that the ledger has."""
        return LedgerReader(self.path).shadow_since(0.0, ("gpu",))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The ledger."""
    return tmp_path / "ledger.sqlite"


def kept_by(path: Path, *looks: Look, ends: Callable[[Watch], None] = Watch.end) -> ShadowRecord:
    """All that the ledger has once a daemon has taken *looks*."""
    watch = Watch(path)
    watch.take(*looks)
    ends(watch)
    return watch.kept


def over(row: JobRow, end_s: float, state: JobState = JobState.COMPLETED) -> JobRow:
    """The job, ended *end_s* after the first look."""
    return dataclasses.replace(row, state=state, end_s=NOW_S + end_s)


# Planned hand-overs.

ONE, TWO = build.running(1), build.pending(2)
FIRST = look([ONE, TWO], handover(2, 1))
MOVE = handover(0, 1, purpose="defragment")
STARTED = build.running(2, ran_s=-40)
BACK = dataclasses.replace(build.running(2), start_s=NOW_S + 90)

CASES: dict[str, tuple[Sequence[Look], list[tuple[float, float, int, str, float]]]] = {
    "one at a hundred looks is one": (
        [look([ONE, TWO], handover(2, 1), at_s=10.0 * i) for i in range(100)],
        [(0, 990, 0, "", 0)],
    ),
    "it flickers and takes other victims": (
        [
            *(
                look([ONE, build.running(3), TWO], *actions, at_s=10.0 * i)
                for i, actions in enumerate([(handover(2, 1),), (), (handover(2, 3),), ()])
            ),
            look([ONE, build.running(3)], at_s=50),
        ],
        [(0, 20, 1, "gone", 0)],
    ),
    "its job starts": ([FIRST, look([ONE, STARTED], at_s=60)], [(0, 0, 0, "started", 40)]),
    "the next wait of the job is another": (
        [FIRST, look([ONE, build.pending(2, restarts=1)], handover(2, 1), at_s=60)],
        [(0, 0, 0, "gone", 0), (60, 60, 0, "", 0)],
    ),
    "moves go by their victims": (
        [
            *(look([ONE, build.running(2)], MOVE, at_s=10.0 * i) for i in range(3)),
            look([build.running(2)], at_s=60),
        ],
        [(0, 20, 0, "over", 0)],
    ),
    "its job went between two looks": ([FIRST, look([], at_s=100)], [(0, 0, 0, "gone", 0)]),
    "one look missed its job": (
        [FIRST, look([ONE], at_s=30), look([ONE, TWO], handover(2, 1), at_s=60)],
        [(0, 60, 0, "", 0)],
    ),
    "it was missed and starts": (
        [FIRST, look([ONE], at_s=30), look([ONE, TWO], handover(2, 1), at_s=60),
         look([ONE, BACK], at_s=100)],
        [(0, 60, 0, "started", 90)],
    ),
    "other actions are none": (
        [look([TWO], SetSiteFactor(job_id=JobId(2), value=1, why=""))], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_planned_hand_over_is_kept_once_with_its_end(path: Path, case: str) -> None:
    """Begin, last sight, changes of victims, end, start of its job."""
    looks, expected = CASES[case]

    kept = kept_by(path, *looks).planned

    assert [
        (p.begin_s - NOW_S, p.last_s - NOW_S, p.others, p.end, max(0.0, p.started_s - NOW_S))
        for p in kept
    ] == expected


def test_whose_it_is(path: Path) -> None:
    """The job that it is for, and the runs that would have been stopped."""
    rows = [build.running(1, uid=7), build.pending(2, 4, uid=8)]

    (planned,) = kept_by(path, look(rows, handover(2, 1))).planned

    assert (planned.lead, planned.lead_uid, planned.lead_gpus, planned.gpus) == (2, 8, 4.0, 1.0)
    (victim,) = planned.victims
    assert (victim.job_id, victim.uid, victim.grace_s, victim.ran_s) == (1, 7, 90.0, 5000.0)
    assert planned.lead_account == victim.account == "vision"
    assert planned.why


def a_morning() -> list[Look]:
    """Two jobs that wait and are planned for, and start minutes after the last plan."""
    waits = [ONE, build.running(5), TWO, build.pending(3)]
    two, three = build.running(2, ran_s=-400), build.running(3, ran_s=-700)
    return [
        look(waits, handover(2, 1), at_s=0),
        look(waits, handover(2, 5), handover(3, 1), at_s=100),
        look(waits, handover(2, 1), at_s=200),
        look(waits, at_s=290),
        look([*waits[:2], two, waits[3]], at_s=450),
        look([*waits[:2], two, waits[3]], at_s=640),
        look([waits[0], two, three], at_s=750),
        look([waits[0]], at_s=850),
    ]


@pytest.mark.parametrize("cut", range(1, 8))
@pytest.mark.parametrize("end", [Watch.end, Watch.kill], ids=["ended", "killed"])
def test_a_restart_in_the_middle_changes_nothing(
    tmp_path: Path, cut: int, end: Callable[[Watch], None]
) -> None:
    """Whenever it comes, all is as without it, but for one change of victims at most.

    After a kill the last minute's looks are lost, and when a job vanished is known less well.
    """
    whole = kept_by(tmp_path / "whole.sqlite", *a_morning())
    for part in (a_morning()[:cut], a_morning()[cut:]):
        kept = kept_by(tmp_path / "parts.sqlite", *part, ends=end)
    killed = end is Watch.kill

    def told(kept: ShadowRecord) -> list[object]:
        found = [dataclasses.replace(p, others=0) for p in kept.planned]
        if killed:
            return [dataclasses.replace(p, last_s=0.0) for p in found]
        return [*found, *((j.job_id, j.how) for j in kept.ended)]

    assert [(p.end, p.started_s - NOW_S) for p in whole.planned] == [
        ("started", 400),
        ("started", 700),
    ]
    assert told(kept) == told(whole)
    assert {(j.job_id, j.how) for j in kept.ended} == {(5, "V"), (2, "V"), (3, "V")}
    if not killed:
        assert sum(m.looks for m in kept.minutes) == 8


def test_a_job_that_started_and_ended_between_two_daemons(path: Path) -> None:
    """Slurm has forgotten it: its wait counts up to where it was seen, and not to the end."""
    kept_by(path, *(look([ONE, TWO], handover(2, 1), at_s=s) for s in (0, 200, 400)))

    (planned,) = kept_by(path, look([], at_s=3600), look([], at_s=7200)).planned

    assert (planned.end, planned.last_s, planned.started_s) == ("unseen", NOW_S + 400, 0.0)


def test_those_in_memory_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beyond is counted as missed, at each look."""
    monkeypatch.setattr(planned_handovers, "MOST_OPEN", 2)
    rows = [ONE, *(build.pending(i) for i in range(2, 6))]
    looks = [look(rows, *(handover(i, 1) for i in range(2, 6)), at_s=s) for s in (0.0, 61.0)]

    kept = kept_by(path, *looks)

    assert len(kept.planned) == 2
    assert sum(m.missed for m in kept.minutes) == 4


# Jobs.


def test_an_end_is_kept_once_with_its_owner(path: Path) -> None:
    """Slurm lists a finished job for minutes; a job that came and went between looks counts too."""
    one = build.running(1, 2, uid=7)
    quick = over(build.running(5, ran_s=-20, submit_s=NOW_S + 10), 50, JobState.FAILED)
    unmanaged = over(build.running(8, partition=1), 20)
    rows = [over(one, 30), quick, unmanaged]
    kept = kept_by(
        path, look([one], opted_in=[1]), *(look(rows, at_s=s, opted_in=[1]) for s in (60, 70))
    )

    first, second = sorted(kept.ended, key=lambda job: job.job_id)
    assert (first.uid, first.account, first.gpus, first.how) == (7, "vision", 2.0, "C")
    assert (first.start_s, first.ran_s, first.opted_in) == (NOW_S - 5000, 5030.0, True)
    assert (second.job_id, second.how, second.submit_s) == (5, "F", NOW_S + 10)
    assert (second.start_s, second.end_s, second.ran_s) == (NOW_S + 20, NOW_S + 50, 30.0)
    assert kept.unfinished == ()


def test_an_end_counts_all_runs_of_the_job(path: Path) -> None:
    """A requeue overwrites submission and start in Slurm; the ledger has the first ones."""
    again = build.running(1, ran_s=-100, submit_s=NOW_S + 60, restarts=1)
    waits = build.pending(1, submit_s=NOW_S + 60, restarts=1)
    looks = [look([ONE]), look([waits], at_s=61), look([again], at_s=110)]

    (job,) = kept_by(path, *looks, look([over(again, 200)], at_s=210)).ended

    assert (job.submit_s, job.start_s, job.end_s) == (
        min(ONE.submit_s, NOW_S - 5000),
        NOW_S - 5000,
        NOW_S + 200,
    )
    assert job.ran_s == pytest.approx(5060 + 100, abs=1)


@pytest.mark.parametrize("second", [False, True], ids=["one daemon", "the next daemon"])
def test_a_running_job_that_vanishes_is_kept_as_such(path: Path, *, second: bool) -> None:
    """How it ended is not known; one that waited has nothing to tell."""
    watch = Watch(path)
    watch.take(look([ONE, build.running(3), TWO]))
    if second:
        watch.end()
        watch = Watch(path)
    watch.take(look([over(build.running(3), 30)], at_s=60))

    kept = watch.kept
    assert {(j.job_id, j.how) for j in kept.ended} == {(1, "V"), (3, "C")}
    assert next(j for j in kept.ended if j.how == "V").end_s == NOW_S


def test_the_unfinished_jobs_of_managed_partitions(path: Path) -> None:
    """Those that have run; of the others the tasks are counted."""
    rows = [build.running(1, partition=1), build.running(2, 0), build.running(3)]
    kept = kept_by(path, look([*rows, build.pending(4, tasks=3)]), look(rows, at_s=20))

    assert [(j.job_id, j.end_s - NOW_S) for j in kept.unfinished] == [(3, 20)]
    first, *_ = kept.minutes
    assert first.never_ran == 0
    assert kept_by(path, look([build.pending(4, tasks=3)], at_s=90)).minutes[-1].never_ran == 3


# Totals.


@pytest.mark.parametrize(
    ("rank", "expected"),
    [([0, 1, 2, 3], (False, 0.0)), ([3, 2, 1, 0], (True, 1.0)), ([1, 0, 2, 3], (True, 0.0))],
)
def test_the_order_is_compared_with_slurms(rank: list[int], expected: tuple[bool, float]) -> None:
    """Of four waiting jobs the first two count; both are others, and so is the first."""
    snap = build.snapshot(build.observed([build.pending(i, priority=10 - i) for i in range(1, 5)]))
    plan = Plan(
        tier=np.zeros(4, np.int16),
        rank=np.array(rank, np.int32),
        key=np.zeros(4),
        target=frozenset(),
        actions=(),
    )

    assert order_distance(snap, plan) == expected


def test_looks_are_added_up(path: Path) -> None:
    """A minute is one row; the first look is told at once and again with the others."""
    rows = [ONE, build.pending(2, tasks=3)]
    trip = TripBreaker(breaker="cluster_share", at_s=1.0, why="x")
    watch = Watch(path)
    watch.take(look(rows, trip, held={1: {0: 1.0}}))
    assert [m.looks for m in watch.kept.minutes] == [1]
    watch.take(*(look(rows, at_s=10.0 * i, held={1: {0: 1.0}}) for i in range(1, 8)))
    watch.end()

    minutes = watch.kept.minutes

    assert [(m.looks, m.from_s - NOW_S, m.to_s - NOW_S) for m in minutes] == [
        (6, 0, 50),
        (2, 60, 70),
    ]
    first = minutes[0]
    assert (first.gpus, first.held, first.waiting, first.tripped) == (16.0, 1.0, 3.0, 1)
    assert (first.policy, first.mode, first.shape) == (
        "discrete_las",
        "external",
        ((4, 4, "a100"),),
    )


def test_a_daemon_that_acts_records_nothing(path: Path) -> None:
    """It tells its story in the audit log."""
    watch = Watch(path)
    watch.take(FIRST, live=True)
    watch.end()

    assert watch.kept == ShadowRecord(minutes=(), planned=(), ended=(), unfinished=())


# The ledger.


def test_a_full_disk_stops_nobody_and_is_said_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be written is written when there is room again."""
    log = io.StringIO()
    logging_setup.configure(level="info", form="json", stream=log)
    watch = Watch(path)

    def full(*_: Sequence[Noted]) -> None:
        msg = "database or disk is full"
        raise StoreError(msg)

    with monkeypatch.context() as patch:
        patch.setattr(watch.ledger, "note", full)
        watch.take(FIRST, look([ONE, TWO], handover(2, 1), at_s=10))
    watch.take(look([ONE, TWO], handover(2, 1), at_s=20))

    assert len(watch.kept.planned) == 1
    assert log.getvalue().count("cannot be kept") == 1
    assert log.getvalue().count("kept again") == 1


def test_a_daemon_that_was_passed_over_writes_nothing(path: Path) -> None:
    """Another one keeps its own in the same ledger by now."""
    watch = Watch(path)
    watch.take(FIRST, look([ONE, TWO], handover(2, 1), at_s=10))
    before = watch.kept
    watch.recorder.abandon()
    watch.recorder.close()

    assert watch.kept == before


def test_what_is_a_week_old_is_dropped(path: Path) -> None:
    """With the ends of the jobs, so that a report has all of a time or nothing."""
    later_s = FORGET_AFTER_S + 1000
    kept_by(path, FIRST, look([ONE], at_s=60))
    watch = Watch(path)
    watch.take(*(look([build.pending(9)], at_s=later_s + s) for s in (0, STEADY_S + 1)))

    kept = watch.kept
    assert (kept.planned, kept.ended, kept.unfinished) == ((), (), ())
    assert min(m.to_s for m in kept.minutes) >= NOW_S + later_s


# Files of versions before.

WISH = b'["wish","preempt 2:0","preempt",2,7,"nlp",4,[2]'
LINES = (
    b'["job",12,1000,"vision",4,1000,1010,500.5,1510.5,"C",1]',
    b'["job",13,1000,"vision",4,1000,1010,500.5,1510.5,"V",0]',
    b'["looks",1000,1060,6,0,"discrete_las","external",16,4,1.5,5,2,0.25,1,0,[[4,4,"a100"]]]',
    WISH + b',[[1,0,8,"v",1,50,90]],1,"why",1020,1050,0,"",0]',
    WISH + b',[[3,0,8,"v",1,50,90]],1,"why",1025,1090,1,"started",1095]',
)


def test_segments_of_before_are_read_once(tmp_path: Path, path: Path) -> None:
    """Lines that are damaged cost themselves; the files go."""
    directory = tmp_path / "shadow"
    directory.mkdir()
    (directory / "000000000001.jsonl").write_bytes(b"\n".join(LINES[:3]) + b'\n["job",12,10')
    (directory / "000000000002.jsonl").write_bytes(LINES[3] + b"\n" + LINES[4] + b"\n")
    (directory / "wishes.jsonl").write_bytes(b'["open",1050,1]\n' + LINES[3] + b"\n")
    standing = np.zeros(2, dtype=[*((n, "i8") for n in ("job_id", "uid", "account", "tasks")),
                                  *((n, "f8") for n in ("gpus", "submit_s", "start_s", "ran_s")),
                                  ("opted_in", "?")])  # fmt: skip
    standing["job_id"], standing["start_s"], standing["ran_s"] = [20, 21], [1000, 0], [60, 0]
    standing["tasks"] = [1, 7]
    np.savez(directory / "standing.npz", jobs=standing, accounts=np.array(["nlp"]), now_s=1060.0)
    for _ in range(2):
        with closing(Ledger(SqliteStore(path))) as ledger:
            import_segments(tmp_path, ledger)
    kept = LedgerReader(path).shadow_since(0.0, ("gpu",))

    (minute,), (planned,) = kept.minutes, kept.planned
    assert (minute.looks, minute.policy, minute.shape) == (6, "discrete_las", ((4, 4, "a100"),))
    assert minute.never_ran == 7
    assert [(j.job_id, j.account, j.end_s) for j in kept.unfinished] == [(20, "nlp", 1060.0)]
    assert (planned.lead_account, planned.victims) == (
        "nlp",
        (PlannedVictim(job_id=1, restarts=0, uid=8, account="v", gpus=1, ran_s=50, grace_s=90),),
    )
    assert (planned.begin_s, planned.last_s, planned.end, planned.started_s) == (
        *(1020, 1090),
        *("started", 1095),
    )
    assert [(j.job_id, j.how, j.ran_s, j.opted_in) for j in kept.ended] == [
        (12, "C", 500.5, True),
        (13, "V", 500.5, False),
    ]
    assert not directory.exists()


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"[]", b"null", b'["job"]', b'["other",5,0]', b"\xff\xfe", b"[" * 100_000),
        LINES[0].replace(b"1000", b'"x"'),
        LINES[3].replace(b"[[1,0", b'[["x",0'),
        LINES[3].replace(b'[[1,0,8,"v",1,50,90]]', b"7"),
    ],
)  # fmt: skip
def test_a_line_that_is_none_is_left_out(line: bytes) -> None:
    """Torn, forged or empty."""
    assert row_of(line) is None
