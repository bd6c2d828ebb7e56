"""A quote is what the next look says; it books nothing, and tells nothing of others."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from typing import Any

import build
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pasts import Over, past_of

from slurm_dl.cli.dlsubmit.verdict import verdict_line
from slurm_dl.config.tree import Config
from slurm_dl.daemon import quote_answers
from slurm_dl.daemon.control.privacy import Own
from slurm_dl.daemon.control.reception import Peer, RequestError
from slurm_dl.daemon.control.requests import QuoteRequest, parse
from slurm_dl.daemon.enrich import Enricher
from slurm_dl.daemon.forecast_service import Forecasts
from slurm_dl.daemon.published_state import PublishedState
from slurm_dl.daemon.quote_answers import quoted
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.explain.past_reasons import Everything, Sight
from slurm_dl.engine.settings import Deadlines, Settings
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.json_types import JsonObject
from slurm_dl.model.booking import updated
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.limits import Quotas
from slurm_dl.model.plan import Book
from slurm_dl.model.promise import promises_in
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.policies.edf import Edf
from slurm_dl.policies.fifo import Fifo
from slurm_dl.simulation.forward.initial_state import HypotheticalJob

NOW_S = int(build.NOW_S)
ANN, BOB = 1000, 1001
RULES = Deadlines(share=0.75, account_share=0.5, longest_ahead_s=50_000.0, qos=("normal", "high"))
ENRICH = Enricher(profiles={}, site=SitePriors(), deadlines=RULES, policy=Edf())


Row = tuple[int, int, int | None, bool, int]
"""GPUs, user, seconds to the deadline, whether it runs, time limit."""


def looked_at(rows: list[Row], *, more: HypotheticalJob | None = None) -> Snapshot:
    """Jobs 1, 2, ... on four nodes of 4 GPUs, as the daemon hands them to the policy.

    Args:
        more: One more job that was submitted now.
    """
    jobs, claims, texts, held, free = [], {}, {}, {}, [4.0] * 4
    for i, (gpus, uid, ahead_s, runs, limit_s) in enumerate(rows, 1):
        node = next((n for n in range(4) if free[n] >= gpus), None)
        more_of = {"uid": uid, "limit_s": float(limit_s)}
        if runs and node is not None:
            free[node] -= gpus
            held[i] = {node: float(gpus)}
            jobs.append(build.running(i, gpus, ran_s=100, **more_of))
        else:
            jobs.append(build.pending(i, gpus, **more_of))
        due_s = None if ahead_s is None else NOW_S + ahead_s
        claims[JobId(i)] = Claim(contract=Contract(), due_s=due_s)
        texts[JobId(i)] = JobText(
            label=str(i),
            name=f"name-of-{uid}",
            user=f"user-{uid}",
            account=f"of-{uid}",
            qos="normal",
        )
    if more is not None:
        i = len(rows) + 1
        new = {"uid": more.uid, "limit_s": more.limit_s, "n_nodes": more.n_nodes}
        jobs.append(build.pending(i, more.gpus, submit_s=NOW_S, gpu_type=more.gpu_type, **new))
        claims[JobId(i)] = Claim(contract=more.contract, due_s=int(more.due_s))
        texts[JobId(i)] = JobText(
            label=str(i), name=more.name, user=more.user, account=more.account, qos=more.qos
        )
    node_in = np.array([[True] * 4, [False] * 4])
    seen = build.observed(jobs, held=held, claims=claims, texts=texts, node_in=node_in)
    snap = build.snapshot(seen)
    if rows:  # What was said at earlier looks stands.
        first = ENRICH(snap)
        half = [JobId(j) for j in range(1, 1 + len(rows) // 2)]
        kept = [e for e in Edf().order(first).book if JobId(int(e.key)) in half]
        snap = replace(snap, booked=updated((), kept))
    return ENRICH(snap)


SETTINGS = Settings(partitions=frozenset({"gpu"}), deadlines=RULES)


def job_of(gpus: int = 2, ahead_s: float = 9000, **more: Any) -> HypotheticalJob:  # noqa: ANN401
    """A job of Ann's."""
    values: dict[str, Any] = {"uid": ANN, "user": f"user-{ANN}", "account": "mine", "qos": "normal"}
    values |= {"n_nodes": 1, "partition": 0, "limit_s": 3600.0, **more}
    return HypotheticalJob(gpus=gpus, due_s=NOW_S + ahead_s, **values)


ROWS = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.sampled_from((ANN, BOB, 1002)),
        st.sampled_from((None, -5, 3000, 9000, 20_000, 90_000)),
        st.booleans(),
        st.sampled_from((600, 3600, 7200)),
    ),
    max_size=9,
)


def _by(gpus: int, ahead_s: int, uid: int, more: dict[str, Any]) -> HypotheticalJob:
    return job_of(gpus, ahead_s, uid=uid, user=f"user-{uid}", account=f"of-{uid}", **more)


WANTED = st.builds(
    _by,
    st.integers(1, 4),
    st.sampled_from((-1, 3000, 9000, 20_000, 90_000)),
    st.sampled_from((ANN, BOB)),
    st.fixed_dictionaries(
        {
            "qos": st.sampled_from(("normal", "low", "")),
            "contract": st.sampled_from((Contract(), None)),
        }
    ),
)


@pytest.mark.parametrize("policy", [Edf(), Edf(others="fifo_skip")], ids=lambda p: p.others)
@given(rows=ROWS, job=WANTED)
@settings(max_examples=50, deadline=None)
def test_a_quote_is_the_verdict_of_the_next_look(
    policy: Policy, rows: list[Row], job: HypotheticalJob
) -> None:
    """On an unchanged queue: the same window, reason and nearest date, or one that is refused."""
    before = looked_at(rows)

    told = quoted(before, policy, SETTINGS, job)

    plan = decide(looked_at(rows, more=job), policy, SETTINGS)
    new = [e for a in plan.actions if isinstance(a, Book) for e in a.entries]
    said = promises_in(new).get(JobId(len(rows) + 1))
    assert told is not None
    if said is None:
        assert told.says == "no"
        assert "does not count" in told.why
    else:
        assert told == said


def test_a_quote_knows_the_limits_of_its_account() -> None:
    """The account's limit is in use for longer than the deadline is away."""
    job = job_of(account=f"of-{ANN}")

    def limited(snap: Snapshot) -> Snapshot:
        counts = {JobId(j): ((0, 2.0),) for j in snap.jobs.job_id.tolist()}
        used, most = np.array([2.0]), np.array([2.0])
        quotas = Quotas(names=("limit",), most=most, used=used, counts=counts)
        return replace(snap, seen=replace(snap.seen, quotas=quotas))

    rows: list[Row] = [(2, ANN, None, True, 50_000)]
    told = quoted(limited(looked_at(rows)), Edf(), SETTINGS, job)

    plan = decide(limited(looked_at(rows, more=job)), Edf(), SETTINGS)
    said = promises_in([e for a in plan.actions if isinstance(a, Book) for e in a.entries])
    assert told == said[JobId(2)]


def test_a_quote_goes_by_jobs_like_it_as_a_look_does() -> None:
    """Jobs of one name and size took ten minutes: the job may be done within an hour."""
    past = past_of([Over(f"user-{ANN}", "daily", 2, 600.0)] * 3)
    snap, soon = looked_at([]), job_of(ahead_s=3000, name="daily")
    rules = replace(SETTINGS, deadlines=replace(RULES, estimate="history"))

    said = [quoted(one, Edf(), rules, soon) for one in (snap, replace(snap, past=past))]

    assert [promise and promise.says for promise in said] == ["no", "yes"]


@pytest.mark.parametrize(
    ("job", "says", "word"),
    [
        (job_of(), "yes", ""),
        (job_of(ahead_s=1000), "no", "its run time"),
        (job_of(qos="low"), "no", "jobs of QOS low may have none"),
        (job_of(ahead_s=60_000), "no", "ahead"),
        (job_of(ahead_s=-60), "no", "it has passed"),
        (job_of(gpus=4, account="big"), "yes", ""),
        (job_of(gpus=12, n_nodes=3), "no", "its share"),
    ],
)
def test_the_sites_bounds_hold_for_a_quote(job: HypotheticalJob, says: str, word: str) -> None:
    told = quoted(looked_at([]), Edf(), SETTINGS, job)

    assert told is not None
    assert told.says == says
    assert word in told.why


# What the daemon answers


def published(snap: Snapshot, policy: Policy, *, acting: bool = True) -> PublishedState:
    """A daemon that has seen *snap*."""
    return PublishedState(
        config=Config.model_validate({"manage": {"partitions": ["gpu"]}}),
        config_rows=(),
        started_s=NOW_S,
        live=True,
        cycle=Cycle(snap, decide(snap, policy, SETTINGS), acting=acting, settings=SETTINGS),
        policy=policy,
    )


def ask(now: PublishedState, **more: Any) -> Any:  # noqa: ANN401
    """The verdict for Ann on 2 GPUs within 9000 s."""
    fields: dict[str, Any] = {"shapes": ["2"], "due_s": NOW_S + 9000, "limit_s": 3600, **more}
    request = parse({"request": "quote", "qos": "normal", **fields})
    assert isinstance(request, QuoteRequest)
    forecasts = Forecasts(forward)
    return quote_answers.of_shapes(forecasts, now, request, Peer(ANN, is_admin=False))


def forward(content: bytes, _: float) -> JsonObject:
    """Half of 40 runs are in time."""
    wanted = json.loads(content)["question"]["wanted"]
    return {"runs": 40, "sources": {}, "jobs": [], "wanted": [{"in_time": 0.5} for _ in wanted]}


ODDS = {"share": 0.5, "runs": 40}


@pytest.mark.parametrize(
    ("policy", "asks", "says", "odds"),
    [
        (Edf(), {}, ["yes"], [None]),
        (Edf(), {"odds": True}, ["yes"], [None]),
        (Edf(), {"due_s": NOW_S + 60, "odds": True}, ["no"], [ODDS]),
        (Edf(), {"due_s": NOW_S + 60}, ["no"], [None]),
        (Fifo(), {"odds": True}, [None], [ODDS]),
        (Edf(), {"shapes": ["99", "16", "1x4"], "odds": True}, ["no", "no", "yes"],
         [None, ODDS, None]),
    ],
)  # fmt: skip
def test_what_is_told_of_a_deadline(
    policy: Policy, asks: JsonObject, says: list[str], odds: list[JsonObject]
) -> None:
    """Odds are of what is not promised, and only if somebody asks."""
    answer = ask(published(looked_at([]), policy), **asks)

    assert [one["says"] for one in answer["shapes"]] == says
    assert [one["odds"] for one in answer["shapes"]] == odds
    said = verdict_line({**answer, "doing": "acting"})
    assert said.startswith("promised: done by" if says[0] == "yes" else "not promised: best effort")
    for one in answer["shapes"]:
        if one["says"] == "yes":
            assert one["end_s"] == NOW_S + 9000
            assert 3600 <= one["end_s"] - one["begin_s"] < 2 * 3600
            assert one["spare_s"] == one["begin_s"] - NOW_S


def test_shapes_with_limits_of_their_own_are_answered_as_if_each_were_asked_alone() -> None:
    """A shape that no nodes hold keeps its limit from the others."""
    now = published(looked_at([(4, BOB, 9000, False, 3600)]), Edf())
    shapes, limits = ["99", "1", "2", "4", "2x4"], [60, 9500, 7000, 3600, None]

    together = ask(now, shapes=shapes, limit_s=None, limits_s=limits)

    alone = [
        ask(now, shapes=[one], limit_s=s)["shapes"][0]
        for one, s in zip(shapes, limits, strict=True)
    ]
    assert together["shapes"] == alone
    assert [one["says"] for one in alone] == ["no", "no", "yes", "yes", "no"]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"shapes": ["2"]}, "due_s"),
        ({"due_s": NOW_S}, "shapes"),
        ({"job": "1", "shapes": ["2"], "due_s": NOW_S}, "give a job"),
        ({"shapes": ["2;"], "due_s": NOW_S}, "shapes"),
        ({"shapes": ["2"], "due_s": -1}, "due_s"),
        ({"shapes": ["2"], "due_s": NOW_S, "uid": 0}, "uid"),
        ({"shapes": ["2"], "due_s": NOW_S, "limits_s": [60, 60]}, "limits_s for each"),
        ({"shapes": ["2"], "due_s": NOW_S, "limits_s": [60], "limit_s": 60}, "limits_s for each"),
        ({"shapes": ["2"], "due_s": NOW_S, "limits_s": [0]}, "limits_s"),
        ({"job": "1", "limits_s": [60]}, "limits_s for each"),
    ],
)
def test_what_is_no_question_is_refused(fields: JsonObject, word: str) -> None:
    with pytest.raises(RequestError, match=word):
        parse({"request": "quote", **fields})


def test_a_quote_books_nothing() -> None:
    """All that the daemon has seen and decided stays as it is, and the same is told again."""
    now = published(looked_at([(4, BOB, 9000, False, 600)]), Edf())
    assert now.cycle is not None
    before = (now.cycle.snapshot.booked, now.cycle.plan.actions, len(now.cycle.snapshot.jobs))

    first, second = ask(now), ask(now)

    assert first == second
    assert before == (
        now.cycle.snapshot.booked,
        now.cycle.plan.actions,
        len(now.cycle.snapshot.jobs),
    )


@given(rows=ROWS, due_s=st.sampled_from((600, 9000, 20_000)))
@settings(max_examples=25, deadline=None)
def test_worlds_that_differ_in_owners_alone_get_the_same_answer(
    rows: list[Row], due_s: int
) -> None:
    """Nothing of others is told: neither who they are nor what is theirs."""
    # Of one owner each: shares by account are not what differs.
    worlds = [
        [
            (gpus, uid + i, ahead, runs, limit)
            for i, (gpus, _, ahead, runs, limit) in enumerate(rows)
        ]
        for uid in (5000, 7000)
    ]
    first, second = (
        ask(published(looked_at(world), Edf()), due_s=NOW_S + due_s, odds=True) for world in worlds
    )

    assert first == second
    assert not re.search("500[0-9]|name-of|user-", json.dumps(first))


@pytest.mark.parametrize(
    ("job", "sight", "acting", "says"),
    [
        ("1", Everything(), True, "yes"),
        ("1", Everything(), False, None),
        ("2", Everything(), True, "no"),
        ("3", Everything(), True, None),
        ("4", Everything(), True, "no"),
        ("1", Own(ANN, frozenset({1, 2, 3, 4})), True, "yes"),
        ("1", Own(BOB, frozenset()), True, "unknown"),
        ("9", Everything(), True, "unknown"),
    ],
)
def test_the_verdict_on_a_job(job: str, sight: Sight, acting: bool, says: str | None) -> None:  # noqa: FBT001
    """Also of this look; a no where the deadline does not count, and none where there is none."""
    rows: list[Row] = [
        (4, ANN, 9000, False, 3600),
        (4, ANN, 600, False, 3600),
        (1, ANN, None, False, 3600),
        (1, ANN, 90_000, False, 3600),
    ]
    snap = replace(looked_at(rows), booked=())
    now = published(snap, Edf(), acting=acting)
    if says == "unknown":
        with pytest.raises(RequestError):
            quote_answers.of_job(now, job, sight)
        return

    assert quote_answers.of_job(now, job, sight)["says"] == says


@pytest.mark.parametrize("policy", [Edf(), Edf(others="fifo_skip")], ids=lambda p: p.others)
def test_a_verdict_is_there_at_once(policy: Policy) -> None:
    """A thousand jobs wait, a tenth of them with deadlines."""
    rows: list[Row] = [
        (1 + i % 4, 2000 + i % 50, 9000 + i if i % 10 == 0 else None, i < 4, 3600)
        for i in range(1000)
    ]
    snap = looked_at(rows)
    began_s = time.perf_counter()
    assert quoted(snap, policy, SETTINGS, job_of()) is not None
    assert time.perf_counter() - began_s < 1.0
