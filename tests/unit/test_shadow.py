"""What is kept of shadow mode: wishes once, ends once, torn files, full disks, restarts."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import build
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import eventually

from slurm_dl import logging_setup
from slurm_dl.config import Config
from slurm_dl.daemon.published_state import PublishedState
from slurm_dl.engine.cycle import Cycle
from slurm_dl.model.contract import Contract
from slurm_dl.model.handover import Handover, Run, Victim
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.model.plan import Action, OpenHandover, Plan, SetSiteFactor, TripBreaker
from slurm_dl.model.snapshot import JobText
from slurm_dl.shadow import look_changes as wishing
from slurm_dl.shadow import recorder as recording
from slurm_dl.shadow.recorder import Recorder, ShadowObserver, compare
from slurm_dl.shadow.records import (
    LONGEST_LINE,
    MOST_VICTIMS,
    UNSEEN,
    EndedJobRecord,
    Lookout,
    WishedHandover,
    WishedVictim,
    parsed,
    written,
)
from slurm_dl.shadow.segment_store import (
    JOB,
    OPEN,
    STANDING,
    Kept,
    SegmentStore,
    ShadowError,
    UnfinishedJobs,
    joined,
    read_kept,
    read_open,
    read_standing,
)

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


def look(
    rows: Sequence[JobRow],
    *actions: Action,
    at_s: float = 0.0,
    live: bool = False,
    rank: Sequence[int] | None = None,
    **more: Any,  # noqa: ANN401
) -> PublishedState:
    """One cycle, *at_s* seconds after the first, that planned *actions* and did nothing."""
    texts = build.texts(account={r.job_id: "vision" for r in rows})
    seen = build.observed(rows, now_s=NOW_S + at_s, texts=texts, **more)
    snap = build.snapshot(seen)
    n = len(rows)
    plan = Plan(
        tier=np.zeros(n, np.int16),
        rank=np.array(range(n) if rank is None else rank, np.int32),
        key=np.zeros(n),
        target=frozenset(),
        actions=actions,
    )
    return PublishedState(
        config=CONFIG,
        config_rows=(),
        started_s=0.0,
        live=live,
        cycle=Cycle(snap, plan, acting=False, left=actions),
    )


def kept_by(directory: Path, *looks: PublishedState) -> Kept:
    """What a recorder keeps of *looks*."""
    recorder = Recorder(SegmentStore(directory))
    for now in looks:
        recorder.take(now)
    return read_kept(directory, 0.0)


def wishes(kept: Kept) -> list[WishedHandover]:
    """The wishes among the lines."""
    return [line for line in kept.lines if isinstance(line, WishedHandover)]


def ended(kept: Kept) -> list[EndedJobRecord]:
    """The ends among the lines."""
    return [line for line in kept.lines if isinstance(line, EndedJobRecord)]


# Wishes.


def test_one_wish_at_a_hundred_looks_is_one(tmp_path: Path) -> None:
    """The same hand-over stands in each plan until its job starts."""
    rows = [build.running(1, uid=7), build.pending(2, 4, uid=8)]
    looks = [look(rows, handover(2, 1), at_s=10.0 * i) for i in range(100)]

    (wish,) = wishes(kept_by(tmp_path / "s", *looks))

    assert (wish.lead, wish.lead_uid, wish.lead_gpus, wish.gpus) == (2, 8, 4.0, 1.0)
    (victim,) = wish.victims
    assert (victim.job_id, victim.uid, victim.grace_s, victim.ran_s) == (1, 7, 90.0, 5000.0)
    assert (wish.begin_s, wish.end, wish.others) == (NOW_S, "", 0)
    assert wish.lead_account == victim.account == "vision"
    (segment,) = (tmp_path / "s").glob("0*.jsonl")
    assert segment.read_bytes().count(b'["wish"') == 1


def test_a_wish_that_flickers_and_takes_other_victims_is_one(tmp_path: Path) -> None:
    """One wait of one job is worth one preemption; how often it was another's turn is counted."""
    rows = [build.running(1), build.running(3), build.pending(2)]
    actions: list[tuple[Action, ...]] = [(handover(2, 1),), (), (handover(2, 3),), ()]
    looks = [look(rows, *a, at_s=10.0 * i) for i, a in enumerate(actions)]
    over = look([build.running(1), build.running(3)], at_s=50)

    (wish,) = wishes(kept_by(tmp_path / "s", *looks, over))

    assert [v.job_id for v in wish.victims] == [1]
    assert (wish.last_s, wish.others, wish.end) == (NOW_S + 20, 1, "gone")


def test_a_wish_ends_when_its_job_starts(tmp_path: Path) -> None:
    """With the time of the start, from which the saving is reckoned."""
    before = look([build.running(1), build.pending(2)], handover(2, 1))
    rows = [build.running(1), build.running(2, ran_s=-40)]

    (wish,) = wishes(kept_by(tmp_path / "s", before, look(rows, at_s=60)))

    assert (wish.end, wish.started_s) == ("started", NOW_S + 40)


def test_the_next_wait_of_the_job_is_another_wish(tmp_path: Path) -> None:
    """A requeue raises the restart count."""
    first = look([build.running(1), build.pending(2)], handover(2, 1))
    again = [build.running(1), build.pending(2, restarts=1)]

    found = wishes(kept_by(tmp_path / "s", first, look(again, handover(2, 1), at_s=60)))

    assert [w.end for w in found] == ["gone", ""]


def test_moves_are_known_by_their_victims(tmp_path: Path) -> None:
    """Nobody waits for them; they are over when none of the runs is there any more."""
    rows = [build.running(1), build.running(2)]
    move = handover(0, 1, purpose="defragment")
    looks = [look(rows, move, at_s=10.0 * i) for i in range(3)]

    (wish,) = wishes(kept_by(tmp_path / "s", *looks, look(rows[1:], at_s=60)))

    assert (wish.purpose, wish.lead, wish.end, wish.last_s) == ("defragment", 0, "over", NOW_S + 20)


def test_a_restart_does_not_count_a_wish_twice(tmp_path: Path) -> None:
    """The second daemon sees the same wait; what the first saw of it stands."""
    rows = [build.running(1), build.pending(2)]
    kept_by(tmp_path / "s", look(rows, handover(2, 1)))
    later = look([build.running(1), build.running(2, ran_s=-100)], at_s=120)

    kept = kept_by(tmp_path / "s", look(rows, handover(2, 1), at_s=60), later)

    (wish,) = wishes(kept)
    assert (wish.begin_s, wish.last_s, wish.started_s) == (NOW_S, NOW_S + 60, NOW_S + 100)


def a_morning() -> list[PublishedState]:
    """Two jobs that wait and are wished for, and start minutes after the last wish."""
    waits = [build.running(1), build.running(5), build.pending(2), build.pending(3)]
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
@pytest.mark.parametrize("killed", [False, True], ids=["ended", "killed"])
def test_a_restart_in_the_middle_changes_nothing(tmp_path: Path, cut: int, *, killed: bool) -> None:
    """Whenever it comes, all is as without it, but for one change of victims at most.

    After a kill the last minutes' looks are lost, and when a job vanished is known less well.
    """
    looks = a_morning()
    whole = kept_by(tmp_path / "whole", *looks)
    for part in (looks[:cut], looks[cut:]):
        recorder = Recorder(SegmentStore(tmp_path / "parts"))
        for now in part:
            recorder.take(now)
        if not killed:
            recorder.close()
    kept = read_kept(tmp_path / "parts", 0.0)

    def told(kept: Kept) -> list[object]:
        found = [dataclasses.replace(w, others=0) for w in wishes(kept)]
        if killed:
            return [dataclasses.replace(w, last_s=0.0) for w in found]
        return [*found, *ended(kept)]

    assert [w.end for w in wishes(whole)] == ["started", "started"]
    assert [w.started_s - NOW_S for w in wishes(whole)] == [400, 700]
    assert told(kept) == told(whole)
    assert [(j.job_id, j.how) for j in ended(kept)] == [(j.job_id, j.how) for j in ended(whole)]
    if not killed:
        assert sum(o.looks for o in kept.lines if isinstance(o, Lookout)) == 8


def test_a_job_that_started_and_ended_while_nobody_looked(tmp_path: Path) -> None:
    """Slurm has forgotten it: its wait counts up to where somebody saw it, and not to the end."""
    rows = [build.running(1), build.pending(2)]
    kept_by(tmp_path / "s", *(look(rows, handover(2, 1), at_s=s) for s in (0, 200, 400)))

    soon = kept_by(tmp_path / "s", look([], at_s=3600), look([], at_s=7200))

    (wish,) = wishes(soon)
    assert (wish.end, wish.last_s, wish.started_s) == ("unseen", NOW_S + 400, 0.0)


def test_a_job_that_went_between_two_looks_never_started(tmp_path: Path) -> None:
    """Slurm would still list it, had it run."""
    rows = [build.running(1), build.pending(2)]

    (wish,) = wishes(kept_by(tmp_path / "s", look(rows, handover(2, 1)), look([], at_s=100)))

    assert wish.end == "gone"


def test_a_wish_whose_end_was_lost_is_not_open(tmp_path: Path) -> None:
    """It is in no list of the open ones, and older than that: nobody knows what became of it."""
    lost = dataclasses.replace(LINES[2], begin_s=NOW_S - 500)
    SegmentStore(tmp_path / "s").append([written(lost)])
    rows = [build.running(1), build.pending(7)]

    kept = kept_by(tmp_path / "s", look(rows), look(rows, handover(7, 1), at_s=60))

    assert {w.lead: w.end for w in wishes(kept)} == {2: "unseen", 7: ""}


def test_open_wishes_outlive_their_lines(tmp_path: Path) -> None:
    """The file in which it was begun is gone; the report still knows since when it is open."""
    rows = [build.running(1), build.pending(2)]
    kept_by(tmp_path / "s", look(rows, handover(2, 1)))
    (segment,) = (tmp_path / "s").glob("0*.jsonl")
    segment.unlink()

    (wish,) = wishes(kept_by(tmp_path / "s", look(rows, handover(2, 1), at_s=4000)))

    assert (wish.begin_s, wish.last_s, wish.end) == (NOW_S, NOW_S + 4000, "")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b'["open",5]',
        b'["open",5,1]\n',
        b'["open",true,0]',
        b'["open",1e999,0]',
        b'["open",NaN,0]',
        b'["open","5",0]',
        b'["other",5,0]',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_list_of_open_wishes_that_is_none_is_as_good_as_none(
    tmp_path: Path, content: bytes
) -> None:
    """Torn, forged or empty."""
    (tmp_path / OPEN).write_bytes(content)

    assert read_open(tmp_path / OPEN) is None
    assert SegmentStore(tmp_path).open_wishes() == ((), -math.inf)


def test_an_open_wish_that_cannot_be_read_costs_itself_alone(tmp_path: Path) -> None:
    """The others are still known after a restart."""
    recorder = Recorder(SegmentStore(tmp_path))
    rows = [build.running(1), build.running(3), build.pending(2), build.pending(4)]
    recorder.take(look(rows, handover(2, 1), handover(4, 3)))
    recorder.close()
    first, good, _ = (tmp_path / OPEN).read_bytes().splitlines(keepends=True)
    (tmp_path / OPEN).write_bytes(first + good + b"[1e999]\n")

    held = read_open(tmp_path / OPEN)

    assert [w.lead for w in held.wishes] == [2]


def test_a_job_that_one_look_missed_is_still_wished_for(tmp_path: Path) -> None:
    """The wish goes on when it is back, and ends when it starts."""
    rows = [build.running(1), build.pending(2)]
    started = [build.running(1), dataclasses.replace(build.running(2), start_s=NOW_S + 90)]
    looks = [look(rows, handover(2, 1), at_s=30.0 * i) for i in range(3)]
    looks[1] = look(rows[:1], at_s=30.0)

    (open_still,) = wishes(kept_by(tmp_path / "a", *looks))
    (over,) = wishes(kept_by(tmp_path / "b", *looks, look(started, at_s=100)))

    assert (open_still.begin_s, open_still.end) == (NOW_S, "")
    assert (over.begin_s, over.end, over.started_s) == (NOW_S, "started", NOW_S + 90)


def test_a_clock_that_was_set_back_stops_no_checkpoint(tmp_path: Path) -> None:
    """Else what is open would be known as of the time before, for hours."""
    recorder = Recorder(SegmentStore(tmp_path))
    rows = [build.running(1), build.pending(2)]
    recorder.take(look(rows, at_s=0.0))
    recorder.take(look(rows, handover(2, 1), at_s=-7200.0))

    held = read_open(tmp_path / OPEN)

    assert (held.now_s, len(held.wishes)) == (NOW_S - 7200, 1)


def test_what_a_killed_daemon_was_writing_is_removed(tmp_path: Path) -> None:
    """Of hours ago, and nothing else."""
    old, young = tmp_path / f".{OPEN}.0123abcd", tmp_path / f".{STANDING}.0123abcd"
    other = tmp_path / f".{OPEN}.backup"
    for path in (old, young, other):
        path.touch()
    for path in (old, other):
        os.utime(path, (1.0, 1.0))

    Recorder(SegmentStore(tmp_path))

    assert sorted(tmp_path.iterdir()) == sorted([young, other])


def test_an_end_that_was_seen_is_not_forgotten_after_a_kill(tmp_path: Path) -> None:
    """The list of unfinished jobs is some minutes old: what has ended since was told already."""
    over = dataclasses.replace(build.running(1), state=JobState.COMPLETED, end_s=NOW_S + 30)
    kept_by(tmp_path / "s", look([build.running(1)]), look([over], at_s=60))

    (job,) = ended(kept_by(tmp_path / "s", look([], at_s=4000)))

    assert (job.how, job.end_s) == ("C", NOW_S + 30)


def test_other_actions_are_no_wishes(tmp_path: Path) -> None:
    """SiteFactors are the order's affair, a tripped breaker is counted."""
    trip = TripBreaker(breaker="cluster_share", at_s=1.0, why="x")
    now = look([build.pending(2)], SetSiteFactor(job_id=JobId(2), value=1, why=""), trip, at_s=0.0)

    kept = kept_by(tmp_path / "s", now)

    assert not wishes(kept)
    (lookout,) = (line for line in kept.lines if isinstance(line, Lookout))
    assert lookout.tripped == 1


def test_wishes_in_memory_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beyond is counted as missed, at each look."""
    monkeypatch.setattr(wishing, "MOST_WISHES", 2)
    rows = [build.running(1), *(build.pending(i) for i in range(2, 6))]
    looks = [look(rows, *(handover(i, 1) for i in range(2, 6)), at_s=s) for s in (0.0, 61.0)]

    kept = kept_by(tmp_path / "s", *looks)

    assert len(wishes(kept)) == 2
    assert max(o.missed for o in kept.lines if isinstance(o, Lookout)) == 4


# Jobs.


def test_an_end_is_kept_once_with_its_owner(tmp_path: Path) -> None:
    """Slurm lists a finished job for minutes; a job that came and went between looks counts too."""
    first = look([build.running(1, 2, uid=7)], opted_in=[1])
    over = build.running(1, 2, uid=7)
    over = dataclasses.replace(over, state=JobState.COMPLETED, end_s=NOW_S + 30)
    quick = build.running(5, ran_s=-20, submit_s=NOW_S + 10)
    quick = dataclasses.replace(quick, state=JobState.FAILED, end_s=NOW_S + 50)
    old = dataclasses.replace(over, job_id=9, end_s=NOW_S - 40)

    kept = kept_by(tmp_path / "s", first, *(look([over, quick, old], at_s=s) for s in (60, 70)))

    one, two = ended(kept)
    assert (one.job_id, one.uid, one.account, one.gpus) == (1, 7, "vision", 2.0)
    assert (one.start_s, one.ran_s, one.how, one.opted_in) == (NOW_S - 5000, 5030.0, "C", True)
    assert (two.job_id, two.start_s, two.end_s, two.how) == (5, NOW_S + 20, NOW_S + 50, "F")


def test_a_running_job_that_vanishes_is_kept_as_such(tmp_path: Path) -> None:
    """Nobody saw how it ended; one that waited has nothing to tell."""
    rows = [build.running(1), build.pending(2)]

    (job,) = ended(kept_by(tmp_path / "s", look(rows), look([], at_s=60)))

    assert (job.job_id, job.how, job.end_s) == (1, "V", NOW_S)


def test_what_ended_while_nobody_looked_is_found_after_a_restart(tmp_path: Path) -> None:
    """The unfinished jobs lie in a file of their own."""
    kept_by(tmp_path / "s", look([build.running(1), build.running(2)]))
    over = dataclasses.replace(build.running(1), state=JobState.COMPLETED, end_s=NOW_S + 30)

    kept = kept_by(tmp_path / "s", look([over], at_s=100))

    assert {(j.job_id, j.how) for j in ended(kept)} == {(1, "C"), (2, "V")}


def test_unmanaged_jobs_and_jobs_without_gpus_are_not_kept(tmp_path: Path) -> None:
    """They are nobody's business here."""
    rows = [build.running(1, partition=1), build.running(2, 0), build.running(3)]

    kept = kept_by(tmp_path / "s", look(rows))

    assert kept.standing.jobs["job_id"].tolist() == [3]


def test_accounts_that_nobody_uses_any_more_are_forgotten(tmp_path: Path) -> None:
    """A user may write another one into each job; those of the jobs that are left stay right."""

    def with_account(job_id: int, at_s: float) -> PublishedState:
        now = look([build.running(1), build.pending(job_id)], at_s=at_s)
        texts = now.cycle.snapshot.seen.texts
        texts[JobId(job_id)] = JobText(label="x", account=f"account-{job_id}")
        return now

    looks = [with_account(i, 10.0 * i) for i in range(2, 302)]

    kept = kept_by(tmp_path / "s", *looks, look([], at_s=4000))

    assert [j.account for j in ended(kept)] == ["vision"]
    recorder = Recorder(SegmentStore(tmp_path / "t"))
    for now in looks:
        recorder.take(now)
    standing = recorder._before
    assert len(standing.accounts) < 110
    names = [standing.accounts[i] for i in standing.jobs["account"].tolist()]
    assert names == ["vision", "account-301"]


# The order.


@pytest.mark.parametrize(
    ("rank", "first_other", "others"),
    [([0, 1, 2, 3], 0, 0.0), ([3, 2, 1, 0], 1, 1.0), ([1, 0, 2, 3], 1, 0.0)],
)
def test_the_order_is_compared_with_slurms(
    rank: list[int], first_other: int, others: float
) -> None:
    """Of four waiting jobs the first two count; both are others, and so is the first."""
    cycle = look([build.pending(i, priority=10 - i) for i in range(1, 5)], rank=rank).cycle

    told = compare(cycle.snapshot, cycle.plan)
    assert (told.looks, told.first_other, told.others) == (1, first_other, others)


# Files.


def test_looks_are_added_up(tmp_path: Path) -> None:
    """A minute is one line; the first look is told at once and again with the others."""
    rows = [build.running(1), build.pending(2, tasks=3)]
    looks = [look(rows, at_s=10.0 * i, held={1: {0: 1.0}}) for i in range(8)]

    lookouts = [o for o in kept_by(tmp_path / "s", *looks).lines if isinstance(o, Lookout)]

    assert [(o.looks, o.from_s - NOW_S, o.to_s - NOW_S) for o in lookouts] == [
        (6, 0, 50),
        (1, 60, 60),
    ]
    first = lookouts[0]
    assert (first.gpus, first.held, first.waiting) == (16.0, 1.0, 3.0)
    assert first.shape == ((4, 4, "a100"),)


def test_a_torn_line_costs_itself(tmp_path: Path) -> None:
    """Whatever was cut off, the next line stands on its own."""
    directory = tmp_path / "s"
    rows = [build.running(1), build.pending(2), build.pending(3)]
    kept_by(directory, look(rows, handover(2, 1)))
    (segment,) = directory.glob("0*.jsonl")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-20])

    kept = kept_by(directory, look(rows, handover(3, 1), at_s=100))

    assert kept.bad == 1
    assert [w.lead for w in wishes(kept)] == [2, 3]


@given(cut=st.integers(0, 2000), noise=st.binary(max_size=40))
def test_a_damaged_file_never_breaks_the_reader(cut: int, noise: bytes) -> None:
    """Any bytes, anywhere: lines are left out, and no more."""
    whole = b"".join(written(line) for line in LINES)
    data = whole[: cut % len(whole)] + noise + whole[cut % len(whole) :]

    for raw in data.split(b"\n"):
        parsed(raw)


def test_the_files_are_bounded_and_the_oldest_goes_first(tmp_path: Path) -> None:
    """Many jobs later there are as many files as may be, and the newest jobs are there."""
    store = SegmentStore(tmp_path / "s", segment_bytes=1000, keep=3)
    for i in range(200):
        store.append([written(dataclasses.replace(LINES[0], job_id=i))])

    sizes = [p.stat().st_size for p in (tmp_path / "s").iterdir()]
    assert len(sizes) == 3
    assert sum(sizes) < 3 * 1200
    kept = ended(read_kept(tmp_path / "s", 0.0))
    assert kept[-1].job_id == 199
    assert len(kept) < 60


def test_a_job_costs_less_than_a_hundred_bytes() -> None:
    """So a day of 100,000 jobs is less than 10 MB."""
    who = {"job_id": 12_345_678, "uid": 1_000_123_456, "account": "vision-research", "gpus": 128}
    when = {"submit_s": 1.9e9, "start_s": 1.9e9 + 1234.5, "end_s": 1.9e9 + 90_000}
    job = dataclasses.replace(LINES[0], **who, **when, ran_s=86_400.5)

    assert len(written(job)) <= 100


def test_a_full_disk_stops_nobody_and_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be written is written when there is room again."""
    log = io.StringIO()
    logging_setup.configure(level="info", form="json", stream=log)
    recorder = Recorder(SegmentStore(tmp_path / "s"))
    rows = [build.running(1), build.pending(2)]

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        recorder.take(look(rows, handover(2, 1)))
        recorder.take(look(rows, handover(2, 1), at_s=10))
    recorder.take(look(rows, handover(2, 1), at_s=20))

    assert len(wishes(read_kept(tmp_path / "s", 0.0))) == 1
    assert log.getvalue().count("cannot be kept") == 1
    assert log.getvalue().count("kept again") == 1


def test_what_waits_for_room_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest goes, and is counted."""
    monkeypatch.setattr(recording, "_MOST_UNWRITTEN", 3)
    (tmp_path / "s").write_text("a file where the directory should be", "utf-8")
    recorder = Recorder(SegmentStore(tmp_path / "s"))
    for i in range(10):
        recorder.take(look([build.pending(2)], at_s=100.0 * i))

    (tmp_path / "s").unlink()
    recorder.take(look([build.pending(2)], at_s=2000.0))
    recorder.take(look([build.pending(2)], at_s=2100.0))

    lookouts = [o for o in read_kept(tmp_path / "s", 0.0).lines if isinstance(o, Lookout)]
    assert sum(o.missed for o in lookouts) > 0
    assert len(lookouts) < 8


def test_the_standing_jobs_come_back_as_they_were(tmp_path: Path) -> None:
    """And a file that is torn or forged is as good as none."""
    store = SegmentStore(tmp_path)
    jobs = np.zeros(2, dtype=JOB)
    jobs["job_id"], jobs["gpus"], jobs["account"] = [3, 5], 1.0, [0, 1]
    store.stand(UnfinishedJobs(NOW_S, jobs, ("a", "b")))

    again = store.standing()
    assert again.now_s == NOW_S
    assert again.accounts == ("a", "b")
    assert (again.jobs == jobs).all()

    path = tmp_path / STANDING
    whole = path.read_bytes()
    for cut in (0, 1, 50, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert read_standing(path) is None
    jobs["account"] = 7
    store.stand(UnfinishedJobs(NOW_S, jobs, ("a", "b")))
    assert store.standing() is None
    with path.open("wb") as file:
        np.savez(file, jobs=np.array([{}], dtype=object))
    assert read_standing(path) is None


def test_nothing_kept_is_said_with_what_to_do(tmp_path: Path) -> None:
    """A site that never ran shadow mode."""
    with pytest.raises(ShadowError, match="shadow mode"):
        read_kept(tmp_path / "nowhere", 0.0)


# The thread.


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[ShadowObserver]:
    """A watcher, ended in the end."""
    observer = ShadowObserver(tmp_path)
    yield observer
    observer.close()


def test_the_daemon_waits_for_nothing(
    watch: ShadowObserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the disk hangs looks are missed and counted; the loop goes on."""
    hangs = threading.Event()
    append = SegmentStore.append

    def hang(store: SegmentStore, lines: Sequence[bytes]) -> None:
        hangs.wait(30)
        append(store, lines)

    monkeypatch.setattr(SegmentStore, "append", hang)
    for i in range(10):
        watch.on_cycle(look([build.pending(2)], at_s=100.0 * i))
    hangs.set()
    watch.close()

    lookouts = [o for o in read_kept(tmp_path / "shadow", 0).lines if isinstance(o, Lookout)]
    assert 1 <= len(lookouts) <= 3


def test_a_daemon_that_acts_keeps_nothing(watch: ShadowObserver, tmp_path: Path) -> None:
    """No thread, no file."""
    watch.on_cycle(look([build.pending(2)], live=True))
    watch.close()

    assert not (tmp_path / "shadow").exists()


def test_a_bug_ends_the_thread_and_not_the_daemon(
    watch: ShadowObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged; looks after it are dropped."""
    log = io.StringIO()
    logging_setup.configure(level="info", form="json", stream=log)

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Recorder, "take", broken)
    watch.on_cycle(look([build.pending(2)]))
    eventually(lambda: "bug in the recorder" in log.getvalue(), 10.0, what="the log")
    for _ in range(5):
        watch.on_cycle(look([build.pending(2)]))

    assert log.getvalue().count("bug in the recorder") == 1


def test_the_end_keeps_what_has_been_seen(watch: ShadowObserver, tmp_path: Path) -> None:
    """The looks that no line has told yet, and the wishes that are open; a second time is none."""
    rows = [build.running(1), build.pending(2)]
    for i in range(2):
        watch.on_cycle(look(rows, handover(2, 1), at_s=10.0 * i))
        eventually(watch._looks.empty, 60.0, what="the thread")
    watch.close()
    watch.close()

    kept = read_kept(tmp_path / "shadow", 0.0)
    assert [o.looks for o in kept.lines if isinstance(o, Lookout)] == [2]
    assert [w.last_s for w in wishes(kept)] == [NOW_S + 10]


def test_the_end_does_not_wait_for_a_disk_that_hangs(
    watch: ShadowObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that something is lost, and raises nothing."""
    log = io.StringIO()
    logging_setup.configure(level="info", form="json", stream=log)
    hangs = threading.Event()
    monkeypatch.setattr(SegmentStore, "append", lambda *_: hangs.wait(60))
    for i in range(5):
        watch.on_cycle(look([build.pending(2)], at_s=100.0 * i))
    eventually(lambda: watch._looks.full() or watch.on_cycle(look([])), 60.0, what="a full queue")

    watch.close(within_s=0.01)
    hangs.set()

    assert "the last looks of shadow mode are not kept" in log.getvalue()


def test_a_thread_that_hung_ends_and_writes_no_more(
    watch: ShadowObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is back when the daemon has long ended, in a later turn perhaps."""
    hangs, written_times = threading.Event(), list[None]()

    def hang(*_: object) -> None:
        written_times.append(None)
        hangs.wait(60)

    monkeypatch.setattr(SegmentStore, "append", hang)
    for i in range(5):
        watch.on_cycle(look([build.pending(2)], at_s=100.0 * i))
    eventually(lambda: watch._looks.full() or watch.on_cycle(look([])), 60.0, what="a full queue")
    watch.close(within_s=0.01)
    before = len(written_times)
    hangs.set()

    eventually(lambda: not watch._thread.is_alive(), 60.0, what="its end")
    assert len(written_times) == before


def test_a_daemon_that_was_passed_over_overwrites_nothing(tmp_path: Path) -> None:
    """Another one keeps its own in the same directory by now."""
    rows = [build.running(1), build.pending(2)]
    one, other = ShadowObserver(tmp_path), ShadowObserver(tmp_path)
    for observer, at_s in ((one, 0.0), (other, 1000.0)):
        observer.on_cycle(look(rows, handover(2, 1), at_s=at_s))
        eventually(observer._looks.empty, 60.0, what="the thread")
    other.close()
    there = {path: path.read_bytes() for path in (tmp_path / "shadow").iterdir()}

    one.abandon()
    eventually(lambda: not one._thread.is_alive(), 60.0, what="its end")

    assert {path: path.read_bytes() for path in (tmp_path / "shadow").iterdir()} == there


# Lines.

numbers = st.floats(0, 1e10).map(lambda v: round(v, 1))
wholes = st.integers(0, 10**9)
victims = st.builds(
    WishedVictim,
    job_id=wholes,
    restarts=wholes,
    uid=wholes,
    account=st.text(max_size=20),
    gpus=numbers,
    ran_s=numbers,
    grace_s=numbers,
)
any_wish = st.builds(
    WishedHandover,
    key=st.text(max_size=40),
    purpose=st.just("preempt"),
    lead=wholes,
    lead_uid=wholes,
    lead_account=st.text(max_size=20),
    lead_gpus=numbers,
    beneficiaries=st.lists(wholes, max_size=5).map(tuple),
    victims=st.lists(victims, max_size=5).map(tuple),
    gpus=numbers,
    why=st.text(max_size=50),
    begin_s=numbers,
    last_s=numbers,
    others=wholes,
    end=st.sampled_from(["", "started", "gone"]),
    started_s=numbers,
)

LINES = (
    EndedJobRecord(
        job_id=1,
        uid=2,
        account="a",
        gpus=4,
        submit_s=10,
        start_s=20,
        ran_s=5,
        end_s=30,
        how="C",
        opted_in=True,
    ),
    Lookout(
        from_s=1,
        to_s=2,
        looks=3,
        missed=0,
        policy="las",
        mode="external",
        gpus=16,
        held=4,
        waiting=1.5,
        compared=2,
        first_other=1,
        others=0.25,
        wishes=1,
        tripped=0,
        shape=((4, 4, "a100"),),
    ),
    WishedHandover(
        key="preempt 2:0",
        purpose="preempt",
        lead=2,
        lead_uid=1,
        lead_account="b",
        lead_gpus=4,
        beneficiaries=(2,),
        victims=(
            WishedVictim(job_id=1, restarts=0, uid=1, account="a", gpus=1, ran_s=5, grace_s=9),
        ),
        gpus=1,
        why="tier",
        begin_s=1,
        last_s=2,
    ),
)


@given(wish=any_wish)
def test_a_wish_comes_back_as_it_was(wish: WishedHandover) -> None:
    """Through any text."""
    assert parsed(written(wish).rstrip(b"\n")) == wish


@pytest.mark.parametrize("line", LINES, ids=lambda line: type(line).__name__)
def test_a_line_comes_back_as_it_was(line: EndedJobRecord | WishedHandover | Lookout) -> None:
    """Each kind."""
    raw = written(line)

    assert raw.endswith(b"\n")
    assert raw.count(b"\n") == 1
    assert parsed(raw) == line


def test_the_longest_wish_is_a_line_that_is_read() -> None:
    """However many victims it has."""
    victim = WishedVictim(
        job_id=10**9,
        restarts=10**6,
        uid=10**9,
        account="\U0001f600" * 64,
        gpus=1e6,
        ran_s=1e9,
        grace_s=1e6,
    )
    wish = dataclasses.replace(
        LINES[2],
        lead_account="\U0001f600" * 64,
        victims=(victim,) * 10_000,
        beneficiaries=(10**9,) * 10_000,
        why="\U0001f600" * 999,
    )

    raw = written(wish)

    assert len(raw) < LONGEST_LINE
    again = parsed(raw)
    assert isinstance(again, WishedHandover)
    assert len(again.victims) == len(again.beneficiaries) == MOST_VICTIMS


@given(a=any_wish, b=any_wish)
def test_two_lines_about_a_wish_are_joined(a: WishedHandover, b: WishedHandover) -> None:
    """The earliest begin, the latest sight; no end is forgotten but of a job that came back."""
    both = joined(a, b)
    first, last = sorted((a, b), key=lambda w: w.begin_s)
    is_back = first.end in {"gone", UNSEEN} and last.begin_s > first.last_s

    assert both.begin_s == min(a.begin_s, b.begin_s)
    assert both.last_s == max(a.last_s, b.last_s)
    assert bool(both.end) == bool(last.end if is_back else a.end or b.end)
