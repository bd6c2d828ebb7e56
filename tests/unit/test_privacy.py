"""With PrivateData=jobs nobody learns from us what Slurm would not have told them."""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args, get_type_hints

import build
import pytest
from fake_cluster import FakeCluster
from fake_slurm import FakeJob
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from watched import levers_of

from slurm_dl.daemon import forecast_service
from slurm_dl.daemon.audit_log import AuditLine, AuditLog, line_of
from slurm_dl.daemon.control import privacy
from slurm_dl.daemon.control.reception import Peer, RequestError
from slurm_dl.daemon.control.request_handlers import RequestHandlers
from slurm_dl.daemon.control.requests import FOR_ADMINS, Request
from slurm_dl.daemon.control.status_answer import ControlContext, status
from slurm_dl.daemon.control.wire_format import RefusalKind
from slurm_dl.daemon.forecast_service import Forecasts
from slurm_dl.daemon.published_state import Reloaded, Trouble
from slurm_dl.engine.cycle import AppliedAction
from slurm_dl.engine.preemption.handover_protocol import name_jobs
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.json_types import JsonObject
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.snapshot import JobText, Observed
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.slurm.controller import SiteConfig, read_config
from slurm_dl.slurm.read.queue_reader import ReaderChoice
from slurm_dl.slurm.releases import parse_release

ANN, BOB, EVE, SLURM, ROOT = 1001, 1002, 1003, 64030, 0
FIRST = 7_000_000
"""Job ids that are no other number by chance."""

NEUTRAL = "see dlschedd's log"
NAMES = {ANN: "ann", BOB: "bob", EVE: "eve"}
POLICY = DiscreteLas(thresholds_gpu_s=(60.0, 400.0))
SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    preemption=Preemption(
        beneficiaries="all", commitment="ignored", min_quantum_s=5, cooldown_s=5, limit_reserve_s=0
    ),
)
HIDING = SiteConfig(
    release=parse_release("22.05.8"),
    tracks_memory=False,
    private=frozenset({"jobs"}),
    slurm_uid=SLURM,
)
REQUESTS: dict[str, dict[str, Any]] = {
    "status": {},
    "queue": {"state": ["all"]},
    "why": {},
    "when": {},
    "promises": {},
    "quote": {},
    "config": {},
}
"""What an ordinary user may ask; each with the fields that ask for most."""


OF_JOBS = ("why", "when", "quote")
"""Requests about one job; each is asked about everybody's."""


def foretold(content: bytes, _: float) -> JsonObject:
    """A forward run that takes no time."""
    one: JsonObject = dict.fromkeys(("low_s", "median_s", "high_s"), 1.0)
    jobs = json.loads(content)["question"]["jobs"]
    return {"runs": 1, "sources": {}, "jobs": [{"start": one, "end": one} for _ in jobs]}


@pytest.fixture(autouse=True, scope="module")
def _no_processes() -> Iterator[None]:
    """Nobody is waited for who runs forward."""
    forecasts = Forecasts(foretold)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast_service, "forecasts_of_daemon", lambda: forecasts)
        yield


class _Numbered(dict[JobId, FakeJob]):
    def __len__(self) -> int:
        return FIRST + super().__len__()


class Described(FakeCluster):
    """The fake with words that tell whose they are."""

    def __init__(self, *, nodes: int = 2, gpus: int = 4) -> None:
        super().__init__(nodes=nodes, gpus=gpus)
        self.jobs = _Numbered()

    def observe(self) -> Observed:
        """Jobs with names, users and accounts."""
        seen = super().observe()
        texts = {
            j.job_id: JobText(
                label=str(j.job_id),
                name=f"name-of-{NAMES[j.uid]}",
                user=f"user-{NAMES[j.uid]}",
                account=f"account-of-{NAMES[j.uid]}",
                qos="normal",
                reason="Resources",
                nodes=",".join(f"n{n + 1}" for n in j.nodes),
            )
            for j in self.jobs.values()
        }
        return dataclasses.replace(seen, texts=texts)


@contextmanager
def site(
    cluster: FakeCluster, *steps_s: int, slurm: SiteConfig = HIDING
) -> Iterator[ControlContext]:
    """A daemon's insides after acting cycles, *steps_s* apart."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        ledger = Ledger(SqliteStore(directory / "ledger.sqlite"))
        audit = AuditLog(directory / "audit.jsonl")

        def written(done: AppliedAction) -> None:
            audit.write(line_of(done, cluster.now_s))

        for step_s in (0, *steps_s):
            cluster.advance(step_s)
            cycle = build.cycle(cluster, ledger, POLICY, SETTINGS, on_done=written)
        ledger.close()
        state = {
            "policy": POLICY,
            "slurm": slurm,
            "trouble": Trouble(at_s=1.0, message=f"job {FIRST + 1} of user-bob is gone"),
            "reloaded": Reloaded(at_s=1.0, ok=False, message="account-of-bob: unknown"),
        }
        reloaded = Reloaded(at_s=1.0, ok=True, message="")
        yield levers_of(directory, cycle, state, audit=audit, reload=lambda _: reloaded)
        audit.close()


def said_to(uid: int, context: ControlContext, cluster: FakeCluster) -> str:
    """Everything that a user can get out of the daemon, as one text."""
    answers, peer, said = RequestHandlers(context), Peer(uid, is_admin=uid == ROOT), []
    for request, fields in REQUESTS.items():
        several = [{"job": str(j)} for j in cluster.jobs] if request in OF_JOBS else [fields]
        for one in several:
            try:
                answer = answers({"request": request, **one}, peer)
            except RequestError as err:
                # It repeats what was asked for, which is no news.
                answer = {"refused": str(err).replace(str(one.get("job")), "")}
            said.append(json.dumps(answer))
    return "\n".join(said)


def foreign(uid: int, cluster: FakeCluster) -> set[str]:
    """What must not be said to a user: ids and words of all others' jobs."""
    others = [j for j in cluster.jobs.values() if j.uid != uid]
    words = {f"{kind}{NAMES[j.uid]}" for j in others for kind in ("name-of-", "user-")}
    return words | {f"account-of-{NAMES[j.uid]}" for j in others} | {str(j.job_id) for j in others}


def told_of(uid: int, context: ControlContext, cluster: FakeCluster) -> set[str]:
    text = said_to(uid, context, cluster)
    return {word for word in foreign(uid, cluster) if re.search(rf"\b{word}\b", text)}


def handed_over() -> tuple[Described, tuple[int, ...]]:
    """Bob's job is to give way to one of ann's: a hand-over is under way."""
    cluster = Described()
    for uid in (BOB, EVE):
        cluster.submit(4, work_s=9e5, uid=uid, contract=Contract(grace_s=300), save_s=250)
    cluster.advance(600)
    cluster.submit(8, n_nodes=2, work_s=9e5, uid=ANN, contract=Contract(grace_s=30))
    cluster.submit(8, n_nodes=2, work_s=9e5, uid=EVE)
    return cluster, (1, 1, 1)


@contextmanager
def under_way(slurm: SiteConfig = HIDING) -> Iterator[tuple[Described, ControlContext]]:
    """The hand-over of `handed_over`, and the daemon in the middle of it."""
    cluster, steps = handed_over()
    with site(cluster, *steps, slurm=slurm) as context:
        yield cluster, context


def ask(context: ControlContext, uid: int, request: str = "status", **fields: object) -> Any:  # noqa: ANN401
    """The answer to a user."""
    return RequestHandlers(context)({"request": request, **fields}, Peer(uid, is_admin=uid == ROOT))


def test_every_request_is_asked_here() -> None:
    """A new request is either for admins alone or asked by these tests."""
    kinds, commands = (
        {get_args(get_type_hints(kind)["request"])[0] for kind in some}
        for some in (get_args(Request), FOR_ADMINS)
    )

    assert kinds - commands == REQUESTS.keys()


def test_nothing_of_others_is_said_while_a_hand_over_is_under_way() -> None:
    """Beneficiary, victim and bystander hear of their own jobs alone; root hears of all."""
    with under_way() as (cluster, context):
        assert context.board.current.cycle.snapshot.handovers
        for uid in (ANN, BOB, EVE):
            assert told_of(uid, context, cluster) == set()
        assert len(told_of(ROOT, context, cluster)) == 4 + 3 * 3


USERS = st.sampled_from((ANN, BOB, EVE))
JOBS = st.lists(
    st.tuples(USERS, st.integers(1, 8), st.booleans(), st.integers(0, 900)), min_size=1, max_size=8
)


@given(jobs=JOBS, steps=st.lists(st.integers(1, 300), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_of_others_is_said_whatever_happens(
    jobs: list[tuple[int, int, bool, int]], steps: list[int]
) -> None:
    """Whoever submitted whatever, no answer names a job, user, name or account of others."""
    cluster = Described()
    for uid, gpus, opted, later_s in jobs:
        cluster.submit(
            gpus,
            n_nodes=1 + (gpus > 4),
            work_s=5e3,
            uid=uid,
            contract=Contract(grace_s=60) if opted else None,
        )
        cluster.advance(later_s)
    with site(cluster, *steps) as context:
        for uid in (ANN, BOB, EVE):
            assert told_of(uid, context, cluster) == set()


def test_own_jobs_are_shown_whole() -> None:
    """A user loses nothing of what concerns their own jobs."""
    with under_way() as (_cluster, context):
        mine, every = (ask(context, uid, "queue") for uid in (ANN, ROOT))
        story = ask(context, ANN, "why", job=str(FIRST + 3))

    wanted = [row for row in every["jobs"] if row["uid"] == ANN]
    assert wanted
    assert mine["jobs"] == wanted
    words = " ".join(story["sentences"])
    assert "It has rank 1, in tier" in words
    assert "is freeing GPUs for it: 2 other users' jobs give way." in words
    assert "keeps the freed GPUs for job 7000003" in words or "Z: hand-over: " in words
    assert {line["details"] == {} for line in story["history"]} == {True}


@pytest.mark.parametrize("uid", [ANN, EVE])
def test_a_foreign_job_is_as_unknown_as_one_that_is_not_there(uid: int) -> None:
    """The words of the refusal do not tell whether there is such a job."""
    with under_way() as (_cluster, context):
        jobs, peer = (str(FIRST + 1), str(FIRST + 99)), Peer(uid, is_admin=False)
        told = [refusal(context, peer, request="why", job=job) for job in jobs]

    assert {kind for kind, _ in told} == {RefusalKind.NOT_FOUND}
    assert told[0][1].replace(jobs[0], "JOB") == told[1][1].replace(jobs[1], "JOB")


@pytest.mark.parametrize(
    ("peer", "private", "sees_all"),
    [
        (Peer(ANN, is_admin=False), {"jobs"}, False),
        (Peer(ANN, is_admin=False), {"jobs", "usage"}, False),
        (Peer(ANN, is_admin=False), set(), True),
        (Peer(ANN, is_admin=False), {"usage", "users", "accounts", "nodes"}, True),
        (Peer(SLURM, is_admin=False), {"jobs"}, True),
        (Peer(ROOT, is_admin=True), {"jobs"}, True),
        (Peer(ANN, is_admin=True), {"jobs"}, True),
    ],
)
def test_who_sees_all(peer: Peer, private: set[str], sees_all: bool) -> None:  # noqa: FBT001
    """root, the daemon's account and control.admins (both are_admin), SlurmUser; else nobody."""
    slurm = dataclasses.replace(HIDING, private=frozenset(private))
    with under_way(slurm=slurm) as (_cluster, context):
        answer: Any = RequestHandlers(context)({"request": "queue"}, peer)

    assert (len(answer["jobs"]) == 4) is sees_all


@pytest.mark.parametrize("word", ["users", "accounts"])
def test_the_configuration_names_users_and_accounts(word: str) -> None:
    """Who may not know them may not read it; admins may."""
    slurm = dataclasses.replace(HIDING, private=frozenset({word}))
    with under_way(slurm=slurm) as (_cluster, context):
        kind, why = refusal(context, Peer(ANN, is_admin=False), request="config")
        assert (kind, "PrivateData" in why) == (RefusalKind.DENIED, True)
        assert ask(context, ROOT, "config")["values"]


def test_every_field_of_the_status_was_thought_of() -> None:
    """Whoever adds a field says in `privacy` whether it may name somebody; until then it is hidden.

    Those that are hidden on purpose stand here.
    """
    with under_way() as (_cluster, context):
        fields = status(context).keys()

    hidden, filtered = {"misfit", "problems"}, {"breakers", "handovers", "reader"}
    thought_of = privacy.STATUS_SHOWN | privacy.STATUS_WORDS | hidden | filtered
    assert fields - thought_of == set()


def test_a_hand_over_is_shown_to_those_it_concerns() -> None:
    """With their own jobs in it and nobody else's, and without nodes; bystanders see none."""
    with under_way() as (_cluster, context):
        to_ann, to_bob, to_none = (ask(context, uid) for uid in (ANN, BOB, 4711))

    (for_ann,), (for_bob,) = to_ann["handovers"], to_bob["handovers"]
    assert (for_ann["beneficiaries"], for_ann["victims"]) == ([FIRST + 3], [])
    assert (for_bob["beneficiaries"], [v["job"] for v in for_bob["victims"]]) == ([], [FIRST + 1])
    assert for_ann["nodes"] == for_bob["nodes"] == []
    assert to_none["handovers"] == []
    assert to_none["jobs"] == to_ann["jobs"]
    assert to_ann["trouble"] == {"at_s": 1.0, "message": NEUTRAL}


def refusal(context: ControlContext, peer: Peer, **request: Any) -> tuple[RefusalKind, str]:  # noqa: ANN401
    """How a request is refused."""
    with pytest.raises(RequestError) as refused:
        RequestHandlers(context)(dict(request), peer)
    return refused.value.kind, str(refused.value)


def test_all_is_hidden_while_private_data_is_not_known() -> None:
    """Before the first look, and on a stand-by, which reads nothing of Slurm."""
    ann, root = Peer(ANN, is_admin=False), Peer(ROOT, is_admin=True)
    with under_way() as (cluster, context):
        board = context.board
        board.current = dataclasses.replace(board.current, slurm=None)
        assert {told_of(uid, context, cluster) == set() for uid in (ANN, BOB, SLURM)} == {True}
        assert len(told_of(ROOT, context, cluster)) == 4 + 3 * 3
        assert refusal(context, ann, request="config") == (
            RefusalKind.DENIED,
            (
                "Slurm's PrivateData was not read yet, and may hide users and accounts, "
                "which the configuration names"
            ),
        )

        board.current = dataclasses.replace(board.current, cycle=None)
        to_ann, to_root = ask(context, ANN), ask(context, ROOT)
        assert to_ann["trouble"]["message"] == to_ann["reloaded"]["message"] == NEUTRAL
        assert to_root["trouble"]["message"] == f"job {FIRST + 1} of user-bob is gone"
        for request in ({"request": "queue"}, {"request": "why", "job": str(FIRST + 1)}):
            not_yet = "dlschedd has not seen the cluster yet: "
            assert refusal(context, ann, **request) == (RefusalKind.NOT_READY, not_yet + NEUTRAL)
            assert refusal(context, root, **request) == (
                RefusalKind.NOT_READY,
                f"{not_yet}job {FIRST + 1} of user-bob is gone",
            )
        board.current = dataclasses.replace(board.current, trouble=None)
        assert refusal(context, ann, request="queue")[1].endswith("yet; it has just started")


def test_who_paused_and_why_is_for_those_who_see_all() -> None:
    """In each answer that says so; of the same types as for admins."""
    reason = f"job {FIRST + 1} of user-bob breaks account-of-bob"
    with under_way() as (cluster, context):
        context.pause.on(by="user bob (1002)", reason=reason, now_s=7.0)
        for request in ("status", "queue", "why"):
            fields = {"job": str(FIRST + 3)} if request == "why" else {}
            to_ann, to_root = (ask(context, uid, request, **fields) for uid in (ANN, ROOT))
            assert to_ann["paused"] == {"by": "an admin", "since_s": 7.0, "reason": ""}
            assert to_root["paused"] == {"by": "user bob (1002)", "since_s": 7.0, "reason": reason}
            assert to_ann["doing"] == "paused: plans and touches nothing"
        assert told_of(ANN, context, cluster) == set()


def test_what_it_does_and_how_it_reads_names_nobody() -> None:
    """A refusal of a permit, and what the readers do not agree upon."""
    words = f"job {FIRST + 1} has another comment"
    with under_way() as (cluster, context):
        reader = ReaderChoice(reader="cli", reason=words)
        context.board.current = dataclasses.replace(
            context.board.current, idle=words, reader=reader
        )
        assert told_of(ANN, context, cluster) == set()
        to_ann, queue = ask(context, ANN), ask(context, ANN, "queue")

    assert to_ann["reader"] == {"name": "cli", "reason": "another user's job has another comment"}
    assert to_ann["doing"] == queue["doing"] == f"only looking: {to_ann['reader']['reason']}"


OWN = privacy.Own(ANN, frozenset({5, 6}))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("it is to make room for job 5", "it is to make room for job 5"),
        ("it is to make room for job 7", "it is to make room for another user's job"),
        ("room for jobs 5, 7, ranking above job 8", None),
        (f"keeps the freed GPUs for {name_jobs([JobId(j) for j in (7, 8, 9, 10, 11)])}", None),
        ("it is to move, so that jobs 7, 8 will fit", None),
        ("victim 7 changed its contract", None),
        ("beside job 7 (resnet50)", "beside another user's job"),
        ("jobs 7 and 8 on one GPU reach 0.85 of the speed of one alone", None),
        ("resnet50 on one GPU are slower than taking turns: job 7 leaves", None),
        ("job 7_3 was not in the queue when it was last read", None),
        ("scontrol update failed (exit 1): JobId=7 is not pending", None),
        ("room for jobs 7, 8, 9 and 12 more, above job 10", None),
        ("jobs 7, 8 and 11 more", "other users' jobs"),
        ("jobs 5, 6 and 11 more", "jobs 5, 6 and other users' jobs"),
        ("scontrol: error: JobId=7,8,9 failed", "scontrol: error: other users' jobs failed"),
        ("scontrol requeue 7 failed: x", "scontrol requeue another user's job failed: x"),
        ("Invalid job id 7", "Invalid another user's job"),
        ("slurm_update error for job_id 7", None),
        ("job_id=7 and JobID: 8, jobid 9, job ids 10, 11", None),
        ("ArrayJobId=7 ArrayTaskId=1", None),
        ("HetJobId=7 StepId=8.batch StepId=9.0", None),
        ("job 7_[8,9,10... is too long a list of nodes", None),
        ("job 7-11", "another user's job"),
        ("JobId=5,6 failed; job id 5, job_id=6", "JobId=5,6 failed; job id 5, job_id=6"),
        (f"job {'7' * 5000} is gone", "another user's job is gone"),
        ("hand-over 7 is over: nobody is left in it", "hand-over 7 is over: nobody is left in it"),
        ("it needs 8 GPUs for 7 minutes", "it needs 8 GPUs for 7 minutes"),
    ],
)
def test_free_text_names_no_foreign_job(words: str, told: str | None) -> None:
    """Every way in which the engine and the backend name jobs in words."""
    said = OWN.text(words)

    if told is not None:
        assert said == told
    else:
        assert not re.search(r"\b(7|8|9|10|11|12|2|3 more|7_3)\b", said)
        assert "resnet50" not in said


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ([5, 6], "5, 6"),
        ([5, 7], "5 and another user's job"),
        ([7], "another user's job"),
        ([7, 8], "2 other users' jobs"),
    ],
)
def test_ids_in_a_row(ids: list[int], told: str) -> None:
    """Own ones by number, others counted."""
    assert OWN.jobs(ids) == told


def test_an_admin_in_the_history_is_not_named() -> None:
    """Who paused or reloaded is a user as well."""
    line = AuditLine(actor="user bob (1002)", action="trim", job=5).as_json()

    (shown,) = privacy.history_for([line], OWN)

    assert shown["actor"] == "an admin"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("PrivateData             = none", set()),
        ("PrivateData             = jobs", {"jobs"}),
        ("PrivateData             = jobs,Usage,users", {"jobs", "usage", "users"}),
        ("PrivateData             = (null)", set()),
        ("", set()),
    ],
)
def test_private_data_is_read_from_slurms_configuration(line: str, words: set[str]) -> None:
    """As 'scontrol show config' prints it; SlurmUser's uid too."""
    text = f"SLURM_VERSION = 22.05.8\nSlurmUser               = slurm(64030)\n{line}\n"

    config = read_config(text)

    assert config.private == words
    assert config.slurm_uid == SLURM
