"""JSON and CSV of results, finish-time fairness and Jain's index."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
import stat
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_cases import Life, life, records_of, workloads

from slurm_dl.model.completed_jobs import Records
from slurm_dl.model.errors import ConfigError
from slurm_dl.report.export import (
    groups_json,
    jobs_csv,
    summary_json,
    write_csv,
    write_json,
    write_whole,
)
from slurm_dl.report.summary_metrics import (
    by_user,
    finish_time_fairness,
    mean_jobs_present,
    summarise,
)

HEADER = (
    "job_id,user,gpus,submit_s,start_s,end_s,jct_s,queue_s,alone_s,slowdown,service_gpu_s,"
    "lost_gpu_s,preemptions,promotions,success"
)


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def number(text: str) -> float:
    return float(text) if text else math.nan


def strict(text: str) -> object:
    """JSON as the standard has it: NaN and Infinity are errors."""

    def refuse(word: str) -> object:
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def test_the_keys_that_others_rely_on_are_there() -> None:
    """Two jobs of 10 and 30 s, 4 GPU-seconds lost; and JCTs of which all five figures differ."""
    lives = [life(0, (0, 10)), life(0, (0, 10), (15, 30), lost=(("redone", 4),))]

    found = summary_json(summarise(records_of(lives), gpus=2))

    wanted = {
        "jobs": 2, "finished": 2, "avg_jct_s": 20, "median_jct_s": 20, "p95_jct_s": 30,
        "p99_jct_s": 30, "makespan_s": 30, "preemptions": 1, "promotions": 0, "gpu_s_lost": 4,
        "gpu_s_lost_by": {"redone": 4}, "max_queue_s": 5, "avg_slowdown": None,
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    lives = [life(0, (0, float(i))) for i in (*range(1, 200), 1000)]
    found = summary_json(summarise(records_of(lives), gpus=2))
    names = ("avg_jct_s", "median_jct_s", "p95_jct_s", "p99_jct_s", "max_jct_s")
    assert [found[name] for name in names] == [104.5, 100.5, 190, 198, 1000]


@settings(max_examples=30)
@given(lives=workloads)
def test_json_is_valid_whatever_is_missing(lives: list[Life]) -> None:
    """A figure that does not exist is null; plain numbers only, and they are read back."""
    records = records_of(lives)
    data = {
        **summary_json(summarise(records, gpus=8)),
        "users": groups_json(by_user(records, gpus=8)),
    }

    assert strict(json.dumps(data, allow_nan=False)) == data


def test_the_columns_are_those_promised() -> None:
    """Whole numbers plain, missing ones empty; of no job there is a line of names."""
    lives = [
        life(0, (5, 15.5), gpus=2, alone=10, lost=(("redone", 1.25), ("restart", 0.5))),
        life(7, user="bob", promotions=3),
    ]

    assert jobs_csv(records_of(lives)).splitlines() == [
        HEADER,
        "j0,ada,2,0,5,15.5,15.5,5,10,1.55,21,1.75,0,0,true",
        "j1,bob,1,7,,,,,,,0,0,0,3,false",
    ]
    assert jobs_csv(Records.of([])) == HEADER + "\n"


@settings(max_examples=30)
@given(lives=workloads, scale=st.floats(1e-3, 1e6))
def test_csv_is_read_back_exactly(lives: list[Life], scale: float) -> None:
    """Every number is the same float again, to the last bit."""
    records = records_of(lives)
    records = dataclasses.replace(records, submit_s=records.submit_s * scale)

    rows = read(jobs_csv(records))

    assert [row["job_id"] for row in rows] == list(records.job_id)
    for name in ("gpus", "submit_s", "start_s", "end_s", "jct_s", "queue_s", "alone_s", "slowdown"):
        assert [number(row[name]) for row in rows] == pytest.approx(
            getattr(records, name).tolist(), rel=0, abs=0, nan_ok=True
        )
    assert [number(row["lost_gpu_s"]) for row in rows] == records.all_lost_gpu_s.tolist()
    assert [row["success"] == "true" for row in rows] == records.success.tolist()


@pytest.mark.parametrize(
    ("name", "written"),
    [
        *((name, f"'{name}") for name in ("=1+1", "+1", "-1", "@SUM(A1)", '=cmd|"/c calc"!A1')),
        ("a\rb\n=1", "a\\rb\\n=1"), ("\x1b[2J", "\\x1b[2J"), ("\t=1", "\\t=1"),
    ],
)  # fmt: skip
def test_a_name_is_neither_a_formula_nor_control(name: str, written: str) -> None:
    """Of a user and of a job; a negative time is a number and left alone."""
    records = dataclasses.replace(records_of([life(-5, (0, 10), user=name)]), job_id=(name,))

    (row,) = read(jobs_csv(records))

    assert (row["user"], row["job_id"]) == (written, written)
    assert row["submit_s"] == "-5"


@given(name=st.text(max_size=12))
def test_any_name_is_one_field_of_one_line(name: str) -> None:
    """Commas, quotes and line breaks end nothing; what can be printed is there as it was."""
    text = jobs_csv(records_of([life(0, (0, 10), user=name)]))
    (row,) = read(text)

    assert len(text.splitlines()) == 2
    assert row["success"] == "true"
    assert text.replace("\n", "").isprintable()
    if name.isprintable():
        assert row["user"].removeprefix("'") == name.removeprefix("'")


def test_files_hold_what_was_told(tmp_path: Path) -> None:
    """Both files, read back; half a surrogate pair in a name is no reason to fail."""
    records = records_of([life(0, (0, 10), user="ada\udc80")])

    write_csv(tmp_path / "jobs.csv", jobs_csv(records), {"seed": 1})
    write_json(tmp_path / "run.json", summary_json(summarise(records, gpus=1)))

    assert "ada\\udc80" in (tmp_path / "jobs.csv").read_text("utf-8")
    assert json.loads((tmp_path / "run.json").read_text("utf-8"))["avg_jct_s"] == 10
    about = json.loads((tmp_path / "jobs.csv-metadata.json").read_text("utf-8"))
    assert (about["url"], about["notes"]) == ("jobs.csv", [{"seed": 1}])
    assert len(list(tmp_path.iterdir())) == 3


def test_a_file_is_replaced_and_others_may_read_it(tmp_path: Path) -> None:
    """The umask decides, as for any file that a program makes; a link stays a link."""
    path = tmp_path / "run.json"
    path.write_text("old")
    umask = os.umask(0o022)
    try:
        write_whole(path, b"new")
    finally:
        os.umask(umask)
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", b"content")

    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"content"


def test_a_pipe_or_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """``/dev/null`` must still be a device afterwards; here it is a FIFO."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(fifo, b"through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert fifo.is_fifo()


def test_what_cannot_be_written_is_an_error_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such directory, a directory in its place, a full disk: no half file lies beside it."""
    for path in (tmp_path / "none" / "run.json", tmp_path):
        with pytest.raises(ConfigError, match=f"cannot write {path}: .*directory"):
            write_whole(path, b"x")
    path = tmp_path / "run.json"
    path.write_text("old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        write_whole(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]
    assert path.read_text() == "old"


ADA, BOB = (life(0, (0, 100), user="ada"), life(0, (9990, 10000), user="bob"))
ALIKE = [life(0, (10, 20)), life(0, (9, 18), gpus=8, user="bob"), life(5, (6, 7), user="cyd")]


@pytest.mark.parametrize(
    ("lives", "index"),
    [
        pytest.param(ALIKE, 1, id="each got half of what was asked for"),
        pytest.param([ADA, BOB], 1.001**2 / (2 * (1 + 0.001**2)), id="one has it all"),
        pytest.param(
            [ADA] * 50 + [life(0, (10, 20), user="bob")], 1.5**2 / (2 * 1.25),
            id="users are weighed, not jobs",
        ),
        pytest.param([ADA, ADA], math.nan, id="one user has nobody to share with"),
    ],
)  # fmt: skip
def test_jain(lives: list[Life], index: float) -> None:
    assert summarise(records_of(lives), gpus=1).jain == pytest.approx(index, nan_ok=True)


def turns(count: int, **more: float) -> list[Life]:
    """Jobs of 100 s that come at once, and run one after the other."""
    return [life(0, (i * 100, i * 100 + 100), alone=100, **more) for i in range(count)]


@pytest.mark.parametrize(
    ("lives", "gpus", "rho"),
    [
        pytest.param([life(7, (7, 107), gpus=8, alone=100)], 8, [1], id="alone on the cluster"),
        # The second lives 200 s, half of them beside the first: N = 1.5, so it was owed 150 s.
        pytest.param(turns(2), 1, [0.5, 200 / 150], id="fair to the last"),
        # The last lives 300 s, with three, two and one jobs: N = 2, so it was owed 200 s.
        pytest.param(turns(3), 1, [1 / 3, 200 / 250, 300 / 200], id="the last is the worst off"),
        # Two jobs of a GPU on 8 are owed 4 each, and can use 1.
        pytest.param(
            [life(0, (50, 150), alone=100), life(0, (0, 150), alone=150)], 8, [1.5, 1],
            id="a share larger than the job",
        ),
        # Each of eight is owed a GPU of the 8 that it asks for.
        pytest.param(
            turns(1, gpus=8) + [life(0, gpus=8)] * 7, 8, [1 / 8, *[math.nan] * 7],
            id="a share smaller than the job",
        ),
        pytest.param(
            [life(5, (5, 5), alone=10), life(0, (0, 50), alone=50)], 1, [0, 1], id="no time at all"
        ),
    ],
)  # fmt: skip
def test_finish_time_fairness(lives: list[Life], gpus: int, rho: list[float]) -> None:
    """Against the time on an equal share, and of all jobs the worst."""
    records = records_of(lives)
    assert finish_time_fairness(records, gpus=gpus).tolist() == pytest.approx(rho, nan_ok=True)
    assert summarise(records, gpus=gpus).rho.max == pytest.approx(np.nanmax(rho))


def test_jobs_that_are_present() -> None:
    """One that never started shares the cluster with all later ones; one of no time is alone."""
    unfinished = records_of([life(0), life(1000, (1000, 1010), alone=10)])
    assert mean_jobs_present(unfinished).tolist() == pytest.approx([math.nan, 2], nan_ok=True)
    instant = records_of([life(5, (5, 5), alone=10), life(0, (0, 50), alone=50)])
    assert mean_jobs_present(instant)[0] == 1


def test_a_job_is_unfairly_treated_from_five_percent_on() -> None:
    """Alone on the cluster for 100 s: 104 s are within the bound, 106 s are not."""
    lives = [life(0, (4, 104), alone=100), life(1000, (1006, 1106), alone=100)]

    assert summarise(records_of(lives), gpus=1).unfair_frac == 0.5


def second_by_second(lives: list[Life], gpus: int) -> list[Fraction]:
    """Rho of jobs whose times are whole seconds: every second is looked at, in exact fractions."""
    rhos = []
    for one in lives:
        seconds = range(round(one.submit), round(one.end))
        present = [sum(o.submit <= t < o.end for o in lives) for t in seconds]
        n = Fraction(sum(present), len(present))
        share = Fraction(gpus) / n
        # On a share smaller than its GPUs it advances by share / GPUs in a second.
        alone_on_it = Fraction(round(one.alone)) / min(Fraction(1), share / round(one.gpus))
        rhos.append(len(seconds) / alone_on_it)
    return rhos


@st.composite
def whole_lives(draw: st.DrawFn) -> Life:
    """A job of whole seconds that waits, runs once and ends."""
    submit, wait, length = draw(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9)))
    gpus = draw(st.sampled_from([1, 2, 8]))
    start = submit + wait
    return life(submit, (start, start + length), gpus=gpus, alone=draw(st.integers(1, length)))


@settings(max_examples=40)
@given(lives=st.lists(whole_lives(), min_size=1, max_size=7), gpus=st.sampled_from([1, 4, 16]))
def test_rho_is_what_counting_the_jobs_of_every_second_gives(lives: list[Life], gpus: int) -> None:
    """Of each job, and the worst of all that a comparison tells."""
    records = records_of(lives)
    expected = second_by_second(lives, gpus)

    assert finish_time_fairness(records, gpus=gpus).tolist() == pytest.approx(
        [float(rho) for rho in expected]
    )
    assert summarise(records, gpus=gpus).rho.max == pytest.approx(float(max(expected)))


@settings(max_examples=30)
@given(lives=workloads)
def test_jain_is_the_textbooks_over_users(lives: list[Life]) -> None:
    """Plain Python, user by user; what a user was given against what was asked for."""
    asked: dict[str, float] = {}
    given_to: dict[str, float] = {}
    for one in lives:
        if not math.isnan(one.end) and one.jct > 0:
            asked[one.user] = asked.get(one.user, 0) + one.gpus * one.jct
            given_to[one.user] = given_to.get(one.user, 0) + one.gpus * one.running
    x = [given_to[user] / asked[user] for user in asked]
    squares = len(x) * sum(v * v for v in x)
    expected = sum(x) ** 2 / squares if squares > 0 and len(x) > 1 else math.nan

    found = summarise(records_of(lives), gpus=4).jain

    assert found == pytest.approx(expected, nan_ok=True)


@settings(max_examples=30)
@given(lives=workloads)
def test_contention_is_at_least_the_job_itself_and_at_most_all(lives: list[Life]) -> None:
    """A mean of counts between 1 and the number of jobs."""
    contention = mean_jobs_present(records_of(lives))
    known = contention[~np.isnan(contention)]

    assert (known >= 1).all()
    assert (known <= len(lives) + 1e-9).all()
