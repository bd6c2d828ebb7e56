"""A part of the queue in somebody's order: against plain Python, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from build import observed, pending, running, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from watched import POLICY, SETTINGS, levers_of, queue_of

from slurm_dl.daemon.control import queue_query as module
from slurm_dl.daemon.control.queue_query import Page, page
from slurm_dl.daemon.control.reception import Peer, RequestError
from slurm_dl.daemon.control.request_handlers import RequestHandlers
from slurm_dl.daemon.control.wire_format import SORTS, QueueRequest
from slurm_dl.daemon.published_state import LIVE, row
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.json_types import JsonObject
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.model.snapshot import JobText

STATES = ("R", "CF", "CG", "S", "PD", "CD", "F")

ORACLE: dict[str, Callable[[JsonObject], object]] = {
    "rank": lambda job: job["rank"],
    "tier": lambda job: job["tier"],
    "running": lambda job: STATES.index(str(job["state"])),
    "attained": lambda job: job["attained_gpu_h"],
    "job": lambda job: job["job_id"],
    "user": lambda job: job["user"],
    "account": lambda job: job["account"],
    "partition": lambda job: job["partition"],
    "name": lambda job: job["name"],
    "gpus": lambda job: job["gpus"],
    "time": lambda job: job["time_s"],
    "restarts": lambda job: job["restarts"],
}
"""What each word sorts by, from the rows that people see."""

WORD = st.builds(
    lambda turned, word: turned + word, st.sampled_from(["", "-"]), st.sampled_from(SORTS)
)


def sorted_plainly(jobs: list[JsonObject], by: list[str]) -> list[JsonObject]:
    """By the last word first: Python's sort keeps the order of equals. None goes last."""
    for word in reversed([*by, "rank", "job"]):
        key, turned = ORACLE[word.removeprefix("-")], word.startswith("-")
        some = [job for job in jobs if key(job) is not None]
        none = [job for job in jobs if key(job) is None]
        ordered = _turned(some, key) if turned else sorted(some, key=key)  # type: ignore[type-var,arg-type]
        jobs = ordered + none
    return jobs


def _turned(jobs: list[JsonObject], key: Callable[[JsonObject], object]) -> list[JsonObject]:
    """Descending, with equals in the order in which they were."""
    backwards = list(reversed(jobs))
    return sorted(backwards, key=key)[::-1]  # type: ignore[type-var,arg-type]


def mixed() -> Cycle:
    """Every state, jobs in no managed partition, of several partitions, alike in all but id."""
    jobs: list[JobRow] = [
        running(1, 4, ran_s=100, uid=1, restarts=2),
        running(2, 4, ran_s=900, uid=2),
        pending(3, 2, uid=1),
        pending(4, 2, uid=1),
        pending(5, 1, uid=3, partition=1),
        pending(6, 1, uid=3, partition=-1),
        JobRow(job_id=7, state=JobState.CONFIGURING, gpus=1, uid=2, start_s=1_999_990.0),
        JobRow(job_id=8, state=JobState.SUSPENDED, gpus=8, uid=2, start_s=1_000_000.0),
        JobRow(job_id=9, state=JobState.COMPLETED, gpus=8, start_s=1_000.0, end_s=1_500.0),
        JobRow(job_id=10, state=JobState.FAILED, gpus=8, start_s=1_000.0, end_s=1_500.0),
    ]
    texts = {
        JobId(j): JobText(
            label=str(j),
            name=("Zebra", "apfel", "Äpfel")[j % 3],
            user=f"u{j % 4}",
            account=f"LAB{j % 2}",
            qos=("normal", "high")[j % 2],
        )
        for j in range(1, 10)
    }
    texts[JobId(3)] = JobText(label="3_[2-5,9]", name="sweep", user="u3", account="LAB0")
    seen = observed(jobs, texts=texts, held={1: {0: 4.0}, 2: {1: 4.0}})
    snap = snapshot(seen, memory={"attained_gpu_s": {1: 7200.0, 2: 7200.0, 4: 36.0}})
    return Cycle(snapshot=snap, plan=decide(snap, POLICY, SETTINGS), acting=False)


MIXED = mixed()
ALL = tuple(JobState)


def asked(states: tuple[JobState, ...] = ALL, owner: int | None = None, **fields: object) -> Page:
    """What a request of these fields gets."""
    return page(MIXED, QueueRequest(**fields), states, owner)  # type: ignore[arg-type]


@given(
    by=st.lists(WORD, max_size=3), offset=st.integers(0, 12), limit=st.none() | st.integers(0, 12)
)
@settings(max_examples=300)
def test_every_order_is_that_of_the_rows(by: list[str], offset: int, limit: int | None) -> None:
    """Columns sort as the rows do that people see; a part is a part of the whole."""
    whole = sorted_plainly([row(MIXED, i) for i in range(10)], by)

    part = asked(sort=tuple(by), offset=offset, limit=limit)

    end = None if limit is None else offset + limit
    assert [j["job_id"] for j in part.jobs] == [j["job_id"] for j in whole[offset:end]]
    assert part.total == 10


def test_every_word_sorts_by_something_else_than_the_rank() -> None:
    """No word is there that does nothing, and those that are there are all that are known."""
    by_rank = [j["job_id"] for j in asked(sort=("rank",)).jobs]

    for word in SORTS:
        turned = [j["job_id"] for j in asked(sort=(f"-{word}",)).jobs]
        assert turned != by_rank, word
    assert set(ORACLE) == set(SORTS)


def test_jobs_without_a_rank_come_last_either_way() -> None:
    """They are not better than the best nor worse than the worst."""
    for word in ("rank", "-rank", "tier", "-tier"):
        ranks = [j["rank"] for j in asked(sort=(word,)).jobs]
        first_none = ranks.index(None)
        assert all(r is None for r in ranks[first_none:])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}),
        ("ZEBRA", {6, 9}),
        ("äpf", {2, 5, 8}),
        ("lab1", {1, 5, 7, 9}),
        ("u2", {2, 6}),
        ("2-5", {3}),
        ("other", {5}),
        ("cf", {7}),
        ("1apfel", set()),
        ("apfelu1", set()),
        ("u1lab1", set()),
        ("nowhere", set()),
    ],
)
def test_a_search_looks_where_people_look(text: str, expected: set[int]) -> None:
    """Id, name, user, account, partition, state; in any case; no field runs into the next."""
    found = asked(search=text)

    assert {j["job_id"] for j in found.jobs} == expected
    assert found.total == len(expected)


def test_names_without_ascii_are_found_in_any_case() -> None:
    """Case folding is Unicode's."""
    assert asked(search="ÄPFEL").total == 3


def test_search_text_is_case_folded_with_care() -> None:
    """A job without words is found by its number, and by nothing it does not have."""
    assert {j["job_id"] for j in asked(search="10").jobs} == {10}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"account": ("LAB1",)}, {1, 5, 7}),
        ({"account": ("lab1",)}, set()),
        ({"qos": ("high",)}, {1, 5, 7}),
        ({"name": ("sweep", "Zebra")}, {3, 6}),
        ({"job": ("4",)}, {4}),
        ({"job": ("3",)}, {3}),
        ({"job": ("3_4",)}, {3}),
        ({"job": ("3_9",)}, {3}),
        ({"job": ("3_6",)}, set()),
        ({"job": ("3_4", "1")}, {1, 3}),
        ({"job": ("3_[2-5,9]",)}, {3}),
        ({"job": ("3_\u0664",)}, set()),
        ({"account": ("LAB1",), "name": ("apfel",)}, {1, 7}),
        ({"account": ("LAB1",), "owner": 1}, {1}),
    ],
)
def test_filters_by_words(wanted: dict[str, object], expected: set[int]) -> None:
    """Exact, as squeue's; all of them must be met."""
    assert {j["job_id"] for j in asked(LIVE, **wanted).jobs} == expected


def test_a_job_is_located_in_the_whole_list() -> None:
    """Also outside the part that is shown; nowhere if the filter leaves it out."""
    by = ("-gpus", "job")
    places = {j["job_id"]: k for k, j in enumerate(asked(sort=by).jobs)}

    for job_id, place in places.items():
        assert asked(sort=by, limit=1, locate=int(str(job_id))).at == place
    assert asked(locate=99).at is None
    assert asked(LIVE, owner=1, locate=2).at is None


def test_rows_are_built_for_the_jobs_that_are_shown_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a watcher of 10,000 jobs costs the daemon does not go with the queue's length."""
    cycle = queue_of(10_000)
    built: list[int] = []

    def counted(of: Cycle, i: int) -> JsonObject:
        built.append(i)
        return row(of, i)

    monkeypatch.setattr(module, "row", counted)

    part = page(cycle, QueueRequest(sort=("-gpus",), search="lab1", offset=300, limit=40))

    assert len(built) == len(part.jobs) == 40
    assert part.total == sum(j % 3 == 1 for j in range(1, 10_001))


def test_others_jobs_are_neither_counted_nor_searched(tmp_path: Path) -> None:
    """Where Slurm hides jobs, a watcher cannot find out by search, total or place that they are."""
    context = levers_of(tmp_path, MIXED)
    # Nothing is known of PrivateData: it may hide.
    object.__setattr__(context.board.current, "slurm", None)
    ask = RequestHandlers(context)
    peer = Peer(1, is_admin=False)

    answer = ask({"request": "queue", "sort": ["-user"], "locate": 2}, peer)
    searched = ask({"request": "queue", "search": "u2"}, peer)

    assert answer["total"] == 3
    assert answer["at"] is None
    assert searched["jobs"] == []
    assert searched["total"] == 0
    context.audit.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"sort": ["nothing"]},
        {"sort": ["rank\n"]},
        {"sort": ["--rank"]},
        {"sort": "rank"},
        {"sort": ["rank"] * 50},
        {"offset": -1},
        {"offset": 1.5},
        {"offset": True},
        {"limit": "5"},
        {"user": ["x" * 300]},
        {"job": ["1"] * 1001},
        {"user": "ann"},
        {"users": ["ann"]},
        {"limit": -1},
        {"limit": 10**12},
        {"search": "x" * 300},
        {"locate": "7"},
    ],
)
def test_a_part_that_is_none_is_refused(tmp_path: Path, fields: JsonObject) -> None:
    """Wrong words and numbers are bad requests."""
    context = levers_of(tmp_path, MIXED)

    with pytest.raises(RequestError) as caught:
        RequestHandlers(context)({"request": "queue", **fields}, Peer(0, is_admin=True))

    assert caught.value.kind == "bad_request"
    context.audit.close()


def test_a_command_refuses_what_the_daemon_would() -> None:
    """Both have the words from one model; what is not asked for is not sent."""
    assert QueueRequest(user=("ann",), sort=("-gpus",)).fields() == {
        "user": ["ann"],
        "sort": ["-gpus"],
    }
    with pytest.raises(ValueError, match="by '--rank': use rank, running"):
        QueueRequest(sort=("rank", "--rank"))


def test_a_job_is_found_by_each_of_its_partitions() -> None:
    """It is shown with all of them, where older readers look for the first."""
    seen = observed([pending(1), pending(2)], also_in={JobId(2): (1,)})
    snap = snapshot(seen)
    cycle = Cycle(snapshot=snap, plan=decide(snap, POLICY, SETTINGS), acting=False)
    for wanted in (QueueRequest(partition=("other",)), QueueRequest(search="othe")):
        (job,) = page(cycle, wanted, ALL, None).jobs
        assert (job["job_id"], job["partition"], job["partitions"]) == (2, "gpu", ["gpu", "other"])
