"""JSON and CSV of results: what is written is read back, and nothing in it can act."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
import stat
from pathlib import Path

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
from slurm_dl.report.summary_metrics import by_user, summarise

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
