"""The page of a schedule: what it holds, and that nothing that people typed is more than text."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process import in_process
from report_cases import life, records_of

from slurm_dl.cli.dlsim.command import main
from slurm_dl.model.completed_jobs import Records, Runs
from slurm_dl.model.errors import ConfigError
from slurm_dl.report import timeline
from slurm_dl.report.html import SCRIPTS, inert_json, page
from slurm_dl.report.html import page_data as columns
from slurm_dl.report.html.page_data import NEVER, Schedule, Subject, page_data

SIXTY = Path(__file__).parents[2] / "traces" / "tiresias" / "60_job.csv"
HOSTILE = "</script><img src=x onerror=alert(1)><!--<script>\u2028'\"&amp;{{style}}\ud800"

LIVES = [
    life(100, (100, 110), gpus=2, user="ada"),
    life(105, (110, 150), (200, 210.5), gpus=1, user="bob", lost=(("restart", 3.0),)),
    life(120, (150, 200), (200, 260), gpus=2, user="ada"),
    life(130, gpus=4, user="cyd"),
]
RECORDS = records_of(LIVES)


def subject(**other: Any) -> Subject:  # noqa: ANN401 - fields of a subject
    return Subject(**{"title": "week", "cluster": "2x2", "node_gpus": (2, 2), **other})


def data_of(*records: Records) -> dict[str, Any]:
    """The data of a page with one schedule for each of *records*."""
    schedules = [
        Schedule(label=f"p{i}", about=("costs none",), records=r) for i, r in enumerate(records)
    ]
    data: dict[str, Any] = page_data(subject(), schedules)
    return data


def u32(text: str) -> list[int]:
    return np.frombuffer(base64.b64decode(text), dtype="<u4").tolist()


def f32(text: str) -> list[float]:
    return np.frombuffer(base64.b64decode(text), dtype="<f4").tolist()


class Read(HTMLParser):
    """Elements of a page with their attributes, and the text of each kind of element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[int, str]] = []
        self.within = -1
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See `HTMLParser`."""
        self.elements.append((tag, dict(attrs)))
        self.within = len(self.elements) - 1

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 - its signature
        """See `HTMLParser`."""
        self.within = -1

    def handle_data(self, data: str) -> None:
        """See `HTMLParser`."""
        self.texts.append((self.within, data))

    def of(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        """Attributes and text of each element of this kind."""
        return [
            (attrs, "".join(text for at, text in self.texts if at == i))
            for i, (kind, attrs) in enumerate(self.elements)
            if kind == tag
        ]


def data_in(text: str) -> Any:  # noqa: ANN401 - whatever the JSON holds
    """The data of a page."""
    return json.loads(Read(text).of("script")[0][1])


def test_columns_hold_the_records() -> None:
    """Times are ticks since the first submission, and what never came is never."""
    data = data_of(RECORDS)
    jobs, schedule = data["jobs"], data["schedules"][0]

    assert data["zero_s"] == 100
    assert data["tick_s"] == pytest.approx(1e-3)
    assert data["end_s"] == 160
    assert data["nodes"] == [[2, 2]]
    assert jobs["id"] == ["j0", "j1", "j2", "j3"]
    assert [jobs["users"][u] for u in u32(jobs["user"])] == ["ada", "bob", "ada", "cyd"]
    assert f32(jobs["gpus"]) == [2, 1, 2, 4]
    assert u32(jobs["submit"]) == [0, 5000, 20000, 30000]
    assert u32(schedule["start"]) == [0, 10000, 50000, NEVER]
    assert u32(schedule["end"]) == [10000, 110500, 160000, NEVER]
    runs = schedule["runs"]
    assert list(zip(*(u32(runs[k]) for k in ("job", "start", "end")), strict=True)) == [
        (0, 0, 10000), (1, 10000, 50000), (2, 50000, 100000), (1, 100000, 110500),
        (2, 100000, 160000),
    ]  # fmt: skip
    assert list(base64.b64decode(runs["how"])) == [
        columns.ENDED, columns.PREEMPTED, columns.MOVED, columns.ENDED, columns.ENDED,
    ]  # fmt: skip
    assert f32(schedule["lost_gpu_s"]) == [0, 3, 0, 0]
    assert [u["name"] for u in schedule["users"]["shown"]] == ["ada", "bob", "cyd"]


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_ticks_are_fine_and_fit(submits: list[float]) -> None:
    """A time is wrong by half a tick at most, whatever the span."""
    lives = [life(t, (t, t + 1)) for t in sorted(submits)]
    data = data_of(records_of(lives))

    tick_s, zero_s = data["tick_s"], data["zero_s"]
    assert tick_s <= max(1e-3, 1e-8 * data["end_s"])
    told = [zero_s + tick_s * tick for tick in u32(data["jobs"]["submit"])]
    assert told == pytest.approx([one.submit for one in lives], abs=0.51 * tick_s)


def test_over_time_is_the_timeline() -> None:
    """The integral of the GPUs in use is the service; waiting is the waiting of all jobs."""
    over = data_of(RECORDS)["schedules"][0]["over_time"]

    assert sum(f32(over["gpus_used"])) * over["step_s"] == pytest.approx(
        RECORDS.service_gpu_s.sum(), rel=1e-4
    )
    edges = timeline.windows(RECORDS, count=1)
    waiting = timeline.jobs_waiting(RECORDS).means(edges)[0]
    assert np.mean(f32(over["jobs_waiting"])) == pytest.approx(waiting, rel=1e-4)


def test_no_jobs_are_a_page_too() -> None:
    """An empty trace says so and divides by nothing."""
    data = data_of(records_of([]))

    assert data["jobs"]["id"] == []
    assert data_in(page(data)) == data


def test_what_is_no_page_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workloads are not compared, nothing is drawn without runs; all runs of a page count."""
    other = replace(RECORDS, job_id=("a", "b", "c", "d"))
    with pytest.raises(ValueError, match="the same jobs"):
        data_of(RECORDS, other)
    with pytest.raises(ValueError, match="needs the runs"):
        data_of(replace(RECORDS, runs=Runs.empty()))
    monkeypatch.setattr(columns, "MOST_RUNS", 9)
    with pytest.raises(ConfigError, match="10 runs are too many"):
        data_of(RECORDS, RECORDS)


def test_the_size_is_bounded() -> None:
    """A job costs less than 70 bytes and a run less than 40, besides the page itself."""

    def size(count: int) -> int:
        lives = [life(t, (t, t + 3), (t + 5, t + 9), alone=7) for t in range(0, 10 * count, 10)]
        return len(page(data_of(records_of(lives))))

    assert size(11_000) - size(1000) < 10_000 * 70 + 20_000 * 40


def test_hostile_text_is_text() -> None:
    """Ids, users, names, titles and labels add no element, and come back as they can be printed."""
    plain = Read(page(data_of(RECORDS)))
    evil = replace(RECORDS, job_id=(HOSTILE, "b", "c", "d"), users=(HOSTILE, "bob", "cyd"))
    schedule = Schedule(label=HOSTILE, about=(HOSTILE,), records=evil)
    text = page(page_data(subject(title=HOSTILE, names=[HOSTILE] * 4), [schedule]))

    read = Read(text)
    assert [tag for tag, _ in read.elements] == [tag for tag, _ in plain.elements]
    assert [attrs for _, attrs in read.elements] == [attrs for _, attrs in plain.elements]
    data = data_in(text)
    told = "".join(c for c in HOSTILE if c.isprintable())
    assert data["jobs"]["id"][0] == data["title"] == data["jobs"]["users"][0] == told
    assert data["schedules"][0]["label"] == told


@given(st.text())
def test_no_text_ends_the_data_block(text: str) -> None:
    """Of markup there is no character, and JSON gives back what went in."""
    written = inert_json({"x": text})

    assert not set("<>&") & set(written)
    assert written.isascii()
    assert json.loads(written) == {"x": text}


def test_nothing_but_this_script_and_this_style_can_run_or_load() -> None:
    """The policy has their hashes; no address, no handler, no way to make code of text.

    No script beside the others is forgotten, and equal schedules give equal bytes.
    """
    text = page(data_of(RECORDS))
    read = Read(text)
    meta = [a["content"] for a, _ in read.of("meta") if a.get("http-equiv")]
    (style_text,) = [text for _, text in read.of("style")]
    (data_attrs, _), (_, script) = read.of("script")

    def hashed(text: str) -> str:
        digest = hashlib.sha256(text.encode()).digest()
        return f"'sha256-{base64.b64encode(digest).decode()}'"

    allowed = f"script-src {hashed(script)}; style-src {hashed(style_text)}"
    assert meta == [f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"]
    assert data_attrs["type"] == "application/json"
    assert not re.search(r"https?:|//cdn|\burl\(|@import|\bsrc=|\bhref=|\son\w+=", text)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|fetch\(|"
        r"XMLHttp|WebSocket|localStorage|import\(",
        text,
    )
    folder = Path(columns.__file__).parents[1] / "page"
    assert {path.name for path in folder.glob("*.js")} == set(SCRIPTS)
    assert text == page(data_of(records_of(LIVES)))


def dlsim(*args: object) -> Result:
    """What ``dlsim ARGS`` prints and how it ends."""
    return in_process(main, *args)


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    """Two policies on one page, their figures those of ``dlsim compare``, and what was written.

    Jobs that do not finish are told, with status 1.
    """
    page_path, out = tmp_path / "r.html", tmp_path / "c.json"
    words = (SIXTY, "--cluster", "4x4", "--policies", "discrete_las,fifo")
    told = dlsim("report", *words, "--out", page_path)

    assert told.exit_code == 0, told.output
    assert "60 jobs, 120 runs" in told.output
    data = data_in(page_path.read_text(encoding="utf-8"))
    assert [s["label"] for s in data["schedules"]] == ["discrete_las", "fifo"]
    assert dlsim("compare", *words, "-q", "--json", out).exit_code == 0
    for schedule, cell in zip(data["schedules"], json.loads(out.read_text())["cells"], strict=True):
        assert math.isclose(schedule["figures"]["avg_jct_s"], cell["avg_jct_s"])
    page_path.unlink()
    told = dlsim("report", SIXTY, "--cluster", "1x2", "--policies", "fifo", "--out", page_path)
    assert told.exit_code == 1
    assert "did not finish under fifo" in told.output
    assert page_path.exists()


def test_mistakes_are_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with status 2, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    for policies, out, says in (
        ("fifo", "r.txt", "ends with .html"),
        ("no_such", "r.html", "no_such"),
        ("all", "r.html", "at most 9"),
        ("fifo", "no/r.html", "there is no directory"),
    ):
        words = ("--cluster", "4x4", "--policies", policies, "--out", out)
        told = dlsim("report", SIXTY, *words)
        assert told.exit_code == 2
        assert says in told.output
        assert not list(tmp_path.iterdir())
