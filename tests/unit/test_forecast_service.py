"""Who may ask when, what is said, and what a forward run costs the daemon: a process."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from build import NOW_S, observed, pending, running, snapshot
from click.testing import CliRunner
from patience import eventually
from pydantic import ValidationError

from slurm_dl.cli.dlsubmit.command import dlsubmit
from slurm_dl.config.estimates_section import ForecastsSection
from slurm_dl.config.preemption_section import PreemptionSection
from slurm_dl.config.tree import Config
from slurm_dl.daemon import forecast_answers, forecast_service
from slurm_dl.daemon.control.privacy import Own
from slurm_dl.daemon.control.reception import RequestError
from slurm_dl.daemon.control.requests import parse
from slurm_dl.daemon.control.wire_format import RefusalKind
from slurm_dl.daemon.forecast_answers import of_job, of_jobs, of_shapes
from slurm_dl.daemon.forecast_service import Forecasts
from slurm_dl.daemon.published_state import PublishedState
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.explain.past_reasons import Everything, Sight
from slurm_dl.engine.settings import Settings
from slurm_dl.forecast import worker
from slurm_dl.forecast.start_time_text import job_lines, preview_text, range_text, shape_lines
from slurm_dl.forecast.worker import ForecastError, run_worker
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.store_protocol import ForecastRange
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.fifo import Fifo

ANN, BOB = 1000, 1001
CONFIG = Config.model_validate({"manage": {"partitions": ["gpu"]}, "policy": {"order": "fifo"}})


def sampling(every_s: float, for_s: float = 20.0) -> Config:
    """The configuration of a daemon that predicts some jobs by itself so often."""
    section = ForecastsSection(sample_every_s=every_s, sample_s=for_s)
    return CONFIG.model_copy(update={"forecasts": section})


def published_of(snap: Snapshot, config: Config = CONFIG) -> PublishedState:
    """What a daemon shows that has seen *snap*."""
    plan = decide(snap, Fifo(), Settings(partitions=frozenset({"gpu"})))
    return PublishedState(
        config=config,
        config_rows=(),
        started_s=NOW_S,
        live=True,
        cycle=Cycle(snap, plan, acting=False),
        policy=Fifo(),
    )


def busy() -> Snapshot:
    """One node of 8 GPUs: job 1 (Ann) runs up to its limit in an hour; 2 (Bob) and others wait."""
    return snapshot(
        observed(
            [
                running(1, 8, ran_s=3600, limit_s=7200.0, uid=ANN),
                pending(2, 8, limit_s=3600.0, uid=BOB),
                pending(3, 1, uid=ANN, held=Held.DEPENDENCY),
                pending(4, 32, uid=ANN, n_nodes=4),
                pending(5, 0, uid=ANN),
            ],
            nodes=[8.0],
            held={1: {0: 8.0}},
        )
    )


@pytest.fixture
def now() -> PublishedState:
    """A daemon that has seen `busy`."""
    return published_of(busy())


def range_in(at_s: float) -> JsonObject:
    return {"low_s": NOW_S + at_s / 2, "median_s": NOW_S + at_s, "high_s": None, "share": 0.8}


def fake_work(content: bytes, _: float) -> JsonObject:
    """Answers at once: a job after an hour, shapes after ten minutes for each GPU."""
    question = json.loads(content)["question"]
    one: JsonObject = {"start": range_in(3600), "end": range_in(7200)}
    one["until_s"] = NOW_S + forecast_service.HORIZON_S
    return {
        "runs": 40,
        "sources": {"limit": 2},
        "jobs": [one for _ in question["jobs"]],
        "wanted": [
            {**one, "start": range_in((600.0 if w["contract"] else 6000.0) * w["gpus"])}
            for w in question["wanted"]
        ],
    }


def recorded() -> tuple[list[bytes], Callable[[bytes, float], JsonObject]]:
    """`fake_work`, and what it was asked."""
    asked: list[bytes] = []

    def work(content: bytes, deadline_s: float) -> JsonObject:
        asked.append(content)
        return fake_work(content, deadline_s)

    return asked, work


def test_a_process_of_its_own_runs_forward(now: PublishedState) -> None:
    """The whole way: snapshot, policy and settings over a pipe, ranges back, in time order."""
    forecasts = Forecasts()

    told = of_job(forecasts, now, "2", Everything())
    shapes = of_shapes(forecasts, now, ["1", "8", "9"], limit_s=3600.0, uid=ANN, user="ann")

    assert told["runs"] == forecast_service.RUNS
    start, end = told["start"], told["end"]
    low, median, high = (float(str(start[k])) for k in ("low_s", "median_s", "high_s"))
    # Job 1 has 3600 s left at most, by its limit; nothing else is in the way.
    assert NOW_S < low <= median <= high <= NOW_S + 3600 + CONFIG.daemon.poll_s * 4 + 60
    assert float(str(end["low_s"])) > low
    assert "Job 2 starts in about" in job_lines(told)[0]
    assert [bool(s["why_not"]) for s in shapes["shapes"]] == [False, False, True]
    lines = shape_lines(shapes)
    assert lines[0].startswith("1 GPU: starts in about")
    assert lines[1].startswith("  with --no-preempt: starts in about")
    assert "never start" in lines[4]


def test_an_answer_is_kept_for_its_snapshot(now: PublishedState) -> None:
    """Asked again the same is said without another process; a new look is a new question."""
    asked, work = recorded()
    forecasts = Forecasts(work)
    first = of_job(forecasts, now, "2", Everything())
    assert of_job(forecasts, now, "2", Everything()) == first
    assert len(asked) == 1
    of_job(forecasts, published_of(busy()), "2", Everything())
    assert len(asked) == 2


@pytest.mark.parametrize(("for_s", "asked"), [(3.0, 2), (forecast_service.DEADLINE_S, 1)])
def test_what_came_of_less_time_is_nobodys_answer(
    monkeypatch: pytest.MonkeyPatch, for_s: float, asked: int
) -> None:
    """A sample of one job is the question that a user has, and was run forward for less."""
    monkeypatch.setattr(forecast_service, "FIRST_SAMPLE_S", 0.0)
    monkeypatch.setattr(forecast_service, "SAMPLE", 1)
    times: list[float] = []

    def work(content: bytes, deadline_s: float) -> JsonObject:
        times.append(deadline_s)
        return {**fake_work(content, deadline_s), "runs": int(deadline_s)}

    forecasts = Forecasts(work)
    now = published_of(
        snapshot(observed([pending(2, 8, uid=BOB)], nodes=[8.0])), sampling(600.0, for_s)
    )
    forecasts.on_cycle(now)
    sampler: threading.Thread | None = forecasts._sampler
    sampler.join(60)

    assert of_job(forecasts, now, "2", Everything())["runs"] == 20
    assert of_job(forecasts, now, "2", Everything())["runs"] == 20
    assert times == [for_s, forecast_service.DEADLINE_S][:asked]


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("3", "another job"),
        ("4", "never starts: 4 nodes with 8 GPUs each, and there are 1"),
        ("5", "no GPUs"),
    ],
)
def test_of_what_waits_for_no_room_the_reason_is_said(
    now: PublishedState, job: str, words: str
) -> None:
    """No process is started for it."""

    def work(_content: bytes, _deadline_s: float) -> JsonObject:
        pytest.fail("asked in vain")

    told = of_job(Forecasts(work), now, job, Everything())

    assert words in str(told["why_not"])
    assert told["start"] is None
    assert words in job_lines(told)[0]


def test_the_jobs_of_others_are_hidden_as_if_they_were_not_there(now: PublishedState) -> None:
    """With PrivateData the words are those for a job that does not exist."""
    forecasts, own = Forecasts(fake_work), Own(ANN, frozenset({1, 3, 4, 5}))

    with pytest.raises(RequestError) as caught:
        of_job(forecasts, now, "2", own)
    with pytest.raises(RequestError) as missing:
        of_job(forecasts, now, "99", own)

    assert caught.value.kind is RefusalKind.NOT_FOUND
    assert str(caught.value).replace("job 2", "job 99") == str(missing.value)
    assert of_job(forecasts, now, "1", own)["state"] == "R"


@pytest.mark.parametrize(
    ("sight", "expected"),
    [
        (Everything(), {2, 4}),
        (Own(ANN, frozenset({1, 3, 4, 5})), {4}),
        (Own(77, frozenset()), set()),
    ],
)
def test_many_starts_are_foreseen_at_once_and_those_of_others_are_hidden(
    sight: Sight, expected: set[int], now: PublishedState
) -> None:
    """One question about all that wait for room; who runs, is held, or is not there is left out."""
    asked, work = recorded()

    told = of_jobs(Forecasts(work), now, [99, *range(1, 6), 1], sight)

    jobs = told["jobs"]
    assert {job["job_id"] for job in jobs} == expected
    assert all(job["start"] == range_in(3600) for job in jobs)
    assert len(asked) == bool(expected)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"job": "1", "shapes": ["1"]},
        {"job": "1", "jobs": [1]},
        {"jobs": ["1"]},
        {"jobs": [-1]},
        {"jobs": [1] * 201},
        {"shapes": ["1"] * 9},
        {"shapes": ["-1"]},
        {"shapes": ["1" * 7]},
        {"shapes": ["1x2x3"]},
        {"shapes": ["1\n"]},
        {"shapes": ["8"], "limit_s": -1.0},
        {"shapes": ["8"], "limit_s": 1e300},
        {"shapes": ["8"], "runs": 10**9},
        {"job": "1" * 41},
        {"job": "1", "within_s": 1.5},
        {"shapes": ["8"], "within_s": 21.0},
    ],
)
def test_what_is_no_question_is_refused(fields: JsonObject) -> None:
    """Huge counts, odd shapes and unknown fields are bad requests."""
    with pytest.raises(RequestError) as caught:
        parse({"request": "when", **fields})

    assert caught.value.kind is RefusalKind.BAD_REQUEST


@pytest.mark.parametrize("shape", ["0", "0x0", "999999", "999999x9999", "1x0", "3x3"])
def test_shapes_that_never_fit_are_said_to(now: PublishedState, shape: str) -> None:
    """However large they are, no process is asked."""
    told = of_shapes(Forecasts(), now, [shape], uid=ANN, user="ann")

    assert "never" in shape_lines(told)[0]


@pytest.mark.parametrize("fields", [{"partition": "\x1b[31m"}, {"gpu_type": "nope"}])
def test_an_unknown_place_is_refused(now: PublishedState, fields: dict[str, str]) -> None:
    """With the ones that there are; what was sent is made safe."""
    with pytest.raises(RequestError) as caught:
        of_shapes(Forecasts(fake_work), now, ["1"], uid=ANN, user="a", **fields)

    assert "\x1b" not in str(caught.value)


def test_there_is_one_at_a_time(now: PublishedState) -> None:
    """A second question does not start a second process; who will not wait is told so."""
    begun, go_on = threading.Event(), threading.Event()

    def work(content: bytes, deadline_s: float) -> JsonObject:
        begun.set()
        go_on.wait(30)
        return fake_work(content, deadline_s)

    forecasts = Forecasts(work)
    first = threading.Thread(target=of_job, args=(forecasts, now, "2", Everything()))
    first.start()
    assert begun.wait(30)
    try:
        with pytest.raises(RequestError, match="one at a time"):
            forecasts.ask(now, jobs=(), wait_s=0.0)
    finally:
        go_on.set()
        first.join(30)


def test_what_was_said_is_held_against_what_happens(now: PublishedState) -> None:
    """A range that a user was shown counts once the job has started; the last N are told."""
    forecasts = Forecasts(fake_work)
    of_job(forecasts, now, "2", Everything())
    forecasts.on_cycle(now)
    later = observed([running(2, 8, start_s=NOW_S + 4000)], now_s=NOW_S + 5000)
    forecasts.on_cycle(published_of(snapshot(later)))

    assert forecasts.score.ranges == 1
    assert forecasts.score.held == 1
    assert forecasts.score.median_error_s == 400.0

    def few(content: bytes, deadline_s: float) -> JsonObject:
        return {**fake_work(content, deadline_s), "runs": 9}

    rough = Forecasts(few)
    of_job(rough, now, "2", Everything())
    rough.on_cycle(now)
    rough.on_cycle(published_of(snapshot(later)))
    assert rough.score.ranges == 0


def test_the_loop_waits_for_no_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some waiting jobs are predicted that nobody asked about, in a thread, for so long."""
    go_on, times = threading.Event(), list[float]()
    now = published_of(busy(), sampling(600.0, 3.0))
    monkeypatch.setattr(forecast_service, "FIRST_SAMPLE_S", 0.0)

    def work(content: bytes, deadline_s: float) -> JsonObject:
        times.append(deadline_s)
        go_on.wait(30)
        return fake_work(content, deadline_s)

    forecasts = Forecasts(work)
    ledger = Ledger(SqliteStore(tmp_path / "ledger.sqlite"))
    forecasts.ledger = lambda: ledger
    forecasts.on_cycle(now)
    # The next one is due, too.
    forecasts._sampled_s = -math.inf
    forecasts.on_cycle(now)
    assert [t.name for t in threading.enumerate()].count("when") == 1
    go_on.set()

    def is_stored() -> bool:
        forecasts.on_cycle(now)
        return any(one.job_id == 2 for one in ledger.noted(ForecastRange))

    eventually(is_stored, 30.0, what="a prediction")
    go_on.set()
    eventually(lambda: "when" not in [t.name for t in threading.enumerate()], 30.0, what="the end")
    assert times[0] == 3.0


@pytest.mark.parametrize(("every_s", "passed_s"), [(0.0, 1e9), (600.0, 59.0), (60.0, 59.0)])
def test_no_sample_is_taken_before_it_is_due(
    monkeypatch: pytest.MonkeyPatch, every_s: float, passed_s: float
) -> None:
    """Never where it is switched off; else a minute after the start."""
    clock = [1000.0]
    monkeypatch.setattr("slurm_dl.daemon.forecast_service.time.monotonic", lambda: clock[0])
    asked, work = recorded()
    forecasts = Forecasts(work)
    now = published_of(busy(), sampling(every_s))
    clock[0] += passed_s
    forecasts.on_cycle(now)
    assert vars(forecasts)["_sampler"] is None
    clock[0] += 2.0
    forecasts.on_cycle(now)
    sampler: threading.Thread | None = forecasts._sampler
    assert (sampler is not None) is (every_s > 0)
    if sampler is not None:
        sampler.join(60)
        forecasts.on_cycle(published_of(busy(), sampling(every_s)))
        assert len(asked) == 1, "the next one is not due"


def test_a_worker_that_fails_is_told_of(now: PublishedState) -> None:
    """Its last words, and no trace of it."""
    with pytest.raises(ForecastError, match="status 1"):
        run_worker(b"{}\n", 1.0)

    def work(_content: bytes, _deadline_s: float) -> JsonObject:
        msg = "no \x1b[31m process"
        raise ForecastError(msg)

    with pytest.raises(RequestError) as caught:
        of_job(Forecasts(work), now, "2", Everything())
    assert caught.value.kind is RefusalKind.FAILED
    assert "\x1b" not in str(caught.value)


def test_no_run_within_the_deadline_is_said(now: PublishedState) -> None:
    """A queue that is too long gets words and no figures."""

    def work(_content: bytes, _deadline_s: float) -> JsonObject:
        return {"runs": 0, "sources": {}, "jobs": [], "wanted": []}

    forecasts = Forecasts(work)
    assert "too long" in str(of_job(forecasts, now, "2", Everything())["why_not"])
    shapes = of_shapes(forecasts, now, ["1"], uid=ANN, user="ann")
    assert "too long" in shape_lines(shapes)[0]
    assert len(shape_lines(shapes)) == 1


def test_a_part_of_one_run_is_told_as_such(now: PublishedState, tmp_path: Path) -> None:
    """A long queue gets a lower bound, by the words too; it is no range to be judged."""
    later = {"low_s": None, "median_s": None, "high_s": None, "share": 0.0}

    def work(_content: bytes, _deadline_s: float) -> JsonObject:
        one = {"start": later, "end": later, "until_s": NOW_S + 3 * 3600}
        return {"runs": 0, "sources": {}, "jobs": [one], "wanted": [one]}

    forecasts = Forecasts(work)
    told = of_job(forecasts, now, "2", Everything())
    shapes = of_shapes(forecasts, now, ["1"], uid=ANN, user="ann")

    assert job_lines(told)[0] == "Job 2 starts not within 3 h."
    assert "as far as one forward run got" in job_lines(told)[-1]
    assert shape_lines(shapes)[0] == "1 GPU: starts not within 3 h, ends not within 3 h."
    assert "as far as one forward run got" in shape_lines(shapes)[-1]
    ledger = Ledger(SqliteStore(tmp_path / "ledger.sqlite"))
    forecasts.ledger = lambda: ledger
    forecasts.on_cycle(now)
    assert ledger.noted(ForecastRange) == ()


@pytest.mark.parametrize(
    ("ahead_s", "words"),
    [
        (0.0, "at once"),
        (59.9, "within 59 s"),
        (119.9, "within 119 s"),
        (179.9, "within 2 min"),
        (7199.9, "within 119 min"),
        (2.55 * 3600, "within 2 h"),
        (47.9 * 3600, "within 47 h"),
        (3.9 * 86400, "within 3 d"),
        (forecast_service.HORIZON_S, "within 7 d"),
    ],
)
def test_a_lower_bound_is_not_rounded_up(ahead_s: float, words: str) -> None:
    """What is not known is not said: neither of all runs, nor of the last tenth of them."""
    now_s = NOW_S + 0.123
    until_s = now_s + ahead_s
    never: JsonObject = {"low_s": None, "median_s": None, "high_s": None, "share": 0.0}
    late: JsonObject = {**never, "low_s": now_s, "median_s": now_s}

    assert range_text(never, now_s, until_s - now_s) == f"not {words}"
    if ahead_s:
        bound = words.removeprefix("within ")
        assert range_text(late, now_s, until_s - now_s) == f"now (now to more than {bound})"


@pytest.mark.parametrize("every_s", [0.1, 59.9])
def test_a_sample_is_taken_once_a_minute_at_most(every_s: float) -> None:
    """Or never: it says so."""
    with pytest.raises(ValidationError, match=rf"0 for never, or at least 60 \(got {every_s}\)"):
        ForecastsSection(sample_every_s=every_s)
    assert ForecastsSection(sample_every_s=0.0).sample_every_s == 0.0
    assert ForecastsSection(sample_every_s=60.0).sample_every_s == 60.0


def test_a_sample_takes_no_longer_than_a_question() -> None:
    """It has the one lock meanwhile, and users wait for it."""
    assert ForecastsSection(sample_s=forecast_service.DEADLINE_S).sample_s < forecast_service.WAIT_S
    with pytest.raises(ValidationError):
        ForecastsSection(sample_s=forecast_service.DEADLINE_S + 0.1)


def test_a_worker_that_may_not_give_way_answers(
    now: PublishedState, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The unit of dlschedd refuses setpriority, to it and to what it starts."""
    question = forecast_service.ForecastQuestion(jobs=(JobId(2),), wanted=(), runs=2)
    content = worker.asked_of_worker(CONFIG, now.cycle.snapshot, question, 60.0)

    def refused(_: int) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "nice", refused)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    worker.main()

    assert json.loads(capsys.readouterr().out)["runs"] == 2


def test_a_worker_stops_where_nobody_waits(now: PublishedState) -> None:
    """It ends with what it has when its daemon is gone."""
    question = forecast_service.ForecastQuestion(jobs=(), wanted=(), runs=10**6)
    content = json.loads(worker.asked_of_worker(CONFIG, now.cycle.snapshot, question, 1e9))
    content["question"]["jobs"] = [2]

    assert worker.answer(json.dumps(content).encode(), lambda: True)["runs"] == 0


def median_of(one: Any) -> float | None:  # noqa: ANN401
    """Seconds from now to the median start; None if nothing is said."""
    return one["start"]["median_s"] - NOW_S if one and one["start"] else None


def test_each_shape_is_told_with_and_without_a_contract() -> None:
    """Where time is short the ways without one are left out; a grace is one the site accepts."""
    asked: list[tuple[float, list[Any]]] = []

    def work(content: bytes, deadline_s: float) -> JsonObject:
        asked.append((deadline_s, json.loads(content)["question"]["wanted"]))
        answer = fake_work(content, deadline_s)
        if deadline_s == 1.5:
            wanted = answer["wanted"]
            answer["wanted"] = wanted[:3]
        return answer

    forecasts = Forecasts(work)

    def starts(within_s: float | None) -> list[tuple[float | None, float | None]]:
        told = of_shapes(
            forecasts, impatient, ["1", "9", "2"], within_s=within_s, uid=ANN, user="ann"
        )
        rows: Any = told["shapes"]
        return [(median_of(row), median_of(row["no_preempt"])) for row in rows]

    impatient = published_of(
        busy(), CONFIG.model_copy(update={"preemption": PreemptionSection(max_grace_s=60)})
    )
    assert starts(None) == [(600.0, 6000.0), (None, None), (1200.0, 12_000.0)]
    assert starts(1.5) == [(600.0, 6000.0), (None, None), (1200.0, None)]
    assert [deadline_s for deadline_s, _ in asked] == [forecast_service.DEADLINE_S, 1.5]
    assert [w["contract"] and w["contract"]["grace_s"] for w in asked[0][1]] == [60, 60, None, None]


def test_who_is_in_a_hurry_does_not_wait_for_others(
    now: PublishedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submission is not held up by somebody's long question."""
    monkeypatch.setattr(forecast_answers, "WAIT_S", 3.0)
    forecasts, began_s = Forecasts(fake_work), time.monotonic()
    with forecasts._one, pytest.raises(RequestError, match="one at a time"):
        of_shapes(forecasts, now, ["1"], within_s=1.5, uid=ANN, user="ann")
    assert time.monotonic() - began_s < 3.0


@pytest.mark.parametrize(("within_s", "refused"), [(1.5, True), (20.0, False), (None, False)])
def test_a_long_queue_is_too_long_for_a_quick_look(
    within_s: float | None,
    refused: bool,  # noqa: FBT001
) -> None:
    """That is said at once: no submission waits in vain. Tasks of arrays count."""
    now = published_of(snapshot(observed([pending(1, 1, tasks=301)], nodes=[8.0])))
    asked, work = recorded()
    forecasts = Forecasts(work)
    with pytest.raises(RequestError, match="too long") if refused else nullcontext():
        of_shapes(forecasts, now, ["1"], within_s=within_s, uid=ANN, user="ann")
    assert bool(asked) is not refused


def shape_in(
    with_s: float | None, without_s: float | None = None, *, runs: int = 40, **more: Json
) -> JsonObject:
    """An answer about one shape; seconds until the medians, None for beyond the horizon."""
    one, other = (
        {
            "start": {
                "median_s": None if s is None else NOW_S + s,
                "low_s": NOW_S,
                "high_s": None,
            },
            "end": {"median_s": None, "low_s": None, "high_s": None},
            "until_s": NOW_S + 7 * 86_400,
        }
        for s in (with_s, without_s)
    )
    shape: JsonObject = {"gpus": 8, "n_nodes": 1, "why_not": None, **one, "no_preempt": other}
    score: JsonObject = {"ranges": 0, "held": 0, "median_error_s": None}
    return {"now_s": NOW_S, "runs": runs, "score": score, "shapes": [{**shape, **more}]}


@pytest.mark.parametrize(
    ("answer", "no_preempt", "words"),
    [
        (
            shape_in(1200, 6 * 3600),
            False,
            "would start in about 20 min; with --no-preempt in about 6 h",
        ),
        (
            shape_in(1200, 6 * 3600),
            True,
            "would start in about 6 h; without --no-preempt in about 20 min",
        ),
        (shape_in(0, None), False, "would start now; with --no-preempt in more than 7 d"),
        (shape_in(1200, 1201), False, "would start in about 20 min; with --no-preempt as well"),
        (
            shape_in(0, 600, runs=3),
            True,
            "would start in about 10 min; without --no-preempt now (rough: 3 forward runs)",
        ),
        (shape_in(0, 600, runs=2), False, ""),
        (shape_in(0, 600, no_preempt=None), False, ""),
    ],
)
def test_a_preview_says_both_ways_in_one_line(
    answer: JsonObject,
    no_preempt: bool,  # noqa: FBT001
    words: str,
) -> None:
    """As typed first, then the other one; nothing where too little is known."""
    assert preview_text(answer, no_preempt=no_preempt) == words


def test_an_answer_of_an_older_daemon_has_one_way() -> None:
    """The line for the other way is left out."""
    newer, older = shape_in(1200, 6 * 3600), shape_in(1200, 6 * 3600)
    del older["shapes"][0]["no_preempt"]  # type: ignore[index,call-overload,arg-type,union-attr]

    first, second, *rest = shape_lines(newer)
    assert "--no-preempt" in second
    assert shape_lines(older) == [first, *rest]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--when", "--gpus", "8,x"], "write numbers of GPUs"),
        (["--when"], "write numbers of GPUs"),
        (["--when", "--gpus", "1,2,3,4,5,6,7,8,9"], "at most 8"),
        (["--when", "--gpus", "a100:1,v100:2"], "one GPU type"),
        (["--when", "--gpus", "8", "--nodes", "2"], "NODESxGPUS"),
    ],
)
def test_dlsubmit_when_says_what_is_wrong(args: list[str], words: str) -> None:
    """Before anybody is asked."""
    result = CliRunner().invoke(dlsubmit, args)

    assert words in str(result.exception)
