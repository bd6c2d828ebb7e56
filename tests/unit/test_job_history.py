"""What became of a job: the ledger on disk, in sentences, and who may be told."""

from __future__ import annotations

import dataclasses
import math
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import build
import pytest
from fake_cluster import FakeCluster
from streams import SETTINGS as QUICK
from watched import HOSTILE, POLICY, SETTINGS, levers_of

from slurm_dl.daemon.audit_log import AuditLine, AuditLog
from slurm_dl.daemon.control.job_history import (
    LISTED_S,
    MOST_LISTED,
    JobHistory,
    past_object,
    with_ended,
)
from slurm_dl.daemon.control.privacy import Own
from slurm_dl.daemon.control.reception import Peer, RequestError
from slurm_dl.daemon.control.request_handlers import RequestHandlers
from slurm_dl.daemon.control.status_answer import ControlContext
from slurm_dl.daemon.published_state import row
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.explain.past_reasons import Everything, how_it_gave_way, moment, why_gone
from slurm_dl.engine.explain.plan_reasons import why
from slurm_dl.json_types import JsonObject
from slurm_dl.ledger.attained_service import EndedRun
from slurm_dl.ledger.completions import GaveWay, JobEnding, PastJob
from slurm_dl.ledger.sqlite.reader import LedgerReader, PastError
from slurm_dl.ledger.sqlite.rows import ANY, Only, RememberedEnding
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.store_protocol import StoreChange
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.breaker import Restart
from slurm_dl.model.contract import Contract
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import JobText

OWN, OTHER = 1001, 1002
USER, ADMIN = Peer(OWN, is_admin=False), Peer(0, is_admin=True)


@pytest.fixture
def gave_way(tmp_path: Path) -> tuple[Path, JobId, JobId]:
    """A ledger after a real preemption on a fake cluster: its path, who gave way, to whom.

    Job 1 runs until it has sunk, job 2 comes, job 1 saves its work in 2 s and is put back; both run
    to their ends.
    """
    path = tmp_path / "ledger.sqlite"
    cluster = FakeCluster(nodes=1, gpus=4)
    ledger = Ledger(SqliteStore(path))
    big = cluster.submit(4, work_s=200, contract=Contract(grace_s=12.0), uid=OWN)
    small = JobId(0)
    for number in range(150):
        if number == 40:
            small = cluster.submit(4, work_s=30, uid=OTHER)
        build.cycle(cluster, ledger, POLICY, QUICK)
        cluster.advance(3)
    ledger.close()
    return path, big, small


def test_the_ledger_tells_how_a_job_gave_way(gave_way: tuple[Path, JobId, JobId]) -> None:
    """To whom, when, what was sent, how long it took; and its runs, with what it received."""
    path, big, small = gave_way

    past = LedgerReader(path).past(big)

    assert past.preemptions == 1
    (once,) = past.gave_way
    assert (once.purpose, once.beneficiaries, once.gpus) == ("preempt", (small,), 4.0)
    assert once.signal == Contract().signal
    assert 2.0 <= once.notice_s <= 12.0
    assert len(past.runs) == 2
    assert past.runs[0].end_s <= past.runs[1].start_s
    total = math.fsum(run.gpu_s for run in past.runs)
    assert past.attained_gpu_s == pytest.approx(total)
    assert total == pytest.approx(4 * math.fsum(r.end_s - r.start_s for r in past.runs))
    assert past.runs[0].start_s < once.at_s <= past.runs[1].start_s
    assert (once.held, once.then) == (4.0, None)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE handover SET body = json_set(body, '$.victims[0].then', '1x2')")
    assert LedgerReader(path).past(big).gave_way[0].then == Shape(1, 2)


def test_the_ledger_of_a_job_that_never_gave_way(gave_way: tuple[Path, JobId, JobId]) -> None:
    """It ran once; a number that nobody had is none."""
    path, _, small = gave_way

    past = LedgerReader(path).past(small)

    assert (past.preemptions, past.gave_way, len(past.runs)) == (0, (), 1)
    assert LedgerReader(path).past(JobId(4711)) is None


def test_a_job_that_the_ledger_has_dropped_keeps_its_runs(
    gave_way: tuple[Path, JobId, JobId],
) -> None:
    """After a week its row is gone; what it received is the sum of its runs."""
    path, big, _ = gave_way
    before = LedgerReader(path).past(big)
    store = SqliteStore(path)
    store.save(StoreChange(forgotten=[big]))
    store.close()

    past = LedgerReader(path).past(big)

    assert past.attained_gpu_s == pytest.approx(before.attained_gpu_s)
    assert (past.preemptions, past.runs) == (1, before.runs)
    assert past.last_seen_s == 0.0


def test_a_number_that_came_round_is_the_last_job_that_had_it(
    gave_way: tuple[Path, JobId, JobId],
) -> None:
    """Runs, preemptions and owners of a job of before are not its own."""
    path, big, _ = gave_way
    db = sqlite3.connect(path)
    with db:
        db.execute("UPDATE job SET first_submit_s = 1e12 WHERE job_id = ?", (big,))
    db.close()
    store = SqliteStore(path)
    restart = Restart(job_id=big, restarts=0, gpus=4, requeued_s=5.0, uid=OTHER)
    store.save(StoreChange(restarts=[restart]))
    store.close()

    past = LedgerReader(path).past(big)

    assert (past.runs, past.gave_way, past.uids) == ((), (), frozenset())


@pytest.mark.parametrize("content", [None, b"", b"no database at all, but a text" * 50])
def test_a_ledger_that_cannot_be_read_is_said(tmp_path: Path, content: bytes | None) -> None:
    """It is not made, and nothing is guessed."""
    path = tmp_path / "ledger.sqlite"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(PastError, match=r"ledger\.sqlite"):
        LedgerReader(path).past(JobId(1))

    assert path.exists() == (content is not None)
    pasts = JobHistory(LedgerReader(path))
    assert pasts.of(JobId(1)) is None
    cycle = _cycle(build.pending(1))
    assert pasts.listed(cycle) is cycle
    audit = AuditLog(tmp_path / "audit.jsonl")
    assert pasts.gone("1", Everything(), audit, build.NOW_S) is None
    audit.close()


def test_reading_does_not_write(gave_way: tuple[Path, JobId, JobId]) -> None:
    """Not a byte, and not while the daemon writes."""
    path, big, _ = gave_way
    before = path.read_bytes()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")

    assert LedgerReader(path).past(big) is not None

    writer.execute("ROLLBACK")
    writer.close()
    assert path.read_bytes() == before


# Sentences.

PAST = PastJob(
    job_id=JobId(7),
    attained_gpu_s=7200.0,
    ran_s=1800.0,
    first_submit_s=1_000_000.0,
    last_seen_s=1_010_000.0,
    preemptions=1,
    runs=(
        EndedRun(job_id=7, start_s=1_000_100.0, end_s=1_001_000.0, gpu_s=3600.0),
        EndedRun(job_id=7, start_s=1_002_000.0, end_s=1_002_900.0, gpu_s=3600.0),
    ),
    gave_way=(
        GaveWay(
            at_s=1_001_000.0,
            notice_s=6.0,
            gpus=4.0,
            handover_id=HandoverId(3),
            purpose="preempt",
            beneficiaries=(JobId(9), JobId(12)),
            signal="SIGUSR1",
        ),
    ),
)


ENDING = JobEnding(
    job_id=JobId(7),
    label="7_1",
    name="train",
    user="ann",
    reason="TimeLimit",
    ending="TIMEOUT",
    uid=OWN,
    partition="gpu",
    state=JobState.FAILED,
    gpus=4.0,
    start_s=1_002_000.0,
    end_s=1_002_900.0,
    seen_s=1_002_910.0,
)


def test_a_finished_job_has_a_story() -> None:
    """When it ran, what it received, how often and to whom it gave way."""
    assert why_gone(dataclasses.replace(PAST, ending=ENDING), Everything()) == [
        "Slurm no longer lists job 7_1 (train).",
        "It ended at 1970-01-12 14:35:00Z: timeout (TimeLimit).",
        "It ran 2 times, from 1970-01-12 13:48:20Z to 1970-01-12 14:35:00Z, 30 min in all.",
        "It received 2.00 GPU-hours.",
        "It was preempted 1 time.",
        (
            "At 1970-01-12 14:03:20Z it gave 4 GPUs to jobs 9, 12 (hand-over 3). It was sent "
            "SIGUSR1 and was gone 6 s later."
        ),
    ]


@pytest.mark.parametrize(
    ("state", "end_s", "at_s", "notice_s", "said"),
    [
        (JobState.COMPLETED, 1_002_900.0, 1_002_905.0, 6.0, True),
        (JobState.FAILED, 1_002_900.0, 1_002_905.0, 6.0, False),
        # It gave way in a former run, was put back, and finished.
        (JobState.COMPLETED, 1_002_900.0, 1_001_000.0, 6.0, False),
        # It ended before it was sent anything.
        (JobState.COMPLETED, 1_002_900.0, 1_002_905.0, 0.0, False),
        (JobState.COMPLETED, 0.0, 1_002_905.0, 6.0, False),
    ],
)
def test_a_job_that_ended_well_when_it_was_asked_to_save_is_told_so(
    state: JobState, end_s: float, at_s: float, notice_s: float, *, said: bool
) -> None:
    """Slurm never runs it again, whether its training was complete or not."""
    (gave_way,) = PAST.gave_way
    past = dataclasses.replace(
        PAST,
        gave_way=(dataclasses.replace(gave_way, at_s=at_s, notice_s=notice_s),),
        ending=dataclasses.replace(ENDING, state=state, ending="", end_s=end_s),
    )

    assert ("does not run it again" in " ".join(why_gone(past, Everything()))) is said


def test_what_is_not_known_is_not_said() -> None:
    """No ending, no runs, no time, an amount that is a lower bound."""
    bare = PastJob(job_id=JobId(7), attained_gpu_s=0.0, ran_s=0.0)
    unseen = dataclasses.replace(bare, attained_gpu_s=3600.0, ran_s=60.0, incomplete=True)

    assert why_gone(bare, Everything()) == [
        "Slurm no longer lists job 7.",
        "It never ran.",
        "It received 0.00 GPU-hours.",
        "It was never preempted.",
    ]
    silent = dataclasses.replace(ENDING, name="", reason="None", ending="", end_s=0.0)
    assert why_gone(dataclasses.replace(bare, ending=silent), Everything())[:2] == [
        "Slurm no longer lists job 7_1.",
        "It ended at 1970-01-12 14:35:10Z: failed.",
    ]
    seen = dataclasses.replace(bare, last_seen_s=1_010_000.0)
    assert "; it was last seen at 1970-01-12 16:33:20Z." in why_gone(seen, Everything())[0]
    assert "It received at least 1.00 GPU-hours." in why_gone(unseen, Everything())
    assert "never ran" not in " ".join(why_gone(unseen, Everything()))
    for none in (0.0, -1.0, math.nan, math.inf, 1e18):
        assert moment(none) == "a time that is not known"


@pytest.mark.parametrize(
    ("purpose", "best", "expected"),
    [
        ("preempt", (9,), "it gave 4 GPUs to job 9 (hand-over 3)"),
        ("preempt", (), "it gave 4 GPUs back (hand-over 3)"),
        (None, (), "it gave 4 GPUs back (hand-over 3)"),
        ("defragment", (), "it moved elsewhere with its 4 GPUs (hand-over 3)"),
        ("defragment", (9,), "it moved elsewhere with its 4 GPUs, for job 9 (hand-over 3)"),
        ("split", (), "it left the 4 GPUs that it shared (hand-over 3)"),
    ],
)
def test_each_purpose_has_its_words(purpose: str, best: tuple[int, ...], expected: str) -> None:
    """Taken for others, moved, or parted from a neighbour."""
    once = dataclasses.replace(
        PAST.gave_way[0],
        purpose=purpose,  # type: ignore[arg-type]
        beneficiaries=tuple(map(JobId, best)),
        notice_s=0.0,
    )

    (said,) = how_it_gave_way(dataclasses.replace(PAST, gave_way=(once,)), Everything())

    assert said == f"At 1970-01-12 14:03:20Z {expected}."


def test_many_times_are_counted() -> None:
    """The last ones are told one by one."""
    often = dataclasses.replace(PAST, gave_way=PAST.gave_way * 8)

    said = how_it_gave_way(often, Everything())

    assert len(said) == 6
    assert said[0] == "Before that it gave way 3 times more."


def test_a_preempted_job_that_waits_learns_all_of_it() -> None:
    """Who got the GPUs, what was sent, and from when on Slurm starts it again."""
    texts = {JobId(7): JobText(label="7", reason="BeginTime")}
    begins = {JobId(7): build.NOW_S + 98}
    snap = build.snapshot(
        build.observed([build.pending(7, 4), build.running(9, 4)], texts=texts, begins=begins)
    )
    cycle = Cycle(snapshot=snap, plan=decide(snap, POLICY, SETTINGS), acting=False)

    said = why(cycle, POLICY, JobId(7), past=PAST)
    running = why(cycle, POLICY, JobId(9))

    assert any("it gave 4 GPUs to jobs 9, 12" in s for s in said)
    assert "Slurm does not start it before 1970-01-24 03:34:58Z, in 1 min 38 s." in said
    assert not any("does not start it before" in s for s in running)


# Answers.


def _cycle(*rows: JobRow) -> Cycle:
    snap = build.snapshot(build.observed(rows))
    return Cycle(snapshot=snap, plan=decide(snap, POLICY, SETTINGS), acting=False)


Ask = Callable[..., JsonObject]


@dataclasses.dataclass(frozen=True)
class Known:
    """A ledger that knows job 7, and how it ended if anybody saw that.

    Attributes:
        asked: Which jobs that ended were asked for, each time.
    """

    ending: JobEnding | None = None
    asked: list[Only] = dataclasses.field(default_factory=list)

    def past(self, job_id: JobId, /) -> PastJob | None:
        """See `Reader`."""
        uids = frozenset({self.ending.uid} if self.ending else ())
        past = dataclasses.replace(PAST, ending=self.ending, uids=uids)
        return past if job_id == past.job_id else None

    def named(self, label: str, now_s: float, /) -> JobId | None:
        """See `Reader`."""
        assert now_s == build.NOW_S
        return PAST.job_id if self.ending and self.ending.label == label else None

    def ended_since(
        self, since_s: float, now_s: float, most: int, only: Only, /
    ) -> list[RememberedEnding]:
        """See `Reader`."""
        assert (since_s, now_s, most) == (build.NOW_S - LISTED_S, build.NOW_S, MOST_LISTED)
        self.asked.append(only)
        one = self.ending
        return [RememberedEnding(ending=one, attained_gpu_s=7200.0, preemptions=1)] if one else []


def _answers(context: ControlContext, *, hides: bool, ending: JobEnding | None = None) -> Ask:
    """A function that asks why of a job, of a daemon whose ledger knows job 7."""
    answers = _answering(context, hides=hides, ending=ending)
    return lambda job, peer=USER: answers({"request": "why", "job": job}, peer)


def _answering(
    context: ControlContext, *, hides: bool, ending: JobEnding | None
) -> RequestHandlers:
    if hides:
        now = context.board.current
        context.board.current = dataclasses.replace(now, slurm=None)
    return RequestHandlers(dataclasses.replace(context, past=JobHistory(Known(ending))))


def _ended(label: str, uid: int = OWN, **more: object) -> JobEnding:
    """How job 7 ended, under another name."""
    return dataclasses.replace(ENDING, label=label, uid=uid, **more)  # type: ignore[arg-type]


@pytest.fixture
def context(tmp_path: Path) -> Iterator[ControlContext]:
    """A daemon that lists job 1 alone."""
    made = levers_of(tmp_path, _cycle(build.pending(1)))
    made.audit.write(AuditLine(actor="dlschedd", action="requeue", job=7, reason="a reason"))
    yield made
    made.audit.close()


def test_a_job_that_is_gone_is_answered_from_the_ledger(context: ControlContext) -> None:
    """Its story, its audit lines, and no row."""
    answer = _answers(context, hides=False)("7")

    assert answer["job"] is None
    assert answer["past"] == past_object(PAST, Everything())
    text = "\n".join(answer["sentences"])  # type: ignore[arg-type]
    assert "no longer lists job 7;" in text
    assert "requeue: a reason" in text
    assert len(answer["history"]) == 1  # type: ignore[arg-type]


def test_a_task_of_an_array_is_found_by_its_name(context: ControlContext) -> None:
    """By what Slurm called it, and by the id of its record."""
    ask = _answers(context, hides=False, ending=_ended("5_3"))

    sentences = ask("5_3")["sentences"]

    assert "job 5_3 (train)." in sentences[0]  # type: ignore[index,operator]
    assert "timeout" in sentences[1]  # type: ignore[index,operator]
    assert ask("7")["sentences"] == sentences
    for no_such in ("5_4", "9" * 30):
        with pytest.raises(RequestError, match=r"no job (5_4|9+)|no job id"):
            ask(no_such)


def test_others_jobs_that_are_gone_are_not_there(context: ControlContext) -> None:
    """Where Slurm hides jobs: not without knowing whose it was, and in the words for no job."""
    for ending in (None, _ended("7", OTHER)):
        ask = _answers(context, hides=True, ending=ending)
        with pytest.raises(RequestError) as caught:
            ask("7")
        with pytest.raises(RequestError) as no_such:
            ask("8")
        assert str(caught.value) == str(no_such.value).replace("8", "7")
        assert ask("7", ADMIN)["past"] is not None


def test_their_own_job_is_told_without_others(context: ControlContext) -> None:
    """Who got the GPUs is another user, and not a number, in sentences and in fields."""
    ask = _answers(context, hides=True, ending=_ended("7"))

    answer = ask("7")

    text = "\n".join(answer["sentences"])  # type: ignore[arg-type]
    assert "it gave 4 GPUs to 2 other users' jobs (hand-over 3)" in text
    partly = Own(OWN, frozenset({9}))
    assert "to job 9 and another user's job (hand" in " ".join(how_it_gave_way(PAST, partly))
    assert answer["past"]["gave_way"][0]["beneficiaries"] == []  # type: ignore[index,call-overload]
    assert answer["past"]["job_id"] == 7  # type: ignore[index,call-overload]


def test_what_users_wrote_acts_on_no_terminal(context: ControlContext) -> None:
    """A name as it may stand in a ledger, in the sentences."""
    ask = _answers(context, hides=False, ending=_ended("7", name=HOSTILE))

    said = "\n".join(ask("7")["sentences"])  # type: ignore[arg-type]

    assert "owned" in said
    assert not any(c in said for c in "\x1b\x07\r\u202e")


def _listed(answers: RequestHandlers, peer: Peer, **filters: object) -> list[JsonObject]:
    asked = {"request": "queue", **filters}
    return answers(asked, peer)["jobs"]  # type: ignore[return-value,arg-type]


def test_jobs_that_are_gone_are_listed_with_all_states(context: ControlContext) -> None:
    """Behind the queue, with what is known of them; not among jobs that live, nor by others."""
    answers = _answering(context, hides=False, ending=ENDING)

    (live,) = _listed(answers, USER)
    first, gone = _listed(answers, USER, state=["all"])

    assert (live["job"], first["job"], gone["job"]) == ("1", "1", "7_1")
    assert (gone["state"], gone["ending"], gone["reason"]) == ("F", "timeout", "TimeLimit")
    assert (gone["name"], gone["user"], gone["partition"]) == ("train", "ann", "gpu")
    assert (gone["attained_gpu_h"], gone["preemptions"], gone["time_s"]) == (2.0, 1, 900.0)
    assert (gone["rank"], gone["tier"], gone["preemptible"]) == (None, None, False)
    assert live["ending"] == ""
    for filters in ({"state": ["CD"]}, {"name": ["x"]}, {"search": "nothing"}, {"user": ["bob"]}):
        assert "7_1" not in [
            j["job"] for j in _listed(answers, USER, **{"state": ["F"], **filters})
        ]
    for filters in ({"user": ["ann"]}, {"job": ["7"]}, {"sort": ["-attained"], "limit": 1}):
        found = _listed(answers, USER, **{"state": ["all"], **filters})
        assert [j["job"] for j in found] == ["7_1"]


def test_what_ended_is_read_once_for_each_look() -> None:
    """A watcher asks every two seconds; what ends meanwhile is in the next look."""
    known = Known(ENDING)
    pasts = JobHistory(known)
    first, second = _cycle(build.pending(1)), _cycle(build.pending(1))

    longer = pasts.listed(first)

    assert pasts.listed(first) is longer
    assert len(longer.snapshot.jobs) == 2
    assert pasts.listed(second) is not longer
    assert pasts.listed(first) is not longer


def test_others_jobs_that_are_gone_are_not_listed_where_slurm_hides_them(
    context: ControlContext,
) -> None:
    """Whose it was stands in the ledger."""
    answers = _answering(context, hides=True, ending=ENDING)
    stranger = Peer(OTHER, is_admin=False)

    assert [j["job"] for j in _listed(answers, USER, state=["F"])] == ["7_1"]
    assert _listed(answers, stranger, state=["F"]) == []


def test_a_users_own_list_is_asked_for_as_such(context: ControlContext) -> None:
    """Else those of others are counted, and there is an end to how many are listed."""
    known = Known(ENDING)
    for hides, peer, filters in (
        (False, USER, {}),
        (False, USER, {"user": ["ann", "7"]}),
        (True, USER, {"user": ["bob"]}),
        (True, ADMIN, {}),
    ):
        if hides:
            context.board.current = dataclasses.replace(context.board.current, slurm=None)
        answers = RequestHandlers(dataclasses.replace(context, past=JobHistory(known)))
        _listed(answers, peer, state=["all"], **filters)

    assert known.asked == [ANY, Only(users=("ann", "7")), Only(users=(str(OWN),)), ANY]


def test_what_a_list_is_filtered_by_is_asked_of_the_ledger(context: ControlContext) -> None:
    """All of it: there is an end to how many are listed, and it comes before the filters."""
    known = Known(ENDING)
    answers = RequestHandlers(dataclasses.replace(context, past=JobHistory(known)))
    chosen = {"account": ["a"], "qos": ["q"], "partition": ["p"], "name": ["n"], "job": ["7"]}
    assert _listed(answers, ADMIN, state=["all"], **chosen) == []
    _listed(answers, ADMIN, state=["F", "PD"])

    only = Only(accounts=("a",), qos=("q",), partitions=("p",), names=("n",), jobs=("7",))
    assert known.asked == [only, Only(states=("FAILED",))]


def test_a_job_that_slurm_lists_is_listed_once() -> None:
    """Slurm's own words count; a partition of before is none."""
    cycle = _cycle(build.pending(1))
    one = RememberedEnding(ending=_ended("1", job_id=JobId(1)), attained_gpu_s=0.0, preemptions=0)
    other = dataclasses.replace(one, ending=_ended("7", partition="old", preemptible=True))

    longer = with_ended(cycle, [one, other])
    rows = [row(longer, i) for i in range(len(longer.snapshot.jobs))]

    assert [r["job_id"] for r in rows] == [1, 7]
    assert (rows[1]["partition"], rows[1]["preemptible"]) == (None, True)
    assert with_ended(cycle, [one]) is cycle
    assert len(cycle.snapshot.jobs) == 1
