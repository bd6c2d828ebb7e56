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
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.job_record import Records, Runs
from slurm_dl.report import timeline
from slurm_dl.report.html import SCRIPTS, inert_json, page
from slurm_dl.report.html import page_data as columns
from slurm_dl.report.html.page_data import NEVER, Schedule, Subject, how_they_ended, page_data

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


def test_a_last_run_without_an_end_was_a_preemption() -> None:
    """The job of two runs that never finished waits still."""
    unfinished = records_of([life(0, (0, 5), (7, 9), ends=False)])
    runs = unfinished.runs

    how = how_they_ended(
        runs.job.astype(np.int64), runs.start_s.astype(np.int64), runs.end_s.astype(np.int64),
        unfinished.finished,
    )  # fmt: skip
    assert how.tolist() == [columns.PREEMPTED, columns.PREEMPTED]


def test_no_jobs_are_a_page_too() -> None:
    """An empty trace says so and divides by nothing."""
    data = data_of(records_of([]))

    assert data["jobs"]["id"] == []
    assert data_in(page(data)) == data


def test_unlike_schedules_and_unknown_runs_are_refused() -> None:
    """Two workloads are not compared; without runs nothing can be drawn."""
    other = replace(RECORDS, job_id=("a", "b", "c", "d"))
    with pytest.raises(ValueError, match="the same jobs"):
        data_of(RECORDS, other)
    with pytest.raises(ValueError, match="needs the runs"):
        data_of(replace(RECORDS, runs=Runs.empty()))


def test_too_many_runs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """All schedules of the page count."""
    monkeypatch.setattr(columns, "MOST_RUNS", 9)
    with pytest.raises(ConfigError, match="10 runs are too many"):
        data_of(RECORDS, RECORDS)


def many(count: int) -> Records:
    """Jobs one after the other, each preempted once."""
    start_s = np.arange(count) * 10.0
    none = np.zeros(count, dtype=np.int32)
    job = np.tile(np.arange(count, dtype=np.int32), 2)
    first = np.concatenate([start_s, start_s + 5])
    return Records(
        job_id=tuple(map(str, range(count))), user=none, users=("ada",), gpus=np.ones(count),
        submit_s=start_s, start_s=start_s, end_s=start_s + 9, alone_s=np.full(count, 7.0),
        service_gpu_s=np.full(count, 7.0), preemptions=none + 1, promotions=none,
        success=np.ones(count, dtype=np.bool_),
        runs=Runs(
            job=job, start_s=first, end_s=first + np.repeat([3.0, 4.0], count),
            gpus=np.ones(2 * count),
        ),
    )  # fmt: skip


def test_the_size_is_bounded() -> None:
    """A job costs less than 70 bytes and a run less than 40, besides the page itself."""
    small, large = (len(page(data_of(many(n)))) for n in (1000, 11_000))

    assert large - small < 10_000 * 70 + 20_000 * 40


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


def test_the_policy_allows_this_script_and_this_style_alone() -> None:
    """The hashes are those of what stands in the page; nothing else may run or load."""
    read = Read(page(data_of(RECORDS)))
    meta = [a["content"] for a, _ in read.of("meta") if a.get("http-equiv")]
    (style_text,) = [text for _, text in read.of("style")]
    data_attrs, (_, script) = read.of("script")[0][0], read.of("script")[1]

    def hashed(text: str) -> str:
        digest = hashlib.sha256(text.encode()).digest()
        return f"'sha256-{base64.b64encode(digest).decode()}'"

    allowed = f"script-src {hashed(script)}; style-src {hashed(style_text)}"
    assert meta == [f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"]
    assert data_attrs["type"] == "application/json"
    assert len(read.of("script")) == 2


def test_nothing_is_loaded_and_no_text_becomes_markup() -> None:
    """No address, no handler in an attribute, no way to make markup or code of text."""
    text = page(data_of(RECORDS))

    assert not re.search(r"https?:|//cdn|\burl\(|@import|\bsrc=|\bhref=|\son\w+=", text)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|fetch\(|"
        r"XMLHttp|WebSocket|localStorage|import\(",
        text,
    )


def test_every_script_is_in_the_page() -> None:
    """No file beside the others is forgotten."""
    folder = Path(columns.__file__).parents[1] / "page"

    assert {path.name for path in folder.glob("*.js")} == set(SCRIPTS)


def test_the_page_is_the_same_each_time() -> None:
    """Equal schedules give equal bytes."""
    assert page(data_of(RECORDS)) == page(data_of(records_of(LIVES)))


def dlsim(*args: object) -> Result:
    """What ``dlsim ARGS`` prints and how it ends."""
    return in_process(main, *args)


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    """Two policies on one page, their figures those of ``dlsim compare``, and what was written."""
    page_path = tmp_path / "r.html"
    told = dlsim(
        "report", SIXTY, "--cluster", "4x4", "--policies", "discrete_las,fifo",
        "--out", page_path,
    )  # fmt: skip

    assert told.exit_code == 0, told.output
    assert "60 jobs, 120 runs" in told.output
    data = data_in(page_path.read_text(encoding="utf-8"))
    assert [s["label"] for s in data["schedules"]] == ["discrete_las", "fifo"]
    compared = dlsim(
        "compare", SIXTY, "--cluster", "4x4", "--policies", "discrete_las,fifo", "-q",
        "--json", tmp_path / "c.json",
    )  # fmt: skip
    assert compared.exit_code == 0
    cells = json.loads((tmp_path / "c.json").read_text())["cells"]
    for schedule, cell in zip(data["schedules"], cells, strict=True):
        assert math.isclose(schedule["figures"]["avg_jct_s"], cell["avg_jct_s"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--policies", "fifo", "--out", "r.txt"), "ends with .html"),
        (("--policies", "no_such", "--out", "r.html"), "no_such"),
        (("--policies", "all", "--out", "r.html"), "at most 9"),
        (("--policies", "fifo", "--out", "no/r.html"), "there is no directory"),
    ],
)
def test_mistakes_are_told_before_the_work(
    options: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with status 2, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    told = dlsim("report", SIXTY, "--cluster", "4x4", *options)

    assert told.exit_code == 2
    assert says in told.output
    assert not list(tmp_path.iterdir())


def test_jobs_that_do_not_finish_are_told(tmp_path: Path) -> None:
    """The page is there, and the status is 1."""
    told = dlsim(
        "report", SIXTY, "--cluster", "1x2", "--policies", "fifo", "--out", tmp_path / "r.html"
    )

    assert told.exit_code == 1
    assert "did not finish under fifo" in told.output
    assert (tmp_path / "r.html").exists()
