"""What the daemon answers: rows, filters, reasons, rights."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import build
import numpy as np
import pytest
from fake_cluster import FakeCluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from watched import OPEN, POLICY, SETTINGS, levers_of

from slurm_dl.cli.dlctl.status_text import status_lines
from slurm_dl.daemon.audit_log import AuditLine
from slurm_dl.daemon.breaker_resets import not_here
from slurm_dl.daemon.control import request_handlers as answers_module
from slurm_dl.daemon.control.reception import Peer, RequestError
from slurm_dl.daemon.control.request_handlers import RequestHandlers
from slurm_dl.daemon.control.status_answer import ControlContext
from slurm_dl.daemon.control.wire_format import RefusalKind
from slurm_dl.daemon.published_state import Reloaded, Trouble, find_job
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.json_types import JsonObject
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.breaker import Breaker
from slurm_dl.model.contract import Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import TripBreaker
from slurm_dl.model.snapshot import JobText, LeftOut, Observed
from slurm_dl.recording.snapshot_file import decode

ANN, BOB = 1001, 1002
USER = Peer(ANN, is_admin=False)
ADMIN = Peer(0, is_admin=True)
HOSTILE = "a\x1b[2Jb\nroot  [red]x[/]"


@contextmanager
def refused(kind: RefusalKind, match: str | None = None) -> Iterator[None]:
    """A request that is refused so, on one line."""
    with pytest.raises(RequestError, match=match) as caught:
        yield
    assert caught.value.kind is kind
    assert "\n" not in str(caught.value)


class Labelled(FakeCluster):
    """The fake with words that users chose."""

    def observe(self) -> Observed:
        """Jobs of ann and bob."""
        seen = super().observe()
        names = {ANN: "ann", BOB: "bob"}
        texts = {
            j.job_id: JobText(
                label=str(j.job_id),
                name=HOSTILE,
                user=names[j.uid],
                reason="Resources",
                nodes=",".join(f"n{n + 1}" for n in j.nodes),
            )
            for j in self.jobs.values()
        }
        return dataclasses.replace(seen, texts=texts)


@pytest.fixture
def cluster() -> FakeCluster:
    """Two nodes of 4 GPUs: job 1 (ann) runs on n1, 2 (bob) on n2, 3 and 4 wait."""
    fake = Labelled(nodes=2, gpus=4)
    for uid in (ANN, BOB, ANN, BOB):
        fake.submit(4, work_s=7200, uid=uid, contract=Contract() if uid == BOB else None)
    fake.advance(3601)
    return fake


@pytest.fixture
def context(cluster: FakeCluster, tmp_path: Path) -> ControlContext:
    """A daemon's insides after one cycle."""
    ledger = Ledger(SqliteStore(tmp_path / "ledger.sqlite"))
    cycle = build.cycle(cluster, ledger, POLICY, SETTINGS, acting=False)
    ledger.close()
    return levers_of(
        tmp_path,
        cycle,
        reload=lambda actor: Reloaded(at_s=1.0, ok=False, message=f"bad file, {actor}"),
        reset_breaker=lambda name, _: Breaker(name=name, tripped_s=5.0, why="too many"),
    )


Ask = Callable[..., JsonObject]


@pytest.fixture
def ask(context: ControlContext) -> Ask:
    """A function that asks as an ordinary user."""
    answers = RequestHandlers(context)

    def ask_as(request: str, peer: Peer = USER, **fields: object) -> JsonObject:
        answer = answers(json.loads(json.dumps({"request": request, **fields})), peer)
        json.dumps(answer, allow_nan=False)
        return answer

    return ask_as


def jobs(answer: JsonObject) -> list[int]:
    found = answer["jobs"]
    assert isinstance(found, list)
    return [job["job_id"] for job in found if isinstance(job, dict)]  # type: ignore[misc]


def test_a_row_says_what_slurm_and_the_ledger_know(ask: Ask) -> None:
    """State, tier, rank from 1, and GPU-hours over all runs stand side by side."""
    answer = ask("queue")

    row = next(j for j in answer["jobs"] if j["job_id"] == 1)  # type: ignore[union-attr,index,call-overload]
    assert row["state"] == "R"
    assert row["user"] == "ann"
    assert row["gpus"] == 4.0
    assert row["attained_gpu_h"] == pytest.approx(4.0, rel=0.01)
    assert row["tier"] == 2
    assert row["rank"] == 3
    assert row["time_s"] == 3600.0
    assert row["preemptible"] is False


def test_rows_come_best_rank_first(ask: Ask) -> None:
    """The jobs that have had nothing stand before those that have run."""
    assert jobs(ask("queue")) == [3, 4, 1, 2]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"user": ["ann"]}, [3, 1]),
        ({"user": [str(BOB)]}, [4, 2]),
        ({"user": ["ann", "bob"]}, [3, 4, 1, 2]),
        ({"user": ["nobody"]}, []),
        ({"state": ["R"]}, [1, 2]),
        ({"state": ["pending"]}, [3, 4]),
        ({"state": ["all"]}, [3, 4, 1, 2]),
        ({"partition": ["gpu"]}, [3, 4, 1, 2]),
        ({"partition": ["cpu"]}, []),
        ({"node": ["n2"]}, [2]),
        ({"node": ["n1", "n2", "n3"]}, [1, 2]),
        ({"node": ["n2"], "user": ["ann"]}, []),
    ],
)
def test_filters_are_squeues(ask: Ask, fields: dict[str, object], expected: list[int]) -> None:
    """Filters are all of them met, values of one filter are alternatives."""
    assert jobs(ask("queue", **fields)) == expected


def test_finished_jobs_are_shown_only_when_asked_for(
    ask: Ask, context: ControlContext, cluster: FakeCluster, tmp_path: Path
) -> None:
    """As in squeue, a job that has ended is not in the queue."""
    cluster.cancel(JobId(3))
    ledger = Ledger(SqliteStore(tmp_path / "other.sqlite"))
    cycle = build.cycle(cluster, ledger, POLICY, SETTINGS, acting=False)
    ledger.close()
    context.board.current = dataclasses.replace(context.board.current, cycle=cycle)

    assert 3 not in jobs(ask("queue"))
    assert jobs(ask("queue", state=["F"])) == [3]


def test_why_says_sentences_and_history(ask: Ask, context: ControlContext) -> None:
    """Rank and what was done to the job are told, oldest first."""
    context.audit.write(AuditLine(actor="dlschedd", action="requeue", job=3, reason="a reason"))

    answer = ask("why", job="3")

    text = "\n".join(answer["sentences"])  # type: ignore[arg-type]
    assert "rank 1 of 4" in text
    assert "a reason" in text
    assert answer["job"]["job_id"] == 3  # type: ignore[index,call-overload]


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        ("99", RefusalKind.NOT_FOUND),
        ("1_7", RefusalKind.NOT_FOUND),
        ("", RefusalKind.BAD_REQUEST),
        ("x", RefusalKind.BAD_REQUEST),
        ("1;ls", RefusalKind.BAD_REQUEST),
        ("١", RefusalKind.BAD_REQUEST),  # noqa: RUF001 - an Arabic digit
        ("9" * 30, RefusalKind.BAD_REQUEST),
    ],
)
def test_why_of_no_job_is_refused(ask: Ask, job: str, kind: RefusalKind) -> None:
    """What is no job id, and what is no job, are told apart."""
    with refused(kind):
        ask("why", job=job)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("12_7", 12),
        ("12_20", 12),
        ("12_31", 12),
        ("12_33", 12),
        ("12_3", 13),
        ("12", 12),
        ("12_[7,20-25,31-35:2%4]", 12),
        ("12_8", ["12_3", "12_[7,20-25,31-35:2%4]"]),
        ("12_32", ["12_3", "12_[7,20-25,31-35:2%4]"]),
        ("14", ["14_1", "14_2"]),
        ("17", 17),
        ("18+1", 19),
        ("1", []),
        ("99", []),
    ],
)
def test_array_tasks_are_found_in_their_records(
    context: ControlContext, name: str, expected: int | list[str]
) -> None:
    """A pending task is in the record of all pending tasks; a bare id means those too."""
    cycle = context.board.current.cycle
    labels = {
        12: "12_[7,20-25,31-35:2%4]",
        13: "12_3",
        15: "14_1",
        16: "14_2",
        17: "17",
        18: "18+0",
        19: "18+1",
    }
    seen = dataclasses.replace(
        cycle.snapshot.seen,
        jobs=dataclasses.replace(
            cycle.snapshot.jobs.take(np.zeros(7, dtype=np.int64)), job_id=np.array(list(labels))
        ),
        texts={JobId(j): JobText(label=label) for j, label in labels.items()},
    )

    assert find_job(seen, name) == expected


@pytest.mark.parametrize("name", ["50", "50_[0-98:2]", "50_4"])
@pytest.mark.parametrize(("private", "sees"), [(set(), True), ({"jobs"}, False)])
def test_why_of_a_job_that_the_last_poll_left_out(
    ask: Ask, context: ControlContext, name: str, private: set[str], *, sees: bool
) -> None:
    """Its owner is told; another user is where nothing is hidden."""
    cycle = context.board.current.cycle
    left_out = {JobId(50): LeftOut(uid=ANN, label="50_[0-98:2]")}
    seen = dataclasses.replace(cycle.snapshot.seen, left_out=left_out, unreadable=1)
    cycle = dataclasses.replace(cycle, snapshot=dataclasses.replace(cycle.snapshot, seen=seen))
    slurm = dataclasses.replace(OPEN, private=frozenset(private))
    context.board.current = dataclasses.replace(context.board.current, cycle=cycle, slurm=slurm)
    owner, other = Peer(ANN, is_admin=False), Peer(BOB, is_admin=False)

    answer = ask("why", owner, job=name)
    assert answer["job"] is None
    assert "changed while it was read" in " ".join(answer["sentences"])  # type: ignore[arg-type]
    with refused(RefusalKind.NOT_READY, "left out of the last poll"):
        ask("when", owner, job=name)
    if sees:
        assert ask("why", other, job=name)["sentences"] == answer["sentences"]
        return
    with pytest.raises(RequestError, match="no job"):
        ask("why", other, job=name)


@pytest.mark.parametrize(
    "request_", ["pause", "resume", "reload", "reset_breaker", "snapshot", "record"]
)
def test_commands_are_for_admins(ask: Ask, context: ControlContext, request_: str) -> None:
    """An ordinary user is told who may, nothing changes and nothing is written down."""
    fields = {"breaker": "cluster_share"} if request_ == "reset_breaker" else {}
    with refused(RefusalKind.DENIED, r"control.admins; you are .* \(1001\)"):
        ask(request_, **fields)
    assert context.pause.pause is None
    assert not context.audit.path.exists()


def test_pausing_and_resuming_are_written_down(ask: Ask, context: ControlContext) -> None:
    """Who paused, when and why is in the status; both are in the audit log."""
    ask("pause", ADMIN, reason="cooling\x1b[2J work")

    paused = ask("status")["paused"]
    assert paused["by"] == "user root (0)"
    assert paused["reason"] == "cooling[2J work"
    assert str(ask("status")["doing"]).startswith("paused")
    ask("resume", ADMIN)
    assert ask("status")["paused"] is None
    written = [json.loads(line) for line in context.audit.path.read_text("utf-8").splitlines()]
    assert [(w["actor"], w["action"]) for w in written] == [
        ("user root (0)", "pause"),
        ("user root (0)", "resume"),
    ]


def test_a_refused_reload_is_an_error(ask: Ask) -> None:
    """Whoever asked for it hears why, and acts under their own name."""
    with refused(RefusalKind.FAILED, r"bad file, user root \(0\)"):
        ask("reload", ADMIN)


def test_a_breaker_is_reset_by_its_name(ask: Ask) -> None:
    """The answer says what it was; there is no other name than those."""
    assert ask("reset_breaker", ADMIN, breaker="cluster_share") == {
        "breaker": "cluster_share",
        "was_tripped": True,
        "why": "too many",
    }
    with refused(RefusalKind.BAD_REQUEST, "breaker"):
        ask("reset_breaker", ADMIN, breaker="everything")


def test_a_breaker_that_cannot_be_reset_is_an_error(context: ControlContext) -> None:
    """Where no loop runs, as on a standby."""
    answers = RequestHandlers(dataclasses.replace(context, reset_breaker=not_here))
    with refused(RefusalKind.FAILED, "does not act"):
        answers({"request": "reset_breaker", "breaker": "cluster_share"}, ADMIN)


@pytest.mark.parametrize(
    ("checked_s", "up_s", "shown"),
    [(0.0, 1100, False), (0.0, 1300, True), (5000.0, 6100, False), (5000.0, 6300, True)],
)
def test_status_says_that_no_check_ends(
    ask: Ask, context: ControlContext, checked_s: float, up_s: float, *, shown: bool
) -> None:
    """Two intervals after the last ones, or after the start."""
    context.board.checked_s = lambda: checked_s
    answer = ask("status") | {"started_s": 0.0, "now_s": up_s}
    assert answer["checked_s"] == (checked_s or None)
    assert ("CHECKS" in dict(status_lines(answer))) == shown


def test_status_says_which_breakers_have_tripped(ask: Ask, context: ControlContext) -> None:
    """Written down, or about to be: in shadow mode nothing is."""
    (cycle, board) = (context.board.current.cycle, context.board)
    stands = Breaker(name="failed_restarts", tripped_s=5.0, why="4 of 6", jobs=(JobId(7),))
    trip = TripBreaker(breaker="cluster_share", at_s=9.0, why="9 of 16")
    board.current = dataclasses.replace(
        board.current,
        cycle=dataclasses.replace(
            cycle,
            snapshot=dataclasses.replace(cycle.snapshot, breakers=(stands,)),
            plan=dataclasses.replace(cycle.plan, actions=(trip,)),
        ),
    )

    answer = ask("status")
    breakers = answer["breakers"]
    assert isinstance(breakers, list)
    assert [(b["breaker"], b["bound"], b["tripped_s"], b["jobs"]) for b in breakers] == [  # type: ignore[index,call-overload]
        ("gpus_per_hour", None, None, []),
        ("cluster_share", 1.0, 9.0, []),
        ("failed_restarts", 0.5, 5.0, [7]),
    ]
    lines = [text for title, text in status_lines(answer) if title == "preemption"][1:]
    assert lines == [
        (
            "STOPPED by the breaker cluster_share since 1970-01-01 00:00:09Z: 9 of 16; "
            "'dlctl breakers reset cluster_share' once the cause is mended"
        ),
        (
            "STOPPED by the breaker failed_restarts since 1970-01-01 00:00:05Z: 4 of 6 (job 7); "
            "'dlctl breakers reset failed_restarts' once the cause is mended"
        ),
    ]


def test_a_daemon_that_has_seen_nothing_says_why(ask: Ask, context: ControlContext) -> None:
    """Before the first look there is no queue, and no empty one is shown; status works."""
    trouble = Trouble(at_s=1.0, message="squeue: no answer")
    context.board.current = dataclasses.replace(
        context.board.current, cycle=None, policy=None, seen_s=0.0, failures=2, trouble=trouble
    )

    with refused(RefusalKind.NOT_READY, "squeue: no answer"):
        ask("queue")
    assert ask("status")["doing"] == "waiting: 2 polls in a row failed"


def test_status_counts(ask: Ask) -> None:
    """Jobs by state, jobs by tier and GPUs are numbers a monitor can use."""
    answer = ask("status")

    assert answer["jobs"] == {"PD": 2, "CF": 0, "R": 2, "S": 0, "CG": 0, "CD": 0, "F": 0}
    assert answer["tiers"] == [
        {"tier": 0, "pending": 2, "running": 0},
        {"tier": 1, "pending": 0, "running": 0},
        {"tier": 2, "pending": 0, "running": 2},
    ]
    assert answer["gpus"] == {"all": 8.0, "up": 8.0, "held": 8.0, "stranded": 0.0}
    assert answer["policy"] == "discrete_las"


def test_status_counts_steers(ask: Ask, context: ControlContext) -> None:
    """Those under way and those that are over; nobody is steered by default."""
    before = ask("status")
    assert before["placement"] == "left to Slurm"
    assert before["steers"] == {"spot": 0, "wait": 0, "over": 0}
    assert before["steers_ended"] == {"honoured": 0, "not_honoured": 0}

    context.board.current = dataclasses.replace(
        context.board.current, steers_ended={"honoured": 3, "not honoured": 2, "gone": 9}
    )

    assert ask("status")["steers_ended"] == {"honoured": 3, "not_honoured": 2}


def test_status_shows_that_the_audit_log_is_stuck(ask: Ask, context: ControlContext) -> None:
    """A daemon that does not act because it cannot write must not look healthy."""
    context.audit.path.symlink_to("/dev/full")
    context.audit.write(AuditLine(actor="a", action="b"))

    answer = ask("status")

    assert "audit log" in str(answer["doing"])
    assert "symbolic link" in str(answer["audit"])
    context.audit.path.unlink()
    context.audit.close()


def test_config_names_origins(ask: Ask) -> None:
    """Each value in force comes with the place it was given at."""
    values = ask("config")["values"]

    assert isinstance(values, list)
    origins = {v["key"]: v["origin"] for v in values if isinstance(v, dict)}
    assert str(origins["manage.partitions"]).endswith("dl.yaml:1")
    assert origins["daemon.poll_s"] == "default"


def test_a_saved_snapshot_gives_the_same_plan(ask: Ask, context: ControlContext) -> None:
    """A bug report is complete: what is decided from the file is what the daemon decided."""
    cycle = context.board.current.cycle

    saved = json.loads(json.dumps(ask("snapshot", ADMIN)["snapshot"], allow_nan=False))
    plan = decide(decode(saved), POLICY, SETTINGS)

    assert plan.actions == cycle.plan.actions
    assert len(plan.actions) > 0
    assert plan.rank.tolist() == cycle.plan.rank.tolist()
    assert plan.wake_at_s == cycle.plan.wake_at_s


@pytest.mark.parametrize("content", [{}, {"format": 3}, {"format": 1, "snapshot": {"seen": 1}}])
def test_what_is_no_snapshot_is_refused(content: JsonObject) -> None:
    """Another file gives one error, not a traceback from deep inside."""
    with pytest.raises(ValueError, match="snapshot"):
        decode(content)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"request": "nonsense"},
        {"request": 7},
        {"request": "queue", "user": "ann"},
        {"request": "queue", "user": [7]},
        {"request": "queue", "extra": 1},
        {"request": "queue", "state": ["ZZ"]},
        {"request": "queue", "node": ["n"] * 20_001},
        {"request": "why"},
        {"request": "why", "job": 7},
        {"request": "pause", "reason": "x" * 501},
    ],
)
def test_a_request_that_is_not_understood_is_refused(
    context: ControlContext, fields: JsonObject
) -> None:
    """Nothing is guessed: unknown keys, wrong types and too much are bad requests."""
    with refused(RefusalKind.BAD_REQUEST):
        RequestHandlers(context)(fields, ADMIN)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@given(
    request=st.fixed_dictionaries(
        {},
        optional={
            "request": st.sampled_from(["queue", "why", "status", "config"]) | JSON,
            "user": JSON,
            "job": JSON | st.from_regex(r"\d{1,12}(_\d{0,12})?", fullmatch=True),
            "state": JSON,
            "node": JSON,
        },
    )
)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_json_object_is_answered_or_refused(
    context: ControlContext, request: JsonObject
) -> None:
    """No request of an ordinary user meets a bug."""
    try:
        answer = RequestHandlers(context)(request, USER)
    except RequestError:
        return
    json.dumps(answer, allow_nan=False)


def test_the_cycle_is_not_changed_by_asking(ask: Ask, context: ControlContext) -> None:
    """Readers share the loop's own columns; they only read."""
    cycle: Cycle | None = context.board.current.cycle
    before = cycle.plan.rank.tolist(), cycle.snapshot.jobs.job_id.tolist()

    ask("queue", state=["all"])
    ask("why", job="1")
    ask("queue", user=["ann"], sort=["-gpus"])
    ask("quote", shapes=["1"], due_s=int(cycle.snapshot.now_s) + 9000)

    assert (cycle.plan.rank.tolist(), cycle.snapshot.jobs.job_id.tolist()) == before


def test_who_waits_for_a_forecast_asks_for_no_second_one(
    context: ControlContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are let in meanwhile, and the same user again afterwards."""
    answers = RequestHandlers(context)
    ann, bob = USER, Peer(ANN + 1, is_admin=False)
    request: JsonObject = {"request": "when", "shapes": ["1"]}
    quote: JsonObject = {"request": "quote", "shapes": ["1"], "due_s": 2_000_000_000}
    asked: list[int] = []

    def foreseen(*_: object, uid: int, **_more: object) -> JsonObject:
        asked.append(uid)
        if len(asked) == 1:
            for same in (request, quote):
                with pytest.raises(RequestError, match="one at a time"):
                    answers(same, ann)
            answers(request, bob)
        return {}

    monkeypatch.setattr(answers_module.when, "of_shapes", foreseen)
    answers(request, ann)
    answers(request, ann)

    assert asked == [ANN, ANN + 1, ANN]
