"""Promises as people see them, and attacks on them by users, other jobs and limits."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from build import NOW_S, observed, pending, running, snapshot
from fake_slurm import FakeJob
from promise_world import GRACE, LIMITS, RULES, DueCluster, PromiseWorld
from watched import OPEN, POLICY, SETTINGS, levers_of, place_of

from slurm_dl.daemon.control.reception import Peer
from slurm_dl.daemon.control.request_handlers import RequestHandlers
from slurm_dl.daemon.enrich import Enricher
from slurm_dl.engine.cycle import AppliedAction, Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.explain.plan_reasons import why
from slurm_dl.engine.explain.promise_reasons import booked_in_words
from slurm_dl.engine.settings import Deadlines
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.model.booking import Entry, entry
from slurm_dl.model.contract import Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.model.plan import Book
from slurm_dl.model.promise import KIND, Promise, Totals
from slurm_dl.policies.chronus import Chronus
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.edf import Edf

SKIPS = Edf(others="fifo_skip")
LEASES = Chronus(lease_length_s=150.0, restart_s=5.0)
LONG_S = 50_000
QUANTUM = dataclasses.replace(LIMITS, min_quantum_s=900.0, max_grace_s=200.0)


class ArrayCluster(DueCluster):
    """Some of its waiting jobs are arrays of two tasks."""

    arrays: Collection[JobId] = ()

    def _row(self, job: FakeJob) -> JobRow:
        row = super()._row(job)
        tasks = 2 if job.job_id in self.arrays and job.state is JobState.PENDING else 1
        return dataclasses.replace(row, tasks=tasks)


def go(world: PromiseWorld, seconds: int) -> None:
    """Look every five seconds for so long."""
    for _ in range(seconds // 5):
        world.look()
        world.cluster.advance(5)


def full(world: PromiseWorld, nodes: int, ran_s: int = 35, **more: Any) -> list[JobId]:  # noqa: ANN401
    """Nodes that are full of jobs that may be preempted."""
    jobs = [world.submit(4, LONG_S, **{"contract": GRACE, **more}) for _ in range(nodes)]
    world.look()
    world.cluster.advance(ran_s)
    return jobs


def half_free(world: PromiseWorld) -> None:
    """One node of two is busy for 400 s: a job of both is promised them and waits."""
    world.submit(4, 400, nodes=["n1"])
    world.look()
    world.cluster.advance(5)


# --- each attack returns the jobs that have asked for a deadline -------------------------------


def takers_at_once(world: PromiseWorld) -> list[JobId]:
    """Either of two jobs may displace and leaves room for the promise; both do not."""
    full(world, 2, ran_s=3000)
    due = world.submit(4, 300, 700)
    world.look()
    for _ in range(2):
        world.submit(4, 5000, uid=3000, begin_s=world.cluster.now_s + 10, contract=GRACE)
    return [due]


def taker_under_way(world: PromiseWorld) -> list[JobId]:
    """GPUs of a hand-over under way are promised as if nobody got them."""
    (filler,) = full(world, 1, ran_s=3000, contract=Contract(grace_s=100.0), save_s=90.0)
    world.submit(4, 5000, uid=3000, begin_s=world.cluster.now_s + 10, contract=GRACE)
    world.run(lambda: world.cluster.jobs[filler].asked_s is not None)
    return [world.submit(4, 300, 700)]


def longer_limit(world: PromiseWorld) -> list[JobId]:
    """A limit of 30 s is promised a window, and then is another, as ``scontrol update`` allows."""
    full(world, 1)
    first = world.submit(4, 30, 300, uid=2000)
    world.look()
    second = world.submit(4, 300, 1200)
    world.look()
    world.cluster.jobs[first].limit_s = world.cluster.jobs[first].work_s = 3000
    return [second]


def more_gpus(world: PromiseWorld) -> list[JobId]:
    """One GPU is promised, and four are asked for afterwards."""
    full(world, 1)
    first = world.submit(1, 300, 600, uid=2000)
    world.look()
    second = world.submit(2, 300, 650)
    world.look()
    world.cluster.jobs[first].gpus = 4
    return [second]


def after_another(world: PromiseWorld) -> list[JobId]:
    """A job that waits for another starts before a look has seen that it may."""
    world.submit(2, LONG_S, after=world.submit(1, 52, nodes=["n2"]))
    half_free(world)
    return [world.submit(8, 300, 900, n_nodes=2)]


def at_its_begin(world: PromiseWorld) -> list[JobId]:
    """Likewise one with a begin time of its owner."""
    world.submit(2, LONG_S, begin_s=world.cluster.now_s + 102)
    half_free(world)
    return [world.submit(8, 300, 900, n_nodes=2)]


def behind_a_crowd(world: PromiseWorld) -> list[JobId]:
    """So many jobs are put off that the last one is not."""
    half_free(world)
    placement = dataclasses.replace(world.settings.placement, window=5)  # As 200, but quicker.
    world.settings = dataclasses.replace(world.settings, placement=placement)
    for _ in range(8):
        world.submit(8, LONG_S, n_nodes=2, begin_s=world.cluster.now_s + 10)
    world.submit(2, LONG_S, begin_s=world.cluster.now_s + 20)
    return [world.submit(8, 300, 900, n_nodes=2)]


def array(world: PromiseWorld) -> list[JobId]:
    """An array without a contract is never put off."""
    world.cluster.__class__ = ArrayCluster
    half_free(world)
    due = world.submit(8, 300, 900, n_nodes=2)
    world.cluster.arrays = [world.submit(2, LONG_S, begin_s=world.cluster.now_s + 20)]  # type: ignore[attr-defined]
    return [due]


def alone(world: PromiseWorld) -> list[JobId]:
    """An exclusive job is promised one GPU, and takes the node."""
    full(world, 1)
    return [world.submit(1, 300, 500, exclusive=True), world.submit(2, 300, 500)]


def with_one_that_is_alone(world: PromiseWorld) -> list[JobId]:
    """An exclusive job with one GPU runs, and three are promised."""
    world.submit(1, 5000, exclusive=True)
    world.look()
    world.cluster.advance(5)
    return [world.submit(2, 300, 500)]


def in_pieces(world: PromiseWorld) -> list[JobId]:
    """Four GPUs on one node are promised while two of each node are in use for good."""
    for node in ("n1", "n2"):
        world.submit(2, LONG_S, nodes=[node])
    world.look()
    world.cluster.advance(5)
    return [world.submit(4, 300, 900)]


def on_two_nodes(world: PromiseWorld) -> list[JobId]:
    """Two promises begin at once, and what may be taken back in an hour is enough for one."""
    full(world, 2)
    return [world.submit(4, 300, 900) for _ in range(2)]


UNSEEN = pytest.mark.xfail(
    strict=True, reason="Slurm starts it between two looks, on GPUs that were free: ADR 0035"
)
NOT_PUT_OFF = pytest.mark.xfail(strict=True, reason="an array is never put off: ADR 0035")


@pytest.mark.parametrize(
    ("attack", "more"),
    [
        (takers_at_once, {"limits": QUANTUM, "policy": Edf()}),
        (taker_under_way, {"limits": QUANTUM, "policy": Edf(), "nodes": 1}),
        (longer_limit, {"nodes": 1}),
        (more_gpus, {"nodes": 1}),
        (behind_a_crowd, {}),
        (alone, {"nodes": 1}),
        (with_one_that_is_alone, {"nodes": 1}),
        (in_pieces, {}),
        *(pytest.param(one, {}, marks=UNSEEN) for one in (after_another, at_its_begin)),
        *((attack, {"policy": LEASES}) for attack in (takers_at_once, longer_limit, more_gpus)),
        (on_two_nodes, {"policy": LEASES}),
        pytest.param(array, {}, marks=NOT_PUT_OFF),
        (on_two_nodes, {"limits": dataclasses.replace(LIMITS, max_gpus_per_hour=4.0)}),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_yes_is_kept(
    tmp_path: Path, attack: Callable[[PromiseWorld], list[JobId]], more: dict[str, Any]
) -> None:
    """All nodes are up and preemption is on: a yes is kept, or it is no yes."""
    world = PromiseWorld(tmp_path, **{"policy": SKIPS, **more})
    asked = attack(world)
    world.look()
    said = {job: world.promises[job].says for job in asked}
    go(world, 1400)
    late = [job for job in asked if said[job] == "yes" and not world.was_in_time(job)]
    assert not late, [world.promises[job] for job in late]


@pytest.mark.parametrize("looks_s", [0, 1, 2, 5])
def test_a_broken_promise_is_counted_whenever_a_look_is(tmp_path: Path, looks_s: int) -> None:
    """Also by a look at the very second of the deadline."""
    world = PromiseWorld(tmp_path, nodes=1, policy=SKIPS)
    due = world.submit(4, 300, 400)
    world.look()
    world.cluster.advance(2)
    world.cluster.jobs[due].work_s = world.cluster.jobs[due].limit_s = LONG_S
    world.cluster.advance(398 + looks_s)
    go(world, 10)
    assert sum(world.totals().broken.values()) == 1
    assert world.totals().withdrawn == 0


@pytest.mark.parametrize("rule", [{"longest_ahead_s": 3000.0}, {"qos": ("high",)}], ids=str)
def test_narrower_rules_are_for_new_deadlines(tmp_path: Path, rule: dict[str, Any]) -> None:
    """A reload takes back no promise, and counts none as withdrawn by its user."""
    world = PromiseWorld(tmp_path, nodes=1, policy=SKIPS)
    full(world, 1)
    due = world.submit(4, 300, 9000)
    world.look()
    rules: Deadlines = dataclasses.replace(RULES, **rule)
    world.settings = dataclasses.replace(world.settings, deadlines=rules)
    world.know = Enricher(profiles={}, site=SitePriors(), policy=world.policy, deadlines=rules)
    world.cluster.advance(5)
    world.look()
    assert world.totals().withdrawn == 0
    assert world.booked()[due].is_kept


def test_a_far_deadline_displaces_nobody_yet(tmp_path: Path) -> None:
    """A victim asks for one while it is being stopped: it does not come back at once."""
    world = PromiseWorld(
        tmp_path, nodes=1, policy=Edf(), limits=dataclasses.replace(LIMITS, max_grace_s=200.0)
    )
    (victim,) = full(world, 1, ran_s=3000, contract=Contract(grace_s=100.0), save_s=90.0)
    other = world.submit(4, 500, uid=3000, begin_s=world.cluster.now_s + 10, contract=GRACE)
    world.run(lambda: world.cluster.jobs[victim].asked_s is not None)
    world.cluster.due_s[victim] = int(world.cluster.now_s) + 90_000
    go(world, 800)
    assert world.cluster.jobs[other].restarts == 0


@pytest.mark.parametrize("needs_s", [300, 1000], ids=["missed", "refused"])
def test_a_new_deadline_is_answered(tmp_path: Path, needs_s: int) -> None:
    """Also after the old one has passed, whatever was said to that."""
    world = PromiseWorld(tmp_path, nodes=1, policy=SKIPS)
    (filler,) = full(world, 1, contract=None)
    world.cluster.jobs[filler].limit_s = 100
    due = world.submit(4, needs_s, 600)
    world.look()
    world.cluster.jobs[filler].limit_s = LONG_S + 5000
    world.cluster.advance(700)
    world.look()
    world.cluster.due_s[due] = int(world.cluster.now_s) + 2 * LONG_S
    go(world, 10)
    promise = world.booked()[due]
    assert (promise.due_s, promise.is_kept) == (world.cluster.due_s[due], True)


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
