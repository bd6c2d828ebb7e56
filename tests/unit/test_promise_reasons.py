"""Promises as people see them: in sentences, on the socket and in a table."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from build import NOW_S, observed, pending, running, snapshot
from watched import OPEN, POLICY, SETTINGS, levers_of, place_of

from slurm_dl.daemon.control.reception import Peer
from slurm_dl.daemon.control.request_handlers import RequestHandlers
from slurm_dl.engine.cycle import AppliedAction, Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.explain.plan_reasons import why
from slurm_dl.engine.explain.promise_reasons import booked_in_words
from slurm_dl.model.booking import Entry, entry
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobRow
from slurm_dl.model.plan import Book
from slurm_dl.model.promise import KIND, Promise, Totals
from slurm_dl.policies.discrete_las import DiscreteLas

NOW = int(NOW_S)


class Keeping(DiscreteLas):
    """A policy under which promises stand; the engine's tests need no more of it."""

    promises = True


KEEPING = Keeping()


def promise(**more: Any) -> Promise:  # noqa: ANN401
    """Four GPUs for half an hour, due in two hours."""
    values = {"says": "yes", "due_s": NOW + 7200, "at_s": NOW - 60, "gpus": 4.0}
    values |= {"needs_s": 1800, "rests_on": "limit", "begin_s": NOW + 5400, "end_s": NOW + 7200}
    return Promise(**{**values, **more})


NO = {"says": "no", "begin_s": None, "end_s": None, "nearest_s": NOW + 90000, "why": "too full"}


def cycle_of(
    rows: list[JobRow], booked: tuple[Entry, ...], news: tuple[Entry, ...] = (), *, acting: bool
) -> Cycle:
    snap = snapshot(observed(rows, held={2: {0: 4}}), booked=booked)
    book = (Book(entries=news, why=""),) if news else ()
    plan = dataclasses.replace(decide(snap, POLICY, SETTINGS), actions=book)
    done = tuple(AppliedAction(a) for a in book) if acting else ()
    return Cycle(snap, plan, acting=acting, done=done)


ROWS = [pending(1, 4, limit_s=1800, uid=1), running(2, 4, limit_s=6000, ran_s=600, uid=2)]
IS = "It is promised to be done by 1970-01-24 05:33:20Z"
IS_NOT = "It is not promised to be done by 1970-01-24 05:33:20Z: too full"
WINDOW = "4 GPUs are kept from 1970-01-24 05:03:20Z to 1970-01-24 05:33:20Z, by its "
BROKEN = f"{IS}, but that is broken: "


@pytest.mark.parametrize(
    ("job", "fields", "words"),
    [
        (1, {}, f"{IS}: {WINDOW}time limit; it waits, 1 h 30 min to spare."),
        (1, {"rests_on": "history"}, f"{WINDOW}estimated run time"),
        (
            1,
            {"begin_s": NOW - 60},
            "its window has begun, and it comes first, 1 h 30 min to spare.",
        ),
        (2, {}, "it runs under its promise, 20 min to spare."),
        (2, {"due_s": NOW + 600}, "it runs under its promise, 1 h 30 min too late by now."),
        (1, NO, f"{IS_NOT}; 1970-01-25 04:33:20Z could be promised when it was asked."),
        (1, NO | {"nearest_s": None}, f"{IS_NOT}."),
        (2, {"broken": "estimate"}, f"{BROKEN}the job runs longer than was expected."),
        (1, {"broken": "node"}, f"{BROKEN}too few nodes are up."),
        (1, {"broken": "room"}, f"{BROKEN}other jobs hold its GPUs, and these cannot"),
        (1, {"broken": "preemption_off"}, "and no GPUs are taken back now."),
        (1, {"missed": True}, f"{BROKEN}it was not done by then."),
    ],
)
@pytest.mark.parametrize("acting", [True, False])
def test_the_owner_is_told_of_the_promise(
    job: int, fields: dict[str, Any], words: str, *, acting: bool
) -> None:
    """Window, what it rests on and spare time; or why not; or its cause, and whether it stands."""
    cycle = cycle_of(ROWS, (), (promise(**fields).entry(job),), acting=acting)

    told = "\n".join(why(cycle, KEEPING, JobId(job)))

    words = (
        words if acting else words.replace("is not", "would not be").replace("It is", "It would be")
    )
    assert words in told
    assert ("Promises are not written down" in told) is not acting


def test_a_promise_of_another_policy_is_not_kept() -> None:
    """It stands in the book, and the owner is told that nothing is done for it."""
    cycle = cycle_of(ROWS, (promise().entry(1),), acting=True)

    assert "Policy discrete_las does not keep promises." in why(cycle, POLICY, JobId(1))


def test_the_audit_line_names_each_verdict() -> None:
    """Yes with its window, no with its reason, broken with its cause; other entries by kind."""
    verdicts = [promise(), promise(**NO), promise(broken="node")]
    entries = [p.entry(i) for i, p in enumerate(verdicts, 1)]
    entries += [entry(KIND, 4, None), entry("price", "a", {"x": 1})]

    told = booked_in_words("edf", entries).replace("job 1", "It").replace("job 2", "It")
    assert told.split("; ") == [
        f"{IS}: {WINDOW}time limit",
        IS_NOT,
        "1970-01-25 04:33:20Z could be promised when it was asked",
        f"{BROKEN}too few nodes are up".replace("It", "job 3"),
        "jobs with a settled deadline: 4",
        "edf writes down price",
    ]
    assert "job 20 " not in booked_in_words("edf", [promise().entry(i) for i in range(50)])


BOOK = (
    promise().entry(1),
    promise(due_s=NOW + 6000).entry(2),
    promise(broken="room").entry(3),
    promise(**NO).entry(4),
    Totals(kept=5, withdrawn=1, broken={"node": 2}).entry(),
)


@pytest.mark.parametrize(
    ("uid", "hides", "jobs", "totals"),
    [(1, True, [1], False), (2, False, [2, 1, 3, 4], True), (0, True, [2, 1, 3, 4], True)],
)
def test_promises_of_others_are_shown_where_their_jobs_are(
    tmp_path: Path, uid: int, jobs: list[int], *, hides: bool, totals: bool
) -> None:
    """As in the queue; the totals go to those who may see all jobs."""
    slurm = dataclasses.replace(OPEN, private=frozenset({"jobs"} if hides else ()))
    context = levers_of(tmp_path, cycle_of(ROWS, BOOK, acting=True), {"slurm": slurm})

    peer = Peer(uid, is_admin=uid == 0)
    answer: Any = RequestHandlers(context)({"request": "promises"}, peer)

    assert [one["job_id"] for one in answer["promises"]] == jobs
    assert (answer["totals"] is not None) is totals
    if totals:
        assert answer["totals"] == {"kept": 5, "withdrawn": 1, "broken": {"node": 2}}
        states = ["running", "waiting", "broken", "refused"]
        assert [one["state"] for one in answer["promises"]] == states
        assert [one["spare_s"] for one in answer["promises"]] == [0.0, 5400.0, None, None]


def test_the_table_has_every_promise_and_the_totals(tmp_path: Path) -> None:
    """`dlctl promises`, and its `--json`."""
    with place_of(tmp_path, cycle_of(ROWS, BOOK, acting=True)) as place:
        argv = [str(Path(sys.executable).parent / "dlctl"), "promises", "--socket"]
        table, answer = (
            subprocess.run(
                [*argv, str(place.socket), *more],
                env={**os.environ, "COLUMNS": "160"},
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            ).stdout
            for more in ((), ("--json",))
        )

    *lines, last = table.splitlines()
    titles = ["JOB", "SAYS", "STATE", "DUE", "FROM", "TO", "SPARE", "WHY"]
    assert lines[0].split() == titles
    assert [line.split()[:3] for line in lines[1:]] == [
        ["2", "yes", "running"],
        ["1", "yes", "waiting"],
        ["3", "yes", "broken"],
        ["4", "no", "refused"],
    ]
    assert last == "settled so far: 5 kept, 1 withdrawn, broken: 2 node"
    assert [one["job_id"] for one in json.loads(answer)["promises"]] == [2, 1, 3, 4]
